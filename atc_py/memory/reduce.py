"""Smaller problems with the same answer: blocks that become one, and blocks that fit anyway.

Joining. Two blocks with the same lifetime are stacked; a block that starts where another of its size ends follows it:

    a [0, 4) 3      ┌──────a──────┐                ┌─────────────┐
    b [0, 4) 2      ├──────b──────┤      a + b     │  [0, 4)  5  │      then with c        [0, 9)  5
    c [4, 9) 5      └─────────────┘      =         └─────────────┘      =

A plan of the joined blocks is a plan of the parts, with the same sums of live bytes; that there may be a better one
that keeps the parts apart is why planners look at the problem itself too.

Peeling. A block fits however the others lie when these leave a hole for it wherever they are: k others of n bytes in
all leave at most k + 1 holes, so a block of s bytes fits below `capacity` when n + (k + 1) (s - 1) < capacity. Such
blocks are put aside, again and again as others go, and placed last in opposite order. (Vertices of small degree are
put aside in the same way when a graph is coloured.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atc_py.memory.problem import Block, Budget

ROUNDS = 64
"""Passes over the blocks, for either way: what keeps both linear."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Joined:
    """Blocks after joining. `nodes` are the given blocks and then the joined ones; `blocks` those not part of another.

    `parts` gives for a joined node its parts and where each lies in it. A part's number is below its node's.
    """

    nodes: list[Block]
    alive: list[int]
    parts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    count: int = 0

    @property
    def blocks(self) -> list[Block]:
        """The blocks to place."""
        return [self.nodes[i] for i in self.alive]

    def expand(self, offsets: Sequence[int]) -> list[int]:
        """Offsets of the given blocks from those of `blocks`."""
        found = [0] * len(self.nodes)
        for i, offset in zip(self.alive, offsets, strict=True):
            found[i] = offset
        for node in sorted(self.parts, reverse=True):
            for part, delta in self.parts[node]:
                found[part] = found[node] + delta
        return found[: self.count]

    def add(self, block: Block, parts: list[tuple[int, int]]) -> int:
        """Make a node of some parts; returns its number."""
        self.nodes.append(block)
        self.parts[len(self.nodes) - 1] = parts
        return len(self.nodes) - 1


def join(blocks: Sequence[Block]) -> Joined:
    """Stack and chain blocks until nothing changes (a nest deeper than ROUNDS stays)."""
    joined = Joined(list(blocks), list(range(len(blocks))), count=len(blocks))
    for _ in range(ROUNDS):
        before = len(joined.alive)
        _stack(joined)
        _chain(joined)
        if len(joined.alive) == before:
            break
    return joined


def _stack(joined: Joined) -> None:
    """Blocks with the same lifetime become one."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in joined.alive:
        groups[joined.nodes[i].lower, joined.nodes[i].upper].append(i)
    joined.alive = []
    for (lower, upper), members in groups.items():
        if len(members) == 1:
            joined.alive += members
            continue
        parts, height = [], 0
        for i in members:
            parts.append((i, height))
            height += joined.nodes[i].size
        joined.alive.append(joined.add(Block(lower, upper, height), parts))


def _chain(joined: Joined) -> None:
    """A block and the only one of its size that starts where it ends become one."""
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    order = sorted(joined.alive, key=lambda i: (joined.nodes[i].lower, joined.nodes[i].upper, i))
    for i in order:
        starts[joined.nodes[i].lower, joined.nodes[i].size].append(i)
    taken: set[int] = set()
    joined.alive = []
    for i in order:
        if i in taken:
            continue
        first = joined.nodes[i]
        chain, upper = [i], first.upper
        taken.add(i)
        while True:
            following = starts.get((upper, first.size), ())
            if len(following) != 1 or following[0] in taken:
                break
            taken.add(following[0])
            chain.append(following[0])
            upper = joined.nodes[following[0]].upper
        if len(chain) > 1:
            i = joined.add(Block(first.lower, upper, first.size), [(j, 0) for j in chain])
        joined.alive.append(i)


def peel(blocks: Sequence[Block], capacity: int) -> tuple[list[int], list[int]]:
    """Which blocks to place first, and the others in the order in which they then fit below `capacity`."""
    lower = np.array([b.lower for b in blocks], np.int64)
    upper = np.array([b.upper for b in blocks], np.int64)
    size = np.array([b.size for b in blocks], np.int64)
    kept = np.arange(len(blocks))
    rounds: list[list[int]] = []
    while len(kept) and len(rounds) < ROUNDS:
        low, high, own = lower[kept], upper[kept], size[kept]
        others, nbytes = company(low, high, own)
        fits = own - 1 <= (capacity - 1 - nbytes) // (others + 1)  # the same, without large products
        if not fits.any():
            break
        rounds.append(kept[fits].tolist())
        kept = kept[~fits]
    return kept.tolist(), [i for peeled in reversed(rounds) for i in peeled]


def company(lower: Ints, upper: Ints, size: Ints) -> tuple[Ints, Ints]:
    """For each block how many others are live with it at some time, and their bytes."""
    starts, ends = np.argsort(lower, kind="stable"), np.argsort(upper, kind="stable")
    started = np.searchsorted(lower[starts], upper, "left")
    ended = np.searchsorted(upper[ends], lower, "right")
    start_bytes = np.concatenate([[0], np.cumsum(size[starts])])
    end_bytes = np.concatenate([[0], np.cumsum(size[ends])])
    return started - ended - 1, start_bytes[started] - end_bytes[ended] - size


def company_count(blocks: Sequence[Block]) -> int:
    """How many pairs of blocks are live together."""
    if not blocks:
        return 0
    arrays = (np.array([getattr(b, name) for b in blocks], np.int64) for name in ("lower", "upper", "size"))
    return int(company(*arrays)[0].sum()) // 2


def span_count(blocks: Sequence[Block]) -> int:
    """The sections of all lifetimes together, where a section ends with each start or end of a block."""
    times = np.unique(np.array([t for b in blocks for t in (b.lower, b.upper)], np.int64))
    ends = np.array([(b.lower, b.upper) for b in blocks], np.int64).reshape(-1, 2)
    return int(np.diff(np.searchsorted(times, ends)).sum())


def fill(
    blocks: Sequence[Block], placed: Sequence[int], offsets: list[int], later: Sequence[int], budget: Budget
) -> None:
    """Place the blocks `later`, one after the other, each at the lowest free offset beside those placed before."""
    lower = np.array([b.lower for b in blocks], np.int64)
    upper = np.array([b.upper for b in blocks], np.int64)
    present = np.zeros(len(blocks), bool)
    present[list(placed)] = True
    for i in later:
        block = blocks[i]
        near = np.nonzero(present & (lower < block.upper) & (upper > block.lower))[0].tolist()
        start = 0
        for low, high in sorted((offsets[j], offsets[j] + blocks[j].size) for j in near):
            if low - start >= block.size:
                break
            start = max(start, high)
        offsets[i] = start
        present[i] = True
        budget.used += len(near) + 1
