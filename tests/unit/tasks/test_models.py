"""Parameter counts, output shapes, refused shapes; statistics; what a model sees of a sequence."""

import math
import pickle

import pytest
import torch
from torch import nn

from fl_app.client.flat import FlatModel
from fl_app.tasks.models import MODELS, Shape, architecture

DIGIT, GREY, COLOUR, FACE, TINY = (1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 84, 84), (3, 64, 64)
REVIEW, TEXT = (400, 30_000), (35, 33_278)
SHAPES: dict[str, tuple[Shape, int]] = {
    name: (COLOUR, 10) for name in MODELS
} | {
    "cnn_emnist": (GREY, 10),
    "cnn_celeba": (FACE, 2),
    "mnistnet": (GREY, 10),
    "textcnn": (REVIEW, 2),
    "transformer": ((35, 50), 50),
}  # fmt: skip


def inputs_of(shape: Shape, count: int = 2) -> torch.Tensor:
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
        ("lenet", COLOUR, 10, 62_006),
        ("lenet", COLOUR, 100, 69_656),
        ("cnn_emnist", GREY, 10, 582_026),
        ("cnn_emnist", GREY, 62, 608_702),
        ("cnn_celeba", FACE, 2, 1_600_792),
        ("cnn_asmu", COLOUR, 10, 297_066),
        ("mlp_overlap", GREY, 10, 199_210),
        ("mnistnet", GREY, 10, 1_199_882),
        ("mnistnet", GREY, 47, 1_204_655),
        ("cnn_cifar", COLOUR, 10, 878_538),
        ("alexnet", COLOUR, 10, 2_472_266),
        ("alexnet", TINY, 200, 2_521_096),
        ("vgg11", COLOUR, 10, 9_231_114),
        ("vgg_r", COLOUR, 10, 2_440_394),
        ("resnet18", COLOUR, 10, 11_181_642),
        ("resnet20", COLOUR, 10, 269_722),
        ("resnet20", TINY, 200, 282_072),
        ("resnet_r", COLOUR, 10, 11_169_162),
        ("resnet_r", COLOUR, 100, 11_215_332),
        ("textcnn", REVIEW, 2, 3_120_902),
        ("transformer", TEXT, 33_278, 13_828_478),
    ],
)
def test_parameter_count_and_output(name: str, shape: Shape, num_classes: int, count: int) -> None:
    model = architecture(name, shape, num_classes)()
    assert sum(p.numel() for p in model.parameters()) == count
    of_each = (35, num_classes) if name == "transformer" else (num_classes,)
    assert model(inputs_of(shape)).shape == (2, *of_each)


def test_weights_follow_torchs_random_state() -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(
            torch.cat([p.flatten() for p in architecture("cnn", DIGIT, 10)().parameters()])
        )
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_can_be_sent_to_another_process(name: str) -> None:
    made = architecture(name, *SHAPES[name])
    assert pickle.loads(pickle.dumps(made)).args == made.args  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MODELS)
def test_as_a_flat_vector_only_statistics_are_not_trained(name: str) -> None:
    model = architecture(name, *SHAPES[name])()
    trainable = sum(p.numel() for p in model.parameters())
    flat = FlatModel(model)
    assert flat.layout.num_trainable == trainable
    buffers = [entry.name for entry in flat.layout.entries if not entry.trainable]
    assert bool(buffers) == (name in ("vgg11", "resnet18", "resnet20"))
    vector = flat.read()
    flat.load(vector)
    assert (flat.read() == vector).all()


@pytest.mark.parametrize("name", ["vgg11", "resnet20"])
def test_statistics_in_the_vector_are_those_that_testing_uses(name: str) -> None:
    torch.manual_seed(0)
    flat = FlatModel(architecture(name, COLOUR, 10)())
    inputs = inputs_of(COLOUR, 4)
    before = flat.read()
    flat.module.train()
    flat.module(inputs)
    after = flat.read()
    split = flat.layout.num_trainable
    assert (after[:split] == before[:split]).all()
    assert (after[split:] != before[split:]).any()
    flat.module.eval()
    fresh = flat.module(inputs)
    flat.load(before)
    assert not torch.allclose(flat.module(inputs), fresh)
    flat.load(after)
    assert torch.equal(flat.module(inputs), fresh)


def test_a_shortcut_takes_every_second_pixel_and_pads_channels() -> None:
    from fl_app.tasks.models.residual import Block

    block = Block(2, 4, 2)
    nn.init.zeros_(block.norm2.weight)  # nothing is left of the residual
    images = torch.rand(1, 2, 4, 4)
    out = block(images)
    assert torch.equal(out[:, 1:3], images[:, :, ::2, ::2])
    assert out[:, [0, 3]].abs().max() == 0


