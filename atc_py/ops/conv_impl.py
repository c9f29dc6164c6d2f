"""Convolution and transposed convolution: shifted planes (see `conv_geometry`) and one matrix product a block.

A tap over all output positions is one flat run of its plane, whatever the number of axes: positions are numbered on
the plane's own grid, and those that fall between rows are computed and thrown away. The runs of all taps, stacked, are
the columns of im2col, made by long copies; their product with the packed weights [group, out, tap·in] finishes the
block. Two rows of 3 outputs on planes of width 5 (kernel 3×3):

    run of a tap   p0 p1 p2 -- -- p5 p6 p7        8 columns, of which 2 are waste
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from atc_py.ops.base import Array, Call
from atc_py.ops.conv_geometry import Block, Geometry, Phase, blocks

ALL = slice(None)

GEMM_BUDGET = 24 << 20
"""Bytes of scratch that one block aims at: large enough for the matrix product to be efficient."""
DEPTHWISE_BUDGET = 1 << 20
"""The same for convolutions with one input channel a group, which should stay in the second-level cache."""


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that sums are taken in: float64 for float64, float32 for everything narrower."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def pack(w: Array, group: int, geo: Geometry, *, transposed: bool, dtype: Any) -> list[Array]:
    """Weights by phase as [group, out, tap·in].

    `w` is [group·out, in, kernel...], or [group·in, out, kernel...] when `transposed`.
    """
    split = w.reshape(group, w.shape[0] // group, w.shape[1], prod(w.shape[2:]))
    tapped = split.transpose(0, 2, 3, 1) if transposed else split.transpose(0, 1, 3, 2)
    packed = []
    for phase in geo.phases:
        chosen = tapped if len(phase.taps) == tapped.shape[2] else tapped[:, :, list(phase.taps)]
        flat = (*chosen.shape[:2], chosen.shape[2] * chosen.shape[3])
        packed.append(np.ascontiguousarray(chosen, dtype=dtype).reshape(flat))
    return packed


def merge(a: Array, shape: tuple[int, ...]) -> Array | None:
    """`a` reshaped without a copy, or None where its strides do not allow that."""
    view = a.reshape(shape)
    return view if a.size == 0 or np.may_share_memory(view, a) else None


def pointwise(call: Call, x: Array, w: Array, bias: Array | None, y: Array, group: int) -> None:
    """A 1×1 convolution of stride 1: one product a sample, straight from the input into `y`.

    `w` is [group, out, in] in the compute type.
    """
    n, c = x.shape[:2]
    size = prod(x.shape[2:])
    flat = x.reshape(n, group, c // group, size)
    if flat.dtype != w.dtype:
        flat = flat.astype(w.dtype)
    target = merge(y, (n, *w.shape[:2], size)) if y.dtype == w.dtype else None
    into = call.scratch((n, *w.shape[:2], size), w.dtype) if target is None else target
    if size == 1 and group == 1:
        np.matmul(flat[:, 0, :, 0], w[0].T, out=into[:, 0, :, 0])
    else:
        np.matmul(w, flat, out=into)
    if bias is not None:
        np.add(into, bias.reshape(group, -1, 1), out=into)
    if target is None:
        np.copyto(y, into.reshape(y.shape), casting="unsafe")


def run(call: Call, x: Array, packed: Sequence[Array], bias: Array | None, y: Array, geo: Geometry, group: int) -> None:
    """Convolve `x` [batch, channels, spatial...] into `y`; `packed` comes from `pack`; one bias a channel."""
    if y.size == 0:
        return
    dtype = compute_dtype(x.dtype)
    width, outs = x.shape[1] // group, y.shape[1] // group
    most = max((len(p.taps) for p in geo.phases), default=0)
    if not most or not width or not geo.covers:
        y[...] = 0 if bias is None else bias.reshape(-1, *(1,) * (y.ndim - 2))
        if not most or not width:
            return
    rows = max(p.count[0] for p in geo.phases)
    per_row = (len(geo.planes) * width + most * width + outs) * prod(geo.extent[1:]) * dtype.itemsize
    budget = DEPTHWISE_BUDGET if width == 1 and group > 1 else GEMM_BUDGET
    grouped = None if bias is None else bias.reshape(group, outs, *(1,) * (y.ndim - 1)).astype(dtype, copy=False)
    xs = _grouped(x, group, width)
    ys = _grouped(y, group, outs)
    scratch = _Scratch(call, geo, dtype, width, outs)
    for block in blocks(group, x.shape[0], rows, geo.span, max(1, budget // per_row)):
        (g0, g1), (n0, n1) = block.groups, block.samples
        held = None if grouped is None else grouped[g0:g1]
        _run_block(scratch, xs[g0:g1, :, n0:n1], packed, held, ys[g0:g1, :, n0:n1], geo, block)


def _grouped(a: Array, group: int, width: int) -> Array:
    """[batch, group·width, spatial...] seen as [group, width, batch, spatial...]."""
    split = a.reshape(a.shape[0], group, width, *a.shape[2:])
    return split.transpose(1, 2, 0, *range(3, split.ndim))


def _aligned(n: int) -> int:
    return -(-n // 64) * 64


class _Piece:
    """Scratch views for one phase of a block: `stacks` pairs of (place, source) to copy, the columns, the sums.

    `grid` is `acc` seen at the output's positions: [groups, out, samples, count...].
    """

    def __init__(
        self, planes: Array, geo: Geometry, phase: Phase, count: tuple[int, ...], tail: Array, outs: int
    ) -> None:
        _, groups, width, samples, _ = planes.shape
        dtype = planes.dtype
        item = dtype.itemsize
        steps = [prod(geo.extent[axis + 1 :]) for axis in range(len(geo.extent))]
        self.length = length = sum((c - 1) * s for c, s in zip(count, steps)) + 1
        taps = len(phase.taps)
        self.stacks: list[tuple[Array, Array]] = []
        at = 0
        if taps == 1 and samples == 1:
            first = sum(o * s for o, s in zip(phase.families[0].offset, steps))
            self.columns = planes[phase.families[0].plane][:, :, 0, first : first + length]
        else:
            at = _aligned(groups * taps * width * samples * length * item)
            stack = tail[: groups * taps * width * samples * length * item].view(dtype)
            self.columns = stack.reshape(groups, taps * width, samples * length)
            shaped = stack.reshape(groups, *phase.grid, width, samples, length)
            for f in phase.families:
                plane = planes[f.plane]
                first = sum(o * s for o, s in zip(f.offset, steps))
                moves = tuple(m * s * item for m, s in zip(f.step, steps))
                source = as_strided(
                    plane[..., first:],
                    (groups, *f.size, width, samples, length),
                    (plane.strides[0], *moves, *plane.strides[1:]),
                )
                self.stacks.append((shaped[(slice(None), *f.place)], source))
        sums = tail[at : at + groups * outs * samples * length * item].view(dtype)
        self.acc = sums.reshape(groups, outs, samples * length)
        self.grid = as_strided(
            sums,
            (groups, outs, samples, *count),
            (outs * samples * length * item, samples * length * item, length * item, *(s * item for s in steps)),
        )


class _Scratch:
    """The views that blocks of one shape share, made once a call."""

    def __init__(self, call: Call, geo: Geometry, dtype: np.dtype[Any], width: int, outs: int) -> None:
        self.call, self.geo, self.dtype, self.width, self.outs = call, geo, dtype, width, outs
        self.most = max(len(p.taps) for p in geo.phases)
        self.known: dict[tuple[int, ...], tuple[Array, list[_Piece | None]]] = {}

    def views(self, groups: int, samples: int, block: Block, direct: Array | None) -> tuple[Array, list[_Piece | None]]:
        """The planes [plane, groups, in, samples, flat] of a block and its phases' pieces (None: no position there)."""
        counts = tuple(min(block.rows[1], p.count[0]) - block.rows[0] for p in self.geo.phases)
        key = (groups, samples, *counts)
        found = self.known.get(key) if direct is None else None
        if found is None:
            found = self._make(groups, samples, block.rows[1] - block.rows[0], counts, direct)
            if direct is None:
                self.known[key] = found
        return found

    def _make(
        self, groups: int, samples: int, rows: int, counts: tuple[int, ...], direct: Array | None
    ) -> tuple[Array, list[_Piece | None]]:
        geo, item = self.geo, self.dtype.itemsize
        inner = prod(geo.extent[1:])
        shape = (len(geo.planes), groups, self.width, samples, (rows + geo.span) * inner)
        used = 0 if direct is not None else _aligned(prod(shape) * item)
        run_bytes = groups * samples * rows * inner * item
        buffer = self.call.scratch((used + (self.most * self.width + self.outs) * run_bytes + 128,), np.uint8)
        planes = direct if direct is not None else buffer[: prod(shape) * item].view(self.dtype).reshape(shape)
        pieces = [
            _Piece(planes, geo, phase, (count, *phase.count[1:]), buffer[used:], self.outs)
            if count > 0 and phase.taps else None
            for phase, count in zip(geo.phases, counts)
        ]  # fmt: skip
        return planes, pieces


