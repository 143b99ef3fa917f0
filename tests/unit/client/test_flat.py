"""A module and its vector: the layout, and that copies share no memory."""

import os
import pickle
import re

import numpy as np
import pytest
import torch
from helpers import small_model
from safetensors.torch import save_file
from torch import nn

from fl_app.client import flat
from fl_app.client.flat import FlatModel, trainable_only
from fl_app.client.gpus import prepare, resolve_device
from fl_app.client.initial import weighted


def test_a_module_becomes_one_vector_with_parameters_first():
    module = small_model()
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = FlatModel(module)
    layout = model.layout
    assert layout.names == list(expected)
    assert layout.size == 3 * 4 + 4 + 4 + 4 + 4 + 4 + 1 + 4 * 2 + 2
    assert layout.num_trainable == layout.size - 9
    for name, array in layout.named(model.read()).items():
        np.testing.assert_array_equal(array, expected[name].numpy())
        assert array.dtype == expected[name].numpy().dtype
    assert torch.cat([p.detach().reshape(-1) for p in model.params]).tolist() == (
        model.read()[: layout.num_trainable].tolist()
    )


def test_load_and_read_are_inverse_and_copy():
    model = FlatModel(small_model())
    vector = np.arange(model.layout.size, dtype=np.float32)
    model.load(vector)
    first = model.read()
    np.testing.assert_array_equal(first, vector)
    np.testing.assert_array_equal(model.read(start=model.layout.num_trainable), vector[-9:])
    assert model.module[3].bias.tolist() == vector[model.layout.slices["3.bias"]].tolist()
    counter = model.layout.slices["1.num_batches_tracked"].start
    vector[counter] = 6.7  # as of a mean of counters
    np.testing.assert_array_equal(model.read(), first)
    model.load(vector)
    assert model.module[1].num_batches_tracked == 7
    assert first[counter] == counter


def frozen_head():
    """As `small_model`, but the last layer is frozen and in half precision."""
    module = small_model()
    module[3].to(torch.bfloat16).requires_grad_(False)
    return module


def test_all_arrays_by_name_hold_the_frozen_ones_in_the_order_of_the_module():
    module = frozen_head()
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = FlatModel(module)
    arrays = model.named(model.read())
    assert list(arrays) == list(expected)
    assert arrays["3.weight"].dtype == np.float32  # NumPy has no bfloat16
    for name, tensor in expected.items():
        assert arrays[name].tolist() == tensor.tolist()
    assert model.named(model.read() + 1)["0.bias"].tolist() == (expected["0.bias"] + 1).tolist()
    assert "3.weight" not in model.layout.names


def test_other_frozen_parameters_are_detected_and_rounding_is_ignored():
    one, other = FlatModel(frozen_head()), FlatModel(frozen_head())
    assert one.differing(other.traces) == []
    with torch.no_grad():
        other.module[3].weight *= 1 + 2**-7  # the smallest change of a bfloat16
    assert one.differing(FlatModel(other.module).traces) == ["3.weight"]
    assert one.differing([trace * (1 + 1e-7) for trace in one.traces]) == []
    assert one.differing([]) == ["3.bias", "3.weight"]
    assert FlatModel(small_model()).differing([]) == []
    trained, other_initial = (FlatModel(small_model(), private=["3.bias"]) for _ in range(2))
    trained.module[3].bias.data += 1  # it has been trained
    other_initial.initial["3.bias"] += 1
    assert trained.differing(other_initial.traces) == ["3.bias"]
    assert trained.differing(FlatModel(small_model(), private=["3.bias"]).traces) == []


def test_on_a_gpu_tensors_lie_apart_aligned_as_cudnn_wants_them(monkeypatch):
    monkeypatch.setattr(flat, "ONE_VECTOR", ())
    module = small_model()
    model = FlatModel(module)
    vector = np.arange(model.layout.size, dtype=np.float32)
    model.load(vector)
    counter = vector[model.layout.slices["1.num_batches_tracked"]]
    assert module[1].num_batches_tracked.item() == counter
    np.testing.assert_array_equal(model.read(), vector)
    np.testing.assert_array_equal(model.read(5), vector[5:])
    assert all(tensor.data_ptr() % 16 == 0 for tensor in module.state_dict().values())
    assert model.twin().params[0].data_ptr() != model.params[0].data_ptr()


