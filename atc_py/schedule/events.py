"""Events: the fewest that keep every dependency between streams, under as few ids as can be.

    stream 0   a ──────── b ── e          needed: a → c, a → d, d → e, c → e
    stream 1       c ── d                 events: a → c and d → e; streams imply the other two

A dependency needs an event unless another way leads from its task to the one that waits: along the streams, which are
in order, and through other dependencies. What is left is the transitive reduction of dependencies and streams
together; of an order there is one, so no smaller set would do (A. Aho, M. Garey, J. Ullman, "The transitive reduction
of a directed graph"). It is found with vector clocks: the clock of a task has, for each stream, the last task that
is done when it has run.

An id can be used again when the wait that used it is done for certain: before the task that records it anew ends, and
before the stream that waits for it anew comes there (or that wait could take the earlier record for its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Events:
    """For each task the earlier tasks that it waits for, and the ids of the events that it waits for and records."""

    after: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    records: tuple[tuple[int, ...], ...]
    clocks: tuple[tuple[int, ...], ...]
    """For each task and stream the last task that is done when it has run (-1: none), itself included."""
    count: int


def reduced(streams: Sequence[int], needs: Sequence[Sequence[int]]) -> Events:
    """The events for tasks in an order that respects `needs`, the earlier tasks that each one must come after.

    Streams are numbered from 0. Linear in tasks and needs, times the number of streams.
    """
    width = 1 + max(streams, default=0)
    clocks: list[tuple[int, ...]] = []
    last: list[tuple[int, ...]] = [(-1,) * width for _ in range(width)]
    before: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    for i, stream in enumerate(streams):
        clock = last[stream]
        before.append(clock)
        found = _unimplied(clock, stream, streams, needs[i], clocks) if needs[i] else ()
        after.append(found)
        for p in found:
            clock = tuple(map(max, clock, clocks[p]))
        last[stream] = (*clock[:stream], i, *clock[stream + 1 :])
        clocks.append(last[stream])
    waits, records, count = _numbered(streams, after, before, clocks)
    return Events(tuple(after), waits, records, tuple(clocks), count)


def _unimplied(
    clock: tuple[int, ...],
    stream: int,
    streams: Sequence[int],
    needs: Sequence[int],
    clocks: Sequence[tuple[int, ...]],
) -> tuple[int, ...]:
    """The needs that neither the stream's clock nor another need implies."""
    latest: dict[int, int] = {}
    for p in needs:
        s = streams[p]
        if s != stream and p > clock[s] and p > latest.get(s, -1):
            latest[s] = p
    if len(latest) < 2:
        return tuple(latest.values())
    return tuple(sorted(p for s, p in latest.items() if all(q == p or clocks[q][s] < p for q in latest.values())))


def _numbered(
    streams: Sequence[int],
    after: Sequence[tuple[int, ...]],
    before: Sequence[tuple[int, ...]],
    clocks: Sequence[tuple[int, ...]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], int]:
    """(waits, records, number of ids): the lowest id that is free is taken."""
    waits: list[list[int]] = [[] for _ in streams]
    records: list[list[int]] = [[] for _ in streams]
    used: list[list[tuple[int, int]]] = [[] for _ in range(1 + max(streams, default=0))]
    count = 0
    # Ids are given in the order of the records, for that is the order in which they are set.
    edges = sorted((p, i) for i, found in enumerate(after) for p in found)
    for p, i in edges:
        free = []
        for stream, heap in enumerate(used):
            # Waits of one stream get done in order: if the earliest one may still be open, so may all others.
            if heap and heap[0][0] <= clocks[p][stream] and heap[0][0] <= before[i][stream]:
                free.append((heap[0][1], stream))
        if free:
            event, stream = min(free)
            heappop(used[stream])
        else:
            event, count = count, count + 1
        records[p].append(event)
        waits[i].append(event)
        heappush(used[streams[i]], (i, event))
    return tuple(map(tuple, waits)), tuple(map(tuple, records)), count
