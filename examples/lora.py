"""Fine-tune adapters of a transformer, and compare the traffic with that of full training.

    pip install -e '.[llm]'
    python examples/lora.py

Ten clients learn which chapter of Python's documentation a passage is from. The text comes with
Python. The transformer is built from its configuration with random weights, so nothing is
downloaded. For real work, replace `DistilBertModel(...)` by `DistilBertModel.from_pretrained(...)`.

LoRA (Hu et al. 2022, arXiv:2106.09685) adds a product B A of low rank to a frozen matrix W, and
trains only A and B. `peft` freezes all other parameters of the transformer. Frozen parameters are
not sent.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import DistilBertConfig, DistilBertModel

import fl_app

CHAPTERS = ("compound", "debugger", "formatstrings", "specialnames", "string-methods", "types")
LENGTH, VOCABULARY = 24, 2000  # words per passage; word numbers, including UNKNOWN
SIZE = 96  # dimension of a word's vector
UNKNOWN = 0


class Transformer(nn.Module):
    """Logits ``(n, chapters)`` of passages ``(n, LENGTH)``: a small DistilBERT and a new head."""

    def __init__(self, lora: bool) -> None:
        super().__init__()
        self.base: Any = DistilBertModel(
            DistilBertConfig(
                vocab_size=VOCABULARY,
                max_position_embeddings=LENGTH,
                dim=SIZE,
                hidden_dim=2 * SIZE,
                n_layers=2,
                n_heads=4,
            )
        )
        if lora:
            adapters = LoraConfig(r=4, target_modules=["q_lin", "v_lin", "lin1", "lin2"])
            self.base = get_peft_model(self.base, adapters)
        self.head = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, len(CHAPTERS)))

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.base(input_ids=tokens).last_hidden_state
        logits: Tensor = self.head(states.mean(1))
        return logits


def passages() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Passages of all chapters as word numbers ``(n, LENGTH)``, and their chapters ``(n,)``."""
    words = [re.findall(r"[a-z_]+", topics[name].lower()) for name in CHAPTERS]
    most = min(map(len, words))  # equal amounts of text
    counts = Counter(word for chapter in words for word in chapter[:most])
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 1]
    number = {word: place for place, word in enumerate(frequent, UNKNOWN + 1)}
    inputs, targets = [], []
    for label, chapter in enumerate(words):
        for start in range(0, most - LENGTH + 1, LENGTH):
            inputs.append([number.get(w, UNKNOWN) for w in chapter[start : start + LENGTH]])
            targets.append(label)
    return np.array(inputs), np.array(targets)


def compare(output: Path, *overrides: str) -> dict[str, dict[str, Any]]:
    """Train all parameters, then only adapters and head; return both summaries by name.

    Args:
        output: folder for the files of both runs.
        overrides: for both runs, as on the command line.
    """
    inputs, targets = passages()
    tested = np.arange(len(targets)) % 4 == 0
    rows = {}
    for name, lora in (("everything", False), ("adapters", True)):
        task = fl_app.Task.from_arrays(
            inputs[~tested],
            targets[~tested],
            inputs[tested],
            targets[tested],
            model=lambda lora=lora: Transformer(lora),
            name="chapters",
        )
        result = fl_app.run(
            "algorithm=fedbuff",
            "algorithm.schedule.buffer_size=5",
            "algorithm.client.local_lr=0.1",
            "algorithm.client.local_epochs=2",
            "num_clients=10",
            "devices/network=link",
            "devices.network.down=125000",  # 1 Mbit/s
            "devices.network.up=62500",
            *overrides,
            task=task,
            output=output / name,
        )
        rows[name] = result.summary
    return rows


if __name__ == "__main__":
    rows = compare(Path("outputs/lora"), *(sys.argv[1:] or ["num_versions=40"]))
    columns = ("final_accuracy", "bytes_up", "bytes_down", "virtual_seconds")
    print(f"{'trained':12}", *(f"{column:>16}" for column in columns))
    for name, summary in rows.items():
        print(f"{name:12}", *(f"{summary[column]:16,.3g}" for column in columns))
    ratio = rows["everything"]["bytes_up"] / rows["adapters"]["bytes_up"]
    print(f"Adapters send {ratio:.0f} times fewer bytes to the server.")
