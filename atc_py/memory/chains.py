"""Blocks in the order in which they begin: chains that may share bytes, and the heaviest set that may not.

    a 2 ─┬─ b 1 ── d 1        a is over before b, c and d begin, b before d; c is beside b and d
         └─ c 2
    handed on    a → b 1, a → c 1, b → d 1            chains of one unit    a b d, a c, c
    bound        6 units - 3 handed on = 3            antichains            {b, c} and {c, d}

Where "may share bytes" is an order in time (one is over before the other begins), every unit of the arena serves a
chain of blocks. The fewest chains that meet each block as often as it has units are as many as the heaviest set of
which no two may share has units, an antichain (R. Dilworth, "A decomposition theorem for partially ordered sets",
1950). They are found as what blocks hand on: each gives at most its size to later ones and takes at most its size from
earlier ones. The most that can be handed on is a maximal flow, found by augmenting paths, and its minimal cut leaves
the antichain (D. Fulkerson's proof of Dilworth's theorem, 1956).

The antichain is a clique of the conflicts in any case, also where the relation is no order. It is the heaviest clique
when each block that hands something on may share with all with which the taker may: then all of a chain may share.

Sets of blocks are ints with a bit for each, the earliest block lowest. A step of the budget is a block looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from atc_py.memory.problem import Budget

FORCED = 1 << 64
"""Units that a block has beyond its size when it must be in the antichain: more than all others have together."""


class Chains:
    """What blocks hand on to each other; `after` are, for each block, the later ones that may have its bytes."""

    def __init__(self, sizes: Sequence[int], after: Sequence[int]) -> None:
        self.after = after
        self.gives, self.wants = list(sizes), list(sizes)
        """What each block may still hand on, and still take."""
        self.takes: list[dict[int, int]] = [{} for _ in sizes]
        """For each block from which ones it takes how many units."""
        self.open = sum(1 << i for i, s in enumerate(sizes) if s)
        """The blocks that still want something."""
        self.antichain = 0
        """The heaviest antichain, once `fill` has come to its end."""

    def copy(self) -> Chains:
        """Another one that goes on from here."""
        other = Chains((), self.after)
        other.gives, other.wants, other.open = self.gives.copy(), self.wants.copy(), self.open
        other.takes = [takes.copy() for takes in self.takes]
        return other

    def begin(self) -> None:
        """Hand on to the earliest blocks that want something; seldom is there much left to do for `fill`."""
        for i, after in enumerate(self.after):
            near = after & self.open
            while near and self.gives[i]:
                j = _lowest(near)
                units = min(self.gives[i], self.wants[j])
                self.gives[i] -= units
                self._take(i, j, units)
                near &= near - 1

    def fill(self, budget: Budget, most: int | None = None) -> bool:
        """Hand on as much as can be; False when the budget, or more than `most` units, ended that."""
        givers: set[int] = set()
        full = handed = 0  # blocks that no path leads on from: it never will
        for i in [i for i, units in enumerate(self.gives) if units]:
            while self.gives[i] and i not in givers:
                if budget.left <= 0:
                    return False
                if not self.after[i] & ~full:
                    givers.add(i)
                    break
                seen, reached, units = self._augment(i, full, budget)
                if not units:
                    givers |= seen
                    full |= reached
                handed += units
                if most is not None and handed > most:
                    return False
        self.antichain = sum(1 << i for i in givers if not full >> i & 1)
        return True

    def _augment(self, source: int, full: int, budget: Budget) -> tuple[set[int], int, int]:
        """(blocks that give and that take on all ways from `source`, units handed on along a shortest free way)."""
        taker_of: dict[int, int] = {source: -1}  # the giver could give elsewhere what this one has from it
        giver_of: dict[int, int] = {}
        queue = deque([source])
        while queue:
            i = queue.popleft()
            new = self.after[i] & ~full
            if new & self.open:
                return set(), 0, self._shift(i, _lowest(new & self.open), taker_of, giver_of)
            full |= new
            while new:
                j = _lowest(new)
                new &= new - 1
                budget.used += 1
                giver_of[j] = i
                for k in self.takes[j]:
                    if k not in taker_of:
                        taker_of[k] = j
                        queue.append(k)
        return set(taker_of), full, 0

    def _shift(self, giver: int, taker: int, taker_of: dict[int, int], giver_of: dict[int, int]) -> int:
        """Hand on along the way that ends with `giver` and `taker`; returns how many units."""
        way = [(giver, taker)]
        units = self.wants[taker]
        while (before := taker_of[giver]) >= 0:
            units = min(units, self.takes[before][giver])
            giver = giver_of[before]
            way.append((giver, before))
        units = min(units, self.gives[giver])
        self.gives[giver] -= units
        for (giver, taker), (_, before) in pairwise(way):
            self.takes[before][giver] -= units
            if not self.takes[before][giver]:
                del self.takes[before][giver]
            self.takes[taker][giver] = self.takes[taker].get(giver, 0) + units
        giver, taker = way[-1]
        self.takes[taker][giver] = self.takes[taker].get(giver, 0) + units
        self.wants[way[0][1]] -= units
        if not self.wants[way[0][1]]:
            self.open ^= 1 << way[0][1]
        return units

    def _take(self, giver: int, taker: int, units: int) -> None:
        self.takes[taker][giver] = self.takes[taker].get(giver, 0) + units
        self.wants[taker] -= units
        if not self.wants[taker]:
            self.open ^= 1 << taker

    def proved(self) -> bool:
        """Whether no clique is heavier than the antichain: all blocks of each chain may share bytes."""
        return self.antichain > 0 and all(
            not self.after[j] & ~self.after[i] for j, takes in enumerate(self.takes) for i in takes
        )

    def through(self, block: int, budget: Budget, most: int) -> int:
        """The heaviest antichain with a block in it, of those at most `most` units below the heaviest; 0: none."""
        forced = self.copy()
        forced.gives[block] += FORCED
        forced.wants[block] += FORCED
        forced.open |= 1 << block
        return forced.antichain if forced.fill(budget, most) else 0


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
