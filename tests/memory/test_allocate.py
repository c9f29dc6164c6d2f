"""The allocator: live blocks never overlap, the peak is honest, and long chains are quick."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atc_py.memory import EFFORTS, Assignment, Block, Effort, lower_bound, plan_memory
from atc_py.memory.greedy import area, by_order, by_time, by_time_reversed, conflicts_of, size
from atc_py.memory.problem import Budget
from atc_py.memory.reduce import company_count, fill, join, peel, span_count
from tests.memory.checker import check, most_live

SPANS = st.tuples(st.integers(0, 12), st.integers(0, 6), st.sampled_from([0, 1, 2, 3, 5, 8, 512, 1024]))
BLOCKS = st.lists(SPANS.map(lambda s: Block(s[0], s[0] + s[1], s[2])), max_size=14)
OVERLAPPING = [(0, 4, 3), (2, 6, 3)]


def triples(blocks: list[Block]) -> list[tuple[int, int, int]]:
    return [(b.lower, b.upper, b.size) for b in blocks]


def checked(blocks: list[Block], found: Assignment) -> None:
    """The plan is one, its peak is the top of its highest block, and what it says of the bound is so."""
    check(triples(blocks), found.offsets, found.peak)
    assert found.peak == max((o + b.size for o, b in zip(found.offsets, blocks)), default=0)
    assert found.lower_bound == most_live(triples(blocks)) <= found.peak
    assert found.optimal or found.peak > found.lower_bound


def test_the_checker_sees_what_is_wrong() -> None:
    check(OVERLAPPING, [0, 3], 6)
    for offsets, peak in (([0, 2], 6), ([0, 3], 5), ([-1, 3], 6), ([0], 6), ([0, 0], 6)):
        with pytest.raises(AssertionError):
            check(OVERLAPPING, offsets, peak)


@given(BLOCKS)
@example([])
@example([Block(0, 0, 0)])
@example([Block(0, 2, 512), Block(1, 3, 1024), Block(2, 4, 512)])
def test_live_blocks_never_overlap(blocks: list[Block]) -> None:
    conflicts = conflicts_of(blocks, Budget())
    plans = [by_time(blocks, Budget()), by_time_reversed(blocks, Budget())]
    plans += [by_order(blocks, conflicts, key, Budget()) for key in (size, area)]
    for offsets, peak in plans:
        living = [(o, b) for o, b in zip(offsets, blocks) if b.lower < b.upper]
        check(triples([b for _, b in living]), [o for o, _ in living], peak)
    for effort in ("fast", "default"):
        found = plan_memory([b for b in blocks if b.lower < b.upper], effort=effort)
        checked([b for b in blocks if b.lower < b.upper], found)
    assert plan_memory(blocks, effort="default") == plan_memory(blocks, effort="default")


@given(BLOCKS)
def test_the_bound_is_the_greatest_sum_of_live_blocks(blocks: list[Block]) -> None:
    assert lower_bound(blocks) == most_live(triples(blocks))


@given(BLOCKS, st.sampled_from([1, 2, 32, 512]))
def test_offsets_are_aligned(blocks: list[Block], alignment: int) -> None:
    found = plan_memory(blocks, alignment=alignment)
    rounded = [(b.lower, b.upper, -(-b.size // alignment) * alignment) for b in blocks if b.lower < b.upper]
    check(rounded, [o for o, b in zip(found.offsets, blocks) if b.lower < b.upper], found.peak)
    assert all(o % alignment == 0 for o in found.offsets) and found.lower_bound == most_live(rounded)


def test_the_worked_example() -> None:
    """Of the module's page: a and c share bytes, the peak is the bound."""
    found = plan_memory([Block(0, 2, 512), Block(1, 3, 1024), Block(2, 4, 512)])
    assert found.peak == found.lower_bound == 1536 and found.optimal
    assert found.offsets == (0, 512, 0)


