"""Flat vectors: arithmetic, names, places; staleness functions; idle clients; files; snapshots."""

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

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.core import staleness
from fl_app.core.errors import RunError
from fl_app.core.files import atomic_write, disk_errors_as_run_errors, make_folder, open_log
from fl_app.core.layout import Layout, check_vector
from fl_app.core.pool import ClientPool
from fl_app.core.rates import LinearDecay
from fl_app.core.snapshot import Unkeepable, dumps, loads
from fl_app.core.types import GlobalModel, Order, Parts, Update
from fl_app.core.vector import (
    BLOCK,
    all_finite,
    clipped,
    combine,
    cosines,
    norm,
    read_only,
    weighted_sum,
    worst_decile,
)
from fl_app.engine.virtual import Kind


def test_read_only_copies_only_writable_arrays():
    fixed, writable = vec(1, 2), np.array([1, 2], np.float32)
    assert read_only(fixed) is fixed
    copy = read_only(writable)
    writable[0] = 9
    assert copy.tolist() == [1, 2]
    assert not copy.flags.writeable


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_combine_is_sum_lengths_and_products(size):
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((3, size)).astype(np.float32)
    others = rng.standard_normal((2, size)).astype(np.float32)
    weights = np.array([0.5, -1.0, 2.0])
    total, lengths, products = combine(weights, list(vectors), others)
    assert total.tobytes() == weighted_sum(weights, list(vectors)).tobytes()
    np.testing.assert_allclose(total, weights @ vectors, atol=1e-5)
    np.testing.assert_allclose(lengths, np.linalg.norm(vectors, axis=1), rtol=1e-5)
    np.testing.assert_allclose(products, vectors @ others.T, rtol=1e-3, atol=1e-3)
    assert combine(weights, list(vectors))[2].shape == (3, 0)
    out = np.empty(size, np.float32)
    assert combine(weights, list(vectors), out=out)[0] is out
    assert out.tobytes() == total.tobytes()
    with pytest.raises(ValueError, match="does not go into"):
        combine(weights, list(vectors), out=out[1:])


def test_norm_by_hand():
    assert norm(vec(3, 0, -4)) == 5
    assert norm(vec(0, 0)) == 0
    small = vec(3e-25, 0, -4e-25)  # the squares are no float32
    assert norm(small) == pytest.approx(5e-25, rel=1e-6, abs=0)
    many = vec(*[1] * 64, *[2.4e-4] * (1 << 22))  # in float32, a long sum loses squares of 5.8e-8
    assert norm(many) == pytest.approx(np.hypot(8, 2.4e-4 * 2048), rel=1e-4)


def test_cosines_by_hand():
    """[3, 4] and [0, 0] against [1, 0], [-6, -8] and [0, 0]."""
    products = [[3, -50, 0], [0, 0, 0]]
    assert cosines(products, [5, 0], [1, 10, 0]).tolist() == [[0.6, -1, 0], [0, 0, 0]]


def test_clipped_by_hand():
    """[6, 8] of length 10, and 9 beside it, to length 5."""
    long = vec(6, 8, 9)
    assert clipped(long, 5, size=2).tolist() == [3, 4, 9]
    assert clipped(long, 10, size=2) is long


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_infinite_values_and_nan_are_found_in_every_place(shape, dtype):
    largest = np.full(shape, np.finfo(dtype).max, dtype)  # its square is infinite
    assert all_finite([])
    assert all_finite([largest, np.array(7), np.array(["text"])])
    for bad in (np.nan, np.inf, -np.inf):
        copy = largest.copy()
        copy[(-1,) * len(shape)] = bad
        assert not all_finite([largest, copy])


def test_worst_decile_is_the_mean_of_the_lowest_tenth():
    assert worst_decile(np.arange(25.0)) == pytest.approx(1.0)  # of 0, 1, 2


MODEL = GlobalModel(vec(0, 0, 20), 5, {3: vec(1, 2, 10), 5: vec(0, 0, 20)}, num_trainable=2)
PAYLOADS = {"model": vec(3, -2, 14), "delta": vec(2, -4, 4)}
PAYLOADS |= dict.fromkeys(("pseudo", "gradient"), vec(-4, 8, -4))


def update(kind, vector, version=3):
    return Update(7, version, vector, kind, 10, 0.1, rate_sum=0.5)


@pytest.mark.parametrize("kind", PAYLOADS)
def test_every_kind_means_the_same(kind):
    upload = update(kind, PAYLOADS[kind])
    assert MODEL.displacement(upload).tolist() == [2, -4, 4]
    assert MODEL.delta(upload).tolist() == [2, -4, 14 - 20]
    assert MODEL.gradient(upload).tolist() == [-4, 8, 20 - 14]
    assert MODEL.local(upload).tolist() == [3, -2, 14]
    assert upload.vector.tolist() == PAYLOADS[kind].tolist()


