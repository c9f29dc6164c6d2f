"""Segments: the runs of tasks between which streams join, and what each task needs of those before it.

    Conv ─ Relu ─ NonZero ─ If ─ Add ─ Mul          NonZero finds out a size, for which the host waits

    segments      [Conv, Relu]   [Add, Mul]         NonZero and If stand alone

A segment becomes one `Static` region. Needs come from values alone: a task needs the tasks that make what it reads,
through views; memory adds none, because memory is planned after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atc_py.ir.dims import Dim, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Range
from atc_py.ir.types import Tensor, Type
from atc_py.schedule.frames import Frame, Step


@dataclass(frozen=True)
class Segment:
    """The steps of one run of tasks in order, and for each of them the earlier ones of the run that it needs."""

    frame: Frame
    steps: tuple[Step, ...]
    needs: tuple[tuple[int, ...], ...]


def segments(root: Frame, symbols: Mapping[str, Range], longest: int = 0) -> list[Segment]:
    """The segments of a frame and those inside it, in the order of the plan, cut to `longest` tasks if it is given."""
    bound = {s for s, r in symbols.items() if not r.runtime}
    runtime = len(bound) < len(symbols)
    found: list[Segment] = []
    for frame, run in _runs(root, bound, runtime):
        for at in range(0, len(run), longest or len(run)):
            some = run[at : at + (longest or len(run))]
            found.append(Segment(frame, tuple(some), _needs(frame, some)))
    return found


def _runs(frame: Frame, bound: set[str], runtime: bool) -> Iterator[tuple[Frame, list[Step]]]:
    run: list[Step] = []
    for step in frame.steps.values():
        types = [frame.graph.type(v) for v in step.node.outputs] if runtime and not step.bodies else ()
        if not step.bodies and not (types and fresh_symbols(types, bound)):
            run.append(step)
            continue
        if run:
            yield frame, run
            run = []
        for body in step.bodies.values():
            yield from _runs(body, bound, runtime)
    if run:
        yield frame, run


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
