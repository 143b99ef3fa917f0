"""``runtime.batch``: refused, taken as it is, measured, or set aside with a reason."""

from pathlib import Path
from typing import Any

import pytest
from configs import composed
from helpers import HeadedQuadratic

from fl_app.runner import batch_size
from fl_app.runner.cell import run_cell
from fl_app.runner.checkpoint import Checkpoints
from fl_app.runner.earlier import settings
from fl_app.runner.factory import Components, build_components, choose_batch
from fl_app.runner.validate import validate_config

CLIENTS = 12


def components(*overrides: str) -> Components:
    config = composed(f"num_clients={CLIENTS}", "runtime.workers=0", *overrides)
    return build_components(config, HeadedQuadratic.scattered(CLIENTS))


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "many", "true", "null"])
def test_bad_values_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.batch=\S+ must be auto or an integer >= 1"):
        validate_config(composed(f"runtime.batch={value}"))


def test_one_is_the_default_and_looks_at_nothing() -> None:
    assert composed().runtime.batch == 1
    assert choose_batch(components("algorithm=moon")) == 1


def test_a_size_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_batch(components("runtime.batch=7")) == 7
    assert caplog.messages == []


def test_a_batch_of_more_clients_than_are_at_work_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert choose_batch(components("runtime.batch=64")) == 64
    assert caplog.messages == [
        "runtime.batch=64 is above the 10 clients at work: batches have at most 10"
    ]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["algorithm=moon"], "MOONTrainer has a penalty of its own"),
        (["algorithm=fedasmu"], "FedASMUTrainer has a should_pause of its own"),
    ],
)
@pytest.mark.parametrize("asked", ["4", "auto"])
def test_what_cannot_be_trained_together_is_said_once(
    overrides: list[str], reason: str, asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_batch(components(f"runtime.batch={asked}", *overrides)) == 1
    expected = f"runtime.batch={asked}: clients are trained one at a time: {reason}"
    assert caplog.messages == [expected]


# Whatever the measurement comes to: of the seconds of one client's steps, and of a batch's.
@pytest.mark.parametrize(("together", "expected"), [(0.001, True), (10.0, False)])
def test_auto_takes_what_is_faster_and_says_so(
    together: float,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = iter([0.001, 0.01])  # of a step, and of an order alone

    def measured(work: Any, budget: float, clock: Any) -> float:
        work()
        return next(seconds, together)

    monkeypatch.setattr(batch_size, "_seconds", measured)
    size = choose_batch(components("runtime.batch=auto", "algorithm=scaffold"))
    assert (size > 1) == expected
    assert caplog.messages[0].startswith(f"runtime.batch=auto: {size} (")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 1.0, 8: 3.0, 12: 3.5, 16: 3.7, 24: 2.1}, 12),  # within a tenth of 3.7
        ({1: 1.0, 8: 3.0, 12: 3.3, 16: 3.7, 24: 3.6}, 16),
        ({1: 1.0, 8: 1.15, 12: 1.2, 16: 1.1, 24: 1.0}, 1),
    ],
)
def test_auto_takes_the_smallest_size_that_is_nearly_the_best(
    rates: dict[int, float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "_costs", lambda *_: batch_size._Costs(rates))
    monkeypatch.setattr(batch_size, "_rate", lambda parts, costs, size, at_work: rates[size])
    assert choose_batch(components("runtime.batch=auto")) == expected


def test_auto_does_not_train_clients_of_long_steps_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_size, "_seconds", lambda work, budget, clock: 0.2)
    assert choose_batch(components("runtime.batch=auto")) == 1
    assert caplog.messages == ["runtime.batch=auto: 1 (a step of one client takes 200 ms)"]


def test_a_measurement_changes_nothing() -> None:
    """Neither the model nor what the strategy knows."""
    made = components("runtime.batch=auto", "algorithm=scaffold")
    before = made.trainer.model.read().tobytes(), made.strategy.state_dict()
    choose_batch(made)
    assert made.trainer.local_steps is None
    assert repr(made.strategy.state_dict()) == repr(before[1])


SMALL = ["num_clients=10", "runtime.workers=0", "algorithm.schedule.concurrency=6", "eval_every=99"]


def carry_out(folder: Path, *overrides: str) -> dict[str, Any]:
    config = composed("algorithm=fedasync", *SMALL, *overrides)
    _, summary = run_cell(config, folder, label="test", show=False)
    return summary


def test_a_resumed_run_keeps_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement of another machine, or of another hour, could come to another size."""
    sizes = iter([3])
    taken = batch_size.batch_size

    def measured(components: Components) -> int:
        auto = components.config.runtime.batch == "auto"
        return next(sizes) if auto else taken(components)

    monkeypatch.setattr(batch_size, "batch_size", measured)
    auto = ["runtime.batch=auto", "resume=auto"]
    carry_out(tmp_path / "parts", "num_versions=20", *auto)
    summary = carry_out(tmp_path / "parts", "num_versions=40", *auto)
    whole = carry_out(tmp_path / "whole", "num_versions=40", "runtime.batch=3")
    assert summary["batch"] == whole["batch"] == 3
    assert summary["batched_orders"] == whole["batched_orders"] > 20
    for file in ("events.jsonl", "model.npz"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_of_another_batch_is_not_resumed(tmp_path: Path) -> None:
    carry_out(tmp_path, "num_versions=4", "runtime.batch=3")
    config = composed("algorithm=fedasync", *SMALL, "num_versions=9", "runtime.batch=2")
    with pytest.raises(ValueError, match=r"runtime\.batch=3 instead of 2"):
        Checkpoints(tmp_path, settings(config)).load()


def test_without_batches_a_checkpoint_is_as_before(tmp_path: Path) -> None:
    carry_out(tmp_path, "num_versions=4")
    config = composed("algorithm=fedasync", *SMALL, "num_versions=9")
    saved = Checkpoints(tmp_path, settings(config)).load()
    assert saved is not None
    assert "batch" not in saved
