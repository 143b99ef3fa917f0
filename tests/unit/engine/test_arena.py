"""Vectors in shared memory."""

import gc
import multiprocessing
import os
import weakref
from multiprocessing.connection import Connection

import numpy as np
import pytest

from fl_app.engine.arena import SLOTS_PER_SEGMENT, Arena


def hold(arena: Arena, count: int) -> tuple[list[np.ndarray], list[int]]:
    pairs = [arena.new() for _ in range(count)]
    return [vector for vector, _ in pairs], [slot for _, slot in pairs]


@pytest.mark.parametrize("size", [1, 3, 16, 1025])
def test_vectors_do_not_overlap(size: int) -> None:
    """Also not across the border between two segments."""
    arena = Arena(size)
    vectors, slots = hold(arena, 2 * SLOTS_PER_SEGMENT + 1)
    for number, vector in enumerate(vectors):
        assert vector.shape == (size,)
        assert vector.dtype == np.float32
        assert vector.ctypes.data % 64 == 0
        vector[:] = number
    for number, (vector, slot) in enumerate(zip(vectors, slots, strict=True)):
        assert (vector == number).all()
        assert (arena.view(slot) == number).all()
    assert len(set(slots)) == len(slots)


@pytest.mark.parametrize("part", [slice(None), slice(2, 3), slice(None, None, 2)])
def test_a_view_keeps_its_slot(part: slice) -> None:
    arena = Arena(4)
    vector, slot = arena.new()
    vector[:] = [1, 2, 3, 4]
    view = vector[part]
    expected = view.tolist()
    del vector
    others, slots = hold(arena, 3)
    for other in others:
        other[:] = -1
    assert slot not in slots
    assert view.tolist() == expected
    del view
    assert hold(arena, 1)[1] == [slot]


def _double(arena: Arena, pipe: Connection) -> None:
    while True:
        source, target = pipe.recv()
        np.multiply(arena.view(source), 2, out=arena.view(target))
        pipe.send(True)


def test_a_forked_child_reads_and_writes_the_same_memory() -> None:
    """Slots taken before and after the fork, in segments that the child has yet to map."""
    arena = Arena(3)
    before, slot_before = arena.new()
    before[:] = [1, 2, 3]
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=_double, args=(arena, theirs), daemon=True
    )
    child.start()
    try:
        kept, _ = hold(arena, SLOTS_PER_SEGMENT)
        after, slot_after = arena.new()
        assert slot_after >= SLOTS_PER_SEGMENT
        ours.send((slot_before, slot_after))
        assert ours.poll(20)
        ours.recv()
        assert after.tolist() == [2, 4, 6]
        after[:] = 7
        ours.send((slot_after, slot_before))
        assert ours.poll(20)
        ours.recv()
        assert before.tolist() == [14, 14, 14]
        assert len(kept) == SLOTS_PER_SEGMENT
    finally:
        child.kill()
        child.join()


def test_an_arena_that_nobody_holds_gives_its_memory_back() -> None:
    """The last vector keeps it; after that its file is closed, for there may be many runs."""
    arena = Arena(3)
    vector, _ = arena.new()
    vector[:] = 5
    gone = weakref.ref(arena)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    del arena
    assert vector.tolist() == [5, 5, 5]
    del vector
    gc.collect()
    assert gone() is None
    # One for the file, one for each mapping's own duplicate of it.
    assert len(os.listdir("/proc/self/fd")) == files - 2
