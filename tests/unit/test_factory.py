"""From configuration to objects: settings that are objects themselves, runs that are refused."""

import multiprocessing
from contextlib import closing

import pytest
import torch
from configs import composed

from fl_app.clustered import ClusteredQuorum
from fl_app.core.rates import LinearDecay
from fl_app.engine.engine import Engine
from fl_app.factory import (
    build_devices,
    build_engine,
    build_schedule,
    build_strategy,
    build_trainer,
)
from fl_app.validate import check


def test_the_rate_falls_over_the_configured_run() -> None:
    config = composed(
        "algorithm=twafl", "num_versions=80", "algorithm.strategy.lr_schedule.to=0.25"
    )
    assert build_strategy(config).lr_schedule == LinearDecay(to=0.25, versions=80)


def test_eafls_schedule_goes_by_the_strategys_keys() -> None:
    keys = {
        "num_clusters": 3,
        "participation": 0.2,
        "recluster_every": 7,
        "synchronous": False,
        "recluster": False,
    }
    overrides = [f"algorithm.strategy.{key}={value}" for key, value in keys.items()]
    config = composed("algorithm=eafl", *overrides)
    assert build_schedule(config) == ClusteredQuorum(**keys)
    assert build_strategy(config).schedule == build_schedule(config)


def test_a_bad_value_inside_a_setting_is_refused() -> None:
    config = composed("algorithm=twafl", "algorithm.strategy.lr_schedule.to=2")
    with pytest.raises(ValueError, match=r"^lr_schedule\.to=2 must be in \[0, 1\]"):
        build_strategy(config)


def test_an_algorithm_may_refuse_the_length_of_a_run() -> None:
    settings = ["algorithm=fedhist", "algorithm.strategy.norm_decay=0.01"]
    check(composed(*settings, "num_versions=99"))
    check(composed(*settings, "num_versions=100", "algorithm.strategy.norm_floor=0.2"))
    with pytest.raises(ValueError, match=r"norm_decay=0.01 must be below 1 / num_versions=0.01"):
        check(composed(*settings, "num_versions=100"))


def engine_on_a_gpu(workers: str) -> Engine:
    """Of a trainer that says it is on one; nothing is trained."""
    config = composed("algorithm=fedavg_k", "num_clients=10", f"runtime.workers={workers}")
    trainer = build_trainer(config)
    trainer.device = torch.device("cuda")
    return build_engine(config, trainer, build_devices(config, trainer), sinks=[])[0]


def test_processes_are_not_forked_where_the_parent_uses_a_gpu() -> None:
    with closing(engine_on_a_gpu("auto")):
        assert multiprocessing.active_children() == []
    with pytest.raises(ValueError, match=r"^runtime\.workers=2 must be auto or 0 here, .*=cuda"):
        engine_on_a_gpu("2")
