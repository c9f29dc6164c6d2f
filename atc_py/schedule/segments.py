"""Segments: the runs of tasks between which streams join, and what each task needs of those before it.

    Conv ─ Relu ─ NonZero ─ Gather ─ If ─ Add ─ Mul          NonZero finds out a size, for which the host waits

    segments      [Conv, Relu, NonZero]   [Gather]   [Add, Mul]         If stands alone

A segment becomes one `Static` region, which the device runs without the host. So it ends where a size is needed that a
task of it finds out (tasks that need no such size may come after that one, and run beside it), where the host has to
know what a task of it makes to launch the next one (the k of a TopK, a value of unknown rank), and where work passes
between the device and the host: a segment is the one's or the other's. Needs come from values alone: a task needs the
tasks that make what it reads, through views; memory adds none, because memory is planned after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atc_py.ir.constants import Constant, DimVec
from atc_py.ir.dims import Dim, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Node, Range
from atc_py.ir.types import Tensor, Type
from atc_py.schedule.frames import Frame, Step


@dataclass(frozen=True)
class Segment:
    """The steps of one run of tasks in order, and for each of them the earlier ones of the run that it needs."""

    frame: Frame
    steps: tuple[Step, ...]
    needs: tuple[tuple[int, ...], ...]


def segments(
    root: Frame, symbols: Mapping[str, Range], longest: int = 0, joined: Collection[int] | None = None
) -> list[Segment]:
    """The segments of a frame and those inside it, in the order of the plan, cut to `longest` tasks if it is given.

    `joined` are the nodes, by identity, that stay in their segments although they find out sizes; others of that kind
    then stand alone (None: all stay).
    """
    bound = {s for s, r in symbols.items() if not r.runtime}
    runs = _Runs(bound, frozenset(symbols) - bound, joined)
    found: list[Segment] = []
    for frame, run in runs.of(root):
        for at in range(0, len(run), longest or len(run)):
            some = run[at : at + (longest or len(run))]
            found.append(Segment(frame, tuple(some), _needs(frame, some)))
    return found


@dataclass(frozen=True)
class _Runs:
    """Cuts frames into runs; `late` are the symbols of the run time, `bound` those that have values so far."""

    bound: set[str]
    late: frozenset[str]
    joined: Collection[int] | None

    def of(self, frame: Frame) -> Iterator[tuple[Frame, list[Step]]]:
        """The runs of a frame and of those inside it."""
        run: list[Step] = []
        open_: set[str] = set()  # the symbols that tasks of the run bind
        made: dict[int, int] = {}  # the run's nodes
        for step in frame.steps.values():
            fresh = [] if step.bodies else self._fresh(frame, step)
            alone = bool(step.bodies) or (bool(fresh) and not self._joins(step))
            changes = bool(run) and (alone or by_host(step) != by_host(run[0]))
            if changes or self._needed(frame, step, open_) or awaits(frame, step, made):
                yield frame, run
                run, open_, made = [], set(), {}
            if not alone:
                made[step.node.id] = len(run)
                run.append(step)
                open_.update(fresh)
            for body in step.bodies.values():
                yield from self.of(body)
            if step.bodies:
                self._fresh(frame, step)  # known when the branch or the loop is done
        if run:
            yield frame, run

    def _fresh(self, frame: Frame, step: Step) -> list[str]:
        """The symbols that have values when a step is done, and had none before."""
        if not self.late:
            return []
        types = [frame.graph.type(v) for v in step.node.outputs]
        return [name for name, _, _ in fresh_symbols(types, self.bound)]

    def _joins(self, step: Step) -> bool:
        """Whether a task that finds out a size is part of a segment."""
        return not by_host(step) and (self.joined is None or id(step.node) in self.joined)

    def _needed(self, frame: Frame, step: Step, open_: set[str]) -> bool:
        """Whether a task cannot be launched before one of the symbols has its value."""
        return bool(open_) and not open_.isdisjoint(_mentioned(frame, step.node))


def by_host(step: Step) -> bool:
    """Whether the host runs a task."""
    return (step.node.engine or step.op.engine.value) == "host"


def awaits(frame: Frame, step: Step, made: Mapping[int, int]) -> bool:
    """Whether the host has to know, to launch a task, what one of the nodes `made` (of the device's tasks) makes.

    It reads some inputs itself, and of all it must know the shape.
    """
    if not made or step.bodies or by_host(step):
        return False
    values, still, read = frame.graph.values, frame.views.still, step.op.host_inputs
    for i, value in enumerate(step.node.inputs):
        if value == ABSENT:
            continue
        type_ = values[value].type
        if i in read or (isinstance(type_, Tensor) and type_.shape is None):
            producer = values[value].producer
            if producer in made or (producer in still and _makers(frame, producer, made, {})):
                return True
    return False


def _mentioned(frame: Frame, node: Node) -> Iterator[str]:
    """The symbols of the sizes that a task works with, those of its body too."""
    values = frame.graph.values
    inputs = [v for v in node.inputs if v != ABSENT]
    yield from _of_types([values[v].type for v in (*inputs, *node.outputs)])
    yield from _of_constants([frame.graph.const(v) for v in inputs])
    for body in node.subgraphs.values():
        yield from _of_types([value.type for value in body.values.values()])
        yield from _of_constants([inner.const for inner in body.nodes.values()])


def _of_types(types: Sequence[Type]) -> Iterator[str]:
    for type_ in types:
        if isinstance(type_, Tensor):
            for dim in type_.shape or ():
                yield from symbols_of(dim)


def _of_constants(constants: Sequence[Constant | None]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, DimVec):
            for element in constant.elements:
                yield from symbols_of(element)


def fresh_symbols(types: Sequence[Type], bound: set[str]) -> list[tuple[str, int, int]]:
    """(name, output, axis) of the symbols that are whole dims of a task's results and not in `bound`; they get in."""
    found: list[tuple[str, int, int]] = []
    for i, type_ in enumerate(types):
        if not isinstance(type_, Tensor) or type_.shape is None:
            continue
        for axis, dim in enumerate(type_.shape):
            name = None if type(dim) is int else whole_symbol(dim)
            if name is not None and name not in bound:
                bound.add(name)
                found.append((name, i, axis))
    return found


def whole_symbol(dim: object) -> str | None:
    """The symbol's name when a dim is nothing but a symbol."""
    names = symbols_of(dim) if isinstance(dim, Dim) else ()
    return names[0] if len(names) == 1 and dim == symbol(names[0]) else None


def _needs(frame: Frame, run: Sequence[Step]) -> tuple[tuple[int, ...], ...]:
    values, still = frame.graph.values, frame.views.still
    index = {step.node.id: k for k, step in enumerate(run)}
    through: dict[int, tuple[int, ...]] = {}
    found: list[tuple[int, ...]] = []
    for step in run:
        needs: list[int] = []
        for value in step.node.inputs:
            if value != ABSENT:
                producer = values[value].producer
                if producer in index:
                    needs.append(index[producer])
                elif producer in still:
                    needs += _makers(frame, producer, index, through)
        found.append(tuple(needs) if len(needs) < 2 else tuple(sorted(set(needs))))
    return tuple(found)


def _makers(frame: Frame, node: int, index: Mapping[int, int], through: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """The steps of the run that make the bytes of a node that is no step."""
    still = frame.views.still
    stack = [node]
    while stack:
        top = stack[-1]
        if top in through:
            stack.pop()
            continue
        sources = frame.sources(frame.graph.nodes[top])
        missing = [p for p in sources if p in still and p not in through]
        if missing:
            stack += missing
            continue
        makers: set[int] = set()
        for p in sources:
            makers.update((index[p],) if p in index else through.get(p, ()))
        through[top] = tuple(sorted(makers))
        stack.pop()
    return through[node]
