"""Pooling: MaxPool, AveragePool, LpPool, their global forms, and MaxUnpool.

A window that meets no element gives the type's lowest value for MaxPool and 0 for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from atc_py.ir.dims import dmin, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_cube
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, Op, Result, Shape, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.pool_impl import accumulator, counts, lowest, maximum_indices, reduce
from atc_py.ops.shapes import concrete
from atc_py.ops.traits import Pattern
from atc_py.ops.window import WINDOW_ATTRS, Window, ints, per_axis, positive, window

POOL_ATTRS = {**WINDOW_ATTRS, "kernel_shape": Attr("ints", REQUIRED), "ceil_mode": Attr("int", 0)}
_FLAGS = Flags(recomputable=True, splittable=(0, 1), fp16_safe=True, keeps_zero=True, pattern=Pattern.POOL)
_GLOBAL = replace(_FLAGS, pattern=Pattern.GLOBAL_POOL)

max_pool = declare(
    "MaxPool", inputs="X", outputs="Y Indices?", attrs={**POOL_ATTRS, "storage_order": Attr("int", 0)}, flags=_FLAGS
)
average_pool = declare(
    "AveragePool", inputs="X", outputs="Y", attrs={**POOL_ATTRS, "count_include_pad": Attr("int", 0)}, flags=_FLAGS
)
lp_pool = declare("LpPool", inputs="X", outputs="Y", attrs={**POOL_ATTRS, "p": Attr("int", 2)}, flags=_FLAGS)
global_max_pool = declare("GlobalMaxPool", inputs="X", outputs="Y", flags=_GLOBAL)
global_average_pool = declare("GlobalAveragePool", inputs="X", outputs="Y", flags=_GLOBAL)
global_lp_pool = declare("GlobalLpPool", inputs="X", outputs="Y", attrs={"p": Attr("int", 2)}, flags=_GLOBAL)
for _op in (max_pool, average_pool, lp_pool):
    _op.tile(tiles_cube.pooling)
for _op in (global_max_pool, global_average_pool, global_lp_pool):
    _op.tile(tiles_cube.pooling_global)
max_unpool = declare(
    "MaxUnpool",
    inputs="X I output_shape?",
    outputs="output",
    attrs={"kernel_shape": Attr("ints", REQUIRED), "pads": Attr("ints", None), "strides": Attr("ints", None)},
    flags=Flags(splittable=(0, 1), fp16_safe=True),
    host_inputs=(2,),
)
max_pool.layout(feature_maps(0, needs=True, outputs=1))  # indices count the elements of a plain map
average_pool.layout(feature_maps(0, needs=True))
lp_pool.layout(feature_maps(0, needs=True))
for _op in (global_max_pool, global_average_pool, global_lp_pool):
    _op.layout(feature_maps(0))


def _window(n: Infer) -> tuple[Shape, Window] | None:
    """The input's shape and the window; None when the rank is unknown."""
    x = n.shape(0)
    if x is None:
        return None
    if len(x) < 3:
        n.fail(f"X has rank {len(x)}; expected batch, channels and at least one spatial axis")
    return x, window(n.attrs, x[2:], n.attrs["kernel_shape"], ceil=bool(n.attrs["ceil_mode"]))


def _pooled(n: Infer) -> Tensor:
    found = _window(n)
    return Tensor(n.dtype(0), None if found is None else (*found[0][:2], *found[1].out))


def _pool_cost(n: Infer) -> Cost:
    found = _window(n)
    if found is None:
        return Cost()
    places = prod(found[0][:2]) * prod(found[1].out)
    return Cost(vector=2 * places * prod(found[1].kernel))  # each element of a window is gathered, and reduced


for _op in (average_pool, lp_pool):
    _op.infer(_pooled)
    _op.cost(_pool_cost)


@max_pool.cost
def _(n: Infer) -> Cost:
    """Of large windows the maximum is taken along one axis after the other, as GE's MaxPool3D does it.

    Along an axis each element is gathered, reduced and put back: that is as much as all at once for 3 by 3.
    """
    at_once, found = _pool_cost(n), _window(n)
    if found is None:
        return at_once
    places = prod(found[0][:2]) * prod(found[1].out)
    taps = sum(k for k in ints(found[1].kernel) if k > 1)
    return Cost(vector=dmin(at_once.vector, 3 * places * taps)) if taps else at_once


@max_pool.infer
def _(n: Infer) -> Result:
    y = _pooled(n)
    return [y, Tensor(DType.INT64, y.shape)][: max(1, n.outputs)]


def _bound(call: Call, x: Array) -> Window:
    """The window over the actual input."""
    attrs = call.attrs
    return window(attrs, x.shape[2:], attrs["kernel_shape"], ceil=bool(attrs["ceil_mode"]))


@max_pool.kernel
def _(call: Call, x: Array) -> Any:
    w = _bound(call, x)
    shape = (*x.shape[:2], *ints(w.out))
    with np.errstate(all="ignore"):
        if len(call.outs) > 1 or (len(call.out_types) > 1 and call.out_types[1] is not None):
            return maximum_indices(x, w, bool(call.attrs["storage_order"]))
        return reduce(x, w, np.maximum, lowest(x.dtype), x.dtype, call.into(0, shape, x.dtype))


def _delivered(call: Call, result: Array, dtype: np.dtype[Any]) -> Array:
    """The result in the output's view, rounded to its type."""
    y = call.into(0, result.shape, dtype)
    if y is not result:
        np.copyto(y, result, casting="unsafe")
    return y


