"""What a trainer is built from: first weights from a file, and GPUs."""

import os
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fl_app.client.gpus import chosen, prepare
from fl_app.client.initial import weighted


def model(seed=0, width=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def save(path, weights):
    if path.suffix == ".safetensors":
        save_file(weights, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in weights.items()})
    else:
        torch.save(weights, path)
    return str(path)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.pt"])
def test_weights_are_those_of_the_file(tmp_path, name):
    saved, loaded = model(seed=1), model(seed=2)
    weighted(lambda: loaded, save(tmp_path / name, saved.state_dict()))()
    for key, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)


def test_weights_that_do_not_fit_are_named(tmp_path):
    weights = model(width=5).state_dict()
    del weights["2.bias"]
    weights["head.bias"] = torch.zeros(2)
    weights["2.weight"][0, 0] = torch.nan
    file = save(tmp_path / "a.pt", weights)
    with pytest.raises(ValueError, match=re.escape(f"task.weights={file} must hold")) as refusal:
        weighted(lambda: model(), file)()
    for part in (
        "2.weight is not finite;",
        'Missing key(s) in state_dict: "2.bias"',
        'Unexpected key(s) in state_dict: "head.bias"',
        "size mismatch for 0.weight",
    ):
        assert part in str(refusal.value)


def test_tied_weights_need_one_of_their_names(tmp_path):
    def tied():
        first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, second)

    saved, loaded = tied(), tied()
    weights = {"0.weight": saved.state_dict()["0.weight"]}  # as safetensors has them
    weighted(lambda: loaded, save(tmp_path / "a.safetensors", weights))()
    assert torch.equal(loaded.state_dict()["1.weight"], weights["0.weight"])
    with pytest.raises(ValueError, match=r'Missing .*"0.weight", "1.weight".*Unexpected .*"other"'):
        weighted(lambda: loaded, save(tmp_path / "b.pt", {"other": torch.zeros(1)}))()


class Runs:
    """Runs a command where it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npz"])
def test_nothing_is_unpickled(tmp_path, name):
    path, trace = tmp_path / name, tmp_path / "trace"
    path.write_bytes(pickle.dumps({"w": Runs(trace)}))
    with pytest.raises(ValueError, match=r"task\.weights=.*nothing but tensors by name"):
        weighted(lambda: model(), str(path))()
    assert not trace.exists()


def test_a_file_with_more_than_tensors(tmp_path):
    file = save(tmp_path / "a.pt", {"epoch": 3})
    with pytest.raises(ValueError, match="TypeError: 'epoch' is a int"):
        weighted(lambda: model(), file)()


# -- GPUs, of which there are none here -----------------------------------------------------------


def visible(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "device", "expected"),
    [
        *((2, device, "cuda:0") for device in ("cuda", "auto")),
        *((2, device, device) for device in ("cuda:1", "cpu", "meta")),
        (0, "auto", "cpu"),
    ],
)
def test_a_device_stands_for_one_gpu_or_for_the_processor(monkeypatch, count, device, expected):
    visible(monkeypatch, count)
    assert chosen(device) == expected


@pytest.mark.parametrize(
    ("count", "device", "sees"),
    [
        *((2, device, r"cuda:0, cuda:1 ") for device in ("cuda:2", "cuda:x", "cuda:-1", "cuda:01")),
        (0, "cuda", r"no GPU \(CUDA_VISIBLE_DEVICES=7\)$"),
    ],
)
def test_a_gpu_that_is_not_there(monkeypatch, count, device, sees):
    visible(monkeypatch, count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=rf"^runtime\.device={device} must be .* sees {sees}"):
        chosen(device)


def test_a_process_computes_repeatably_on_a_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn, filling = torch.backends.cudnn, torch.utils.deterministic
    before = cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory
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
        cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory = before
