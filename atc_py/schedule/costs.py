"""Predicted latency: each task's cost in a plan, and the time that a plan or a graph takes.

    x: float32 ─ convert 3.1 us ─ Conv 12.1 us ─ Gemm 8.4 us ─ convert 3.0 us ─▶ y

    tasks            Conv 15.2 us (with the conversion that it needs), Gemm 11.4 us (with that of the result)
    the model        launch 80 us + 26.6 us

A task's cost is in cycles of the target; what the clock assumes beside the plan's tasks, conversions of format, is
charged to the task that needs it, so that launch and tasks add up to the model's time on one stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc_py.ir.graph import Graph
from atc_py.ir.types import DType
from atc_py.plan.types import Gears, Host, If, Loop, Plan, Region, Scan, Static, Task
from atc_py.schedule.clock import Timeline, run_clock
from atc_py.schedule.formats import with_formats
from atc_py.schedule.hint import default_hint
from atc_py.schedule.jobs import HALF, executions, graph_program, plan_program, sizes_of
from atc_py.target import Target
from atc_py.target.cost import cycles_of, microseconds_of


def with_costs(plan: Plan, target: Target) -> Plan:
    """The plan with the cost of each task on the target, at the values that its hint gives to symbols."""
    costs: dict[int, float] = {}
    waiting, last = 0.0, -1
    for timed in plan_timeline(plan, target).jobs:
        cycles = timed.breakdown.total
        if timed.job.place < 0:
            waiting += cycles
            continue
        last = timed.job.place
        costs[last] = cycles + waiting
        waiting = 0.0
    if last >= 0:
        costs[last] += waiting
    rounded = {number: round(cycles) for number, cycles in costs.items()}
    return replace(plan, regions=_priced(plan.regions, rounded))


def _priced(regions: tuple[Region, ...], costs: Mapping[int, int]) -> tuple[Region, ...]:
    return tuple(_region(r, costs) for r in regions)


def _region(region: Region, costs: Mapping[int, int]) -> Region:
    def task(t: Task) -> Task:
        return replace(t, cost=costs[t.id]) if t.id in costs else t

    if isinstance(region, Static):
        return Static(tuple(map(task, region.tasks)))
    if isinstance(region, Host):
        return Host(task(region.task))
    if isinstance(region, If):
        then_branch, else_branch = _priced(region.then_branch, costs), _priced(region.else_branch, costs)
        return replace(region, then_branch=then_branch, else_branch=else_branch)
    if isinstance(region, (Loop, Scan)):
        return replace(region, body=_priced(region.body, costs))
    assert isinstance(region, Gears)
    return replace(region, bodies=tuple(_priced(b, costs) for b in region.bodies))


def plan_timeline(plan: Plan, target: Target, dtypes: Mapping[DType, DType] | None = None) -> Timeline:
    """A plan on the clock."""
    return run_clock(with_formats(plan_program(plan, sizes_of(plan.symbols, plan.hint, dtypes)), target), target)


def graph_timeline(
    graph: Graph,
    target: Target,
    hint: Mapping[str, int] | None = None,
    dtypes: Mapping[DType, DType] | None = None,
) -> Timeline:
    """A graph on the clock, each node a task."""
    values = default_hint(graph, hint) if hint is None else hint
    return run_clock(with_formats(graph_program(graph, sizes_of(graph.symbols, values, dtypes)), target), target)


def latency_us(before: Graph, plan: Plan, target: Target, precision_mode: str) -> dict[str, float]:
    """Predicted microseconds of one execution: the plain operators of `before` one by one, and the plan's tasks.

    Both on one stream. Where the precision mode makes float16 of float32, the plain operators are priced so too.
    """
    dtypes = HALF if precision_mode in ("fp16", "mixed_float16") else None
    plain = graph_timeline(before, target, plan.hint, dtypes)
    cycles = cycles_of(target.rates.model_us, target)
    cycles += sum(t.cost * times for t, times in executions(plan, sizes_of(plan.symbols, plan.hint)))
    return {"before": round(plain.microseconds, 1), "after": round(microseconds_of(cycles, target), 1)}
