"""Models: sizes, layers, statistics; models of torchvision and of users; tasks from arrays."""

import pickle
import re

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from helpers import make_config
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_app.client.build import build_task
from fl_app.client.flat import FlatModel
from fl_app.core.score import LOSS
from fl_app.runner.validate import validate_config
from fl_app.tasks.models import architecture, torchvision_models
from fl_app.tasks.models.deep import Block
from fl_app.tasks.objective import Classification, Regression
from fl_app.tasks.task import Task
from fl_app.tasks.vision import torchvision

DIGIT, GREY, COLOUR, FACE, TINY = (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 84, 84), (3, 64, 64)
REVIEW, TEXT = (400, 30_000), (35, 33_278)
WITH_STATISTICS = ("vgg11", "resnet18", "resnet20")


def inputs_of(shape, count=2):
    if len(shape) == 3:
        return torch.randn(count, *shape)
    return torch.randint(shape[1], (count, shape[0]), dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "count"),
    [
        ("logistic", DIGIT, 10, 650),
        ("mlp", DIGIT, 10, 2_410),
        ("cnn", DIGIT, 10, 1_898),
        ("lenet", GREY, 10, 61_706),
        ("lenet", COLOUR, 100, 69_656),
        ("cnn_emnist", GREY, 62, 608_702),
        ("cnn_celeba", FACE, 2, 1_600_792),
        ("cnn_asmu", COLOUR, 10, 297_066),
        ("cnn_bn", COLOUR, 10, 374_282),
        ("mlp_overlap", GREY, 10, 199_210),
        ("mnistnet", GREY, 10, 1_199_882),
        ("cnn_cifar", COLOUR, 10, 878_538),
        ("cnn_cifar_quirk", COLOUR, 10, 878_538),
        ("alexnet", TINY, 200, 2_521_096),
        ("vgg11", COLOUR, 10, 9_231_114),
        ("vgg_r", COLOUR, 10, 2_440_394),
        ("resnet18", COLOUR, 10, 11_181_642),
        ("resnet20", TINY, 200, 282_072),
        ("resnet_r", COLOUR, 100, 11_215_332),
        ("resnet18_gn", COLOUR, 10, 11_181_642),
        ("textcnn", REVIEW, 2, 3_120_902),
        ("transformer", TEXT, 33_278, 13_828_478),
        # 81 * 8, 4 * 256 * (8 + 256 + 2), 4 * 256 * (256 + 256 + 2), 257 * 81
        ("char_lstm", (80, 81), 81, 820_185),
    ],
)
def test_parameters_outputs_and_the_flat_vector(name, shape, num_classes, count):
    factory = architecture(name, shape, num_classes)
    assert pickle.loads(pickle.dumps(factory)).args == factory.args
    model = factory()
    outputs = (shape[0], num_classes) if name in ("transformer", "char_lstm") else (num_classes,)
    assert model(inputs_of(shape)).shape == (2, *outputs)
    flat = FlatModel(model)
    assert sum(p.numel() for p in model.parameters()) == flat.layout.num_trainable == count
    buffers = [entry.name for entry in flat.layout.entries if not entry.trainable]
    assert bool(buffers) == (name in WITH_STATISTICS)


def test_a_shortcut_takes_every_second_pixel_and_pads_channels():
    block, images = Block(2, 4, 2), torch.rand(1, 2, 4, 4)
    nn.init.zeros_(block.norm2.weight)  # the residual is zero
    out = block(images)
    assert torch.equal(out[:, 1:3], images[:, :, ::2, ::2])
    assert out[:, [0, 3]].abs().max() == 0


def test_a_word_sees_only_those_before_it_and_its_place():
    torch.manual_seed(0)
    model = architecture("transformer", (35, 50), 50)().eval()
    tokens = inputs_of((35, 50), 1)
    variant = tokens.clone()
    variant[0, 20] = (variant[0, 20] + 1) % 50
    one, other = model(tokens), model(variant)
    assert torch.allclose(one[:, :20], other[:, :20], atol=1e-6)
    assert (one[:, 20:] - other[:, 20:]).abs().amax((0, 2)).min() > 1e-4
    same = model(torch.zeros(1, 35, dtype=torch.int32))
    assert not torch.allclose(same[0, 1], same[0, 2], atol=1e-4)


