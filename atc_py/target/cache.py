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

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import exp


@dataclass(slots=True)
class _Lines:
    """A buffer's bytes in the cache when the cache's `scale` was `scale`."""

    held: float
    scale: float
    dirty: bool


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
        return lines.held if lines.scale == self._scale else lines.held * exp(self._scale - lines.scale)

    def read(self, key: Hashable, nbytes: int) -> float:
        """Read a buffer of `nbytes`; returns the bytes that DDR delivers, or takes from lines that make room."""
        if not nbytes:
            return 0.0
        lines = self._lines.get(key)
        if lines is not None and lines.held == nbytes and lines.scale == self._scale:
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

    def drop(self, key: Hashable) -> None:
        """The buffer's content is needed no more: its lines are free, and nothing has to be written back."""
        lines = self._lines.pop(key, None)
        if lines is not None:
            held = self._held(lines)
            self._total -= held
            self._dirty -= held if lines.dirty else 0.0

    def _fill(self, key: Hashable, nbytes: int, filled: float, *, dirty: bool) -> tuple[float, float]:
        """Bring `filled` bytes of a buffer in; returns what has to be written back to make room, and what is there."""
        if not self.capacity:
            return 0.0, 0.0
        old, held = self._lines.pop(key, None), 0.0
        if old is not None:
            held = self._held(old)
            self._total -= held
            self._dirty -= held if old.dirty else 0.0
            dirty = dirty or old.dirty
        free = max(0.0, self.capacity - self._total - held)
        evicted, pushed = 0.0, filled - free
        if pushed > 0:
            left = exp(-pushed / self.capacity)
            evicted = self._dirty * (1 - left)
            self._total, self._dirty = self._total * left, self._dirty * left
            self._scale -= pushed / self.capacity
        kept = min(float(nbytes), max(0.0, self.capacity - self._total))  # a full cache stays full
        self._lines[key] = _Lines(kept, self._scale, dirty)
        self._total += kept
        self._dirty += kept if dirty else 0.0
        return evicted, kept
