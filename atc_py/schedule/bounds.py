"""What limits a plan, however many streams it had: the unit that works longest, or the longest chain of needs.

    Conv 100 us on all cores ─┬─ Conv 40 us ─┬─ Add 5 us        cores     100 + 40 + 40 + 5 = 185 us
                              └─ Conv 40 us ─┘                  chain     100 + 40 + 5 = 145 us

    the limit is the cores

On one stream the time of the device is above both by the launches; the difference is all that streams could gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atc_py.plan.types import Plan
from atc_py.schedule.clock import Prices, job_owners, job_prices
from atc_py.schedule.formats import with_formats
from atc_py.schedule.jobs import Program, sizes_of
from atc_py.schedule.lanes import UNITS
from atc_py.schedule.plan_jobs import plan_program
from atc_py.target import Target
from atc_py.target.cost import microseconds_of

NAMES = {"cube": "cores", "vector": "vector cores", "ddr": "DDR", "aicpu": "AI CPU", "host": "host",
         "hccl": "links"}  # fmt: skip
"""What people call the units."""


@dataclass(frozen=True)
class Bounds:
    """Microseconds of one execution: how long each unit works, the longest chain, and which of these is the limit."""

    busy_us: Mapping[str, float]
    chain_us: float

    @property
    def limit(self) -> str:
        """The name of what takes longest."""
        unit = max(UNITS, key=lambda u: self.busy_us[u])
        return NAMES[unit] if self.busy_us[unit] >= self.chain_us else "chain"

    @property
    def limit_us(self) -> float:
        """How long that takes."""
        return max(self.chain_us, *self.busy_us.values())


def plan_bounds(plan: Plan, target: Target) -> Bounds:
    """What limits a plan on a target."""
    program = with_formats(plan_program(plan, sizes_of(plan.symbols, plan.hint)), target)
    prices = job_prices(program, target)
    busy = [0.0] * len(UNITS)
    for job, demand in zip(program.jobs, prices.demands, strict=True):
        for k, share in enumerate(demand.units):
            busy[k] += share * demand.work * job.times
    us = {unit: microseconds_of(cycles, target) for unit, cycles in zip(UNITS, busy, strict=True)}
    return Bounds(us, microseconds_of(_chain(program, prices), target))


def _chain(program: Program, prices: Prices) -> float:
    """Cycles of the longest way through the jobs, each after those that make what it reads."""
    made: dict[object, float] = {}
    ends: dict[int, float] = {}
    for job, owner, demand in zip(program.jobs, job_owners(program.jobs), prices.demands, strict=True):
        start = max([ends.get(owner, 0.0), *(made.get(t.key, 0.0) for t in job.reads)])
        end = ends[owner] = start + demand.total * job.times
        made.update((t.key, end) for t in job.writes)
    return max(ends.values(), default=0.0)
