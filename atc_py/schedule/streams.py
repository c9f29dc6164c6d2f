"""Streams: which tasks run side by side, and in what order the plan has them.

    stem ─┬─ conv a ─ conv b ─┬─ concat       stream 0   stem │ conv a │ conv b │ concat
          └─ pool ── conv c ──┘               stream 1        │ pool   │ conv c │

Each segment is listed (R. Graham's list scheduling) on 2, 3, … streams of the clock's model: whenever a stream is free
it takes, of the tasks whose needs are done, the one of the highest priority, then the one with the longest way to the
end behind it (the critical path). It takes the stream of a task that it needs where that is free, which saves an
event. One more stream is taken only while that makes the segment at least `GAIN` shorter, events included; what hides
behind other work is the clock's to say (`lanes`). A segment whose critical path, or whose busiest unit, already takes
that long is left on one stream unlisted.

The critical path alone opens all branches at once, and what each of them holds then lies side by side. The order of
low memory, which is that of one stream, ends a branch before it opens the next one:

    x ─┬─ a ─ e ─┐              critical path             with restraint
       ├─ b ─ f ─┤   stream 0   x │ a │ c │ e │ g │ y     x │ a │ e │ c │ g │ y
       ├─ c ─ g ─┼─ y       1     │ b │ d │ f │ h │         │ b │ f │ d │ h │
       └─ d ─ h ─┘              a, b, c, d live           a, b, e, f live: e and f are small

Where several streams hold much more than one, segments are therefore listed again with a `Restraint`: a stream takes
the first ready task in the order of low memory, and stays idle rather than take one far ahead of the others, unless
the longest way says that a task is urgent. `schedule` keeps that where it takes fewer bytes.

Collectives have stream `COLLECTIVES` to themselves, for what stands behind one would wait for other devices. Tasks of
one stream label are on one stream, the same in each segment that is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from atc_py.schedule.clock import Lane, Prices, job_owners
from atc_py.schedule.events import Events, reduced
from atc_py.schedule.frames import Step
from atc_py.schedule.jobs import Program
from atc_py.schedule.lanes import Demand, Simulation, event_cycles, joining_cycles
from atc_py.schedule.segments import Segment
from atc_py.target import Target

GAIN = 0.02
"""The share of a segment's time that one more stream must save."""
PATIENCE = 0.01
"""The share of its time that a segment may take longer for less memory."""
STREAMS = 4
"""How many streams are tried at the most when nobody says."""
LONGEST = 128
"""Tasks after which all streams join: what one of them still holds cannot pile up behind what the others do, and
which lifetimes meet is known in linear time."""
COLLECTIVES = 1
"""The stream of collectives, where a plan has them and several streams."""
_HCCL = "\0hccl"
"""The home of collectives; no stream label is like it."""
MOST_STREAMS = 64
"""How many may be asked for (GE: LoadBalance takes 1 to 64)."""


@dataclass(frozen=True)
class Listed:
    """A segment on streams: its steps' indices in the order of the plan, the stream of each, and the cycles taken."""

    order: tuple[int, ...]
    streams: tuple[int, ...]
    cycles: float


@dataclass(frozen=True)
class Restraint:
    """How far the order of low memory holds on several streams.

    A task is urgent when it must begin for its longest way to be done after the share `deadline` of the segment's time.
    One that is not urgent waits until fewer than `window` tasks a stream lie between it and the first one not taken.
    """

    deadline: float
    window: int


RESTRAINTS = (Restraint(inf, 8), Restraint(0.95, 24), Restraint(0.8, 24))
"""What is tried in turn, the strictest first (chosen on the models of docs/memory.md)."""


