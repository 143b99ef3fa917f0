"""``python -m bench --device``: refused without a GPU, and the same table on the processor."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils

from bench import gpu
from bench.__main__ import main
from bench.gpu import LOOP, WORKLOADS, Way, _measured, compiled, table, ways
from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.settings import BFLOAT16, FLOAT32, GROUPED, UNFOLD
from fl_app.core.errors import RunError
from fl_app.core.types import Order
from fl_app.tasks.partition import Iid
from fl_app.tasks.synthetic import synthetic

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
def test_a_line_for_every_way_and_the_fastest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of some ways: each takes a process and seconds."""
    names = [
        LOOP,
        "one at a time, processes: 2",
        "8 together, unfold, bfloat16",
        "8 together, grouped, compiled",
    ]
    some = [way for way in ways(8) if way.name in names]
    monkeypatch.setattr(gpu, "ways", lambda together: some)
    words = "--device cpu --only B1 --batch 8 --repeats 1 --seconds 0.1"
    monkeypatch.setattr(sys, "argv", ["bench", *words.split()])
    main()
    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if "| B1 " in line]
    assert {row[2] for row in rows} == set(names)
    assert rows[0][2] == LOOP
    assert float(rows[0][4]) == 1
    assert all(float(row[3]) > 0 for row in rows), printed
    assert "\nB1: fastest is " in printed


def no_memory(workload: Any, way: Way, *rest: Any) -> tuple[list[float], float, str]:
    if way.mode:
        raise RunError("OutOfMemoryError: CUDA out of memory\n| on this device")
    return [2.0 * way.processes], 0, ""


def test_a_way_that_fails_is_told_in_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_measured", no_memory)
    lines = [*table(WORKLOADS[:2], "cpu", 100, 1, 1.0)]
    failed = [line for line in lines if "failed: OutOfMemoryError: CUDA out of memory / on" in line]
    assert len(failed) == 2 * sum(bool(way.mode) for way in ways(100)) == 16
    assert (
        "| B1 | logistic | one at a time, processes: 4 | 8.0 | 4.00 | 4.00 - 4.00 | 0 |"
        in "".join(lines)
    )
    assert "B1: fastest is one at a time, processes: 4, 4.00 times the bare loop" in lines[-1]


@pytest.mark.slow
def test_what_a_process_cannot_do_is_told() -> None:
    with pytest.raises(RunError, match=r"ValueError: runtime\.precision=int8 must be one of"):
        _measured(WORKLOADS[0], Way("odd", together=2, precision="int8"), "cpu", 1, 0.1)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own code
@pytest.mark.parametrize(
    ("model", "form", "precision", "backend"),
    [
        ("mlp", GROUPED, FLOAT32, "inductor"),
        ("lenet", GROUPED, FLOAT32, "aot_eager"),
        ("lenet", UNFOLD, FLOAT32, "aot_eager"),
        ("lenet", GROUPED, BFLOAT16, "aot_eager"),
    ],
)
def test_compiled_steps_train_alike(model: str, form: str, precision: str, backend: str) -> None:
    """Forward and backward pass as whole graphs; a small one by this machine's C++ compiler."""
    data = synthetic(
        partition=Iid(), num_clients=3, model=model, shape=(1, 28, 28), num_examples=24, noise=1.0
    )
    trainer = LocalTrainer(data, batch_size=4, local_steps=2, precision=precision)
    start = trainer.model.read()
    orders = [Order(i, i, 0, 0, start, {}, 0.0) for i in range(3)]
    batch = BatchTrainer(trainer, form)
    expected = batch.train(orders, [None] * 3)
    torch._dynamo.reset()  # what others have compiled
    torch._dynamo.utils.counters.clear()
    batch.losses = compiled(batch.losses, backend=backend)
    for one, other in zip(batch.train(orders, [None] * 3), expected, strict=True):
        assert one is not None
        assert other is not None
        scale = float(np.abs(other.vector - start).max())
        rounding = 0.05 if precision == BFLOAT16 else 1e-4
        np.testing.assert_allclose(one.vector, other.vector, atol=rounding * scale)
        assert one.loss == pytest.approx(other.loss, rel=rounding)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1  # for both steps
