"""From configuration to objects: where and whether a run trains, and how large messages are."""

import os

import pytest
import torch
from configs import composed
from helpers import HeadedQuadratic, Recorder

from fl_app.runner.cell import run_cell
from fl_app.runner.components import build_components, message_bytes, placement
from fl_app.runner.factory import build_engine
from fl_app.runner.validate import validate_config

CORES = len(os.sched_getaffinity(0))
WORKERS = CORES if CORES > 1 else 0


def placed(*overrides):
    return placement(composed(*(f"runtime.{word}" for word in overrides)))


def visible(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        *((0, [f"device={device}"], ("cpu", WORKERS)) for device in ("cpu", "auto")),
        (0, ["device=auto", "workers=0"], ("cpu", 0)),
        (0, ["device=auto", "workers=3"], ("cpu", 3)),
        (3, ["device=cuda"], ("cuda:0", 0)),
        (3, ["device=auto"], ("cuda:0", 0)),
        (3, ["device=cuda:2", "workers=0"], ("cuda:2", 0)),
        (3, ["device=cpu"], ("cpu", WORKERS)),
        (3, ["device=meta"], ("meta", 0)),  # as any other device
    ],
    ids=str,
)
def test_a_run_trains_where_gpus_are_and_workers(count, words, expected, monkeypatch):
    visible(monkeypatch, count)
    assert placed(*words) == expected


def test_cores_are_shared_and_one_of_them_needs_no_worker(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for parallel, workers in ((1, 8), (2, 4), (8, 0), (9, 0)):
        assert placement(composed(f"experiment.parallel={parallel}")) == ("cpu", workers)


def test_the_main_process_of_a_cluster_has_data_that_can_be_sent(monkeypatch):
    visible(monkeypatch, 3)
    assert placement(composed("runtime=ray", "runtime.device=cuda")) == ("cpu", 0)
    assert placement(composed("runtime=flower", "runtime.device=cuda:1")) == ("cuda:1", 0)


def test_what_is_not_there_is_refused_before_anything_is_built(monkeypatch):
    visible(monkeypatch, 0)
    with pytest.raises(ValueError, match=r"^runtime\.device=cuda must be cpu, a device that torch"):
        validate_config(composed("runtime.device=cuda"))
    with pytest.raises(ValueError, match=r"^runtime\.workers=2 must be auto or 0 here, .*=meta"):
        placed("device=meta", "workers=2")


def test_forked_workers_and_a_gpu_are_refused_with_what_has_both(monkeypatch):
    visible(monkeypatch, 2)
    config = composed("runtime.device=cuda", "runtime.workers=2")
    told = (
        r"^runtime\.workers=2 must be auto or 0 here, .*=cuda:0: .* runtime\.gpus_per_worker=1 has"
    )
    with pytest.raises(ValueError, match=told):
        build_components(config)


def test_what_cannot_be_trained_together_is_said_once(tmp_path, caplog):
    few = ["num_clients=10", "runtime.workers=0", "algorithm.schedule.concurrency=6"]
    config = composed("algorithm=fedasmu", "num_versions=1", "runtime.batch=4", *few)
    run_cell(config, tmp_path, label="test", show=False)
    reason = "FedASMUTrainer has a should_pause of its own"
    told = f"runtime.batch=4: clients are trained one at a time: {reason}"
    assert caplog.messages.count(told) == 1


# -- without training -----------------------------------------------------------------------------

CLIENTS = 12
TASK = HeadedQuadratic.scattered(CLIENTS)
BUSY = ["devices/server=measured", "devices.server.evaluation=0.3", "devices.server.poll=0.2"]


def course(name, train):
    """What happened and when, and the final model."""
    config = composed(
        f"algorithm={name}",
        f"num_clients={CLIENTS}",
        *("num_versions=15", "eval_every=2", "runtime.workers=0", f"runtime.train={train}"),
        *BUSY,
    )
    recorder = Recorder()
    engine = build_engine(build_components(config, TASK), sinks=[recorder])
    final = engine.run().params.tobytes()
    keys = ("kind", "t", "client", "order", "version", "age")
    return [[event.get(key) for key in keys] for event in recorder.events], final


@pytest.mark.parametrize("name", ["fedasync", "scaffold"])
def test_the_same_happens_at_the_same_time_as_with_training(name):
    (trained, model), (untrained, still) = course(name, "true"), course(name, "false")
    assert trained == untrained
    assert model != still


def test_a_run_without_training_measures_nothing(tmp_path):
    config = composed("num_versions=4", "runtime.train=false", "num_clients=10", "eval_every=1")
    _, summary = run_cell(config, tmp_path / "run", label="untrained", show=False)
    assert (summary["num_versions"], summary["final_accuracy"]) == (4, None)
    assert summary["mean_staleness"] >= 0


@pytest.mark.parametrize(
    "more", ["target_accuracy=0.5", "metrics=[recall]", "client_eval_every=1", "runtime.train=no"]
)
def test_what_needs_training_is_refused(more):
    config = composed("runtime.train=false", "num_clients=10", *([more] if more else []))
    if more == "runtime.train=no":
        config.runtime.train = "no"
    with pytest.raises(ValueError, match=r"^runtime\.train="):
        validate_config(config)


# -- lengths and sizes ----------------------------------------------------------------------------


def test_an_algorithm_may_refuse_the_length_of_a_run():
    settings = ["algorithm=fedhist", "algorithm.strategy.norm_decay=0.01"]
    validate_config(composed(*settings, "num_versions=99"))
    validate_config(composed(*settings, "num_versions=100", "algorithm.strategy.norm_floor=0.2"))
    with pytest.raises(ValueError, match=r"norm_decay=0.01 must be below 1 / num_versions=0.01"):
        validate_config(composed(*settings, "num_versions=100"))


@pytest.mark.parametrize(("settings", "upload"), [([], 8), (["upload_dtype=float16"], 4)])
def test_the_bytes_of_vectors_beside_the_model_are_known_before_the_run(settings, upload):
    """And decide how long transfers take, of which an hour is nearly all of an order."""
    link = ["devices/network=link", "devices.network.down=1", "devices.network.up=1"]
    more = [*link, *(f"algorithm.client.{entry}" for entry in settings)]

    def build(algorithm):
        config = composed(f"algorithm={algorithm}", "num_clients=10", *more)
        components = build_components(config)
        sizes = message_bytes(components.strategy, components.trainer)
        d = components.trainer.model.layout.size
        assert components.upload_bytes == sizes[1]
        return sizes[0] // d, sizes[1] // d, components.devices.parts(3, 0, 0.0).seconds

    *sizes, seconds = build("scaffold")
    assert sizes == [8, upload]
    *plain, shorter = build("fedbuff")
    assert plain == [4, upload // 2]
    assert seconds == pytest.approx(2 * shorter, rel=0.01)