def test_step_moves_buffers_by_the_whole_direction():
    """[0, 0] - 1/4 [-4, 8] = [1, -2]; buffer 20 - (-4) = 24."""
    params = MODEL.step(vec(-4, 8, -4), 0.25)
    assert params.tolist() == [1, -2, 24]
    assert params.dtype == np.float32


def test_buffers_of_stale_updates_do_not_overshoot():
    """With b_i = 1 and weights 1 / sqrt(15): b_{t+1} = b_t + (1 - b_t) / 3.87, whatever the age."""
    versions = dict.fromkeys(range(15), vec(0, 0))
    for now in range(14, 60):
        model = GlobalModel(versions[now], now, versions, num_trainable=1)
        stale = Update(0, now - 14, vec(0, 1) - versions[now - 14], "delta", 10, 0.1)
        versions[now + 1] = FedBuff().aggregate(model, [stale])
    assert versions[16][1] == pytest.approx(1 - (1 - 15**-0.5) ** 2)
    assert 0.999 < versions[60][1] < 1.001


def test_base_is_the_version_that_was_cited():
    assert MODEL.base(update("delta", vec(0, 0, 0))).tolist() == [1, 2, 10]
    assert MODEL.base(update("delta", vec(0, 0, 0), version=5)) is MODEL.params
    with pytest.raises(KeyError, match=r"client 7 cites version 4, .* not in the history \[3, 5\]"):
        MODEL.base(update("model", vec(0, 0, 0), version=4))


# -- names and places of arrays in one vector ------------------------------------------------------

ARRAYS = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bn.running_mean": np.array([7.0, 8.0], np.float32),
    "bn.num_batches_tracked": np.array(9, np.int64),
    "head.bias": np.array([10.0], np.float64),
}
LAYOUT = Layout.of_arrays(ARRAYS)


def test_integers_are_rounded_to_the_nearest():
    """A mean of counters, such as 9.6, is nearer to 10 than to 9."""
    vector = LAYOUT.flatten(list(ARRAYS.values()))
    vector[-1] = 9.6
    assert LAYOUT.named(vector)["bn.num_batches_tracked"] == 10


def test_arrays_that_do_not_fit():
    arrays = list(ARRAYS.values())
    with pytest.raises(ValueError, match=r"^got 3 arrays, the model has 4$"):
        LAYOUT.flatten(arrays[:3])
    arrays[0] = arrays[0].T
    with pytest.raises(
        ValueError, match=r"^array 'conv.weight' has shape \(3, 2\), the model's has \(2, 3\)$"
    ):
        LAYOUT.flatten(arrays)


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.zeros(3, np.float32), ""),
        (np.full(3, 1e30, np.float32), ""),  # finite, though its squares are not
        (np.array([0, np.nan, 0], np.float32), "payload has non-finite entries"),
        (np.zeros(4, np.float32), "payload has shape (4,), expected (3,)"),
        (np.zeros(3), "payload is float64, expected float32"),
        (None, "payload is NoneType, expected float32"),
    ],
)
def test_vectors_that_may_enter_an_aggregation(vector, reason):
    assert check_vector(vector, 3) == reason


# -- staleness ------------------------------------------------------------------------------------


def test_freshness_of_ages_whose_weights_no_float_could_hold():
    assert staleness.exponential(5000) == 0
    assert staleness.freshness([5000, 5001]) == pytest.approx(staleness.freshness([0, 1]))
    assert staleness.freshness([0, 5000]).tolist() == [1, 0]


def test_linear_decay_by_hand():
    """From 1 to 0.2 over 4 versions: 0.2 less for each, then constant."""
    decay = LinearDecay(to=0.2, versions=4)
    assert [decay.factor(v) for v in range(6)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


# -- the set of idle clients -----------------------------------------------------------------------


def test_behaves_as_a_set():
    """Random additions and removals, compared with Python's set."""
    rng = np.random.default_rng(0)
    pool, expected = ClientPool(), set[int]()
    for _ in range(2000):
        client_id = int(rng.integers(30))
        if rng.random() < 0.5:
            pool.add(client_id)
            expected.add(client_id)
        else:
            pool.discard(client_id)
            expected.discard(client_id)
        assert set(pool) == expected
        assert len(pool) == len(list(pool)) == len(expected)
        assert (client_id in pool) == (client_id in expected)


@pytest.mark.parametrize(("size", "count"), [(1000, 3), (10, 3), (10, 10), (10, 12), (0, 2)])
def test_draw_is_distinct_and_as_many_as_there_are(size, count):
    clients = ClientPool(range(size)).draw(count, np.random.default_rng(1))
    assert len(clients) == len(set(clients)) == min(count, size)
    assert set(clients) <= set(range(size))


@pytest.mark.parametrize("size", [6, 100])
def test_draw_is_uniform_without_the_excluded(size):
    """For both methods of drawing; 99.99 % of binomial counts lie within 4 standard deviations."""
    pool, rng, excluded = ClientPool(range(size)), np.random.default_rng(2), {0, 3}
    counts = Counter()
    rounds = 400 * size
    for _ in range(rounds):
        counts.update(pool.draw(2, rng, excluded))
    assert counts.keys() == set(range(size)) - excluded
    share = 2 / (size - 2)
    spread = 4.5 * (rounds * share * (1 - share)) ** 0.5
    assert all(abs(n - rounds * share) < spread for n in counts.values())


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_changes_nothing(tmp_path, error):
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


def test_a_log_is_appended_after_the_kept_part(tmp_path):
    path = tmp_path / "events.jsonl"
    for length, content in ((None, "abcdef"), (4, "XY"), (None, "new")):
        with open_log(path, length) as file:
            file.write(content)
    assert path.read_text() == "new"
    with open_log(path, 2) as file:
        assert file.tell() == 2
        file.write("st")
    assert path.read_text() == "nest"
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "gone", 4)
    with pytest.raises(RunError, match="has 4 bytes, of which the checkpoint needs the first 5"):
        open_log(path, 5)
    assert path.read_text() == "nest"


