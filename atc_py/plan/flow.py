"""What each read finds: a plan run over shadow memory, in the order of the plan.

    task 0 (stream 0) writes %1 to arena [0, 512), records event 0       clock of stream 0: (0, -)
    task 1 (stream 1) waits for event 0, reads %1 there                  clock of stream 1: (0, 1)   fine
    task 2 (stream 0) writes %2 to arena [0, 512)                        clock of stream 0: (2, -)

Task 2 has to come after task 1, which has read the bytes, but its clock has no entry for stream 1: a race.

Happens-before is kept in vector clocks (F. Mattern, C. Fidge): the clock of a task holds, for each stream, the last
step that is certainly done when the task begins. Regions are barriers, for all streams join at their ends. Of an If
only what both branches agree about is known afterwards; the body of a loop is run until what is known at its
beginning no longer shrinks, zero iterations included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atc_py.errors import AtcError
from atc_py.plan.extents import Extent, Layout, Run
from atc_py.plan.shadow import MIXED, SCRATCH, Shadow, Span, merge
from atc_py.plan.types import Access, Carried, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task

INITIAL = -2
"""The root of what a variable holds; which value that is, `homes` says."""
STACKING = -5
"""The root of a stack that a loop is still appending to."""
ROUNDS, STEPS = 64, 100_000
"""A plan of n tasks may take ROUNDS * n + STEPS steps before its loops are declared to nest too deep."""

FIXED = frozenset({Space.INPUT, Space.WEIGHTS})
"""Spaces that nothing writes to."""


@dataclass
class State:
    """What is known at one point: the areas' shadows, where each root lies, and who has made which bytes of it."""

    shadows: dict[int, Shadow] = field(default_factory=dict)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    made: dict[int, tuple[tuple[Task | Region, Extent], ...]] = field(default_factory=dict)

    def copy(self) -> State:
        """A copy that changes on its own."""
        return State({a: s.copy() for a, s in self.shadows.items()}, dict(self.places), dict(self.made))

    def shadow(self, area: int) -> Shadow:
        """The area's shadow."""
        return self.shadows.setdefault(area, Shadow())

    def merged(self, other: State) -> tuple[State, bool]:
        """What is known after either of two ways, and whether it is less than what this state says."""
        result = State({}, {**other.places, **self.places}, {**other.made, **self.made})
        for root, makers in other.made.items():
            mine = result.made[root]
            if mine is not makers:
                known = {(id(actor), id(extent)) for actor, extent in mine}
                result.made[root] = (*mine, *(m for m in makers if (id(m[0]), id(m[1])) not in known))
        shrunk = False
        for area in dict.fromkeys([*self.shadows, *other.shadows]):
            result.shadows[area], less = merge(self.shadow(area), other.shadow(area))
            shrunk |= less
        return result, shrunk


def show_value(value: int) -> str:
    """A value as people write it."""
    return f"%{value}"


def show_task(task: Task) -> str:
    """A task as people write it."""
    return f"task {task.id} '{task.name}'"


def show_region(region: Region) -> str:
    """A region as people write it."""
    origin = getattr(region, "origin", ())
    return type(region).__name__ + (f" '{origin[0]}'" if origin else "")


def roots_of(plan: Plan, layout: Layout) -> dict[int, tuple[int, int | None]]:
    """For each alias the value whose bytes it has, and where in it (bytes; None: known only at run time)."""
    source = {a.value: (a.source, layout.size(a.delta)) for a in plan.aliases}
    roots: dict[int, tuple[int, int | None]] = {}
    for value in source:
        chain: list[int] = []
        while value in source and value not in roots and len(chain) <= len(source):
            chain.append(value)
            value = source[value][0]
        for v in reversed(chain):
            parent, delta = source[v]
            root, rest = roots.get(parent, (parent, 0))
            roots[v] = (root, None if delta is None or rest is None else delta + rest)
    return roots


