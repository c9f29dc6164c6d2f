"""When operands are used: positions over the tree of regions (`Buffer` says how they count).

task 0;  Loop { task 1; task 2 };  task 3       positions:  0;  1 { 2; 3 } 4;  5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from atc_py.plan.types import (
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Region,
    Scan,
    Static,
    Task,
    children,
    own_operands,
    walk,
)

Use = tuple["Task | Region", Operand, int, tuple[tuple[int, int], ...]]
"""Who uses an operand, the operand, the position, and where the loops around it begin and end."""


def uses(plan: Plan) -> Iterator[Use]:
    """All uses of operands with their positions (see `Buffer`)."""
    length: dict[int, int] = {}
    for region in reversed(list(walk(plan.regions))):
        inner = sum(length[id(c)] for body in children(region) for c in body)
        own = len(region.tasks) if isinstance(region, Static) else 1 if isinstance(region, Host) else 2
        length[id(region)] = inner + (0 if isinstance(region, Gears) else own)
    stack: list[tuple[Region, int, tuple[tuple[int, int], ...]]] = []
    _stack(stack, plan.regions, 0, (), length)
    while stack:
        region, start, loops = stack.pop()
        if isinstance(region, (Static, Host)):
            tasks = region.tasks if isinstance(region, Static) else (region.task,)
            for position, task in enumerate(tasks, start):
                yield from ((task, o, position, loops) for o in task.operands())
            continue
        end = start + length[id(region)] - 1
        at_end = list(_used_at_end(region))
        later = {id(o) for o in at_end} - {id(o) for o in _kept(region)}
        if isinstance(region, If):  # what reads an output keeps it; one that nobody reads is not kept
            later = {id(o) for o in region.outputs}
        yield from ((region, o, start, loops) for o in own_operands(region) if id(o) not in later)
        yield from ((region, o, end, loops) for o in at_end)
        inside = (*loops, (start, end)) if isinstance(region, (Loop, Scan)) else loops
        first = start if isinstance(region, Gears) else start + 1
        _stack(stack, [c for body in children(region) for c in body], first, inside, length)


def _stack(
    stack: list[tuple[Region, int, tuple[tuple[int, int], ...]]],
    regions: Sequence[Region],
    start: int,
    loops: tuple[tuple[int, int], ...],
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