@dataclass(frozen=True)
class Streams:
    """What the tasks of a laid-out graph do about streams, by the positions of their steps.

    `clocks`: for each stream the last task of the same segment that is done when the step has run, by its place in the
    segment (-1: none). `starts` are the positions at which segments begin. `waits` and `records` are event ids.
    """

    lanes: Mapping[int, Lane] = field(default_factory=dict)
    waits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    records: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    clocks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    starts: Sequence[int] = ()
    streams: int = 1
    events: int = 0


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
    apart = any(_collective(step) for segment in found for step in segment.steps)
    listed = []
    held: dict[str, int] = {}  # the streams of homes in the segments so far
    for segment in found:
        demands = [pieces.get(step.start) for step in segment.steps]
        homes = [_home(step) for step in segment.steps]
        free = apart and _HCCL not in homes  # the stream of collectives stays free
        mine = {h: held[h] - (free and held[h] > COLLECTIVES) for h in homes if h in held}
        made = _listed(segment, demands, event, several, most - free, mine)
        if made is not None:
            made = _beside(made) if free else made
            held.update({homes[i]: s for i, s in zip(made.order, made.streams, strict=True) if homes[i]})
        listed.append(made)
    return listed


def _collective(step: Step) -> bool:
    return (step.node.engine or step.op.engine.value) == "hccl"


def _home(step: Step) -> str:
    """What keeps a task with others on one stream ("": nothing does)."""
    return _HCCL if _collective(step) else step.node.stream


def _beside(listed: Listed) -> Listed:
    """The same with the stream of collectives left free."""
    streams = tuple([s + (s >= COLLECTIVES) for s in listed.streams])
    return Listed(listed.order, streams, listed.cycles)


def list_again(
    listed: Sequence[Listed | None],
    found: Sequence[Segment],
    program: Program,
    prices: Prices,
    target: Target,
    restraint: Restraint,
) -> list[Listed | None]:
    """The segments of `list_segments` with restraint; one that would take more than `PATIENCE` longer is as it was.

    So is one in which priorities say the order, or tasks have streams of their own.
    """
    pieces = _pieces(program, prices)
    event = event_cycles(target)
    result: list[Listed | None] = []
    for old, segment in zip(listed, found, strict=True):
        if old is not None and not any(s.node.priority or s.node.stream or _collective(s) for s in segment.steps):
            demands = [pieces[step.start] for step in segment.steps]
            urgency = _urgency(segment, _ranks([d.total for d in demands], segment.needs))
            width = 1 + max(old.streams)
            deadline, window = old.cycles * restraint.deadline, width * restraint.window
            lister = _Restrained(_Work(demands, event, segment.needs, urgency, width), deadline, window)
            new = _timed(lister.run_list(), segment, demands, event)
            old = new if new.cycles <= old.cycles * (1 + PATIENCE) else old
        result.append(old)
    return result


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
    segment: Segment,
    pieces: Sequence[Demand | None],
    event: float,
    joining: float,
    most: int,
    held: Mapping[str, int],
) -> Listed | None:
    """The segment on as many streams, up to `most`, as pay; homes that are `held` are on streams that they have."""
    demands = [p for p in pieces if p is not None]
    if most < 2 or len(demands) != len(pieces) or len(demands) < 3:
        return None  # a branch that the clock does not time stays on one stream
    ranks = _ranks([d.total for d in demands], segment.needs)
    serial = sum(d.total for d in demands)
    busiest = max(sum(d.units[k] * d.work for d in demands) for k in range(len(demands[0].units)))
    best, least = None, serial
    urgency = _urgency(segment, ranks)
    homes = [_home(step) for step in segment.steps]
    for width in range(max(2, 1 + max(held.values(), default=0)), most + 1):
        if max(*ranks, busiest) + joining > least * (1 - GAIN):
            break
        work = _Work(demands, event, segment.needs, urgency, width)
        lister = _Homes(work, homes, held) if any(homes) else _Lister(work)
        listed = _timed(lister.run_list(), segment, demands, event)
        if listed.cycles + joining > least * (1 - GAIN):
            break
        best, least = listed, listed.cycles + joining
    return best


def _ranks(costs: Sequence[float], needs: Sequence[Sequence[int]]) -> list[float]:
    """For each task the length of the longest way from its beginning to the end of the segment."""
    behind = [0.0] * len(costs)
    for i in range(len(costs) - 1, -1, -1):
        rank = behind[i] = behind[i] + costs[i]
        for p in needs[i]:
            if behind[p] < rank:
                behind[p] = rank
    return behind


