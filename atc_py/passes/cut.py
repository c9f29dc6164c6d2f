"""Minimum cuts of small networks with whole capacities.

    s ─3─ a ─1─ t
    s ─1─ b ─4─ t         the cheapest cut costs 2: {s, a} on one side, {b, t} on the other

The method is that of shortest augmenting paths (J. Edmonds and R. M. Karp, 1972).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

Place: TypeAlias = Hashable

LIMITLESS = 1 << 60
"""A capacity that no cut can afford."""


class Network:
    """Places joined by directed edges; edges between the same two places add up."""

    def __init__(self) -> None:
        self._room: dict[Place, dict[Place, int]] = {}

    def edge(self, a: Place, b: Place, capacity: int) -> None:
        """An edge from `a` to `b`, which costs `capacity` to cut."""
        if a == b:
            return
        ahead = self._room.setdefault(a, {})
        ahead[b] = ahead.get(b, 0) + capacity
        self._room.setdefault(b, {}).setdefault(a, 0)

    def limitless(self, a: Place, b: Place) -> None:
        """An edge that is never cut."""
        if a != b:
            self.edge(a, b, 0)
            self._room[a][b] = LIMITLESS

    def sink_side(self, source: Place, sink: Place) -> set[Place]:
        """Of all cheapest cuts the one with the fewest places beside `sink`: those places. Uses the capacities up."""
        for end in (source, sink):
            self._room.setdefault(end, {})
        while path := self._path(source, sink):
            flow = min(self._room[a][b] for a, b in path)
            for a, b in path:
                self._room[a][b] -= flow
                self._room[b][a] += flow
        return self._reaching(sink)

    def _path(self, source: Place, sink: Place) -> list[tuple[Place, Place]]:
        """The edges of a shortest way from `source` to `sink` with room left, or nothing."""
        came: dict[Place, Place] = {source: source}
        front = [source]
        for a in front:
            for b, room in self._room[a].items():
                if room > 0 and b not in came:
                    came[b] = a
                    front.append(b)
            if sink in came:
                break
        if sink not in came:
            return []
        path = []
        at = sink
        while at != source:
            path.append((came[at], at))
            at = came[at]
        return path[::-1]

    def _reaching(self, sink: Place) -> set[Place]:
        """The places from which `sink` can still be reached."""
        found = {sink}
        front = [sink]
        for b in front:
            for a in self._room[b]:
                if a not in found and self._room[a][b] > 0:
                    found.add(a)
                    front.append(a)
        return found