def test_a_file_is_written_by_one_process(tmp_path):
    """The lock ends when the process closes the file or dies, even if a forked child lives."""
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
            open_log(path, None).close()  # although its child lives
        finally:
            os.killpg(writer.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left", "/a"), "No space left: '/a'; .* is /run, .* room"),
        (OSError(errno.EROFS, "Read-only"), "Read-only; the run's folder is /run, .* works again"),
    ],
)
def test_errors_of_a_disk_end_the_run(error, text):
    with pytest.raises(RunError, match=text), disk_errors_as_run_errors(Path("/run")):
        raise error
    with pytest.raises(FileNotFoundError), disk_errors_as_run_errors(Path("/run")):
        raise FileNotFoundError(errno.ENOENT, "No such file")  # no error of a disk


# -- power failures -------------------------------------------------------------------------------


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The calls that make bytes and entries of folders durable, with their subjects."""
    record = []

    def watch(name, describe):
        function = getattr(os, name)

        def call(*arguments, **options):
            record.append((name, describe(*arguments)))
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    def content(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return str(path.relative_to(tmp_path)) if path.is_dir() else path.read_text()

    watch("fsync", content)
    watch("replace", lambda _, path: path.name)
    watch("mkdir", lambda path, _: path.name)
    return record


def test_a_file_is_synced_before_its_name_and_the_name_before_it_counts(tmp_path, calls):
    for content in ("old", "new"):
        with atomic_write(tmp_path / "summary.json") as file:
            file.write(content.encode())
        assert calls == [("fsync", content), ("replace", "summary.json"), ("fsync", ".")]
        calls.clear()
    assert (tmp_path / "summary.json").read_text() == "new"


def test_every_new_folder_is_synced_in_its_parent(tmp_path, calls):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
        assert calls == [("mkdir", "a"), ("fsync", "."), ("mkdir", "b"), ("fsync", "a")]


# -- snapshots -------------------------------------------------------------------------------------


def round_trip(value):
    return loads(dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        *(0.1 + 0.2, b"\x00\xff", [1, [2.5, None]], (1, ("a", 2)), {3, 4}, frozenset({1})),
        {1: "by number", "a": {(1, 2): "by tuple"}},
        deque([1, 2]),
        Counter({5: 2}),
        defaultdict(list, {1: [2]}),
        OrderedDict({2: 1, 1: 2}),
    ],
)
def test_values_come_back_with_their_types(value):
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array", [np.arange(3, dtype=np.float32), np.array(2.5), np.zeros((0, 3)), np.array([True])]
)
def test_arrays_come_back_to_the_bit(array):
    back = round_trip({"a": array})["a"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_a_shared_array_is_restored_as_one():
    vector = vec(1, 2)
    order = Order(0, 1, 2, 3, vector, {"lr": 0.5}, 4.0, {"h": vec(7)})
    back_vector, back_order = round_trip((vector, order))
    assert back_order.vector is back_vector
    assert back_order.config == {"lr": 0.5}
    assert back_order.state["h"].tolist() == [7.0]
    assert (back_order.number, back_order.sent_at) == (0, 4.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"f": round_trip}, "f is a function, which a checkpoint cannot hold"),
        ({"a": [0, {"b": Parts(1.0, 2.0, 3.0)}]}, "a.1.b is a Parts"),
        ({"kind": Kind.REPLY}, "kind is a Kind"),
        ({"words": np.array(["a"])}, "words is an array of <U1"),
        ({"d": defaultdict(lambda: 1)}, "d is a function"),
        ({Kind.REPLY: 1}, "the value is a Kind"),
    ],
)
def test_the_error_of_a_value_that_cannot_be_saved_names_key_and_type(value, message):
    with pytest.raises(Unkeepable, match=message):
        dumps(value)


class Evil:
    """Runs a command when it is unpickled."""

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
