"""The plans of a model's gears as one plan: each a body of its own, with weights, ports and the arena in common.

    plan of x: [1, 3]   tasks 0–4, arena 2,048 ─┐   gears N { gear 1 { tasks 0–4 }  gear 8 { tasks 5–9 } }
    plan of x: [8, 3]   tasks 0–4, arena 9,216 ─┘   x: [N, 3], arena 9,216, each constant once

One gear runs at a time. So their arenas lie over each other at the addresses that each plan has, and what the model
needs of it is the greatest of them; streams and events have the same numbers in all. Values, buffers of the arena,
tasks and host slots get numbers of their own, gear after gear.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc_py.errors import Problems, error
from atc_py.ir.constants import Constant
from atc_py.ir.dims import Dim, Size, substitute, symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.plan.gears import positions
from atc_py.plan.types import (
    Alias,
    Buffer,
    Carried,
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Port,
    Region,
    Requirement,
    Scan,
    Space,
    Static,
    Task,
    walk,
)
from atc_py.schedule.pool import is_mapped, lay_down

CASE = "Case"
"""The operator of the node that stands for all gears in MODEL_DEF."""
_ANY_SIZE = "leave out --dynamic-…, and the OM takes any size"


@dataclass(frozen=True)
class GearSizes:
    """What the gears are: a value for each symbol in each gear.

    `inputs` and `outputs` have types over these symbols: those of all inputs, and of the outputs as far as they are
    known. `names` are what the gears are called in messages.
    """

    symbols: Mapping[str, Range]
    gears: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    inputs: Mapping[str, Type]
    outputs: Mapping[str, Type]

    def values(self) -> list[dict[str, int]]:
        """The symbols' values of each gear."""
        return [dict(zip(self.symbols, gear)) for gear in self.gears]


def merged(plans: Sequence[Plan], graphs: Sequence[Graph], sizes: GearSizes, options: Mapping[str, str]) -> Plan:
    """One plan of the plans of all gears, which have been made of these lowered graphs; its hint is the largest gear.

    Values are numbered as those of `joined` are: those of the ports first, inputs before outputs, then gear after gear.
    `options` are recorded. Raises `AtcError` E10041 where the plans have nothing in common: a gear's sizes are
    still open, an output lies in the caller's memory in one gear and not in another, or no type is one in all.
    """
    _check(plans, sizes)
    table = _Table(sizes)
    inputs = [table.port(p.name, sizes.inputs[p.name], p, plans[0]) for p in plans[0].inputs]
    outputs = [
        table.port(port.name, table.output_type(port.name, [p.outputs[i].type for p in plans]), port, plans[0])
        for i, port in enumerate(plans[0].outputs)
    ]
    counts = map(_value_count, graphs)
    parts = [_Part(table, plan, count, (*inputs, *outputs)) for plan, count in zip(plans, counts, strict=True)]
    bodies = tuple([part.regions(part.plan.regions) for part in parts])
    names = (*sizes.symbols, *table.sizes)
    gears = tuple([(*gear, *[found[k] for found in table.sizes.values()]) for k, gear in enumerate(sizes.gears)])
    largest = max(range(len(gears)), key=lambda k: (prod(sizes.gears[k]), k))
    return Plan(
        target=plans[0].target,
        symbols=table.symbols(plans),
        buffers=tuple(table.buffers),
        constants=tuple(table.constants),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        regions=(Gears(names, gears, bodies),),
        weights_nbytes=table.place_weights(),
        arena=max(p.arena or 0 for p in plans),
        streams=max(p.streams for p in plans),
        events=max(p.events for p in plans),
        hint=dict(zip(names, gears[largest])),
        options={**plans[0].options, **options},
        aliases=tuple([a for part in parts for a in part.aliases()]),
        initial=tuple([i for part in parts for i in part.initial()]),
        requirements=tuple([r for part in parts for r in part.requirements()]),
    )


