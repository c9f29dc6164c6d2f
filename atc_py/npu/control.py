"""Regions at run time: lists of tasks, and what If, Loop and Scan do around them.

    Loop, 3 trips, carried s:   state ← initial;  3 × { counter ← i; body; item → stack; state ← result };  state is s

Values are moved between planned places; what a body carries may change its size from one iteration to the next when
the state lies in the dynamic space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atc_py.errors import error
from atc_py.ir.dims import Size, UnboundSymbol, evaluate
from atc_py.ir.types import Tensor, on_host
from atc_py.plan.live import violated
from atc_py.plan.types import Carried, Collected, Gears, Host, If, Loop, Operand, Region, Scan, Static

if TYPE_CHECKING:
    from atc_py.npu.device import Context


def run_regions(context: Context, regions: Sequence[Region]) -> None:
    """Run regions one after the other."""
    for region in regions:
        if isinstance(region, (Static, Host)):
            for task in context.order(region.tasks if isinstance(region, Static) else (region.task,)):
                context.execute(task)
        elif isinstance(region, If):
            _run_if(context, region)
        elif isinstance(region, Loop):
            _run_loop(context, region)
        elif isinstance(region, Scan):
            _run_scan(context, region)
        elif isinstance(region, Gears):
            _run_gears(context, region)


def _name(origin: tuple[str, ...]) -> str:
    return origin[0] if origin else "loop"


def _leave(context: Context, outputs: Sequence[Operand]) -> None:
    """Bind the symbols of a region's outputs, under the numbers that they have outside."""
    for operand in outputs:
        if isinstance(operand.type, Tensor) and not on_host(operand.type) and context.bound.binder.late(operand):
            context.bind_symbols(operand, context.spaces.dynamic[operand.buffer].shape)


def _run_if(context: Context, region: If) -> None:
    predicate = np.asarray(context.load(region.predicate)).reshape(-1)
    if predicate.size != 1:
        raise error("E40001", f"If '{_name(region.origin)}'", f"the condition has {predicate.size} elements", "")
    taken = 0 if predicate[0] else 1
    if context.bound.dead and context.bound.branches[id(region)] + taken in context.bound.dead:
        _dead(context, region, context.bound.branches[id(region)] + taken)
    run_regions(context, region.else_branch if taken else region.then_branch)
    _leave(context, region.outputs)


def _dead(context: Context, region: If, branch: int) -> None:
    wrong = violated([r for r in context.plan.requirements if r.branch == branch], context.bound.binding.env)
    raise error(
        "E30030",
        f"If '{_name(region.origin)}'",
        f"the branch that is taken needs {wrong[0]} (node '{wrong[0].place}'), which these shapes do not meet",
        "give inputs of other shapes, or another value for the condition",
    )


def _move(context: Context, source: Operand, target: Operand, by: str) -> None:
    if source.buffer == target.buffer:
        context.renamed(source, target)
        return
    value = context.load(source)
    context.save(target, value.copy() if isinstance(value, np.ndarray) else value, by)


class _Stacks:
    """The values that a loop collects, an item an iteration."""

    def __init__(self, context: Context, collected: Sequence[Collected]) -> None:
        self.context, self.collected = context, collected
        self.items: list[list[Any]] = [[] for _ in collected]

    def take(self) -> None:
        for stack, c in zip(self.items, self.collected, strict=True):
            stack.append(np.array(self.context.load(c.item)))

    def finish(self, by: str) -> None:
        for stack, c in zip(self.items, self.collected, strict=True):
            self.context.save(c.stack, self._stacked(stack, c), by)

    def _stacked(self, items: list[Any], c: Collected) -> Any:
        ordered = items[::-1] if c.reverse else items
        if ordered:
            return np.stack(ordered, axis=c.axis)
        assert isinstance(c.item.type, Tensor)
        known = [self._size(d) for d in c.item.type.shape or ()]
        axis = c.axis % (len(known) + 1)
        return np.empty((*known[:axis], 0, *known[axis:]), c.item.type.dtype.numpy)

    def _size(self, size: Size) -> int:
        """A dim of an item that has never been made: 0 where nothing says it."""
        try:
            return evaluate(size, self.context.env)
        except UnboundSymbol:
            return 0


def _scalar(context: Context, operand: Operand | None) -> Any:
    if operand is None:
        return None
    value = np.asarray(context.load(operand)).reshape(-1)
    return value[0].item() if value.size else None


def _run_loop(context: Context, region: Loop) -> None:
    by = _name(region.origin)
    trips = _scalar(context, region.trips)
    going = region.condition is None or bool(_scalar(context, region.condition))
    _begin(context, region.carried, by)
    stacks = _Stacks(context, region.collected)
    i = 0
    while going and (trips is None or i < trips):
        _write_scalar(context, region.counter, i, by)
        _write_scalar(context, region.state_condition, True, by)
        run_regions(context, region.body)
        if region.condition is not None or region.trips is None:
            going = bool(_scalar(context, region.next_condition))
        stacks.take()
        _advance(context, region.carried, by)
        i += 1
    stacks.finish(by)
    _leave(context, region.outputs)


def _write_scalar(context: Context, operand: Operand | None, value: int | bool, by: str) -> None:
    if operand is not None:
        assert isinstance(operand.type, Tensor)
        shape = tuple(d for d in operand.type.dims if isinstance(d, int)) if operand.type.shape else ()
        context.save(operand, np.full(shape, value, operand.type.dtype.numpy), by)


def _begin(context: Context, carried: Sequence[Carried], by: str) -> None:
    for c in carried:
        _move(context, c.initial, c.state, by)


def _advance(context: Context, carried: Sequence[Carried], by: str) -> None:
    for c in carried:
        _move(context, c.result, c.state, by)


def _run_scan(context: Context, region: Scan) -> None:
    by = _name(region.origin)
    wholes = [np.asarray(context.load(whole)) for whole, _, _, _ in region.sliced]
    lengths = {w.shape[axis] for w, (_, _, axis, _) in zip(wholes, region.sliced, strict=True)}
    if len(lengths) != 1:
        cause = f"the scanned inputs have lengths {sorted(lengths)}"
        raise error("E40001", f"Scan '{by}'", cause, "give equal lengths")
    trips = lengths.pop()
    _begin(context, region.carried, by)
    stacks = _Stacks(context, region.collected)
    for i in range(trips):
        for whole, (_, piece, axis, reverse) in zip(wholes, region.sliced, strict=True):
            context.save(piece, np.take(whole, trips - 1 - i if reverse else i, axis=axis), by)
        run_regions(context, region.body)
        stacks.take()
        _advance(context, region.carried, by)
    stacks.finish(by)
    _leave(context, region.outputs)


def _run_gears(context: Context, region: Gears) -> None:
    values = tuple(context.env[s] for s in region.symbols)
    if values not in region.gears:
        wanted = ", ".join(f"{s}={v}" for s, v in zip(region.symbols, values, strict=True))
        listed = "; ".join(str(g) for g in region.gears)
        raise error("E30009", "shapes", f"{wanted} is no gear of this model", f"its gears are {listed}")
    run_regions(context, region.bodies[region.gears.index(values)])