def test_vggs_convolutions_have_their_deviation() -> None:
    torch.manual_seed(0)
    layers = [m for m in architecture("vgg_r", COLOUR, 10)().modules() if isinstance(m, nn.Conv2d)]
    for layer in layers[2:]:
        expected = math.sqrt(2 / (9 * layer.out_channels))
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.02)


def test_a_word_sees_only_those_before_it() -> None:
    torch.manual_seed(0)
    model = architecture("transformer", (35, 50), 50)().eval()
    tokens = inputs_of((35, 50), 1)
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 50
    one, other = model(tokens), model(changed)
    assert torch.allclose(one[:, :20], other[:, :20], atol=1e-6)
    assert (one[:, 20:] - other[:, 20:]).abs().amax((0, 2)).min() > 1e-4
    # Places are told apart: the same word twice has two outputs.
    same = model(torch.zeros(1, 35, dtype=torch.int32))
    assert not torch.allclose(same[0, 1], same[0, 2], atol=1e-4)


def test_textcnn_takes_the_maximum_over_time_wherever_it_is() -> None:
    torch.manual_seed(0)
    model = architecture("textcnn", (20, 100), 2)().eval()
    early, late = torch.zeros(2, 20, dtype=torch.int32)
    phrase = torch.tensor([5, 7, 9, 11, 13], dtype=torch.int32)
    early[5:10], late[11:16] = phrase, phrase
    both = model(torch.stack([early, late]))
    assert torch.allclose(both[0], both[1], atol=1e-6)
    assert not torch.allclose(both[0], model(torch.zeros(1, 20, dtype=torch.int32))[0])


def test_cnn_cifars_quirk_gives_shares_in_place_of_logits() -> None:
    torch.manual_seed(0)
    quirk = architecture("cnn_cifar_quirk", COLOUR, 10)()
    plain = architecture("cnn_cifar", COLOUR, 10)()
    plain.load_state_dict(quirk.state_dict())
    inputs = inputs_of(COLOUR, 3)
    assert torch.allclose(quirk(inputs), plain(inputs).relu().softmax(1))
    assert sum(p.numel() for p in quirk.parameters()) == 878_538


def test_cnn_bns_channels_lie_last_and_its_numbers_are_those_of_other_layouts() -> None:
    torch.manual_seed(0)
    model = architecture("cnn_bn", COLOUR, 10)()
    laid: list[bool] = []
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(
                lambda _layer, _inputs, output: laid.append(
                    output.is_contiguous(memory_format=torch.channels_last)
                )
            )
    inputs = inputs_of(COLOUR, 3)
    assert torch.allclose(model(inputs), nn.Sequential(*model)(inputs), atol=1e-5)
    assert laid == 3 * [True] + 3 * [False]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.model=lennet must be one of logistic, mlp, cnn"):
        architecture("lennet", GREY, 10)


@pytest.mark.parametrize(
    ("name", "shape", "needed"),
    [
        ("lenet", DIGIT, "images 28x28 or 32x32, the task's are 1x8x8"),
        ("cnn", (1, 3, 8), "images at least 4x4, the task's are 1x3x8"),
        ("resnet18", GREY, "images with 3 channels, the task's are 1x28x28"),
        ("cnn_emnist", COLOUR, "images 1x28x28"),
        ("cnn_celeba", COLOUR, "images 3x84x84"),
        ("mnistnet", COLOUR, "images 1x28x28"),
        ("cnn_cifar", GREY, "images 3x32x32"),
        ("vgg_r", TINY, "images 3x32x32"),
        ("resnet_r", TINY, "images 3x32x32"),
        ("vgg11", GREY, "images at least 32x32"),
        ("alexnet", GREY, "images at least 32x32"),
        ("resnet20", (3, 4, 4), "images at least 8x8"),
        ("cnn_asmu", (3, 2, 2), "images at least 3x3"),
        ("textcnn", (4, 100), "sequences of at least 5 words, the task's are 4x100"),
        ("transformer", (35, 11), "sequences whose classes are their vocabulary"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name: str, shape: Shape, needed: str) -> None:
    with pytest.raises(ValueError, match=rf"task\.model={name} needs {needed}"):
        architecture(name, shape, 10)()


@pytest.mark.parametrize(
    ("name", "shape", "takes"), [("mlp", REVIEW, "images"), ("textcnn", GREY, "sequences")]
)
def test_text_is_no_image(name: str, shape: Shape, takes: str) -> None:
    with pytest.raises(
        ValueError, match=rf"task\.model={name} must be one that .* it takes {takes}"
    ):
        architecture(name, shape, 10)
