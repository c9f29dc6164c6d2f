"""Streams: which tasks run side by side, and in what order the plan has them.

    stem ─┬─ conv a ─ conv b ─┬─ concat       stream 0   stem │ conv a │ conv b │ concat
          └─ pool ── conv c ──┘               stream 1        │ pool   │ conv c │

Each segment is listed (R. Graham's list scheduling) on 2, 3, … streams of the clock's model: whenever a stream is free
it takes, of the tasks whose needs are done, the one of the highest priority, then the one with the longest way to the
end behind it (the critical path). It takes the stream of a task that it needs where that is free, which saves an
event. One more stream is taken only while that makes the segment at least `GAIN` shorter, events included; what hides
behind other work is the clock's to say (`lanes`). A segment whose critical path, or whose busiest unit, already takes
that long is left on one stream unlisted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from atc_py.schedule.clock import Lane, Prices, job_owners
from atc_py.schedule.events import Events, reduced
from atc_py.schedule.jobs import Program
from atc_py.schedule.lanes import Demand, Simulation, event_cycles, joining_cycles, simulate
from atc_py.schedule.segments import Segment
from atc_py.target import Target

GAIN = 0.02
"""The share of a segment's time that one more stream must save."""
STREAMS = 4
"""How many streams are tried at the most when nobody says."""
LONGEST = 128
"""Tasks after which all streams join: what one of them still holds cannot pile up behind what the others do, and
which lifetimes meet is known in linear time."""
MOST_STREAMS = 64
"""How many may be asked for (GE: LoadBalance takes 1 to 64)."""


@dataclass(frozen=True)
class Listed:
    """A segment on streams: its steps' indices in the order of the plan, the stream of each, and the cycles taken."""

    order: tuple[int, ...]
    streams: tuple[int, ...]
    cycles: float


@dataclass(frozen=True)
class Streams:
    """What the tasks of a laid-out graph do about streams, by the positions of their steps."""

    lanes: Mapping[int, Lane] = field(default_factory=dict)
    waits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    records: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    done: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """For each position and stream the last position of its segment that is done when the step has run (-1: none)."""
    streams: int = 1
    events: int = 0

    def before(self, one: int, other: int) -> bool:
        """Whether what happens at position `one` is done for certain when what happens at `other` begins."""
        if one >= other:
            return False
        if self.streams == 1:
            return True
        a, b = self.lanes.get(one), self.lanes.get(other)
        if a is None or b is None or a.region != b.region:
            return True
        return self.done[other][a.stream] >= one


def list_segments(
    found: Sequence[Segment], program: Program, prices: Prices, target: Target, most: int
) -> list[Listed | None]:
    """Each segment on up to `most` streams; None where one stream is as good."""
    alone = len(found) == 1 and len(found[0].steps) == len({j.place for j in program.jobs if j.place >= 0})
    several = 0.0 if alone else joining_cycles((0, 1), target)
    if not any(_branches(program, prices, found)):
        return [None] * len(found)
    pieces = _pieces(program, prices)
    event = event_cycles(target)
    return [_listed(s, [pieces.get(step.start) for step in s.steps], event, several, most) for s in found]


def _branches(program: Program, prices: Prices, found: Sequence[Segment]) -> Iterator[bool]:
    """Whether each segment's longest way is short enough for another stream to help at all."""
    cost: dict[int, float] = {}
    for owner, breakdown in zip(job_owners(program.jobs), prices.breakdowns, strict=True):
        cost[owner] = cost.get(owner, 0.0) + breakdown.total
    for segment in found:
        costs = [cost.get(step.start, 0.0) for step in segment.steps]
        yield max(_ranks(costs, segment.needs)) < sum(costs) * (1 - GAIN)


def _pieces(program: Program, prices: Prices) -> dict[int, Demand]:
    """What each task occupies, with the conversions that it needs, by position."""
    found: dict[int, Demand] = {}
    for owner, demand in zip(job_owners(program.jobs), prices.demands, strict=True):
        other = found.get(owner)
        if other is not None:
            units = tuple(map(max, other.units, demand.units))
            demand = Demand(other.launch + demand.launch, other.work + demand.work, units)
        found[owner] = demand
    return found


def _listed(
    segment: Segment, pieces: Sequence[Demand | None], event: float, joining: float, most: int
) -> Listed | None:
    demands = [p for p in pieces if p is not None]
    if most < 2 or len(demands) != len(pieces) or len(demands) < 3:
        return None  # a branch that the clock does not time stays on one stream
    ranks = _ranks([d.total for d in demands], segment.needs)
    serial = sum(d.total for d in demands)
    busiest = max(sum(d.units[k] * d.work for d in demands) for k in range(len(demands[0].units)))
    best, least = None, serial
    urgency = [(-step.node.priority, -rank, i) for i, (step, rank) in enumerate(zip(segment.steps, ranks, strict=True))]
    for width in range(2, most + 1):
        if max(*ranks, busiest) + joining > least * (1 - GAIN):
            break
        listed = _on(width, segment, demands, urgency, event)
        if listed.cycles + joining > least * (1 - GAIN):
            break
        best, least = listed, listed.cycles + joining
    return best


