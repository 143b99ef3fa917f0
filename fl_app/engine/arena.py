"""Vectors in memory that worker processes share; a place is free again when no array uses it."""

import ctypes
import mmap
import os
import weakref

import numpy as np

from fl_app.core.types import Vector

SLOTS_PER_SEGMENT = 64
ALIGNMENT = 64  # bytes; a cache line


class Arena:
    """Equal-sized float32 vectors on a file in memory that worker processes inherit.

    Segments are sparse: a slot costs memory once it was written, and the most recently freed slot
    is used first, so memory follows the largest number of vectors held at a time. A slot is freed
    when the last array (or view) on it is garbage: a vector that is kept keeps its contents.

    Args:
        size: d, entries of every vector.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_bytes = 4 * size  # of a vector
        self._stride = -(-max(size, 1) * 4 // ALIGNMENT) * ALIGNMENT
        self._segment_bytes = -(-self._stride * SLOTS_PER_SEGMENT // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = os.memfd_create("fl_app")
        weakref.finalize(self, os.close, self._file)
        self._segments: dict[int, mmap.mmap] = {}
        self._starts: dict[int, int] = {}  # address of a slot held here -> slot
        self._free: list[int] = []
        self._slots = 0

    def new(self) -> tuple[int, Vector]:
        """A slot and a vector on it with arbitrary contents; only one process may call this."""
        if not self._free:
            os.ftruncate(self._file, (self._slots // SLOTS_PER_SEGMENT + 1) * self._segment_bytes)
            self._free.extend(range(self._slots + SLOTS_PER_SEGMENT - 1, self._slots - 1, -1))
            self._slots += SLOTS_PER_SEGMENT
        slot = self._free.pop()
        # The memory's owner is an object of its own, because NumPy lets a view of a view point to
        # the owner directly: a finalizer on an array would run while its views live.
        segment, offset = self._locate(slot)
        owner = (ctypes.c_float * self.size).from_buffer(segment, offset)
        address = ctypes.addressof(owner)
        self._starts[address] = slot
        weakref.finalize(owner, self._release, slot, address).atexit = False
        return slot, np.frombuffer(memoryview(owner), np.float32)

    def store(self, vector: Vector) -> tuple[int, Vector]:
        """A slot and a read-only copy in it; a vector that is in a slot already is not copied."""
        slot = self._starts.get(vector.ctypes.data)
        if slot is not None and vector.size == self.size and vector.flags.c_contiguous:
            return slot, vector
        slot, copy = self.new()
        np.copyto(copy, vector)
        copy.flags.writeable = False
        return slot, copy

    def view(self, slot: int) -> Vector:
        """The vector of a slot that another process allocated, which must keep it meanwhile."""
        segment, offset = self._locate(slot)
        return np.frombuffer(segment, np.float32, self.size, offset)

    def _locate(self, slot: int) -> tuple[mmap.mmap, int]:
        index, position = divmod(slot, SLOTS_PER_SEGMENT)
        if index not in self._segments:
            start = index * self._segment_bytes
            self._segments[index] = mmap.mmap(self._file, self._segment_bytes, offset=start)
        return self._segments[index], position * self._stride

    def _release(self, slot: int, address: int) -> None:
        del self._starts[address]
        self._free.append(slot)
