"""What the allocator is asked, and what it answers.

Three blocks, lifetimes half open, [lower, upper):

    a  [0, 2)  512 B         b  [1, 3)  1024 B        c  [2, 4)  512 B

    offset 1536 ┤   [b b]
              … ┤   [b b]            a and c are never live together and share [0, 512):
            512 ┤ [a a][c c]         peak 1536 = lower bound (a and b are live together at position 1)

Effort says how far a planner goes; every bound is a number of counted steps, so the answer depends on the input alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

Effort = Literal["fast", "default", "max"]
"""`fast`: greedy orders only. `default`: and searches of about 2 CPU seconds. `max`: and of up to about a minute."""

EFFORTS: tuple[str, ...] = get_args(Effort)


@dataclass(slots=True)
class Block:
    """A block of `size` units that is needed from position `lower` on and no longer at `upper`."""

    lower: int
    upper: int
    size: int


@dataclass(frozen=True)
class Assignment:
    """An offset for each block in the order given, and the peak (the least arena size), in the blocks' units.

    `lower_bound` is what no plan can beat; `optimal` says that none can have a lower peak than this one, because the
    bound is met or a search ran to its end. `steps` counts the work (one step is one block looked at).
    """

    offsets: tuple[int, ...]
    peak: int
    lower_bound: int
    optimal: bool
    steps: int


class Budget:
    """Counts steps against a limit: the only thing that ends a search early."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 0) -> None:
        self.limit, self.used = limit, 0

    @property
    def left(self) -> int:
        """Steps that may still be made; below 1 when it is time to stop."""
        return self.limit - self.used


def lower_bound(blocks: Sequence[Block]) -> int:
    """The greatest sum of sizes of blocks live at one position: no plan can have a lower peak."""
    change: defaultdict[int, int] = defaultdict(int)
    for b in blocks:
        change[b.lower] += b.size  # and taken back at once where no lifetime follows
        change[b.upper] -= b.size
    return max(accumulate([change[position] for position in sorted(change)]), default=0)
