"""Fewer and larger blocks: what begins together is stacked, where that leaves the heaviest antichain as it is.

    split ─┬─ a 2 ─ conv      a, b and c begin with one task and end with others. Stacked they are one block of 6 units
           ├─ b 2 ─ conv      that ends with the last of them: no more than they take when they begin, and the search
           └─ c 2 ─ conv      has one place to find in place of three

A stack is in conflict with all that one of its blocks conflicts with, so it may ask for more than the blocks do. All
blocks with the same ones before them are stacked at first. While the heaviest antichain (`chains`) is above a limit,
the stack in it that has the most conflicts more than its blocks is taken apart: refinement by counterexample, as in
E. Clarke et al., "Counterexample-guided abstraction refinement" (CAV 2000). A plan of the stacks is a plan of the
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atc_py.memory.chains import Chains
from atc_py.memory.cliques import members
from atc_py.memory.problem import Budget

STEPS_A_BLOCK, STEPS_A_STACK = 32, 256
"""Steps a block for the heaviest antichain of blocks, and for all those of stacks until these are few enough."""


@dataclass
class Stacks:
    """Blocks, of which the first of each stack stands for all of it, and the others have no size.

    `near` are for each block the ones in conflict with it, `chains` what they hand on to each other at the most.
    """

    sizes: list[int]
    near: list[int]
    chains: Chains
    groups: list[list[int]] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """Units of the heaviest antichain; 0 when the budget did not do for it."""
        return sum(self.sizes[i] for i in members(self.chains.antichain))


def unstacked(sizes: Sequence[int], near: Sequence[int], steps: Budget) -> Stacks:
    """The blocks as they are; `near` are for each one those in conflict with it. Steps made are added to `steps`."""
    budget = Budget(STEPS_A_BLOCK * len(sizes))
    found = _made(sizes, near, [], budget)
    steps.used += budget.used
    return found


def stacked(sizes: Sequence[int], near: Sequence[int], limit: int, steps: Budget) -> Stacks | None:
    """Stacks without an antichain of more than `limit` units; None when no stack is left."""
    budget = Budget(STEPS_A_STACK * len(sizes))
    together: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        if size:
            together.setdefault(~near[i] & ((1 << i) - 1), []).append(i)
    groups = [group for group in together.values() if len(group) > 1]
    found = None
    while groups and found is None:
        made = _made(sizes, near, groups, budget)
        blamed = [k for k, group in enumerate(groups) if made.chains.antichain >> group[0] & 1]
        if 0 < made.weight <= limit:
            found = made
        elif blamed:
            del groups[max(blamed, key=lambda k: (_more(groups[k], sizes, near), -k))]
        else:
            break  # there are too many blocks already, or no steps left
    steps.used += budget.used
    return found


def expanded(stacks: Stacks, sizes: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """Offsets of all blocks, whose sizes are given, from those of the stacks."""
    found = list(offsets)
    for group in stacks.groups:
        at = offsets[group[0]]
        for i in group:
            found[i] = at
            at += sizes[i]
    return found


def _made(sizes: Sequence[int], near: Sequence[int], groups: list[list[int]], budget: Budget) -> Stacks:
    """The relation of these stacks and of the blocks in none."""
    everything = (1 << len(sizes)) - 1
    alive = everything
    height, beside = list(sizes), list(near)
    sets: list[tuple[int, int]] = []
    for first, *others in groups:
        for i in others:
            height[first] += sizes[i]
            beside[first] |= near[i]
            height[i] = beside[i] = 0
            alive ^= 1 << i
        whole = sum(1 << i for i in (first, *others))
        beside[first] &= ~whole
        sets.append((1 << first, whole))
    for i in members(alive):
        for first, whole in sets:
            if beside[i] & whole:
                beside[i] |= first
        beside[i] &= alive
    after = [alive & ~beside[i] & ~((2 << i) - 1) if height[i] else 0 for i in range(len(sizes))]
    chains = Chains(height, after)
    chains.begin()
    chains.fill(budget)
    budget.used += len(sizes)
    return Stacks(height, beside, chains, groups[:])


def _more(group: Sequence[int], sizes: Sequence[int], near: Sequence[int]) -> int:
    """Units x units of the conflicts that a stack has and its blocks have not."""
    beside = 0
    for i in group:
        beside |= near[i]
    beside &= ~sum(1 << i for i in group)
    return sum(sizes[i] * sum(sizes[j] for j in members(beside & ~near[i])) for i in group)
