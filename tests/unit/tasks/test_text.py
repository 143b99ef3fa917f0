"""Text tasks from small files of the real formats; sizes of the real ones where they are there."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import order_for

from fl_app.client import LocalTrainer
from fl_app.tasks.partition import Iid, Shards
from fl_app.tasks.sources import Arrays
from fl_app.tasks.text import (
    IMDB,
    IMDB_LENGTH,
    IMDB_VOCABULARY,
    PADDING,
    UNKNOWN,
    imdb,
    wikitext2,
)

# -- IMDb ------------------------------------------------------------------------------------------


def write_reviews(root: Path, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> None:
    (root / "imdb").mkdir()
    for split, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (root / "imdb" / f"{split}.jsonl").write_text("".join(lines))


def test_words_are_numbered_by_frequency_in_the_training_set(tmp_path: Path) -> None:
    train = [("Good, GOOD film.<br />It's a film!", 1), ("bad film", 0)]
    write_reviews(tmp_path, train, [("a bad surprise", 0), ("good", 1)])
    task = imdb(partition=Iid(), num_clients=2, root=str(tmp_path))
    # film 3, good 2, then by name: a, bad, it's; 0 is padding, 1 what the training set has not.
    assert task.inputs[:, :7].tolist() == [[3, 3, 2, 6, 4, 2, 0], [5, 2, 0, 0, 0, 0, 0]]
    assert task.test_inputs[0, :4].tolist() == [4, 5, UNKNOWN, PADDING]
    assert task.inputs.shape == (2, IMDB_LENGTH)
    assert task.inputs[:, 7:].abs().max() == PADDING
    assert task.targets.tolist() == [1, 0]
    assert task.source == "local"


def test_long_reviews_are_cut_and_rare_words_forgotten(tmp_path: Path) -> None:
    many = " ".join(f"w{i:05d}" for i in range(IMDB_VOCABULARY))
    write_reviews(tmp_path, [(many, 1), ("w00000 " * 500, 0)], [("w29997 w29998", 1), ("x", 0)])
    task = imdb(partition=Iid(), num_clients=2, root=str(tmp_path))
    assert task.inputs[1].tolist() == [2] * IMDB_LENGTH
    # 29,998 words have a number.
    assert task.test_inputs[0, :2].tolist() == [29_999, UNKNOWN]


def hub_arrays(splits: Any) -> Arrays:
    assert IMDB.hub is not None
    return IMDB.hub.convert(splits)


def test_the_hubs_rows_give_the_same_arrays(tmp_path: Path) -> None:
    rows = [("one two two", 1), ("three", 0)]
    write_reviews(tmp_path, rows, rows)
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    arrays = hub_arrays({"train": columns, "test": columns})
    local = IMDB.read(tmp_path)
    assert {key: value.tolist() for key, value in arrays.items()} == {
        key: value.tolist() for key, value in local.items()
    }


def test_a_stand_in_can_be_learnt() -> None:
    task = imdb(partition=Iid(), num_clients=100, sources=["synthetic"])
    assert task.source == "stand-in"
    assert task.inputs.max() < IMDB_VOCABULARY
    words = [set(task.inputs[task.targets == label].unique().tolist()) for label in (0, 1)]
    assert len(words[0] - words[1]) >= 1000  # that only one class uses
    model = task.model()
    inputs, targets = task.batch(np.arange(4))
    assert task.loss(model(inputs), targets).item() == pytest.approx(math.log(2), abs=0.5)


# -- WikiText-2 ------------------------------------------------------------------------------------


def write_wikitext(root: Path, **texts: str) -> None:
    (root / "wikitext-2").mkdir()
    for name, text in texts.items():
        (root / "wikitext-2" / f"{name}.txt").write_text(text)


SENTENCE = " the cat sat on the <unk> mat . \n\n"  # 8 words, and two ends of lines


def test_pieces_of_the_text_and_what_follows(tmp_path: Path) -> None:
    write_wikitext(tmp_path, train=SENTENCE * 8, test=" a cat \n" * 20)
    task = wikitext2(partition=Shards(1, contiguous=True), num_clients=2, root=str(tmp_path))
    # <unk> 0, the 1, cat 2, sat 3, on 4, mat 5, . 6, end of line 7
    stream = [1, 2, 3, 4, 1, 0, 5, 6, 7, 7] * 8
    assert task.objective.num_outputs == 8
    assert task.inputs.flatten().tolist() == stream[:70]  # 79 // 35 pieces
    assert task.targets.flatten().tolist() == stream[1:71]
    assert task.test_inputs.tolist() == [([0, 2, 7] * 12)[:35]]  # "a" is only in the test text
    assert [own.tolist() for own in task.partition] == [[0], [1]]


def test_perplexity_of_a_model_that_knows_nothing_is_the_vocabularys_size(tmp_path: Path) -> None:
    write_wikitext(tmp_path, train=SENTENCE * 8, test=SENTENCE * 8)
    task = wikitext2(partition=Iid(), num_clients=1, root=str(tmp_path))
    model = task.model()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    metrics = task.test(model)
    assert metrics["perplexity"] == pytest.approx(8, rel=1e-5)
    assert metrics["loss"] == pytest.approx(math.log(8), rel=1e-5)


def test_the_validation_text_replaces_the_training_text_only_when_told(tmp_path: Path) -> None:
    write_wikitext(tmp_path, valid=SENTENCE * 8, test=SENTENCE * 8)
    settings: dict[str, Any] = {
        "partition": Iid(),
        "num_clients": 1,
        "sources": ["local"],
        "root": str(tmp_path),
    }
    with pytest.raises(ValueError, match=r"wikitext-2/train\.txt (.|\n)*train_split=validation"):
        wikitext2(**settings)
    assert len(wikitext2(train_split="validation", **settings).inputs) == 2
    with pytest.raises(ValueError, match=r"task\.train_split=test must be one of train, valid"):
        wikitext2(train_split="test", **settings)


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    write_wikitext(tmp_path, train=SENTENCE, test=SENTENCE * 8)
    with pytest.raises(ValueError, match="texts of 10 and 80 words"):
        wikitext2(partition=Iid(), num_clients=1, root=str(tmp_path))


def test_the_stand_in_can_be_learnt_by_the_trainer() -> None:
    task = wikitext2(partition=Iid(), num_clients=10, sources=["synthetic"])
    assert task.source == "stand-in"
    # Each word has at most four followers: the best perplexity is below 4.
    followers: dict[int, set[int]] = {}
    for word, after in zip(task.inputs.flatten(), task.targets.flatten(), strict=True):
        followers.setdefault(int(word), set()).add(int(after))
    assert max(map(len, followers.values())) <= 4
    trainer = LocalTrainer(task, local_lr=1.0, batch_size=8, local_steps=3, upload="model")
    upload = trainer.train(order_for(0, 0, trainer.model.read(), {}))
    assert math.isfinite(upload.loss)


# -- the real ones ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_reviews(real_data: Callable[..., None]) -> None:
    real_data("imdb/train.jsonl", "imdb/test.jsonl")
    task = imdb(partition=Iid(), num_clients=100)
    assert task.inputs.shape == task.test_inputs.shape == (25_000, IMDB_LENGTH)
    assert task.targets.sum() == task.test_targets.sum() == 12_500
    assert int(task.inputs.max()) == IMDB_VOCABULARY - 1
    assert (task.inputs == UNKNOWN).float().mean() < 0.03


@pytest.mark.slow
def test_real_validation_text(real_data: Callable[..., None]) -> None:
    real_data("wikitext-2/valid.txt", "wikitext-2/test.txt")
    task = wikitext2(partition=Iid(), num_clients=10, train_split="validation")
    # 217,646 and 245,569 words.
    assert (len(task.inputs), len(task.test_inputs)) == (217_645 // 35, 245_568 // 35)
