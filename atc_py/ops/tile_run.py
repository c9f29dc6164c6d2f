"""Fused tasks tile by tile: the reference implementation.

    y[128:256, :]   ←   operators run on x[128:256, :] and w[:, :]; m[128:256, :] lies at its place of the buffer

The buffers of inner values have exactly the bytes that the task's attributes tell, and nothing beside them holds an
inner value: one that is larger than planned raises. Each tile of a result is made in the buffer, then copied out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Call, InferError
from atc_py.ops.fused_run import Bound
from atc_py.ops.tile_program import Grid, Program, Step, Trace, Tracer, grid, layout, nbytes, plain
from atc_py.ops.tiles import Dims, Need, Region, Untileable, cut, elements, holds, lengths, whole

_KEPT = 256
"""Prepared states that are kept while a task runs."""


@dataclass
class _Machine:
    """One execution: the operands, the buffers, and what kernels have prepared for tiles of one shape."""

    p: Program
    shapes: dict[int, Dims]
    dtypes: dict[int, np.dtype[Any]]
    operands: dict[int, Array]
    consts: Mapping[int, Array]
    tracer: Tracer
    inner: dict[int, int] = field(default_factory=dict)
    place: dict[int, tuple[str, int]] = field(default_factory=dict)
    space: dict[str, Array] = field(default_factory=dict)
    states: dict[Any, Any] = field(default_factory=dict)


def run(state: Bound, call: Call, inputs: Sequence[Array | None]) -> list[Array]:
    """The results of a fused task, made tile by tile, in the views of `call` where it has them."""
    p = state.p
    operands = {v: a for v, a in zip(p.inputs, inputs) if a is not None}
    operands |= {v: state.values[state.number[v]] for v in state.consts if v not in operands}
    shapes, dtypes = _known(state, operands)
    outs = [call.into(k, shapes[v], dtypes[v]) for k, v in enumerate(p.outputs)]
    tracer = Tracer(p, shapes, {v: d.itemsize for v, d in dtypes.items()}, state.consts)
    m = _Machine(p, shapes, dtypes, operands, state.consts, tracer)
    tile = tuple(state.attrs.get("tile", ())) or (0,) * len(shapes[p.outputs[0]])
    try:
        g = grid(p, shapes, tile)
        _buffers(m, state, g)
        for index in g.indices():
            wanted = g.wanted(index)
            if all(not elements(r) for r in wanted.values()):
                continue
            _tile(m, m.tracer.trace(wanted), wanted, outs)
    except Untileable as e:
        raise InferError(f"the body has no tile program: {e}") from e
    return outs


def _known(state: Bound, operands: Mapping[int, Array]) -> tuple[dict[int, Dims], dict[int, np.dtype[Any]]]:
    shapes = {v: a.shape for v, a in operands.items()}
    dtypes = {v: a.dtype for v, a in operands.items()}
    for v in state.p.made:
        t = state.types[v]
        if not isinstance(t, Tensor) or not t.static:
            raise InferError("an inner value has no known shape")
        shapes[v], dtypes[v] = plain(t.dims), t.dtype.numpy
    return shapes, dtypes


def _buffers(m: _Machine, state: Bound, g: Grid) -> None:
    """Allocate the buffers: exactly the bytes that the attributes tell; where they are silent, what the whole takes."""
    p = m.p
    inner: Sequence[int] = state.attrs.get("inner", ())
    places: Sequence[str] = state.attrs.get("inner_in", ())
    if not inner:
        regions = m.tracer.trace(g.wanted((0,) * len(g.number))).regions
        inner = [nbytes(regions[v], m.dtypes[v].itemsize) if v in regions else 0 for v in p.made]
        places = ["UB"] * len(inner)
    offsets, sizes = layout(p, inner, places)
    m.space = {name: np.full(size, 0xA5, np.uint8) for name, size in sizes.items()}
    for k, v in enumerate(p.made):
        m.inner[v], m.place[v] = inner[k], (places[k], offsets[k])


def _tile(m: _Machine, t: Trace, wanted: Mapping[int, Region], outs: Sequence[Array]) -> None:
    """Run one tile, and copy its results out."""
    tiles: dict[int, Array] = {}
    for i, (step, need) in enumerate(zip(m.p.steps, t.needs)):
        if need is None:
            continue
        views = [_inner(m, v, t.regions[v]) if v in t.regions else None for v in step.outputs]
        arguments = [_argument(m, t, step, need, k, tiles) for k in range(len(step.inputs))]
        call = _call(m, i, step, need, arguments, views)
        assert step.op.kernel_fn is not None
        result = step.op.kernel_fn(call, *arguments)
        for v, view, made in zip(step.outputs, views, result if isinstance(result, tuple) else (result,)):
            if view is None:
                continue
            if made is not view:
                if made.shape != view.shape or made.dtype != view.dtype:
                    cause = f"{step.op.name} gave a tile {made.dtype}{list(made.shape)}, planned is {list(view.shape)}"
                    raise InferError(cause)
                np.copyto(view, made)
            tiles[v] = view
        for v in step.outputs:
            if v in wanted and v in tiles:
                _out(m, v, tiles[v][cut(wanted[v], t.regions[v])], wanted[v], outs)
    for v in wanted:
        if v not in tiles:
            _out(m, v, m.operands[v][cut(wanted[v])], wanted[v], outs)


def _out(m: _Machine, v: int, made: Array, region: Region, outs: Sequence[Array]) -> None:
    for k, u in enumerate(m.p.outputs):
        if u == v:
            outs[k][cut(region)] = made


def _inner(m: _Machine, v: int, region: Region) -> Array:
    """The view of an inner value's tile at its planned place. Raises `InferError` where it has more bytes than that."""
    shape, dtype = lengths(region), m.dtypes[v]
    name, offset = m.place[v]
    needed = nbytes(region, dtype.itemsize)
    if needed > m.inner[v]:
        raise InferError(
            f"a tile {list(shape)} of an inner value takes {needed} bytes of {name}, planned are {m.inner[v]}"
        )
    return np.ndarray(shape, dtype, m.space[name], offset)


