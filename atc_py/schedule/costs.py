"""Predicted latency: each task's cost in a plan, and the time that a plan or a graph takes.

    x: float32 ─ convert 3.1 us ─ Conv 12.1 us ─ Gemm 8.4 us ─ convert 3.0 us ─▶ y

    tasks            Conv 15.2 us (with the conversion that it needs), Gemm 11.4 us (with that of the result)
    the model        launch 80 us + 26.6 us

A task's cost is in cycles of the target; what the clock assumes beside the plan's tasks, conversions of format, is
charged to the task that needs it, so that launch and tasks add up to the model's time on one stream. On several streams
the time is what the clock says.
"""

from __future__ import annotations

from collections.abc import Mapping

from atc_py.ir.graph import Graph
from atc_py.ir.types import DType
from atc_py.plan.types import Host, Plan, Static, walk
from atc_py.schedule.clock import (
    Lane,
    Prices,
    Timeline,
    job_owners,
    job_prices,
    lane_cycles,
    run_clock,
    serial_cycles,
)
from atc_py.schedule.formats import with_formats
from atc_py.schedule.graph_jobs import graph_program
from atc_py.schedule.hint import default_hint
from atc_py.schedule.jobs import HALF, Program, sizes_of
from atc_py.schedule.lanes import joining_cycles
from atc_py.schedule.plan_jobs import plan_program
from atc_py.schedule.sink import Handing, handing
from atc_py.target import Target
from atc_py.target.cost import microseconds_of


def task_costs(program: Program, prices: Prices, target: Target) -> dict[int, int]:
    """Cycles of each task by its place, with those of the conversions that it needs."""
    costs: dict[int, float] = {}
    for owner, breakdown in zip(job_owners(program.jobs), prices.breakdowns, strict=True):
        costs[owner] = costs.get(owner, 0.0) + breakdown.total
    return {place: round(cycles) for place, cycles in costs.items()}


def plan_lanes(plan: Plan) -> dict[int, Lane]:
    """The lane of each task of a plan, by its number."""
    lanes: dict[int, Lane] = {}
    for number, region in enumerate(walk(plan.regions)):
        tasks = region.tasks if isinstance(region, Static) else (region.task,) if isinstance(region, Host) else ()
        recorded: dict[int, int] = {}
        for task in tasks:
            after = tuple([recorded[e] for e in task.waits if e in recorded]) if task.waits else ()
            lanes[task.id] = Lane(number, task.stream, after)
            for event in task.records:
                recorded[event] = task.id
    return lanes


def plan_timeline(plan: Plan, target: Target, dtypes: Mapping[DType, DType] | None = None) -> Timeline:
    """A plan on the clock."""
    program = _plan_program(plan, target, dtypes)
    return run_clock(program, target, plan_lanes(plan) if plan.streams > 1 else None)


def _plan_program(plan: Plan, target: Target, dtypes: Mapping[DType, DType] | None) -> Program:
    return with_formats(plan_program(plan, sizes_of(plan.symbols, plan.hint, dtypes)), target)


def graph_timeline(
    graph: Graph,
    target: Target,
    hint: Mapping[str, int] | None = None,
    dtypes: Mapping[DType, DType] | None = None,
) -> Timeline:
    """A graph on the clock, each node a task."""
    values = default_hint(graph, hint) if hint is None else hint
    return run_clock(_plain_program(graph, target, values, dtypes), target)


def _plain_program(
    graph: Graph, target: Target, hint: Mapping[str, int] | None, dtypes: Mapping[DType, DType] | None
) -> Program:
    """A graph's nodes as jobs, with the formats that the target prefers."""
    return with_formats(graph_program(graph, sizes_of(graph.symbols, hint, dtypes)), target)


_BFLOAT = {DType.FLOAT32: DType.BFLOAT16}
_SINGLE = {DType.FLOAT16: DType.FLOAT32, DType.BFLOAT16: DType.FLOAT32}
_PRICED: Mapping[str, Mapping[DType, DType]] = {
    "fp16": HALF, "mixed_float16": HALF, "mixed_bfloat16": _BFLOAT, "fp32": _SINGLE,
}  # fmt: skip


def priced_as(precision_mode: str) -> Mapping[DType, DType] | None:
    """As what element types of the plain operators count under a precision mode that makes one of another."""
    return _PRICED.get(precision_mode)


def latency_us(before: Graph, plan: Plan, handed: Handing, target: Target, precision_mode: str) -> dict[str, float]:
    """Predicted microseconds of one execution: the plain operators of `before` one by one on one stream, and the plan
    as it is `handed` over.

    Loops run as often in both, and what an operator's declaration or types force away from AI Core is priced where it
    runs. Where the precision mode makes one dtype of another, the plain operators are priced so too, all of them and
    without a Cast between them: what the plan has in other dtypes, and its Casts, count against it.
    """
    hint = default_hint(before) if plan.hint is None else plan.hint
    plain = serial_cycles(_plain_program(before, target, hint, priced_as(precision_mode)), target)
    cycles = {"before": plain, "after": handed.cycles}
    return {name: round(microseconds_of(count, target), 1) for name, count in cycles.items()}


def plan_handing(plan: Plan, target: Target, prices: Prices | None = None) -> Handing:
    """One execution of a plan: what the host does for it, and the cycles that it takes.

    `prices` are those of its jobs, where they are known already.
    """
    cycles: Mapping[int, float] = {}
    if plan.streams > 1:
        if prices is None:
            prices = job_prices(_plan_program(plan, target, None), target)
        cycles = prices.regions or lane_cycles(prices.program, prices, target, plan_lanes(plan))[1]
    several = sum(1 for _ in walk(plan.regions)) > 1

    def static_cycles(region: Static) -> float:
        found = cycles.get(region.tasks[0].id) if region.tasks else None
        if found is None:
            return float(sum(t.cost for t in region.tasks))
        return found + (joining_cycles([t.stream for t in region.tasks], target) if several else 0.0)

    return handing(plan, target, sizes_of(plan.symbols, plan.hint), static_cycles)
