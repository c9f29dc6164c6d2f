"""Operators that write by indices into a copy: ScatterElements, ScatterND, TensorScatter.

data [1, 2, 3], indices [0, 0, 2], updates [10, 20, 30]    none  ->  [20, 2, 30]     (the last one wins)
                                                           add   ->  [31, 2, 33]
                                                           max   ->  [20, 2, 30]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, declare, elements
from atc_py.ops.index_ops import checked, index_tuple
from atc_py.ops.shape_values import known, same_memory, tidy
from atc_py.ops.shapes import axis, show

WRITE = Flags(inplace=(0,), fp16_safe=True)
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduction(n: Infer) -> None:
    if n.attrs["reduction"] not in ("none", *REDUCTIONS):
        raise InferError(f"reduction is '{n.attrs['reduction']}', expected none, {', '.join(REDUCTIONS)}")


def _written(x: Array, at: tuple[Any, ...], updates: Array, reduction: str, out: Array | None) -> Array:
    """A copy of `x` (in `out`) with the updates written at the given index arrays, one after the other."""
    out = np.empty(x.shape, x.dtype) if out is None else out
    if not same_memory(out, x):
        np.copyto(out, x)
    if reduction == "none":
        out[at] = updates
        return out
    wide: Any = None
    if x.dtype.itemsize < 4 and x.dtype.kind not in "iub":
        wide = np.float32  # 16-bit floats are summed in float32
    with np.errstate(all="ignore"):
        total = out if wide is None else out.astype(wide)
        REDUCTIONS[reduction].at(total, at, updates if wide is None else updates.astype(wide))
        if total is not out:
            out[...] = total.astype(out.dtype)
    return out


scatter_elements = declare(
    "ScatterElements",
    inputs="data indices updates",
    outputs="output",
    attrs={"axis": Attr("int", 0), "reduction": Attr("str", "none")},
    flags=WRITE,
)


@scatter_elements.infer
def _(n: Infer) -> Result:
    _reduction(n)
    shapes = [n.shape(i) for i in range(3)]
    ranks = [len(s) for s in shapes if s is not None]
    if ranks and len(set(ranks)) > 1:
        raise InferError(f"data, indices and updates must have the same rank: {', '.join(map(show, shapes))}")
    if ranks:
        axis(n.attrs["axis"], ranks[0])
    return n.tensor(0)


def _element_places(x: Array, indices: Array, at: int) -> tuple[Array, ...]:
    grid: list[Array] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
    grid[at] = checked(indices, x.shape[at], "ScatterElements")
    return tuple(grid)


@scatter_elements.cost
def _(n: Infer) -> Cost:
    return Cost(vector=elements(n.types[1]), run=1)


@scatter_elements.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1, 2)
    if not values or values[1].dtype == object or n.attrs["reduction"] != "none":
        return None
    x = values[0].astype(values[2].dtype) if values[2].dtype == object else values[0]
    at = axis(n.attrs["axis"], x.ndim)
    return tidy(_written(x, _element_places(x, values[1], at), values[2], "none", None))


@scatter_elements.kernel
def _(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    at = axis(call.attrs["axis"], x.ndim)
    return _written(x, _element_places(x, indices, at), updates, call.attrs["reduction"], call.out(0))


scatter_nd = declare(
    "ScatterND",
    inputs="data indices updates",
    outputs="output",
    attrs={"reduction": Attr("str", "none")},
    flags=WRITE,
)


@scatter_nd.infer
def _(n: Infer) -> Result:
    _reduction(n)
    data, indices, updates = n.shape(0), n.shape(1), n.shape(2)
    if data is not None and indices is not None and indices and type(indices[-1]) is int:
        depth = indices[-1]
        if depth > len(data):
            raise InferError(f"index tuples of {depth} do not fit data {show(data)}")
        if updates is not None and len(updates) != len(indices) - 1 + len(data) - depth:
            raise InferError(f"updates {show(updates)} do not fit data {show(data)} and indices {show(indices)}")
    return n.tensor(0)


@scatter_nd.cost
def _(n: Infer) -> Cost:
    data, indices = n.shape(0), n.shape(1)
    if data is None or not indices or type(indices[-1]) is not int:
        return Cost()
    return Cost(vector=elements(n.types[2]), run=prod(data[indices[-1] :]))


@scatter_nd.value
def _(n: Infer) -> Array | None:
    values = known(n, 0, 1, 2)
    if not values or values[1].dtype == object or n.attrs["reduction"] != "none":
        return None
    x = values[0].astype(values[2].dtype) if values[2].dtype == object else values[0]
    return tidy(_written(x, index_tuple(x.shape, values[1], 0, "ScatterND"), values[2], "none", None))


@scatter_nd.kernel
def _(call: Call, x: Array, indices: Array, updates: Array) -> Array:
    at = index_tuple(x.shape, indices, 0, "ScatterND")
    return _written(x, at, updates, call.attrs["reduction"], call.out(0))


tensor_scatter = declare(
    "TensorScatter",
    inputs="past_cache update write_indices?",
    outputs="present_cache",
    attrs={"mode": Attr("str", "linear"), "axis": Attr("int", -2)},
    flags=WRITE,
)


@tensor_scatter.infer
def _(n: Infer) -> Result:
    cache = n.shape(0)
    if n.attrs["mode"] not in ("linear", "circular"):
        raise InferError(f"mode is '{n.attrs['mode']}', expected linear or circular")
    if cache is not None and axis(n.attrs["axis"], len(cache)) == 0:
        raise InferError("the sequence axis of TensorScatter cannot be the batch axis")
    return n.tensor(0)


@tensor_scatter.kernel
def _(call: Call, cache: Array, update: Array, first: Array | None = None) -> Array:
    at = axis(call.attrs["axis"], cache.ndim)
    batch, longest = cache.shape[0], cache.shape[at]
    start = np.zeros(batch, np.int64) if first is None else first.reshape(-1).astype(np.int64)
    places = start[:, None] + np.arange(update.shape[at])
    if call.attrs["mode"] == "circular":
        places = places % max(longest, 1)
    elif places.size and (places.min() < 0 or places.max() >= longest):
        raise InferError(f"TensorScatter: place {places.max()} is outside the cache's {longest}")
    out = call.into(0, cache.shape, cache.dtype)
    if not same_memory(out, cache):
        np.copyto(out, cache)
    # [batch, sequence, ...]: views, so that writing here writes the output.
    np.moveaxis(out, at, 1)[np.arange(batch)[:, None], places] = np.moveaxis(update, at, 1)
    return out
