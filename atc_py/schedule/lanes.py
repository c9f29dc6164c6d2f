"""Tasks on several streams share the chip: what each of them occupies, and when it runs.

    stream 0   launch │ conv, 8 cores ████████│ launch │ conv, 8 cores ████│
    stream 1      launch │ pool, 8 cores ·······███│ launch │ …                    · waits for the cores

A task has two parts. Its launch (the scheduler reads the task, the arguments and the code come) keeps its stream busy
and nothing else; that is what another stream hides. Its work occupies cores: as many as its tiling uses, all at
once, from the two DMA set-ups at its beginning on. A task that uses all cores therefore overlaps with no other one,
but two that use a half each do. What the chip has besides is shared in the same way: DDR, of which running tasks may
together ask for no more than there is, the AI CPU, the host, and the links to other devices. Where vector cores stand
apart from the cube's (more of them than of those), a task of one kind leaves the other's cores free; the vector cores
of chips that have vector units in the AI cores too are not used.

Who asks first is served first: a small task does not overtake a large one that waits for its cores. A wait for an
event of another stream costs `EVENT_US`. Only what the model says is gained is gained: on one stream the times are
those of one task after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from atc_py.schedule.jobs import Job
from atc_py.target import Target
from atc_py.target.cost import CORE_BYTES, Breakdown, Load, Traffic, cube_for, cycles_of
from atc_py.target.tiling import tile

EVENT_US = 0.5
"""What a task that waits for an event starts later (an estimate: no published row has events)."""
ON_CORE = 844
"""Cycles of a launch that the cores take part in: two DMA set-ups of 422 cycles; the rest overlaps with other work."""

UNITS = ("cube", "vector", "ddr", "aicpu", "host", "hccl")
"""What tasks occupy, in the order of `Demand.units`: cores with a cube, vector cores apart from them, and so on."""


@dataclass(slots=True)
class Demand:
    """One task, in cycles: `launch` occupies its stream only, then `work` occupies a share (0 to 1) of each unit.

    `used` are the units of which it occupies any, with the shares.
    """

    launch: float
    work: float
    units: tuple[float, ...]
    used: tuple[tuple[int, float], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.used = tuple([(k, share) for k, share in enumerate(self.units) if share])

    @property
    def total(self) -> float:
        """Cycles on a stream of its own."""
        return self.launch + self.work


@dataclass(slots=True)
class Span:
    """When a task runs: its stream turns to it, its work begins, and ends (cycles)."""

    start: float
    begin: float
    end: float


def demand_of(job: Job, load: Load, traffic: Traffic, breakdown: Breakdown, target: Target) -> Demand:
    """What a job occupies."""
    if job.engine != "aicore":
        own = UNITS.index(job.engine)
        return Demand(0.0, breakdown.total, tuple([float(k == own) for k in range(len(UNITS))]))
    launch = max(0.0, breakdown.setup - ON_CORE)
    work = breakdown.total - launch
    ddr = load.ddr / (target.ddr_bytes_per_cycle * target.aicores * target.rates.ddr)
    share = min(1.0, ddr / work) if work else 0.0
    cube, vector = _cores(job, traffic, target)
    if target.vector_cores > target.aicores:
        return Demand(launch, work, (cube, vector, share, 0.0, 0.0, 0.0))
    return Demand(launch, work, (max(cube, vector), 0.0, share, 0.0, 0.0, 0.0))


def _cores(job: Job, traffic: Traffic, target: Target) -> tuple[float, float]:
    """The shares of the cube's and of the vector cores that the job uses."""
    shape, itemsize, _ = cube_for(job.dtype, target)
    cube = 0
    if shape is not None:
        cube = max((tile(g, shape, itemsize, target).cores for g in job.work.gemms), default=0)
    moved = max(traffic.read, traffic.written)
    vector = 0
    if not cube or job.work.vector or job.work.wide:
        vector = max(1, min(target.vector_units, ceil(moved / CORE_BYTES)))
    return cube / target.aicores, vector / target.vector_units


def event_cycles(target: Target) -> float:
    """Cycles by which a wait for an event delays its task."""
    return cycles_of(EVENT_US, target)


def joining_cycles(streams: Sequence[int], target: Target) -> float:
    """Cycles for which a region with others around it waits until its streams have left the first one and joined it."""
    return 2 * event_cycles(target) if len(set(streams)) > 1 else 0.0


def simulate(
    demands: Sequence[Demand], streams: Sequence[int], waits: Sequence[Sequence[int]], event: float
) -> list[Span]:
    """When each task runs, from cycle 0 on.

    Tasks stand in an order that streams and waits allow; `waits` are for each task the earlier tasks of other streams
    that it waits for, at `event` cycles each.
    """
    found = Simulation(demands, event)
    found.run(streams, waits)
    return list(map(Span, found.start, found.begin, found.end))


class Simulation:
    """Discrete events: a task asks for its units when its launch is over, and gives them back when it ends."""

    def __init__(self, demands: Sequence[Demand], event: float) -> None:
        self.demands, self.event = demands, event
        self.heap: list[tuple[float, int, int]] = []  # (when, 0: ends, 1: asks for its units; task)
        self.free = [1.0] * len(UNITS)
        self.queue: deque[int] = deque()
        n = len(demands)
        self.start, self.begin, self.end = [0.0] * n, [0.0] * n, [0.0] * n

    def run(self, streams: Sequence[int], waits: Sequence[Sequence[int]]) -> None:
        """Run all tasks: `start`, `begin` and `end` are theirs."""
        after: list[list[int]] = [[] for _ in streams]
        missing = [0] * len(streams)
        last: dict[int, int] = {}
        for i, stream in enumerate(streams):
            before = [*waits[i], last[stream]] if stream in last else waits[i]
            for p in before:
                after[p].append(i)
            missing[i] = len(before)
            last[stream] = i
        for i, count in enumerate(missing):
            if not count:
                self.ask(i, 0.0, 0)
        heap, queue = self.heap, self.queue
        while heap:
            now, asks, i = heappop(heap)
            if asks:
                queue.append(i)
            else:
                self.give_back(i)
                for j in after[i]:
                    missing[j] -= 1
                    if not missing[j]:
                        self.ask(j, now, len(waits[j]))
            if queue:
                self.serve(now)

    def ask(self, i: int, now: float, waits: int) -> None:
        """Its stream turns to task `i`: after its launch, and a number of waits, it asks for its units."""
        self.start[i] = now
        heappush(self.heap, (now + waits * self.event + self.demands[i].launch, 1, i))

    def serve(self, now: float) -> None:
        """Tasks that have asked begin to work while there is room, first come first served."""
        queue, free = self.queue, self.free
        while queue:
            i = queue[0]
            demand = self.demands[i]
            for k, share in demand.used:
                if share > free[k] + 1e-9:
                    return
            queue.popleft()
            for k, share in demand.used:
                free[k] -= share
            self.begin[i] = now
            self.end[i] = now + demand.work
            heappush(self.heap, (self.end[i], 0, i))

    def give_back(self, i: int) -> None:
        """Task `i` ends."""
        free = self.free
        for k, share in self.demands[i].used:
            free[k] += share
