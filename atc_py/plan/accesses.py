"""Who accesses what: the operands of tasks and regions; those that say the same of one value are one placement.

    task 0 writes %1 in buffer 2: float32[8]        task 1 reads %1 in buffer 2: float32[8]
    placements      %1 in buffer 2: float32[8]      (the first use is task 0's)

A value is written once and read several times, nearly always in the same way: what follows from an operand's place and
type alone is looked at once a placement, and only where it is wrong the operands are gone through for who has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeAlias

from atc_py.plan.extents import Extent, Layout
from atc_py.plan.types import Access, Host, Operand, Plan, Region, Space, Static, Task, own_operands

Roots: TypeAlias = Mapping[int, tuple[int, "int | None"]]
"""For each alias the value whose bytes it has, and where in it (bytes; None: known only at run time)."""


def roots_of(plan: Plan, layout: Layout) -> Roots:
    """See `Roots`."""
    source = {a.value: (a.source, layout.size(a.delta)) for a in plan.aliases}
    roots: dict[int, tuple[int, int | None]] = {}
    for value in source:
        links: list[int] = []
        while value in source and value not in roots and len(links) <= len(source):
            links.append(value)
            value = source[value][0]
        for v in reversed(links):
            parent, delta = source[v]
            root, rest = roots.get(parent, (parent, 0))
            roots[v] = (root, None if delta is None or rest is None else delta + rest)
    return roots


class Placement:
    """A value in its place, as some operands have it: `operand` of `actor` is the first of them.

    `scratch`: it is a workspace. `written`: some of the operands write it. The rest is set by `Accesses.locate`:
    `extent` with its `area`, `low` and `high`; `root`, the value whose bytes it has, and `base`, the address of the
    root's byte 0 (None: not known); `place`, area and base. `fixed`: it lies where nothing writes. `simple`: its bytes
    are one run, in memory that is written.
    """

    __slots__ = (
        "actor", "area", "base", "extent", "fixed", "high", "low", "operand", "place", "root", "scratch", "simple",
        "written",
    )  # fmt: skip

    extent: Extent
    area: int
    low: int
    high: int
    root: int
    base: int | None
    place: tuple[int, int]
    fixed: bool
    simple: bool

    def __init__(self, actor: Task | Region, operand: Operand, scratch: bool) -> None:
        self.actor, self.operand, self.scratch, self.written = actor, operand, scratch, False


class Row(NamedTuple):
    """A task with the placements of its operands; of `inputs`, those that are there.

    `plain`: inputs are only read, outputs and workspace only written.
    """

    task: Task
    inputs: Sequence[Placement]
    outputs: Sequence[Placement]
    workspace: Placement | None
    plain: bool


Use: TypeAlias = "tuple[Task | Region, Operand, Placement]"
"""Who has an operand, the operand, its placement."""

_READ, _WRITE = Access.READ, Access.WRITE  # looking members up in the class takes longer than all else on a line


class Accesses:
    """All accesses of the regions that are given, those inside of them listed too: first tasks', then regions' own."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.placements: list[Placement] = []
        self._known: dict[tuple[object, ...], Placement] = {}
        self._rows: dict[int, list[Row]] = {}
        for region in regions:
            if isinstance(region, (Static, Host)):
                tasks = region.tasks if isinstance(region, Static) else (region.task,)
                self._rows[id(region)] = [self._row(task) for task in tasks]
        self._own: list[Use] = []
        for region in regions:
            operands = own_operands(region)
            self._own += zip(repeat(region), operands, self._placed(region, operands, _READ)[0])

    def placement(self, region: Region, operand: Operand) -> Placement:
        """The placement of an operand of a region."""
        return self._placed(region, (operand,), _READ)[0][0]

    def _row(self, task: Task) -> Row:
        inputs, reads = self._placed(task, task.inputs, _READ)
        outputs, writes = self._placed(task, task.outputs, _WRITE)
        if task.workspace is None:
            return Row(task, inputs, outputs, None, reads and writes)
        (workspace,), scratch = self._placed(task, (task.workspace,), _WRITE, True)
        return Row(task, inputs, outputs, workspace, reads and writes and scratch)

    def _placed(
        self, actor: Task | Region, operands: Iterable[Operand | None], access: Access, scratch: bool = False
    ) -> tuple[list[Placement], bool]:
        """The placements of the operands that are there; whether all of these have the access."""
        known, found, alike = self._known, [], True
        for o in operands:
            if o is None:
                continue
            key = (o.value, o.buffer, id(o.type), o.delta, o.strides, scratch)  # the plan keeps the types
            p = known.get(key)
            if p is None:
                p = known[key] = Placement(actor, o, scratch)
                self.placements.append(p)
            if o.access is not _READ:
                p.written = True
            if o.access is not access:
                alike = False
            found.append(p)
        return found, alike

    def rows(self) -> Iterator[Row]:
        """All tasks in order."""
        return chain.from_iterable(self._rows.values())

    def rows_of(self, region: Static | Host) -> Sequence[Row]:
        """The tasks of a region."""
        return self._rows[id(region)]

    def uses(self, chosen: Collection[Placement]) -> Iterator[Use]:
        """The operands that have one of these placements, in order."""
        if not chosen:
            return
        for task, inputs, outputs, workspace, _ in self.rows():
            placements = (*inputs, *outputs) if workspace is None else (*inputs, *outputs, workspace)
            yield from ((task, o, p) for o, p in zip(task.operands(), placements, strict=True) if p in chosen)
        yield from (use for use in self._own if use[2] in chosen)

    def locate(self, layout: Layout, roots: Roots) -> None:
        """Find the bytes of all placements; their buffers must exist."""
        spaces = layout.spaces
        given = [s is Space.INPUT or s is Space.WEIGHTS for s in spaces]
        for p in self.placements:
            p.extent = x = layout.extent(p.operand)
            p.area, p.low, p.high, value = x.area, x.low, x.high, p.operand.value
            p.root, delta = roots.get(value, (value, 0))
            p.base = base = x.first if x.unit else None if delta is None or x.late else x.first - delta
            p.place = (x.area, base or 0)
            p.fixed = given[x.area]
            p.simple = base is not None and len(x.runs) == 1 and not p.fixed and spaces[x.area] is not Space.VARIABLE
