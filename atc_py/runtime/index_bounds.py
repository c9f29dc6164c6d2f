"""How large integers drawn for an input may be, from what the plan does with them.

    ids: int64[N] → Gather(table: float32[3, 8], ids, axis=0)         {"ids": 3}: drawn are 0 to 2

An input counts where it is read itself or through a Cast, as the `indices` of an operator that says by its declaration
what they index (`data` and an axis). What passes through other arithmetic is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atc_py.ir.dims import evaluate
from atc_py.ir.graph import STRUCTURAL
from atc_py.ir.types import Tensor, Type
from atc_py.ops.build import lookup
from atc_py.plan.types import Operand, Plan, Space, Task

_Step = tuple[str, Mapping[str, Any], list[Any], list[Any], list[Type | None]]
"""An operator, its attributes, keys of what it reads and makes, and the types of what it reads."""


def index_bounds(plan: Plan, env: Mapping[str, int]) -> dict[str, int]:
    """The exclusive upper bound of the integers of each input that is used as indices, under symbol values `env`."""
    names: dict[Any, str] = {("port", p.buffer): p.name for p in plan.inputs}
    bounds: dict[str, int] = {}
    for task in plan.tasks():
        for kernel, attrs, reads, makes, types in _steps(plan, task):
            if kernel == "Cast" and reads[0] in names:
                names[makes[0]] = names[reads[0]]
            if len(reads) > 1 and reads[1] in names:
                size, name = _indexed(kernel, attrs, types, env), names[reads[1]]
                if size is not None:
                    bounds[name] = max(1, min(bounds.get(name, size), size))
    return bounds


def _steps(plan: Plan, task: Task) -> Iterator[_Step]:
    def key(operand: Operand | None) -> Any:
        if operand is None:
            return None
        if plan.buffers[operand.buffer].space is Space.INPUT:
            return ("port", operand.buffer)
        return ("value", operand.value)

    reads, makes = [key(o) for o in task.inputs], [key(o) for o in task.outputs]
    types = [None if o is None else o.type for o in task.inputs]
    if task.body is None:
        yield task.kernel, task.attrs, reads, makes, types
        return
    inner: dict[int, Any] = dict(zip(task.body.inputs, reads))
    for node in task.body.order():
        if node.op not in STRUCTURAL:
            known = [inner.get(v, ("inner", task.id, v)) for v in node.inputs]
            given = [task.body.type(v) if v in task.body.values else None for v in node.inputs]
            yield node.op, node.attrs, known, [("inner", task.id, v) for v in node.outputs], given


def _indexed(kernel: str, attrs: Mapping[str, Any], types: list[Type | None], env: Mapping[str, int]) -> int | None:
    """The size of the axis that the operator's second input indexes, None where it indexes nothing."""
    op = lookup(kernel, attrs)
    if op.inputs[:2] != ("data", "indices") or "axis" not in op.attrs:
        return None
    data, axis = types[0], op.attributes(attrs)["axis"]
    if not isinstance(data, Tensor) or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    try:
        return evaluate(data.shape[axis], env)
    except KeyError:  # a size that only the run knows
        return None
