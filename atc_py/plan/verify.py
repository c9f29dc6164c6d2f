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
from math import prod
from typing import TypeAlias

from atc_py.errors import Problems
from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.types import Tensor, on_host
from atc_py.ir.validate import ENGINES
from atc_py.plan.accesses import Accesses, Placement, roots_of
from atc_py.plan.collective_law import Collectives, in_bodies, unordered
from atc_py.plan.event_law import events
from atc_py.plan.extents import MAX_RUNS, Extent, Layout
from atc_py.plan.flow import Flow
from atc_py.plan.gears import wrong_gears
from atc_py.plan.lifetimes import lifetimes
from atc_py.plan.live import live
from atc_py.plan.show import show, show_task, show_value
from atc_py.plan.size_law import early_uses
from atc_py.plan.types import (
    Access,
    Alias,
    If,
    Loop,
    Operand,
    Plan,
    Scan,
    Space,
    Static,
    Task,
    walk,
)
from atc_py.plan.workspace_law import workspaces

ARENA_ALIGNMENT, WEIGHT_ALIGNMENT = 512, 64
"""Bytes to which buffers of these spaces are aligned."""

Finding: TypeAlias = "tuple[str, str] | tuple[str, str, str]"
"""A place, a cause, and where the law's own hint would not say it, what to do."""