def _run_block(
    scratch: _Scratch, x: Array, packed: Sequence[Array], bias: Array | None, y: Array, geo: Geometry, block: Block
) -> None:
    """One block: `x` [groups, in, samples, spatial...], `y` [groups, out, samples, spatial...]."""
    row = block.rows[0]
    direct = _direct(x, geo, scratch.dtype, block.rows)
    planes, pieces = scratch.views(x.shape[0], x.shape[2], block, direct)
    if direct is None:
        height = block.rows[1] - row + geo.span
        _fill(planes.reshape(*planes.shape[:4], height, *geo.extent[1:]), x, geo, row)
    for phase, weights, piece in zip(geo.phases, packed, pieces):
        if piece is None:
            continue
        count = piece.grid.shape[3:]
        target = y[(ALL, ALL, ALL, *phase.positions(row, count))]
        for place, source in piece.stacks:
            place[...] = source
        acc = _in_place(target, piece, count, geo)
        np.matmul(weights[slice(*block.groups)], piece.columns, out=piece.acc if acc is None else acc)
        if acc is not None:
            if bias is not None:
                np.add(target, bias, out=target)
        elif bias is not None:
            np.add(piece.grid, bias, out=target, casting="unsafe")
        else:
            np.copyto(target, piece.grid, casting="unsafe")