def joined(graphs: Sequence[Graph], plan: Plan) -> Graph:
    """The lowered graphs of all gears as the bodies of one node between the model's inputs and outputs: GE's Case."""
    root = Graph(graphs[0].name, dict(plan.symbols))
    inputs = [root.add_input(p.name, p.type) for p in plan.inputs]
    bodies = {f"gear_{k}": graph for k, graph in enumerate(graphs)}
    case = root.add(CASE, inputs, [p.type for p in plan.outputs], subgraphs=bodies, name="gears")
    root.set_outputs(case.outputs, [p.name for p in plan.outputs])
    return root


def _value_count(graph: Graph) -> int:
    """How many numbers the values of a graph and of the bodies inside it take in a plan."""
    count, stack = 0, [graph]
    while stack:
        inner = stack.pop()
        count += max(inner.values, default=-1) + 1
        stack += [b for n in inner.nodes.values() if n.op != "Fused" for b in n.subgraphs.values()]
    return count


def _check(plans: Sequence[Plan], sizes: GearSizes) -> None:
    problems = Problems()
    for name, plan in zip(sizes.names, plans, strict=True):
        if not plan.static:
            cause = f"{', '.join(s for s, r in plan.symbols.items() if not r.runtime)} has no value in it"
            problems.add("E10041", name, cause, "give all sizes of the inputs that the gears do not say: --input-shape")
        for i, port in enumerate(plan.outputs):
            one, other = (p.buffers[p.outputs[i].buffer].space for p in (plans[0], plan))
            if one is not other:
                cause = f"lies in {other.value} in {name}, in {one.value} in {sizes.names[0]}"
                hint = "its size depends on data in some gears only: leave out --dynamic-…, and the OM takes any size"
                problems.add("E10041", f"output '{port.name}'", cause, hint)
    problems.raise_any()