def _argument(m: _Machine, t: Trace, step: Step, need: Need, k: int, tiles: Mapping[int, Array]) -> Array | None:
    v = step.inputs[k]
    part: Array
    if k in need.values:
        return need.values[k]
    region = need.inputs[k]
    if v == ABSENT or region is None:
        return None
    if v in m.place and v not in tiles:
        return np.empty(lengths(region), m.dtypes[v])  # of no elements: nothing had to be made
    if v in tiles:
        part = tiles[v][cut(region, t.regions[v])]
        return part
    if not holds(whole(m.shapes[v]), region):
        raise InferError(f"a rule of {step.op.name} needs {region} of an operand {list(m.shapes[v])}")
    part = m.operands[v][cut(region)]
    return part


def _call(
    m: _Machine, i: int, step: Step, need: Need, arguments: Sequence[Array | None], views: Sequence[Array | None]
) -> Call:
    """The call of one operator on one tile, prepared; states are shared by tiles of equal shapes and constants."""
    attrs = {**step.attrs, **need.attrs} if need.attrs else step.attrs
    consts = {
        k: a for k, a in enumerate(arguments) if a is not None and (k in need.values or step.inputs[k] in m.consts)
    }
    in_types = tuple([None if a is None else Tensor(DType.of(a.dtype), a.shape) for a in arguments])
    out_types = tuple([None if a is None else Tensor(DType.of(a.dtype), a.shape) for a in views])
    call = Call(attrs, out_types, views, consts, in_types, tiles=True)
    if step.op.prepare_fn is not None:
        parts = tuple([need.inputs[k] for k in consts])
        held = tuple([v.tobytes() for v in need.values.values()])
        key = (i, parts, held, tuple([a and a.dims for a in in_types]), repr(sorted(need.attrs.items())))
        if key not in m.states:
            if len(m.states) >= _KEPT:
                m.states.clear()
            m.states[key] = step.op.prepare_fn(call)
        call.state = m.states[key]
    return call
