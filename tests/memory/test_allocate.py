"""The allocator: live blocks never overlap, the peak is honest, and long chains are quick."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atc_py.memory import Block, lower_bound, plan_memory
from atc_py.memory.allocate import _by_size, _by_time

SPANS = st.tuples(st.integers(0, 12), st.integers(0, 6), st.sampled_from([0, 1, 2, 3, 5, 8, 512, 1024]))
BLOCKS = st.lists(SPANS.map(lambda s: Block(s[0], s[0] + s[1], s[2])), max_size=14)


def check(blocks: list[Block], offsets: list[int], peak: int) -> None:
    """No two live blocks share a unit, none lies below 0 or above the peak."""
    assert len(offsets) == len(blocks)
    for i, (a, at) in enumerate(zip(blocks, offsets)):
        assert at >= 0 and at + a.size <= peak
        for b, other in zip(blocks[:i], offsets[:i]):
            live_together = a.first <= b.last and b.first <= a.last
            assert not live_together or at + a.size <= other or other + b.size <= at, (a, at, b, other)


def live_at(blocks: list[Block], position: int) -> int:
    return sum(b.size for b in blocks if b.first <= position <= b.last)


@given(BLOCKS)
@example([])
@example([Block(0, 0, 0)])
@example([Block(0, 1, 512), Block(1, 2, 1024), Block(2, 3, 512)])
def test_live_blocks_never_overlap(blocks: list[Block]) -> None:
    for plan in (plan_memory, _by_time, _by_size):
        offsets, peak = plan(blocks)
        check(blocks, offsets, peak)
        assert peak == max((at + b.size for at, b in zip(offsets, blocks)), default=0)
        assert plan(blocks) == (offsets, peak)


@given(BLOCKS)
def test_the_bound_is_the_greatest_sum_of_live_blocks(blocks: list[Block]) -> None:
    assert lower_bound(blocks) == max((live_at(blocks, p) for p in range(20)), default=0)
    assert plan_memory(blocks)[1] >= lower_bound(blocks)


@given(BLOCKS)
def test_the_better_of_the_orders_is_taken(blocks: list[Block]) -> None:
    assert plan_memory(blocks)[1] == min(_by_time(blocks)[1], _by_size(blocks)[1])


def test_the_worked_example() -> None:
    """Of the module's page: a and c share bytes, the peak is the bound."""
    blocks = [Block(0, 1, 512), Block(1, 2, 1024), Block(2, 3, 512)]
    offsets, peak = plan_memory(blocks)
    assert peak == lower_bound(blocks) == 1536
    assert offsets[0] == offsets[2]


def test_a_network_like_plan_is_near_the_bound() -> None:
    """Blocks that live for one to five positions, a few for long: within 15% of what no plan can beat."""
    rng = random.Random(7)
    blocks = []
    for k in range(400):
        length = rng.choice([1, 1, 1, 2, 3, 5]) if rng.random() < 0.97 else rng.randint(20, 60)
        blocks.append(Block(k, k + length, 512 * rng.randint(1, 400)))
    offsets, peak = plan_memory(blocks)
    check(blocks, offsets, peak)
    assert peak <= 1.15 * lower_bound(blocks)


@pytest.mark.parametrize("size", [lambda k: 512, lambda k: 512 * (1 + k % 17)])
def test_a_chain_of_10000_blocks_is_quick(size: object) -> None:
    blocks = [Block(k, k + 1, size(k)) for k in range(10_000)]  # type: ignore[operator]
    start = time.perf_counter()
    offsets, peak = plan_memory(blocks)
    assert time.perf_counter() - start < 2
    assert peak <= 2 * lower_bound(blocks)
    for k in range(1, len(blocks)):
        a, b = (offsets[k - 1], blocks[k - 1].size), (offsets[k], blocks[k].size)
        assert a[0] + a[1] <= b[0] or b[0] + b[1] <= a[0]
