"""Events against brute force: the transitive reduction, and ids that no interleaving can confuse."""

from __future__ import annotations

import random
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.schedule.events import Events, reduced

Problem = tuple[list[int], list[list[int]]]


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> Problem:
    """Streams and needs of a few tasks."""
    n = draw(st.integers(1, most))
    width = draw(st.integers(1, 4))
    streams = [draw(st.integers(0, width - 1)) for _ in range(n)]
    needs = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(n)]
    return streams, needs


def closure(n: int, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """All pairs of which the first comes before the second (S. Warshall)."""
    found = set(edges)
    for k, i, j in product(range(n), range(n), range(n)):
        if (i, k) in found and (k, j) in found:
            found.add((i, j))
    return found


def chains(streams: list[int]) -> set[tuple[int, int]]:
    """The order of each stream, step by step."""
    last: dict[int, int] = {}
    found = set()
    for i, s in enumerate(streams):
        if s in last:
            found.add((last[s], i))
        last[s] = i
    return found


@settings(max_examples=400, derandomize=True, deadline=None)
@given(problem=problems())
def test_events_are_the_transitive_reduction(problem: Problem) -> None:
    streams, needs = problem
    n = len(streams)
    order = chains(streams)
    wanted = {(p, i) for i, before in enumerate(needs) for p in before}
    everything = closure(n, order | wanted)
    # An edge of an order is in its reduction when nothing lies between its ends.
    cover = {(a, b) for a, b in everything if not any((a, k) in everything and (k, b) in everything for k in range(n))}
    found = {(p, i) for i, before in enumerate(reduced(streams, needs).after) for p in before}
    assert found == cover - order
    assert closure(n, order | found) == everything
    for edge in found:
        assert closure(n, order | (found - {edge})) != everything, "each event is needed"


def run(streams: list[int], events: Events, rng: random.Random) -> list[int]:
    """One interleaving on streams that know nothing but flags: a record sets one, a wait takes it back.

    Waits of one task are taken one by one, as soon as they can be. Returns the tasks in the order in which they ran;
    fails when a record finds its flag set, or a wait takes another record than that of the task that it is for.
    """
    flags: dict[int, int] = {}
    left = {s: [i for i, t in enumerate(streams) if t == s] for s in set(streams)}
    waiting = {i: list(zip(events.waits[i], sorted(events.after[i]))) for i in range(len(streams))}
    recorder = {(e, i): p for i in range(len(streams)) for e, p in _pairs(events, i)}
    ran: list[int] = []
    while any(left.values()):
        steps = [
            s for s, tasks in left.items() if tasks and (not waiting[tasks[0]] or waiting[tasks[0]][0][0] in flags)
        ]
        assert steps, "a deadlock"
        s = rng.choice(steps)
        i = left[s][0]
        if waiting[i]:
            event, _ = waiting[i].pop(0)
            assert flags.pop(event) == recorder[event, i], "a wait took another record"
            continue
        left[s].pop(0)
        ran.append(i)
        for event in events.records[i]:
            assert event not in flags, "a record found its flag set"
            flags[event] = i
    assert not flags, "every record is waited for"
    return ran


def _pairs(events: Events, i: int) -> list[tuple[int, int]]:
    """(event, the task that records it) of each wait of task `i`: the last record before it in the plan's order."""
    found = []
    for event in events.waits[i]:
        found.append((event, max(p for p in range(i) if event in events.records[p])))
    return found


@settings(max_examples=250, derandomize=True, deadline=None)
@given(problem=problems(14), seed=st.integers(0, 1 << 20))
def test_no_interleaving_confuses_reused_ids(problem: Problem, seed: int) -> None:
    streams, needs = problem
    events = reduced(streams, needs)
    rng = random.Random(seed)
    for _ in range(6):
        position = {i: k for k, i in enumerate(run(streams, events, rng))}
        assert all(position[p] < position[i] for i, before in enumerate(needs) for p in before)


def test_ids_are_used_again() -> None:
    """Two streams that hand work back and forth need two ids, however long they do."""
    n = 40
    events = reduced([i % 2 for i in range(n)], [[i - 1] if i else [] for i in range(n)])
    assert sum(map(len, events.after)) == n - 1
    assert events.count == 2


def test_an_id_that_may_still_be_waited_for_is_not_used_again() -> None:
    """Stream 0 never learns how far stream 1 is."""
    events = reduced([0, 1, 0, 1, 0, 1], [[], [0], [], [2], [], [4]])
    assert events.count == 3
