"""The verifier: proves that a plan under given sizes and offsets computes what its value ids say.

    verify(plan, binding.offsets, binding.sizes, binding.env)

It gets tasks, value ids, accesses, regions and the operator table, and believes nothing else: lifetimes and
happens-before are computed anew. `LAWS` is all that it demands. A template with symbols is verified under one set of
their values; the law of lifetimes is what carries over to all others, for offsets follow from the lifetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from atc_py.errors import Problems
from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.types import Tensor, on_host
from atc_py.plan.event_law import events
from atc_py.plan.extents import MAX_RUNS, Extent, Layout
from atc_py.plan.flow import Flow, show_region, show_task, show_value
from atc_py.plan.live import live
from atc_py.plan.types import (
    Access,
    Alias,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Region,
    Scan,
    Space,
    Task,
    own_operands,
    walk,
)
from atc_py.plan.uses import uses

ARENA_ALIGNMENT, WEIGHT_ALIGNMENT = 512, 64
"""Bytes to which buffers of these spaces are aligned."""

Finding = tuple[str, str]
"""A place and a cause."""


class Evidence:
    """A plan with its offsets and sizes, as the laws see it. The flow is computed when the first law asks for it."""

    def __init__(self, plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
        self.plan, self.offsets, self.sizes, self.env = plan, offsets, sizes, env
        alive = live(plan, env)
        self.regions = list(walk(alive.regions))
        self.tasks = list(alive.tasks())
        self.layout = Layout(plan, offsets, sizes, env)
        self.flow = Flow(alive, self.layout)
        self._run = False

    def extent(self, operand: Operand) -> Extent:
        """The operand's bytes."""
        return self.flow.extent(operand)

    def found(self, law: str) -> list[Finding]:
        """What the run over shadow memory has found against a law."""
        if not self._run:
            self._run = True
            self.flow.run()
        return self.flow.findings.get(law, [])

    @cached_property
    def operands(self) -> list[tuple[Task | Region, Operand]]:
        """All operands with the task or region that has them."""
        found: list[tuple[Task | Region, Operand]] = [(t, o) for t in self.tasks for o in t.operands()]
        return found + [(r, o) for r in self.regions for o in own_operands(r)]

    @cached_property
    def placed(self) -> list[tuple[Task | Region, Operand, Extent]]:
        """The same with their bytes; the operands' buffers must exist."""
        return [(actor, o, self.flow.extent(o)) for actor, o in self.operands]


def show(actor: Task | Region) -> str:
    """A task or region as people write it."""
    return show_task(actor) if isinstance(actor, Task) else show_region(actor)


# -- the tables ------------------------------------------------------------------------------------------------


def _tables(e: Evidence) -> Iterator[Finding]:
    buffers, constants = len(e.plan.buffers), len(e.plan.constants)
    if not len(e.offsets) == len(e.sizes) == buffers:
        yield "plan", f"{buffers} buffers, but {len(e.offsets)} offsets and {len(e.sizes)} sizes"
    for k, b in enumerate(e.plan.buffers):
        if b.id != k:
            yield f"buffer {k}", f"is numbered {b.id}"
        if b.space is Space.WEIGHTS and not 0 <= b.index < constants:
            yield f"buffer {k}", f"holds constant {b.index}, but there are {constants}"
    for actor, operand in e.operands:
        if not 0 <= operand.buffer < buffers:
            yield show(actor), f"{show_value(operand.value)} lies in buffer {operand.buffer} of {buffers}"
    for kind, ports in (("input", e.plan.inputs), ("output", e.plan.outputs)):
        for port in ports:
            if not 0 <= port.buffer < buffers:
                yield f"{kind} '{port.name}'", f"lies in buffer {port.buffer} of {buffers}"
    for value, number in e.plan.initial:
        if not 0 <= number < buffers:
            yield show_value(value), f"lies in buffer {number} of {buffers}"
    for task in e.tasks:
        for i, number in task.host_values.items():
            if not 0 <= number < constants or i < 0:
                yield show_task(task), f"input {i} is constant {number} of {constants}"


