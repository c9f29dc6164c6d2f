"""TASK_INFO: the plan's tasks as GE's ModelTaskDef: a KernelDef a task, and around them what orders and chooses them.

    task 0 (stream 0) records 0          KERNEL 0 on 0, EVENT_RECORD 0 on 0
    task 1 (stream 1) waits 0            EVENT_WAIT 0 on 1, KERNEL 1 on 1
    If %2 { task 2 } { task 3 }          SWITCH_BY_INDEX 0 of 2, LABEL_SET 1, KERNEL 2, GOTO 2, LABEL_SET 0, KERNEL 3,
                                         LABEL_SET 2

`args` is the kernel's argument block as a device would get it: for each operand in order (inputs, outputs, workspace)
a little-endian u64 address in its space and, in `args_format`, which space it is: `weights`, `arena`, `input0`, …

A switch jumps to the label `label_id` plus the value that it reads: an If's condition (label 0: the else branch), 1
while a loop goes on, the number of a gear. What a loop carries is copied by MEMCPY_ASYNC where it does not lie in its
place already. Where a region ends all its streams join stream 0, and the next one's leave it: these events have the
ids after the plan's own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from atc_py.emit.attrs import fields
from atc_py.emit.wire import BYTES, VARINTS, nested, number, tag, text, varint
from atc_py.ir.dims import Dim
from atc_py.plan.types import Carried, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task
from om_format import TaskType
from om_format.proto.task_pb2 import (
    KernelContext,
    KernelDef,
    LabelGotoExDef,
    LabelSetDef,
    LabelSwitchByIndexDef,
    MemcpyAsyncDef,
    ModelTaskDef,
    TaskDef,
)

UNBOUND = (1 << 64) - 1
"""The address of an operand whose place is decided by `bind`, or that is absent."""
NO_TASK = (1 << 32) - 1
"""`op_index` of entries that belong to no task of the plan."""
_WEIGHTS, _ARENA = Space.WEIGHTS, Space.ARENA  # of nearly all operands
_IN_WEIGHTS, _IN_ARENA = _WEIGHTS.value, _ARENA.value

_MODEL, _ENTRY, _KERNEL, _CONTEXT, _COPY = map(
    fields, (ModelTaskDef, TaskDef, KernelDef, KernelContext, MemcpyAsyncDef)
)
_LABEL, _GOTO, _SWITCH = map(fields, (LabelSetDef, LabelGotoExDef, LabelSwitchByIndexDef))
_LISTED, _KERNEL_OF = tag(_MODEL["task"], BYTES), tag(_ENTRY["kernel"], BYTES)
_CONTEXT_OF, _STUB = tag(_KERNEL["context"], BYTES), tag(_KERNEL["stub_func"], BYTES)


def task_info(plan: Plan) -> bytes:
    """The message of a plan, a ModelTaskDef in its bytes. `ValueError` for numbers that have no place in it."""
    writer = _Writer(plan)
    writer.regions(plan.regions)
    parts = [
        text(_MODEL["version"], "1"),
        *writer.entries,
        _u64(_MODEL["memory_size"], plan.arena or 0),
        _u32(_MODEL["stream_num"], plan.streams),
        _u32(_MODEL["event_num"], writer.events),
        _u64(_MODEL["weight_size"], plan.weights_nbytes),
        _u32(_MODEL["batch_num"], 1),
    ]
    return b"".join(parts)


def _u32(field: int, value: int) -> bytes:
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} is no number of 32 bits")
    return number(field, value)


def _u64(field: int, value: int) -> bytes:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no number of 64 bits")
    return number(field, value if value < 1 << 63 else value - (1 << 64))


@lru_cache(maxsize=1 << 10)
def _where(kind: TaskType, stream: int) -> bytes:
    """The kind of an entry and its stream."""
    return number(_ENTRY["type"], kind) + _u32(_ENTRY["stream_id"], stream)


@lru_cache(maxsize=1 << 10)
def _before_args(operands: int) -> bytes:
    """A KernelDef between its name and its arguments, of eight bytes each."""
    size = 8 * operands
    head = _u32(_KERNEL["block_dim"], 1) + _u32(_KERNEL["args_size"], size)
    return head + tag(_KERNEL["args"], BYTES) + varint(size) if size else head


@lru_cache(maxsize=1 << 10)
def _named(kernel: str) -> bytes:
    """The field that names the device's kernel."""
    return text(_KERNEL["kernel_name"], kernel)


