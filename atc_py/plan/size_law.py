"""The law of what is found out on the way: what one list of tasks finds out, none of the same list needs.

    Static   task 4 NonZero binds s ─ task 5 Relu of x                        fine: the device has both at once
             task 4 NonZero binds s ─ task 5 Cast of its result, [2, s]       nobody can launch task 5 yet
             task 4 Cast makes k    ─ task 5 TopK of x and k                  nor here: the host reads k to launch it
             task 4 Reshape makes z, of unknown rank ─ task 5 Sigmoid of z    nor here: nobody knows the shape of z

The device runs a list as a whole. The host reads sizes, and values like k, when the list is done, and launches what
needs them after that. Tasks of the host's need no launch: the host comes to them when what they read is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import Size, symbols_of
from atc_py.ir.graph import Graph
from atc_py.ir.types import Tensor, Type
from atc_py.plan.accesses import Roots
from atc_py.plan.extents import Layout
from atc_py.plan.operations import declared
from atc_py.plan.show import show_task, show_value
from atc_py.plan.types import Operand, Plan, Static, Task

HOST = "host"
"""The engine of the host."""


def early_uses(plan: Plan, region: Static, layout: Layout, roots: Roots) -> Iterator[tuple[str, str]]:
    """The tasks of a list that need what another one of it finds out: (task, cause)."""
    yield from _early_sizes(plan, region)
    yield from _early_values(region, layout, roots)


def awaited(task: Task) -> Iterator[tuple[Operand, str]]:
    """What the host has to know of a device's task to launch it: (operand, how the task needs it).

    These are the inputs that the host reads, and those of which only the run time knows the rank. What operators in a
    fused task read is part of its program, or read by that.
    """
    op = None if task.engine == HOST else declared(task.kernel, task.attrs)
    read = () if op is None else op.host_inputs
    for i, o in enumerate(task.inputs if task.engine != HOST else ()):
        if o is None:
            continue
        if i in read:
            yield o, f"is launched with the content of {show_value(o.value)}"
        elif isinstance(o.type, Tensor) and o.type.shape is None:
            yield o, f"takes {show_value(o.value)}, whose shape nobody knows before"


def _early_values(region: Static, layout: Layout, roots: Roots) -> Iterator[tuple[str, str]]:
    needed = [(task, o, how) for task in region.tasks for o, how in awaited(task)]
    makers: dict[int, list[tuple[Task, Operand]]] = {}
    for task in region.tasks if needed else ():
        if task.engine != HOST:
            for o in task.outputs:
                makers.setdefault(_root(o, roots), []).append((task, o))
    for task, o, how in needed:
        for maker, made in makers.get(_root(o, roots), ()):
            if maker is not task and _shares(made, o, layout):
                yield show_task(task), f"{how}, which {show_task(maker)} makes in the same list of tasks"


def _root(operand: Operand, roots: Roots) -> int:
    """The value whose bytes an operand has."""
    return roots.get(operand.value, (operand.value, 0))[0]


def _shares(made: Operand, read: Operand, layout: Layout) -> bool:
    """Whether a view has bytes of another one of the same value; where one has none to compare, it has."""
    if made.value == read.value:
        return True
    one, other = layout.extent(made), layout.extent(read)
    return one.late or other.late or one.unit or other.unit or one.overlap(other) is not None


def _early_sizes(plan: Plan, region: Static) -> Iterator[tuple[str, str]]:
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
