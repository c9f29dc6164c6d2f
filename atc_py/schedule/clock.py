"""The clock: when each task of a model runs on the device, and how long the model takes.

    jobs on one stream        Conv 12.1 us ─ Relu 3.0 us ─ MatMul 8.4 us
    the model                 launch 80 us + 23.5 us

Jobs run one after the other in their order; the model's buffers pass through the L2 cache in that order. A model is
timed at rest: it has run before, so that what of its weights and inputs stays in L2 is there at the start.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

from atc_py.schedule.jobs import Job, Program
from atc_py.target import Target
from atc_py.target.cache import Cache
from atc_py.target.cost import Breakdown, Load, Traffic, breakdowns, cycles_of, load_of, microseconds_of


@dataclass(frozen=True)
class Timed:
    """One job on the clock; `start` and `end` of its first execution in cycles since the model was launched."""

    job: Job
    start: float
    end: float
    breakdown: Breakdown


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


def run_clock(program: Program, target: Target) -> Timeline:
    """Time a model on one stream."""
    now = cycles_of(target.rates.model_us, target)
    timed: list[Timed] = []
    for job, breakdown in zip(program.jobs, job_cycles(program, target), strict=True):
        timed.append(Timed(job, now, now + breakdown.total, breakdown))
        now += breakdown.total * job.times
    return Timeline(tuple(timed), now, target)


def job_cycles(program: Program, target: Target) -> list[Breakdown]:
    """Cycles of each job, executed once."""
    priced = breakdowns(job_loads(program, target), target)
    return [
        b if job.engine == "aicore" else _elsewhere(job, target) for job, b in zip(program.jobs, priced, strict=True)
    ]


def job_loads(program: Program, target: Target) -> list[Load]:
    """What each job asks of the units, with the traffic to DDR that is left when the model is at rest."""
    cache = Cache(target.l2)
    drops = program.last_touches()
    _traffic(program, drops, cache)
    traffic = _traffic(program, drops, cache)
    return [load_of(job.work, t, job.dtype, target) for job, t in zip(program.jobs, traffic, strict=True)]


def _traffic(program: Program, drops: Sequence[Sequence[Hashable]], cache: Cache) -> list[Traffic]:
    """The bytes of each job, in order through the cache."""
    found: list[Traffic] = []
    for job, dropped in zip(program.jobs, drops, strict=True):
        ddr = 0.0
        for touch in job.reads:
            ddr += cache.read(touch.key, touch.nbytes)
        for touch in job.writes:
            ddr += cache.write(touch.key, touch.nbytes)
        for key in dropped:
            cache.drop(key)
        found.append(Traffic(sum(t.nbytes for t in job.reads), sum(t.nbytes for t in job.writes), ddr))
    return found


def _elsewhere(job: Job, target: Target) -> Breakdown:
    """A task of AI CPU or of the host: a launch, and its element operations at AI CPU's rate."""
    rates = target.rates
    elements = job.work.macs + job.work.vector + job.work.wide
    elements = max(elements, ceil(sum(t.nbytes for t in (*job.reads, *job.writes)) / 4))
    vector = cycles_of(elements / rates.aicpu_per_us, target)
    setup = cycles_of(rates.host_task_us if job.engine == "host" else rates.aicpu_task_us, target)
    return Breakdown(0.0, vector, 0.0, setup, setup + vector)
