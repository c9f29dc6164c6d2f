"""Plans with one thing changed that keeps data from being where it is needed, when it is needed.

    rng = random.Random(1)
    mutant = KINDS["weaken a wait"](rng, plan)          None where the plan has nothing of the kind

Each kind changes the tasks of one outermost `Static` region, or addresses in the arena. Some mutants are harmless: a
second wait is in the way of the same race, an address is free just then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from atc_py.plan.types import Buffer, Plan, Space, Static, Task

Mutate = Callable[[random.Random, Plan], Plan | None]
Edge = tuple[int, int, int]
"""An event, the task that records it, and one that waits for that record."""


def _region(rng: random.Random, plan: Plan) -> int | None:
    found = [k for k, r in enumerate(plan.regions) if isinstance(r, Static) and len(r.tasks) > 1]
    return rng.choice(found) if found else None


def _on_tasks(change: Callable[[random.Random, Plan, list[Task]], Plan | None]) -> Mutate:
    """A kind that changes the list of tasks that it is given, in place; it may return another plan around it."""

    def mutate(rng: random.Random, plan: Plan) -> Plan | None:
        number = _region(rng, plan)
        if number is None:
            return None
        region = plan.regions[number]
        assert isinstance(region, Static)
        tasks = list(region.tasks)
        changed = change(rng, plan, tasks)
        if changed is None or tasks == list(region.tasks):
            return None
        return replace(changed, regions=(*plan.regions[:number], Static(tuple(tasks)), *plan.regions[number + 1 :]))

    return mutate


def edges(tasks: list[Task]) -> list[Edge]:
    """What waits for what: each wait with the last record of its event before it."""
    last: dict[int, int] = {}
    found = []
    for j, t in enumerate(tasks):
        found += [(e, last[e], j) for e in t.waits if e in last]
        last.update(dict.fromkeys(t.records, j))
    return found


def _without(events: tuple[int, ...], event: int) -> tuple[int, ...]:
    return tuple(e for e in events if e != event)


def _drop_event(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    found = edges(tasks)
    if not found:
        return None
    event, early, late = rng.choice(found)
    if rng.random() < 0.5:
        tasks[early] = replace(tasks[early], records=_without(tasks[early].records, event))
    else:
        tasks[late] = replace(tasks[late], waits=_without(tasks[late].waits, event))
    return plan


def _weaken(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    """Wait for a task that comes earlier on the stream of the one that should be waited for."""
    found = [(e, i, j) for e, i, j in edges(tasks) if any(t.stream == tasks[i].stream for t in tasks[:i])]
    if not found:
        return None
    event, early, late = rng.choice(found)
    other = rng.choice([k for k in range(early) if tasks[k].stream == tasks[early].stream])
    tasks[other] = replace(tasks[other], records=(*tasks[other].records, plan.events))
    tasks[late] = replace(tasks[late], waits=(*_without(tasks[late].waits, event), plan.events))
    return replace(plan, events=plan.events + 1)


def _swap(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan:
    k = rng.randrange(len(tasks) - 1)
    j = k + 1 if rng.random() < 0.5 else rng.randrange(len(tasks))
    tasks[k], tasks[j] = replace(tasks[j], id=tasks[k].id), replace(tasks[k], id=tasks[j].id)
    return plan


def _exchange_streams(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    pairs = [(i, j) for j in range(len(tasks)) for i in range(j) if tasks[i].stream != tasks[j].stream]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    tasks[i], tasks[j] = replace(tasks[i], stream=tasks[j].stream), replace(tasks[j], stream=tasks[i].stream)
    return plan


def _cross(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    """Two tasks that wait for each other's streams: for what comes later there, or for what the other one waits for."""
    found = edges(tasks)
    if found and rng.random() < 0.4:
        (e, _, i), (f, _, j) = rng.choice(found), rng.choice(found)
        tasks[i] = replace(tasks[i], waits=(*_without(tasks[i].waits, e), f))
        tasks[j] = replace(tasks[j], waits=(*_without(tasks[j].waits, f), e)) if i != j else tasks[i]
        return plan
    by_stream: dict[int, list[int]] = {}
    for k, t in enumerate(tasks):
        by_stream.setdefault(t.stream, []).append(k)
    long = [s for s, found_on in by_stream.items() if len(found_on) > 1]
    if len(long) < 2:
        return None
    one, other = rng.sample(long, 2)
    (a, b), (c, d) = (sorted(rng.sample(by_stream[s], 2)) for s in (one, other))
    for early, late, event in ((a, d, plan.events), (c, b, plan.events + 1)):
        tasks[early] = replace(tasks[early], waits=(*tasks[early].waits, event))
        tasks[late] = replace(tasks[late], records=(*tasks[late].records, event))
    return replace(plan, events=plan.events + 2)


