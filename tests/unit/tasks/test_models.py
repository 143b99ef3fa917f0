"""Models: sizes, layers, statistics, what they see; and those of torchvision and of a user."""

import pickle
import re

import pytest
import torch
from helpers import composed
from torch import nn

from fl_app.client.build import build_task
from fl_app.client.flat import FlatModel
from fl_app.runner.validate import validate_config
from fl_app.tasks.models import architecture, torchvision_models
from fl_app.tasks.models.deep import Block
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
        ("textcnn", REVIEW, 2, 3_120_902),
        ("transformer", TEXT, 33_278, 13_828_478),
        # 81 * 8, 4 * 256 * (8 + 256 + 2), 4 * 256 * (256 + 256 + 2), 257 * 81
        ("char_lstm", (80, 81), 81, 820_185),
    ],
)
def test_parameters_outputs_and_the_flat_vector(name, shape, num_classes, count):
    made = architecture(name, shape, num_classes)
    assert pickle.loads(pickle.dumps(made)).args == made.args
    model = made()
    of_each = (shape[0], num_classes) if name in ("transformer", "char_lstm") else (num_classes,)
    assert model(inputs_of(shape)).shape == (2, *of_each)
    flat = FlatModel(model)
    assert sum(p.numel() for p in model.parameters()) == flat.layout.num_trainable == count
    buffers = [entry.name for entry in flat.layout.entries if not entry.trainable]
    assert bool(buffers) == (name in WITH_STATISTICS)


def test_a_shortcut_takes_every_second_pixel_and_pads_channels():
    block, images = Block(2, 4, 2), torch.rand(1, 2, 4, 4)
    nn.init.zeros_(block.norm2.weight)  # nothing is left of the residual
    out = block(images)
    assert torch.equal(out[:, 1:3], images[:, :, ::2, ::2])
    assert out[:, [0, 3]].abs().max() == 0


def test_a_word_sees_only_those_before_it_and_its_place():
    torch.manual_seed(0)
    model = architecture("transformer", (35, 50), 50)().eval()
    tokens = inputs_of((35, 50), 1)
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 50
    one, other = model(tokens), model(changed)
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
    ("name", "shape", "needed"),
    [
        ("lenet", DIGIT, "images 28x28 or 32x32, the task's are 1x8x8"),
        ("cnn", (1, 3, 8), "images at least 4x4, the task's are 1x3x8"),
        ("textcnn", (4, 100), "sequences of at least 5 words, the task's are 4x100"),
        ("transformer", (35, 11), "sequences whose classes are their vocabulary"),
        ("char_lstm", (80, 11), "sequences whose classes are their vocabulary"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name, shape, needed):
    with pytest.raises(ValueError, match=rf"task\.model={name} needs {needed}"):
        architecture(name, shape, 10)()


# -- from elsewhere --------------------------------------------------------------------------------

MODULE = """
from torch import nn

def needs_both(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs))

def complete():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def too_small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def too_wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

def smoothed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)

def distance(outputs, targets):
    return (outputs - targets).abs().mean()

def of_each(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

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
def test_models_and_losses_of_ones_own(tmp_path):
    for name in ("needs_both", "complete"):
        words = [f"task.model=my_models:{name}", "task.loss=my_models:smoothed"]
        config = composed("num_clients=20", *words)
        validate_config(config)
        task = build_task(config)
        assert isinstance(task.model()[1], nn.Linear)
        outputs, targets = torch.randn(4, 10), torch.arange(4)
        expected = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)
        assert task.objective.loss(outputs, targets) == expected
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i + 0.5}\n" for i in range(40)))
    words = ["task=csv", f"task.path={tmp_path / 't.csv'}", "task.target=y", "num_clients=2"]
    config = composed(*words, "partition=iid", "task.loss=my_models:distance")
    objective = build_task(config).objective  # it gets the numbers as they are
    assert objective.loss(torch.zeros(2, 1), torch.tensor([[7.0], [9.0]])) == 8


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("key", "name", "told"),
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
def test_what_does_not_fit_is_refused(key, name, told):
    config = composed("num_clients=20", f"task.{key}={name}")
    validate_config(config)
    with pytest.raises(ValueError, match=f"^{re.escape(f'task.{key}={name}{told}')}"):
        build_task(config)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["task.model=lenett"], "task.model=lenett must be one of logistic, .*or package.module:"),
        (["task=imdb", "task.model=resnet34"], "task.model=resnet34 must be .* it takes images"),
        (["task.model=textcnn"], "task.model=textcnn must be one that .* it takes sequences"),
        (["task.loss=smoothed"], "task.loss=smoothed must be package.module:callable"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused_before_the_data_are_read(words, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        validate_config(composed(*words))
