"""The clock: when each task of a model runs on the device, and how long the model takes.

    jobs on one stream        Conv 12.1 us ─ Relu 3.0 us ─ MatMul 8.4 us
    the model                 launch 80 us + 23.5 us

On one stream jobs run one after the other in their order; on several, side by side as `lanes` says, region by region.
The model's buffers pass through the L2 cache in the order of the jobs. A model is timed at rest: it has run before, so
that what of its weights and inputs stays in L2 is there at the start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import ceil

from atc_py.schedule.jobs import Job, Program
from atc_py.schedule.lanes import UNITS, Demand, Span, demand_of, event_cycles, joining_cycles, simulate
from atc_py.schedule.links import linked
from atc_py.target import Target
from atc_py.target.cache import Cache
from atc_py.target.cost import Breakdown, Load, Traffic, breakdowns, cycles_of, load_of, microseconds_of


@dataclass(slots=True)
class Timed:
    """One job on the clock; `start` and `end` of its first execution in cycles since the model was launched.

    `start` is when its stream turns to it. `stream` is its stream, `begin` when its work has begun on its units.
    """

    job: Job
    start: float
    end: float
    breakdown: Breakdown
    stream: int = 0
    begin: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """A model on the clock: its jobs, and the whole in cycles, launch included."""

    jobs: tuple[Timed, ...]
    cycles: float
    target: Target

    @property
    def microseconds(self) -> float:
        """How long one execution of the model takes."""
        return microseconds_of(self.cycles, self.target)


@dataclass(slots=True)  # not frozen: each task has one
class Lane:
    """Where a task runs: the number of its region, its stream, and the tasks of other streams that it waits for."""

    region: int
    stream: int = 0
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prices:
    """What each job of a program costs, executed once; and, when it is asked for, what it occupies.

    `regions` are the cycles of each region by its first task, where the clock has run on several streams.
    """

    program: Program
    target: Target
    traffic: list[Traffic]
    loads: list[Load]
    breakdowns: list[Breakdown]
    regions: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def demands(self) -> list[Demand]:
        """What each job occupies."""
        made: dict[tuple[int, int, str], Demand] = {}
        found: list[Demand] = []
        for job, load, traffic, cost in zip(self.program.jobs, self.loads, self.traffic, self.breakdowns, strict=True):
            key = (id(load), id(cost), job.engine)
            demand = made.get(key)
            if demand is None:
                demand = made[key] = demand_of(job, load, traffic, cost, self.target)
            found.append(demand)
        return found


def run_clock(program: Program, target: Target, lanes: Mapping[int, Lane] | None = None) -> Timeline:
    """Time a model: on one stream, or on the streams that `lanes` gives to tasks (by `Job.place`)."""
    if lanes is not None:
        return run_lanes(program, job_prices(program, target), target, lanes)
    now = cycles_of(target.rates.model_us, target)
    timed: list[Timed] = []
    for job, breakdown in zip(program.jobs, job_cycles(program, target), strict=True):
        timed.append(Timed(job, now, now + breakdown.total, breakdown, 0, now))
        now += breakdown.total * job.times
    return Timeline(tuple(timed), now, target)


def serial_cycles(program: Program, target: Target) -> float:
    """Cycles of a model on one stream, launch included: those of `run_clock`, without saying when each job runs."""
    now = cycles_of(target.rates.model_us, target)
    for job, breakdown in zip(program.jobs, job_cycles(program, target), strict=True):
        now += breakdown.total * job.times
    return now


def run_lanes(program: Program, prices: Prices, target: Target, lanes: Mapping[int, Lane]) -> Timeline:
    """Time a model on several streams; its regions run one after the other."""
    now = cycles_of(target.rates.model_us, target)
    timed: list[Timed] = []
    for part in _parts(program, prices, target, lanes):
        for job, cost, stream, span in zip(part.jobs, part.costs, part.streams, part.spans, strict=True):
            timed.append(Timed(job, now + span.start, now + span.end, cost, stream, now + span.begin))
        now = part.then  # which the next one begins with
    return Timeline(tuple(timed), now, target)


def lane_cycles(
    program: Program, prices: Prices, target: Target, lanes: Mapping[int, Lane]
) -> tuple[float, dict[int, float]]:
    """Cycles of a model on several streams: the whole, launch included, and each region by its first task, run once."""
    now = cycles_of(target.rates.model_us, target)
    first: dict[int, int] = {}
    cycles: dict[int, float] = {}
    for part in _parts(program, prices, target, lanes):
        task = first.setdefault(part.region, part.first)
        cycles[task] = cycles.get(task, 0.0) + max([span.end for span in part.spans]) - part.spans[0].start
        now = part.then
    return now, cycles


@dataclass(slots=True)
class _Part:
    """Jobs of one region that run equally often: from cycle `now` on, what follows from `then` on.

    `first` is the task of the first one.
    """

    region: int
    first: int
    jobs: Sequence[Job]
    costs: Sequence[Breakdown]
    streams: list[int]
    spans: list[Span]
    now: float
    then: float


def _parts(program: Program, prices: Prices, target: Target, lanes: Mapping[int, Lane]) -> Iterator[_Part]:
    """A model on several streams, part after part."""
    owners = job_owners(program.jobs)
    alone = len({lane.region for lane in lanes.values()}) < 2
    now = cycles_of(target.rates.model_us, target)
    numbered = zip(program.jobs, owners, prices.breakdowns, prices.demands, strict=True)
    for (region, times), group in groupby(numbered, lambda item: (lanes[item[1]].region, item[0].times)):
        jobs, tasks, costs, demands = zip(*group, strict=True)
        streams = [lanes[t].stream for t in tasks]
        spans = simulate(demands, streams, _waits(jobs, tasks, streams, lanes), event_cycles(target))
        joining = 0.0 if alone else joining_cycles(streams, target)
        then = now + (max([span.end for span in spans]) + joining) * times
        yield _Part(region, tasks[0], jobs, costs, streams, spans, now, then)
        now = then


def job_owners(jobs: Sequence[Job]) -> list[int]:
    """For each job the task on whose stream it runs: its own.

    Of a conversion it is the next one, or, where that is done more or less often or there is none, the one before.
    """
    before: list[Job | None] = []
    task: Job | None = None
    for job in jobs:
        task = job if job.place >= 0 else task
        before.append(task)
    owners: list[int] = []
    after: Job | None = None
    for job, earlier in zip(reversed(jobs), reversed(before)):
        after = job if job.place >= 0 else after
        alike = [t for t in (after, earlier) if t is not None and t.times == job.times]
        owner = next(iter((*alike, earlier, after)))
        owners.append(-1 if owner is None else owner.place)
    return owners[::-1]


def _waits(
    jobs: Sequence[Job], tasks: Sequence[int], streams: Sequence[int], lanes: Mapping[int, Lane]
) -> list[list[int]]:
    """For each job the earlier ones that it waits for: those of its task, and conversions made on other streams.

    What a task waits for is done where its jobs are in several parts, as when results are converted after a loop.
    """
    index: dict[int, int] = {}
    made: dict[Hashable, int] = {}
    begun: set[int] = set()
    waits: list[list[int]] = []
    for i, (job, task) in enumerate(zip(jobs, tasks, strict=True)):
        found: dict[int, None] = {}
        if task not in begun:
            begun.add(task)
            found.update((index[t], None) for t in lanes[task].after if t in index)
        sources = (made[t.key] for t in job.reads if t.key in made)
        found.update((p, None) for p in sources if streams[p] != streams[i])
        waits.append(list(found))
        if job.place >= 0:
            index[job.place] = i
        else:
            made.update((t.key, i) for t in job.writes)
    return waits


def job_cycles(program: Program, target: Target) -> list[Breakdown]:
    """Cycles of each job, executed once."""
    return _breakdowns(program, job_loads(program, target), target)


def job_prices(program: Program, target: Target) -> Prices:
    """Cycles of each job, executed once, and what it occupies."""
    traffic = job_traffic(program, target)
    loads = _loads(program, traffic, target)
    return Prices(program, target, traffic, loads, _breakdowns(program, loads, target))


def job_loads(program: Program, target: Target) -> list[Load]:
    """What each job asks of the units, with the traffic to DDR that is left when the model is at rest."""
    return _loads(program, job_traffic(program, target), target)


def job_traffic(program: Program, target: Target) -> list[Traffic]:
    """The bytes of each job, those of DDR when the model is at rest."""
    if program.stays_in(target.l2):  # what is there stays there, and nothing has to be pushed out
        moved = [0.0] * len(program.jobs)
    else:
        cache, drops = Cache(target.l2), program.last_touches()
        _ddr(program, drops, cache)
        moved = _ddr(program, drops, cache)
    traffic: list[Traffic] = []
    for job, ddr in zip(program.jobs, moved, strict=True):
        read = written = 0
        for touch in job.reads:
            read += touch.nbytes
        for touch in job.writes:
            written += touch.nbytes
        traffic.append(Traffic(read, written, ddr))
    return traffic


def _loads(program: Program, traffic: Sequence[Traffic], target: Target) -> list[Load]:
    # Layers repeat: jobs that share their work (`Maker.needs`) and move as many bytes share their load too.
    made: dict[tuple[int, int, int, float], Load] = {}
    found: list[Load] = []
    for job, t in zip(program.jobs, traffic, strict=True):
        key = (id(job.work), t.read, t.written, t.ddr)
        load = made.get(key)
        if load is None:
            load = made[key] = load_of(job.work, t, job.dtype, target)
        found.append(load)
    return found


def _breakdowns(program: Program, loads: Sequence[Load], target: Target) -> list[Breakdown]:
    different = {id(load): load for load in loads}
    priced = dict(zip(different, breakdowns(list(different.values()), target), strict=True))
    return [
        priced[id(load)] if job.engine == "aicore" else _elsewhere(job, target)
        for job, load in zip(program.jobs, loads, strict=True)
    ]


def utilisation(timeline: Timeline, demands: Sequence[Demand]) -> dict[str, float]:
    """The share of the model's time for which each unit works (cores: times the share of them that does)."""
    if not timeline.cycles:
        return dict.fromkeys(UNITS, 0.0)
    busy = [0.0] * len(UNITS)
    for timed, demand in zip(timeline.jobs, demands, strict=True):
        for k, share in enumerate(demand.units):
            busy[k] += share * demand.work * timed.job.times
    return {name: b / timeline.cycles for name, b in zip(UNITS, busy, strict=True)}


def _ddr(program: Program, drops: Sequence[Sequence[Hashable]], cache: Cache) -> list[float]:
    """The bytes that each job moves to and from DDR, in order through the cache."""
    return [cache.task(job.reads, job.writes, dropped) for job, dropped in zip(program.jobs, drops, strict=True)]


def _elsewhere(job: Job, target: Target) -> Breakdown:
    """A collective; or a task of AI CPU or of the host: a launch, and its element operations at AI CPU's rate."""
    if job.engine == "hccl":
        return linked(job, target)
    rates = target.rates
    elements = job.work.macs + job.work.vector + job.work.wide
    elements = max(elements, ceil(sum(t.nbytes for t in (*job.reads, *job.writes)) / 4))
    vector = cycles_of(elements / rates.aicpu_per_us, target)
    setup = cycles_of(rates.host_task_us if job.engine == "host" else rates.aicpu_task_us, target)
    return Breakdown(0.0, vector, 0.0, setup, setup + vector)


__all__ = [
    "Lane", "Prices", "Span", "Timed", "Timeline", "job_cycles", "job_loads", "job_owners", "job_prices",
    "lane_cycles", "run_clock", "run_lanes", "serial_cycles", "utilisation",
]  # fmt: skip