def _reuse(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    """Two events become one."""
    events = sorted({e for t in tasks for e in t.records})
    if len(events) < 2:
        return None
    one, other = rng.sample(events, 2)
    for k, t in enumerate(tasks):
        waits, records = (tuple(dict.fromkeys(one if e == other else e for e in es)) for es in (t.waits, t.records))
        tasks[k] = replace(t, waits=waits, records=records)
    return plan


def _alias(rng: random.Random, plan: Plan, tasks: list[Task]) -> Plan | None:
    """All that lies in one buffer is put into another that is needed at the same time."""
    spans, nbytes = lifetimes(plan, tasks), [b.nbytes for b in plan.buffers]
    pairs = [
        (a, b)
        for a, (first, last) in spans.items()
        for b, (start, end) in spans.items()
        if a != b and first <= end and start <= last and nbytes[a] == nbytes[b]
    ]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    for k, t in enumerate(tasks):
        inputs = tuple(o and replace(o, buffer=other if o.buffer == one else o.buffer) for o in t.inputs)
        outputs = tuple(replace(o, buffer=other if o.buffer == one else o.buffer) for o in t.outputs)
        tasks[k] = replace(t, inputs=inputs, outputs=outputs)
    return plan


def lifetimes(plan: Plan, tasks: list[Task]) -> dict[int, tuple[int, int]]:
    """The first and the last of the tasks that use each of the arena's buffers."""
    found: dict[int, tuple[int, int]] = {}
    for k, t in enumerate(tasks):
        for o in t.operands():
            if plan.buffers[o.buffer].space is Space.ARENA:
                found[o.buffer] = (found.get(o.buffer, (k, k))[0], k)
    return found


def _at(plan: Plan, number: int, offset: int) -> Plan | None:
    """The plan with one buffer elsewhere; the arena may grow with it."""
    buffers = list(plan.buffers)
    b = buffers[number]
    if b.offset == offset or not isinstance(b.nbytes, int) or plan.arena is None:
        return None
    buffers[number] = replace(b, offset=offset)
    return replace(plan, buffers=tuple(buffers), arena=max(plan.arena, offset + b.nbytes))


def _placed(plan: Plan) -> Iterator[Buffer]:
    yield from (b for b in plan.buffers if b.space is Space.ARENA and b.offset is not None)


def _move(rng: random.Random, plan: Plan) -> Plan | None:
    """A buffer goes to some other address, mostly an aligned one."""
    found = list(_placed(plan))
    if not found or plan.arena is None:
        return None
    offset = 512 * rng.randrange(plan.arena // 512 + 1) + rng.choice([0] * 9 + [256])
    return _at(plan, rng.choice(found).id, offset)


def _shrink(rng: random.Random, plan: Plan) -> Plan | None:
    """A buffer is given up too early: another takes its address that is used before it is done with, or just then."""
    number = _region(rng, plan)
    region = None if number is None else plan.regions[number]
    if not isinstance(region, Static):
        return None
    spans = lifetimes(plan, list(region.tasks))
    found = [b.id for b in _placed(plan) if b.id in spans]
    pairs = [(a, b) for a in found for b in found if a != b and spans[a][0] <= spans[b][0] <= spans[a][1]]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    offset = plan.buffers[one].offset
    return None if offset is None else _at(plan, other, offset)


KINDS: dict[str, Mutate] = {
    "drop an event": _on_tasks(_drop_event),
    "weaken a wait": _on_tasks(_weaken),
    "move an address": _move,
    "shrink a lifetime": _shrink,
    "swap two tasks": _on_tasks(_swap),
    "exchange two streams": _on_tasks(_exchange_streams),
    "alias two live tensors": _on_tasks(_alias),
    "cross two waits": _on_tasks(_cross),
    "use one event for two": _on_tasks(_reuse),
}
"""All kinds by name."""