def _in_place(target: Array, piece: _Piece, count: tuple[int, ...], geo: Geometry) -> Array | None:
    """The output as the product's target, where its positions are consecutive and need no other type."""
    if count[1:] != geo.extent[1:] or target.shape[2] != 1 or target.dtype != piece.acc.dtype:
        return None
    flat = merge(target, piece.acc.shape)
    return flat if flat is not None and flat.strides[-1] == flat.itemsize else None


def _direct(x: Array, geo: Geometry, dtype: np.dtype[Any], rows: tuple[int, int]) -> Array | None:
    """The input itself as the only plane, where it needs neither padding nor splitting nor another type."""
    if len(geo.planes) > 1 or any(s != 1 for s in geo.strides) or any(geo.before) or x.dtype != dtype:
        return None
    if x.shape[2] != 1 or x.shape[4:] != geo.extent[1:] or rows[1] + geo.span > x.shape[3]:
        return None
    part = x[:, :, :, rows[0] : rows[1] + geo.span]
    flat = merge(part, (1, *x.shape[:3], prod(part.shape[3:])))
    return flat if flat is not None and flat.strides[-1] == dtype.itemsize else None


def _fill(planes: Array, x: Array, geo: Geometry, row: int) -> None:
    """Copy `x` into the planes [plane, groups, in, samples, rows, ...], which begin at output row `row`."""
    sizes = planes.shape[4:]
    for plane, residue in zip(planes, geo.planes):
        pairs = [geo.fill(residue, axis, size, row if axis == 0 else 0) for axis, size in enumerate(sizes)]
        if any(place.stop - place.start != size for (place, _), size in zip(pairs, sizes)):
            plane[...] = 0
        place, source = ((ALL, ALL, ALL, *(pair[k] for pair in pairs)) for k in (0, 1))
        np.copyto(plane[place], x[source], casting="unsafe")
