"""What is known at one point of a run over shadow memory, and what is known after either of two ways to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from atc_py.plan.extents import Extent
from atc_py.plan.shadow import Shadow, merge
from atc_py.plan.types import Region, Task


@dataclass
class State:
    """The areas' shadows, where each root lies (area, base), and who has made which bytes of it."""

    shadows: defaultdict[int, Shadow] = field(default_factory=lambda: defaultdict(Shadow))
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    made: dict[int, tuple[tuple[Task | Region, Extent], ...]] = field(default_factory=dict)

    def copy(self) -> State:
        """A copy that changes on its own."""
        shadows = defaultdict(Shadow, {a: s.copy() for a, s in self.shadows.items()})
        return State(shadows, dict(self.places), dict(self.made))

    def merged(self, other: State) -> tuple[State, bool]:
        """What is known after either of two ways, and whether it is less than what this state says."""
        result = State(places={**other.places, **self.places}, made={**other.made, **self.made})
        for root, makers in other.made.items():
            mine = result.made[root]
            if mine is not makers:
                known = {(id(actor), id(extent)) for actor, extent in mine}
                result.made[root] = (*mine, *(m for m in makers if (id(m[0]), id(m[1])) not in known))
        shrunk = False
        for area in dict.fromkeys([*self.shadows, *other.shadows]):
            result.shadows[area], less = merge(self.shadows[area], other.shadows[area])
            shrunk |= less
        return result, shrunk
