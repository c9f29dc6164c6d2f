"""Checks plans of memory by themselves. Imports nothing of the allocator, and computes nothing as it does.

All starts and ends of buffers are walked in order of time; the live ones are kept sorted by address, so that a buffer
that comes can only run into its two neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

Buffer = tuple[int, int, int]
"""Lower, upper (the first time at which it is dead), size."""


def check(buffers: Sequence[Buffer], offsets: Sequence[int], peak: int) -> None:
    """Raise AssertionError unless each buffer lies within [0, peak) and none shares bytes with one that is live too."""
    assert len(offsets) == len(buffers)
    events: list[tuple[int, int, int]] = []
    for i, (lower, upper, size) in enumerate(buffers):
        assert isinstance(offsets[i], int) and offsets[i] >= 0, (i, offsets[i])
        assert offsets[i] + size <= peak, (i, buffers[i], offsets[i])
        if size and lower < upper:
            events += [(lower, 1, i), (upper, 0, i)]
    live: list[tuple[int, int, int]] = []
    for time, begins, i in sorted(events):
        entry = (offsets[i], offsets[i] + buffers[i][2], i)
        if not begins:
            live.remove(entry)
            continue
        at = bisect_left(live, entry)
        for other in live[max(at - 1, 0) : at + 1]:
            assert other[1] <= entry[0] or entry[1] <= other[0], f"at {time}: {other[2]} and {i} share bytes"
        insort(live, entry)


def most_live(buffers: Sequence[Buffer]) -> int:
    """The greatest sum of sizes live at one time, by asking at each start."""
    return max((sum(s for low, up, s in buffers if low <= t < up) for t, _, _ in buffers), default=0)
