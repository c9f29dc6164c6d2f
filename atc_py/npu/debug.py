"""Debug execution: every byte of the arena knows who wrote it, and tasks may run in any order that the plan allows.

    task 3 'relu' writes arena [512, 1024) as %7        the bytes are marked: write 12, task 3, %7
    task 5 'add' reads arena [512, 1024), means %4      E40006: task 'add' reads %4 at arena [512, 1024), where task
                                                        'relu' wrote %7

A buffer that nobody needs any more is poisoned with 0xFF (NaN in every float type), and so is a task's workspace before
and after it, and the whole arena before a run: a kernel that reads what it should not gets NaN, and a read that the
plan names is refused before it happens. What a value's alias holds counts as the value. With a seed, the tasks of a
region run in an order drawn among those that streams and events allow; the results must not change by a bit. Where no
task can go on, the run stops and says what each stream waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from atc_py.errors import AtcError, Problems, error
from atc_py.npu.device import BoundPlan, Context
from atc_py.npu.memory import Array, Placed
from atc_py.plan.happens import awaited
from atc_py.plan.show import show_task
from atc_py.plan.types import Host, Operand, Plan, Region, Space, Static, Task, children, own_operands

POISON = 0xFF
"""What freed bytes are filled with."""
NOBODY = 0
"""The number of the write before all writes."""
SCRATCH = -2
"""The value of what a task leaves in its workspace."""


@dataclass(frozen=True)
class _Write:
    """A write: by which task or region, of which value (its root), into which buffer; `freed`: given up since."""

    by: str
    value: int
    buffer: int
    freed: bool = False


class DebugContext(Context):
    """A context that checks each access to the arena; `seed` draws the order of tasks (None: the plan's order)."""

    def __init__(self, bound: BoundPlan, seed: int | None = None, memory: bool = True) -> None:
        super().__init__(bound)
        self._memory = memory
        self._random = None if seed is None else np.random.Generator(np.random.Philox(seed))
        self._root = _roots(self.plan)
        self._unit_of, self._of_unit = _units(self.plan)
        self._marks: Array = np.zeros(self.spaces.arena.nbytes if memory else 0, np.int32)
        self._writes: list[_Write] = []
        self._unit = -1
        self._left: dict[int, int] = {}

    def run(self, inputs: Sequence[Any], outputs: list[Any], number: int = 0) -> list[Any]:
        """Run as `Context.run` does, on a poisoned arena. Raises `AtcError` E40006 at the first wrong read."""
        self._writes = [_Write("nobody", -1, -1)]
        self._unit = -1
        self._left = dict(Counter(b for buffers in self._of_unit for b in buffers))
        if self._memory:
            self._marks[:] = NOBODY
            self.spaces.arena[:] = POISON
        return super().run(inputs, outputs, number)

    def order(self, tasks: Sequence[Task]) -> Iterable[Task]:
        """The plan's order, or one that is drawn among all that streams and events allow.

        Raises `AtcError` E40007, when those that can run have run, where tasks wait for each other or for nobody.
        """
        return _in_turn(tasks, self._random)

    def execute(self, task: Task) -> None:
        """Check what the task reads, run it, mark what it wrote, and free what nobody needs any more."""
        if not self._memory:
            super().execute(task)
            return
        unit, alone = self._unit_of[task.id]
        if self._unit not in (-1, unit):
            self._finish(self._unit)  # a loop or a branch that has ended
            self._unit = -1
        by = f"task {task.id} '{task.name}'"
        for operand in task.inputs:
            if operand is not None:
                self._check(operand, by)
        self._poison_workspace(task, by)  # of a buffer that a loop still needs, or of the execution before
        super().execute(task)
        for operand in task.outputs:
            self._mark(operand, by)
        self._poison_workspace(task, by)
        if alone:
            self._finish(unit)
        else:
            self._unit = unit

    def load(self, operand: Operand) -> Any:
        """What an If, a Loop or a Scan reads, checked."""
        if self._memory:
            self._check(operand, "the region around it")
        return super().load(operand)

    def save(self, operand: Operand, value: Any, by: str) -> None:
        """What an If, a Loop or a Scan writes, marked."""
        buffer = self.plan.buffers[operand.buffer]
        if self._memory and buffer.space is Space.ARENA:
            placed = self.bound.binder.place(operand, self.env)
            assert placed is not None
            view = placed.view(self.spaces.arena)
            if view is not value:
                view[...] = value
            self._mark(operand, f"'{by}'")
            return
        super().save(operand, value, by)

    def made_workspace(self, nbytes: int) -> Array:
        """A workspace that holds nothing that means anything."""
        made = super().made_workspace(nbytes)
        made[:] = POISON
        return made

    def renamed(self, source: Operand, target: Operand) -> None:
        """What lies in a place counts as another value from now on."""
        if self._memory:
            self._mark(target, "the region around it")

    # -- marks -------------------------------------------------------------------------------------------------

    def _marked(self, operand: Operand) -> tuple[Array, Placed] | None:
        """The marks of an operand's bytes; None for what does not lie in the arena."""
        if self.plan.buffers[operand.buffer].space is not Space.ARENA:
            return None
        placed = self.bound.binder.place(operand, self.env)
        if placed is None or 0 in placed.shape:
            return None
        size = placed.dtype.itemsize
        strides = placed.strides or _packed(placed.shape, size)
        width = self._marks.itemsize
        return np.ndarray(
            (*placed.shape, size), self._marks.dtype, self._marks, placed.offset * width,
            (*(s * width for s in strides), width),
        ), placed  # fmt: skip

    def _mark(self, operand: Operand, by: str) -> None:
        found = self._marked(operand)
        if found is not None:
            found[0][...] = len(self._writes)
            self._writes.append(_Write(by, self._root.get(operand.value, operand.value), operand.buffer))

    def _poison_workspace(self, task: Task, by: str) -> None:
        """Nothing that a workspace holds means anything before and after its task."""
        found = None if task.workspace is None else self._marked(task.workspace)
        if found is not None:
            marks, placed = found
            marks[...] = len(self._writes)
            low, high = placed.span
            self.spaces.arena[low:high] = POISON
            self._writes.append(_Write(by, SCRATCH, task.workspace.buffer if task.workspace else -1, True))

    def _check(self, operand: Operand, by: str) -> None:
        found = self._marked(operand)
        if found is None:
            return
        wanted = self._root.get(operand.value, operand.value)
        wrong = [w for w in map(self._writes.__getitem__, _numbers(found[0])) if w.value != wanted or w.freed]
        if wrong:
            low, high = found[1].span
            what = "are given up" if wrong[0].freed else f"are %{wrong[0].value} of {wrong[0].by}"
            if wrong[0].value < 0:
                what = f"were the workspace of {wrong[0].by}" if wrong[0].value == SCRATCH else "nobody has written"
            cause = f"reads %{operand.value} at arena [{low}, {high}), bytes that {what}"
            raise error("E40006", by, cause, "verify the file; if it passes, report it")

    # -- the end of lifetimes ----------------------------------------------------------------------------------

    def _finish(self, unit: int) -> None:
        """Free the buffers whose last user this was."""
        if unit < 0:
            return
        for buffer in self._of_unit[unit]:
            self._left[buffer] -= 1
            if not self._left[buffer]:
                self._free(buffer)

    def _free(self, buffer: int) -> None:
        start, nbytes = self.bound.binding.offsets[buffer], self.bound.binding.sizes[buffer]
        marks = self._marks[start : start + nbytes]
        mine = [k for k in _numbers(marks) if self._writes[k].buffer == buffer]
        held = np.isin(marks, mine)
        self.spaces.arena[start : start + nbytes][held] = POISON
        for k in mine:
            w = self._writes[k]
            self._writes[k] = _Write(w.by, w.value, w.buffer, True)


def _numbers(marks: Array) -> list[int]:
    """The different marks in ascending order: mostly there is one, which is seen without sorting."""
    if not marks.size:
        return []
    low, high = int(marks.min()), int(marks.max())
    return [low] if low == high else [int(k) for k in np.unique(marks)]


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides in bytes of an array in C order."""
    strides = [itemsize]
    for d in reversed(shape[1:]):
        strides.append(strides[-1] * d)
    return tuple(reversed(strides)) if shape else ()


def _roots(plan: Plan) -> dict[int, int]:
    """The value whose bytes each alias names in the end."""
    source = {a.value: a.source for a in plan.aliases}
    found = {}
    for value in source:
        root = value
        while root in source:
            root = source[root]
        found[value] = root
    return found


def _units(plan: Plan) -> tuple[dict[int, tuple[int, bool]], list[list[int]]]:
    """(task → its unit, and whether it is all of it; the arena buffers of each unit).

    A unit is a task outside of all control flow, or a whole If, Loop, Scan or Gears: what is needed after it is needed
    after all of it.
    """
    units: dict[int, tuple[int, bool]] = {}
    buffers: list[list[int]] = []

    def unit(operands: Iterator[Operand]) -> int:
        used = {o.buffer: None for o in operands if plan.buffers[o.buffer].space is Space.ARENA}
        buffers.append(list(used))
        return len(buffers) - 1

    for region in plan.regions:
        if isinstance(region, Static):
            for task in region.tasks:
                units[task.id] = (unit(task.operands()), True)
        elif isinstance(region, Host):
            units[region.task.id] = (unit(region.task.operands()), True)
        else:
            inner = list(_inner_tasks(region))
            number = unit(o for o in (*_inner_operands(region), *(o for t in inner for o in t.operands())))
            units.update((t.id, (number, False)) for t in inner)
    return units, buffers


def _inner_tasks(region: Region) -> Iterator[Task]:
    for body in children(region):
        for inner in body:
            if isinstance(inner, Static):
                yield from inner.tasks
            elif isinstance(inner, Host):
                yield inner.task
            else:
                yield from _inner_tasks(inner)


def _inner_operands(region: Region) -> Iterator[Operand]:
    yield from own_operands(region)
    for body in children(region):
        for inner in body:
            if not isinstance(inner, (Static, Host)):
                yield from _inner_operands(inner)


def _in_turn(tasks: Sequence[Task], random: np.random.Generator | None) -> Iterator[Task]:
    """The tasks in an order that streams and events allow: a drawn one, else the one nearest to the plan's.

    Raises `AtcError` E40007 when tasks are left and each waits for what has not run.
    """
    waits = awaited(tasks)
    after: list[list[int]] = [[] for _ in tasks]
    waiting = [0] * len(tasks)
    last: dict[int, int] = {}
    for j, task in enumerate(tasks):
        before: dict[int | None, None] = dict.fromkeys(recorder for _, recorder in waits[j])  # None never runs
        if task.stream in last:
            before[last[task.stream]] = None
        waiting[j] = len(before)
        for i in before:
            if i is not None:
                after[i].append(j)
        last[task.stream] = j
    ready = [j for j, n in enumerate(waiting) if not n]  # in drawn orders any list, else a heap
    done: set[int] = set()
    while ready:
        j = heappop(ready) if random is None else ready.pop(int(random.integers(len(ready))))
        yield tasks[j]
        done.add(j)
        for k in after[j]:
            waiting[k] -= 1
            if not waiting[k]:
                if random is None:
                    heappush(ready, k)
                else:
                    ready.append(k)
    if len(done) < len(tasks):
        raise _stuck(tasks, waits, done)


def _stuck(tasks: Sequence[Task], waits: Sequence[Sequence[tuple[int, int | None]]], done: set[int]) -> AtcError:
    """The error when no task can go on: what the first task that is left on each stream waits for."""
    heads: dict[int, int] = {}
    for j, task in enumerate(tasks):
        if j not in done:
            heads.setdefault(task.stream, j)
    problems, step = Problems(), "the device would hang: run atc verify on the file"
    for stream, j in heads.items():
        for event, recorder in waits[j]:
            if recorder in done:
                continue
            by = "no task records" if recorder is None else f"{show_task(tasks[recorder])} records"
            cause = f"no task can go on: it waits for event {event} on stream {stream}, which {by}"
            late = "" if recorder is None else f" on stream {tasks[recorder].stream}, and that has not run"
            problems.add("E40007", show_task(tasks[j]), cause + late, step)
    return AtcError(*problems)
