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

import sys
from collections.abc import Sequence

from atc_py.plan.accesses import Accesses, Placement, Roots, Row
from atc_py.plan.extents import Layout, Run
from atc_py.plan.in_place import own_overlaps
from atc_py.plan.shadow import MIXED, SCRATCH, Shadow, Span
from atc_py.plan.show import show_region, show_task, show_value
from atc_py.plan.state import State
from atc_py.plan.types import Access, Carried, Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task

INITIAL = -2
"""The root of what a variable holds; which value that is, `homes` says."""
STACKING = -5
"""The root of a stack that a loop is still appending to."""
NEVER = sys.maxsize
"""A step that never comes."""
ROUNDS, STEPS = 64, 100_000
"""A plan of n tasks may take ROUNDS * n + STEPS steps before its loops are declared to nest too deep."""

_WRITE, _UPDATE = Access.WRITE, Access.UPDATE


class Flow:
    """One run over shadow memory. `findings` maps a law's name to its violations: (place, cause).

    The accesses must be those of the plan, and located.
    """

    def __init__(self, plan: Plan, layout: Layout, accesses: Accesses, roots: Roots) -> None:
        self.plan, self.layout, self.accesses, self.roots = plan, layout, accesses, roots
        self.findings: dict[str, list[tuple[str, str]]] = {}
        self.homes: dict[int, tuple[int, int]] = {}
        self.actors: list[Task | Region] = []
        self._streams: list[int] = []
        self._clock: list[int] = []
        self._step = 0
        self._barrier = NEVER
        self._several = False
        self._budget = ROUNDS * sum(1 for _ in plan.tasks()) + STEPS
        self._unnamed: list[int] = []

    def run(self) -> None:
        """Run the plan and check what the output ports hold at the end."""
        state = self._initial()
        state = self._regions(self.plan.regions, state)
        self._outputs(state)

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
                state.shadows[layout.area_of[b.id]].write(Span(start, end, INITIAL, start, len(self.actors) - 1))
        return state

    # -- regions -----------------------------------------------------------------------------------------------

    def _regions(self, regions: Sequence[Region], state: State) -> State:
        for region in regions:
            if isinstance(region, (Static, Host)):
                self._tasks(self.accesses.rows_of(region), state)
            elif isinstance(region, If):
                self._begin(region)
                self._take(region, region.predicate, state)
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
                    self._take(region, operand, state)
        for c in region.carried:
            self._move(region, c.initial, c.state, state)
        for k in region.collected:
            self._put(region, k.stack, state, STACKING)
        before, shrunk = state.made, True
        while shrunk and self._budget > 0:
            inner = state.copy()
            inner.made = dict(before)  # an iteration makes its values anew
            state, shrunk = state.merged(self._iteration(region, inner))
        if shrunk:
            self._found("reads", show_region(region), "loops nest too deep for the flow of values to be proved")
        self._begin(region)
        for k in region.collected:
            self._put(region, k.stack, state)
        self._yields(region, state)
        return state

    def _yields(self, region: Loop | Scan, state: State) -> None:
        """After a loop its outputs must be there, however often it has run."""
        self._begin(region)
        for operand in region.outputs:
            self._take(region, operand, state)

    def _iteration(self, region: Loop | Scan, state: State) -> State:
        self._begin(region)
        if isinstance(region, Scan):
            for whole, part, _, _ in region.sliced:
                self._move(region, whole, part, state)
        else:
            for operand in (region.counter, region.state_condition):
                if operand is not None:
                    self._put(region, operand, state)
        state = self._regions(region.body, state)
        self._begin(region)
        if isinstance(region, Loop) and region.next_condition is not None:
            self._take(region, region.next_condition, state)
        for k in region.collected:
            self._take(region, k.item, state)
            self._take(region, k.stack, state, STACKING)
        carried: tuple[Carried, ...] = region.carried
        for c in carried:
            self._move(region, c.result, c.state, state)
        return state

    def _begin(self, actor: Task | Region, stream: int = 0) -> None:
        """A new step, which comes after all earlier ones."""
        self._several, self._barrier = False, NEVER
        self._step = len(self.actors)
        self.actors.append(actor)
        self._streams.append(stream)
        self._budget -= 1

    def _move(self, region: Region, source: Operand, target: Operand, state: State) -> None:
        self._take(region, source, state)
        self._put(region, target, state)

    def _take(self, region: Region, operand: Operand, state: State, content: int | None = None) -> None:
        self._read(region, self.accesses.placement(region, operand), state, content)

    def _put(self, region: Region, operand: Operand, state: State, content: int | None = None) -> None:
        self._write(region, self.accesses.placement(region, operand), operand.access, state, content)

    # -- tasks -------------------------------------------------------------------------------------------------

    def _tasks(self, rows: Sequence[Row], state: State) -> None:
        """A list of tasks: in order on each stream, side by side on several, ordered by events."""
        streams: dict[int, int] = {}
        for row in rows:
            streams.setdefault(row.task.stream, len(streams))
        self._several = len(streams) > 1
        self._barrier = len(self.actors) if self._several else NEVER
        self._budget -= len(rows)
        last = [[-1] * len(streams) for _ in streams]
        recorded: dict[int, list[int]] = {}
        for row in rows:
            task = row.task
            stream = streams[task.stream]
            step = self._step = len(self.actors)
            self.actors.append(task)
            self._streams.append(stream)
            if self._several:
                clock = last[stream]
                for event in task.waits:
                    if event in recorded:
                        clock = list(map(max, clock, recorded[event]))
                self._clock = clock
                done = last[stream] = clock[:]
                done[stream] = step
                for event in task.records:
                    recorded[event] = done
            self._task(row, state)

    def _task(self, row: Row, state: State) -> None:
        task, inputs, outputs, workspace, plain = row
        for p in inputs:
            self._read(task, p, state)
        if not plain:
            for o, p in zip(task.outputs, outputs, strict=True):
                if o.access is _UPDATE:
                    self._read(task, p, state)
        for cause in own_overlaps(row, self.layout):
            self._found("in place", show_task(task), cause)
        if workspace is not None:
            self._write(task, workspace, _WRITE, state, SCRATCH)
        if not plain:
            for o, p in zip(filter(None, task.inputs), inputs, strict=True):
                if o.access is not Access.READ:
                    self._write(task, p, o.access, state)
        for o, p in zip(task.outputs, outputs):
            self._write(task, p, o.access, state)

    # -- reads and writes --------------------------------------------------------------------------------------

    def _ordered(self, step: int) -> bool:
        """Whether an earlier step is certainly done when the current one begins; all are before the barrier."""
        return step < self._barrier or step == self._step or self._clock[self._streams[step]] >= step

    def _read(self, actor: Task | Region, p: Placement, state: State, content: int | None = None) -> None:
        """A read of a value, or of its bytes while they are a stack that grows (`content`)."""
        if p.fixed:
            self._at_home(actor, p, state)
            return
        root, base, runs = p.root if content is None else content, p.base, p.extent.runs
        if not p.simple:
            if self.layout.spaces[p.area] is Space.VARIABLE:
                if not self._at_home(actor, p, state):
                    return
                root, base = INITIAL, None if base is None else self.homes[p.root][1]
            if p.extent.late:  # all that has been made of the value
                runs = tuple([run for _, made in state.made.get(p.root, ()) for run in made.runs])
        shadow = state.shadows[p.area]
        for start, end in runs:
            span = None if base is None else shadow.holding(start, end, root, base)
            if span is None or not (span.writer < self._barrier or self._ordered(span.writer)):
                self._check_read(actor, p, shadow, (start, end), root, base)
            if not self._several:
                continue
            if span is not None and span.start == start and span.end == end:
                span.read(self._streams[self._step], self._step)
            else:
                shadow.read(start, end, self._streams[self._step], self._step)

    def _at_home(self, actor: Task | Region, p: Placement, state: State) -> bool:
        """Whether a value that lies in an input, a constant or a variable is read where the plan says that it lies.

        Of an input whose port says nothing, the first value that is read there is taken to be the one.
        """
        home = state.places.get(p.root) or self.homes.get(p.root)
        if home == p.place:
            return True
        if home is None and p.area in self._unnamed:
            self._unnamed.remove(p.area)
            home = self.homes[p.root] = p.place
        if home is not None and home[0] == p.area and (p.base is None or home[1] == p.base):
            return True
        value, where = show_value(p.operand.value), self.layout.where(p.area, (p.low, p.high))
        other = "is neither made nor given" if home is None else f"lies at {self.layout.names[home[0]]} +{home[1]}"
        self._found("reads", self._who(actor), f"reads {value} at {where}, but that value {other}")
        return False

    def _check_read(
        self, actor: Task | Region, p: Placement, shadow: Shadow, run: Run, root: int, base: int | None
    ) -> None:
        wrong = 0
        cause = ""
        for start, end, span in shadow.pieces(*run):
            if span is not None and not self._ordered(span.writer):
                self._race(actor, "reads", p.area, (start, end), span.writer, "writes")
            if span is not None and span.root == root and (base is None or span.base == base):
                continue
            wrong += end - start
            cause = cause or self._content(p.area, (start, end), span, root, base)
        if wrong:
            value, where = show_value(p.operand.value), self.layout.where(p.area, run)
            total = f" ({wrong} bytes in all)" if not p.extent.unit else ""
            self._found("reads", self._who(actor), f"reads {value} at {where}, but {cause}{total}")

    def _content(self, area: int, run: Run, span: Span | None, root: int, base: int | None) -> str:
        where = self.layout.where(area, run)
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

    def _write(
        self, actor: Task | Region, p: Placement, access: Access, state: State, content: int | None = None
    ) -> None:
        """A write of a value, or of bytes that are none (`content`: scratch, a stack that grows)."""
        root, base = p.root if content is None else content, p.base or 0
        if not p.simple and (p.fixed or self.layout.spaces[p.area] is Space.VARIABLE):
            if p.fixed or access is not _UPDATE:
                where = self.layout.where(p.area, (p.low, p.high))
                self._found("read-only", self._who(actor), f"writes {show_value(p.operand.value)} to {where}")
                return
            root, base = INITIAL, self.homes.get(p.root, (0, p.base))[1] or 0
        elif content is None:
            self._made(actor, p, access, state)
        shadow = state.shadows[p.area]
        for start, end in p.extent.runs:
            gone = shadow.write(Span(start, end, root, base, self._step))
            if self._several:
                self._check_write(actor, p.area, (start, end), gone)

    def _made(self, actor: Task | Region, p: Placement, access: Access, state: State) -> None:
        """A value lies in one place, and each byte of it is made once."""
        known = self.homes.get(p.root) or state.places.setdefault(p.root, p.place)
        makers = state.made.get(p.root, ())
        if known != p.place:
            self._twice(actor, p, f"it lies at {self.layout.names[known[0]]} +{known[1]} too")
        for maker, earlier in makers:
            if maker is actor:
                if earlier is p.extent:
                    return
            elif access is not _UPDATE and earlier.overlap(p.extent):
                self._twice(actor, p, f"{self._who(maker)} has made it already")
        state.made[p.root] = (*makers, (actor, p.extent))

    def _twice(self, actor: Task | Region, p: Placement, cause: str) -> None:
        where = self.layout.where(p.area, (p.low, p.high))
        cause = f"writes {show_value(p.operand.value)} to {where}, but {cause}"
        self._found("one writer", self._who(actor), cause)

    def _check_write(self, actor: Task | Region, area: int, run: Run, gone: Sequence[Span]) -> None:
        """In several streams: what is overwritten must be done with."""
        for span in gone:
            if not self._ordered(span.writer):
                self._race(actor, "writes", area, _common(run, span), span.writer, "writes")
            for reader in span.readers.values():
                if not self._ordered(reader):
                    self._race(actor, "writes", area, _common(run, span), reader, "reads")

    def _race(self, actor: Task | Region, verb: str, area: int, run: Run, step: int, other_verb: str) -> None:
        other = self.actors[step]
        where, who = self.layout.where(area, run), self._who(other)
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
            for s, e, span in state.shadows[area].pieces(start, end):
                good = span is not None and span.root >= 0
                if good and span is not None and port.value >= 0:
                    good = (span.root, span.base) == (root, base)
                if not good:
                    cause = self._content(area, (s, e), span, root, base)
                    held = f" not {show_value(port.value)}" if port.value >= 0 else " no result"
                    self._found("outputs", f"output '{port.name}'", f"holds{held} at the end: {cause}")
                    break


def _common(run: Run, span: Span) -> Run:
    """The bytes of a span in a run."""
    return max(run[0], span.start), min(run[1], span.end)
