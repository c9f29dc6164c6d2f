"""The profile of a plan: when each task runs on the simulated device, what it is bound by, and why time goes by unused.

    task        stream   start   duration   wait   bound by
    conv1            0     80.0       12.1    0.0   cube
    pool             1     92.6        6.2    0.5   memory      (waited for an event of conv1)
    softmax          0     98.3        3.1    0.0   launch

All times are the clock's (microseconds of the device, from the call on); none of them is measured, and none has to do
with how long the simulation takes on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atc_py.ir.dims import evaluate
from atc_py.ir.types import DType, Tensor, Type
from atc_py.plan.types import Gears, Host, If, Operand, Plan, Region, Static, Task
from atc_py.schedule.clock import Lane, Prices, Timed, job_owners, job_prices, run_lanes, utilisation
from atc_py.schedule.costs import plan_handing, plan_lanes, task_costs
from atc_py.schedule.formats import with_formats
from atc_py.schedule.jobs import Sizes, sizes_of
from atc_py.schedule.lanes import Demand
from atc_py.schedule.plan_jobs import plan_program
from atc_py.schedule.sink import Handing
from atc_py.target import Target
from atc_py.target.cost import Breakdown, Load, microseconds_of

ASSUMED = "assumed conversion"
"""The task type of what the clock assumes beside the plan's tasks."""


@dataclass(frozen=True)
class View:
    """An operand as reports show it: its shape as stored, dtype and format."""

    shape: tuple[int, ...]
    dtype: str
    format: str


@dataclass(frozen=True)
class Row:
    """One task on the clock, in microseconds; the first of `times` executions.

    `start` is when its stream turns to it, which the host has launched by then. `wait` is how long its stream waited
    before the task's work could begin, beyond the launch: for events, and for units that other tasks held. `cube`,
    `vector` and `memory` are busy times of the units, `read` and `written` bytes.
    """

    task: int
    name: str
    kernel: str
    engine: str
    stream: int
    start: float
    duration: float
    wait: float
    launch: float
    cube: float
    vector: float
    memory: float
    bound_by: str
    cores: float
    read: int
    written: int
    times: int
    inputs: tuple[View, ...] = ()
    outputs: tuple[View, ...] = ()
    origin: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    macs: int = 0
    padded: float = 0.0
    """Busy cycles of the cube over those that its multiply-accumulates need: 1 is a full cube."""

    @property
    def end(self) -> float:
        """When it is done."""
        return self.start + self.duration

    @property
    def total(self) -> float:
        """Microseconds of all its executions."""
        return self.duration * self.times


@dataclass(frozen=True)
class Profile:
    """A plan on the clock. `handing` is the host's part; `cores` the share of the AI Cores' time that tasks hold.

    `loads` say for each row what it asks of the units, whatever their rates are.
    """

    target: Target
    rows: tuple[Row, ...]
    handing: Handing
    cores: float
    loads: tuple[Load, ...] = ()

    @property
    def latency(self) -> float:
        """Predicted microseconds of one execution."""
        return microseconds_of(self.handing.cycles, self.target)

    @property
    def held(self) -> float:
        """Microseconds for which the device stands still because the host launches or waits."""
        return microseconds_of(self.handing.held, self.target)

    def busy(self) -> dict[str, float]:
        """The share of the latency in which each unit works: of the busiest core, one task after the other."""
        whole = self.latency or 1.0
        on_core = [r for r in self.rows if r.engine == "aicore"]
        found = {
            unit: sum(getattr(r, unit) * r.times for r in on_core) / whole for unit in ("cube", "vector", "memory")
        }
        links = ("hccl",) if any(r.engine == "hccl" for r in self.rows) else ()
        for engine in ("aicpu", "host", *links):
            found[engine] = sum((r.duration - r.wait) * r.times for r in self.rows if r.engine == engine) / whole
        return {**found, "cores": self.cores}


def profile(plan: Plan, target: Target, dtypes: Mapping[DType, DType] | None = None) -> Profile:
    """Run the clock over a plan at its hint's sizes; `dtypes` counts element types as others."""
    sizes = sizes_of(plan.symbols, plan.hint, dtypes)
    program = with_formats(plan_program(plan, sizes), target)
    prices = job_prices(program, target)
    lanes = plan_lanes(plan)
    timeline = run_lanes(program, prices, target, lanes)
    tasks = {t.id: t for t in plan.tasks()}
    owners = job_owners(program.jobs)
    now = replace(plan, regions=_repriced(plan.regions, task_costs(program, prices, target)))
    handed = plan_handing(now, target)
    placed = _placed(timeline.jobs, owners, prices.demands, handed)
    rows = _rows(placed, owners, tasks, lanes, prices, sizes, target)
    cores = utilisation(timeline, prices.demands)["cube"]
    return Profile(target, tuple(rows), handed, cores, tuple(prices.loads))


