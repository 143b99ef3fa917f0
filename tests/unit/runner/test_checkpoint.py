"""Checkpoints are all there or not there at all, whatever signals come."""

import hashlib
import os
import selectors
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

from fl_app.runner import checkpoint, signals
from fl_app.runner.checkpoint import Checkpoints


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path):
    store = Checkpoints(tmp_path)
    assert store.load() is None
    for version in (2, 9, 10):
        path = store.save(version, {"version": version, "params": np.arange(3.0) * version})
    assert path.name == "version-000000010.checkpoint"
    names = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    assert names == ["version-000000009.checkpoint", "version-000000010.checkpoint"]
    assert store.load()["params"].tolist() == [0.0, 10.0, 20.0]


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_torn_file_is_passed_over(tmp_path, keep):
    store = Checkpoints(tmp_path)
    store.save(1, {"params": np.arange(100.0)})
    path = store.save(2, {"params": np.arange(100.0) + 1})
    path.write_bytes(path.read_bytes()[:keep])
    assert store.load()["params"][0] == 0.0
    # It does not count as one of those that are kept, and goes with them.
    store.save(3, {"params": np.arange(100.0) + 2})
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == [f"version-00000000{n}" for n in ("1.checkpoint", "2.torn", "3.checkpoint")]


def test_where_it_cannot_be_written_the_one_before_stands(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)

    def full(*_):
        raise OSError(28, "No space left")

    store.save(2, {"params": np.arange(3.0)})
    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(3, {"params": np.zeros(3)})
    assert store.load()["params"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("name", ["version-000000007.safetensors", "version-000000007.checkpoint"])
def test_one_of_another_version_is_refused(tmp_path, name):
    content = b"fl_app checkpoint 1\n"
    path = tmp_path / "checkpoints" / name
    path.parent.mkdir()
    path.write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(ValueError, match=rf"{name} was written by another version of this project"):
        Checkpoints(tmp_path).load()


# -- Ctrl-C and SIGTERM ---------------------------------------------------------------------------

LONG = 30.0  # seconds; nobody waits for so long


def asked(): ...


interruptible = partial(signals.interruptible, patience=0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_blocks_is_ended_after_a_while(number):
    reading, writing = os.pipe()
    stopped = []
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


def test_a_second_signal_does_not_wait():
    def twice():
        with interruptible(asked) as undisturbed, undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(LONG)

    with pytest.raises(KeyboardInterrupt):
        twice()


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_checkpoint_is_written_to_its_end(tmp_path, monkeypatch, asked_before):
    """Though that takes longer than anybody is patient."""
    dumps = checkpoint.dumps

    def slowly(state):
        if not asked_before:
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.3)
        return dumps(state)

    monkeypatch.setattr(checkpoint, "dumps", slowly)
    store = Checkpoints(tmp_path)
    with interruptible(asked) as undisturbed:
        if asked_before:
            os.kill(os.getpid(), signal.SIGTERM)
        with undisturbed():
            path = store.save(3, {"params": np.arange(3.0)})
    assert list(path.parent.iterdir()) == [path]
    assert store.load()["params"].tolist() == [0, 1, 2]