def _order(e: Evidence) -> Iterator[Finding]:
    for before, task in pairwise(e.tasks):
        if task.id <= before.id:
            yield show_task(task), f"comes after {show_task(before)}"


def _accesses(e: Evidence) -> Iterator[Finding]:
    for task in e.tasks:
        for i, o in enumerate(task.inputs):
            if o is not None and o.access is Access.WRITE:
                yield show_task(task), f"input {i} ({show_value(o.value)}) is written, not read"
            if o is not None and i in task.host_values:
                yield show_task(task), f"input {i} is both an operand and a value that the host reads"
        for i, o in enumerate(task.outputs):
            if o.access is Access.READ:
                yield show_task(task), f"output {i} ({show_value(o.value)}) is read, not written"
        if task.workspace is not None and task.workspace.access is not Access.WRITE:
            yield show_task(task), f"the workspace has access '{task.workspace.access.value}', not 'write'"


def _layouts(e: Evidence) -> Iterator[Finding]:
    first: dict[int, tuple[Task | Region, Operand]] = {}
    for actor, o in e.operands:
        if isinstance(actor, Task) and o is actor.workspace:
            continue
        other, known = first.setdefault(o.value, (actor, o))
        if known is o or (known.type is o.type and known.strides == o.strides):
            continue
        same = known.type == o.type and e.extent(known).strides == e.extent(o).strides
        if not same:
            yield show(actor), f"takes {show_value(o.value)} as {_as(o)}, {show(other)} as {_as(known)}"
    yield from _view_layouts(e, first)
    for port in (*e.plan.inputs, *e.plan.outputs):
        for value in dict.fromkeys((port.value, e.flow.roots.get(port.value, (port.value, 0))[0])):
            if value not in first:
                continue
            actor, o = first[value]
            if e.extent(o).strides is not None or (value == port.value and o.type != port.type):
                whole = _as(Operand(value, Access.READ, port.buffer, port.type))
                yield show(actor), f"takes {show_value(value)} as {_as(o)}, but port '{port.name}' is {whole}"


def _view_layouts(e: Evidence, first: Mapping[int, tuple[Task | Region, Operand]]) -> Iterator[Finding]:
    """Operands of views have the strides that are said of the view, and only C-ordered values have C-ordered views.

    A scalar constant that is repeated (strides of 0) may be seen in any shape.
    """
    views = {a.value: a for a in e.plan.aliases}
    strided: dict[int, bool] = {}
    for value, (_, o) in first.items():
        x = e.extent(o)
        scalar = e.layout.spaces[x.area] is Space.WEIGHTS and not any(x.strides or (1,))
        strided[value] = x.strides is not None and not scalar
    named = {p.value: f"port '{p.name}'" for p in (*e.plan.inputs, *e.plan.outputs)}
    for a in e.plan.aliases:
        use = first.get(a.value)
        if use is None and a.value not in named:
            continue
        who = named.get(a.value, "") if use is None else show(use[0])
        if use is not None and (strided[a.value] or a.strides):
            o = use[1]
            meant = replace(o, strides=a.strides)
            if e.extent(o).strides != e.layout.extent(meant).strides:
                yield who, f"takes the view {show_value(a.value)} as {_as(o)}, not {_as(meant)}"
        link: Alias | None = a
        while link is not None and link.strides is None:
            below = views.get(link.source)
            if below.strides is not None if below else strided.get(link.source, False):
                cause = f"{show_value(link.value)} is a C-ordered view of {show_value(link.source)}, which has strides"
                yield who, cause
            link = below


def _as(o: Operand) -> str:
    strides = "" if o.strides is None else f" with strides [{', '.join(map(str, o.strides))}]"
    if not isinstance(o.type, Tensor):
        return repr(o.type)
    shape = "?" if o.type.shape is None else ", ".join(map(str, o.type.shape))
    return f"{o.type.dtype.value}[{shape}] {o.type.storage_format.value}{strides}"


