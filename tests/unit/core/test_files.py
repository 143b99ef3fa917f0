"""Atomic writes, logs with one writer, the errors of disks, and snapshots."""

import errno
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
from helpers import vec

from fl_app.core.errors import RunError
from fl_app.core.files import atomic_write, disk_errors_as_run_errors, make_folder, open_log
from fl_app.core.snapshot import Unkeepable, dumps, loads
from fl_app.core.types import Order, Parts
from fl_app.engine.virtual import Kind


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_changes_nothing(tmp_path, error):
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")

    def write():
        with atomic_write(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_is_appended_to_what_is_kept(tmp_path):
    path = tmp_path / "events.jsonl"
    for keep, content in ((None, "abcdef"), (4, "XY"), (None, "new")):
        with open_log(path, keep) as file:
            file.write(content)
    assert path.read_text() == "new"
    with open_log(path, 2) as file:
        assert file.tell() == 2
        file.write("st")
    assert path.read_text() == "nest"
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "gone", 4)


def test_a_file_is_written_by_one_process(tmp_path):
    """Until that one closes it, or dies; one that was forked from it does not count."""
    path = tmp_path / "events.jsonl"
    command = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from fl_app.core.files import open_log\n"
        f"file = open_log(Path({str(path)!r}), None)\n"
        "file.write('theirs'), file.flush()\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "print(flush=True), time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, start_new_session=True
    ) as writer:
        assert writer.stdout is not None
        try:
            writer.stdout.readline()
            with pytest.raises(RunError, match="is written by another process: two runs in one"):
                open_log(path, None)
            assert path.read_text() == "theirs"
            writer.kill()
            writer.wait()
            open_log(path, None).close()  # though its child lives
        finally:
            os.killpg(writer.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left", "/a"), "No space left: '/a'; .* is /run, .* room"),
        (OSError(errno.EROFS, "Read-only"), "Read-only; the run's folder is /run, .* is mended"),
    ],
)
def test_errors_of_a_disk_end_the_run(error, text):
    with pytest.raises(RunError, match=text), disk_errors_as_run_errors(Path("/run")):
        raise error
    with pytest.raises(FileNotFoundError), disk_errors_as_run_errors(Path("/run")):
        raise FileNotFoundError(errno.ENOENT, "No such file")  # no disk's


# -- what is left after a power failure -----------------------------------------------------------


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What is done to a disk, on which bytes and the entries of a folder are after their fsync."""
    done = []

    def watch(name, told):
        function = getattr(os, name)

        def call(*arguments, **options):
            done.append((name, told(*arguments)))
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    def synced(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return str(path.relative_to(tmp_path)) if path.is_dir() else path.read_text()

    watch("fsync", synced)
    watch("replace", lambda _, path: path.name)
    watch("mkdir", lambda path, _: path.name)
    return done


def test_a_file_is_on_the_disk_before_it_has_its_name_and_that_before_it_counts(tmp_path, calls):
    for content in ("old", "new"):
        with atomic_write(tmp_path / "summary.json") as file:
            file.write(content.encode())
        assert calls == [("fsync", content), ("replace", "summary.json"), ("fsync", ".")]
        calls.clear()
    assert (tmp_path / "summary.json").read_text() == "new"


def test_every_new_folder_is_on_the_disk_in_its_own(tmp_path, calls):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
        assert calls == [("mkdir", "a"), ("fsync", "."), ("mkdir", "b"), ("fsync", "a")]


# -- snapshots -------------------------------------------------------------------------------------


def again(value):
    return loads(dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.1 + 0.2,
        float("inf"),
        "text",
        b"\x00\xff",
        [1, [2.5, None]],
        (1, ("a", 2)),
        {3, 4},
        frozenset({1}),
        {1: "by number", "a": {(1, 2): "by tuple"}},
        deque([1, 2]),
        Counter({5: 2}),
        defaultdict(list, {1: [2]}),
        OrderedDict({2: 1, 1: 2}),
    ],
)
def test_values_come_back_with_their_types(value):
    back = again(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array", [np.arange(3, dtype=np.float32), np.array(2.5), np.zeros((0, 3)), np.array([True])]
)
def test_arrays_come_back_to_the_bit(array):
    back = again({"a": array})["a"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_an_array_met_twice_is_one_again():
    vector = vec(1, 2)
    order = Order(0, 1, 2, 3, vector, {"lr": 0.5}, 4.0, {"h": vec(7)})
    back_vector, back_order = again((vector, order))
    assert back_order.vector is back_vector
    assert back_order.config == {"lr": 0.5}
    assert back_order.state["h"].tolist() == [7.0]
    assert (back_order.number, back_order.sent_at) == (0, 4.0)


def test_a_generator_goes_on_where_it_was():
    rng = np.random.default_rng(3)
    rng.random(5)
    back = again(rng)
    assert back.random(4).tolist() == rng.random(4).tolist()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"f": again}, "f is a function, which a checkpoint cannot hold"),
        ({"a": [0, {"b": Parts(1.0, 2.0, 3.0)}]}, "a.1.b is a Parts"),
        ({"kind": Kind.REPLY}, "kind is a Kind"),
        ({"words": np.array(["a"])}, "words is an array of <U1"),
        ({"d": defaultdict(lambda: 1)}, "d is a function"),
        ({Kind.REPLY: 1}, "the value is a Kind"),
    ],
)
def test_what_cannot_be_kept_is_told_with_its_key_and_type(value, told):
    with pytest.raises(Unkeepable, match=told):
        dumps(value)


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch stolen",)


@pytest.mark.parametrize("value", [Evil(), os.system, Parts, {"of NumPy": np.arange(3)}])
def test_nothing_but_plain_data_is_unpickled(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"a checkpoint holds .*, which is no plain data"):
        loads(pickle.dumps(value))
    assert list(tmp_path.iterdir()) == []


def test_a_generator_of_an_unknown_kind_is_refused():
    packed = dumps(np.random.default_rng(3))
    with pytest.raises(ValueError, match="a random generator of the unknown kind"):
        loads(packed.replace(b"\x8c\x05PCG64", b"\x8c\x05array"))
