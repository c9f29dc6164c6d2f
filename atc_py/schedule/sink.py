"""How a model is handed to the device: whole, in parts, or task by task; what the host does for it, and how long.

    Conv ─ Relu ─ NonZero ─ If { Mul } { Add }              NonZero finds out a size, for which the host waits

    --sink graph       launches: Conv to NonZero, the whole If    waits: the size, the result
    --sink subgraph    launches: Conv to NonZero, the branch      waits: the size, the condition, the result
    --sink op          launches: 4 tasks                          waits: the size, the condition, the result

A part sinks when it has no task of the host's, no size to find out, and no task that is launched with what another one
of the part makes (`known`); around what cannot sink, the rest does. The host runs ahead of the device: a launch takes
it `host_task_us`, and the device begins when it has been launched and is done with what came before. To wait costs the
host as much again after the device is done. The first launch, and the wait for the result, are in `model_us`. Results
do not depend on any of this.

The host waits for what the device makes and it has to know. A Loop that it runs ends by a condition where one is given
or no number of trips is: then the host waits for what each iteration makes of it, unless the body only hands it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from atc_py.plan.types import Gears, Host, If, Loop, Operand, Plan, Region, Scan, Space, Static, Task, walk
from atc_py.schedule.jobs import Sizes
from atc_py.schedule.known import Known, tasks_of
from atc_py.schedule.plan_jobs import gear_of, longer, trips_of
from atc_py.target import Target
from atc_py.target.cost import cycles_of

SINKS = ("graph", "subgraph", "op")
"""The ways in which a model can be handed to the device."""
ON_HOST = -1
"""The host, where a stream of the device would stand."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What the host does, or a loop after its first iteration: a name, from and to in cycles since the call.

    `kind` is `launch`, `wait`, `task` (one of the host's) or `rounds`; `stream` is the host, or a stream of the device.
    """

    kind: str
    name: str
    start: float
    end: float
    stream: int = ON_HOST


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks that are handed over together, and when the first time of them begins, in cycles since the call."""

    tasks: tuple[Task, ...]
    start: float


@dataclass(frozen=True)
class Handing:
    """One execution as the host sees it: launches, waits for the device, and cycles from the call to the result.

    `held` are the cycles for which the device stands still because the host launches or waits; what is in `model_us`
    does not count. `bars` and `runs` say when what happens; of a loop they show the first iteration, then a bar.
    """

    launches: int = 0
    synchronisations: int = 0
    cycles: float = 0.0
    held: float = 0.0
    bars: tuple[Bar, ...] = ()
    runs: tuple[Run, ...] = ()


def handing(plan: Plan, target: Target, sizes: Sizes, static_cycles: Callable[[Static], float]) -> Handing:
    """One execution of a plan, as its option `sink` says; `static_cycles`: those of a list of tasks on the device."""
    host = _HostClock(plan, target, sizes, plan.options.get("sink", "graph"), static_cycles)
    host.regions(plan.regions, 1)
    end = max(host.device, host.now)
    if host.launches or not host.synchronisations:
        host.synchronisations += 1
        host.bars.append(Bar("wait", "wait for the result", host.now, end))
    begin = cycles_of(target.rates.model_us, target)
    bars = [Bar("launch", "launch of the model", 0.0, begin)]
    bars += [replace(bar, start=begin + bar.start, end=begin + bar.end) for bar in host.bars]
    runs = [Run(run.tasks, begin + run.start) for run in host.runs]
    return Handing(host.launches, host.synchronisations, begin + end, host.held, tuple(bars), tuple(runs))


class _HostClock:
    """`now`: when the host is ready; `device`: when the device has done what it has; `open`: a part can still grow."""

    def __init__(
        self, plan: Plan, target: Target, sizes: Sizes, mode: str, static_cycles: Callable[[Static], float]
    ) -> None:
        self.plan, self.sizes, self.mode, self.static_cycles = plan, sizes, mode, static_cycles
        self.step = cycles_of(target.rates.host_task_us, target)
        self.launches = self.synchronisations = 0
        self.now = self.device = self.held = 0.0
        self.open = False
        self.sinks = {id(r): _sinks(r) for r in walk(plan.regions)}
        self.known = Known(plan)
        self.bars: list[Bar] = []
        self.runs: list[Run] = []

    def regions(self, regions: Sequence[Region], times: int) -> None:
        """Run regions `times` times; the clock runs for one of them."""
        for region in regions:
            if self.mode == "graph" and not isinstance(region, (Static, Host)) and self._whole(region):
                inside = [t for r in walk((region,)) for t in tasks_of(r)]
                self.learn(inside, times)
                start = self.launch(_name(region), times)
                self.device = start + self.on_device((region,), start)
                self.known.launched(inside)
                if isinstance(region, (Loop, Scan)):
                    self.known.end(region)
            elif isinstance(region, Static):
                self.open = self.open and self.mode == "graph"
                self.tasks(region, times)
            elif isinstance(region, Host):
                self.open = self.open and self.mode == "graph"
                self.task(region.task, float(region.task.cost), times)
                self.wait(f"a size that '{region.task.name}' finds out", times)
            elif isinstance(region, If):
                self.ask(region.predicate, _name(region), times)
                self.regions(longer(region), times)
            elif isinstance(region, Gears):
                self.regions(gear_of(region, self.sizes), times)
            else:
                self.loop(region, times)

    def _whole(self, region: Region) -> bool:
        return all(self.sinks[id(r)] for r in walk((region,))) and self.known.whole(region)

    def on_device(self, regions: Sequence[Region], start: float) -> float:
        """Cycles on the device of regions that sink, from `start` on."""
        total = 0.0
        for region in regions:
            at = start + total
            if isinstance(region, Static):
                self.runs.append(Run(region.tasks, at))
                total += self.static_cycles(region)
            elif isinstance(region, If):
                total += self.on_device(longer(region), at)
            elif isinstance(region, (Loop, Scan)):
                trips = trips_of(self.plan, region, self.sizes)
                once = self.on_device(region.body, at)
                total += once * trips
                self.rounds(region, trips, at + once, start + total, _stream(region))
            elif isinstance(region, Gears):
                total += self.on_device(gear_of(region, self.sizes), at)
        return total

    def loop(self, region: Loop | Scan, times: int) -> None:
        """A loop that the host runs."""
        trips = trips_of(self.plan, region, self.sizes)
        if isinstance(region, Loop) and region.condition is not None:
            self.ask(region.condition, _name(region), times)
        self.open = False
        now, device, held = self.now, self.device, self.held
        self.known.begin(region)
        self.regions(region.body, times * trips)
        if isinstance(region, Loop) and self.asks(region):
            self.wait(f"the condition of {_name(region)}", times * trips)
        elif self.known.asks(region):
            self.wait(f"what {_name(region)} hands on", times * trips)
        self.known.end(region)
        self.open = False
        ready, done = self.now, self.device
        self.held += (self.held - held) * (trips - 1)
        self.now += (self.now - now) * (trips - 1)
        self.device = max(self.now, self.device + (self.device - device) * (trips - 1))
        self.rounds(region, trips, ready, self.now, ON_HOST)
        self.rounds(region, trips, done, self.device, _stream(region))

    def asks(self, region: Loop) -> bool:
        """Whether the host has to know what an iteration makes of the condition before the next one begins."""
        if region.next_condition is None or (region.condition is None and region.trips is not None):
            return False  # a loop that counts, whatever its body says
        return _makes(self.plan, region, region.next_condition)

    def rounds(self, region: Region, trips: int, start: float, end: float, stream: int) -> None:
        """A loop's iterations after the first one."""
        if trips > 1 and end > start:
            more = f"… {trips - 1} more iteration{'s' if trips > 2 else ''} of {_name(region)}"
            self.bars.append(Bar("rounds", more, start, end, stream))

    def tasks(self, region: Static, times: int) -> None:
        """A list of tasks: its parts between tasks of the host's."""
        if self.mode != "op" and not _by_host(region):
            if region.tasks:
                self.learn(region.tasks, times)
                start = self.launch(region.tasks[0].name, times)
                self.runs.append(Run(region.tasks, start))
                self.device = start + self.static_cycles(region)
                self.known.launched(region.tasks)
        else:
            for task in region.tasks:
                self.task(task, float(task.cost), times)
        if _finds_sizes(region):
            found = next(t for t in region.tasks if t.binds)
            self.wait(f"a size that '{found.name}' finds out", times)

    def task(self, task: Task, cycles: float, times: int) -> None:
        """A task by itself."""
        if task.engine == "host":
            if self.open or self.device > self.now:
                self.wait(f"what '{task.name}' reads", times)
            self.bars.append(Bar("task", task.name, self.now, self.now + cycles))
            self.runs.append(Run((task,), self.now))
            self.now += cycles
            self.device = max(self.device, self.now)
            self.open = False
            return
        self.open = self.open and self.mode != "op"
        self.learn((task,), times)
        start = self.launch(task.name, times)
        self.runs.append(Run((task,), start))
        self.device = start + cycles
        self.known.launched((task,))

    def learn(self, tasks: Sequence[Task], times: int) -> None:
        """The host waits where it has to know what the device makes to launch one of the tasks."""
        task = self.known.missing(tasks)
        if task is not None:
            self.wait(f"what '{task.name}' is launched with", times)

    def launch(self, name: str, times: int) -> float:
        """The device gets more to do; returns when it begins with that."""
        if not self.open:
            if self.launches:
                self.bars.append(Bar("launch", f"launch of {name}", self.now, self.now + self.step))
                self.now += self.step
            self.launches += times
            self.open = True
        self.held += max(0.0, self.now - self.device)
        return max(self.device, self.now)

    def ask(self, condition: Operand, name: str, times: int) -> None:
        """The host reads a condition; what the model fixes it knows."""
        if self.plan.buffers[condition.buffer].space is not Space.WEIGHTS:
            self.wait(f"the condition of {name}", times)

    def wait(self, what: str, times: int) -> None:
        """The host waits until the device is done."""
        self.known.unknown.clear()
        self.synchronisations += times
        end = max(self.now, self.device) + self.step
        self.bars.append(Bar("wait", f"wait for {what}", self.now, end))
        self.held += end - self.device
        self.now = self.device = end
        self.open = False


def _makes(plan: Plan, region: Loop, operand: Operand) -> bool:
    """Whether an iteration makes a value, and does not only hand on what it was given, or a constant."""
    bodies = list(walk(region.body))
    tasks = [t for r in bodies for t in tasks_of(r)]
    moved = {t.outputs[0].value: t.inputs[0].value for t in tasks if t.kernel == "TensorMove" and t.inputs[0]}
    views = {a.value: a.source for a in plan.aliases}

    def source(value: int, *maps: Mapping[int, int]) -> int:
        while (found := next((m[value] for m in maps if value in m), None)) is not None:
            value = found
        return value

    made = [o.value for t in tasks for o in t.outputs if o.value not in moved]
    made += [o.value for r in bodies if isinstance(r, (If, Loop, Scan)) for o in r.outputs]
    made += [c.state.value for c in region.carried]
    return source(operand.value, views, moved) in {source(value, views) for value in made}


def _stream(region: Region) -> int:
    """The first of the streams on which a region's tasks run: the others are joined to it at the end."""
    return min((t.stream for r in walk((region,)) for t in tasks_of(r)), default=0)


def _name(region: Region) -> str:
    kind = type(region).__name__
    origin = region.origin if isinstance(region, (If, Loop, Scan)) else ()
    return f"{kind} '{origin[0]}'" if origin else kind


def _sinks(region: Region) -> bool:
    """Whether a region itself (what is inside of it apart) needs no host."""
    if isinstance(region, Host):
        return False
    return not isinstance(region, Static) or not (_by_host(region) or _finds_sizes(region))


def _by_host(region: Static) -> bool:
    return any(t.engine == "host" for t in region.tasks)


def _finds_sizes(region: Static) -> bool:
    return any(t.binds for t in region.tasks)