class Tied(nn.Module):
    """An embedding that shares its weights with the output, and two names of one buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(3, 2)
        self.middle = nn.Linear(2, 2)
        self.output = nn.Linear(2, 3, bias=False)
        self.output.weight = self.embedding.weight
        average = torch.zeros(2)
        self.register_buffer("mean", average)
        self.register_buffer("same_mean", average)

    def forward(self, tokens):
        return self.output(self.middle(self.embedding(tokens)))


def test_tied_weights_are_in_the_vector_once_and_stay_tied():
    module = Tied()
    names = list(module.state_dict())
    model = FlatModel(module)
    assert model.layout.names == ["mean", "embedding.weight", "middle.weight", "middle.bias"]
    assert len(model.params) == 3
    vector = np.arange(model.layout.size, dtype=np.float32)
    model.load(vector)
    assert module.output.weight is module.embedding.weight
    assert module.output.weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    module.mean += 1
    assert torch.equal(module.mean, module.same_mean)
    arrays = model.named(vector)
    assert list(arrays) == names
    assert arrays["output.weight"].tolist() == arrays["embedding.weight"].tolist()


def test_private_parameters_and_buffers_are_not_in_the_vector():
    module = small_model()
    model = FlatModel(module, private=["1.*", "3.bias"])
    assert model.layout.names == ["0.weight", "0.bias", "3.weight"]
    assert [id(p) for p in model.trained] == [
        *map(id, (module[0].weight, module[0].bias, module[3].weight)),
        *map(id, (module[1].weight, module[1].bias, module[3].bias)),
    ]
    first = model.read_private()
    assert list(first) == [*(n for n in module.state_dict() if n[0] == "1"), "3.bias"]
    initial = first["3.bias"].tolist()
    module(torch.ones(5, 3))
    with torch.no_grad():
        module[3].bias += 1
    assert first["3.bias"].tolist() == initial, "a copy"
    private = model.read_private()
    assert private["1.num_batches_tracked"] == 1
    model.load_private({})
    assert module[3].bias.tolist() == initial == model.named(model.read())["3.bias"].tolist()
    for array in private.values():
        array.flags.writeable = False  # like arrays from another process
    model.load_private(private)
    assert module[3].bias.tolist() == private["3.bias"].tolist()
    assert module[1].num_batches_tracked == 1


def test_a_twin_shares_only_frozen_and_private_parameters():
    model = FlatModel(trainable_only(small_model, ["0.*", "3.*"]), private=["3.weight"])
    twin = model.twin()
    assert twin.layout == model.layout
    assert twin.module[1].weight is model.module[1].weight
    assert twin.module[3].weight is model.module[3].weight
    before = model.read()
    assert twin.read().tolist() == before.tolist()
    twin.load(before + 1)
    assert model.read().tolist() == before.tolist()
    with torch.no_grad():
        model.module[3].weight.zero_()
        model.module[1].weight.zero_()
    outputs = twin.module(torch.ones(4, 3))
    assert torch.equal(outputs, twin.module[3].bias.expand(4, 2))


@pytest.mark.parametrize(
    ("trainable", "private", "message"),
    [
        (
            ["nothing.*"],
            [],
            "task.trainable='nothing.*' matches no name in the model, whose names ",
        ),
        (["0.*", "1.running_mean"], [], "task.trainable='1.running_mean' matches no name"),
        (["0.*"], ["3.*"], "client.private=['3.*'] matches frozen parameters (3.bias, 3.weight): "),
        (["*"], ["head"], "client.private='head' matches no name in the model, whose names are 0."),
        (["*"], ["*"], "6 parameters 0 are frozen (requires_grad=False) and algorithm.client.priv"),
        (["0.*"], ["0.*"], "6 parameters 4 are frozen (requires_grad=False) and algorithm.client"),
    ],
)
def test_patterns_that_leave_nothing_to_train_or_to_share_are_refused(trainable, private, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FlatModel(trainable_only(small_model, trainable), private=private)


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(ValueError, match="of the model's 6 parameters 6 are frozen"):
        FlatModel(small_model().requires_grad_(False))
    with pytest.raises(ValueError, match="of the model's 0 parameters 0 are frozen"):
        FlatModel(nn.ReLU())


def test_integers_cannot_be_trained():
    def quantised():
        module = nn.Linear(2, 2)
        module.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
        return module

    assert FlatModel(quantised()).layout.names == ["bias"]
    with pytest.raises(
        ValueError, match=re.escape("task.trainable matches weight, which is torch.int8")
    ):
        trainable_only(quantised, ["*"])


# -- weights from files ----------------------------------------------------------------------------


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
    saved, loaded = small_model(seed=1), small_model(seed=2)
    weighted(lambda: loaded, save(tmp_path / name, saved.state_dict()))()
    for key, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)


def test_errors_name_weights_that_do_not_fit(tmp_path):
    weights = small_model(width=5).state_dict()
    del weights["3.bias"]
    weights["head.bias"] = torch.zeros(2)
    weights["3.weight"][0, 0] = torch.nan
    file = save(tmp_path / "a.pt", weights)
    with pytest.raises(ValueError, match=re.escape(f"task.weights={file} must hold")) as refusal:
        weighted(small_model, file)()
    for part in (
        "3.weight is not finite;",
        'Missing key(s) in state_dict: "3.bias"',
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
    weights = {"0.weight": saved.state_dict()["0.weight"]}  # as safetensors stores them
    weighted(lambda: loaded, save(tmp_path / "a.safetensors", weights))()
    assert torch.equal(loaded.state_dict()["1.weight"], weights["0.weight"])
    with pytest.raises(ValueError, match=r'Missing .*"0.weight", "1.weight".*Unexpected .*"other"'):
        weighted(lambda: loaded, save(tmp_path / "b.pt", {"other": torch.zeros(1)}))()


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npz"])
def test_nothing_is_unpickled(tmp_path, name):
    path, trace = tmp_path / name, tmp_path / "trace"
    path.write_bytes(pickle.dumps({"w": Runs(trace)}))
    with pytest.raises(ValueError, match=r"task\.weights=.*nothing but tensors by name"):
        weighted(small_model, str(path))()
    assert not trace.exists()


def test_a_file_with_more_than_tensors(tmp_path):
    file = save(tmp_path / "a.pt", {"epoch": 3})
    with pytest.raises(ValueError, match="TypeError: 'epoch' is a int"):
        weighted(small_model, file)()


# -- GPUs, on a machine without one ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "device", "listing"),
    [
        *((2, device, r"cuda:0, cuda:1 ") for device in ("cuda:2", "cuda:x", "cuda:-1", "cuda:01")),
        (0, "cuda", r"no GPU \(CUDA_VISIBLE_DEVICES=7\)$"),
    ],
)
def test_a_missing_gpu_is_refused(monkeypatch, count, device, listing):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=rf"^runtime\.device={device} must be .* sees {listing}"):
        resolve_device(device)


def test_a_process_computes_repeatably_on_a_gpu(monkeypatch):
    devices = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn, filling = torch.backends.cudnn, torch.utils.deterministic
    before = cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory
    cudnn.benchmark = True
    try:
        for device in ("cpu", "meta", "auto"):
            prepare(device)
        assert not torch.are_deterministic_algorithms_enabled()
        assert devices == []
        prepare("cuda:1")
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not cudnn.benchmark
        assert not cudnn.allow_tf32
        assert devices == ["cuda:1"]
    finally:
        torch.use_deterministic_algorithms(False)
        cudnn.benchmark, cudnn.allow_tf32, filling.fill_uninitialized_memory = before
