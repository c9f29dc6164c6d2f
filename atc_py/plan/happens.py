"""Happens-before as a plan says it: streams are in order, events order them, regions are barriers.

    task 0 (stream 0) records 0    task 1 (stream 1) waits 0    task 2 (stream 0)    task 3 (stream 0) waits 1
    successors                     0: [1, 2]   1: [3]   2: [3]   3: []

To run a region's tasks in another order than the plan's, keep for each task how many of its predecessors have not run
(`successors` names them), and take any task of those for which that number is 0; each order made so is one that streams
and events allow. Nothing of another region may come in between: all streams join where a region ends.

Two arena buffers whose lifetimes in the plan's order lie apart may still be in use at the same time on two streams.
`conflicts` says which ones must not share bytes: their lifetimes meet, or nothing orders them. What the verifier
proves is computed by its own rules (`flow`), not by these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc_py.plan.types import Gears, Host, Plan, Region, Space, Static, Task, children

Clock = tuple[int, ...]
"""For each stream the index of its last task that is done (-1: none)."""


def successors(tasks: Sequence[Task]) -> list[list[int]]:
    """For each of a region's tasks the indices of those that it comes directly before, by its stream or an event.

    A wait is for the last record of its event before it in the list.
    """
    found: list[list[int]] = [[] for _ in tasks]
    for j, before in enumerate(predecessors(tasks)):
        for i in before:
            found[i].append(j)
    return found


def predecessors(tasks: Sequence[Task]) -> list[list[int]]:
    """For each of a region's tasks the indices of those that it comes directly after, in rising order."""
    found: list[list[int]] = []
    last: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for j, task in enumerate(tasks):
        before = {recorded[e] for e in task.waits if e in recorded}
        if task.stream in last:
            before.add(last[task.stream])
        found.append(sorted(before))
        last[task.stream] = j
        recorded.update(dict.fromkeys(task.records, j))
    return found


def clocks(tasks: Sequence[Task]) -> list[Clock]:
    """For each of a region's tasks what is done when it begins; streams count in the order of their first tasks."""
    streams: dict[int, int] = {}
    for task in tasks:
        streams.setdefault(task.stream, len(streams))
    found: list[Clock] = []
    done: list[Clock] = []
    for j, (task, before) in enumerate(zip(tasks, predecessors(tasks), strict=True)):
        clock: Clock = (-1,) * len(streams)
        for i in before:
            clock = tuple(map(max, clock, done[i]))
        found.append(clock)
        own = streams[task.stream]
        done.append((*clock[:own], j, *clock[own + 1 :]))
    return found


def conflicts(plan: Plan) -> tuple[list[int], list[list[int]]]:
    """(the arena's buffers, for each of them the numbers in that list of those with which it must not share bytes)."""
    members = [b.id for b in plan.buffers if b.space is Space.ARENA]
    number = {b: k for k, b in enumerate(members)}
    found: list[set[int]] = [set() for _ in members]
    _meeting(plan, members, found)
    for start, tasks in _regions(plan):
        if len({t.stream for t in tasks}) > 1:
            _beside(plan, start, tasks, number, found)
    return members, [sorted(others) for others in found]


def _meeting(plan: Plan, members: Sequence[int], found: Sequence[set[int]]) -> None:
    """Pairs whose lifetimes meet in the plan's order."""
    spans = [(plan.buffers[b].first, plan.buffers[b].last) for b in members]
    live: list[int] = []
    for k in sorted(range(len(members)), key=lambda k: (spans[k][0], k)):
        live = [j for j in live if spans[j][1] >= spans[k][0]]
        found[k].update(live)
        for j in live:
            found[j].add(k)
        live.append(k)


def _beside(plan: Plan, start: int, tasks: Sequence[Task], number: dict[int, int], found: Sequence[set[int]]) -> None:
    """Pairs of which one's lifetime ends and the other's begins in a region, and which nothing orders there."""
    last, known = _uses(tasks, number)
    if not last:
        return
    buffers = [plan.buffers[b] for b in last]
    before = np.array([b.last for b in buffers])[:, None] < np.array([b.first for b in buffers])[None, :]
    before &= np.array([b.first >= start for b in buffers])[None, :]
    apart = (np.array(list(last.values()))[:, None, :] > np.array(list(known.values()))[None, :, :]).any(axis=2)
    for i, j in np.argwhere(before & apart).tolist():
        a, b = number[buffers[i].id], number[buffers[j].id]
        found[a].add(b)
        found[b].add(a)


def _uses(tasks: Sequence[Task], number: dict[int, int]) -> tuple[dict[int, list[int]], dict[int, Clock]]:
    """For each arena buffer of a region, in its indices: the last use by each stream, what is done before every use."""
    streams: dict[int, int] = {}
    for task in tasks:
        streams.setdefault(task.stream, len(streams))
    last: dict[int, list[int]] = {}
    known: dict[int, Clock] = {}
    for j, (task, clock) in enumerate(zip(tasks, clocks(tasks), strict=True)):
        for o in task.operands():
            if o.buffer in number:
                last.setdefault(o.buffer, [-1] * len(streams))[streams[task.stream]] = j
                known[o.buffer] = tuple(map(min, known.get(o.buffer, clock), clock))
    return last, known


def _regions(plan: Plan) -> list[tuple[int, Sequence[Task]]]:
    """(position of the first task, tasks) of each list of tasks; positions count as `Buffer` says."""
    found: list[tuple[int, Sequence[Task]]] = []
    at = 0
    stack: list[Region | None] = list(reversed(plan.regions))  # None: where a region ends
    while stack:
        region = stack.pop()
        if region is None or isinstance(region, Host):
            at += 1
        elif isinstance(region, Static):
            found.append((at, region.tasks))
            at += len(region.tasks)
        else:
            edge = not isinstance(region, Gears)
            at += edge
            stack += [None] * edge
            stack.extend(reversed([r for body in children(region) for r in body]))
    return found
