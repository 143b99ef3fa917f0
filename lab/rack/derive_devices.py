"""Derives the tables of the `measured` devices from the files that FLASH published.

    git clone https://github.com/PKU-Chengxu/FLASH
    python lab/rack/derive_devices.py FLASH

The tables in this repository come from FLASH's commit 55cbede0131877b583ed55333e980985a1925afd.
Writes ``phones.json`` and ``links.json`` into ``fl_app/devices/tables``, where README.md says what
they hold and what was assumed.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

TABLES = Path(__file__).parents[2] / "fl_app" / "devices" / "tables"
LAYERS = ("lstm", "output", "embedding")
# Two of the three phones whose layers were timed are in the ranking.
TIMED = {"sumsung_note10": "Samsung Galaxy Note10", "redmi_note8": "Xiaomi Redmi Note 8"}
BYTES = 1024  # FLASH divides KiB by these speeds


def main(flash: Path) -> None:
    """Write both tables."""
    utilities = flash / "models" / "utils" / "device_util"
    scores = _scores(utilities)
    exponent = _exponent(utilities, scores)
    print(f"training seconds ~ score ** -{exponent:.3f}")
    _write_phones(utilities, scores, exponent)
    _write_links(flash / "models" / "speed_distri.json")


def _scores(utilities: Path) -> dict[str, float]:
    """Model -> its CPU's score in float inference; the mean where it is sold with several CPUs."""
    ranking = json.loads((utilities / "raw_ai_benchmark_list.json").read_text())
    scores = defaultdict(list)
    for row in ranking:
        scores[row["Model"].strip()].append(float(row["CPU_F_AI_Score"]))
    return {model: fmean(values) for model, values in scores.items()}


def _exponent(utilities: Path, scores: dict[str, float]) -> float:
    """p of seconds ~ score ** -p, from how much faster one timed phone trains than the other."""
    fast, slow = TIMED
    faster = fmean(
        math.log(np.median(_times(utilities, slow, layer) / _times(utilities, fast, layer)))
        for layer in LAYERS
    )
    return faster / math.log(scores[TIMED[fast]] / scores[TIMED[slow]])


def _times(utilities: Path, phone: str, layer: str) -> NDArray[np.float64]:
    """Seconds of training the layer with 20,000 combinations of sizes, the same on every phone."""
    measured = json.loads((utilities / "regression" / phone / f"{layer}.json").read_text())
    return np.array(measured["Y"]).ravel()


def _write_phones(utilities: Path, scores: dict[str, float], exponent: float) -> None:
    field = json.loads((utilities / "real2benchmark.json").read_text())
    # Two names differ from the ranking's in capitals.
    by_name = {model.lower(): model for model in scores}
    seen = Counter(by_name[name.lower()] for name in field.values() if name != "unknown")
    middle = median([scores[model] for model in seen.elements()])
    rows = [
        (model, count, round((middle / scores[model]) ** exponent, 4))
        for model, count in seen.items()
    ]
    rows.sort(key=lambda row: (row[2], row[0]))
    _write("phones.json", ("model", "count", "relative_seconds"), rows)


def _write_links(path: Path) -> None:
    speeds = json.loads(path.read_text())
    columns = ("down_u", "down_sigma", "up_u", "up_sigma")
    rows = sorted(
        tuple(round(link[column] * BYTES) for column in columns) for link in speeds.values()
    )
    _write("links.json", ("down_mean", "down_sigma", "up_mean", "up_sigma"), rows)


def _write(name: str, header: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    path = TABLES / name
    lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
