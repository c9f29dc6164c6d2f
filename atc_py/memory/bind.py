"""`bind`: a plan's sizes under given symbol values, and an offset for each buffer.

    template   buffer 4: arena, 2048*N bytes, needed by tasks 3–5
    bind(plan, {"N": 2})  →  sizes[4] == 4096, offsets[4] == some multiple of 512, arena == the peak

What is bound for new symbol values is sizes and offsets only: order, streams, events and kernels stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc_py.errors import Problems, error
from atc_py.ir.dims import Size, UnboundSymbol, compile_sizes, symbols_of
from atc_py.memory.allocate import ALIGNMENT, plan_memory
from atc_py.memory.conflicts import clique_bound, plan_relation
from atc_py.memory.problem import Assignment, Block, Effort, lower_bound
from atc_py.plan.gears import in_full
from atc_py.plan.happens import conflicts
from atc_py.plan.live import dead_buffers, unmet
from atc_py.plan.types import Buffer, Plan, Space

ARENA_LIMIT = 1 << 46
"""An arena beyond this many bytes is refused: the file or the shape is wrong."""


@dataclass(frozen=True)
class Binding:
    """Sizes and offsets of all buffers in bytes (-1: known only at run time), the arena's peak and its lower bound."""

    env: Mapping[str, int]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    arena: int
    lower_bound: int


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the arena's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_late(size: Size, plan: Plan) -> bool:
    """Whether a size depends on a symbol that is bound only when its producer has run."""
    return any(plan.symbols[s].runtime for s in symbols_of(size) if s in plan.symbols)


def arena_blocks(buffers: tuple[Buffer, ...], sizes: tuple[int, ...]) -> tuple[list[int], list[Block]]:
    """The arena's buffers by index, and their blocks with rounded sizes.

    Raises `AtcError` E30003 for a buffer whose size is negative or whose last use comes before its first.
    """
    members: list[int] = []
    blocks: list[Block] = []
    for i, b in enumerate(buffers):
        if b.space is not Space.ARENA:
            continue
        if sizes[i] < -1 or b.last < b.first:
            cause = f"has {sizes[i]} bytes from position {b.first} to {b.last}"
            raise error("E30003", f"buffer {i}", cause, "the plan is damaged, or the shapes are not possible")
        members.append(i)
        blocks.append(Block(b.first, b.last + 1, aligned(sizes[i])))
    return members, blocks


def buffer_sizes(plan: Plan, env: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each buffer under `env`; -1 where only the run time knows.

    Raises `AtcError` E30002 when a symbol has no value, E30003 when a size divides by 0.
    """
    unused = dead_buffers(plan, env)
    sizes: list[int] = [-1] * len(plan.buffers)
    open_: list[int] = []  # those that the symbols say
    for i, b in enumerate(plan.buffers):
        if b.id in unused:
            sizes[i] = 0
        elif isinstance(b.nbytes, int):
            sizes[i] = b.nbytes
        elif not is_late(b.nbytes, plan):
            open_.append(i)
    try:
        evaluated = compile_sizes([plan.buffers[i].nbytes for i in open_])(env)
    except UnboundSymbol as e:
        raise error("E30002", e.name, "this dim has no value", "give the shapes of all inputs") from None
    except ZeroDivisionError:
        raise error("E30003", "plan", "with these shapes a size divides by 0", "use other shapes") from None
    for i, size in zip(open_, evaluated, strict=True):
        sizes[i] = size
    return tuple(sizes)


def _check_requirements(plan: Plan, env: Mapping[str, int]) -> None:
    """Raise E30030 naming each requirement that the shapes do not meet."""
    problems = Problems()
    shapes = ", ".join(f"{s} = {v}" for s, v in env.items())
    for r in unmet(plan, env):
        problems.add(
            "E30030",
            f"node '{r.place}'",
            f"the model needs {r}, which does not hold for {shapes or 'these shapes'}",
            "give inputs of other shapes (atc convert: --input-shape, or --input-hint-shape for the figures)",
        )
    problems.raise_any()


def bind(plan: Plan, env: Mapping[str, int] | None = None, *, effort: Effort = "fast", least: int = 0) -> Binding:
    """Evaluate the plan's sizes under `env` and place the arena's buffers.

    A plan whose offsets were planned at conversion keeps them; others are planned with `effort`. `least` is a lower
    bound of the arena, when the caller knows one; then none is looked for in what streams order. Raises `AtcError`
    E30002 when a symbol has no value, E30009 when the values are no gear of the plan, E30030 when the shapes do not
    meet the plan's requirements, E30003 when they need too much memory.
    """
    env = in_full(plan, env or {})
    missing = [s for s, r in plan.symbols.items() if s not in env and not r.runtime]
    if missing:
        raise error("E30002", ", ".join(missing), "these dims have no value", "give the shapes of all inputs")
    _check_requirements(plan, env)
    sizes = buffer_sizes(plan, env)
    members, blocks = arena_blocks(plan.buffers, sizes)
    bound = max(lower_bound(blocks), least)
    offsets = [b.offset if b.offset is not None else -1 for b in plan.buffers]
    placed = all(offsets[i] >= 0 for i in members)
    peak = max((offsets[i] + aligned(sizes[i]) for i in members if sizes[i]), default=0) if placed else -1
    # Pairs of streams say nothing new where the places already reach the bound, or all blocks are live at one position.
    told = plan.streams <= 1 or (placed and (peak <= bound or least > 0)) or sum([b.size for b in blocks]) == bound
    others = [] if told else conflicts(plan)[1]
    if not placed and bound <= ARENA_LIMIT:
        planned = plan_arena(blocks, others, bound, effort)
        bound, peak = max(bound, planned.lower_bound), planned.peak
        for i, offset in zip(members, planned.offsets, strict=True):
            offsets[i] = offset
    elif others:  # what is beside each other on two streams is live together
        bound = max(bound, clique_bound([b.size for b in blocks], others))
    if bound > ARENA_LIMIT:
        raise error("E30003", "arena", f"these shapes need at least {bound} bytes of memory", "use smaller shapes")
    return Binding(env, sizes, tuple(offsets), peak, bound)


def plan_arena(blocks: Sequence[Block], others: Sequence[Sequence[int]], bound: int, effort: Effort) -> Assignment:
    """A place for each block; `others` are the blocks that each must not share bytes with, none when lifetimes say it.

    On several streams, lifetimes that lie apart in the plan's order may still meet.
    """
    if not others:
        return plan_memory(blocks, alignment=ALIGNMENT, effort=effort)
    sizes = [b.size for b in blocks]
    return plan_relation(sizes, others, alignment=ALIGNMENT, effort=effort, bound=bound)
