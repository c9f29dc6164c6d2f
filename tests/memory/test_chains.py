"""Chains and antichains against enumeration, stacks against their blocks, and a network of towers on four streams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from atc_py.memory import plan_memory_conflicts
from atc_py.memory.chains import Chains
from atc_py.memory.cliques import bits_of, members
from atc_py.memory.conflicts import clique_bound
from atc_py.memory.packing import Packing
from atc_py.memory.problem import Budget
from atc_py.memory.stacks import STEPS_A_BLOCK, STEPS_A_STACK, stacked, unstacked

Pairs = set[tuple[int, int]]
ENOUGH = 1_000_000


def in_order(rng: random.Random, count: int) -> Pairs:
    """Pairs of blocks that may share bytes: points of the plane, one below and left of the other."""
    points = sorted((rng.random(), rng.random()) for _ in range(count))
    return {(i, j) for i, j in combinations(range(count), 2) if points[i][1] < points[j][1]}


def in_no_order(rng: random.Random, count: int) -> Pairs:
    return {pair for pair in combinations(range(count), 2) if rng.random() < 0.4}


def relation(count: int, sharing: Pairs) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for i, j in combinations(range(count), 2):
        if (i, j) not in sharing:
            found[i].append(j)
            found[j].append(i)
    return found


def filled(sizes: Sequence[int], sharing: Pairs, begin: bool = True) -> Chains:
    after = [bits_of([j for j in range(len(sizes)) if (i, j) in sharing], len(sizes)) for i in range(len(sizes))]
    chains = Chains(sizes, after)
    if begin:
        chains.begin()
    assert chains.fill(Budget(ENOUGH))
    return chains


def antichains(sizes: Sequence[int], sharing: Pairs) -> dict[frozenset[int], int]:
    """Each set of which no two may share, and its units."""
    found = {}
    for chosen in range(1 << len(sizes)):
        inside = list(members(chosen))
        if not any(pair in sharing for pair in combinations(inside, 2)):
            found[frozenset(inside)] = sum(sizes[i] for i in inside)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_antichain_is_the_heaviest(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [1, *(rng.randint(0, 4) for _ in range(rng.randint(0, 8)))]
    sharing = in_order(rng, len(sizes))
    chains = filled(sizes, sharing, begin=bool(seed % 3))
    every = antichains(sizes, sharing)
    heaviest = max(every.values())
    assert chains.proved() and every[frozenset(members(chains.antichain))] == heaviest
    for block in (i for i, s in enumerate(sizes) if s):
        best = max(units for inside, units in every.items() if block in inside)
        for most in (0, 2, sum(sizes)):
            found = frozenset(members(chains.through(block, Budget(ENOUGH), most)))
            if best < heaviest - most:
                assert not found
            else:
                assert block in found and every[found] == best


@pytest.mark.parametrize("seed", range(40))
def test_without_an_order_it_is_a_clique_and_what_is_proved_is_so(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(8)]
    sharing = in_no_order(rng, len(sizes))
    chains = filled(sizes, sharing)
    every = antichains(sizes, sharing)
    units = every[frozenset(members(chains.antichain))]
    assert units <= max(every.values()) and (units == max(every.values()) or not chains.proved())


def test_the_worked_example() -> None:
    """Of the module's page: a, b, c, d of 2, 1, 2, 1 units."""
    chains = filled([2, 1, 2, 1], {(0, 1), (0, 2), (0, 3), (1, 3)})
    assert chains.takes == [{}, {0: 1}, {0: 1}, {1: 1}]
    assert set(members(chains.antichain)) in ({1, 2}, {2, 3}) and chains.proved()
    assert clique_bound([2, 1, 2, 1], [[], [2], [1, 3], [2]]) == 3


