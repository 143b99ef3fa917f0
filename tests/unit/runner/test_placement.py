"""Where a run trains, by its configuration and the GPUs that torch says are visible."""

import os

import pytest
import torch
from configs import composed

from fl_app.runner.components import build_components
from fl_app.runner.placement import Placement, placement
from fl_app.runner.validate import validate_config

CORES = len(os.sched_getaffinity(0))
GPUS = ("cuda:0", "cuda:1", "cuda:2")


def placed(*overrides: str) -> Placement:
    return placement(composed(*(f"runtime.{word}" for word in overrides)))


def visible(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_without_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, 0)
    assert placed(f"device={device}") == Placement("cpu", CORES)
    assert placed(f"device={device}", "workers=0") == Placement("cpu")
    assert placed(f"device={device}", "workers=3", "workers_per_gpu=9") == Placement("cpu", 3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["device=cuda"], Placement("cpu", 3, GPUS)),
        (["device=auto"], Placement("cpu", 3, GPUS)),
        (["device=cuda", "workers_per_gpu=4"], Placement("cpu", 12, GPUS)),
        (["device=cuda:1", "workers_per_gpu=4"], Placement("cpu", 4, ("cuda:1",))),
        (["device=cuda", "workers=2", "workers_per_gpu=4"], Placement("cpu", 2, GPUS)),
        (["device=cuda:2", "workers=0"], Placement("cuda:2")),
        (["device=cpu"], Placement("cpu", CORES)),
    ],
    ids=str,
)
def test_on_a_machine_with_three_gpus(
    words: list[str], expected: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible(monkeypatch, 3)
    assert placed(*words) == expected


def test_the_main_process_leaves_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the model, on the processor; CUDA's initialisation would fail here."""
    visible(monkeypatch, 1)
    config = composed("runtime.device=cuda", "num_clients=4")
    validate_config(config)
    components = build_components(config)
    assert components.placement.gpus == ("cuda:0",)
    assert components.trainer.device == "cpu"
    assert not torch.cuda.is_initialized()


def test_the_main_process_of_a_cluster_has_data_that_can_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visible(monkeypatch, 3)
    assert placement(composed("runtime=ray", "runtime.device=cuda")) == Placement("cpu")
    assert placement(composed("runtime=flower", "runtime.device=cuda:1")) == Placement("cuda:1")


def test_other_devices_train_in_the_main_process() -> None:
    assert placed("device=meta") == Placement("meta")
    with pytest.raises(ValueError, match=r"^runtime\.workers=2 must be auto or 0 here, .*=meta"):
        placed("device=meta", "workers=2")


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visible(monkeypatch, 0)
    with pytest.raises(ValueError, match=r"^runtime\.device=cuda must be cpu, a device that torch"):
        validate_config(composed("runtime.device=cuda"))