def test_cnn_cifars_quirk_gives_shares_in_place_of_logits():
    quirk, plain = (architecture(name, COLOUR, 10)() for name in ("cnn_cifar_quirk", "cnn_cifar"))
    plain.load_state_dict(quirk.state_dict())
    inputs = inputs_of(COLOUR, 3)
    assert torch.allclose(quirk(inputs), plain(inputs).relu().softmax(1))


@pytest.mark.parametrize(
    ("name", "shape", "requirement"),
    [
        ("lenet", DIGIT, "images 28x28 or 32x32, the task's are 1x8x8"),
        ("cnn", (1, 3, 8), "images at least 4x4, the task's are 1x3x8"),
        ("textcnn", (4, 100), "sequences of at least 5 words, the task's are 4x100"),
        ("transformer", (35, 11), "sequences whose classes are their vocabulary"),
        ("char_lstm", (80, 11), "sequences whose classes are their vocabulary"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name, shape, requirement):
    with pytest.raises(ValueError, match=rf"task\.model={name} needs {requirement}"):
        architecture(name, shape, 10)()


# -- models of torchvision and of users ------------------------------------------------------------

MODULE = """
from torch import nn
from torch.nn.functional import cross_entropy
def needs_both(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs))
def complete(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def too_small(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
def too_wide(): return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
def smoothed(outputs, targets): return cross_entropy(outputs, targets, label_smoothing=0.5)
def distance(outputs, targets): return (outputs - targets).abs().mean()
def of_each(outputs, targets): return cross_entropy(outputs, targets, reduction="none")
number = 3
"""


@pytest.fixture
def _module(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_models_of_torchvision_have_as_many_outputs_as_the_task():
    models = torchvision().models
    names = models.list_models(module=models)
    assert torchvision_models() == {*names}
    for name in ("squeezenet1_1", "resnet34"):
        model = architecture(name, COLOUR, 7)()
        assert model(torch.zeros(2, *COLOUR)).shape == (2, 7)


@pytest.mark.usefixtures("_module")
def test_models_and_losses_of_users(tmp_path):
    for name in ("needs_both", "complete"):
        overrides = [f"task.model=my_models:{name}", "task.loss=my_models:smoothed"]
        config = make_config("num_clients=20", *overrides)
        validate_config(config)
        task = build_task(config)
        assert isinstance(task.model()[1], nn.Linear)
        outputs, targets = torch.randn(4, 10), torch.arange(4)
        expected = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)
        assert task.objective.loss(outputs, targets) == expected
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i + 0.5}\n" for i in range(40)))
    overrides = ["task=csv", f"task.path={tmp_path / 't.csv'}", "task.target=y", "num_clients=2"]
    config = make_config(*overrides, "partition=iid", "task.loss=my_models:distance")
    objective = build_task(config).objective  # it gets unscaled numbers
    assert objective.score == LOSS  # outputs may be logits
    assert objective.loss(torch.zeros(2, 1), torch.tensor([[7.0], [9.0]])) == 8


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("model", "my_models:too_small", ": the model gives outputs of shape (2, 3) for 2"),
        ("model", "my_models:too_wide", ": the model cannot process inputs of"),
        ("model", "my_models:number", " is a int, which cannot be called"),
        ("model", "absent:model", " must be package.module:callable: ModuleNotFo"),
        ("model", "my_models:lazy", ": the model has layers whose size"),
        ("model", "squeezenet1_1", ": the model cannot process inputs of shape (2,"),
        ("loss", "my_models:of_each", ": loss must give one number"),
        ("loss", "my_models:too_small", ": loss cannot process outputs of shape"),
    ],
)  # fmt: skip
def test_models_and_losses_that_do_not_fit_are_refused(key, name, message):
    config = make_config("num_clients=20", f"task.{key}={name}")
    validate_config(config)
    with pytest.raises(ValueError, match=f"^{re.escape(f'task.{key}={name}{message}')}"):
        build_task(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.model=lenett"], "task.model=lenett must be one of logistic, .*or package.module:"),
        (["task=imdb", "task.model=resnet34"], "task.model=resnet34 must be .* it takes images"),
        (["task.model=textcnn"], "task.model=textcnn must be one that .* it takes sequences"),
        (["task.loss=smoothed"], "task.loss=smoothed must be package.module:callable"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused_before_the_data_are_read(overrides, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        validate_config(make_config(*overrides))


# -- tasks from arrays -----------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.arange(40) % 4
PLANES = RNG.random((40, 8, 8))
NUMBERS = X @ [1.0, 2.0, 3.0] + 100


def linear(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_outputs))


def build(x=X, y=Y, *tests, **settings):
    return Task.from_arrays(x, y, *tests, **({"model": linear} | settings))


# -- arrays ---------------------------------------------------------------------------------------


def test_inputs_of_any_kind_are_float32_and_shared_where_they_are(tmp_path):
    forms = [torch.from_numpy, pd.DataFrame, np.ndarray.tolist, lambda x: x.astype(object)]
    for convert in (np.asfortranarray, *forms):
        assert torch.equal(build(convert(X)).inputs, torch.from_numpy(X).float())
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(build(mapped).inputs.numpy(), mapped)
    assert build(mapped[::-1]).inputs[0].tolist() == mapped[-1].tolist()
    assert build((1 + 2.0**-23 * Y)[:, None]).inputs.unique().numel() == 4  # float32 holds these


def test_bytes_of_images_are_pixels_and_other_integers_tokens():
    images = RNG.integers(256, size=(40, 1, 4, 4), dtype=np.uint8)
    np.testing.assert_allclose(build(images).batch(Y[3:4])[0][0], images[3] / 255, rtol=1e-6)
    last = BYTES[..., None], Y
    for model, channels in (("cnn", 1), ("mlp", 8), (linear, 8)):
        assert build(*last, *last, model=model).inputs.shape[1] == channels
    tokens = RNG.integers(30, size=(40, 7))
    assert build(tokens, model=lambda: Words(30, 4)).inputs.tolist() == tokens.tolist()
    assert build(tokens, model="logistic").inputs.dtype == torch.float32
    assert build(Y[:, None] > 2).inputs.dtype == torch.float32
    assert build(X, Y, X.round().astype(int), Y).test_inputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("y", "kind", "num_outputs"),
    [
        (Y, Classification, 4),
        (Y > 1, Classification, 2),
        (Y[:, None], Classification, 4),
        (np.array(["no", "yes"])[Y % 2], Classification, 2),
        (pd.Series(["b", "a"] * 20, dtype="category"), Classification, 2),
        (np.eye(4, dtype=bool)[Y], Regression, 4),
        (NUMBERS.astype(object), Regression, 1),
        (Y.astype(float), Regression, 1),  # an array has a type; a table has none
        (Y.astype(object), Classification, 4),
        (torch.from_numpy(X).half(), Regression, 3),
    ],
)
def test_the_objective_follows_from_the_targets(y, kind, num_outputs):
    objective = build(y=y).objective
    assert (type(objective), objective.num_outputs) == (kind, num_outputs)


def test_classes_are_their_places_in_order():
    task = build(y=np.array(["b", "a", "c", "a"] * 10))
    assert task.targets[:4].tolist() == [1, 0, 2, 0]
    assert repr(task) == (
        "Task(arrays: classification with 3 outputs (0 = a, 1 = b, 2 = c), 40 training and 0 test "
        "examples of shape (3,), clients of the run)"
    )
    unseen = build(X, Y % 2, X[:2], np.array([1, 17]))
    assert unseen.objective.num_outputs == 3
    assert unseen.test_targets.tolist() == [1, 2]
    assert build(objective="regression").targets.shape == (40, 1)
    ten = build(objective=Classification(10))
    assert (ten.targets.tolist(), ten.objective.num_outputs) == (Y.tolist(), 10)
    rows = build(y=Y[:, None].repeat(3, 1), objective=Classification(4, sequences=True), model=Row)
    assert rows.targets.shape == (40, 3)


class Words(nn.EmbeddingBag):
    """Logits of words."""


class Row(nn.Module):
    """Logits of four classes for each of three numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 4)

    def forward(self, x):
        return self.layer(x[..., None])


def test_numbers_are_standardised_for_the_model_alone():
    """A model that always gives 0 predicts the mean; its error is the deviation."""
    task = build(X, NUMBERS, X, NUMBERS)
    model = task.model()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    metrics = task.test(model)
    assert metrics["loss"] == pytest.approx(1.0, rel=1e-5)
    assert metrics["rmse"] == pytest.approx(NUMBERS.std(), rel=1e-5)
    own_loss = build(X, NUMBERS, X, NUMBERS, loss=nn.functional.mse_loss)
    assert own_loss.test(model)["loss"] == pytest.approx((NUMBERS**2).mean(), rel=1e-5)


def test_clients_are_ids():
    ids = np.array(["zoe", "al", "bo", "al"] * 10)
    for clients in (ids, ids.tolist(), pd.Series(ids)):
        assert [{*ids[p]} for p in build(clients=clients).partition] == [{"al"}, {"bo"}, {"zoe"}]
    numbers = pd.Series([2, 10, 2, 2] * 10, dtype=object)
    assert [len(part) for part in build(clients=numbers).partition] == [30, 10]
    assert build().num_clients == 0  # the run decides


def test_models_are_makers_modules_or_names():
    module = nn.Linear(3, 4)
    makers = [lambda shape, outputs: nn.Linear(shape[0], outputs), lambda: nn.Linear(3, 4)]
    for model in (*makers, module, "mlp", "logistic"):
        assert build(model=model).model()(torch.zeros(2, 3)).shape == (2, 4)
    task, weights = build(model=module), module.weight.clone()
    nn.init.zeros_(module.weight)  # later changes do not count
    assert torch.equal(task.model().weight, weights)
    assert task.model() is not task.model()
    assert build(PLANES[:, None], model="cnn").model()(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    torch.manual_seed(0)
    build(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)))
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))  # trying a model draws nothing
    with pytest.raises(ValueError, match=r"task\.model=mpl must be one of logistic"):
        build(model="mpl")


# -- data sets ------------------------------------------------------------------------------------


def test_data_sets_of_torch_are_pairs():
    x, y = torch.from_numpy(X).float(), torch.from_numpy(Y)
    task = Task.from_datasets(TensorDataset(x, y), TensorDataset(x[:5], y[:5]), model=linear)
    assert torch.equal(task.inputs, x)
    assert torch.equal(task.targets, y)
    assert torch.equal(task.test_inputs, x[:5])
    pixels = np.arange(4 * 4 * 5 * 3, dtype=np.uint8).reshape(4, 4, 5, 3)
    for mode, channels in (("L", 1), ("RGB", 3), ("RGBA", 3)):
        pairs = [(Image.fromarray(image).convert(mode), i % 2) for i, image in enumerate(pixels)]
        images = Task.from_datasets(pairs, model=linear).inputs
        assert (images.shape, images.dtype) == ((4, channels, 4, 5), torch.uint8)
    assert images[3, :, 2, 3].tolist() == pixels[3, 2, 3].tolist()
    deep = np.array([[0, 256, 4096, 65535]], np.uint16)
    pairs = [(Image.fromarray(deep), 0), (Image.fromarray(deep[:, ::-1].copy()), 1)]
    assert Task.from_datasets(pairs, model=linear).inputs[0].flatten().tolist() == [0, 1, 16, 255]


def table(**changes):
    columns = {
        "size": (Value("float64"), [i / 4 for i in range(20)]),
        "point": (List(Value("float32")), X[:20].tolist()),
        "kind": (ClassLabel(names=["cat", "dog", "eel"]), [0, 1] * 10),
        "owner": (Value("string"), [f"owner {i % 4}" for i in range(20)]),
    } | changes
    features = Features({name: feature for name, (feature, _) in columns.items()})
    return Dataset.from_dict({n: values for n, (_, values) in columns.items()}, features=features)


def hub(data, inputs, target, **settings):
    return Task.from_huggingface(
        data, inputs=inputs, target=target, **({"model": linear} | settings)
    )


def test_columns_of_a_data_set_of_hugging_face():
    splits = DatasetDict(train=table(), test=table().select(range(5)))
    task = hub(splits, "point", "kind", clients="owner")
    assert torch.equal(task.inputs, torch.tensor(X[:20]).float())
    targets = task.targets.tolist(), task.test_targets.tolist()
    assert targets == ([0, 1] * 10, [0, 1, 0, 1, 0])
    assert task.objective.classes == ("cat", "dog", "eel")  # although there is no eel
    assert [part.tolist() for part in task.partition] == [list(range(i, 20, 4)) for i in range(4)]
    numbers = hub(table(), ["size", "point"], "size")
    np.testing.assert_allclose(numbers.inputs[3], [0.75, *X[3]], rtol=1e-6)
    far = (Value("float64"), [1.6e9 + i / 4 for i in range(20)])
    with pytest.raises(ValueError, match=r"has numbers from 1600000000 .*subtract the mean"):
        hub(table(size=far), ["size"], "kind")
    lists = (datasets.List(far[0]), [[number] for number in far[1]])
    with pytest.raises(ValueError, match=r"has numbers from 1600000000 .*subtract the mean"):
        hub(table(size=lists), "size", "kind")
    pictures = [Image.new("RGB", (5, 4), (shade, 7, 8)) for shade in range(20)]
    images = hub(table(image=(datasets.Image(), pictures)), "image", "kind").inputs
    assert images[:, :, 1, 2].tolist() == [[shade, 7, 8] for shade in range(20)]


def test_clients_of_flwr_datasets(tmp_path):
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, NaturalIdPartitioner
    from flwr_datasets.partitioner import VerticalEvenPartitioner as Vertical

    table().train_test_split(0.2, seed=0).save_to_disk(tmp_path / "set")
    path = str(tmp_path / "set")
    task = hub(path, "size", "kind", clients=NaturalIdPartitioner("owner"))
    owners = [{int(4 * size) % 4 for size in task.inputs[indices, 0]} for indices in task.partition]
    assert owners == [{0}, {1}, {2}, {3}]
    assert (len(task.targets), task.test_targets is not None) == (16, True)
    shuffled = datasets.load_from_disk(path)["train"].shuffle(seed=42)["size"][:]
    assert hub(path, "size", "kind", clients=IidPartitioner(2)).inputs[:, 0].tolist() == shuffled
    with pytest.raises(ValueError, match="clients=VerticalEvenPartitioner distributes columns"):
        hub(path, "size", "kind", clients=Vertical(2))
    table().to_parquet(tmp_path / "table.parquet")
    data = FederatedDataset(
        dataset="parquet",
        data_files=str(tmp_path / "table.parquet"),
        cache_dir=str(tmp_path),
        partitioners={"train": DirichletPartitioner(3, "kind", 1.0, 1)},
    )
    task = hub(data, "size", "kind")
    for client_id, indices in enumerate(task.partition):
        assert task.inputs[indices, 0].tolist() == data.load_partition(client_id)["size"][:]
    assert hub(data, "size", "kind", clients="owner").num_clients == 4


# -- refusals -------------------------------------------------------------------------------------


def with_value(values, place, value):
    copy = values.copy()
    copy[place] = value
    return copy


def squares(output, target):
    return (output - target) ** 2


BYTES = PLANES.astype(np.uint8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"x": with_value(X, (3, 2), np.nan)}, "x_train[3, 2] must be a finite float32"),
        ({"x": X + 1.6e9}, "x_train[:, 0] has numbers from 1599999997.67"),
        ({"y": torch.from_numpy(X + 1.6e9)}, "column 'y_train[0]' has numbers from 1599999997.67"),
        ({"y": Y[:-1]}, "x_train has the shape (40, 3) and y_train (39,): each example needs"),
        ({"y": Y * 0}, "has only the class '0'"),
        ({"y": np.array(["a", None] * 20)}, "y_train[1] has no value"),
        ({"y": PLANES}, "y_train has the shape (40, 8, 8) and must have (n,) or (n, k)"),
        ({"x": X.astype(str)}, "x_train has '0.1257302210933933' where numbers are needed: turn"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x_train is no array, since its rows differ in shape"),
        ({"objective": "ranking"}, "objective=ranking must be one of classification, regression"),
        ({"clients": Y[:5]}, "clients has the shape (5,) and must have (40,)"),
        ({"clients": [[1], [40]]}, "clients has the shape (2, 1) and must have (40,)"),
        ({"clients": [None, *Y[1:]]}, "clients[0] is None: nobody would have this example"),
        ({"model": lambda: nn.Linear(3, 5)}, "gives outputs of shape (2, 5) for 2 examples"),
        ({"model": lambda: nn.Linear(7, 4)}, "the model cannot process inputs of shape (2, 3)"),
        ({"model": lambda a, b, c: None}, "model needs the arguments a, b, c"),
        ({"model": "lenet"}, "task.model=lenet needs images (channels, height, width), the task's"),
        *(({"x": PLANES, "model": name}, "x[:, None] adds one ch") for name in ("cnn", "resnet18")),
        *(({"x": PLANES[..., :3, None], "model": name}, "x.transpose(0, 3, 1, 2)")
          for name in ("lenet", "resnet18")),
        ({"model": "textcnn"}, "task.model=textcnn needs a public data set of texts"),
        ({"y": NUMBERS, "loss": squares}, "loss must give one number that depends on the output"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "loss must give the mean over a batch"),
        ({"loss": nn.functional.mse_loss}, "loss cannot process outputs of shape (2, 4) and targ"),
        ({"test": (X,)}, "x_test and y_test belong together"),
        ({"x": pd.DataFrame(X), "test": (pd.DataFrame(X)[[2, 1, 0]], Y)}, "x_train's columns in"),
        ({"x": PLANES, "test": (BYTES, Y)}, "x_test and y_test have shapes and type (8, 8, torch"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused(settings, message):
    values = {"x": X, "y": Y, "test": (), **settings}
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        build(values.pop("x"), values.pop("y"), *values.pop("test"), **values)


UNKNOWN = {"unknown": (ClassLabel(names=["a", "b"]), [0, -1] * 10)}
RAGGED = {"ragged": (List(Value("float32")), [[1.0], [1.0, 2.0]] * 10)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Task.from_datasets(TensorDataset(torch.ones(3)), model=linear),
            r"train\[0\] is a tuple and must be a pair",
        ),
        (
            lambda: Task.from_datasets([(X[0], 0), (X[0, :1], 1)], model=linear),
            r"the inputs of train have different shapes, such as \(1,\) and",
        ),
        (lambda: Task.from_datasets(DataLoader(X), model=linear), "a DataLoader, which has no l"),
        (lambda: hub(table(), "points", "kind"), "no column 'points': there are size, point"),
        (lambda: hub(table(), ["size", "owner"], "kind"), "x_train has 'owner 0' where numbers"),
        (lambda: hub(table(**RAGGED), "ragged", "kind"), "column 'ragged' have different shapes"),
        (lambda: hub(table(**UNKNOWN), "size", "unknown"), r"y_train\[1\] has no value"),
        (lambda: hub(DatasetDict(test=table()), "size", "kind"), "the splits test and must have"),
        (lambda: hub("./none", "size", "kind"), "data=./none must be a folder: it does not exist"),
    ],
)  # fmt: skip
def test_bad_data_sets_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
