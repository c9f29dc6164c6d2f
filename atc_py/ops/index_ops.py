"""Operators that pick by indices: Gather, GatherElements, GatherND, Compress.

    Gather(data: [N, 8], indices: [2, 3], axis=1)                 ->  [N, 2, 3]
    GatherND(data: [N, 4, 5], indices: [N, 7, 1], batch_dims=1)   ->  [N, 7, 5]

An index counts from the end where it is negative; one outside the axis is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, prod
from atc_py.ops import tiles_moves
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, declare
from atc_py.ops.move_costs import picked
from atc_py.ops.shape_values import boxed, known, plain, tidy
from atc_py.ops.shapes import axis, show
from atc_py.ops.traits import Pattern

PICK = Flags(recomputable=True, fp16_safe=True, moves=True)


def checked(indices: Array, d: int, op: str) -> Array:
    """The indices, counted from the front; raises `InferError` where one is outside an axis of size `d`."""
    if indices.dtype.kind == "u":
        indices = indices.astype(np.int64)
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if low < -d or high >= d:
            bad = low if low < -d else high
            raise InferError(f"{op}: index {bad} is outside [{-d}, {d - 1}]")
        if low < 0:
            return np.where(indices < 0, indices + d, indices)
    return indices


gather = declare(
    "Gather",
    inputs="data indices",
    outputs="output",
    attrs={"axis": Attr("int", 0)},
    flags=replace(PICK, pattern=Pattern.LOOKUP),
)


gather.tile(tiles_moves.gathered)


@gather.infer
def _(n: Infer) -> Result:
    data, indices = n.tensor(0), n.shape(1)
    if data.shape is None or indices is None:
        return data.with_shape(None)
    if not data.shape:
        raise InferError("Gather takes data of rank 1 and more, but it is a scalar")
    at = axis(n.attrs["axis"], len(data.shape))
    return data.with_shape((*data.shape[:at], *indices, *data.shape[at + 1 :]))


def _gathered(x: Array, indices: Array, at: int, out: Array | None = None) -> Any:
    indices = checked(indices, x.shape[at], "Gather")
    if x.flags.c_contiguous and x.dtype != object:
        return np.take(x, indices, axis=at, out=out, mode="wrap")  # checked: "raise" would buffer the output
    return x[(slice(None),) * at + (indices,)]


@gather.cost
def _(n: Infer) -> Cost:
    data, indices = n.shape(0), n.shape(1)
    if not data or indices is None:
        return Cost()
    at = axis(n.attrs["axis"], len(data))
    return picked(prod(data[:at]) * prod(indices), prod(data[at + 1 :]))


@gather.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    if not values or plain(values[1].reshape(-1).tolist()) is None or not values[0].ndim:
        return None
    indices = values[1].astype(np.int64)
    return tidy(boxed(_gathered(values[0], indices, axis(n.attrs["axis"], values[0].ndim))))


@gather.kernel
def _(call: Call, x: Array, indices: Array) -> Array:
    return boxed(_gathered(x, indices, axis(call.attrs["axis"], x.ndim), call.out(0)))


gather_elements = declare(
    "GatherElements",
    inputs="data indices",
    outputs="output",
    attrs={"axis": Attr("int", 0)},
    flags=PICK,
)


def _same_rank(n: Infer) -> None:
    data, indices = n.shape(0), n.shape(1)
    if data is not None and indices is not None and len(data) != len(indices):
        raise InferError(f"data {show(data)} and indices {show(indices)} must have the same rank")


@gather_elements.infer
def _(n: Infer) -> Result:
    _same_rank(n)
    return n.tensor(0).with_shape(n.shape(1))


def _gathered_elements(x: Array, indices: Array, at: int) -> Array:
    # Along the other axes the indices may cover less than the data.
    x = x[tuple(slice(None) if i == at else slice(d) for i, d in enumerate(indices.shape))]
    out: Array = np.take_along_axis(x, checked(indices, x.shape[at], "GatherElements"), axis=at)
    return out


@gather_elements.cost
def _(n: Infer) -> Cost:
    indices = n.shape(1)
    return Cost() if indices is None else picked(prod(indices), 1)


@gather_elements.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    if not values or values[1].dtype == object:
        return None
    return tidy(_gathered_elements(values[0], values[1], axis(n.attrs["axis"], values[0].ndim)))


@gather_elements.kernel
def _(call: Call, x: Array, indices: Array) -> Array:
    return _gathered_elements(x, indices, axis(call.attrs["axis"], x.ndim))


gather_nd = declare(
    "GatherND",
    inputs="data indices",
    outputs="output",
    attrs={"batch_dims": Attr("int", 0)},
    flags=PICK,
)


@gather_nd.infer
def _(n: Infer) -> Result:
    data, indices, b = n.tensor(0), n.shape(1), n.attrs["batch_dims"]
    if data.shape is None or indices is None:
        return data.with_shape(None)
    if not indices or b >= min(len(indices), len(data.shape)):
        raise InferError(f"indices {show(indices)} do not fit data {show(data.shape)} with {b} batch dims")
    depth = indices[-1]
    if type(depth) is not int:
        return data.with_shape(None)
    if not 1 <= depth <= len(data.shape) - b:
        raise InferError(f"index tuples of {depth} do not fit data {show(data.shape)} with {b} batch dims")
    return data.with_shape((*indices[:-1], *data.shape[b + depth :]))


def index_tuple(shape: Sequence[int], indices: Array, batch_dims: int, op: str) -> tuple[Array, ...]:
    """Numpy's index arrays for ONNX's index tuples [..., depth]: the batch dims' places, then the tuples'."""
    lead = indices.shape[:-1]
    batch = [np.arange(shape[i]).reshape((1,) * i + (-1,) + (1,) * (len(lead) - i - 1)) for i in range(batch_dims)]
    depth = indices.shape[-1]
    return (*batch, *(checked(indices[..., i], shape[batch_dims + i], op) for i in range(depth)))


@gather_nd.cost
def _(n: Infer) -> Cost:
    data, indices = n.shape(0), n.shape(1)
    if data is None or not indices or type(indices[-1]) is not int:
        return Cost()
    return picked(prod(indices[:-1]), prod(data[n.attrs["batch_dims"] + indices[-1] :]))


@gather_nd.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    if not values or values[1].dtype == object:
        return None
    return tidy(boxed(values[0][index_tuple(values[0].shape, values[1], n.attrs["batch_dims"], "GatherND")]))


@gather_nd.kernel
def _(call: Call, x: Array, indices: Array) -> Array:
    return boxed(x[index_tuple(x.shape, indices, call.attrs["batch_dims"], "GatherND")])


compress = declare(
    "Compress",
    inputs="input condition",
    outputs="output",
    attrs={"axis": Attr("int", None)},
    engine=Engine.AICPU,
)


@compress.infer
def _(n: Infer) -> Result:
    data, condition = n.tensor(0), n.value(1)
    count: Size = n.fresh("count") if condition is None else int(np.count_nonzero(condition))
    if n.attrs["axis"] is None:
        return data.with_shape((count,))
    if data.shape is None:
        return data
    at = axis(n.attrs["axis"], len(data.shape))
    return data.with_shape((*data.shape[:at], count, *data.shape[at + 1 :]))


def _compressed(x: Array, condition: Array, at: int | None) -> Array:
    """The places along the axis (all elements, without one) where the condition holds; it may be shorter."""
    if at is None:
        x, at = x.reshape(-1), 0
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[at]:
        raise InferError(f"Compress: condition selects {places[-1]}, but the axis has {x.shape[at]} elements")
    return x[(slice(None),) * at + (places,)]


@compress.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1)
    if not values or values[1].dtype == object:
        return None
    at = n.attrs["axis"]
    return tidy(_compressed(values[0], values[1], None if at is None else axis(at, values[0].ndim)))


@compress.kernel
def _(call: Call, x: Array, condition: Array) -> Array:
    at = call.attrs["axis"]
    return _compressed(x, condition, None if at is None else axis(at, x.ndim))
