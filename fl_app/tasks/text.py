"""Tasks on text: the sentiment of IMDb's reviews, and the next word of WikiText-2."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks.cache import Arrays
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.options import check_options
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.sources import DataSet, load
from fl_app.tasks.task import Task, public_task

PADDING, UNKNOWN = 0, 1
IMDB_VOCABULARY, IMDB_LENGTH = 30_000, 400
WIKITEXT_VOCABULARY = 33_278  # of the training text
WIKITEXT_LENGTH = 35  # tokens per example; "bptt" in PyTorch's example
END = "<eos>"


def imdb(
    *,
    partition: Partitioner,
    num_clients: int,
    seed: int = 0,
    model: str = "textcnn",
    sources: Sequence[str] = ("local", "hub"),
    root: str | None = None,
) -> Task:
    """25,000 film reviews for training, 25,000 for testing, half of them good (Maas et al. 2011).

    An example is the first 400 words of a review, padded. The vocabulary has the 29,998 most
    frequent words of the training set in lower case, and one token for all others.

    Args:
        partition: distributes the training reviews.
        num_clients: N, 1 <= N <= 25,000.
        seed: seed of the partition.
        model: ``"textcnn"``.
        sources: places to look for the data, in this order, see `fl_app.tasks.sources.load`.
        root: folder with local data; None = the environment variable FL_APP_DATA.

    Raises:
        ValueError: a value is out of its bounds, the data are missing or damaged, or a client gets
            none.
    """
    make_model = architecture(model, (IMDB_LENGTH, IMDB_VOCABULARY), 2)
    arrays, source = load(IMDB, sources, root)
    given = (Classification(2), make_model, partition, num_clients, seed)
    # 20 is the fastest of 20, 100 and 500.
    return public_task("imdb", arrays, *given, source=source, test_chunk=20)


def wikitext2(
    *,
    partition: Partitioner,
    num_clients: int,
    seed: int = 0,
    model: str = "transformer",
    train_split: str = "train",
    sources: Sequence[str] = ("local", "hub"),
    root: str | None = None,
) -> Task:
    """Predict the next word of Wikipedia articles, 35 words at a time (Merity et al. 2016).

    The vocabulary has the 33,278 words of the training text; other words of the test text are
    ``<unk>``. The rest of a text after its last 35 words is not used. For the partition, all
    examples have one class and the order of the text.

    Args:
        partition: distributes the pieces of the training text.
        num_clients: N >= 1.
        seed: seed of the partition.
        model: ``"transformer"``.
        train_split: ``"train"``, or ``"validation"``, which has a tenth of the text and a smaller
            vocabulary; perplexities of the two cannot be compared.
        sources: places to look for the data, in this order, see `fl_app.tasks.sources.load`.
        root: folder with local data; None = the environment variable FL_APP_DATA.

    Raises:
        ValueError: a value is out of its bounds, the data are missing or damaged, or a client gets
            none.
    """
    check_options(train_split=train_split)
    arrays, source = load(_wikitext2(train_split), sources, root)
    vocabulary = int(arrays["vocabulary"][0])
    pieces: Arrays = {}
    for part in ("train", "test"):
        words, following = _next_words(arrays[f"{part}_stream"])
        pieces |= {f"{part}_inputs": words, f"{part}_targets": following}
    objective = Classification(vocabulary, sequences=True)
    make_model = architecture(model, (WIKITEXT_LENGTH, vocabulary), vocabulary)
    given = (objective, make_model, partition, num_clients, seed)
    # Logits of 16 pieces are 75 MB.
    return public_task("wikitext2", pieces, *given, source=source, test_chunk=16)


def _next_words(stream: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pieces of a text and the next word of each of their words, both of shape ``(n, 35)``."""
    used = (stream.size - 1) // WIKITEXT_LENGTH * WIKITEXT_LENGTH
    first, second = stream[:used], stream[1 : used + 1]
    return first.reshape(-1, WIKITEXT_LENGTH), second.reshape(-1, WIKITEXT_LENGTH)


