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
from collections.abc import Sequence

from atc_py.ir.dims import Dim
from atc_py.plan.types import Carried, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task
from om_format import TaskType
from om_format.proto.task_pb2 import ModelTaskDef, TaskDef

UNBOUND = (1 << 64) - 1
"""The address of an operand whose place is decided by `bind`, or that is absent."""
NO_TASK = (1 << 32) - 1
"""`op_index` of entries that belong to no task of the plan."""


def task_info(plan: Plan) -> ModelTaskDef:
    """The message of a plan."""
    message = ModelTaskDef(
        version="1",
        memory_size=plan.arena or 0,
        stream_num=plan.streams,
        weight_size=plan.weights_nbytes,
        batch_num=1,
    )
    writer = _Writer(message, plan)
    writer.regions(plan.regions)
    message.event_num = writer.events
    for number, entry in enumerate(message.task):
        entry.id = number
    return message


class _Writer:
    """Writes entries in order; `labels` counts those that are taken, `open` are the streams that have to join."""

    def __init__(self, message: ModelTaskDef, plan: Plan) -> None:
        self.message, self.plan = message, plan
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
                self.add(TaskType.EVENT_WAIT, task.stream).event_id = event
            _kernel(self.message, self.plan, task)
            for event in task.records:
                self.add(TaskType.EVENT_RECORD, task.stream).event_id = event
        self.open, self.begun = others, True

    def add(self, kind: TaskType, stream: int = 0) -> TaskDef:
        """A new entry."""
        return self.message.task.add(type=kind, stream_id=stream)

    def order(self, before: int, after: int, event: int) -> None:
        """Let a stream wait for another one."""
        self.add(TaskType.EVENT_RECORD, before).event_id = event
        self.add(TaskType.EVENT_WAIT, after).event_id = event
        self.events = max(self.events, event + 1)

    def join(self) -> None:
        """Let stream 0 wait for the streams of the last list of tasks."""
        for stream in self.open:
            self.order(stream, 0, self.plan.events + stream - 1)
        self.open = ()

    def label(self, label: int) -> None:
        """The place that a label names."""
        self.join()
        entry = self.add(TaskType.LABEL_SET)
        entry.label_set.label_id = label
        entry.label_set.op_index = NO_TASK

    def goto(self, label: int) -> None:
        """A jump."""
        self.join()
        entry = self.add(TaskType.STREAM_LABEL_GOTO)
        entry.label_goto_ex.label_id = label
        entry.label_goto_ex.op_index = NO_TASK

    def switch(self, count: int) -> int:
        """A jump to one of `count` new labels; returns the first."""
        self.join()
        first, self.labels = self.labels, self.labels + count
        entry = self.add(TaskType.STREAM_LABEL_SWITCH_BY_INDEX)
        entry.label_id = first
        entry.label_switch_by_index.label_max = count
        entry.label_switch_by_index.op_index = NO_TASK
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
            copy = self.add(TaskType.MEMCPY_ASYNC).memcpy_async
            copy.src, copy.dst = _address(self.plan, source), _address(self.plan, target)
            nbytes = self.plan.buffers[target.buffer].nbytes
            copy.count = copy.dst_max = UNBOUND if isinstance(nbytes, Dim) else nbytes
            copy.op_index = NO_TASK
            copy.args_format = f"{_space(self.plan, source)},{_space(self.plan, target)}"


def _kernel(message: ModelTaskDef, plan: Plan, task: Task) -> None:
    operands = [*task.inputs, *task.outputs, *([task.workspace] if task.workspace else [])]
    addresses = [_address(plan, o) for o in operands]
    args = struct.pack(f"<{len(addresses)}Q", *addresses)
    entry = message.task.add(type=TaskType.KERNEL, stream_id=task.stream)
    kernel = entry.kernel
    kernel.stub_func = task.name
    kernel.kernel_name = task.kernel
    kernel.block_dim = 1
    kernel.args = args
    kernel.args_size = len(args)
    kernel.context.op_index = task.id
    kernel.context.args_count = len(addresses)
    kernel.context.args_format = ",".join(_space(plan, o) for o in operands)


def _address(plan: Plan, operand: Operand | None) -> int:
    if operand is None:
        return UNBOUND
    base = plan.buffers[operand.buffer].offset
    return UNBOUND if base is None or isinstance(operand.delta, Dim) else base + operand.delta


def _space(plan: Plan, operand: Operand | None) -> str:
    if operand is None:
        return "none"
    buffer = plan.buffers[operand.buffer]
    port = buffer.index if buffer.space in (Space.INPUT, Space.OUTPUT) else ""
    return f"{buffer.space.value}{port}"