def _sum_target(call: Call, x: Array) -> Array | None:
    """The output's view where sums can be taken in it directly."""
    y = call.out(0)
    return y if y is not None and y.dtype == accumulator(x.dtype) else None


@average_pool.kernel
def _(call: Call, x: Array) -> Array:
    w = _bound(call, x)
    dtype = accumulator(x.dtype)
    with np.errstate(all="ignore"):
        total = reduce(x, w, np.add, 0, dtype, _sum_target(call, x))
        size = np.maximum(counts(w, padded=bool(call.attrs["count_include_pad"])), 1)
        if size.size and np.all(size == size.flat[0]):
            size = size.reshape(-1)[0]
        np.divide(total, size.astype(dtype), out=total)
        return _delivered(call, total, x.dtype)


def _powers(x: Array, p: int, dtype: np.dtype[Any]) -> Array:
    """|x| ** p in the summing type."""
    wide: Array = x.astype(dtype, copy=False)
    if p == 1:
        wide = np.abs(wide)
    else:
        wide = np.square(wide) if p == 2 else np.power(np.abs(wide), p)
    return wide


def _root(total: Array, p: int) -> Array:
    if p == 1:
        return total
    return np.sqrt(total, out=total) if p == 2 else np.power(total, 1 / p, out=total)


def _check_order(n: Infer) -> None:
    if n.attrs["p"] < 1:
        n.fail(f"p is {n.attrs['p']}; expected at least 1")


@lp_pool.kernel
def _(call: Call, x: Array) -> Array:
    p, dtype = call.attrs["p"], accumulator(x.dtype)
    with np.errstate(all="ignore"):
        total = reduce(_powers(x, p, dtype), _bound(call, x), np.add, 0, dtype, _sum_target(call, x))
        return _delivered(call, _root(total, p), x.dtype)


def _global(n: Infer) -> Result:
    x = n.shape(0)
    if x is None:
        return Tensor(n.dtype(0), None)
    if len(x) < 2:
        n.fail(f"X has rank {len(x)}; expected batch, channels and spatial axes")
    if "p" in n.attrs:
        _check_order(n)
    return Tensor(n.dtype(0), (*x[:2], *(1,) * (len(x) - 2)))


def _global_cost(n: Infer) -> Cost:
    x = n.shape(0)
    return Cost() if x is None else Cost(wide=prod(x))  # sums are float32


def _flat(x: Array) -> Array:
    return x.reshape(*x.shape[:2], int(np.prod(x.shape[2:], dtype=np.int64)))


def _global_kernel(fold: Callable[[Call, Array], Array]) -> Callable[[Call, Array], Array]:
    def kernel(call: Call, x: Array) -> Array:
        with np.errstate(all="ignore"):
            result = fold(call, _flat(x))
        return _delivered(call, result.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype)

    return kernel


def _fold_max(call: Call, x: Array) -> Array:
    result: Array = np.max(x, axis=2, initial=lowest(x.dtype))
    return result


def _fold_mean(call: Call, x: Array) -> Array:
    dtype = accumulator(x.dtype)
    mean: Array = np.add.reduce(x, axis=2, dtype=dtype) / dtype.type(x.shape[2])
    return mean


def _fold_lp(call: Call, x: Array) -> Array:
    p = call.attrs["p"]
    return _root(np.add.reduce(_powers(x, p, accumulator(x.dtype)), axis=2), p)


def _declare_global(op: Op, fold: Callable[[Call, Array], Array]) -> None:
    op.infer(_global)
    op.cost(_global_cost)
    op.kernel(_global_kernel(fold))


_declare_global(global_max_pool, _fold_max)
_declare_global(global_average_pool, _fold_mean)
_declare_global(global_lp_pool, _fold_lp)


def _unpooled(attrs: Any, spatial: Shape) -> Shape:
    """The spatial size of the pooling's input: (size - 1) * stride - pads + kernel."""
    kernel = attrs["kernel_shape"]
    strides = positive(attrs, "strides", len(spatial))
    pads = per_axis(attrs, "pads", 2 * len(spatial), 0)
    both = zip(spatial, strides, kernel, pads[: len(spatial)], pads[len(spatial) :])
    return tuple((x - 1) * s - b - a + k for x, s, k, b, a in both)


@max_unpool.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if n.has(2):
        sizes = concrete(n, 2)
        if sizes is not None:
            return Tensor(n.dtype(0), tuple(sizes))
        symbolic = n.ints(2)
        if symbolic is not None:
            return Tensor(n.dtype(0), tuple(symbolic))
        if x is not None:
            return Tensor(n.dtype(0), (*x[:2], *(n.fresh(f"MaxUnpool output_shape{i}") for i in range(len(x) - 2))))
    if x is None:
        return Tensor(n.dtype(0), None)
    if len(n.attrs["kernel_shape"]) != len(x) - 2:
        n.fail(f"kernel_shape has {len(n.attrs['kernel_shape'])} entries; the input has {len(x) - 2} spatial axes")
    return Tensor(n.dtype(0), (*x[:2], *_unpooled(n.attrs, x[2:])))


@max_unpool.kernel
def _(call: Call, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    inferred = (*x.shape[:2], *ints(_unpooled(call.attrs, x.shape[2:])))
    shape = inferred if output_shape is None else tuple(int(d) for d in output_shape)
    y = call.into(0, shape, x.dtype)
    dense = np.zeros(inferred, x.dtype)
    dense.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    if shape == inferred:
        y[...] = dense
    else:
        # Indices count over the smaller size; what the given shape adds lies behind it on each axis.
        y[...] = 0
        common = tuple(slice(0, min(a, b)) for a, b in zip(shape, inferred))
        y[common] = dense[common]
    return y
