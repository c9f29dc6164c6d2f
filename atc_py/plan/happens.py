"""Happens-before as a plan says it: streams are in order, events order them, regions are barriers.

    task 0 (stream 0) records 0    task 1 (stream 1) waits 0    task 2 (stream 0)    task 3 (stream 0) waits 1
    successors                     0: [1, 2]   1: [3]   2: [3]   3: []

To run a region's tasks in another order than the plan's, keep for each task how many of its predecessors have not run
(`successors` names them), and take any task of those for which that number is 0; each order made so is one that streams
and events allow. Nothing of another region may come in between: all streams join where a region ends. That is so of
plans whose waits come after their records; for what a device would do with others, see `awaited`.

Two arena buffers whose lifetimes in the plan's order lie apart may still be in use at the same time on two streams.
`conflicts` says which ones must not share bytes: their lifetimes meet, or nothing orders them. What the verifier
proves is computed by its own rules (`flow`), not by these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from atc_py.plan.types import Buffer, Gears, Host, Plan, Region, Space, Static, Task, children

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


def awaited(tasks: Sequence[Task]) -> list[list[tuple[int, int | None]]]:
    """For each of a region's tasks its waits: (event, index of the task whose record ends the wait).

    That is the last record before the wait in the list. A device whose record comes later waits for the first of those;
    None: no task of the region records the event, and the wait has no end. A good plan has neither.
    """
    first: dict[int, int] = {}
    for j, task in enumerate(tasks):
        for event in task.records:
            first.setdefault(event, j)
    found: list[list[tuple[int, int | None]]] = []
    recorded: dict[int, int] = {}
    for j, task in enumerate(tasks):
        found.append([(e, recorded.get(e, first.get(e))) for e in task.waits])
        recorded.update(dict.fromkeys(task.records, j))
    return found


def clocks(tasks: Sequence[Task]) -> list[Clock]:
    """For each of a region's tasks what is done when it begins; streams count in the order of their first tasks."""
    streams = _streams(tasks)
    found: list[Clock] = []
    done: list[Clock] = []  # the same when the task has run
    last: list[Clock] = [(-1,) * len(streams)] * len(streams)  # by stream, of its last task
    recorded: dict[int, int] = {}
    for j, task in enumerate(tasks):
        own = streams[task.stream]
        clock = last[own]
        for event in task.waits:
            if event in recorded:
                clock = tuple(map(max, clock, done[recorded[event]]))
        found.append(clock)
        last[own] = (*clock[:own], j, *clock[own + 1 :])
        done.append(last[own])
        for event in task.records:
            recorded[event] = j
    return found


def _streams(tasks: Sequence[Task]) -> dict[int, int]:
    """Numbers of the streams, in the order of their first tasks."""
    return {stream: k for k, stream in enumerate(dict.fromkeys([task.stream for task in tasks]))}


def conflicts(plan: Plan) -> tuple[list[int], list[list[int]]]:
    """(the arena's buffers, for each of them the numbers in that list of those with which it must not share bytes)."""
    members = [b.id for b in plan.buffers if b.space is Space.ARENA]
    number = {b: k for k, b in enumerate(members)}
    found: list[list[int]] = [[] for _ in members]
    _meeting([plan.buffers[b] for b in members], found)
    for start, tasks in _regions(plan):
        if len({t.stream for t in tasks}) > 1:
            _beside(plan, start, tasks, number, found)
    return members, [sorted(others) for others in found]


def _meeting(buffers: Sequence[Buffer], found: Sequence[list[int]]) -> None:
    """Pairs whose lifetimes meet in the plan's order."""
    order = sorted(range(len(buffers)), key=lambda k: buffers[k].first)
    firsts = [buffers[k].first for k in order]
    live: list[int] = []
    for at, k in enumerate(order):
        live = [j for j in live if buffers[j].last >= firsts[at]]
        found[k] += live
        found[k] += order[at + 1 : bisect_right(firsts, buffers[k].last)]  # those that begin before it ends
        live.append(k)


def _beside(plan: Plan, start: int, tasks: Sequence[Task], number: dict[int, int], found: Sequence[list[int]]) -> None:
    """Pairs of which one's lifetime ends and the other's begins in a region, and which nothing orders there."""
    last, known = _uses(tasks, number)
    ending = [plan.buffers[b] for b in last if plan.buffers[b].last < start + len(tasks)]
    beginning = [plan.buffers[b] for b in last if plan.buffers[b].first >= start]
    if not ending or not beginning:
        return
    ends, begins = np.array([last[b.id] for b in ending]).T, np.array([known[b.id] for b in beginning]).T
    unordered = np.zeros((len(ending), len(beginning)), bool)
    for end, begin in zip(ends, begins, strict=True):  # stream by stream
        unordered |= end[:, None] > begin
    unordered &= np.array([b.last for b in ending])[:, None] < np.array([b.first for b in beginning])
    rows, columns = [number[b.id] for b in ending], [number[b.id] for b in beginning]
    _add(unordered, rows, columns, found)
    _add(unordered.T, columns, rows, found)


def _add(pairs: Any, rows: Sequence[int], columns: Sequence[int], found: Sequence[list[int]]) -> None:
    """To each of `rows` those of `columns` with which the matrix pairs it."""
    partners = np.array(columns)[np.nonzero(pairs)[1]].tolist()
    at = 0
    for row, count in zip(rows, pairs.sum(axis=1).tolist(), strict=True):
        found[row] += partners[at : at + count]
        at += count


def _uses(tasks: Sequence[Task], number: dict[int, int]) -> tuple[dict[int, list[int]], dict[int, Clock]]:
    """For each arena buffer of a region, in its indices: the last use by each stream, what is done before every use."""
    streams = _streams(tasks)
    last: dict[int, list[int]] = {}
    known: dict[int, Clock] = {}
    for j, (task, clock) in enumerate(zip(tasks, clocks(tasks), strict=True)):
        own = streams[task.stream]
        for o in task.operands():
            uses = last.get(o.buffer)
            if uses is None:
                if o.buffer not in number:
                    continue
                uses = last[o.buffer] = [-1] * len(streams)
                known[o.buffer] = clock
            elif uses[own] < 0:  # later, a stream has only more behind it
                known[o.buffer] = tuple(map(min, known[o.buffer], clock))
            uses[own] = j
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
