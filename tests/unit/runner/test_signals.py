"""Ctrl-C and SIGTERM: between two events if that is soon, and else at any moment."""

import os
import selectors
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fl_app.runner import checkpoint, signals
from fl_app.runner.checkpoint import Checkpoints

LONG = 30.0  # seconds; nobody waits for so long


def asked() -> None: ...


interruptible = partial(signals.interruptible, patience=0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_blocks_is_ended_after_a_while(number: signal.Signals) -> None:
    reading, writing = os.pipe()
    stopped: list[float] = []
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        with (
            pytest.raises(KeyboardInterrupt),
            interruptible(lambda: stopped.append(time.monotonic() - began)),
        ):
            selector.select(LONG)
    assert len(stopped) == 1
    assert stopped[0] + 0.05 < time.monotonic() - began < 5.0
    os.close(reading)
    os.close(writing)


def test_who_stops_soon_is_not_interrupted() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = threading.Event()
    with interruptible(stop.set):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(LONG)
    threading.Event().wait(0.2)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_does_not_wait() -> None:
    def twice() -> None:
        with interruptible(asked) as undisturbed, undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(LONG)

    with pytest.raises(KeyboardInterrupt):
        twice()


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_checkpoint_is_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    """Though that takes longer than anybody is patient."""
    save = checkpoint.save

    def slowly(*args: object) -> bytes:
        if not asked_before:
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.3)
        return save(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", slowly)
    store = Checkpoints(tmp_path)
    with interruptible(asked) as undisturbed:
        if asked_before:
            os.kill(os.getpid(), signal.SIGTERM)
        with undisturbed():
            path = store.save(3, {"params": np.arange(3.0)})
    assert list(path.parent.iterdir()) == [path]
    assert store.load()["params"].tolist() == [0, 1, 2]


def test_after_a_checkpoint_a_signal_is_heeded_as_before() -> None:
    def later() -> None:
        with interruptible(asked) as undisturbed:
            with undisturbed():
                pass
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(LONG)

    with pytest.raises(KeyboardInterrupt):
        later()
