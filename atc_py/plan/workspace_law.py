"""The law of workspaces: a task has as many bytes as its operator's kernel asks for.

    task 2 TopK: %3 float32[8, 100]      asks for 6400 bytes: uint8[6400] is fine, uint8[6144] is refused

What the bytes lie on is said by the other laws: they are one more operand that the task writes, and nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atc_py.errors import AtcError
from atc_py.ir.dims import DimOverflow
from atc_py.ir.types import Tensor, Type
from atc_py.ops.base import InferError, Op
from atc_py.ops.build import known_value, lookup
from atc_py.ops.evaluate import workspace_nbytes
from atc_py.plan.extents import Layout
from atc_py.plan.show import show_task
from atc_py.plan.types import Operand, Plan, Space, Task

Finding = tuple[str, str]


def workspaces(plan: Plan, tasks: Iterable[Task], layout: Layout) -> Iterator[Finding]:
    """Tasks whose workspace is too small: (task, cause). Sizes that only the run time knows are left to it."""
    without: set[str] = set()  # operators that take none, which is nearly all
    for task in tasks:
        op = None if task.kernel in without else _declared(task)
        if op is None or op.workspace_fn is None:
            without.add(task.kernel)
            continue
        held = _held(task.workspace, plan, layout)
        needed = _needed(op, task, plan, layout)
        if held is not None and needed is not None and needed > held:
            yield show_task(task), f"{task.kernel} takes {needed} bytes of workspace, the plan has {held}"


def _declared(task: Task) -> Op | None:
    """The task's operator; None where it is a custom one that nobody declares here."""
    try:
        return lookup(task.kernel, task.attrs)
    except AtcError:
        return None


def _held(workspace: Operand | None, plan: Plan, layout: Layout) -> int | None:
    """The bytes of a workspace, None where it is made at run time."""
    if workspace is None:
        return 0
    if plan.buffers[workspace.buffer].space is Space.DYNAMIC:
        return None
    return layout.nbytes(workspace.type)


def _needed(op: Op, task: Task, plan: Plan, layout: Layout) -> int | None:
    """The bytes that the operator asks for, None where the run time tells, or where the task is none of its kind."""
    hosted = {i: plan.constants[number] for i, number in task.host_values.items()}
    count = max([len(task.inputs), *(i + 1 for i in hosted)])
    given = [*(None if o is None else o.type for o in task.inputs), *[None] * (count - len(task.inputs))]
    types = [_known(t, layout) for t in given]
    for i, constant in hosted.items():
        types[i] = Tensor(constant.dtype, constant.shape)
    values = {i: known_value(constant) for i, constant in hosted.items()}
    for i, o in enumerate(task.inputs):
        buffer = None if o is None else plan.buffers[o.buffer]
        if buffer is not None and buffer.space is Space.WEIGHTS:
            values[i] = known_value(plan.constants[buffer.index])
    try:
        return workspace_nbytes(op, task.attrs, types, values, len(task.outputs))
    except (
        InferError,
        DimOverflow,
        KeyError,
        ValueError,
        IndexError,
        TypeError,
    ):  # the device refuses it when it binds
        return None


def _known(type_: Type | None, layout: Layout) -> Type | None:
    """A type under the symbols' values; its rank is unknown while a size is."""
    if not isinstance(type_, Tensor) or type_.shape is None:
        return type_
    sizes = [layout.size(d) for d in type_.shape]
    known = [d for d in sizes if d is not None]
    return type_.with_shape(tuple(known) if len(known) == len(sizes) else None)
