"""`schedule`: order, streams, places, tasks and regions, and for a static graph the addresses.

    lowered graph ─ lay out ─▶ steps in order ─ clock ─▶ costs ─ list ─▶ streams ─ events ─▶ what is done when
                                                                                               │
    Plan ◀─ addresses ─ tasks and regions ◀─ places: values that share bytes, as far as that allows ┘

Input: a lowered graph (each node has an engine). Output: a Plan that `atc_py.plan.verify` can prove and `atc_py.npu`
can run. Order and streams are decided first, from values alone; memory is shared only where they have two users in
order anyway, so that no reuse of bytes ever makes a task wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from atc_py.ir.graph import Graph
from atc_py.memory import Effort, bind
from atc_py.plan.types import Buffer, Host, Plan, Requirement, Space, Static
from atc_py.schedule.clock import Lane, Prices, job_prices, lane_cycles
from atc_py.schedule.costs import plan_handing, task_costs
from atc_py.schedule.formats import with_formats
from atc_py.schedule.frames import Frame, Step, all_frames, insert_copies, laid_again, lay_out
from atc_py.schedule.hint import default_hint, plan_hint
from atc_py.schedule.jobs import Program, Sizes, sizes_of
from atc_py.schedule.order import low_order, rearranged
from atc_py.schedule.places import Places, place
from atc_py.schedule.plan_jobs import frame_program
from atc_py.schedule.pool import Pool, live_peak
from atc_py.schedule.regions import regions
from atc_py.schedule.requirements import requirements
from atc_py.schedule.segments import segments
from atc_py.schedule.streams import (
    GAIN,
    LONGEST,
    RESTRAINTS,
    STREAMS,
    Streams,
    assign,
    by_node,
    list_again,
    list_segments,
)
from atc_py.target import Target
from atc_py.target.cost import cycles_of

SPREAD = 1.5
"""Several streams may hold this many times what one holds before a more frugal order is looked for."""


@dataclass(frozen=True)
class ScheduleOptions:
    """`target` is the SoC's name; `hint` gives symbols the values at which figures are evaluated.

    With `soc`, the target itself, each task gets its cost, and independent branches run on up to `stream_num` streams
    where that is predicted to be faster. `joins`: operators that only lay parts side by side need no task.
    `memory_effort` is how far the allocator goes for a static graph.
    """

    target: str = "Ascend310P3"
    hint: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    soc: Target | None = None
    stream_num: int = STREAMS
    single_stream: bool = False
    joins: bool = True
    memory_effort: Effort = "default"


def schedule(graph: Graph, options: ScheduleOptions | None = None) -> Plan:
    """Make the plan of a lowered graph; the graph gets copies where two outputs would share bytes."""
    return schedule_priced(graph, options).plan


@dataclass(frozen=True)
class Scheduled:
    """A plan, what its jobs cost, by the numbers of its tasks, and a lower bound of its arena (0: it is a template).

    Without a target there are no costs. Steps of graphs inside others are no tasks of these numbers: None there too.
    """

    plan: Plan
    prices: Prices | None
    least: int


def schedule_priced(graph: Graph, options: ScheduleOptions | None = None) -> Scheduled:
    """The plan of a lowered graph as `schedule` makes it, and what has been found out on the way."""
    options = options or ScheduleOptions()
    insert_copies(graph)
    frame = lay_out(graph, options.joins)
    needs = requirements(frame)
    hint = plan_hint(default_hint(graph, options.hint), needs, graph.symbols, tuple(options.hint))
    sizes = sizes_of(graph.symbols, hint)
    static = all(r.runtime for r in graph.symbols.values())
    ways = _laid_out(graph, _low_frame(frame, sizes), options, sizes)
    made = [_planned(graph, laid, options, None if static else hint, needs) for laid in ways]
    if ways[0].streams.streams == 1 and len(ways) > 1 and options.soc is not None:
        made = _faster(made[0], made[1:], options.soc)
    bound = [_bound(m, options.memory_effort) for m in made]
    return bound[0] if len(bound) == 1 else min(bound, key=lambda s: bind(s.plan, s.plan.hint, least=s.least).arena)


def _planned(
    graph: Graph, laid: _Laid, options: ScheduleOptions, hint: Mapping[str, int] | None, needs: tuple[Requirement, ...]
) -> Scheduled:
    """The plan of a graph as it is laid out, without addresses."""
    pool = Pool(laid.places, graph.symbols)
    body = regions(pool, laid.frame, laid.streams, laid.costs)
    inputs = pool.ports(graph.inputs, [graph.values[v].name for v in graph.inputs])
    outputs = pool.ports(graph.outputs, graph.output_names)
    weights_nbytes = pool.place_weights()
    plan = Plan(
        target=options.target,
        symbols=dict(graph.symbols),
        buffers=tuple(pool.buffers),
        constants=tuple(pool.constants),
        inputs=inputs,
        outputs=outputs,
        regions=body,
        weights_nbytes=weights_nbytes,
        streams=laid.streams.streams,
        events=laid.streams.events,
        options=dict(options.options),
        hint=hint,
        aliases=tuple(a for a in laid.places.aliases if pool.has_buffer(a.value)),
        initial=pool.initial(),
        requirements=needs,
    )
    flat = all(isinstance(region, (Static, Host)) for region in body)
    return Scheduled(plan, laid.prices if flat else None, 0)


def _faster(one: Scheduled, several: Sequence[Scheduled], soc: Target) -> list[Scheduled]:
    """The plans on several streams that are faster than the one on one, the host's launches and waits counted.

    The plan on one stream if there is none.
    """
    launch = cycles_of(soc.rates.model_us, soc)
    longest = (plan_handing(one.plan, soc, one.prices).cycles - launch) * (1 - GAIN)
    faster = [s for s in several if plan_handing(s.plan, soc, s.prices).cycles - launch <= longest]
    return faster or [one]


@dataclass(frozen=True)
class _Laid:
    """A graph in its order, its values placed, its tasks on their streams, and their costs by position."""

    frame: Frame
    places: Places
    streams: Streams
    costs: Mapping[int, int]
    us: float = 0.0
    prices: Prices | None = None


def _low_frame(frame: Frame, sizes: Sizes) -> tuple[Frame, Places]:
    """The graph in the canonical order of `frame`, or in one whose peak is lower when values have their places."""
    lower = {id(f.graph): low_order(f, sizes) for f in all_frames(frame)}
    places = place(frame)
    if all(lower[id(f.graph)] is f.nodes for f in all_frames(frame)):
        return frame, places
    other = laid_again(frame, lambda f: lower[id(f.graph)])
    placed = place(other)
    asked = any(n.priority for f in all_frames(frame) for n in f.nodes)
    if asked or live_peak(placed, sizes) < live_peak(places, sizes):
        return other, placed
    return frame, places


def _laid_out(graph: Graph, low: tuple[Frame, Places], options: ScheduleOptions, sizes: Sizes) -> list[_Laid]:
    """On one stream, or on several where the tasks are then predicted to be done sooner; the first may be both.

    Where several streams hold more than `SPREAD` times what one holds, there may be a second way, nearly as fast. The
    one stream comes first unless the others are faster for certain: whatever the host does for a model of one list of
    tasks, it does once.
    """
    frame, places = low
    if options.soc is None:
        return [_Laid(frame, places, Streams(), {})]
    jobs = frame_program(frame, places, sizes)
    program, prices = _priced(jobs, options.soc)
    one = _Laid(frame, places, Streams(), task_costs(program, prices, options.soc), _serial(program, prices), prices)
    # Task by task, the host is what sets the order.
    most = 1 if options.single_stream or options.options.get("sink") == "op" else options.stream_num
    if most < 2:
        return [one]
    found = segments(frame, graph.symbols)
    listed = list_segments(found, program, prices, options.soc, most)
    if not any(listed):
        return [one]
    several = _on_streams(frame, jobs, by_node(listed, found), options.soc)
    longest = one.us * (1 - GAIN)
    if several.us >= longest:
        return [one]
    first = [one] if len(found) > 1 or len(several.streams.starts) > 1 else []
    if live_peak(several.places, sizes) <= SPREAD * live_peak(places, sizes):
        return [*first, several]
    for restraint in RESTRAINTS:
        again = list_again(listed, found, program, prices, options.soc, restraint)
        if again != listed:
            other = _on_streams(frame, jobs, by_node(again, found), options.soc)
            if other.us < min(longest, several.us * (1 + GAIN)):
                return [*first, several, other]
    return [*first, several]


def _on_streams(low: Frame, jobs: Program, chosen: Mapping[int, tuple[int, int]], soc: Target) -> _Laid:
    """The graph in the order and on the streams that are `chosen` for its nodes.

    The nodes stand in the order of `low`, and `jobs` are theirs.
    """
    frame = laid_again(low, lambda f: rearranged(f, chosen))
    steps = [step for f in all_frames(frame) for step in f.steps.values()]
    places = {s.start: chosen[id(s.node)][1] for s in steps if id(s.node) in chosen}
    streams = assign(segments(frame, low.graph.symbols, LONGEST, chosen), places)
    placed = place(frame, streams)
    program, prices = _priced(_moved(jobs, low, steps), soc)
    alone = [s.start for s in steps if s.start not in streams.lanes and not s.bodies]
    lanes = {start: Lane(-1 - start) for start in alone} | dict(streams.lanes)
    whole, by_region = lane_cycles(program, prices, soc, lanes)
    cycles, prices = whole - cycles_of(soc.rates.model_us, soc), replace(prices, regions=by_region)
    return _Laid(frame, placed, streams, task_costs(program, prices, soc), cycles, prices)


def _moved(jobs: Program, low: Frame, steps: Sequence[Step]) -> Program:
    """The jobs of the graph in another order: each at the position of its step there."""
    new = {id(step.node): step.start for step in steps}
    place = {s.start: new[id(s.node)] for f in all_frames(low) for s in f.steps.values()}
    moved = [job.at(place[job.place]) for job in jobs.jobs]
    return replace(jobs, jobs=tuple(sorted(moved, key=attrgetter("place"))))


def _priced(jobs: Program, soc: Target) -> tuple[Program, Prices]:
    program = with_formats(jobs, soc)
    return program, job_prices(program, soc)


def _serial(program: Program, prices: Prices) -> float:
    """Cycles of the jobs one after the other."""
    return sum(b.total * job.times for job, b in zip(program.jobs, prices.breakdowns, strict=True))


def _bound(made: Scheduled, effort: Effort) -> Scheduled:
    """A static plan with its addresses and a lower bound of its arena; a template as it is."""
    plan = made.plan
    if plan.hint is not None:
        return made
    binding = bind(plan, effort=effort)
    buffers = [
        Buffer(b.id, b.space, b.nbytes, offset, b.index, b.first, b.last) if b.space is Space.ARENA else b
        for b, offset in zip(plan.buffers, binding.offsets, strict=True)
    ]
    return Scheduled(replace(plan, buffers=tuple(buffers), arena=binding.arena), made.prices, binding.lower_bound)
