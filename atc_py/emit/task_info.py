"""TASK_INFO: the plan's tasks as GE's ModelTaskDef, one KernelDef a task.

`args` is the kernel's argument block as a device would get it: for each operand in order (inputs, outputs, workspace)
a little-endian u64 address in its space and, in `args_format`, which space it is: `weights`, `arena`, `input0`, …
"""

from __future__ import annotations

import struct

from atc_py.ir.dims import Dim
from atc_py.plan.types import Operand, Plan, Space, Task
from om_format import TaskType
from om_format.proto.task_pb2 import ModelTaskDef

UNBOUND = (1 << 64) - 1
"""The address of an operand whose place is decided by `bind`, or that is absent."""


def task_info(plan: Plan) -> ModelTaskDef:
    """The message of a plan."""
    message = ModelTaskDef(
        version="1",
        memory_size=plan.arena or 0,
        stream_num=plan.streams,
        event_num=plan.events,
        weight_size=plan.weights_nbytes,
        batch_num=1,
    )
    for task in plan.tasks():
        for event in task.waits:
            message.task.add(type=TaskType.EVENT_WAIT, stream_id=task.stream, event_id=event)
        _kernel(message, plan, task)
        for event in task.records:
            message.task.add(type=TaskType.EVENT_RECORD, stream_id=task.stream, event_id=event)
    for number, entry in enumerate(message.task):
        entry.id = number
    return message


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
