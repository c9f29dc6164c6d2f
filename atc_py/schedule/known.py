"""What the host knows while it hands a plan over, and what it has to know before it launches a task.

    Fused makes k ─ TopK of x and k        the host waits for k, which it reads to launch TopK
    Loop { Slice from the counter on }     the host counts the iterations and launches each: it need not wait
    Loop { TopK of x and the state k }     it waits for what each iteration makes of k

What the device makes the host does not know until it has waited. Operands of which it has to know the content, or the
shape, are said by `plan.size_law.awaited`. A region in which one task makes what another one is launched with, or which
itself makes it from iteration to iteration, cannot be handed over as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from atc_py.plan.size_law import HOST, awaited
from atc_py.plan.types import Host, Loop, Operand, Plan, Region, Scan, Static, Task, walk


class Known:
    """`unknown` are the values that the device makes and for which the host has not waited yet.

    A view counts as the value whose bytes it has.
    """

    def __init__(self, plan: Plan) -> None:
        self._source = {a.value: a.source for a in plan.aliases}
        self._awaited = {id(t): self._roots([o for o, _ in awaited(t)]) for t in plan.tasks()}
        self.unknown: set[int] = set()

    def missing(self, tasks: Iterable[Task]) -> Task | None:
        """The first of the tasks that cannot be launched before the host has waited; None where all can."""
        if not self.unknown:
            return None
        return next((t for t in tasks if not self.unknown.isdisjoint(self._awaited[id(t)])), None)

    def launched(self, tasks: Iterable[Task]) -> None:
        """The tasks have been given to their engines."""
        self.unknown.update(self._roots([o for t in tasks if t.engine != HOST for o in t.outputs]))

    def whole(self, region: Region) -> bool:
        """Whether no task inside of a region is launched with what the region makes."""
        needed = self._needed((region,))
        if not needed:
            return True
        inner = list(walk((region,)))
        made = [o for r in inner for t in tasks_of(r) if t.engine != HOST for o in t.outputs]
        return needed.isdisjoint(self._roots([*made, *(o for r in inner for o in _moved_to(r))]))

    def begin(self, region: Loop | Scan) -> None:
        """The first iteration of a loop that the host runs gets what it begins with."""
        pairs = [(c.initial, c.state) for c in region.carried]
        pairs += [(whole, part) for whole, part, _, _ in region.sliced] if isinstance(region, Scan) else []
        self._move(pairs)

    def asks(self, region: Loop | Scan) -> bool:
        """Whether the next iteration is launched with what the device has made in this one, now that it is launched."""
        needed = self._needed(region.body)
        states = [c for c in region.carried if self._root(c.state) in needed]
        return any(self._root(c.result) in self.unknown for c in states)

    def end(self, region: Loop | Scan) -> None:
        """The loop has run: what it leaves is known where what an iteration leaves is."""
        self._move([(c.result, c.state) for c in region.carried])
        self._move([(c.item, c.stack) for c in region.collected])

    def _move(self, pairs: Sequence[tuple[Operand, Operand]]) -> None:
        self.unknown.update([self._root(to) for of, to in pairs if self._root(of) in self.unknown])

    def _needed(self, regions: tuple[Region, ...]) -> set[int]:
        return {v for r in walk(regions) for t in tasks_of(r) for v in self._awaited[id(t)]}

    def _roots(self, operands: Iterable[Operand]) -> set[int]:
        return {self._root(o) for o in operands}

    def _root(self, operand: Operand) -> int:
        value = operand.value
        for _ in self._source:  # no longer than that, whatever a file says
            if value not in self._source:
                break
            value = self._source[value]
        return value


def tasks_of(region: Region) -> Sequence[Task]:
    """The tasks of a region itself."""
    return region.tasks if isinstance(region, Static) else (region.task,) if isinstance(region, Host) else ()


def _moved_to(region: Region) -> Iterator[Operand]:
    """What the device itself writes to run a loop."""
    if isinstance(region, (Loop, Scan)):
        yield from [c.state for c in region.carried]
    if isinstance(region, Scan):
        yield from [part for _, part, _, _ in region.sliced]
    if isinstance(region, Loop):
        yield from [o for o in (region.counter, region.state_condition) if o is not None]
