"""Normalizations. Statistics and the arithmetic between input and output are float32 (float64 for float64 inputs).

All of them are y = (x - mean) · factor · scale + bias, over different axes: a LayerNormalization of (1, 3) has mean 2
and variance 1, hence gives (-1, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, floordiv, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops import tiles_rows
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, Op, Result, Shape, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.shapes import axes as axes_of
from atc_py.ops.shapes import axis as axis_of
from atc_py.ops.traits import Pattern

EPSILON = Attr("float", 1e-5)
STASH = Attr("int", 1)
_BY_BATCH = Flags(splittable=(0,), fp16_safe=True)

batch_norm = declare(
    "BatchNormalization",
    inputs="X scale B input_mean input_var",
    outputs="Y running_mean? running_var?",
    attrs={"epsilon": EPSILON, "momentum": Attr("float", 0.9), "training_mode": Attr("int", 0)},
    flags=Flags(
        fusible=True,
        recomputable=True,
        splittable=(0, 1),
        fp16_safe=True,
        wide_inputs=(1, 2, 3, 4),
        pattern=Pattern.SCALE,
    ),
)
instance_norm = declare(
    "InstanceNormalization",
    inputs="input scale B",
    outputs="output",
    attrs={"epsilon": EPSILON},
    flags=Flags(splittable=(0, 1), fp16_safe=True, pattern=Pattern.CHANNEL_NORM),
)
layer_norm = declare(
    "LayerNormalization",
    inputs="X Scale B?",
    outputs="Y Mean? InvStdDev?",
    attrs={"axis": Attr("int", -1), "epsilon": EPSILON, "stash_type": STASH},
    flags=Flags(fp16_safe=True, pattern=Pattern.ROW_NORM),
)
group_norm = declare(
    "GroupNormalization",
    inputs="X scale bias",
    outputs="Y",
    attrs={"epsilon": EPSILON, "num_groups": Attr("int", REQUIRED), "stash_type": STASH},
    flags=replace(_BY_BATCH, pattern=Pattern.NORM),
)
rms_norm = declare(
    "RMSNormalization",
    inputs="X scale",
    outputs="Y",
    attrs={"axis": Attr("int", -1), "epsilon": EPSILON, "stash_type": STASH},
    flags=Flags(fp16_safe=True, pattern=Pattern.ROW_NORM),
)
lrn = declare(
    "LRN",
    inputs="X",
    outputs="Y",
    attrs={
        "alpha": Attr("float", 1e-4),
        "beta": Attr("float", 0.75),
        "bias": Attr("float", 1.0),
        "size": Attr("int", REQUIRED),
    },
    flags=_BY_BATCH,
)
for _op in (batch_norm, instance_norm, lrn):
    _op.layout(feature_maps(0))
mean_variance_norm = declare(
    "MeanVarianceNormalization",
    inputs="X",
    outputs="Y",
    attrs={"axes": Attr("ints", (0, 2, 3))},
    flags=Flags(fp16_safe=True, pattern=Pattern.NORM),
)
lp_norm = declare(
    "LpNormalization",
    inputs="input",
    outputs="output",
    attrs={"axis": Attr("int", -1), "p": Attr("int", 2)},
    flags=Flags(keeps_zero=True, fp16_safe=True, pattern=Pattern.NORM),
)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _work(call: Call, shape: tuple[int, ...], dtype: np.dtype[Any], wide: np.dtype[Any]) -> tuple[Array, Array]:
    """(the output, an array of the wide type to compute in): the same array where the output is wide enough."""
    y = call.into(0, shape, dtype)
    return y, (y if y.dtype == wide else np.empty(shape, wide))


def _finish(y: Array, work: Array) -> Array:
    if work is not y:
        np.copyto(y, work, casting="unsafe")
    return y


def _standardize(
    call: Call, x: Array, work: Array, axes: tuple[int, ...], epsilon: float, *, center: bool = True
) -> tuple[Array, Array]:
    """work = x - mean over `axes` (x itself unless `center`); returns the mean and 1 / sqrt(variance + epsilon)."""
    count = max(1, int(np.prod([x.shape[a] for a in axes], dtype=np.int64)))
    mean = np.add.reduce(x, axis=axes, dtype=work.dtype, keepdims=True) / work.dtype.type(count) if center else None
    if mean is None:
        np.copyto(work, x, casting="unsafe")
    else:
        np.subtract(x, mean, out=work, casting="unsafe")
    square = np.square(work, out=call.scratch(work.shape, work.dtype))
    variance = np.add.reduce(square, axis=axes, keepdims=True) / work.dtype.type(count)
    inverse = 1 / np.sqrt(variance + work.dtype.type(epsilon))
    return (variance if mean is None else mean), inverse


def _by_channel(v: Array, rank: int, dtype: np.dtype[Any]) -> Array:
    """A vector of channels as [C, 1, 1, ...], to broadcast over [batch, C, spatial...]."""
    return v.astype(dtype, copy=False).reshape(-1, *(1,) * max(0, rank - 2))


def _check_channels(n: Infer, inputs: Sequence[int]) -> None:
    x = n.shape(0)
    if x is None:
        return
    if len(x) < 2:
        n.fail(f"X has rank {len(x)}; expected batch, channels and spatial axes")
    for i in inputs:
        v = n.shape(i)
        if v is not None and (len(v) != 1 or (type(v[0]) is int and type(x[1]) is int and v[0] != x[1])):
            n.fail(f"input {i} has shape {[str(d) for d in v]}; expected [{x[1]}], one entry a channel")


batch_norm.tile(tiles_rows.batch_norm)


@batch_norm.infer
def _(n: Infer) -> Result:
    _check_channels(n, (1, 2, 3, 4))
    if n.outputs > 1 and not n.attrs["training_mode"]:
        n.fail("running_mean and running_var are given only with training_mode=1")
    statistic = Tensor(n.dtype(3), n.shape(3)), Tensor(n.dtype(4), n.shape(4))
    return [Tensor(n.dtype(0), n.shape(0)), *statistic][: max(1, n.outputs)]


def _affine(scale: Array, bias: Array, mean: Array, var: Array, epsilon: float, rank: int) -> tuple[Array, Array]:
    """(a, b) with BatchNormalization(x) = a·x + b."""
    wide = _wide(np.result_type(scale.dtype, mean.dtype) if scale.dtype.kind == "f" else mean.dtype)
    factor = scale.astype(wide) / np.sqrt(var.astype(wide) + wide.type(epsilon))
    offset = bias.astype(wide) - mean.astype(wide) * factor
    return _by_channel(factor, rank, wide), _by_channel(offset, rank, wide)


@batch_norm.prepare
def _(call: Call) -> tuple[Array, Array] | None:
    x = call.in_types[0] if call.in_types else None
    if call.attrs["training_mode"] or not isinstance(x, Tensor) or x.shape is None:
        return None
    if any(i not in call.consts for i in (1, 2, 3, 4)):
        return None
    scale, bias, mean, var = (call.consts[i] for i in (1, 2, 3, 4))
    with np.errstate(all="ignore"):
        return _affine(scale, bias, mean, var, call.attrs["epsilon"], len(x.shape))


@batch_norm.kernel
def _(call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Any:
    epsilon = call.attrs["epsilon"]
    with np.errstate(all="ignore"):
        if call.attrs["training_mode"]:
            return _train(call, x, scale, bias, mean, var)
        factor, offset = call.state or _affine(scale, bias, mean, var, epsilon, x.ndim)
        wide = np.result_type(_wide(x.dtype), factor.dtype)
        y, work = _work(call, x.shape, x.dtype, wide)
        np.multiply(x, factor, out=work, casting="unsafe")
        np.add(work, offset, out=work)
        return _finish(y, work)


def _train(call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Any:
    wide, momentum = _wide(x.dtype), call.attrs["momentum"]
    y, work = _work(call, x.shape, x.dtype, wide)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    now = np.mean(x, axis=axes, dtype=wide, keepdims=True)
    spread = np.mean(np.square(x.astype(wide, copy=False) - now), axis=axes, keepdims=True)
    np.subtract(x, now, out=work, casting="unsafe")
    factor = _by_channel(scale, x.ndim, wide) / np.sqrt(spread + wide.type(call.attrs["epsilon"]))
    np.multiply(work, factor, out=work)
    np.add(work, _by_channel(bias, x.ndim, wide), out=work)
    running = [
        (old.astype(wide) * wide.type(momentum) + new.reshape(-1) * wide.type(1 - momentum)).astype(old.dtype)
        for old, new in ((mean, now), (var, spread))
    ]
    outputs = max(len(call.outs), len(call.out_types), 1)
    return (_finish(y, work), *running)[:outputs]


instance_norm.tile(tiles_rows.channels_second)


@instance_norm.infer
def _(n: Infer) -> Result:
    _check_channels(n, (1, 2))
    return n.types[0]


@instance_norm.kernel
def _(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    wide = _wide(x.dtype)
    y, work = _work(call, x.shape, x.dtype, wide)
    with np.errstate(all="ignore"):
        _, inverse = _standardize(call, x, work, tuple(range(2, x.ndim)), call.attrs["epsilon"])
        np.multiply(work, inverse * _by_channel(scale, x.ndim, wide), out=work)
        np.add(work, _by_channel(bias, x.ndim, wide), out=work)
        return _finish(y, work)


group_norm.tile(tiles_rows.group_norm)


@group_norm.infer
def _(n: Infer) -> Result:
    _check_channels(n, (1, 2))
    x, groups = n.shape(0), n.attrs["num_groups"]
    if groups < 1 or (x is not None and type(x[1]) is int and x[1] % groups):
        n.fail(f"num_groups is {groups}, which does not divide the {x[1] if x else '?'} channels")
    return n.types[0]


@group_norm.kernel
def _(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    wide, groups = _wide(x.dtype), call.attrs["num_groups"]
    y, work = _work(call, x.shape, x.dtype, wide)
    if not work.flags.c_contiguous:
        work = np.empty(x.shape, wide)
    split = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    with np.errstate(all="ignore"):
        grouped = work.reshape(split)
        _, inverse = _standardize(call, x.reshape(split), grouped, tuple(range(2, len(split))), call.attrs["epsilon"])
        by_group = _by_channel(scale, x.ndim, wide).reshape(groups, -1, *(1,) * (x.ndim - 2))
        np.multiply(grouped, inverse * by_group, out=grouped)
        np.add(work, _by_channel(bias, x.ndim, wide), out=work)
        return _finish(y, work)


_STASH = {1: DType.FLOAT32, 10: DType.FLOAT16, 11: DType.FLOAT64, 16: DType.BFLOAT16}


def _stash(n: Infer) -> DType:
    if n.attrs["stash_type"] not in _STASH:
        n.fail(f"stash_type is {n.attrs['stash_type']}; expected one of {sorted(_STASH)}")
    return _STASH[n.attrs["stash_type"]]


layer_norm.tile(tiles_rows.from_axis)


@layer_norm.infer
def _(n: Infer) -> Result:
    x, stash = n.shape(0), _stash(n)
    statistic = Tensor(stash, None)
    if x is not None:
        first = axis_of(n.attrs["axis"], len(x))
        statistic = Tensor(stash, (*x[:first], *(1,) * (len(x) - first)))
    return [Tensor(n.dtype(0), x), statistic, statistic][: max(1, n.outputs)]


@layer_norm.kernel
def _(call: Call, x: Array, scale: Array, bias: Array | None = None) -> Any:
    wide = _wide(x.dtype)
    y, work = _work(call, x.shape, x.dtype, wide)
    axes = tuple(range(call.attrs["axis"] % x.ndim, x.ndim))
    with np.errstate(all="ignore"):
        mean, inverse = _standardize(call, x, work, axes, call.attrs["epsilon"])
        np.multiply(work, inverse, out=work)
        np.multiply(work, scale, out=work, casting="unsafe")
        if bias is not None:
            np.add(work, bias, out=work, casting="unsafe")
        _finish(y, work)
        outputs = max(len(call.outs), len(call.out_types))
        if outputs <= 1:
            return y
        stash = _STASH[call.attrs["stash_type"]].numpy
        return (y, mean.astype(stash), inverse.astype(stash))[:outputs]


rms_norm.tile(tiles_rows.from_axis)


@rms_norm.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    _stash(n)
    if x is not None:
        axis_of(n.attrs["axis"], len(x))
    return Tensor(n.dtype(1), x)


@rms_norm.kernel
def _(call: Call, x: Array, scale: Array) -> Array:
    wide = _wide(x.dtype)
    y, work = _work(call, x.shape, scale.dtype, wide)
    axes = tuple(range(call.attrs["axis"] % x.ndim, x.ndim))
    with np.errstate(all="ignore"):
        _, inverse = _standardize(call, x, work, axes, call.attrs["epsilon"], center=False)
        np.multiply(work, inverse, out=work)
        np.multiply(work, scale, out=work, casting="unsafe")
        return _finish(y, work)


lrn.tile(tiles_rows.second_axis)


@lrn.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if x is not None and len(x) < 2:
        n.fail(f"X has rank {len(x)}; expected batch, channels and spatial axes")
    if n.attrs["size"] < 1:
        n.fail(f"size is {n.attrs['size']}; expected at least 1")
    return n.types[0]


def _power(base: Array, exponent: float) -> Array:
    """base ** exponent in place; multiples of a quarter go through square roots, which are much faster."""
    if exponent == 0.75:
        root = np.sqrt(base, out=base)
        return np.multiply(root, np.sqrt(root), out=root)
    return np.sqrt(base, out=base) if exponent == 0.5 else np.power(base, base.dtype.type(exponent), out=base)


@lrn.kernel
def _(call: Call, x: Array) -> Array:
    wide, attrs = _wide(x.dtype), call.attrs
    size, channels = attrs["size"], x.shape[1]
    y, work = _work(call, x.shape, x.dtype, wide)
    with np.errstate(all="ignore"):
        square = np.square(x, out=call.scratch(x.shape, wide), dtype=wide, casting="unsafe")
        total = square.copy()
        first, last = -((size - 1) // 2), size - 1 - (size - 1) // 2
        for shift in range(max(first, -channels), min(last, channels) + 1):
            low, high = max(0, -shift), min(channels, channels - shift)
            if shift and high > low:
                total[:, low:high] += square[:, low + shift : high + shift]
        np.multiply(total, wide.type(attrs["alpha"] / size), out=total)
        np.add(total, wide.type(attrs["bias"]), out=total)
        np.divide(x, _power(total, attrs["beta"]), out=work, casting="unsafe")
        return _finish(y, work)


mean_variance_norm.tile(tiles_rows.by_axes)


@mean_variance_norm.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if x is not None:
        axes_of(n.attrs["axes"], len(x))
    return n.types[0]


@mean_variance_norm.kernel
def _(call: Call, x: Array) -> Array:
    wide = _wide(x.dtype)
    y, work = _work(call, x.shape, x.dtype, wide)
    axes = tuple(a % x.ndim for a in call.attrs["axes"])
    with np.errstate(all="ignore"):
        count = wide.type(max(1, int(np.prod([x.shape[a] for a in axes], dtype=np.int64))))
        np.subtract(x, np.add.reduce(x, axis=axes, dtype=wide, keepdims=True) / count, out=work, casting="unsafe")
        square = np.square(work, out=call.scratch(x.shape, wide))
        deviation = np.sqrt(np.add.reduce(square, axis=axes, keepdims=True) / count)
        np.divide(work, deviation + wide.type(1e-9), out=work)
        return _finish(y, work)


lp_norm.tile(tiles_rows.by_axis)


@lp_norm.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if x is not None:
        axis_of(n.attrs["axis"], len(x))
    if n.attrs["p"] not in (1, 2):
        n.fail(f"p is {n.attrs['p']}; expected 1 or 2")
    return n.types[0]


@lp_norm.kernel
def _(call: Call, x: Array) -> Array:
    wide, axis = _wide(x.dtype), call.attrs["axis"]
    y, work = _work(call, x.shape, x.dtype, wide)
    with np.errstate(all="ignore"):
        magnitude = call.scratch(x.shape, wide)
        fold = np.abs if call.attrs["p"] == 1 else np.square
        fold(x, out=magnitude, dtype=wide, casting="unsafe")
        norm = np.add.reduce(magnitude, axis=axis, keepdims=True)
        if call.attrs["p"] == 2:
            norm = np.sqrt(norm)
        np.divide(x, np.where(norm == 0, 1, norm), out=work, casting="unsafe")
        return _finish(y, work)


LANES = 16
"""Channels that are stored, and so reduced, together."""


def _per_channel(n: Infer, x: Shape) -> Size:
    return prod(x[2:]) * LANES


def _from_axis(n: Infer, x: Shape) -> Size:
    return prod(x[axis_of(n.attrs["axis"], len(x)) :])


def _per_group(n: Infer, x: Shape) -> Size:
    return floordiv(prod(x[1:]), n.attrs["num_groups"])


def _over_axes(n: Infer, x: Shape) -> Size:
    return prod(x[a] for a in axes_of(n.attrs["axes"], len(x)))


def _cost(operations: int, row: Callable[[Infer, Shape], Size] | None) -> Any:
    """A cost of so many vector operations an element: in float32 where statistics are taken, over `row` elements."""

    def cost(n: Infer) -> Cost:
        x = n.shape(0)
        if not x:
            return Cost()
        work = prod(x) * operations
        return Cost(vector=work) if row is None else Cost(wide=work, row=row(n, x))

    return cost


_COSTS: tuple[tuple[Op, int, Callable[[Infer, Shape], Size] | None], ...] = (
    (batch_norm, 2, None), (instance_norm, 7, _per_channel), (layer_norm, 8, _from_axis), (group_norm, 8, _per_group),
    (rms_norm, 6, _from_axis), (lrn, 12, None), (mean_variance_norm, 6, _over_axes), (lp_norm, 5, _from_axis),
)  # fmt: skip
for _op, _operations, _row in _COSTS:
    _op.cost(_cost(_operations, _row))
