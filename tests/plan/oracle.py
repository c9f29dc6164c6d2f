"""A second opinion on plans of one `Static` region: slow, byte by byte, and with nothing of the verifier's in it.

    judge(plan)        raises Rejected("t3 writes over input 1")

What can be seen without running anything is looked at here: layouts, bounds, and what a task does to its own operands.
All the rest is found by running every interleaving (`tests.plan.interleavings`).
"""

from __future__ import annotations

from atc_py.ir.types import Tensor
from atc_py.plan.types import Access, Operand, Plan, Space, Static
from tests.plan.interleavings import elements, harm

IN_PLACE = {
    **dict.fromkeys(["Relu", "Sigmoid", "Swish", "Tanh", "Neg", "Exp", "Softmax"], (0,)),
    **dict.fromkeys(["Add", "Mul", "Sub"], (0, 1)),
}
"""Inputs that may be overwritten, element for element: what a mathematician would allow."""
Byte = tuple[object, int]


class Rejected(Exception):
    """Why a plan is bad."""


def bytes_of(plan: Plan, o: Operand) -> list[Byte]:
    """The bytes of an operand, element by element in C order."""
    return [(area, a) for area, start, end in elements(plan, o) for a in range(start, end)]


def judge(plan: Plan) -> None:
    """Raise `Rejected` unless the plan is good."""
    (region,) = plan.regions
    assert isinstance(region, Static)
    if [t.id for t in region.tasks] != sorted({t.id for t in region.tasks}):
        raise Rejected("ids do not rise")
    _layouts(plan)
    _made_once(plan)
    judge_bytes(plan)


def judge_bytes(plan: Plan) -> None:
    """The same for a plan whose operands and values are known to be in order: bounds, own operands, interleavings."""
    _bounds(plan)
    _own_operands(plan)
    cause = harm(plan)
    if cause:
        raise Rejected(cause)


def _layouts(plan: Plan) -> None:
    roots = {a.value: a.source for a in plan.aliases}
    layouts: dict[int, tuple[object, list[int]]] = {}
    ports = [Operand(p.value, Access.READ, p.buffer, p.type) for p in (*plan.inputs, *plan.outputs)]
    for operands in (ports, *(t.operands() for t in plan.tasks())):
        for o in operands:
            first, *others = bytes_of(plan, o)
            layout = (o.type, [at - first[1] for _, at in others])
            if layouts.setdefault(o.value, layout) != layout:
                raise Rejected(f"%{o.value} has two layouts")
    for value in roots.keys() & layouts.keys():
        for v in {value, roots[value]} & layouts.keys():
            if layouts[v][1] != list(range(1, len(layouts[v][1]) + 1)):
                raise Rejected(f"%{v} has strides, but is a view or has one")


def _made_once(plan: Plan) -> None:
    roots = {a.value: a.source for a in plan.aliases}
    made = {port.value for port in plan.inputs}
    for t in plan.tasks():
        for o in t.outputs:
            root = roots.get(o.value, o.value)
            if root in made:
                raise Rejected(f"%{o.value} is made twice")
            made.add(root)


def _bounds(plan: Plan) -> None:
    for b in plan.buffers:
        assert b.offset is not None and isinstance(b.nbytes, int)
        limit = plan.arena if b.space is Space.ARENA else b.offset + b.nbytes
        step = 512 if b.space is Space.ARENA else 1
        moved = b.offset != 0 and b.space in (Space.INPUT, Space.OUTPUT)
        if limit is None or b.offset + b.nbytes > limit or b.offset % step or moved:
            raise Rejected(f"buffer {b.id} lies outside of its space")
    for port in (*plan.inputs, *plan.outputs):
        assert isinstance(port.type, Tensor)
        if plan.buffers[port.buffer].nbytes != port.type.nbytes:
            raise Rejected(f"port {port.name} has another size than its buffer")
    for t in plan.tasks():
        for o in t.operands():
            buffer, size = plan.buffers[o.buffer], o.type.dtype.itemsize if isinstance(o.type, Tensor) else 1
            for _, start, end in elements(plan, o):
                if start % size:
                    raise Rejected(f"%{o.value} is not aligned")
                if start < int(str(buffer.offset)) or end > int(str(buffer.offset)) + int(str(buffer.nbytes)):
                    raise Rejected(f"%{o.value} leaves its buffer")


def _own_operands(plan: Plan) -> None:
    """A task writes nothing twice, nothing that is fixed, and over its inputs only what its kernel may."""
    for t in plan.tasks():
        written: set[Byte] = set()
        for n, o in enumerate([*t.outputs, *([t.workspace] if t.workspace else [])]):
            mine = bytes_of(plan, o)
            if len(set(mine)) != len(mine) or written & set(mine):
                raise Rejected(f"{t.name} writes a byte twice")
            written |= set(mine)
            if plan.buffers[o.buffer].space in (Space.INPUT, Space.WEIGHTS):
                raise Rejected(f"{t.name} writes to what is fixed")
            for i, read in enumerate(t.inputs):
                if read is None or not set(mine) & set(bytes_of(plan, read)):
                    continue
                same = elements(plan, o) == elements(plan, read) and o.type == read.type
                if n or i not in IN_PLACE.get(t.kernel, ()) or not same:
                    raise Rejected(f"{t.name} writes over input {i}")