def _placed(jobs: Sequence[Timed], owners: Sequence[int], demands: Sequence[Demand], handed: Handing) -> list[Timed]:
    """The jobs at the times at which the host hands them over; those of one list of tasks keep their distances."""
    lists = {task.id: number for number, run in enumerate(handed.runs) for task in run.tasks}
    firsts: dict[int, float] = {}
    for timed, owner in zip(jobs, owners, strict=True):
        number = lists[owner]
        firsts[number] = min(timed.start, firsts.get(number, timed.start))
    ends: dict[int, float] = {}
    placed = []
    for timed, owner, demand in zip(jobs, owners, demands, strict=True):
        number = lists[owner]
        run = handed.runs[number]
        if len(run.tasks) > 1:
            by = run.start - firsts[number]
            start, begin, end = timed.start + by, timed.begin + by, timed.end + by
        else:
            start = ends.get(number, run.start)
            begin, end = start + demand.launch, start + demand.total
            ends[number] = end
        placed.append(Timed(timed.job, start, end, timed.breakdown, timed.stream, begin))
    return placed


def _repriced(regions: tuple[Region, ...], costs: Mapping[int, int]) -> tuple[Region, ...]:
    """The regions with what their tasks cost at other sizes than those of the conversion."""

    def task(t: Task) -> Task:
        return replace(t, cost=costs.get(t.id, t.cost))

    def region(r: Region) -> Region:
        if isinstance(r, Static):
            return Static(tuple(map(task, r.tasks)))
        if isinstance(r, Host):
            return Host(task(r.task))
        if isinstance(r, If):
            branches = (_repriced(r.then_branch, costs), _repriced(r.else_branch, costs))
            return replace(r, then_branch=branches[0], else_branch=branches[1])
        if isinstance(r, Gears):
            return replace(r, bodies=tuple(_repriced(b, costs) for b in r.bodies))
        return replace(r, body=_repriced(r.body, costs))

    return tuple(map(region, regions))


def _rows(
    jobs: Sequence[Timed],
    owners: Sequence[int],
    tasks: Mapping[int, Task],
    lanes: Mapping[int, Lane],
    prices: Prices,
    sizes: Sizes,
    target: Target,
) -> list[Row]:
    rows = []
    for timed, owner, demand in zip(jobs, owners, prices.demands, strict=True):
        own = timed.job.place >= 0
        rows.append(_row(timed, tasks[owner], own, lanes[owner] if own else None, demand, sizes, target))
    return rows


def _row(timed: Timed, task: Task, own: bool, lane: Lane | None, demand: Demand, sizes: Sizes, target: Target) -> Row:
    def us(cycles: float) -> float:
        return microseconds_of(cycles, target)

    job, found = timed.job, timed.breakdown
    waited = timed.begin - timed.start - demand.launch
    return Row(
        task=task.id if own else -1,
        name=job.name,
        kernel=(job.kernel if task.body is None else "+".join(_body(task))) if own else ASSUMED,
        engine=job.engine,
        stream=timed.stream,
        start=us(timed.start),
        duration=us(timed.end - timed.start),
        wait=us(waited) if waited >= 1 else 0.0,  # less than a cycle is what sums of floats leave
        launch=us(found.setup),
        cube=us(found.cube),
        vector=us(found.vector),
        memory=us(found.memory),
        bound_by=_bound_by(job.engine, found),
        cores=max(demand.units[:2]),
        read=sum(t.nbytes for t in job.reads),
        written=sum(t.nbytes for t in job.writes),
        times=job.times,
        inputs=tuple(_view(o, sizes) for o in task.inputs if o is not None) if own else (),
        outputs=tuple(_view(o, sizes) for o in task.outputs) if own else (),
        origin=task.origin if own else (),
        after=lane.after if lane is not None else (),
        macs=job.work.macs,
        padded=_padded(timed, target),
    )


def _body(task: Task) -> list[str]:
    assert task.body is not None
    return [n.op for n in task.body.order() if n.op not in ("Data", "Const", "NetOutput")]


def _bound_by(engine: str, found: Breakdown) -> str:
    return found.bound_by if engine == "aicore" else engine


def _padded(timed: Timed, target: Target) -> float:
    """Cube cycles of the busiest core over those of the multiply-accumulates, evenly spread and without padding."""
    shape = target.cube.get(timed.job.dtype)
    macs = timed.job.work.macs
    if shape is None or not macs:
        return 0.0
    return timed.breakdown.cube / (macs / (shape.m * shape.k * shape.n) / target.aicores)


def _view(operand: Operand, sizes: Sizes) -> View:
    type_: Type = operand.type
    if not isinstance(type_, Tensor) or type_.shape is None:
        return View((), type(type_).__name__.lower(), "ND")
    shape = tuple(int(evaluate(d, sizes.env)) for d in type_.storage_shape)
    return View(shape, sizes.dtype(type_).value, type_.storage_format.value)