class Evidence:
    """A plan with its offsets and sizes, as the laws see it."""

    def __init__(self, plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
        self.plan, self.offsets, self.sizes, self.env = plan, offsets, sizes, env
        self.alive = live(plan, env)
        self.regions = list(walk(self.alive.regions))
        self.tasks = list(self.alive.tasks())
        self.layout = Layout(plan, offsets, sizes, env)
        self.roots = roots_of(plan, self.layout)
        self.accesses = Accesses(self.regions)

    @cached_property
    def placements(self) -> Sequence[Placement]:
        """All placements with their bytes; their buffers must exist."""
        self.accesses.locate(self.layout, self.roots)
        return self.accesses.placements

    @cached_property
    def findings(self) -> Mapping[str, list[tuple[str, str]]]:
        """What the run over shadow memory has found, by the law's name."""
        flow = Flow(self.alive, self.layout, self.accesses, self.roots)
        flow.run()
        return flow.findings


# -- the tables ------------------------------------------------------------------------------------------------


def _tables(e: Evidence) -> Iterator[Finding]:
    buffers, constants = len(e.plan.buffers), len(e.plan.constants)
    for k, b in enumerate(e.plan.buffers):
        if b.id != k:
            yield f"buffer {k}", f"is numbered {b.id}"
    for b in e.layout.buffers[Space.WEIGHTS]:
        if not 0 <= b.index < constants:
            yield f"buffer {b.id}", f"holds constant {b.index}, but there are {constants}"
    lost = {p for p in e.accesses.placements if not 0 <= p.operand.buffer < buffers}
    for actor, operand, _ in e.accesses.uses(lost):
        yield show(actor), f"{show_value(operand.value)} lies in buffer {operand.buffer} of {buffers}"
    for kind, ports in (("input", e.plan.inputs), ("output", e.plan.outputs)):
        for port in ports:
            if not 0 <= port.buffer < buffers:
                yield f"{kind} '{port.name}'", f"lies in buffer {port.buffer} of {buffers}"
    for value, number in e.plan.initial:
        if not 0 <= number < buffers:
            yield show_value(value), f"lies in buffer {number} of {buffers}"
    for task in e.tasks:
        if task.engine not in ENGINES:
            yield show_task(task), f"runs on '{task.engine}', which is none of the engines {', '.join(ENGINES)}"
        for i, number in task.host_values.items():
            if not 0 <= number < constants or i < 0:
                yield show_task(task), f"input {i} is constant {number} of {constants}"


def _order(e: Evidence) -> Iterator[Finding]:
    for before, task in pairwise(e.tasks):
        if task.id <= before.id:
            yield show_task(task), f"comes after {show_task(before)}"


def _accesses(e: Evidence) -> Iterator[Finding]:
    for task in [row.task for row in e.accesses.rows() if not row.plain or row.task.host_values]:
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
    first: dict[int, Placement] = {}
    odd = {p for p in e.placements if not (p.scratch or _alike(first.setdefault(p.operand.value, p), p))}
    for actor, o, _ in e.accesses.uses(odd):
        known = first[o.value]
        yield show(actor), f"takes {show_value(o.value)} as {_as(o)}, {show(known.actor)} as {_as(known.operand)}"
    yield from _view_layouts(e, first)
    for port in (*e.alive.inputs, *e.alive.outputs):
        for value in dict.fromkeys((port.value, e.roots.get(port.value, (port.value, 0))[0])):
            if value not in first:
                continue
            p = first[value]
            if p.extent.strides is not None or (value == port.value and p.operand.type != port.type):
                whole = _as(Operand(value, Access.READ, port.buffer, port.type))
                cause = f"takes {show_value(value)} as {_as(p.operand)}, but port '{port.name}' is {whole}"
                yield show(p.actor), cause


def _alike(one: Placement, other: Placement) -> bool:
    """Whether two placements have the same type and strides."""
    if one is other:
        return True
    a, b = one.operand.type, other.operand.type
    return (a is b or a == b) and one.extent.strides == other.extent.strides


def _view_layouts(e: Evidence, first: Mapping[int, Placement]) -> Iterator[Finding]:
    """Operands of views have the strides that are said of the view, and only C-ordered values have C-ordered views.

    A scalar constant that is repeated (strides of 0) may be seen in any shape.
    """
    strided = {value for value, p in first.items() if p.extent.strides is not None and not _repeated(e, p)}
    views = {a.value: a for a in e.plan.aliases}
    named = {p.value: f"port '{p.name}'" for p in (*e.plan.inputs, *e.plan.outputs)}

    def reshaped(a: Alias) -> bool:
        below = views.get(a.source)
        return a.strides is None and (below.strides is not None if below else a.source in strided)

    wrong = any(map(reshaped, e.plan.aliases))
    for a in e.plan.aliases:
        use = first.get(a.value)
        if use is None and a.value not in named:
            continue
        who = named.get(a.value, "") if use is None else show(use.actor)
        if use is not None and (a.value in strided or a.strides):
            meant = replace(use.operand, strides=a.strides)
            if use.extent.strides != e.layout.extent(meant).strides:
                yield who, f"takes the view {show_value(a.value)} as {_as(use.operand)}, not {_as(meant)}"
        link: Alias | None = a if wrong else None
        while link is not None and link.strides is None:
            below = views.get(link.source)
            if reshaped(link):
                cause = f"{show_value(link.value)} is a C-ordered view of {show_value(link.source)}, which has strides"
                yield who, cause
            link = below


def _repeated(e: Evidence, p: Placement) -> bool:
    return e.layout.spaces[p.area] is Space.WEIGHTS and not any(p.extent.strides or (1,))


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
    for actor, o, p in e.accesses.uses({p for p in e.placements if not _inside(e, p)}):
        buffer, x = e.plan.buffers[o.buffer], p.extent
        value = show_value(o.value)
        if x.unit:
            yield show(actor), f"{value} has no bytes, but lies in {buffer.space.value}; it needs a host slot"
            continue
        if x.late:
            if o.access is not Access.READ:
                cause = f"the size of {value} is known only at run time: it cannot lie in {e.layout.names[x.area]}"
                yield show(actor), cause
            continue
        start, end = e.offsets[o.buffer], e.offsets[o.buffer] + max(e.sizes[o.buffer], 0)
        if x.runs and (x.low < start or x.high > end):
            where = e.layout.where(x.area, (x.low, x.high))
            yield show(actor), f"{value} takes {where}, but buffer {o.buffer} is [{start}, {end})"
        if x.scattered:
            yield show(actor), f"{value} lies in more than {MAX_RUNS} separate pieces"
        if x.repeats and o.access is not Access.READ:
            yield show(actor), f"elements of {value} share bytes, but are written"
    yield from _buffer_bounds(e)
    yield from _port_bounds(e)
    yield from workspaces(e.plan, e.tasks, e.layout)


def _inside(e: Evidence, p: Placement) -> bool:
    """Whether the bytes are in their buffer, and what is written has a known number of them, each for one element."""
    x = p.extent
    if x.unit:
        return not x.form.host or e.layout.spaces[x.area] in (Space.HOST, Space.INPUT, Space.DYNAMIC)
    if p.written and (x.late or x.repeats):
        return False
    start, size = e.offsets[p.operand.buffer], e.sizes[p.operand.buffer]
    return not x.scattered and (not x.runs or (start <= x.low and x.high <= start + size))


def _buffer_bounds(e: Evidence) -> Iterator[Finding]:
    offsets, sizes, members = e.offsets, e.sizes, e.layout.buffers
    for space in Space:
        port = space in (Space.INPUT, Space.OUTPUT)
        for b in [b for b in members[space] if offsets[b.id] < 0 or (port and offsets[b.id])]:
            if space is not Space.DYNAMIC:
                yield f"buffer {b.id}", f"has the offset {offsets[b.id]} in {space.value}"
    for b in members[Space.HOST]:
        if sizes[b.id] != 1:
            yield f"buffer {b.id}", f"a host slot has the size {sizes[b.id]}, not 1"
    limit = e.plan.arena
    for b in members[Space.ARENA] if limit is not None else ():
        start, end = offsets[b.id], offsets[b.id] + sizes[b.id]
        if limit is not None and end > limit:
            yield f"buffer {b.id}", f"takes [{start}, {end}), but the arena has {limit} bytes"
    for space in (Space.WEIGHTS, Space.VARIABLE, Space.HOST):
        yield from _disjoint(e, [b.id for b in members[space] if sizes[b.id] > 0])


def _disjoint(e: Evidence, buffers: Sequence[int]) -> Iterator[Finding]:
    """Buffers of one area that is not shared: none begins inside of another."""
    offsets, sizes = e.offsets, e.sizes
    rising = sorted(zip([offsets[k] for k in buffers], [sizes[k] for k in buffers], buffers))
    for (start, size, one), (next_start, _, other) in pairwise(rising):
        if next_start < start + size:
            where = f"{e.layout.names[e.layout.area_of[other]]} +{next_start}"
            yield f"buffer {other}", f"begins at {where}, inside of buffer {one}"


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
    for space, step in ((Space.ARENA, ARENA_ALIGNMENT), (Space.WEIGHTS, WEIGHT_ALIGNMENT)):
        for b in e.layout.buffers[space]:
            if e.offsets[b.id] % step:
                yield f"buffer {b.id}", f"lies at {space.value} +{e.offsets[b.id]}, which is no multiple of {step}"
    for actor, o, p in e.accesses.uses({p for p in e.placements if not _aligned(p.extent)}):
        where, itemsize = f"{e.layout.names[p.area]} +{p.extent.first}", p.extent.form.itemsize
        yield show(actor), f"{show_value(o.value)} at {where} is not aligned to its elements of {itemsize}"


def _aligned(x: Extent) -> bool:
    step = x.form.itemsize
    if x.unit or x.late or not step:
        return True
    return not x.first % step and (x.strides is None or not any(s % step for s in x.strides))


def _lifetimes(e: Evidence) -> Iterator[Finding]:
    yield from lifetimes(e.plan)


def _weights(e: Evidence) -> Iterator[Finding]:
    weights = e.plan.weights_nbytes
    for b in e.layout.buffers[Space.WEIGHTS]:
        constant = e.plan.constants[b.index]
        start, size = e.offsets[b.id], e.sizes[b.id]
        nbytes = _constant_nbytes(constant)
        if size != nbytes:
            yield f"buffer {b.id}", f"has {size} bytes, but constant {b.index} takes {nbytes}"
        mapped = isinstance(constant, Blob) and constant.dtype.bits >= 8
        if mapped and start + size > weights:
            yield f"buffer {b.id}", f"ends at {start + size}, but the file holds {weights} bytes of weights"
        if not mapped and size and start < weights:
            yield f"buffer {b.id}", f"is made at bind, but lies at {start}, among the file's bytes"


def _constant_nbytes(constant: Constant) -> int | None:
    """Bytes in the weights space: of a Splat one element, of types below eight bits one byte an element."""
    itemsize = constant.dtype.itemsize
    return itemsize if isinstance(constant, Splat) else prod(constant.shape) * itemsize


# -- streams and symbols ---------------------------------------------------------------------------------------


def _events(e: Evidence) -> Iterator[Finding]:
    yield from events(e.plan, e.regions)


def _binds(e: Evidence) -> Iterator[Finding]:
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
    for region in e.regions:
        if isinstance(region, Static):
            yield from early_uses(e.plan, region, e.layout, e.roots)


def _has_axis(operand: Operand, axis: int) -> bool:
    t = operand.type
    return isinstance(t, Tensor) and axis >= 0 and (t.shape is None or axis < len(t.shape))


def _collectives(e: Evidence) -> Iterator[Finding]:
    collectives = Collectives()
    for region in e.regions:
        if isinstance(region, Static):
            yield from unordered(region, collectives)
    yield from in_bodies(e.regions, collectives)


def _control(e: Evidence) -> Iterator[Finding]:
    yield from wrong_gears(e.plan)
    for region in e.regions:
        if isinstance(region, (Loop, Scan)):
            for c in region.carried:
                known = [e.layout.form(o.type).shape for o in (c.initial, c.state, c.result)]
                if None not in known and len(set(known)) > 1:
                    yield show(region), f"the carried {show_value(c.state.value)} has the shapes {known}"
        elif isinstance(region, If) and not region.then_branch and not region.else_branch:
            yield show(region), "both branches are empty"


def _flow(law: str) -> Callable[[Evidence], Iterator[Finding]]:
    return lambda e: iter(e.findings.get(law, ()))


@dataclass(frozen=True)
class Law:
    """One thing that is true of every good plan.

    `hint` is what to do where a finding does not say it itself. `needed`: without it the later laws cannot be looked
    at.
    """

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
    Law("E31006", "bounds", "operands fit in buffers, buffers in spaces, kernels in workspaces", _bounds, _REPORT),
    Law("E31007", "alignment", "arena to 512 bytes, weights to 64, elements to themselves", _alignment, _REPORT),
    Law("E31008", "lifetimes", "an arena buffer is kept while a task uses it", _lifetimes, _REPORT),
    Law("E31009", "weights", "a weights buffer holds its constant, in the file or behind it", _weights, _REPORT),
    Law("E31010", "events", "a wait is for one record, which comes before it for certain", _events),
    Law("E31011", "binds", "a symbol is bound once; what a launch needs comes of earlier lists", _binds, _REPORT),
    Law("E31012", "control", "branches do something, carried values keep shapes, gears stand alone", _control, _REPORT),
    Law("E31013", "read-only", "nothing writes to inputs and weights", _flow("read-only"), _REPORT),
    Law("E31014", "reads", "each read sees the bytes of the value that it names", _flow("reads"), _REPORT),
    Law("E31015", "one writer", "a value is written once, to one place", _flow("one writer"), _REPORT),
    Law("E31016", "in place", "outputs overlap inputs only as the operator allows", _flow("in place"), _REPORT),
    Law("E31017", "order", "no two unordered tasks touch bytes that one writes", _flow("order"), _STREAMS),
    Law("E31018", "outputs", "at the end every output holds its value", _flow("outputs"), _REPORT),
    Law("E31019", "collectives", "collectives come one after the other for certain", _collectives, _STREAMS),
)
"""All laws, in the order in which they are checked."""


def verify(plan: Plan, offsets: Sequence[int], sizes: Sequence[int], env: Mapping[str, int]) -> None:
    """Check the plan against all `LAWS`, its buffers having the given offsets and sizes in bytes.

    A size of -1 is one that only the run time knows. Branches that are dead under `env` (see `atc_py.plan.live`) are
    left out of all laws about bytes. Of `Gears` the gear that `env` names is looked at, or all where
    it names none. Raises one `AtcError` with all violations (E31001–E31019).
    """
    evidence = Evidence(plan, offsets, sizes, env) if len(offsets) == len(sizes) == len(plan.buffers) else None
    problems = Problems()
    if evidence is None:
        problems.add("E31001", "plan", f"{len(plan.buffers)} buffers, {len(offsets)} offsets, {len(sizes)} sizes")
        problems.raise_any()
        return
    for law in LAWS:
        for place, cause, *step in law.check(evidence):
            problems.add(law.code, place, cause, step[0] if step else law.hint)
        if law.needed:
            problems.raise_any()
    problems.raise_any()