def _urgency(segment: Segment, ranks: Sequence[float]) -> list[tuple[int, float, int]]:
    """(priority, rank, task) of each task, such that the most urgent is the least."""
    return [(-step.node.priority, -rank, i) for i, (step, rank) in enumerate(zip(segment.steps, ranks, strict=True))]


def _timed(chosen: Sequence[tuple[int, int]], segment: Segment, demands: Sequence[Demand], event: float) -> Listed:
    """The segment in the order and on the streams that are `chosen`, timed with the events that it then needs."""
    order = tuple(i for i, _ in chosen)
    streams = tuple(s for _, s in chosen)
    place = {i: k for k, i in enumerate(order)}
    needs = [[place[p] for p in segment.needs[i]] for i in order]
    timed = Simulation([demands[i] for i in order], event)
    timed.run(streams, reduced(streams, needs).after)
    return Listed(order, streams, max(timed.end))


@dataclass(frozen=True)
class _Work:
    """What streams choose from: by task its demand, the tasks that it needs and its urgency; `width` streams.

    A wait for another stream takes `event` cycles.
    """

    demands: Sequence[Demand]
    event: float
    needs: Sequence[Sequence[int]]
    urgency: Sequence[tuple[int, float, int]]
    width: int


class _Lister(Simulation):
    """The clock's simulation, with streams that choose what they run."""

    def __init__(self, work: _Work) -> None:
        super().__init__(work.demands, work.event)
        self.needs, self.urgency = work.needs, work.urgency
        self.idle = [True] * work.width
        self.stream = [-1] * len(work.demands)
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
                self.open(i)
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
                        self.open(j)
            if self.queue:
                self.serve(now)
            if not self.heap or self.heap[0][0] > now:
                self._take(now)
        return self.chosen

    def open(self, i: int) -> None:
        """What task `i` needs is done."""
        heappush(self.ready, self.urgency[i])

    def next(self, now: float) -> int:
        """The ready task that an idle stream takes (-1: none)."""
        return heappop(self.ready)[-1] if self.ready else -1

    def _take(self, now: float) -> None:
        """Idle streams take ready tasks."""
        while True in self.idle and (i := self.next(now)) >= 0:
            others = self.before(i)
            self.run_on(i, self.stream_for(i, others), others, now)

    def stream_for(self, i: int, others: Sequence[int]) -> int:
        """The idle stream that takes task `i`, which needs tasks of the streams `others`."""
        stream = next((s for s in others if self.idle[s]), -1)
        return self.idle.index(True) if stream < 0 else stream

    def before(self, i: int) -> list[int]:
        """The streams of the tasks that task `i` needs, the one that has ended last first."""
        needed = self.needs[i]
        if len(needed) > 1:
            needed = sorted(needed, key=lambda p: (-self.end[p], p))
        return [self.stream[p] for p in needed]

    def run_on(self, i: int, stream: int, others: Sequence[int], now: float) -> None:
        """An idle stream takes task `i`, which needs tasks of the streams `others`."""
        self.idle[stream] = False
        self.stream[i] = stream
        self.chosen.append((i, stream))
        self.ask(i, now, len({s for s in others if s != stream}))