def test_a_capacity_ends_the_work() -> None:
    blocks = network(3, 300)
    best, enough = plan_memory(blocks), plan_memory(blocks, capacity=2 * lower_bound(blocks))
    assert enough.steps < best.steps and best.peak <= enough.peak <= 2 * best.lower_bound


def network(seed: int, count: int) -> list[Block]:
    """Blocks that live for one to five positions, a few for long."""
    rng = random.Random(seed)
    blocks = []
    for k in range(count):
        length = rng.choice([1, 1, 1, 2, 3, 5]) if rng.random() < 0.97 else rng.randint(20, 60)
        blocks.append(Block(k, k + length + 1, 512 * rng.randint(1, 400)))
    return blocks


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_network_like_plan_meets_the_bound(seed: int) -> None:
    blocks = network(seed, 400)
    found = plan_memory(blocks, alignment=512)
    checked(blocks, found)
    assert found.peak == found.lower_bound
    assert plan_memory(blocks, effort="fast").peak <= 1.17 * found.lower_bound


@pytest.mark.parametrize("step", [lambda k: 512, lambda k: 512 * (1 + k % 17)])
def test_a_chain_of_10000_blocks_is_quick(step: object) -> None:
    blocks = [Block(k, k + 2, step(k)) for k in range(10_000)]  # type: ignore[operator]
    start = time.process_time()
    found = plan_memory(blocks, effort="fast")
    assert time.process_time() - start < 2
    check(triples(blocks), found.offsets, found.peak)
    assert found.peak == found.lower_bound


@pytest.mark.parametrize(
    ("blocks", "alignment", "said"),
    [
        ([Block(0, 1, -1)], 1, "block 0 has a size of -1"),
        ([Block(0, 1, 1), Block(2, 1, 1)], 1, "block 1 .* from 2 to 1"),
        ([], 0, "alignment"),
    ],
)
def test_what_cannot_be_is_said(blocks: list[Block], alignment: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_memory(blocks, alignment=alignment)


@given(BLOCKS)
def test_a_plan_of_joined_blocks_is_a_plan_of_their_parts(blocks: list[Block]) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    joined = join(living)
    assert lower_bound(joined.blocks) == lower_bound(living) and len(joined.blocks) <= len(living)
    offsets, peak = by_time(joined.blocks, Budget())
    check(triples(living), joined.expand(offsets), peak)


def test_joining_takes_guillotine_cuts_back() -> None:
    """Stacks in chains in stacks become one."""
    blocks = [Block(0, 4, 3), Block(0, 4, 2), Block(4, 9, 5), Block(0, 9, 1)]
    assert join(blocks).blocks == [Block(0, 9, 6)]


@given(BLOCKS, st.integers(0, 40))
def test_what_is_peeled_fits_afterwards(blocks: list[Block], room: int) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    capacity = lower_bound(living) + room
    kept, later = peel(living, capacity)
    assert sorted(kept + later) == list(range(len(living)))
    offsets = [0] * len(living)
    placed, peak = by_time([living[i] for i in kept], Budget())
    for i, offset in zip(kept, placed):
        offsets[i] = offset
    fill(living, kept, offsets, later, Budget())
    check(triples(living), offsets, max(peak, capacity))


@given(BLOCKS)
def test_counts_of_pairs_and_spans(blocks: list[Block]) -> None:
    living = [b for b in blocks if b.size and b.lower < b.upper]
    assert company_count(living) == sum(map(len, conflicts_of(living, Budget()))) // 2
    times = sorted({t for b in living for t in (b.lower, b.upper)})
    assert span_count(living) == sum(times.index(b.upper) - times.index(b.lower) for b in living)


@pytest.mark.parametrize("effort", EFFORTS)
def test_large_numbers_stay_exact(effort: Effort) -> None:
    unit = (1 << 45) + 1
    blocks = [Block(0, 2, unit), Block(1, 3, 2 * unit), Block(2, 4, unit + 7), Block(-(1 << 60), 1 << 60, 5)]
    found = plan_memory(blocks, effort=effort)
    checked(blocks, found)
    assert found.peak == 3 * unit + 12
