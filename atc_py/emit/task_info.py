"""TASK_INFO: the plan's tasks as GE's ModelTaskDef: an entry a task, and around them what orders and chooses them.

    task 0 (stream 0) records 0          KERNEL 0 on 0, EVENT_RECORD 0 on 0
    task 1 (stream 1) waits 0            EVENT_WAIT 0 on 1, KERNEL 1 on 1
    If %2 { task 2 } { task 3 }          SWITCH_BY_INDEX 0 of 2, LABEL_SET 1, KERNEL 2, GOTO 2, LABEL_SET 0, KERNEL 3,
                                         LABEL_SET 2
    task 4: TensorMove                   MEMCPY_ASYNC 4

A task is a KERNEL of its engine's type, or where it copies bytes as they lie a MEMCPY_ASYNC. `args` is the kernel's
argument block as a device would get it: for each operand in order (inputs, outputs, workspace) a little-endian u64
address in its space and, in `args_format`, which space it is: `weights`, `arena`, `input0`, …

`op_index` is the id of the OpDef in MODEL_DEF that an entry is of: a task's id, or a region's number (see
`control_numbers`). As in GE, the op says what the entry does not: input 0 of an If's op is the condition that its
switch reads, and the op's `_label_switch_list` are the labels that a switch jumps to, one for each value.

A switch jumps to the label `label_id` plus the value that it reads: an If's condition (label 0: the else branch), 1
while a loop goes on, the number of a gear. What a loop carries is copied by MEMCPY_ASYNC where it does not lie in its
place already. Where a region ends all its streams join stream 0, and the next one's leave it: these events have the
ids after the plan's own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from atc_py.emit.attrs import fields
from atc_py.emit.wire import BYTES, VARINTS, nested, number, tag, text, varint
from atc_py.ir.dims import Dim, Size, evaluate
from atc_py.ir.types import BLOCKED, Tensor
from atc_py.ops import get
from atc_py.plan.gears import gear_count
from atc_py.plan.types import Carried, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task, walk
from om_format import KernelType, MemcpyKind, TaskType
from om_format.proto.task_pb2 import (
    KernelContext,
    KernelDef,
    KernelHcclDef,
    LabelGotoExDef,
    LabelSetDef,
    LabelSwitchByIndexDef,
    MemcpyAsyncDef,
    ModelTaskDef,
    TaskDef,
)

UNBOUND = (1 << 64) - 1
"""The address of an operand whose place is decided by `bind`, or that is absent."""
KERNEL_TYPES = {"aicore": KernelType.TE, "aicpu": KernelType.AI_CPU, "host": KernelType.HOST_CPU}
"""By the engine that a task runs on."""
_WEIGHTS, _ARENA = Space.WEIGHTS, Space.ARENA  # of nearly all operands
_IN_WEIGHTS, _IN_ARENA = _WEIGHTS.value, _ARENA.value

_MODEL, _ENTRY, _KERNEL, _CONTEXT, _COPY, _HCCL = map(
    fields, (ModelTaskDef, TaskDef, KernelDef, KernelContext, MemcpyAsyncDef, KernelHcclDef)
)
_LABEL, _GOTO, _SWITCH = map(fields, (LabelSetDef, LabelGotoExDef, LabelSwitchByIndexDef))
_LISTED, _KERNEL_OF = tag(_MODEL["task"], BYTES), tag(_ENTRY["kernel"], BYTES)
_CONTEXT_OF, _STUB = tag(_KERNEL["context"], BYTES), tag(_KERNEL["stub_func"], BYTES)


@dataclass(frozen=True)
class TaskList:
    """TASK_INFO of a plan: the message in its bytes, and what it counts.

    All that tells how many streams, events and labels a model has, or how large its weights space is, tells these.
    `weights` are bytes. `switches` are the labels that a switch jumps to, by the number of its region.
    """

    content: bytes
    streams: int
    events: int
    labels: int
    weights: int
    switches: Mapping[int, tuple[int, ...]]


def task_list(plan: Plan) -> TaskList:
    """The entries of a plan, and their numbers. `ValueError` for what has no place in the message."""
    writer, weights = _Writer(plan), weights_space(plan)
    writer.regions(plan.regions)
    parts = [
        text(_MODEL["version"], "1"),
        *writer.entries,
        _u64(_MODEL["memory_size"], plan.arena or 0),
        _u32(_MODEL["stream_num"], plan.streams),
        _u32(_MODEL["event_num"], writer.events),
        _u64(_MODEL["weight_size"], weights),
        _u32(_MODEL["batch_num"], gear_count(plan)),
    ]
    return TaskList(b"".join(parts), plan.streams, writer.events, writer.labels, weights, writer.switches)


def task_info(plan: Plan) -> bytes:
    """The message of a plan, a ModelTaskDef in its bytes. `ValueError` for numbers that have no place in it."""
    return task_list(plan).content


def weights_space(plan: Plan) -> int:
    """Bytes of the weights space: the weights of the file, and what is derived from them (at the hint's sizes)."""
    env = dict(plan.hint or {})
    return max([(b.offset or 0) + evaluate(b.nbytes, env) for b in plan.buffers if b.space is _WEIGHTS], default=0)


def control_numbers(plan: Plan) -> dict[int, int]:
    """The number of each If, Loop, Scan and Gears, by its identity: those that follow the tasks' ids, outer first."""
    controls = [r for r in walk(plan.regions) if not isinstance(r, (Static, Host))]
    return {id(region): number for number, region in enumerate(controls, _tasks_end(plan))} if controls else {}


def control_regions(plan: Plan) -> dict[int, Region]:
    """The If, Loop, Scan and Gears by these numbers."""
    numbers = control_numbers(plan)
    return {numbers[id(r)]: r for r in walk(plan.regions) if id(r) in numbers}


def free_id(plan: Plan) -> int:
    """The first number that is neither a task's id nor a region's."""
    return _tasks_end(plan) + len(control_numbers(plan))


def _tasks_end(plan: Plan) -> int:
    return 1 + max([t.id for t in plan.tasks()], default=-1)


def place(plan: Plan, operand: Operand | None) -> tuple[str, int]:
    """The space that an operand lies in, and its address there."""
    if operand is None:
        return "none", UNBOUND
    buffer = plan.buffers[operand.buffer]
    space, base, delta = buffer.space, buffer.offset, operand.delta
    address = UNBOUND if base is None or isinstance(delta, Dim) else base + delta
    if space is _WEIGHTS or space is _ARENA:
        return _IN_WEIGHTS if space is _WEIGHTS else _IN_ARENA, address
    port = buffer.index if space in (Space.INPUT, Space.OUTPUT) else ""
    return f"{space._value_}{port}", address


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


@lru_cache(maxsize=16)
def _kernel_type(engine: str) -> bytes:
    """The field that says which processor a kernel is for."""
    if engine not in KERNEL_TYPES:
        raise ValueError(f"there is no engine {engine!r}")
    return number(_CONTEXT["kernel_type"], KERNEL_TYPES[engine])


@lru_cache(maxsize=1 << 10)
def _copies(kernel: str) -> bool:
    """Whether a kernel's output has the elements of its input in their order."""
    op = get(kernel)
    return kernel == "TensorMove" or (op is not None and op.flags.alias)


def copied(plan: Plan, task: Task) -> tuple[Operand, Operand] | None:
    """What a task of a device's engine copies, and where to, if it does nothing else: one run of bytes to another."""
    if not _copies(task.kernel) or task.engine == "host" or task.binds or not task.inputs or len(task.outputs) != 1:
        return None
    source, target = task.inputs[0], task.outputs[0]
    if source is None or source.strides is not None or target.strides is not None:
        return None
    if any(plan.buffers[o.buffer].space is Space.HOST for o in (source, target)):
        return None
    read, made = source.type, target.type
    if not isinstance(read, Tensor) or not isinstance(made, Tensor) or read.shape is None or made.shape is None:
        return None
    same = read.dtype is made.dtype and read.nbytes == made.nbytes
    turned = read != made and ({read.storage, made.storage} & BLOCKED)  # blocks hold the elements in another order
    return (source, target) if same and not turned else None


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
        self.controls = control_numbers(plan)
        self.switches: dict[int, tuple[int, ...]] = {}
        self.open: tuple[int, ...] = ()
        self.begun = False

    def regions(self, regions: Sequence[Region]) -> None:
        """The entries of a list of regions."""
        for region in regions:
            if isinstance(region, (Static, Host)):
                self.tasks(region.tasks if isinstance(region, Static) else (region.task,))
            elif isinstance(region, If):
                # The then branch comes first, as in the plan; its condition is 1.
                self.choice(self.controls[id(region)], {1: region.then_branch, 0: region.else_branch})
            elif isinstance(region, Gears):
                self.choice(self.controls[id(region)], dict(enumerate(region.bodies)))
            else:
                self.loop(self.controls[id(region)], region)

    def tasks(self, tasks: Sequence[Task]) -> None:
        """A list of tasks on its streams."""
        self.join()
        others = tuple(sorted({t.stream for t in tasks} - {0}))
        for stream in others if self.begun else ():
            self.order(0, stream, self.plan.events + self.plan.streams - 1 + stream - 1)
        for task in tasks:
            for event in task.waits:
                self.add(TaskType.EVENT_WAIT, task.stream, _u32(_ENTRY["event_id"], event))
            copy = copied(self.plan, task)
            if task.engine == "hccl":
                self.add(TaskType.HCCL, task.stream, nested(_ENTRY["kernel_hccl"], _collective(task)))
            elif copy is None:
                kernel = self.kernel(task)
                self.add(TaskType.KERNEL, task.stream, _KERNEL_OF + VARINTS[len(kernel)] + kernel)
            else:
                assert isinstance(copy[1].type, Tensor)
                self.copy(task.id, task.stream, *copy, copy[1].type.nbytes)
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

    def copy(self, op: int, stream: int, source: Operand, target: Operand, nbytes: Size) -> None:
        """So many bytes moved on the device."""
        count = UNBOUND if isinstance(nbytes, Dim) else nbytes
        (read, at), (written, to) = place(self.plan, source), place(self.plan, target)
        parts = [
            _u64(_COPY["dst"], to),
            _u64(_COPY["dst_max"], count),
            _u64(_COPY["src"], at),
            _u64(_COPY["count"], count),
            _u32(_COPY["kind"], MemcpyKind.DEVICE_TO_DEVICE),
            _u32(_COPY["op_index"], op),
            text(_COPY["args_format"], f"{read},{written}"),
        ]
        self.add(TaskType.MEMCPY_ASYNC, stream, nested(_ENTRY["memcpy_async"], b"".join(parts)))

    def label(self, op: int, label: int) -> None:
        """The place that a label names."""
        self.join()
        content = {"op_index": op, "label_id": label}
        self.add(TaskType.LABEL_SET, 0, nested(_ENTRY["label_set"], _numbers(_LABEL, content)))

    def goto(self, op: int, label: int) -> None:
        """A jump."""
        self.join()
        content = {"op_index": op, "label_id": label}
        self.add(TaskType.STREAM_LABEL_GOTO, 0, nested(_ENTRY["label_goto_ex"], _numbers(_GOTO, content)))

    def switch(self, op: int, count: int) -> int:
        """A jump to one of `count` new labels; returns the first."""
        self.join()
        first, self.labels = self.labels, self.labels + count
        self.switches[op] = tuple(range(first, first + count))
        content = _numbers(_SWITCH, {"op_index": op, "label_max": count})
        switch = _u32(_ENTRY["label_id"], first) + nested(_ENTRY["label_switch_by_index"], content)
        self.add(TaskType.STREAM_LABEL_SWITCH_BY_INDEX, 0, switch)
        self.begun = True
        return first

    def choice(self, op: int, bodies: Mapping[int, Sequence[Region]]) -> None:
        """One of several lists of regions, by the values that choose them, in this order."""
        first = self.switch(op, len(bodies))
        end, self.labels = self.labels, self.labels + 1
        for left, (value, body) in zip(range(len(bodies) - 1, -1, -1), bodies.items(), strict=True):
            self.label(op, first + value)
            self.regions(body)
            if left:
                self.goto(op, end)
        self.label(op, end)

    def loop(self, op: int, region: Loop | Scan) -> None:
        """A list of regions that runs while the switch says 1."""
        self.moves(op, region.carried, initial=True)
        head, self.labels = self.labels, self.labels + 1
        self.label(op, head)
        leave = self.switch(op, 2)
        self.label(op, leave + 1)
        self.regions(region.body)
        self.moves(op, region.carried, initial=False)
        self.goto(op, head)
        self.label(op, leave)

    def moves(self, op: int, carried: Sequence[Carried], initial: bool) -> None:
        """The copies of what a loop carries to its place."""
        self.join()
        for c in carried:
            source, target = c.initial if initial else c.result, c.state
            if source.buffer != target.buffer:
                self.copy(op, 0, source, target, self.plan.buffers[target.buffer].nbytes)

    def kernel(self, task: Task) -> bytes:
        """A task's KernelDef."""
        operands = [*task.inputs, *task.outputs]
        if task.workspace is not None:
            operands.append(task.workspace)
        plan = self.plan
        places = [place(plan, o) for o in operands]
        spaces, name = tuple([space for space, _ in places]), task.name.encode()
        context = _kernel_type(task.engine) + _u32(_CONTEXT["op_index"], task.id) + self.arguments(spaces)
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


def _collective(task: Task) -> bytes:
    """A collective's KernelHcclDef: the node, which says all else, and the collective's type."""
    return _u32(_HCCL["op_index"], task.id) + text(_HCCL["hccl_type"], task.kernel)


def _numbers(message: Mapping[str, int], values: Mapping[str, int]) -> bytes:
    """The 32-bit fields of a message, in the order of their numbers."""
    return b"".join([_u32(field, values[name]) for name, field in message.items() if name in values])
