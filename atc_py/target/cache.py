"""The L2 cache as the cost model sees it: how many bytes of a buffer are still there when they are read.

    16 MiB:   write a (8 MiB)       a 8                     nothing from DDR
              write b (12 MiB)      a 6.2, b 9.8            4 MiB did not fit: they pushed out what lay there
              read a                6.2 MiB found           1.8 MiB from DDR

Lines are replaced at random: filling f bytes more than are free leaves e^(-f/C) of what was there. A cyclic walk over
a little more than the capacity C thus finds most of it, as it does on the chip, where a strict order of use would
find nothing. What is pushed out goes to DDR if it has been written.

All buffers shrink by the same factor, so that only the factor is kept up to date, and an access takes constant time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Protocol


class Access(Protocol):
    """A buffer that a task reads or writes, and how many bytes of it."""

    key: Hashable
    nbytes: int


_Lines = tuple[float, float, bool]
"""Of a buffer: its bytes in the cache when the cache's scale was `scale`, that scale, and whether they are dirty."""


@dataclass(slots=True)
class Cache:
    """A cache of `capacity` bytes; buffers are known by any key."""

    capacity: int
    _lines: dict[Hashable, _Lines] = field(default_factory=dict)
    _total: float = 0.0
    _dirty: float = 0.0
    _scale: float = 0.0
    """The logarithm of the factor by which everything has shrunk so far."""

    def resident(self, key: Hashable) -> float:
        """Bytes of the buffer that are in the cache."""
        lines = self._lines.get(key)
        return 0.0 if lines is None else self._held(lines)

    def _held(self, lines: _Lines) -> float:
        """Bytes that are left of what was there."""
        held, scale, _ = lines
        return held if scale == self._scale else held * exp(self._scale - scale)

    def read(self, key: Hashable, nbytes: int) -> float:
        """Read a buffer of `nbytes`; returns the bytes that DDR delivers, or takes from lines that make room."""
        if not nbytes:
            return 0.0
        lines = self._lines.get(key)
        if lines is not None and lines[0] == nbytes and lines[1] == self._scale:
            return 0.0  # all of it is there: nothing changes
        found = 0.0 if lines is None else min(self._held(lines), float(nbytes))
        if nbytes > self.capacity:
            found *= self.capacity / nbytes  # a long stream replaces its own lines before it comes to them
        evicted, _ = self._fill(key, nbytes, nbytes - found, dirty=False)
        return nbytes - found + evicted

    def write(self, key: Hashable, nbytes: int) -> float:
        """Write a buffer of `nbytes`; returns the bytes that DDR takes."""
        if not nbytes:
            return 0.0
        evicted, kept = self._fill(key, nbytes, float(nbytes), dirty=True)
        return nbytes - kept + evicted

    def task(self, reads: Sequence[Access], writes: Sequence[Access], dropped: Sequence[Hashable]) -> float:
        """A task reads and writes, then some buffers are dropped; returns the bytes that DDR delivers and takes."""
        ddr, buffers, capacity = 0.0, self._lines, self.capacity
        for a in reads:
            lines = buffers.get(a.key)
            if lines is None or lines[0] != a.nbytes or lines[1] != self._scale:  # else all of it is there
                ddr += self.read(a.key, a.nbytes)
        for a in writes:
            nbytes = a.nbytes
            if a.key not in buffers and 0 < nbytes <= capacity - self._total:  # it is new, and there is room
                buffers[a.key] = (float(nbytes), self._scale, True)
                self._total += nbytes
                self._dirty += nbytes
            else:
                ddr += self.write(a.key, nbytes)
        for key in dropped:
            self.drop(key)
        return ddr

    def drop(self, key: Hashable) -> None:
        """The buffer's content is needed no more: its lines are free, and nothing has to be written back."""
        lines = self._lines.pop(key, None)
        if lines is not None:
            held, scale, dirty = lines
            if scale != self._scale:
                held *= exp(self._scale - scale)
            self._total -= held
            if dirty:
                self._dirty -= held

    def _fill(self, key: Hashable, nbytes: int, filled: float, *, dirty: bool) -> tuple[float, float]:
        """Bring `filled` bytes of a buffer in; returns what has to be written back to make room, and what is there."""
        capacity = self.capacity
        if not capacity:
            return 0.0, 0.0
        lines, held, total, all_dirty = self._lines.get(key), 0.0, self._total, self._dirty
        if lines is not None:
            held = self._held(lines)
            total -= held
            all_dirty -= held if lines[2] else 0.0
            dirty = dirty or lines[2]
        free = capacity - total - held
        evicted, pushed = 0.0, filled - free if free > 0 else filled
        if pushed > 0:
            left = exp(-pushed / capacity)
            evicted = all_dirty * (1 - left)
            total, all_dirty = total * left, all_dirty * left
            self._scale -= pushed / capacity
        room = capacity - total
        kept = float(nbytes) if nbytes <= room else room if room > 0 else 0.0  # a full cache stays full
        self._lines[key] = (kept, self._scale, dirty)
        self._total = total + kept
        self._dirty = all_dirty + (kept if dirty else 0.0)
        return evicted, kept
