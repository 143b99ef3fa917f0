"""What workers return: copies of small arrays, and large vectors that stay where they are."""

import gc

import numpy as np
from helpers import vec

from fl_app.cluster.results import Results, owned
from fl_app.core.types import Reply, Upload, Vector


def stored(*values: float) -> Vector:
    """A vector as one that was read from a store, whose memory belongs to something else."""
    return np.frombuffer(vec(*values).tobytes(), np.float32).reshape(-1)


def reply(vector: Vector, **more: Vector) -> Reply:
    return Reply(3, Upload(vector, "delta", 1, 0.5, state=more))


def upload_of(taken: Reply) -> Upload:
    assert taken.upload is not None
    return taken.upload


def test_a_reply_owns_its_arrays() -> None:
    there = vec(1, 2)
    upload = owned(Reply(3, Upload(there, "delta", 1, 0.5, state={"s": there}, extra={"e": there})))
    for mine in (upload_of(upload).vector, upload_of(upload).state["s"]):
        assert mine.tolist() == [1, 2]
        assert not np.shares_memory(mine, there)
        assert not mine.flags.writeable
    assert not np.shares_memory(upload_of(upload).extra["e"], there)
    assert owned(Reply(3, error="x")) == Reply(3, error="x")


def test_large_vectors_stay_until_there_is_no_room_for_more() -> None:
    results = Results(most_bytes=40, small_bytes=8)
    first, second, third = stored(1, 2, 3, 4), stored(5, 6, 7, 8), stored(9, 9, 9, 9)
    one, other = results.take([reply(first, small=stored(1, 2)), reply(second)])
    assert upload_of(one).vector is first
    assert upload_of(other).vector is second
    assert not np.shares_memory(upload_of(one).state["small"], first)
    assert results.num_bytes == 32
    (copied,) = results.take([reply(third)])
    assert upload_of(copied).vector.tolist() == [9, 9, 9, 9]
    assert not np.shares_memory(upload_of(copied).vector, third)
    assert results.num_bytes == 32


def test_a_call_has_room_until_nothing_looks_at_its_vectors() -> None:
    results = Results(most_bytes=40, small_bytes=8)
    one, other = results.take([reply(stored(1, 2, 3, 4)), reply(stored(5, 6, 7, 8))])
    rest = upload_of(one).vector[2:]
    del one
    gc.collect()
    assert results.num_bytes == 32  # the store has both of them as one object
    del other
    gc.collect()
    assert results.num_bytes == 32  # a view is left
    assert rest.tolist() == [3, 4]
    del rest
    gc.collect()
    assert results.num_bytes == 0


def test_malformed_and_failed_replies_are_passed_on() -> None:
    results = Results(most_bytes=40, small_bytes=0)
    odd = Reply(3, Upload([1, 2], "delta", 1, 0.5))  # type: ignore[arg-type]
    taken = results.take([odd, Reply(4, error="x")])
    assert upload_of(taken[0]).vector == [1, 2]
    assert taken[1] == Reply(4, error="x")
    assert results.num_bytes == 0
