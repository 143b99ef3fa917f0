"""Which GPUs a run uses: those that torch says are visible, of which there are none here."""

import pytest
import torch

from fl_app.client.gpus import gpus_of, prepare


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", ["cuda:0", "cuda:1"]),
        ("auto", ["cuda:0", "cuda:1"]),
        ("cuda:1", ["cuda:1"]),
        ("cpu", []),
        ("meta", []),
    ],
)
def test_a_device_stands_for_all_visible_gpus_or_for_one(device: str, expected: list[str]) -> None:
    assert gpus_of(device) == expected


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("device", ["cuda:2", "cuda:x", "cuda:-1", "cuda:01"])
def test_a_gpu_that_is_not_there(device: str) -> None:
    expected = rf"^runtime\.device={device} must be .*: the visible GPUs are cuda:0 to cuda:1$"
    with pytest.raises(ValueError, match=expected):
        gpus_of(device)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpus_of("auto") == []
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match=r"^runtime\.device=cuda must be .* without CUDA$"):
        gpus_of("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ValueError, match=r"cuda:0 must be .*: there is no GPU, or no driver"):
        gpus_of("cuda:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=r": no GPU is visible with CUDA_VISIBLE_DEVICES=7$"):
        gpus_of("cuda")


def test_a_process_computes_repeatably_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn, filling = torch.backends.cudnn, torch.utils.deterministic
    before = cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn.benchmark = True
    try:
        for device in ("cpu", "meta", "auto"):
            prepare(device)
        assert not torch.are_deterministic_algorithms_enabled()
        assert chosen == []
        prepare("cuda:1")
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not cudnn.benchmark
        assert not cudnn.allow_tf32
        assert chosen == ["cuda:1"]
    finally:
        torch.use_deterministic_algorithms(False)
        cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory = before  # type: ignore[attr-defined]