def _aliases(e: Evidence) -> Iterator[Finding]:
    source: dict[int, int] = {}
    for a in e.plan.aliases:
        if source.setdefault(a.value, a.source) != a.source:
            yield show_value(a.value), f"is a view of {show_value(source[a.value])} and of {show_value(a.source)}"
    done: dict[int, int] = {}
    for start in source:
        value: int | None = start
        while value is not None and value not in done:
            done[value] = start
            value = source.get(value)
        if value is not None and done[value] == start:
            yield show_value(value), "is a view of itself"


# -- places ----------------------------------------------------------------------------------------------------


def _bounds(e: Evidence) -> Iterator[Finding]:
    for actor, o, x in e.placed:
        buffer = e.plan.buffers[o.buffer]
        if x.unit:
            if x.form.host and buffer.space not in (Space.HOST, Space.INPUT, Space.DYNAMIC):
                cause = f"{show_value(o.value)} has no bytes, but lies in {buffer.space.value}; it needs a host slot"
                yield show(actor), cause
            continue
        if x.late:
            if o.access is not Access.READ and buffer.space is not Space.DYNAMIC:
                cause = f"the size of {show_value(o.value)} is known only at run time: it cannot lie in "
                yield show(actor), cause + e.layout.names[x.area]
            continue
        start = e.offsets[o.buffer]
        end = start + max(e.sizes[o.buffer], 0)
        if x.runs and (x.low < start or x.high > end):
            yield (
                show(actor),
                f"{show_value(o.value)} takes {e.layout.where(x.area, (x.low, x.high))}, but buffer {o.buffer} is "
                f"[{start}, {end})",
            )
        if x.scattered:
            yield show(actor), f"{show_value(o.value)} lies in more than {MAX_RUNS} separate pieces"
        if x.repeats and o.access is not Access.READ:
            yield show(actor), f"elements of {show_value(o.value)} share bytes, but are written"
    yield from _buffer_bounds(e)
    yield from _port_bounds(e)


def _buffer_bounds(e: Evidence) -> Iterator[Finding]:
    for b, offset, size in zip(e.plan.buffers, e.offsets, e.sizes):
        if b.space is Space.DYNAMIC:
            continue
        if offset < 0 or (b.space in (Space.INPUT, Space.OUTPUT) and offset):
            yield f"buffer {b.id}", f"has the offset {offset} in {b.space.value}"
        if b.space is Space.HOST and size != 1:
            yield f"buffer {b.id}", f"a host slot has the size {size}, not 1"
        if b.space is Space.ARENA and e.plan.arena is not None and e.plan.static and offset + size > e.plan.arena:
            cause = f"takes [{offset}, {offset + size}), but the arena has {e.plan.arena} bytes"
            yield f"buffer {b.id}", cause
    in_area: dict[int, list[tuple[int, int, int]]] = {}
    for b in e.plan.buffers:
        if b.space in (Space.WEIGHTS, Space.VARIABLE, Space.HOST) and e.sizes[b.id] > 0:
            start = e.offsets[b.id]
            in_area.setdefault(e.layout.area_of[b.id], []).append((start, start + e.sizes[b.id], b.id))
    for area, spans in in_area.items():
        spans.sort()
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                yield f"buffer {other}", f"begins at {e.layout.names[area]} +{start}, inside of buffer {one}"


def _port_bounds(e: Evidence) -> Iterator[Finding]:
    places = {"input": (Space.INPUT,), "output": (Space.OUTPUT, Space.HOST, Space.DYNAMIC)}
    for kind, ports in (("input", e.plan.inputs), ("output", e.plan.outputs)):
        for i, port in enumerate(ports):
            b = e.plan.buffers[port.buffer]
            if b.space not in places[kind]:
                yield f"{kind} '{port.name}'", f"lies in {b.space.value}"
                continue
            if b.space in (Space.INPUT, Space.OUTPUT) and b.index != i:
                yield f"{kind} '{port.name}'", f"is number {i}, but its buffer {b.id} is that of port {b.index}"
            nbytes = e.layout.nbytes(port.type)
            late = nbytes is None or (kind == "input" and on_host(port.type))
            if b.space in (Space.INPUT, Space.OUTPUT) and not late and e.sizes[b.id] != nbytes:
                yield f"{kind} '{port.name}'", f"has {nbytes} bytes, but its buffer {b.id} has {e.sizes[b.id]}"


