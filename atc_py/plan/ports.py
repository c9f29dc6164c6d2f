"""Solving symbols from the shapes that come: port types against actual shapes.

port x: float32[N, 3, 2*H, 7]     shape (2, 3, 64, 7)   →   {"N": 2, "H": 32}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc_py.errors import Problems
from atc_py.ir.dims import Dim, Size, evaluate, substitute, symbols_of
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor
from atc_py.plan.types import Port


def show(shape: Sequence[Size]) -> str:
    """A shape as people write it."""
    return "[" + ", ".join(str(d) for d in shape) + "]"


def solve(
    ports: Sequence[Port], shapes: Sequence[tuple[int, ...] | None], symbols: Mapping[str, Range]
) -> dict[str, int]:
    """The symbols' values for the given input shapes (None: not a tensor).

    Raises one `AtcError` (E30001) with a problem for each input whose shape does not fit.
    """
    env: dict[str, int] = {}
    problems = Problems()
    compound: list[tuple[Port, int, Dim, int]] = []
    for port, shape in zip(ports, shapes, strict=True):
        if shape is None or not isinstance(port.type, Tensor) or port.type.shape is None:
            continue
        want = port.type.shape
        if len(want) != len(shape):
            _wrong(problems, port, shape, f"has rank {len(shape)}, expected {len(want)}")
            continue
        for axis, (dim, got) in enumerate(zip(want, shape, strict=True)):
            if isinstance(dim, Dim):
                compound.append((port, axis, dim, got))
            elif dim != got:
                _wrong(problems, port, shape, f"axis {axis} is {got}, expected {dim}")
    compound.sort(key=lambda c: len(symbols_of(c[2])))
    for port, axis, dim, got in compound:
        _solve_one(problems, env, port, axis, dim, got, symbols)
    problems.raise_any()
    return env


def _wrong(problems: Problems, port: Port, shape: Sequence[int], cause: str) -> None:
    assert isinstance(port.type, Tensor) and port.type.shape is not None
    problems.add(
        "E30001", f"input '{port.name}'", f"shape {show(shape)}: {cause}", f"the model takes {show(port.type.shape)}"
    )


def _solve_one(
    problems: Problems,
    env: dict[str, int],
    port: Port,
    axis: int,
    dim: Dim,
    got: int,
    symbols: Mapping[str, Range],
) -> None:
    rest = substitute(dim, env)
    free = symbols_of(rest)
    place = f"input '{port.name}'"
    assert isinstance(port.type, Tensor) and port.type.shape is not None
    hint = f"the model takes {show(port.type.shape)}"
    if not free:
        if rest != got:
            problems.add("E30001", place, f"axis {axis} is {got}, but {dim} is {rest} by the other inputs", hint)
        return
    if len(free) > 1:
        problems.add("E30001", place, f"axis {axis}: {dim} = {got} does not determine {', '.join(free)}", hint)
        return
    name = free[0]
    at0, at1 = evaluate(rest, {name: 0}), evaluate(rest, {name: 1})
    slope = at1 - at0
    value = (got - at0) // slope if slope else -1
    if slope == 0 or evaluate(rest, {name: value}) != got:
        problems.add("E30001", place, f"axis {axis} is {got}, which {dim} cannot be", hint)
        return
    range_ = symbols.get(name, Range())
    if value < range_.lo or (range_.hi is not None and value > range_.hi):
        high = "any" if range_.hi is None else str(range_.hi)
        problems.add("E30001", place, f"axis {axis}: {name} = {value} is outside {range_.lo} to {high}", hint)
        return
    env[name] = value
