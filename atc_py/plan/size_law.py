"""The law of sizes found out on the way: what one list of tasks finds out, none of the same list needs.

    Static   task 4 NonZero binds s ─ task 5 Relu of x                          fine: the device has both at once
             task 4 NonZero binds s ─ task 5 Cast of its result, [2, s]         nobody can launch task 5 yet

The device runs a list as a whole. The host reads the size when the list is done, and launches what needs it after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import Size, symbols_of
from atc_py.ir.graph import Graph
from atc_py.ir.types import Tensor, Type
from atc_py.plan.show import show_task
from atc_py.plan.types import Plan, Static, Task


def early_uses(plan: Plan, region: Static) -> Iterator[tuple[str, str]]:
    """The tasks of a list that need a size that another one of it finds out: (task, cause)."""
    binders: Mapping[str, Task] = {s: task for task in region.tasks for s, _, _ in task.binds}
    for task in region.tasks if binders else ():
        needed = {s for size in _sizes(task, plan.constants) for s in symbols_of(size)}
        for name in sorted(needed & binders.keys()):
            if binders[name] is not task:
                cause = f"needs '{name}', which {show_task(binders[name])} finds out in the same list of tasks"
                yield show_task(task), cause


def _sizes(task: Task, constants: Sequence[Constant]) -> Iterator[Size]:
    """The sizes that a task works with."""
    for operand in task.operands():
        yield from _of_type(operand.type)
        yield operand.delta
        yield from operand.strides or ()
    for number in task.host_values.values():
        if 0 <= number < len(constants):
            yield from _of_constant(constants[number])
    if task.body is not None:
        yield from _of_body(task.body)


def _of_body(body: Graph) -> Iterator[Size]:
    for value in body.values.values():
        yield from _of_type(value.type)
    for node in body.nodes.values():
        if node.const is not None:
            yield from _of_constant(node.const)


def _of_type(type_: Type) -> Iterator[Size]:
    if isinstance(type_, Tensor) and type_.shape is not None:
        yield from type_.shape


def _of_constant(constant: Constant) -> Iterator[Size]:
    if isinstance(constant, DimVec):
        yield from constant.elements
