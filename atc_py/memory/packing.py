"""Conflicts given to the exact search: what need not be searched is taken out, the rest is put into cliques.

    blocks that ride on others    out: they lie where those lie                           `cliques.ride`
    blocks that fit anyway        out: they are placed afterwards                         `cliques.peel_graph`
    heavy antichains              cliques that nearly fill the capacity                   `chains`
    cliques of large blocks       for the conflicts that are in none of these             `cliques.cliques`

All that the search needs is each conflict in one of the cliques; that it sees dead ends early is due to the heavy ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc_py.memory.cliques import bits_of, cliques, graph_of, members, peel_graph, ride
from atc_py.memory.problem import Budget
from atc_py.memory.search import search
from atc_py.memory.stacks import Stacks, expanded

HEAVY = 10
"""An antichain is heavy down to one part in HEAVY below the heaviest."""
STEPS_A_BLOCK = 64
"""Steps for finding heavy ones."""
STEPS = 20_000
"""Steps for finding heavy ones."""

STRAIGHT = 3
"""To place each block once takes a third to all of blocks x members of cliques in steps: with less none is begun."""


class Packing:
    """The blocks of a relation, or its stacks, which are to lie within a capacity."""

    def __init__(self, stacks: Stacks, sizes: Sequence[int], steps: Budget) -> None:
        self.stacks, self.sizes, self.steps = stacks, sizes, steps
        self.graph = graph_of(stacks.sizes, [list(members(near)) for near in stacks.near])
        self.alive, self.rides = ride(self.graph, steps)
        self.heavy = self._heavy(stacks)

    @property
    def exact(self) -> bool:
        """Whether what is impossible here is impossible for the blocks."""
        return not self.stacks.groups

    @property
    def least(self) -> int:
        """No plan has less than these units."""
        return self.stacks.weight

    def decide(self, capacity: int, limit: int) -> tuple[list[int] | None, bool]:
        """Offsets within the capacity or None; and whether that is certain, which `limit` steps may not do for."""
        graph, budget = self.graph, Budget(limit)
        kept, later = peel_graph(graph, self.alive, capacity)
        nodes = list(members(kept))
        index = {node: k for k, node in enumerate(nodes)}
        sections = [[index[node] for node in clique] for clique in cliques(graph, kept, _largest(self.heavy, kept))]
        if len(nodes) * sum(map(len, sections)) > STRAIGHT * limit:
            return None, False
        found, sure = search([graph.size[node] for node in nodes], sections, capacity, budget)
        self.steps.used += budget.used
        if found is None:
            return None, sure
        return self._completed(dict(zip(nodes, found, strict=True)), later), True

    def _heavy(self, stacks: Stacks) -> list[int]:
        """The heaviest antichain, and for large blocks in none so far the heaviest one with them, where it is heavy."""
        order = self.graph.order
        number = {i: k for k, i in enumerate(order)}
        found, covered = [stacks.chains.antichain], stacks.chains.antichain
        budget = Budget(STEPS_A_BLOCK * len(order) if covered else 0)
        for i in order:
            if not covered >> i & 1 and budget.left > 0:
                antichain = stacks.chains.through(i, budget, stacks.weight // HEAVY)
                covered |= antichain
                found += [antichain] if antichain else []
        self.steps.used += budget.used
        return [bits_of([number[i] for i in members(antichain)], len(order)) for antichain in found]

    def _completed(self, placed: Mapping[int, int], later: Sequence[int]) -> list[int]:
        """A plan of all blocks: those peeled at the lowest free places, then those that ride on others."""
        graph, offsets = self.graph, dict(placed)
        present = bits_of(list(placed), len(graph.order))
        for node in later:
            start = 0
            beside = list(members(graph.near[node] & present))
            for low, high in sorted((offsets[other], offsets[other] + graph.size[other]) for other in beside):
                if low - start >= graph.size[node]:
                    break
                start = max(start, high)
            offsets[node] = start
            present |= 1 << node
        for node, carrier in reversed(self.rides):
            offsets[node] = offsets[carrier]
        found = [0] * len(self.stacks.sizes)
        for node, offset in offsets.items():
            found[graph.order[node]] = offset
        return expanded(self.stacks, self.sizes, found)


def _largest(sets: Sequence[int], kept: int) -> list[int]:
    """What is kept of some sets, without those that are in another."""
    found: list[int] = []
    for inside in sorted((s & kept for s in sets), key=int.bit_count, reverse=True):
        if inside and all(inside & ~other for other in found):
            found.append(inside)
    return found