class _Homes(_Lister):
    """Tasks of one home are on one stream: the `held` one, or that which the first of them takes.

    The stream of collectives is theirs alone. A ready task whose stream is known waits there, where a busy stream does
    not look; others wait in `ready`.
    """

    def __init__(self, work: _Work, homes: Sequence[str], held: Mapping[str, int]) -> None:
        super().__init__(work)
        self.homes = homes
        self.home = dict(held)
        if _HCCL in homes:
            self.home[_HCCL] = COLLECTIVES
        self.apart = self.home.get(_HCCL, -1)
        self.waiting: list[list[tuple[int, float, int]]] = [[] for _ in self.idle]

    def open(self, i: int) -> None:
        """What task `i` needs is done."""
        stream = self.home.get(self.homes[i], -1)
        heappush(self.ready if stream < 0 else self.waiting[stream], self.urgency[i])

    def next(self, now: float) -> int:
        """The most urgent ready task that an idle stream may take (-1: none)."""
        ready = self.ready
        while ready and self.homes[ready[0][-1]] in self.home:  # since it became ready
            self.open(heappop(ready)[-1])
        heaps = [heap for heap, idle in zip(self.waiting, self.idle, strict=True) if heap and idle]
        if ready and next(self._open_streams(()), None) is not None:
            heaps.append(ready)
        return heappop(min(heaps))[-1] if heaps else -1

    def stream_for(self, i: int, others: Sequence[int]) -> int:
        """The stream of its home; otherwise an idle one, for a new home one that no other has, if there is one."""
        home = self.homes[i]
        if home in self.home:
            return self.home[home]
        idle = list(self._open_streams(others))
        if not home:
            return idle[0]
        taken = self.home.values()
        found = self.home[home] = next((s for s in idle if s not in taken), idle[0])
        return found

    def _open_streams(self, others: Sequence[int]) -> Iterator[int]:
        """The idle streams for tasks that have none, those of `others` first."""
        return (s for s in (*others, *range(len(self.idle))) if self.idle[s] and s != self.apart)


class _Restrained(_Lister):
    """Tasks that are not urgent keep near the order of the segment.

    The first task that is not taken is ready when nothing runs: what it needs stands before it. So none waits for ever.
    """

    def __init__(self, work: _Work, deadline: float, window: int) -> None:
        super().__init__(work)
        self.deadline, self.window = deadline, window
        self.waiting: list[int] = []  # the ready tasks in the order of the segment; both heaps keep what is taken
        self.first = 0  # of the tasks that are not taken

    def open(self, i: int) -> None:
        """What task `i` needs is done."""
        super().open(i)
        heappush(self.waiting, i)

    def next(self, now: float) -> int:
        """The most urgent ready task if it is urgent, otherwise the first one if it is near."""
        ready, waiting, stream = self.ready, self.waiting, self.stream
        while ready and stream[ready[0][-1]] >= 0:
            heappop(ready)
        while waiting and stream[waiting[0]] >= 0:
            heappop(waiting)
        if not ready:
            return -1
        _, rank, i = ready[0]
        if now - rank >= self.deadline:
            return i
        while stream[self.first] >= 0:
            self.first += 1
        return waiting[0] if waiting[0] < self.first + self.window else -1


def assign(found: Sequence[Segment], streams: Mapping[int, int]) -> Streams:
    """Lanes and events for segments in the order of the plan; `streams` by position (0 for those that it lacks)."""
    lanes: dict[int, Lane] = {}
    waits: dict[int, tuple[int, ...]] = {}
    records: dict[int, tuple[int, ...]] = {}
    clocks: dict[int, tuple[int, ...]] = {}
    width, events = 1, 0
    for number, segment in enumerate(found):
        start = segment.steps[0].start
        mine = [streams.get(step.start, 0) for step in segment.steps]
        width = max(width, 1 + max(mine))
        made: Events = reduced(mine, segment.needs)
        events = max(events, made.count)
        for p, (stream, after) in enumerate(zip(mine, made.after, strict=True), start):
            lanes[p] = Lane(number, stream, tuple([start + q for q in after]))
        places = range(start, start + len(mine))  # tasks of a segment follow one another
        clocks.update(zip(places, made.clocks, strict=True))
        waits.update(zip(places, made.waits, strict=True))
        records.update(zip(places, made.records, strict=True))
    starts = [segment.steps[0].start for segment in found]
    return Streams(lanes, waits, records, clocks, starts, width, events)


def by_node(listed: Sequence[Listed | None], found: Sequence[Segment]) -> dict[int, tuple[int, int]]:
    """For each task that is listed, by its node's identity, its rank in the new order and its stream.

    Ranks rise from segment to segment.
    """
    result: dict[int, tuple[int, int]] = {}
    for item, segment in zip(listed, found, strict=True):
        if item is not None:
            for rank, (i, stream) in enumerate(zip(item.order, item.streams, strict=True), len(result)):
                result[id(segment.steps[i].node)] = (rank, stream)
    return result
