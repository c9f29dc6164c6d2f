"""A second opinion on plans of one `Static` region: slow, byte by byte, and with nothing of the verifier's in it.

Every byte of memory is a dictionary entry that says which byte of which value it is. The tasks are run in the plan's
order; then every pair of tasks that nothing orders is looked at.
"""

from __future__ import annotations

from itertools import product

from atc_py.ir.types import Tensor
from atc_py.plan.types import Access, Operand, Plan, Space, Static, Task

IN_PLACE = {"Relu": (0,)}
Byte = tuple[object, int]


class Rejected(Exception):
    """Why a plan is bad."""


def elements(plan: Plan, o: Operand) -> list[list[Byte]]:
    """The bytes of each element of an operand, in C order."""
    buffer = plan.buffers[o.buffer]
    assert isinstance(o.type, Tensor) and isinstance(o.delta, int) and buffer.offset is not None
    shape = [int(str(d)) for d in o.type.dims]
    strides = o.strides
    if strides is None:
        steps = [4]
        for d in shape[:0:-1]:
            steps.insert(0, steps[0] * d)
        strides = tuple(steps)
    area: object = buffer.space if buffer.space is Space.ARENA else (buffer.space, buffer.index)
    start = buffer.offset + o.delta
    found = []
    for index in product(*(range(d) for d in shape)):
        first = start + sum(int(str(s)) * i for s, i in zip(strides, index))
        found.append([(area, first + k) for k in range(4)])
    return found


def flat(items: list[list[Byte]]) -> list[Byte]:
    """All bytes."""
    return [byte for item in items for byte in item]


def judge(plan: Plan) -> None:
    """Raise `Rejected` unless the plan is good."""
    (region,) = plan.regions
    assert isinstance(region, Static)
    roots = {a.value: a.source for a in plan.aliases}
    layouts: dict[int, object] = {}
    ports = [Operand(p.value, Access.READ, p.buffer, p.type) for p in (*plan.inputs, *plan.outputs)]
    for operands in (ports, *(t.operands() for t in region.tasks)):
        for o in operands:
            first, *others = flat(elements(plan, o))
            layout = (o.type, [at - first[1] for _, at in others])
            if o.value in roots and layout[1] != list(range(1, len(others) + 1)):
                raise Rejected(f"the view %{o.value} has strides")
            if layouts.setdefault(o.value, layout) != layout:
                raise Rejected(f"%{o.value} has two layouts")
            _bounds(plan, o)
    for b in plan.buffers:
        assert b.offset is not None and isinstance(b.nbytes, int)
        limit = plan.arena if b.space is Space.ARENA else b.nbytes
        step = 512 if b.space is Space.ARENA else 1
        if limit is None or b.offset + b.nbytes > limit or b.offset % step:
            raise Rejected(f"buffer {b.id} lies outside of its space")
    for port in (*plan.inputs, *plan.outputs):
        assert isinstance(port.type, Tensor)
        if plan.buffers[port.buffer].nbytes != port.type.nbytes:
            raise Rejected(f"port {port.name} has another size than its buffer")
    if [t.id for t in region.tasks] != sorted({t.id for t in region.tasks}):
        raise Rejected("ids do not rise")
    _run(plan, region.tasks, roots)
    _races(plan, region.tasks)


def _bounds(plan: Plan, o: Operand) -> None:
    buffer = plan.buffers[o.buffer]
    assert buffer.offset is not None and isinstance(buffer.nbytes, int)
    for item in elements(plan, o):
        if item[0][1] % 4:
            raise Rejected(f"%{o.value} is not aligned")
        if item[0][1] < buffer.offset or item[-1][1] >= buffer.offset + buffer.nbytes:
            raise Rejected(f"%{o.value} leaves its buffer")


def _run(plan: Plan, tasks: tuple[Task, ...], roots: dict[int, int]) -> None:
    memory: dict[Byte, tuple[int, int]] = {}
    made: dict[tuple[int, int], Byte] = {}
    for port in plan.inputs:
        for k in range(int(str(plan.buffers[port.buffer].nbytes))):
            memory[((Space.INPUT, plan.buffers[port.buffer].index), k)] = made_of = (port.value, k)
            made[made_of] = ((Space.INPUT, plan.buffers[port.buffer].index), k)
    for t in tasks:
        read: dict[Byte, int] = {}
        for i, o in enumerate(t.inputs):
            assert o is not None
            for k, byte in enumerate(flat(elements(plan, o))):
                if memory.get(byte) != (roots.get(o.value, o.value), k):
                    raise Rejected(f"{t.name} reads {memory.get(byte)} as %{o.value}")
                read[byte] = i
        for o in t.outputs:
            mine = elements(plan, o)
            for i, other in enumerate(t.inputs):
                assert other is not None
                theirs = elements(plan, other)
                shared = set(flat(mine)) & set(flat(theirs))
                allowed = i in IN_PLACE.get(t.kernel, ()) and mine == theirs and o.type == other.type
                if shared and not allowed:
                    raise Rejected(f"{t.name} writes over input {i}")
            if plan.buffers[o.buffer].space is Space.INPUT:
                raise Rejected(f"{t.name} writes to an input")
            if len(set(flat(mine))) != len(flat(mine)):
                raise Rejected(f"{t.name} writes a byte twice")
            for k, byte in enumerate(flat(mine)):
                key = (roots.get(o.value, o.value), k)
                if key in made:
                    raise Rejected(f"%{o.value} is made twice")
                memory[byte], made[key] = key, byte
    for port in plan.outputs:
        buffer = plan.buffers[port.buffer]
        for k in range(int(str(buffer.nbytes))):
            if memory.get(((buffer.space, buffer.index), k)) != (roots.get(port.value, port.value), k):
                raise Rejected(f"output {port.name} is wrong")


def _races(plan: Plan, tasks: tuple[Task, ...]) -> None:
    n = len(tasks)
    after = [[False] * n for _ in range(n)]
    recorded: dict[int, int] = {}
    for j, t in enumerate(tasks):
        for i in range(j):
            after[j][i] = tasks[i].stream == t.stream
        for e in t.waits:
            if e not in recorded:
                raise Rejected(f"{t.name} waits for event {e}")
            after[j][recorded[e]] = True
        for e in t.records:
            if recorded.setdefault(e, j) != j:
                raise Rejected(f"event {e} is recorded twice")
    for k, j, i in product(range(n), range(n), range(n)):
        after[j][i] |= after[j][k] and after[k][i]
    for j, i in product(range(n), range(n)):
        if i < j and not after[j][i] and _touch(plan, tasks[i], tasks[j]):
            raise Rejected(f"{tasks[i].name} and {tasks[j].name} race")


def _touch(plan: Plan, a: Task, b: Task) -> bool:
    def touched(t: Task, written: bool) -> set[Byte]:
        operands = t.outputs if written else tuple(t.operands())
        return {byte for o in operands for byte in flat(elements(plan, o))}

    return bool(touched(a, True) & touched(b, False) or touched(b, True) & touched(a, False))
