"""How a model is handed to the device: whole, in parts, or task by task; what the host does for it, and how long.

    Conv ─ Relu ─ NonZero ─ If { Mul } { Add }              NonZero finds out a size, for which the host waits

    --sink graph       launches: Conv to NonZero, the whole If    waits: the size, the result
    --sink subgraph    launches: Conv to NonZero, the branch      waits: the size, the condition, the result
    --sink op          launches: 4 tasks                          waits: the size, the condition, the result

A part sinks when it has no task of the host's and no size to find out; around what cannot sink, the rest does. The
host runs ahead of the device: a launch takes it `host_task_us`, and the device begins when it has been launched and
is done with what came before. To wait costs the host as much again after the device is done. The first launch, and
the wait for the result, are in `model_us`. Results do not depend on any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atc_py.plan.types import Gears, Host, If, Loop, Plan, Region, Scan, Static, Task, walk
from atc_py.schedule.jobs import Sizes
from atc_py.schedule.plan_jobs import longer, trips_of
from atc_py.target import Target
from atc_py.target.cost import cycles_of

SINKS = ("graph", "subgraph", "op")
"""The ways in which a model can be handed to the device."""


@dataclass
class Handing:
    """One execution as the host sees it: launches, waits for the device, and cycles from the call to the result."""

    launches: int = 0
    synchronisations: int = 0
    cycles: float = 0.0


def handing(plan: Plan, target: Target, sizes: Sizes, static_cycles: Callable[[Static], float]) -> Handing:
    """One execution of a plan, as its option `sink` says; `static_cycles`: those of a list of tasks on the device."""
    host = _HostClock(plan, target, sizes, plan.options.get("sink", "graph"), static_cycles)
    host.regions(plan.regions, 1)
    if host.launches or not host.synchronisations:
        host.synchronisations += 1  # the result
    cycles = cycles_of(target.rates.model_us, target) + max(host.device, host.now)
    return Handing(host.launches, host.synchronisations, cycles)


class _HostClock:
    """`now`: when the host is ready; `device`: when the device has done what it has; `open`: a part can still grow."""

    def __init__(
        self, plan: Plan, target: Target, sizes: Sizes, mode: str, static_cycles: Callable[[Static], float]
    ) -> None:
        self.plan, self.sizes, self.mode, self.static_cycles = plan, sizes, mode, static_cycles
        self.step = cycles_of(target.rates.host_task_us, target)
        self.launches = self.synchronisations = 0
        self.now = self.device = 0.0
        self.open = False
        self.sinks = {id(r): _sinks(r) for r in walk(plan.regions)}

    def regions(self, regions: Sequence[Region], times: int) -> None:
        """Run regions `times` times; the clock runs for one of them."""
        for region in regions:
            if self.mode == "graph" and not isinstance(region, (Static, Host)) and self._whole(region):
                self.launch(self._cycles((region,)), times)
            elif isinstance(region, Static):
                self.open = self.open and self.mode == "graph"
                self.tasks(region, times)
            elif isinstance(region, Host):
                self.open = self.open and self.mode == "graph"
                self.task(region.task, float(region.task.cost), times)
                self.wait(times)
            elif isinstance(region, If):
                self.wait(times)
                self.regions(longer(region), times)
            elif isinstance(region, Gears):
                self.regions(region.bodies[0], times)
            else:
                self.loop(region, times)

    def _whole(self, region: Region) -> bool:
        return all(self.sinks[id(r)] for r in walk((region,)))

    def _cycles(self, regions: Sequence[Region]) -> float:
        """Cycles on the device of regions that sink."""
        total = 0.0
        for region in regions:
            if isinstance(region, Static):
                total += self.static_cycles(region)
            elif isinstance(region, If):
                total += self._cycles(longer(region))
            elif isinstance(region, (Loop, Scan)):
                total += self._cycles(region.body) * trips_of(self.plan, region, self.sizes)
            elif isinstance(region, Gears):
                total += self._cycles(region.bodies[0])
        return total

    def loop(self, region: Loop | Scan, times: int) -> None:
        """A loop that the host runs; where a condition ends it, the host waits for that before each iteration."""
        trips = trips_of(self.plan, region, self.sizes)
        asks = isinstance(region, Loop) and (region.condition is not None or region.trips is None)
        if asks:
            self.wait(times)
        self.open = False
        now, device = self.now, self.device
        self.regions(region.body, times * trips)
        if asks:
            self.wait(times * trips)
        self.open = False
        self.now += (self.now - now) * (trips - 1)
        self.device = max(self.now, self.device + (self.device - device) * (trips - 1))

    def tasks(self, region: Static, times: int) -> None:
        """A list of tasks: its parts between tasks of the host's."""
        if self.mode != "op" and self.sinks[id(region)]:
            if region.tasks:
                self.launch(self.static_cycles(region), times)
            return
        for task in region.tasks:
            self.task(task, float(task.cost), times)

    def task(self, task: Task, cycles: float, times: int) -> None:
        """A task by itself."""
        if task.engine == "host":
            if self.open or self.device > self.now:
                self.wait(times)
            self.now += cycles
            self.device = max(self.device, self.now)
            self.open = False
            return
        self.open = self.open and self.mode != "op"
        self.launch(cycles, times)

    def launch(self, cycles: float, times: int) -> None:
        """The device gets more to do."""
        if not self.open:
            if self.launches:
                self.now += self.step
            self.launches += times
            self.open = True
        self.device = max(self.device, self.now) + cycles

    def wait(self, times: int) -> None:
        """The host waits until the device is done."""
        self.synchronisations += times
        self.now = self.device = max(self.now, self.device) + self.step
        self.open = False


def _sinks(region: Region) -> bool:
    """Whether a region itself (what is inside of it apart) needs no host."""
    if isinstance(region, Host):
        return False
    return not isinstance(region, Static) or all(t.engine != "host" for t in region.tasks)
