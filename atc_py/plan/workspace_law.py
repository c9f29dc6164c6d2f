"""The law of workspaces: a task has as many bytes as its operator's kernel asks for.

    task 2 TopK: %3 float32[8, 100]      asks for 6400 bytes: uint8[6400] is fine, uint8[6144] is refused

They lie in the arena, or are made by the device where only the run time knows how many. Whose bytes they lie on is said
by the other laws: they are one more operand that the task writes, and nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import Dim, DimOverflow
from atc_py.ir.types import Tensor, Type
from atc_py.ops.base import Array, InferError, Op
from atc_py.ops.build import known_value
from atc_py.ops.evaluate import workspace_nbytes
from atc_py.plan.extents import Layout
from atc_py.plan.operations import declared
from atc_py.plan.show import show_task
from atc_py.plan.types import Operand, Plan, Space, Task

Finding = tuple[str, str]

_PLACES = (Space.ARENA, Space.DYNAMIC)
"""Where workspaces lie."""
_REFUSED = (InferError, DimOverflow, KeyError, ValueError, IndexError, TypeError)
"""What the rule of an operator raises for a task that is none of its kind: the device would not bind it either."""


def workspaces(plan: Plan, tasks: Iterable[Task], layout: Layout) -> Iterator[Finding]:
    """Tasks whose workspace is too small, or lies elsewhere: (task, cause).

    Sizes that only the run time knows are left to it. So are values of symbols that the operator does not take.
    """
    without: set[str] = set()  # operators that take none, which is nearly all
    for task in tasks:
        space = None if task.workspace is None else plan.buffers[task.workspace.buffer].space
        if space is not None and space not in _PLACES:
            yield show_task(task), f"the workspace lies in {space.value}, not in the arena"
        op = None if task.kernel in without else declared(task.kernel, task.attrs)
        if op is None or op.workspace_fn is None:
            without.add(task.kernel)
            continue
        held = _held(task.workspace, plan, layout)
        try:
            needed = _needed(op, task, plan, layout)
        except _REFUSED as e:
            if _has_symbols(task, plan):
                continue
            said = str(e) if isinstance(e, InferError) else f"{type(e).__name__}: {e}"
            yield show_task(task), f"{task.kernel} cannot tell how many bytes of workspace it takes: {said}"
            continue
        if held is not None and needed is not None and needed > held:
            yield show_task(task), f"{task.kernel} takes {needed} bytes of workspace, the plan has {held}"


def _held(workspace: Operand | None, plan: Plan, layout: Layout) -> int | None:
    """The bytes of a workspace, None where it is made at run time."""
    if workspace is None:
        return 0
    if plan.buffers[workspace.buffer].space is Space.DYNAMIC:
        return None
    return layout.nbytes(workspace.type)


def _needed(op: Op, task: Task, plan: Plan, layout: Layout) -> int | None:
    """The bytes that the operator asks for, None where the run time tells. Raises what the rule raises."""
    hosted = {i: plan.constants[number] for i, number in task.host_values.items()}
    count = max([len(task.inputs), *(i + 1 for i in hosted)])
    given = [*(None if o is None else o.type for o in task.inputs), *[None] * (count - len(task.inputs))]
    types = [_known(t, layout) for t in given]
    for i, constant in hosted.items():
        types[i] = Tensor(constant.dtype, constant.shape)
    values = {i: _value(constant, layout) for i, constant in hosted.items()}
    for i, o in enumerate(task.inputs):
        buffer = None if o is None else plan.buffers[o.buffer]
        if buffer is not None and buffer.space is Space.WEIGHTS:
            values[i] = _value(plan.constants[buffer.index], layout)
    return workspace_nbytes(op, task.attrs, types, values, len(task.outputs))


def _has_symbols(task: Task, plan: Plan) -> bool:
    """Whether the sizes of a task's inputs follow from symbols: these values of them may be none that it takes.

    The hint of a template may be such values. The device refuses them when they are given.
    """
    types = [o.type for o in task.inputs if o is not None]
    sizes = [d for t in types if isinstance(t, Tensor) for d in t.shape or ()]
    return any(isinstance(d, Dim) for d in sizes) or any(
        isinstance(plan.constants[number], DimVec) for number in task.host_values.values()
    )


def _value(constant: Constant, layout: Layout) -> Array | None:
    """A small constant under the symbols' values; None while one of them is not known."""
    found = known_value(constant)
    if found is None or found.dtype != object:
        return found
    sizes = [layout.size(d) for d in found.reshape(-1)]
    return None if None in sizes else np.array(sizes, constant.dtype.numpy).reshape(found.shape)


def _known(type_: Type | None, layout: Layout) -> Type | None:
    """A type under the symbols' values; its rank is unknown while a size is."""
    if not isinstance(type_, Tensor) or type_.shape is None:
        return type_
    sizes = [layout.size(d) for d in type_.shape]
    known = [d for d in sizes if d is not None]
    return type_.with_shape(tuple(known) if len(known) == len(sizes) else None)