def test_a_budget_leaves_the_antichain_unknown() -> None:
    sizes = [2, 1, 1, 1]
    chains = Chains(sizes, [0b1110, 0, 0, 0])
    assert not chains.fill(Budget(0)) and not chains.antichain
    assert not chains.through(0, Budget(0), 9)


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_of_stacks_is_a_plan_of_the_blocks(seed: int) -> None:
    rng = random.Random(seed)
    sizes, conflicts = towers(rng.randint(1, 3), rng.randint(1, 3), [rng.randint(2, 5) for _ in range(3)])
    near = [bits_of(others, len(sizes)) for others in conflicts]
    plain = unstacked(sizes, near, Budget())
    assert plain.weight == clique_bound(sizes, conflicts)
    for limit in (plain.weight, plain.weight + 4):
        stacks = stacked(sizes, near, limit, Budget())
        if stacks is None:
            continue
        assert stacks.groups and stacks.weight <= limit and sum(stacks.sizes) == sum(sizes)
        found, _ = Packing(stacks, sizes, Budget()).decide(2 * plain.weight, ENOUGH)
        assert found is not None
        apart(sizes, conflicts, found)
    assert stacked(sizes, near, plain.weight - 1, Budget()) is None


def towers(streams: int, height: int, widths: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Sizes and conflicts of a network: a stem, its `widths` read by chains of `height` tasks, and each split in parts.

    Tasks are dealt to streams in turn. Two blocks may share bytes when all that touches one of them is done, by streams
    and by reading, before what makes the other begins.
    """
    reads: list[list[int]] = []  # by block, which is its task's too, but for the parts of a split
    maker: list[int] = []
    sizes: list[int] = []
    tasks: list[list[int]] = []

    def task(sources: list[int], made: list[int]) -> list[int]:
        tasks.append(sources)
        numbers = list(range(len(sizes), len(sizes) + len(made)))
        sizes.extend(made)
        maker.extend([len(tasks) - 1] * len(made))
        reads.extend([] for _ in made)
        for source in sources:
            reads[source].append(len(tasks) - 1)
        return numbers

    level = [task(task([], [3]), [5 + 2 * width])[0] for width in widths]
    for _ in range(height):
        level = [task([block], [4 + 3 * width])[0] for block, width in zip(level, widths, strict=True)]
    parts = [task([block], [2] * width) for block, width in zip(level, widths, strict=True)]
    ends = [[task([part], [1])[0] for part in split] for split in parts]
    task([task(end, [len(end)])[0] for end in ends], [3])
    before: list[set[int]] = []
    for k, sources in enumerate(tasks):
        direct = {maker[s] for s in sources} | ({k - streams} if k >= streams else set())
        before.append(direct.union(*[before[p] for p in direct]))
    sharing = {
        (i, j)
        for i, j in combinations(range(len(sizes)), 2)
        if all(use in before[maker[j]] for use in (maker[i], *reads[i]))
    }
    return sizes, relation(len(sizes), sharing)


def apart(sizes: Sequence[int], conflicts: Sequence[Sequence[int]], offsets: Sequence[int]) -> None:
    for i, others in enumerate(conflicts):
        for j in others:
            assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_towers_on_streams_come_near_their_heaviest_antichain(streams: int) -> None:
    sizes, conflicts = towers(streams, 2, range(21, 9, -1))
    assert len(sizes) > 400
    found = plan_memory_conflicts(sizes, conflicts)
    assert found.peak <= 1.02 * found.lower_bound
    assert found.steps < 2500 * len(sizes)
    apart(sizes, conflicts, found.offsets)
    assert found == plan_memory_conflicts(sizes, conflicts)
    fast = plan_memory_conflicts(sizes, conflicts, effort="fast")
    assert fast.peak > found.peak and fast.lower_bound == found.lower_bound


def test_steps_are_bounded_by_the_number_of_blocks() -> None:
    sizes, conflicts = towers(4, 2, range(21, 9, -1))
    near = [bits_of(others, len(sizes)) for others in conflicts]
    steps = Budget()
    unstacked(sizes, near, steps)
    stacked(sizes, near, clique_bound(sizes, conflicts), steps)
    assert 0 < steps.used <= (STEPS_A_BLOCK + STEPS_A_STACK + 2) * len(sizes)


def test_very_many_blocks_have_greedy_orders_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, conflicts = towers(4, 1, [5, 4, 3])
    found = plan_memory_conflicts(sizes, conflicts)
    monkeypatch.setattr("atc_py.memory.conflicts.MOST", len(sizes) - 1)
    greedy = plan_memory_conflicts(sizes, conflicts)
    assert greedy.peak >= found.peak and greedy.lower_bound == max(sizes) < found.lower_bound
    assert clique_bound(sizes, conflicts) == max(sizes)
    apart(sizes, conflicts, greedy.offsets)
