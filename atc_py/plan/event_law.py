"""The law of events: each wait is for one record, which comes before it, whatever the streams do.

    task 0 (stream 0) records 0    task 1 (stream 1) waits 0    task 2 (stream 1) records 1
    task 3 (stream 0) waits 1, records 0 again                  task 4 (stream 1) waits 0: fine

The last wait for a record takes the event back. An event may be recorded again when its waits are done for certain:
before the record (task 3 has waited for task 2, which runs after task 1), and before the stream of the next wait comes
there (task 4 runs after task 1), for that wait could otherwise take the earlier record for its own. Because every
record comes before its waits in the plan's order, no cycle of waits can be: the plan's order is one way to run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from atc_py.plan.show import show_task
from atc_py.plan.types import Host, Plan, Region, Static, Task

Finding = tuple[str, str]


@dataclass
class _Event:
    """An event inside one region: the last task that records it, who waits for that, and who did before."""

    recorder: int
    waits: list[int] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)


def events(plan: Plan, regions: Sequence[Region]) -> Iterator[Finding]:
    """What is wrong with streams and events: (task, cause)."""
    lists = [r.tasks if isinstance(r, Static) else (r.task,) for r in regions if isinstance(r, (Static, Host))]
    recorders: dict[int, Task] = {}
    for tasks in lists:
        for task in tasks:
            if not 0 <= task.stream < plan.streams:
                yield show_task(task), f"runs on stream {task.stream} of {plan.streams}"
            for event in (*task.waits, *task.records):
                if not 0 <= event < plan.events:
                    yield show_task(task), f"names event {event} of {plan.events}"
            for event in task.records:
                recorders.setdefault(event, task)
                if task.records.count(event) > 1:
                    yield show_task(task), f"records event {event} more than once"
    for tasks in lists:
        if any(t.waits or t.records for t in tasks):
            yield from _region(tasks, recorders)


def _region(tasks: Sequence[Task], recorders: Mapping[int, Task]) -> Iterator[Finding]:
    state: dict[int, _Event] = {}
    done: list[dict[int, int]] = []
    last: dict[int, int] = {}
    for j, task in enumerate(tasks):
        before = done[last[task.stream]] if task.stream in last else {}
        clock = dict(before)
        for event in task.waits:
            known = state.get(event)
            if known is None:
                yield show_task(task), f"waits for event {event}, {_missing(event, j, tasks, recorders)}"
                continue
            yield from _taken(tasks, task, event, known, before)
            known.waits.append(j)
            for stream, at in done[known.recorder].items():
                clock[stream] = max(at, clock.get(stream, -1))
        clock[task.stream] = j
        for event in dict.fromkeys(task.records):
            if event in state:
                yield from _again(tasks, task, event, state[event], clock)
            old = state.get(event)
            state[event] = _Event(j, [], [] if old is None else [*old.earlier, *old.waits])
        done.append(clock)
        last[task.stream] = j


def _missing(event: int, j: int, tasks: Sequence[Task], recorders: Mapping[int, Task]) -> str:
    """Why a wait finds no record before it."""
    here = next((t for t in tasks[j:] if event in t.records), None)
    if here is None:
        other = recorders.get(event)
        if other is None:
            return "which no task records: it would wait for ever"
        return f"which {show_task(other)} of another region records"
    if here is tasks[j]:
        return "which it records itself: it would wait for ever"
    same = "; on the same stream it would wait for ever" if here.stream == tasks[j].stream else ""
    return f"which {show_task(here)} records, and that comes later{same}"


def _taken(
    tasks: Sequence[Task], task: Task, event: int, known: _Event, before: Mapping[int, int]
) -> Iterator[Finding]:
    """A wait for an event that was recorded before: its earlier waits must be done when the stream comes here."""
    for w in known.earlier:
        if before.get(tasks[w].stream, -1) < w:
            cause = f"waits for event {event}, but could take the record that {show_task(tasks[w])} waits for"
            yield show_task(task), f"{cause}: nothing orders the two waits"


def _again(tasks: Sequence[Task], task: Task, event: int, known: _Event, clock: Mapping[int, int]) -> Iterator[Finding]:
    """An event is recorded again: somebody must have waited for the last record, and be done."""
    recorder = show_task(tasks[known.recorder])
    if not known.waits:
        yield show_task(task), f"records event {event}, which {recorder} records too"
    for w in known.waits:
        if clock.get(tasks[w].stream, -1) < w:
            cause = f"records event {event}, which {recorder} records too, and {show_task(tasks[w])} may still wait for"
            yield show_task(task), cause
