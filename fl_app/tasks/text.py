"""Tasks on text: the sentiment of IMDb's reviews, and the next word of WikiText-2."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_app.core.hyper import bounded, one_of
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

    text: ClassVar[bool] = True

    def __call__(self, *, seed: int = 0) -> "Task":
        from fl_app.tasks.objective import Classification  # loads torch

        shape = IMDB_LENGTH, IMDB_VOCABULARY
        # Chunks of 20 are the fastest of 20, 100 and 500.
        arrays = IMDB.load(self.read, self.random if self.made_up else None)
        return self.made_of(arrays, shape, Classification(2), name="imdb", test_chunk=20)

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

    def random(self, rng: np.random.Generator) -> Arrays:
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

    text: ClassVar[bool] = True

    def __call__(self, *, seed: int = 0) -> "Task":
        from fl_app.tasks.objective import Classification  # loads torch

        name = f"wikitext2-{self.train_split}"
        data = DataSet(name, FOLDER, "Salesforce/wikitext", "wikitext-2-v1")
        found = data.load(self.read, self.random if self.made_up else None)
        vocabulary = int(found["vocabulary"][0])
        arrays: Arrays = {}
        for part in ("", "test_"):
            words, following = _next_words(found[f"{part}stream"])
            arrays |= {f"{part}inputs": words, f"{part}targets": following}
        return self.made_of(
            arrays,
            (WIKITEXT_LENGTH, vocabulary),
            Classification(vocabulary, sequences=True),
            name="wikitext2",
            test_chunk=16,  # whose logits are 75 MB
        )

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        with loaded(str(root / FOLDER), None, "wikitext2") as splits:
            words = [
                list(chain.from_iterable((*line.split(), END) for line in splits[split]["text"]))
                for split in (self.train_split, "test")
            ]
            number = {word: place for place, word in enumerate(dict.fromkeys(("<unk>", *words[0])))}
            streams = [np.array([number.get(word, 0) for word in text], np.int64) for text in words]
            if min(stream.size for stream in streams) <= WIKITEXT_LENGTH:
                raise ValueError(f"texts of {streams[0].size} and {streams[1].size} words")
            return {
                "stream": streams[0],
                "test_stream": streams[1],
                "vocabulary": np.array([len(number)]),
            }

    def random(self, rng: np.random.Generator) -> Arrays:
        """Made-up arrays of the same shapes."""
        return {
            "stream": rng.integers(WIKITEXT_VOCABULARY, size=100_000),
            "test_stream": rng.integers(WIKITEXT_VOCABULARY, size=20_000),
            "vocabulary": np.array([WIKITEXT_VOCABULARY]),
        }


def _words(review: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", review.lower().replace("<br />", " "))


def _next_words(stream: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pieces of a text and the next word of each of their words, both of shape ``(n, 35)``."""
    used = (stream.size - 1) // WIKITEXT_LENGTH * WIKITEXT_LENGTH
    first, second = stream[:used], stream[1 : used + 1]
    return first.reshape(-1, WIKITEXT_LENGTH), second.reshape(-1, WIKITEXT_LENGTH)
