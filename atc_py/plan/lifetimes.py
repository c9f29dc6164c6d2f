"""The law of lifetimes: an arena buffer is kept while somebody uses it. Positions over the tree of regions.

task 0;  Loop { task 1; task 2 };  task 3       positions:  0;  1 { 2; 3 } 4;  5

What a loop uses of before it is needed until the loop ends, for the next iteration uses it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from atc_py.plan.show import show
from atc_py.plan.types import (
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Region,
    Scan,
    Space,
    Static,
    Task,
    children,
    own_operands,
    walk,
)

Finding = tuple[str, str]
Use = tuple["Task | Region", Operand, int]
"""Who uses an operand, the operand, the position (see `Buffer`)."""
Loops = tuple[tuple[int, int], ...]
"""The positions where the loops around a region begin and end."""


def lifetimes(plan: Plan) -> Iterator[Finding]:
    """The uses of arena buffers outside of their lifetimes: (task or region, cause)."""
    length = _lengths(plan.regions)
    total, arena = sum([length[id(r)] for r in plan.regions]), Space.ARENA
    spans = [(b.first, b.last) if b.space is arena and b.first >= 0 else (0, total) for b in plan.buffers]
    for region, start, loops in _starts(plan.regions, length):
        if isinstance(region, (Static, Host)):
            tasks = region.tasks if isinstance(region, Static) else (region.task,)
            found: Iterable[Use] = _task_uses(tasks, start, spans, bool(loops))
        else:
            found = _region_uses(region, start, start + length[id(region)] - 1)
        for actor, operand, position in found:
            first, last = spans[operand.buffer]
            end = max((e for s, e in loops if first < s), default=position)
            if not first <= position <= max(position, end) <= last:
                cause = f"uses buffer {operand.buffer} at position {position}"
                until = f" and is needed until {end}, where a loop ends" if end > position else ""
                yield show(actor), f"{cause}{until}, but the buffer is kept from {first} to {last}"


def _task_uses(tasks: Sequence[Task], start: int, spans: Sequence[tuple[int, int]], looped: bool) -> list[Use]:
    """The uses to be looked at: inside of loops all of them, else those outside of their buffer's lifetime."""
    return [
        (task, o, position)
        for position, task in enumerate(tasks, start)
        for o in (*task.inputs, *task.outputs, task.workspace)
        if o is not None and (looped or not spans[o.buffer][0] <= position <= spans[o.buffer][1])
    ]


def _region_uses(region: Region, start: int, end: int) -> Iterator[Use]:
    at_end = list(_used_at_end(region))
    later = {id(o) for o in at_end} - {id(o) for o in _kept(region)}
    if isinstance(region, If):  # what reads an output keeps it; one that nobody reads is not kept
        later = {id(o) for o in region.outputs}
    yield from ((region, o, start) for o in own_operands(region) if id(o) not in later)
    yield from ((region, o, end) for o in at_end)


def _lengths(regions: tuple[Region, ...]) -> dict[int, int]:
    """How many positions each region takes, those inside of it included; by its identity."""
    length: dict[int, int] = {}
    for region in reversed(list(walk(regions))):
        inner = sum(length[id(c)] for body in children(region) for c in body)
        own = len(region.tasks) if isinstance(region, Static) else 1 if isinstance(region, Host) else 2
        length[id(region)] = inner + (0 if isinstance(region, Gears) else own)
    return length


def _starts(regions: Sequence[Region], length: Mapping[int, int]) -> Iterator[tuple[Region, int, Loops]]:
    """All regions with the positions where they begin, and the loops around them."""
    stack: list[tuple[Region, int, Loops]] = []
    _stack(stack, regions, 0, (), length)
    while stack:
        region, start, loops = stack.pop()
        yield region, start, loops
        end = start + length[id(region)] - 1
        inside = (*loops, (start, end)) if isinstance(region, (Loop, Scan)) else loops
        first = start if isinstance(region, Gears) else start + 1
        _stack(stack, [c for body in children(region) for c in body], first, inside, length)


def _stack(
    stack: list[tuple[Region, int, Loops]],
    regions: Sequence[Region],
    start: int,
    loops: Loops,
    length: Mapping[int, int],
) -> None:
    found = []
    for region in regions:
        found.append((region, start, loops))
        start += length[id(region)]
    stack.extend(reversed(found))


def _kept(region: Region) -> Iterator[Operand]:
    """The operands that a loop uses from its beginning to its end."""
    if isinstance(region, (Loop, Scan)):
        yield from (c.state for c in region.carried)
        yield from (k.stack for k in region.collected)
    if isinstance(region, Scan):
        yield from (whole for whole, _, _, _ in region.sliced)


def _used_at_end(region: Region) -> Iterator[Operand]:
    """The operands that a region uses where it ends."""
    yield from _kept(region)
    if isinstance(region, (Loop, Scan)):
        yield from region.outputs
        yield from (c.result for c in region.carried)
        yield from (k.item for k in region.collected)
    if isinstance(region, Loop) and region.next_condition is not None:
        yield region.next_condition
