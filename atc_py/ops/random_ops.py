"""Random operators. They draw from the counter-based generator of `Call.random`.

The same seed, operator and run give the same numbers, whatever was fused, reordered or run in parallel:

    RandomNormal(shape=[2, 3], mean=0, scale=1)   ->  [2, 3]
    Multinomial(logits: [N, classes], 5)          ->  [N, 5], class numbers
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Flags, Infer, InferError, Op, Result, declare
from atc_py.ops.shapes import show

DRAWS = Flags(random=True, deterministic=True)
LIKE_DRAWS = Flags(random=True, deterministic=True, type_only=True)
SEED = {"seed": Attr("float", None)}
NORMAL = {"mean": Attr("float", 0.0), "scale": Attr("float", 1.0), **SEED}
UNIFORM = {"low": Attr("float", 0.0), "high": Attr("float", 1.0), **SEED}
MAKE = {"shape": Attr("ints"), "dtype": Attr("dtype", DType.FLOAT32)}
LIKE = {"dtype": Attr("dtype", None)}


def _random(name: str, attrs: dict[str, Attr], inputs: str = "input", flags: Flags = DRAWS) -> Op:
    return declare(name, inputs=inputs, outputs="output", attrs=attrs, flags=flags, engine=Engine.AICPU)


random_normal = _random("RandomNormal", {**MAKE, **NORMAL}, "")
random_uniform = _random("RandomUniform", {**MAKE, **UNIFORM}, "")
random_normal_like = _random("RandomNormalLike", {**LIKE, **NORMAL}, flags=LIKE_DRAWS)
random_uniform_like = _random("RandomUniformLike", {**LIKE, **UNIFORM}, flags=LIKE_DRAWS)
bernoulli = _random("Bernoulli", {**LIKE, **SEED})


def _infer_made(n: Infer) -> Result:
    shape = tuple(int(d) for d in n.attrs["shape"])
    if any(d < 0 for d in shape):
        raise InferError(f"shape {show(shape)} has a negative dim")
    return Tensor(n.attrs["dtype"] or DType.FLOAT32, shape)


def _infer_like(n: Infer) -> Result:
    return Tensor(n.attrs["dtype"] or n.dtype(0), n.shape(0))


def _normal(call: Call, shape: tuple[int, ...], dtype: Any) -> Array:
    draws = call.random().standard_normal(shape, np.float64)
    out: Array = (draws * call.attrs["scale"] + call.attrs["mean"]).astype(dtype)
    return out


def _uniform(call: Call, shape: tuple[int, ...], dtype: Any) -> Array:
    draws = call.random().random(shape, np.float64)
    low, high = call.attrs["low"], call.attrs["high"]
    out: Array = (draws * (high - low) + low).astype(dtype)
    if high > low:  # the interval is half-open, and rounding to a narrow type must not reach its end
        end = np.asarray(high, dtype)
        np.copyto(out, np.nextafter(end, np.asarray(low, dtype)), where=out >= end)
    return out


def _dtype(call: Call, x: Array | None = None) -> Any:
    given: DType | None = call.attrs["dtype"]
    if given is not None:
        return given.numpy
    return np.float32 if x is None else x.dtype


for _op in (random_normal, random_uniform):
    _op.infer(_infer_made)
for _op in (random_normal_like, random_uniform_like, bernoulli):
    _op.infer(_infer_like)


@random_normal.kernel
def _(call: Call) -> Array:
    return _normal(call, tuple(call.attrs["shape"]), _dtype(call))


@random_uniform.kernel
def _(call: Call) -> Array:
    return _uniform(call, tuple(call.attrs["shape"]), _dtype(call))


@random_normal_like.kernel
def _(call: Call, x: Array) -> Array:
    return _normal(call, x.shape, _dtype(call, x))


@random_uniform_like.kernel
def _(call: Call, x: Array) -> Array:
    return _uniform(call, x.shape, _dtype(call, x))


@bernoulli.kernel
def _(call: Call, x: Array) -> Array:
    drawn = call.random().random(x.shape, np.float64) < x.astype(np.float64)
    return drawn.astype(_dtype(call, x))


multinomial = declare(
    "Multinomial",
    inputs="input",
    outputs="output",
    attrs={"dtype": Attr("dtype", DType.INT32), "sample_size": Attr("int", 1), **SEED},
    flags=DRAWS,
    engine=Engine.AICPU,
)


@multinomial.infer
def _(n: Infer) -> Result:
    shape = n.shape(0)
    if shape is not None and len(shape) != 2:
        raise InferError(f"Multinomial takes [batch, classes], but the input has shape {show(shape)}")
    batch = n.fresh("batch") if shape is None else shape[0]
    return Tensor(n.attrs["dtype"] or DType.INT32, (batch, n.attrs["sample_size"]))


@multinomial.kernel
def _(call: Call, x: Array) -> Array:
    """Inverse transform sampling of exp(x), normalised: the input holds unnormalised log-probabilities."""
    batch, count = x.shape[0], call.attrs["sample_size"]
    draws = call.random().random((batch, count), np.float64)
    if not x.shape[1]:
        raise InferError("Multinomial: there are no classes to draw from")
    logits = x.astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    ends = np.cumsum(weights, axis=1)
    drawn = [np.searchsorted(row, at * row[-1], side="right") for row, at in zip(ends, draws)]
    out: Array = np.array(drawn, dtype=np.int64).reshape(batch, count)
    dtype: DType = call.attrs["dtype"] or DType.INT32
    out = np.minimum(out, x.shape[1] - 1)
    return out.astype(dtype.numpy)