def _ranks(costs: Sequence[float], needs: Sequence[Sequence[int]]) -> list[float]:
    """For each task the length of the longest way from its beginning to the end of the segment."""
    behind = [0.0] * len(costs)
    for i in range(len(costs) - 1, -1, -1):
        behind[i] += costs[i]
        for p in needs[i]:
            behind[p] = max(behind[p], behind[i])
    return behind


def _on(
    width: int, segment: Segment, demands: Sequence[Demand], urgency: Sequence[tuple[int, float, int]], event: float
) -> Listed:
    """The segment listed on `width` streams, and timed with the events that it then needs."""
    chosen = _Lister(demands, event, segment.needs, urgency, width).run_list()
    order = tuple(i for i, _ in chosen)
    streams = tuple(s for _, s in chosen)
    place = {i: k for k, i in enumerate(order)}
    needs = [[place[p] for p in segment.needs[i]] for i in order]
    spans = simulate([demands[i] for i in order], streams, reduced(streams, needs).after, event)
    return Listed(order, streams, max(s.end for s in spans))


class _Lister(Simulation):
    """The clock's simulation, with streams that choose what they run."""

    def __init__(
        self,
        demands: Sequence[Demand],
        event: float,
        needs: Sequence[Sequence[int]],
        urgency: Sequence[tuple[int, float, int]],
        width: int,
    ) -> None:
        super().__init__(demands, event)
        self.needs, self.urgency = needs, urgency
        self.idle = [True] * width
        self.stream = [-1] * len(demands)
        self.ready: list[tuple[int, float, int]] = []
        self.chosen: list[tuple[int, int]] = []

    def run_list(self) -> list[tuple[int, int]]:
        """(task, stream) in the order in which streams take them."""
        after: list[list[int]] = [[] for _ in self.needs]
        missing = [len(n) for n in self.needs]
        for i, needs in enumerate(self.needs):
            for p in needs:
                after[p].append(i)
            if not needs:
                heappush(self.ready, self.urgency[i])
        self._take(0.0)
        while self.heap:
            now, asks, i = heappop(self.heap)
            if asks:
                self.queue.append(i)
            else:
                self.give_back(i)
                self.idle[self.stream[i]] = True
                for j in after[i]:
                    missing[j] -= 1
                    if not missing[j]:
                        heappush(self.ready, self.urgency[j])
            self.serve(now)
            if not self.heap or self.heap[0][0] > now:
                self._take(now)
        return self.chosen

    def _take(self, now: float) -> None:
        """Idle streams take ready tasks."""
        while self.ready and True in self.idle:
            _, _, i = heappop(self.ready)
            needed = sorted(self.needs[i], key=lambda p: (-self.end[p], p))
            beside = [self.stream[p] for p in needed if self.idle[self.stream[p]]]
            stream = beside[0] if beside else self.idle.index(True)
            self.idle[stream] = False
            self.stream[i] = stream
            self.chosen.append((i, stream))
            self.ask(i, now, len({self.stream[p] for p in needed} - {stream}))


def assign(found: Sequence[Segment], streams: Mapping[int, int]) -> Streams:
    """Lanes and events for segments in the order of the plan; `streams` by position (0 for those that it lacks)."""
    lanes: dict[int, Lane] = {}
    waits: dict[int, tuple[int, ...]] = {}
    records: dict[int, tuple[int, ...]] = {}
    done: dict[int, tuple[int, ...]] = {}
    width, events = 1, 0
    for number, segment in enumerate(found):
        places = [step.start for step in segment.steps]
        mine = [streams.get(p, 0) for p in places]
        width = max(width, 1 + max(mine))
        made: Events = reduced(mine, segment.needs)
        events = max(events, made.count)
        for k, p in enumerate(places):
            lanes[p] = Lane(number, mine[k], tuple(places[q] for q in made.after[k]))
            done[p] = tuple(-1 if q < 0 else places[q] for q in made.clocks[k])
            waits[p], records[p] = made.waits[k], made.records[k]
    return Streams(lanes, waits, records, done, width, events)


def by_node(listed: Sequence[Listed | None], found: Sequence[Segment]) -> dict[int, tuple[int, int]]:
    """For each task that is listed, by its node's identity, its rank in its segment's new order and its stream."""
    result: dict[int, tuple[int, int]] = {}
    for item, segment in zip(listed, found, strict=True):
        if item is not None:
            for rank, (i, stream) in enumerate(zip(item.order, item.streams, strict=True)):
                result[id(segment.steps[i].node)] = (rank, stream)
    return result