class _Table:
    """What the gears have in common: buffers and constants, and the numbers that are taken."""

    def __init__(self, sizes: GearSizes) -> None:
        self.gears = sizes
        self.buffers: list[Buffer] = []
        self.constants: list[Constant] = []
        self.values = 0
        self.tasks = self.positions = self.slots = self.branches = 0
        self.sizes: dict[str, list[int]] = {}
        """The values, a gear each, of dims of outputs that are no formula over the gears' symbols."""
        self._numbers: dict[Hashable, int] = {}
        self._weights: dict[int, int] = {}

    def port(self, name: str, type_: Type, port: Port, plan: Plan) -> Port:
        """A port of all gears with a buffer of its own; the plan is the first gear's."""
        old = plan.buffers[port.buffer]
        in_bytes = old.space in (Space.INPUT, Space.OUTPUT) and isinstance(type_, Tensor) and not on_host(type_)
        nbytes: Size = type_.nbytes if in_bytes and isinstance(type_, Tensor) else old.nbytes
        offset = old.offset
        if old.space is Space.HOST:
            offset, self.slots = self.slots, self.slots + 1
        made = Port(name, type_, len(self.buffers), self.values)
        self.buffers.append(Buffer(made.buffer, old.space, nbytes, offset, old.index))
        self.values += 1
        return made

    def constant(self, constant: Constant) -> int:
        """The number of a constant, equal ones once."""
        number = self._numbers.setdefault(constant.key, len(self.constants))
        if number == len(self.constants):
            self.constants.append(constant)
        return number

    def weight(self, constant: Constant, nbytes: Size) -> int:
        """The buffer of a constant."""
        number = self.constant(constant)
        found = self._weights.setdefault(number, len(self.buffers))
        if found == len(self.buffers):
            self.buffers.append(Buffer(found, Space.WEIGHTS, nbytes, None, number))
        return found

    def place_weights(self) -> int:
        """Give the weights their offsets, those that lie in the file first; returns where these end, in bytes."""
        weights = [self.buffers[b] for b in self._weights.values()]
        in_file = lay_down([b for b in weights if is_mapped(self.constants[b.index])], 0)
        lay_down([b for b in weights if not is_mapped(self.constants[b.index])], in_file)
        return in_file

    def output_type(self, name: str, types: Sequence[Type]) -> Type:
        """An output's type in all gears; a dim that only a gear knows is a symbol named after output and axis.

        Raises `AtcError` E10041 where nothing says a type of all.
        """
        first = types[0]
        shapes = [t.shape for t in types if isinstance(t, Tensor)]
        if not isinstance(first, Tensor) or all(s == first.shape for s in shapes):
            return first
        known = [s for s in shapes if s is not None]
        if len(known) < len(shapes) or len({len(s) for s in known}) > 1:
            raise error("E10041", f"output '{name}'", "its rank is not the same in all gears", _ANY_SIZE)
        guess = self.gears.outputs.get(name)
        guessed = guess.shape if isinstance(guess, Tensor) and guess.shape is not None else ()
        dims = [
            self._dim(name, axis, found, guessed[axis] if axis < len(guessed) else None)
            for axis, found in enumerate(zip(*known))
        ]
        return first.with_shape(tuple(dims))

    def _dim(self, name: str, axis: int, found: Sequence[Size], guess: Size | None) -> Size:
        if all(d == found[0] for d in found):
            return found[0]
        if isinstance(guess, Dim) and all(d == _in_gear(guess, env) for d, env in zip(found, self.gears.values())):
            return guess
        if not all(isinstance(d, int) for d in found):
            told = ", ".join(f"{d} in {gear}" for d, gear in zip(found, self.gears.names))
            cause = f"only the run time knows axis {axis}, and no formula is that of all gears: {told}"
            raise error("E10041", f"output '{name}'", cause, _ANY_SIZE)
        label = f"{name}.{axis}"
        while label in self.gears.symbols or label in self.sizes:
            label += "'"
        self.sizes[label] = [int(str(d)) for d in found]
        return symbol(label)

    def symbols(self, plans: Sequence[Plan]) -> dict[str, Range]:
        """The gears' symbols, and those of the run time with the ranges that they have in some gear."""
        found = {**self.gears.symbols, **{name: Range(min(v), max(v)) for name, v in self.sizes.items()}}
        for name, r in [item for plan in plans for item in plan.symbols.items()]:
            other = found.setdefault(name, r)
            top = None if r.hi is None or other.hi is None else max(r.hi, other.hi)
            found[name] = replace(r, lo=min(r.lo, other.lo), hi=top)
        return found


def _in_gear(size: Size, env: Mapping[str, int]) -> Size | None:
    """A size in one gear, over what only the run time knows."""
    try:
        return substitute(size, env)
    except ZeroDivisionError:
        return None


