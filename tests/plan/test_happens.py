"""Happens-before of a region, and which buffers must not share bytes, against all interleavings."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from atc_py.ir.types import DType, Tensor
from atc_py.plan.happens import awaited, clocks, conflicts, predecessors, successors
from atc_py.plan.types import Access, Buffer, Operand, Plan, Space, Static, Task
from atc_py.schedule.events import reduced

TYPE = Tensor(DType.FLOAT32, (4,))


def random_plan(rng: random.Random) -> Plan:
    """A few tasks on streams; task k makes value k in a buffer of its own and reads some earlier ones."""
    n, width = rng.randint(2, 7), rng.randint(1, 3)
    streams = [rng.randrange(width) for _ in range(n)]
    reads = [sorted(rng.sample(range(k), k=min(k, rng.randint(0, 2)))) for k in range(n)]
    events = reduced(streams, reads)
    last = [max([k, *(j for j in range(n) if k in reads[j])]) for k in range(n)]
    tasks = tuple(
        Task(
            k,
            "Add",
            f"t{k}",
            tuple(Operand(v, Access.READ, v, TYPE) for v in reads[k]),
            (Operand(k, Access.WRITE, k, TYPE),),
            stream=streams[k],
            waits=events.waits[k],
            records=events.records[k],
        )
        for k in range(n)
    )
    buffers = tuple(Buffer(k, Space.ARENA, 512, None, -1, k, last[k]) for k in range(n))
    return Plan("t", {}, buffers, (), (), (), (Static(tasks),), streams=width, events=events.count)


def interleavings(tasks: tuple[Task, ...]) -> list[list[int]]:
    """Every order in which the tasks may run."""
    before = predecessors(tasks)
    found: list[list[int]] = []
    stack: list[list[int]] = [[]]
    while stack:
        done = stack.pop()
        if len(done) == len(tasks):
            found.append(done)
        for i in range(len(tasks)):
            if i not in done and all(p in done for p in before[i]):
                stack.append([*done, i])
    return found


def test_successors_turn_predecessors_round() -> None:
    rng = random.Random(0)
    for _ in range(50):
        (region,) = random_plan(rng).regions
        assert isinstance(region, Static)
        before, after = predecessors(region.tasks), successors(region.tasks)
        assert {(i, j) for j, b in enumerate(before) for i in b} == {(i, j) for i, a in enumerate(after) for j in a}


def test_waits_are_for_the_last_record_before_them_or_the_first_after() -> None:
    told = [((), (0,)), ((0,), (0,)), ((0, 1), ()), ((), (1,)), ((), (1,)), ((1, 2), (3,)), ((3, 4), (4,))]
    tasks = [Task(k, "Add", "", (), (), waits=w, records=r) for k, (w, r) in enumerate(told)]
    assert awaited(tasks) == [[], [(0, 0)], [(0, 1), (1, 3)], [], [], [(1, 4), (2, None)], [(3, 5), (4, 6)]]


def test_clocks_say_what_has_run_in_every_interleaving() -> None:
    rng = random.Random(1)
    for _ in range(60):
        (region,) = random_plan(rng).regions
        assert isinstance(region, Static)
        orders = [{i: k for k, i in enumerate(order)} for order in interleavings(region.tasks)]
        numbers = {s: k for k, s in enumerate(dict.fromkeys(t.stream for t in region.tasks))}
        for j, clock in enumerate(clocks(region.tasks)):
            for i in range(len(region.tasks)):
                always = i != j and all(at[i] < at[j] for at in orders)
                assert always == (clock[numbers[region.tasks[i].stream]] >= i and i != j)


def test_streams_without_arena_buffers_have_no_conflicts() -> None:
    plan = random_plan(random.Random(5))
    assert conflicts(replace(plan, buffers=tuple(replace(b, space=Space.HOST) for b in plan.buffers))) == ([], [])


def test_conflicts_are_the_buffers_that_some_interleaving_needs_together() -> None:
    rng = random.Random(2)
    apart = 0
    for _ in range(120):
        plan = random_plan(rng)
        (region,) = plan.regions
        assert isinstance(region, Static)
        members, found = conflicts(plan)
        orders = interleavings(region.tasks)
        users = {b: [k for k, t in enumerate(region.tasks) for o in t.operands() if o.buffer == b] for b in members}
        for a, b in combinations(members, 2):
            spans = []
            for order in orders:
                at = {i: k for k, i in enumerate(order)}
                spans.append([(min(at[k] for k in users[x]), max(at[k] for k in users[x])) for x in (a, b)])
            first = all(one[1] < other[0] for one, other in spans)
            second = all(other[1] < one[0] for one, other in spans)
            assert (b in found[a]) == (a in found[b]) == (not first and not second)
            in_plan_order = plan.buffers[a].last < plan.buffers[b].first or plan.buffers[b].last < plan.buffers[a].first
            apart += in_plan_order and b in found[a]
    assert apart > 20, "some meet only because nothing orders them"