class Flow:
    """One run over shadow memory. `findings` maps a law's name to its violations: (place, cause)."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout
        self.roots = roots_of(plan, layout)
        self.findings: dict[str, list[tuple[str, str]]] = {}
        self.homes: dict[int, tuple[int, int]] = {}
        self.actors: list[Task | Region] = []
        self.extents: dict[int, Extent] = {}
        self._streams: list[int] = []
        self._clock: list[int] = []
        self._barrier = 0
        self._several = False
        self._budget = ROUNDS * sum(1 for _ in plan.tasks()) + STEPS
        self._unnamed: list[int] = []

    def run(self) -> None:
        """Run the plan and check what the output ports hold at the end."""
        state = self._initial()
        state = self._regions(self.plan.regions, state)
        self._outputs(state)

    def extent(self, operand: Operand) -> Extent:
        """The bytes of one of the plan's operands (computed once an operand)."""
        found = self.extents.get(id(operand))
        if found is None:
            found = self.extents[id(operand)] = self.layout.extent(operand)
        return found

    def _found(self, law: str, place: str, cause: str) -> None:
        self.findings.setdefault(law, []).append((place, cause))

    def _initial(self) -> State:
        plan, layout, state = self.plan, self.layout, State()
        for port in plan.inputs:
            area = layout.area_of[port.buffer]
            if port.value >= 0:
                self.homes[port.value] = (area, 0)
            else:
                self._unnamed.append(area)
        for value, number in plan.initial:
            self.homes[value] = (layout.area_of[number], layout.offsets[number])
        for b in plan.buffers:
            start, end = layout.offsets[b.id], layout.offsets[b.id] + layout.sizes[b.id]
            if b.space is Space.VARIABLE and start < end:
                self.actors.append(Static(()))
                self._streams.append(0)
                span = Span(end, INITIAL, start, len(self.actors) - 1)
                state.shadow(layout.area_of[b.id]).write(start, end, span)
        return state

    # -- regions -----------------------------------------------------------------------------------------------

    def _regions(self, regions: Sequence[Region], state: State) -> State:
        for region in regions:
            if isinstance(region, Static):
                self._tasks(region.tasks, state)
            elif isinstance(region, Host):
                self._tasks((region.task,), state)
            elif isinstance(region, If):
                self._begin(region)
                self._read(region, region.predicate, state)
                one = self._regions(region.then_branch, state.copy())
                state = one.merged(self._regions(region.else_branch, state.copy()))[0]
            elif isinstance(region, Gears):
                state = self._gears(region, state)
            else:
                state = self._loop(region, state)
        return state

    def _gears(self, region: Gears, state: State) -> State:
        env = self.layout.env
        chosen = [
            body
            for values, body in zip(region.gears, region.bodies)
            if all(env.get(s) == v for s, v in zip(region.symbols, values))
        ]
        results = [self._regions(body, state.copy()) for body in chosen or region.bodies]
        for other in results[1:]:
            results[0] = results[0].merged(other)[0]
        return results[0] if results else state

    def _loop(self, region: Loop | Scan, state: State) -> State:
        self._begin(region)
        if isinstance(region, Loop):
            for operand in (region.trips, region.condition):
                if operand is not None:
                    self._read(region, operand, state)
        for c in region.carried:
            self._move(region, c.initial, c.state, state)
        for k in region.collected:
            self._write(region, k.stack, state, STACKING)
        before, shrunk = state.made, True
        while shrunk and self._budget > 0:
            inner = state.copy()
            inner.made = dict(before)  # an iteration makes its values anew
            state, shrunk = state.merged(self._iteration(region, inner))
        if shrunk:
            self._found("reads", show_region(region), "loops nest too deep for the flow of values to be proved")
        self._begin(region)
        for k in region.collected:
            self._write(region, k.stack, state)
        self._yields(region, state)
        return state

    def _yields(self, region: Loop | Scan, state: State) -> None:
        """After a loop its outputs must be there, however often it has run."""
        self._begin(region)
        for operand in region.outputs:
            self._read(region, operand, state)

    def _iteration(self, region: Loop | Scan, state: State) -> State:
        self._begin(region)
        if isinstance(region, Scan):
            for whole, part, _, _ in region.sliced:
                self._move(region, whole, part, state)
        else:
            for operand in (region.counter, region.state_condition):
                if operand is not None:
                    self._write(region, operand, state)
        state = self._regions(region.body, state)
        self._begin(region)
        if isinstance(region, Loop) and region.next_condition is not None:
            self._read(region, region.next_condition, state)
        for k in region.collected:
            self._read(region, k.item, state)
            self._read(region, k.stack, state, STACKING)
        carried: tuple[Carried, ...] = region.carried
        for c in carried:
            self._move(region, c.result, c.state, state)
        return state

    def _begin(self, actor: Task | Region, stream: int = 0) -> None:
        """A new step, which comes after all earlier ones."""
        self._barrier = len(self.actors)
        self._several = False
        self.actors.append(actor)
        self._streams.append(stream)
        self._budget -= 1

    def _move(self, region: Region, source: Operand, target: Operand, state: State) -> None:
        self._read(region, source, state)
        self._write(region, target, state)

    # -- tasks -------------------------------------------------------------------------------------------------

    def _tasks(self, tasks: Sequence[Task], state: State) -> None:
        """A list of tasks: in order on each stream, side by side on several, ordered by events."""
        streams: dict[int, int] = {}
        for t in tasks:
            streams.setdefault(t.stream, len(streams))
        self._barrier = len(self.actors)
        self._several = len(streams) > 1
        last = [[-1] * len(streams) for _ in streams]
        recorded: dict[int, list[int]] = {}
        for task in tasks:
            stream = streams[task.stream]
            if self._several:
                clock = last[stream]
                for other in [recorded[e] for e in task.waits if e in recorded]:
                    clock = list(map(max, clock, other))
                self._clock = clock
                last[stream] = list(clock)
                last[stream][stream] = len(self.actors)
                recorded.update(dict.fromkeys(task.records, last[stream]))
            self.actors.append(task)
            self._streams.append(stream)
            self._budget -= 1
            self._task(task, state)

    def _task(self, task: Task, state: State) -> None:
        for o in task.inputs:
            if o is not None:
                self._read(task, o, state)
        for o in task.outputs:
            if o.access is Access.UPDATE:
                self._read(task, o, state)
        self._own_overlaps(task)
        if task.workspace is not None:
            self._write(task, task.workspace, state, SCRATCH)
        for o in task.inputs:
            if o is not None and o.access is not Access.READ:
                self._write(task, o, state)
        for o in task.outputs:
            self._write(task, o, state)

    def _own_overlaps(self, task: Task) -> None:
        """A task's own operands: outputs apart from each other and from the inputs, unless it works in place."""
        self._updated_inputs(task)
        written = [(f"output {k}", o, self.extent(o)) for k, o in enumerate(task.outputs)]
        if task.workspace is not None:
            written.append(("the workspace", task.workspace, self.extent(task.workspace)))
        for k, (name, operand, extent) in enumerate(written):
            for i, read in enumerate(task.inputs):
                run = None if read is None else extent.overlap(self.extent(read))
                if read is not None and run is not None and not self._in_place(task, i, read, k, operand):
                    self._found(
                        "in place",
                        show_task(task),
                        f"writes {name} over input {i} ({show_value(read.value)}) at "
                        f"{self.layout.where(extent.area, run)}, which {task.kernel} may not do",
                    )
            for other, _, earlier in written[:k]:
                run = extent.overlap(earlier)
                if run is not None:
                    where = self.layout.where(extent.area, run)
                    self._found("in place", show_task(task), f"writes {name} over {other} at {where}")

    def _updated_inputs(self, task: Task) -> None:
        for i, updated in enumerate(task.inputs):
            if updated is None or updated.access is not Access.UPDATE:
                continue
            for j, read in enumerate(task.inputs):
                run = None if read is None or i == j else self.extent(updated).overlap(self.extent(read))
                if run is not None:
                    where = self.layout.where(self.extent(updated).area, run)
                    self._found("in place", show_task(task), f"updates input {i} over input {j} at {where}")

    def _in_place(self, task: Task, i: int, read: Operand, k: int, written: Operand) -> bool:
        """Whether input `i` may be overwritten by output `k`: the very same bytes, and the operator says so."""
        a, b = self.extent(read), self.extent(written)
        same = a.first == b.first and a.runs == b.runs and a.strides == b.strides and a.form == b.form
        if not same or getattr(read.type, "dtype", None) is not getattr(written.type, "dtype", None):
            return False
        if read.access is Access.UPDATE and written.access is Access.UPDATE:
            return read.value == written.value
        return k == 0 and i in inplace_inputs(task)

    # -- reads and writes --------------------------------------------------------------------------------------

    def _ordered(self, step: int) -> bool:
        """Whether an earlier step is certainly done when the current one begins."""
        if not self._several or step < self._barrier or step == len(self.actors) - 1:
            return True
        return self._clock[self._streams[step]] >= step

    def _root(self, operand: Operand, extent: Extent) -> tuple[int, int | None]:
        """The operand's root and the address of the root's byte 0 (None: not known)."""
        root, delta = self.roots.get(operand.value, (operand.value, 0))
        if extent.unit:
            return root, extent.first
        return root, None if delta is None or extent.late else extent.first - delta

    def _read(self, actor: Task | Region, operand: Operand, state: State, root: int | None = None) -> None:
        extent = self.extent(operand)
        own, base = self._root(operand, extent)
        root = own if root is None else root
        space = self.layout.spaces[extent.area]
        if space in FIXED or space is Space.VARIABLE:
            if not self._at_home(actor, operand, extent, own, base, state) or space in FIXED:
                return
            root, base = INITIAL, None if base is None else self.homes[own][1]
        shadow = state.shadow(extent.area)
        runs = extent.runs
        if extent.late:  # all that has been made of the value
            runs = tuple([run for _, made in state.made.get(own, ()) for run in made.runs])
        for start, end in runs:
            exact = base is not None and shadow.holds(start, end, root, base)
            if not exact or self._several:
                self._check_read(actor, operand, extent, shadow, (start, end), root, base)
            if self._several:
                step = len(self.actors) - 1
                shadow.read(start, end, self._streams[step], step)

    def _at_home(
        self, actor: Task | Region, operand: Operand, extent: Extent, root: int, base: int | None, state: State
    ) -> bool:
        """Whether a value that lies in an input, a constant or a variable is read where the plan says that it lies.

        Of an input whose port says nothing, the first value that is read there is taken to be the one.
        """
        home = state.places.get(root) or self.homes.get(root)
        if home is None and extent.area in self._unnamed:
            self._unnamed.remove(extent.area)
            home = self.homes[root] = (extent.area, base or 0)
        if home is not None and home[0] == extent.area and (base is None or home[1] == base):
            return True
        value, where = show_value(operand.value), self.layout.where(extent.area, (extent.low, extent.high))
        other = "is neither made nor given" if home is None else f"lies at {self.layout.names[home[0]]} +{home[1]}"
        self._found("reads", self._who(actor), f"reads {value} at {where}, but that value {other}")
        return False

    def _check_read(
        self,
        actor: Task | Region,
        operand: Operand,
        extent: Extent,
        shadow: Shadow,
        run: Run,
        root: int,
        base: int | None,
    ) -> None:
        wrong = 0
        cause = ""
        for start, end, span in shadow.pieces(*run):
            if span is not None and not self._ordered(span.writer):
                self._race(actor, "reads", extent, (start, end), span.writer, "writes")
            if span is not None and span.root == root and (base is None or span.base == base):
                continue
            wrong += end - start
            cause = cause or self._content(extent, (start, end), span, root, base)
        if wrong:
            where = self.layout.where(extent.area, run)
            total = f" ({wrong} bytes in all)" if not extent.unit else ""
            self._found("reads", self._who(actor), f"reads {show_value(operand.value)} at {where}, but {cause}{total}")

    def _content(self, extent: Extent, run: Run, span: Span | None, root: int, base: int | None) -> str:
        where = self.layout.where(extent.area, run)
        if span is None:
            return f"nothing has written {where}"
        by = f"written by {self._who(self.actors[span.writer])}"
        if span.root == MIXED:
            return f"what {where} holds depends on the branch taken or the iteration; it was last {by}"
        if span.root == SCRATCH:
            return f"{where} is scratch memory, {by}"
        if span.root == STACKING:
            return f"{where} is a stack that is not complete yet, {by}"
        if span.root == root:
            return f"{where} holds other bytes of it: it begins at {span.base}, not at {base}, {by}"
        held = "a variable" if span.root == INITIAL else show_value(span.root)
        return f"{where} holds {held}, {by}"

    def _write(self, actor: Task | Region, operand: Operand, state: State, root: int | None = None) -> None:
        extent = self.extent(operand)
        space = self.layout.spaces[extent.area]
        if space in FIXED or (space is Space.VARIABLE and operand.access is not Access.UPDATE):
            where = self.layout.where(extent.area, (extent.low, extent.high))
            self._found("read-only", self._who(actor), f"writes {show_value(operand.value)} to {where}")
            return
        own, base = self._root(operand, extent)
        if space is Space.VARIABLE:
            root, base = INITIAL, self.homes.get(own, (0, base))[1]
        elif root is None:
            root = own
            self._made(actor, operand, extent, own, base, state)
        shadow, step = state.shadow(extent.area), len(self.actors) - 1
        for start, end in extent.runs:
            if self._several:
                self._check_write(actor, extent, shadow, (start, end))
            shadow.write(start, end, Span(end, root, base or 0, step))

    def _made(
        self, actor: Task | Region, operand: Operand, extent: Extent, root: int, base: int | None, state: State
    ) -> None:
        """A value lies in one place, and each byte of it is made once."""
        place = (extent.area, base or 0)
        known = self.homes.get(root) or state.places.setdefault(root, place)
        where = self.layout.where(extent.area, (extent.low, extent.high))
        cause = f"writes {show_value(operand.value)} to {where}, "
        if known != place:
            other = f"{self.layout.names[known[0]]} +{known[1]}"
            self._found("one writer", self._who(actor), f"{cause}but it lies at {other} too")
        makers = state.made.get(root, ())
        for maker, earlier in makers:
            if maker is actor and earlier is extent:
                return
            if maker is not actor and operand.access is not Access.UPDATE and earlier.overlap(extent):
                self._found("one writer", self._who(actor), f"{cause}but {self._who(maker)} has made it already")
        state.made[root] = (*makers, (actor, extent))

    def _check_write(self, actor: Task | Region, extent: Extent, shadow: Shadow, run: Run) -> None:
        """In several streams: what is overwritten must be done with."""
        for start, end, span in shadow.pieces(*run):
            if span is None:
                continue
            piece = (start, end)
            if not self._ordered(span.writer):
                self._race(actor, "writes", extent, piece, span.writer, "writes")
            for _, reader in span.readers:
                if not self._ordered(reader):
                    self._race(actor, "writes", extent, piece, reader, "reads")

    def _race(self, actor: Task | Region, verb: str, extent: Extent, run: Run, step: int, other_verb: str) -> None:
        other = self.actors[step]
        where, who = self.layout.where(extent.area, run), self._who(other)
        cause = f"{verb} {where}, which {who} {other_verb}, but nothing orders the two"
        if isinstance(other, Task):
            cause += f": it does not wait for task {other.id}, nor for a later task of stream {other.stream}"
        self._found("order", self._who(actor), cause)

    def _who(self, actor: Task | Region) -> str:
        if not isinstance(actor, Task):
            return show_region(actor)
        return f"{show_task(actor)} (stream {actor.stream})" if self._several else show_task(actor)

    # -- the end -----------------------------------------------------------------------------------------------

    def _outputs(self, state: State) -> None:
        layout = self.layout
        for port in self.plan.outputs:
            number = port.buffer
            area = layout.area_of[number]
            unit = layout.spaces[area] in (Space.HOST, Space.DYNAMIC)
            start = layout.offsets[number] if layout.spaces[area] is Space.HOST else 0
            end = start + (1 if unit else layout.sizes[number])
            root, delta = self.roots.get(port.value, (port.value, 0))
            base = start - (0 if unit else delta or 0)
            for s, e, span in state.shadow(area).pieces(start, end):
                good = span is not None and span.root >= 0
                if good and span is not None and port.value >= 0:
                    good = (span.root, span.base) == (root, base)
                if not good:
                    extent = Extent(area, s, layout.form(port.type))
                    cause = self._content(extent, (s, e), span, root, base)
                    held = f" not {show_value(port.value)}" if port.value >= 0 else " no result"
                    self._found("outputs", f"output '{port.name}'", f"holds{held} at the end: {cause}")
                    break


def inplace_inputs(task: Task) -> tuple[int, ...]:
    """The inputs whose bytes output 0 of the task may take over, as its operator declares."""
    from atc_py.ops.build import lookup

    try:
        return lookup(task.kernel, task.attrs).flags.inplace
    except AtcError:
        return ()
