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

Finding = tuple[str, str, str]
"""A task, what is wrong with it, and what to do."""

_OTHER_EVENT = "give one of the two records an event of its own"


@dataclass
class _Event:
    """An event inside one region: the last task that records it, who waits for that, and who did before."""

    recorder: int
    waits: list[int] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)


def events(plan: Plan, regions: Sequence[Region]) -> Iterator[Finding]:
    """What is wrong with streams and events."""
    lists = [r.tasks if isinstance(r, Static) else (r.task,) for r in regions if isinstance(r, (Static, Host))]
    recorders: dict[int, Task] = {}
    for tasks in lists:
        for task in tasks:
            if not 0 <= task.stream < plan.streams:
                step = _numbers("stream", plan.streams)
                yield show_task(task), f"runs on stream {task.stream} of {plan.streams}", step
            for event in (*task.waits, *task.records):
                if not 0 <= event < plan.events:
                    yield show_task(task), f"names event {event} of {plan.events}", _numbers("event", plan.events)
            for event in task.records:
                recorders.setdefault(event, task)
                if task.records.count(event) > 1:
                    yield show_task(task), f"records event {event} more than once", "take the second record away"
    for tasks in lists:
        if any(t.waits or t.records for t in tasks):
            yield from _region(tasks, recorders)


def _numbers(what: str, count: int) -> str:
    """What to do about a number that the plan does not have."""
    return f"name one of the plan's {what}s, 0 to {count - 1}, or let it have more" if count else f"let it have {what}s"


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
                why, step = _missing(event, j, tasks, recorders)
                yield show_task(task), f"waits for event {event}, {why}", step
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


def _missing(event: int, j: int, tasks: Sequence[Task], recorders: Mapping[int, Task]) -> tuple[str, str]:
    """Why a wait finds no record before it, and what to do."""
    here = next((t for t in tasks[j:] if event in t.records), None)
    if here is None:
        other = recorders.get(event)
        if other is None:
            step = "let the task for whose result it waits record the event, or take the wait away"
            return "which no task records: it would wait for ever", step
        step = "take the wait away: a region begins when all streams of the one before have ended"
        return f"which {show_task(other)} of another region records", step
    if here is tasks[j]:
        step = "let an earlier task record the event: a task records when it has run"
        return "which it records itself: it would wait for ever", step
    later = f"which {show_task(here)} records, and that comes later"
    if here.stream == tasks[j].stream:
        step = "take the wait away: a stream runs its tasks in order"
        return f"{later}; on the same stream it would wait for ever", step
    return later, "let it wait for an event of a task that comes before it: tasks that wait for each other never run"


def _taken(
    tasks: Sequence[Task], task: Task, event: int, known: _Event, before: Mapping[int, int]
) -> Iterator[Finding]:
    """A wait for an event that was recorded before: its earlier waits must be done when the stream comes here."""
    for w in known.earlier:
        if before.get(tasks[w].stream, -1) < w:
            cause = f"waits for event {event}, but could take the record that {show_task(tasks[w])} waits for"
            step = "give the later record an event of its own, or let the later wait come after the earlier one"
            yield show_task(task), f"{cause}: nothing orders the two waits", step


def _again(tasks: Sequence[Task], task: Task, event: int, known: _Event, clock: Mapping[int, int]) -> Iterator[Finding]:
    """An event is recorded again: somebody must have waited for the last record, and be done."""
    recorder = show_task(tasks[known.recorder])
    if not known.waits:
        yield show_task(task), f"records event {event}, which {recorder} records too", _OTHER_EVENT
    for w in known.waits:
        if clock.get(tasks[w].stream, -1) < w:
            cause = f"records event {event}, which {recorder} records too, and {show_task(tasks[w])} may still wait for"
            yield show_task(task), cause, f"{_OTHER_EVENT}, or let the later one come after that wait"