class _Writer:
    """Writes entries in order; `labels` counts those that are taken, `open` are the streams that have to join."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.entries: list[bytes] = []
        self.formats: dict[tuple[str, ...], bytes] = {}
        self.labels = 0
        self.events = plan.events
        self.open: tuple[int, ...] = ()
        self.begun = False

    def regions(self, regions: Sequence[Region]) -> None:
        """The entries of a list of regions."""
        for region in regions:
            if isinstance(region, (Static, Host)):
                self.tasks(region.tasks if isinstance(region, Static) else (region.task,))
            elif isinstance(region, If):
                self.choice((region.else_branch, region.then_branch))
            elif isinstance(region, Gears):
                self.choice(region.bodies)
            else:
                self.loop(region)

    def tasks(self, tasks: Sequence[Task]) -> None:
        """A list of tasks on its streams."""
        self.join()
        others = tuple(sorted({t.stream for t in tasks} - {0}))
        for stream in others if self.begun else ():
            self.order(0, stream, self.plan.events + self.plan.streams - 1 + stream - 1)
        for task in tasks:
            for event in task.waits:
                self.add(TaskType.EVENT_WAIT, task.stream, _u32(_ENTRY["event_id"], event))
            kernel = self.kernel(task)
            self.add(TaskType.KERNEL, task.stream, _KERNEL_OF + VARINTS[len(kernel)] + kernel)
            for event in task.records:
                self.add(TaskType.EVENT_RECORD, task.stream, _u32(_ENTRY["event_id"], event))
        self.open, self.begun = others, True

    def add(self, kind: TaskType, stream: int, content: bytes) -> None:
        """A new entry; `content` are the fields that its kind has."""
        entry = number(_ENTRY["id"], len(self.entries)) + _where(kind, stream) + content
        self.entries.append(_LISTED + VARINTS[len(entry)] + entry)

    def order(self, before: int, after: int, event: int) -> None:
        """Let a stream wait for another one."""
        self.add(TaskType.EVENT_RECORD, before, _u32(_ENTRY["event_id"], event))
        self.add(TaskType.EVENT_WAIT, after, _u32(_ENTRY["event_id"], event))
        self.events = max(self.events, event + 1)

    def join(self) -> None:
        """Let stream 0 wait for the streams of the last list of tasks."""
        for stream in self.open:
            self.order(stream, 0, self.plan.events + stream - 1)
        self.open = ()

    def label(self, label: int) -> None:
        """The place that a label names."""
        self.join()
        content = {"op_index": NO_TASK, "label_id": label}
        self.add(TaskType.LABEL_SET, 0, nested(_ENTRY["label_set"], _numbers(_LABEL, content)))

    def goto(self, label: int) -> None:
        """A jump."""
        self.join()
        content = {"op_index": NO_TASK, "label_id": label}
        self.add(TaskType.STREAM_LABEL_GOTO, 0, nested(_ENTRY["label_goto_ex"], _numbers(_GOTO, content)))

    def switch(self, count: int) -> int:
        """A jump to one of `count` new labels; returns the first."""
        self.join()
        first, self.labels = self.labels, self.labels + count
        content = _numbers(_SWITCH, {"op_index": NO_TASK, "label_max": count})
        switch = _u32(_ENTRY["label_id"], first) + nested(_ENTRY["label_switch_by_index"], content)
        self.add(TaskType.STREAM_LABEL_SWITCH_BY_INDEX, 0, switch)
        self.begun = True
        return first

    def choice(self, bodies: Sequence[Sequence[Region]]) -> None:
        """One of several lists of regions; the last one comes first, for it is the then branch."""
        first = self.switch(len(bodies))
        end, self.labels = self.labels, self.labels + 1
        order = range(len(bodies) - 1, -1, -1) if len(bodies) == 2 else range(len(bodies))
        for k in order:
            self.label(first + k)
            self.regions(bodies[k])
            if k != order[-1]:
                self.goto(end)
        self.label(end)

    def loop(self, region: Loop | Scan) -> None:
        """A list of regions that runs while the switch says 1."""
        self.moves(region.carried, initial=True)
        head, self.labels = self.labels, self.labels + 1
        self.label(head)
        leave = self.switch(2)
        self.label(leave + 1)
        self.regions(region.body)
        self.moves(region.carried, initial=False)
        self.goto(head)
        self.label(leave)

    def moves(self, carried: Sequence[Carried], initial: bool) -> None:
        """The copies of what a loop carries to its place."""
        self.join()
        for c in carried:
            source, target = c.initial if initial else c.result, c.state
            if source.buffer == target.buffer:
                continue
            nbytes = self.plan.buffers[target.buffer].nbytes
            count = UNBOUND if isinstance(nbytes, Dim) else nbytes
            parts = [
                _u64(_COPY["dst"], self.place(target)[1]),
                _u64(_COPY["dst_max"], count),
                _u64(_COPY["src"], self.place(source)[1]),
                _u64(_COPY["count"], count),
                _u32(_COPY["op_index"], NO_TASK),
                text(_COPY["args_format"], f"{self.place(source)[0]},{self.place(target)[0]}"),
            ]
            self.add(TaskType.MEMCPY_ASYNC, 0, nested(_ENTRY["memcpy_async"], b"".join(parts)))

    def kernel(self, task: Task) -> bytes:
        """A task's KernelDef."""
        operands = [*task.inputs, *task.outputs]
        if task.workspace is not None:
            operands.append(task.workspace)
        places = [*map(self.place, operands)]
        spaces, name = tuple([space for space, _ in places]), task.name.encode()
        context = _u32(_CONTEXT["op_index"], task.id) + self.arguments(spaces)
        parts = (
            _CONTEXT_OF,
            VARINTS[len(context)],
            context,
            _STUB + VARINTS[len(name)] + name if name else b"",
            _before_args(len(operands)),
            struct.pack(f"<{len(operands)}Q", *[address for _, address in places]),
            _named(task.kernel),
        )
        return b"".join(parts)

    def arguments(self, spaces: tuple[str, ...]) -> bytes:
        """How many operands there are and in which spaces; many tasks say the same."""
        found = self.formats.get(spaces)
        if found is None:
            found = number(_CONTEXT["args_count"], len(spaces)) + text(_CONTEXT["args_format"], ",".join(spaces))
            self.formats[spaces] = found
        return found

    def place(self, operand: Operand | None) -> tuple[str, int]:
        """The space that an operand lies in, and its address there."""
        if operand is None:
            return "none", UNBOUND
        buffer = self.plan.buffers[operand.buffer]
        space, base, delta = buffer.space, buffer.offset, operand.delta
        address = UNBOUND if base is None or isinstance(delta, Dim) else base + delta
        if space is _WEIGHTS or space is _ARENA:
            return _IN_WEIGHTS if space is _WEIGHTS else _IN_ARENA, address
        port = buffer.index if space in (Space.INPUT, Space.OUTPUT) else ""
        return f"{space._value_}{port}", address


def _numbers(message: Mapping[str, int], values: Mapping[str, int]) -> bytes:
    """The 32-bit fields of a message, in the order of their numbers."""
    return b"".join([_u32(field, values[name]) for name, field in message.items() if name in values])