def _alignment(e: Evidence) -> Iterator[Finding]:
    for b, offset in zip(e.plan.buffers, e.offsets):
        step = {Space.ARENA: ARENA_ALIGNMENT, Space.WEIGHTS: WEIGHT_ALIGNMENT}.get(b.space, 1)
        if offset % step:
            yield f"buffer {b.id}", f"lies at {b.space.value} +{offset}, which is no multiple of {step}"
    for actor, o, x in e.placed:
        if x.unit or x.late or not x.form.itemsize:
            continue
        if x.first % x.form.itemsize or any(s % x.form.itemsize for s in x.strides or ()):
            where = f"{e.layout.names[x.area]} +{x.first}"
            yield show(actor), f"{show_value(o.value)} at {where} is not aligned to its elements of {x.form.itemsize}"


def _lifetimes(e: Evidence) -> Iterator[Finding]:
    for actor, operand, position, loops in uses(e.plan):
        b = e.plan.buffers[operand.buffer]
        if b.space is not Space.ARENA or b.first < 0:
            continue
        end = max((last for first, last in loops if b.first < first), default=position)
        if not b.first <= position <= max(position, end) <= b.last:
            until = f" and is needed until {end}, where a loop ends" if end > position else ""
            yield (
                show(actor),
                f"uses buffer {b.id} at position {position}{until}, but the buffer is kept from {b.first} to {b.last}",
            )


def _weights(e: Evidence) -> Iterator[Finding]:
    for b in e.plan.buffers:
        if b.space is not Space.WEIGHTS:
            continue
        constant = e.plan.constants[b.index]
        size, end = e.sizes[b.id], e.offsets[b.id] + e.sizes[b.id]
        nbytes = _constant_nbytes(constant)
        if size != nbytes:
            yield f"buffer {b.id}", f"has {size} bytes, but constant {b.index} takes {nbytes}"
        mapped = isinstance(constant, Blob) and constant.dtype.bits >= 8
        if mapped and end > e.plan.weights_nbytes:
            yield f"buffer {b.id}", f"ends at {end}, but the file holds {e.plan.weights_nbytes} bytes of weights"
        if not mapped and size and e.offsets[b.id] < e.plan.weights_nbytes:
            yield f"buffer {b.id}", f"is made at bind, but lies at {e.offsets[b.id]}, among the file's bytes"


def _constant_nbytes(constant: Constant) -> int | None:
    """Bytes in the weights space: of a Splat one element, of types below eight bits one byte an element."""
    if isinstance(constant, Splat):
        return constant.dtype.itemsize
    nbytes = constant.dtype.itemsize
    for d in constant.shape:
        nbytes *= d
    return nbytes


# -- streams and symbols ---------------------------------------------------------------------------------------


def _events(e: Evidence) -> Iterator[Finding]:
    yield from events(e.plan, e.regions)


def _binds(e: Evidence) -> Iterator[Finding]:
    hosts = {id(r.task) for r in e.regions if isinstance(r, Host)}
    bound: dict[str, Task] = {}
    for task in e.tasks:
        for symbol, output, axis in task.binds:
            range_ = e.plan.symbols.get(symbol)
            if range_ is None or not range_.runtime:
                yield show_task(task), f"binds '{symbol}', which is no symbol of the run time"
            if not 0 <= output < len(task.outputs):
                yield show_task(task), f"binds '{symbol}' to output {output}, which it does not have"
            elif not _has_axis(task.outputs[output], axis):
                yield show_task(task), f"binds '{symbol}' to axis {axis} of output {output}, which is not there"
            if bound.setdefault(symbol, task) is not task:
                yield show_task(task), f"binds '{symbol}', which {show_task(bound[symbol])} binds"
            if id(task) not in hosts:
                yield show_task(task), f"binds '{symbol}', but is no step that the host waits for"


def _has_axis(operand: Operand, axis: int) -> bool:
    t = operand.type
    return isinstance(t, Tensor) and axis >= 0 and (t.shape is None or axis < len(t.shape))


