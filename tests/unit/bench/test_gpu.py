"""``python -m bench --device``: refused without a GPU, and the same table on the processor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_refusals() -> None:
    """There is no GPU where the tests run, or torch cannot see it."""
    done = bench("--device", "cuda:99")
    assert done.returncode == 2
    assert "--device cuda:99: torch sees no such GPU" in done.stderr
    assert "nothing was measured" in done.stderr
    assert done.stdout == ""
    assert "--device gpu: give cuda, a GPU such as cuda:1, or cpu" in bench("--device=gpu").stderr
    assert "--only R: measured with --device alone" in bench("--only", "R").stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_line_for_every_way() -> None:
    words = ("--device", "cpu", "--only", "B1", "--batch", "8", "--repeats", "1")
    done = bench(*words, "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["way"] for line in lines] == [
        "loop",
        *(f"one at a time, processes: {count}" for count in (1, 2, 4)),
        *(f"8 together, {form}" for form in ("grouped", "unfold")),
    ]
    assert lines[0]["ratio"] == 1
    assert all(line["updates_per_second"] > 0 for line in lines)
