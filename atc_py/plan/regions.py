"""The tree of regions from its words in preorder (`packed` has their order).

    [1, 2, 7, 0, 0, 1, 1, 0, 3, 1]  one region: If on operand 7, no outputs, no origins, one region in each branch:
                                    Static of the next 3 tasks; Host of the one after

No recursion: a region that waits for its children stays on a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atc_py.plan import records as r
from atc_py.plan.table import Table
from atc_py.plan.types import Carried, Collected, Gears, Host, If, Loop, Operand, Region, Scan, Static, Task

Bodies = tuple[tuple[Region, ...], ...]


@dataclass
class _Open:
    """A region whose children are still to come: how many for each of its lists, and what makes it of them."""

    counts: list[int]
    make: Callable[[Bodies], Region | None]
    lists: list[list[Region]] = field(default_factory=lambda: [[]])


def read_regions(
    table: Table, tasks: Sequence[Task], operands: Sequence[Operand], strings: Sequence[str]
) -> tuple[Region, ...]:
    """The plan's regions. All words and all tasks must be used. Raises `AtcError` E30010."""
    return _Reader(table, tasks, operands, strings).run()


class _Reader:
    def __init__(
        self, table: Table, tasks: Sequence[Task], operands: Sequence[Operand], strings: Sequence[str]
    ) -> None:
        self.table, self.tasks, self.operands, self.strings = table, tasks, operands, strings
        self.words: list[int] = table.rows["regions"].tolist()
        self.at = self.task = 0

    def run(self) -> tuple[Region, ...]:
        """The regions of the outermost list."""
        result: list[Bodies] = []

        def finish(bodies: Bodies) -> None:
            result.append(bodies)

        stack = [_Open([self.count()], finish)]
        while stack:
            top = stack[-1]
            if len(top.lists[-1]) < top.counts[len(top.lists) - 1]:
                if len(stack) > r.MAX_NESTING:
                    raise self.wrong(f"regions nest more than {r.MAX_NESTING} deep")
                opened = self.region()
                stack.append(opened)
                if opened.counts:
                    continue
            elif len(top.lists) < len(top.counts):
                top.lists.append([])
                continue
            done = stack.pop()
            region = done.make(tuple([tuple(body) for body in done.lists]) if done.counts else ())
            if region is not None:
                stack[-1].lists[-1].append(region)
        if self.at != len(self.words) or self.task != len(self.tasks):
            raise self.wrong(f"{len(self.words) - self.at} words, {len(self.tasks) - self.task} tasks are left over")
        return result[0][0]

    def wrong(self, cause: str) -> Exception:
        """The error at the current word."""
        return self.table.wrong("regions", min(self.at, len(self.words)), cause)

    def word(self, low: int, high: int, what: str) -> int:
        """The next word, which must be in [low, high)."""
        if self.at >= len(self.words):
            raise self.wrong(f"ends where {what} is expected")
        word = self.words[self.at]
        if not low <= word < high:
            raise self.wrong(f"{what} {word} is not in [{low}, {high})")
        self.at += 1
        return word

    def count(self) -> int:
        """How many items follow; each takes at least a word."""
        return self.word(0, len(self.words) - self.at, "a count")

    def operand(self) -> Operand:
        """An operand."""
        return self.operands[self.word(0, len(self.operands), "an operand")]

    def optional(self) -> Operand | None:
        """An operand, or None."""
        k = self.word(-1, len(self.operands), "an operand")
        return None if k < 0 else self.operands[k]

    def names(self) -> tuple[str, ...]:
        """A list of strings."""
        return tuple([self.strings[self.word(0, len(self.strings), "a string")] for _ in range(self.count())])

    def outputs(self) -> tuple[Operand, ...]:
        """A list of operands."""
        return tuple([self.operand() for _ in range(self.count())])

    def region(self) -> _Open:
        """A region's own words."""
        kind = self.word(0, 6, "a kind of region")
        if kind == r.STATIC:
            n = self.word(0, len(self.tasks) - self.task + 1, "a number of tasks")
            static = Static(tuple(self.tasks[self.task : self.task + n]))
            self.task += n
            return _Open([], lambda _: static)
        if kind == r.HOST:
            if self.task >= len(self.tasks):
                raise self.wrong("there is no task left for a host step")
            host = Host(self.tasks[self.task])
            self.task += 1
            return _Open([], lambda _: host)
        if kind == r.IF:
            predicate, outputs, origin = self.operand(), self.outputs(), self.names()
            counts = [self.count(), self.count()]
            return _Open(counts, lambda bodies: If(predicate, bodies[0], bodies[1], origin, outputs))
        return self.gears() if kind == r.GEARS else self.loop(kind)

    def gears(self) -> _Open:
        """The words of Gears."""
        symbols = self.names()
        limit = 1 << 62
        gears = tuple(
            [tuple([self.word(-limit, limit, "a value") for _ in symbols]) for _ in range(self.gear_count(symbols))]
        )
        counts = [self.count() for _ in range(self.count())]
        if len(counts) != len(gears):
            raise self.wrong(f"{len(gears)} gears have {len(counts)} bodies")
        if not counts:
            empty = Gears(symbols, gears, ())
            return _Open([], lambda _: empty)
        return _Open(counts, lambda bodies: Gears(symbols, gears, bodies))

    def gear_count(self, symbols: tuple[str, ...]) -> int:
        """How many gears follow; gears of no symbols take no words, hence at most one."""
        return self.count() if symbols else self.word(0, 2, "a number of gears without symbols")

    def loop(self, kind: int) -> _Open:
        """The words of a Loop or a Scan."""
        own: list[Operand | None] = []
        sliced: list[tuple[Operand, Operand, int, bool]] = []
        if kind == r.LOOP:
            own = [self.optional() for _ in range(5)]
        else:
            for _ in range(self.count()):
                whole, part = self.operand(), self.operand()
                sliced.append((whole, part, *self.direction()))
        carried = tuple(
            [Carried(self.operand(), self.operand(), self.operand()) for _ in range(self.count())],
        )
        collected = tuple([Collected(self.operand(), self.operand(), *self.direction()) for _ in range(self.count())])
        outputs, origin, counts = self.outputs(), self.names(), [self.count()]

        def make(bodies: Bodies) -> Region:
            if kind == r.SCAN:
                return Scan(tuple(sliced), carried, collected, bodies[0], origin, outputs)
            trips, condition, counter, inside, following = own
            return Loop(trips, condition, counter, following, carried, collected, bodies[0], origin, outputs, inside)

        return _Open(counts, make)

    def direction(self) -> tuple[int, bool]:
        """An axis and whether it is walked backwards."""
        return self.word(-r.MAX_RANK, r.MAX_RANK, "an axis"), bool(self.word(0, 2, "a direction"))