def _control(e: Evidence) -> Iterator[Finding]:
    for region in e.regions:
        if isinstance(region, (Loop, Scan)):
            for c in region.carried:
                known = [e.layout.form(o.type).shape for o in (c.initial, c.state, c.result)]
                if None not in known and len(set(known)) > 1:
                    yield show(region), f"the carried {show_value(c.state.value)} has the shapes {known}"
        elif isinstance(region, If) and not region.then_branch and not region.else_branch:
            yield show(region), "both branches are empty"


def _flow(law: str) -> Callable[[Evidence], Iterator[Finding]]:
    return lambda e: iter(e.found(law))


@dataclass(frozen=True)
class Law:
    """One thing that is true of every good plan. `needed`: without it the later laws cannot be looked at."""

    code: str
    name: str
    law: str
    check: Callable[[Evidence], Iterator[Finding]]
    hint: str = ""
    needed: bool = False


_REPORT = "the plan would compute wrong results; please report it together with the model"
_STREAMS = "let the later task wait for an event that the earlier one records"

LAWS: tuple[Law, ...] = (
    Law("E31001", "tables", "every number in the plan names an entry that exists", _tables, _REPORT, True),
    Law("E31002", "aliases", "a value is a view of at most one other, never of itself", _aliases, _REPORT, True),
    Law("E31003", "ids", "task ids rise in the order of the plan", _order, _REPORT),
    Law("E31004", "accesses", "inputs are read or updated, outputs written or updated", _accesses, _REPORT),
    Law("E31005", "layouts", "all tasks see a value with one type and one set of strides", _layouts, _REPORT),
    Law("E31006", "bounds", "operands lie in their buffers, buffers in their spaces", _bounds, _REPORT),
    Law("E31007", "alignment", "arena to 512 bytes, weights to 64, elements to themselves", _alignment, _REPORT),
    Law("E31008", "lifetimes", "an arena buffer is kept while a task uses it", _lifetimes, _REPORT),
    Law("E31009", "weights", "a weights buffer holds its constant, in the file or behind it", _weights, _REPORT),
    Law("E31010", "events", "a wait is for one record, which comes before it for certain", _events, _STREAMS),
    Law("E31011", "binds", "a symbol is bound once, by a step that the host waits for", _binds, _REPORT),
    Law("E31012", "control", "branches do something, carried values keep their shapes", _control, _REPORT),
    Law("E31013", "read-only", "nothing writes to inputs and weights", _flow("read-only"), _REPORT),
    Law("E31014", "reads", "each read sees the bytes of the value that it names", _flow("reads"), _REPORT),
    Law("E31015", "one writer", "a value is written once, to one place", _flow("one writer"), _REPORT),
    Law("E31016", "in place", "outputs overlap inputs only as the operator allows", _flow("in place"), _REPORT),
    Law("E31017", "order", "no two unordered tasks touch bytes that one writes", _flow("order"), _STREAMS),
    Law("E31018", "outputs", "at the end every output holds its value", _flow("outputs"), _REPORT),
)
"""All laws, in the order in which they are checked."""


def verify(plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
    """Check the plan against all `LAWS`, its buffers having the given offsets and sizes in bytes.

    A size of -1 is one that only the run time knows. Branches that are dead under `env` (see `atc_py.plan.live`) are
    left out of all laws about bytes. Of `Gears` the gear that `env` names is looked at, or all where
    it names none. Raises one `AtcError` with all violations (E31001–E31018).
    """
    evidence = Evidence(plan, offsets, sizes, env) if len(offsets) == len(sizes) == len(plan.buffers) else None
    problems = Problems()
    if evidence is None:
        problems.add("E31001", "plan", f"{len(plan.buffers)} buffers, {len(offsets)} offsets, {len(sizes)} sizes")
        problems.raise_any()
        return
    for law in LAWS:
        for place, cause in law.check(evidence):
            problems.add(law.code, place, cause, law.hint)
        if law.needed:
            problems.raise_any()
    problems.raise_any()