# -- IMDb ------------------------------------------------------------------------------------------


def _words(review: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", review.lower().replace("<br />", " "))


def _imdb(splits: Any) -> Arrays:
    """Arrays from the texts and labels of both sets."""
    counts = Counter(chain.from_iterable(_words(text) for text in splits["train"]["text"]))
    # Ties are sorted by name, so that the order of the reviews does not matter.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: IMDB_VOCABULARY - 2]
    number = {word: place for place, word in enumerate(frequent, UNKNOWN + 1)}
    arrays: Arrays = {}
    for part in ("train", "test"):
        texts = splits[part]["text"]
        # 32-bit integers are enough for an embedding and halve the memory.
        inputs = np.full((len(texts), IMDB_LENGTH), PADDING, np.int32)
        for row, text in zip(inputs, texts, strict=True):
            tokens = [number.get(word, UNKNOWN) for word in _words(text)[:IMDB_LENGTH]]
            row[: len(tokens)] = tokens
        targets = np.asarray(splits[part]["label"], np.int64)
        arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
    return arrays


def _imdb_stand_in() -> Arrays:
    """Random words; a tenth of them belong to a thousand words that only one class uses."""
    rng = np.random.default_rng(0)
    arrays: Arrays = {}
    for part, count in (("train", 4_000), ("test", 1_000)):
        targets = np.arange(count) % 2
        inputs = rng.integers(3_000, IMDB_VOCABULARY, (count, IMDB_LENGTH), np.int32)
        telling = rng.integers(0, 1_000, inputs.shape, np.int32) + 2 + 1_000 * targets[:, None]
        inputs = np.where(rng.random(inputs.shape) < 0.1, telling, inputs).astype(np.int32)
        arrays |= {f"{part}_inputs": inputs, f"{part}_targets": targets}
    return arrays


IMDB = DataSet(
    name="imdb", folder="imdb", hub="stanfordnlp/imdb", convert=_imdb, stand_in=_imdb_stand_in
)


# -- WikiText-2 ------------------------------------------------------------------------------------


def _streams(train_split: str, splits: Any) -> Arrays:
    """Arrays from the lines of both texts."""
    words = [
        list(chain.from_iterable((*line.split(), END) for line in splits[split]["text"]))
        for split in (train_split, "test")
    ]
    number = {word: place for place, word in enumerate(dict.fromkeys(("<unk>", *words[0])))}
    streams = [np.array([number.get(word, 0) for word in text], np.int64) for text in words]
    if min(stream.size for stream in streams) <= WIKITEXT_LENGTH:
        raise ValueError(f"texts of {streams[0].size} and {streams[1].size} words")
    return {
        "train_stream": streams[0],
        "test_stream": streams[1],
        "vocabulary": np.array([len(number)]),
    }


def _wikitext2_stand_in() -> Arrays:
    """A Markov chain on 1,000 words of the vocabulary; each word has four successors."""
    rng = np.random.default_rng(0)
    words = 1_000
    followers = rng.integers(words, size=(words, 4))
    arrays: Arrays = {"vocabulary": np.array([WIKITEXT_VOCABULARY])}
    for part, count in (("train", 100_000), ("test", 20_000)):
        stream = np.zeros(count, np.int64)
        for place, choice in enumerate(rng.integers(4, size=count - 1)):
            stream[place + 1] = followers[stream[place], choice]
        arrays[f"{part}_stream"] = stream
    return arrays


def _wikitext2(train_split: str) -> DataSet:
    return DataSet(
        name=f"wikitext2-{train_split}",
        folder="wikitext-2",
        hub="Salesforce/wikitext",
        subset="wikitext-2-v1",
        convert=partial(_streams, train_split),
        stand_in=_wikitext2_stand_in,
    )