class _Part:
    """The plan of one gear, brought into the table: its entries under the numbers that they have there."""

    def __init__(self, table: _Table, plan: Plan, values: int, ports: Sequence[Port]) -> None:
        self.table, self.plan = table, plan
        own = (*plan.inputs, *plan.outputs)
        self._base = table.values
        self._task, self._branch = table.tasks, table.branches
        sources = {a.value: a.source for a in plan.aliases}
        ends = list(zip(own, ports, strict=True))
        self._shared = {p.value: common.value for p, common in ends if p.value not in sources}
        # Of an output that is a view itself, what is written for it is one of what all gears give.
        views = [(p.value, common.value) for p, common in ends if p.value in sources]
        self._views = [Alias(self.value(_root(value, sources)), common) for value, common in views]
        self._buffers = self._brought({p.buffer: common.buffer for p, common in ends})
        self._constants = [table.constant(c) for c in plan.constants]
        regions = list(walk(plan.regions))
        table.values += values
        table.tasks += 1 + max((t.id for t in plan.tasks()), default=-1)
        table.positions += sum(map(positions, regions))
        table.slots += 1 + max((b.offset or 0 for b in plan.buffers if b.space is Space.HOST), default=-1)
        table.branches += 2 * sum(isinstance(r, If) for r in regions)

    def _brought(self, buffers: dict[int, int]) -> dict[int, int]:
        """The table's number of each buffer; those of ports are there."""
        table = self.table
        for b in self.plan.buffers:
            if b.id in buffers:
                continue
            if b.space is Space.WEIGHTS:
                buffers[b.id] = table.weight(self.plan.constants[b.index], b.nbytes)
                continue
            offset = b.offset + table.slots if b.space is Space.HOST and b.offset is not None else b.offset
            kept = b.space is Space.ARENA and b.first >= 0
            first, last = (b.first + table.positions, b.last + table.positions) if kept else (b.first, b.last)
            buffers[b.id] = len(table.buffers)
            table.buffers.append(Buffer(buffers[b.id], b.space, b.nbytes, offset, b.index, first, last))
        return buffers

    # -- entries -----------------------------------------------------------------------------------------------

    def value(self, value: int) -> int:
        """A value's number."""
        return self._shared.get(value, value + self._base if value >= 0 else value)

    def operand(self, o: Operand) -> Operand:
        """An operand."""
        return Operand(self.value(o.value), o.access, self._buffers[o.buffer], o.type, o.delta, o.strides)

    def aliases(self) -> list[Alias]:
        """The views of the gear, and those that outputs are."""
        own = [Alias(self.value(a.value), self.value(a.source), a.delta, a.strides) for a in self.plan.aliases]
        return own + self._views

    def initial(self) -> list[tuple[int, int]]:
        """Where its constants lie."""
        return [(self.value(v), self._buffers[b]) for v, b in self.plan.initial]

    def requirements(self) -> list[Requirement]:
        """What sizes of the run time must satisfy."""
        return [replace(r, branch=r.branch + self._branch * (r.branch >= 0)) for r in self.plan.requirements]

    # -- tasks and regions -------------------------------------------------------------------------------------

    def task(self, t: Task) -> Task:
        """A task."""
        return replace(
            t,
            id=t.id + self._task,
            inputs=tuple([self._maybe(o) for o in t.inputs]),
            outputs=tuple([self.operand(o) for o in t.outputs]),
            workspace=self._maybe(t.workspace),
            host_values={i: self._constants[k] for i, k in t.host_values.items()},
        )

    def regions(self, regions: Sequence[Region]) -> tuple[Region, ...]:
        """A list of regions."""
        return tuple([self._region(r) for r in regions])

    def _region(self, r: Region) -> Region:
        if isinstance(r, Static):
            return Static(tuple([self.task(t) for t in r.tasks]))
        if isinstance(r, Host):
            return Host(self.task(r.task))
        if isinstance(r, Gears):
            return replace(r, bodies=tuple([self.regions(b) for b in r.bodies]))
        outputs = tuple([self.operand(o) for o in r.outputs])
        if isinstance(r, If):
            bodies = self.regions(r.then_branch), self.regions(r.else_branch)
            return If(self.operand(r.predicate), *bodies, r.origin, outputs)
        carried = tuple([Carried(*map(self.operand, (c.initial, c.state, c.result))) for c in r.carried])
        collected = tuple([replace(c, item=self.operand(c.item), stack=self.operand(c.stack)) for c in r.collected])
        body = self.regions(r.body)
        if isinstance(r, Scan):
            sliced = tuple([(self.operand(a), self.operand(b), axis, back) for a, b, axis, back in r.sliced])
            return Scan(sliced, carried, collected, body, r.origin, outputs)
        return Loop(
            trips=self._maybe(r.trips),
            condition=self._maybe(r.condition),
            counter=self._maybe(r.counter),
            next_condition=self._maybe(r.next_condition),
            carried=carried,
            collected=collected,
            body=body,
            origin=r.origin,
            outputs=outputs,
            state_condition=self._maybe(r.state_condition),
        )

    def _maybe(self, o: Operand | None) -> Operand | None:
        return None if o is None else self.operand(o)


def _root(value: int, sources: Mapping[int, int]) -> int:
    while value in sources:
        value = sources[value]
    return value
