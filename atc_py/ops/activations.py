"""Activation functions.

Each is a short formula over a block (see `elementwise_base.blockwise`); one line of `_TABLE` is one operator. Worked
example, Sigmoid of x = [-1000, 0, 1000]:

    neg -> [1000, 0, -1000]   exp -> [inf, 1, 0]   + 1 -> [inf, 2, 1]   reciprocal -> [0, 0.5, 1]

Overflow to infinity is meant: the quotient then is the right limit. NaN in gives NaN out, except where the operator's
definition is a choice that NaN does not meet (ThresholdedRelu, Shrink: 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops import elementwise_values as values
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Op, Result, declare
from atc_py.ops.elementwise_base import (
    FLOAT8,
    FLOATS,
    NUMBERS,
    SIGNED,
    TABLE_FROM,
    UNARY,
    Body,
    apply,
    bits,
    blockwise,
    check_dtype,
    check_fits,
    check_same_dtype,
    fitting,
    half_table,
    is_half,
    keep_where,
    looked_up,
    same_type,
    vector_cost,
)
from atc_py.ops.elementwise_erf import bent, erf64

Attrs = Mapping[str, Any]
Temps = Sequence[Array]


FEW = 1024
"""Elements up to which a masked copy, which branches at each element, is faster than several passes."""


def _below_zero(x: Array, y: Array, below: Array) -> None:
    """y = `below` where x < 0, x elsewhere: -0 and NaN are not below 0."""
    mask = np.less(x, 0)
    np.copyto(y, x)
    np.copyto(y, below, where=mask)


def _leaky_relu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    alpha = a["alpha"]
    np.multiply(x, alpha, out=t[0])
    if 0 < alpha <= 1:
        np.maximum(x, t[0], out=y)
    else:
        _below_zero(x, y, t[0])


def _exponential_part(x: Array, y: Array, t: Array, alpha: float, scale: float = 1.0) -> None:
    """y = max(x, 0) + alpha * (exp(min(x, 0) / scale) - 1)."""
    np.minimum(x, 0, out=t)
    if scale != 1:
        np.divide(t, scale, out=t)
    np.expm1(t, out=t)
    if alpha != 1:
        np.multiply(t, alpha, out=t)
    np.maximum(x, 0, out=y)
    np.add(y, t, out=y)


def _elu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    _signed(x, y, t, a["alpha"], 1.0)


def _selu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    _exponential_part(x, y, t[0], a["alpha"])
    np.multiply(y, a["gamma"], out=y)


def _celu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    _signed(x, y, t, a["alpha"], a["alpha"])


def _signed(x: Array, y: Array, t: Temps, alpha: float, scale: float) -> None:
    """The exponential part, and -0 for -0, which is not below zero and so its own result."""
    _exponential_part(x, t[1], t[0], alpha, scale)
    if alpha >= 0:
        np.copysign(t[1], x, out=y)
    else:
        np.copyto(t[1], x, where=np.equal(x, 0))
        np.copyto(y, t[1])


def _thresholded_relu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    keep_where(np.greater(x, a["alpha"]), x, y, t[0])


def _hard_sigmoid(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.multiply(x, a["alpha"], out=y)
    np.add(y, a["beta"], out=y)
    np.clip(y, 0, 1, out=y)


def _hard_swish(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.multiply(x, 1 / 6, out=t[0])
    np.add(t[0], 0.5, out=t[0])
    np.clip(t[0], 0, 1, out=t[0])
    np.multiply(x, t[0], out=y)


def _sigmoid(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.negative(x, out=y)
    np.exp(y, out=y)
    np.add(y, 1, out=y)
    np.reciprocal(y, out=y)


def _softplus(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    # log(1 + exp x) = max(x, 0) + log(1 + exp -|x|), which cannot overflow.
    np.absolute(x, out=t[0])
    np.negative(t[0], out=t[0])
    np.exp(t[0], out=t[0])
    np.log1p(t[0], out=t[0])
    np.maximum(x, 0, out=y)
    np.add(y, t[0], out=y)


def _softsign(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.absolute(x, out=t[0])
    np.add(t[0], 1, out=t[0])
    np.divide(x, t[0], out=y)


def _mish(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    # tanh(log(1 + e)) = n / (n + 2) with e = exp x, n = e (e + 2); from x = 20 on it is 1 in float64 too.
    n, s = t
    np.minimum(x, 20, out=n)
    np.exp(n, out=n)
    np.add(n, 2, out=s)
    np.multiply(n, s, out=n)
    np.add(n, 2, out=s)
    np.divide(n, s, out=n)
    np.multiply(x, n, out=y)


def _times_sigmoid(x: Array, y: Array, u: Array, factor: float) -> None:
    """y = x / (1 + exp(factor * u)); u is overwritten."""
    np.multiply(u, factor, out=u)
    np.exp(u, out=u)
    np.add(u, 1, out=u)
    np.divide(x, u, out=y)


def _swish(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.multiply(x, -a["alpha"], out=t[0])
    _times_sigmoid(x, y, t[0], 1)


def _gelu_tanh(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    # (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    np.multiply(x, x, out=t[0])
    np.multiply(t[0], 0.044715, out=t[0])
    np.add(t[0], 1, out=t[0])
    np.multiply(t[0], x, out=t[0])
    _times_sigmoid(x, y, t[0], -2 * math.sqrt(2 / math.pi))


def _gelu_erf(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    np.multiply(x, math.sqrt(0.5), out=t[0])
    if x.dtype == np.float64:
        erf64(t[0], t[0])
        np.add(t[0], 1, out=t[0])
        np.multiply(t[0], 0.5, out=t[0])
        np.multiply(x, t[0], out=y)
        return
    bent(t[0], t[1], t[2], t[3])
    _times_sigmoid(x, y, t[1], -2)


def _gelu(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    (_gelu_tanh if a["approximate"] == "tanh" else _gelu_erf)(x, y, t, a)


def _shrink(x: Array, y: Array, t: Temps, a: Attrs) -> None:
    lambd, bias = a["lambd"], a["bias"]
    low = np.less(x, -lambd)
    high = np.greater(x, lambd)
    np.add(x, bias, out=t[0])
    np.subtract(x, bias, out=t[2])
    if lambd < 0:  # both may hold; the lower one is asked first
        np.logical_and(high, ~low, out=high)
    keep_where(low, t[0], t[0], t[1])
    keep_where(high, t[2], y, t[1])
    np.bitwise_or(bits(y), bits(t[0]), out=bits(y))


def _shrink_few(x: Array, a: Attrs) -> Array:
    lambd, bias = a["lambd"], a["bias"]
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


@dataclass(frozen=True)
class Activation:
    """One line of the table: the formula, the temporaries that it needs, vector operations an element.

    `few`: the formula as one expression, which up to `FEW` elements is the faster one.
    """

    name: str
    body: Body
    temps: int
    cost: int
    attrs: dict[str, Attr] = field(default_factory=dict)
    zero: bool = False
    fp16: bool = True
    dtypes: frozenset[DType] = FLOATS
    few: Callable[[Array, Attrs], Array] | None = None


def _f(value: float) -> Attr:
    return Attr("float", value)


_TABLE = (
    Activation("LeakyRelu", _leaky_relu, 1, 2, {"alpha": _f(0.01)}, zero=True),
    Activation("Elu", _elu, 2, 7, {"alpha": _f(1.0)}, zero=True),
    Activation("Selu", _selu, 1, 8, {"alpha": _f(1.67326319217681884765625),
                                     "gamma": _f(1.05070102214813232421875)}, zero=True),
    Activation("Celu", _celu, 2, 8, {"alpha": _f(1.0)}, zero=True),
    Activation("ThresholdedRelu", _thresholded_relu, 1, 2, {"alpha": _f(1.0)}, zero=True),
    Activation("HardSigmoid", _hard_sigmoid, 0, 4, {"alpha": _f(0.2), "beta": _f(0.5)}),
    Activation("HardSwish", _hard_swish, 1, 5, zero=True),
    Activation("Sigmoid", _sigmoid, 0, 10),
    Activation("Softplus", _softplus, 1, 12),
    Activation("Softsign", _softsign, 1, 4, zero=True),
    Activation("Mish", _mish, 2, 16, zero=True),
    Activation("Swish", _swish, 1, 11, {"alpha": _f(1.0)}, zero=True),
    Activation("Gelu", _gelu, 4, 27, {"approximate": Attr("str", "none")}, zero=True),
    Activation("Shrink", _shrink, 3, 6, {"bias": _f(0.0), "lambd": _f(0.5)}, dtypes=NUMBERS, few=_shrink_few),
)  # fmt: skip


def _declare(line: Activation) -> Op:
    op = declare(
        line.name,
        inputs="X",
        outputs="Y",
        attrs=line.attrs,
        flags=replace(UNARY, keeps_zero=line.zero, fp16_safe=line.fp16),
    )
    op.infer(same_type(line.dtypes))
    op.cost(vector_cost(line.cost))
    body, temps, names, few = line.body, line.temps, tuple(line.attrs), line.few

    def direct(x: Array, *key: Any) -> Array:
        return blockwise(Call(dict(zip(names, key))), body, x, temps)

    @op.kernel
    def kernel(call: Call, x: Array) -> Array:
        if few is not None and x.size <= FEW and x.dtype.char in "fd":
            y = fitting(call, 0, x.shape, x.dtype)
            np.copyto(y, few(x, call.attrs))
            return y
        if x.size >= TABLE_FROM and is_half(x.dtype):
            key = tuple(call.attrs[a] for a in names)
            return looked_up(call, half_table(direct, x.dtype, key), x)
        # Integers (Shrink) are computed in float64, whose conversion back truncates as the definition's does.
        return blockwise(call, body, x, temps, compute=np.float64 if x.dtype.kind in "iu" else None)

    return op


for _line in _TABLE:
    _declare(_line)


relu = declare("Relu", inputs="X", outputs="Y", flags=replace(UNARY, keeps_zero=True, fp16_safe=True))
relu.infer(same_type(SIGNED))


def _relu(call: Call, x: Array) -> Array:
    return apply(call, np.maximum, x, np.zeros((), x.dtype))


def _direct_relu(x: Array) -> Array:
    return _relu(Call({}), x)


@relu.kernel
def _(call: Call, x: Array) -> Array:
    if x.size >= TABLE_FROM and is_half(x.dtype):
        return looked_up(call, half_table(_direct_relu, x.dtype, ()), x)
    return _relu(call, x)


values.propagate(relu, lambda n, a: values.maximum(a, 0))


prelu = declare("PRelu", inputs="X slope", outputs="Y", flags=replace(UNARY, keeps_zero=True, fp16_safe=True))
prelu.cost(vector_cost(3))


@prelu.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, NUMBERS)
    check_same_dtype(n, (0, 1))
    check_fits(n, 1, 0)
    return n.tensor(0)


@prelu.kernel
def _(call: Call, x: Array, slope: Array) -> Array:
    y = fitting(call, 0, x.shape, x.dtype)
    below = call.scratch(x.shape, x.dtype)
    if x.size <= FEW or not np.all((slope > 0) & (slope < np.inf)):
        np.multiply(x, slope, out=below)
        _below_zero(x, y, below)
        return y
    zero = np.zeros((), x.dtype)
    np.minimum(x, zero, out=below)
    np.multiply(below, slope, out=below)
    if x.dtype.kind in "iu":
        np.maximum(x, zero, out=y)
        np.add(y, below, out=y)
    else:  # what is positive gets its own sign once more, and so does -0
        np.add(below, np.maximum(x, zero), out=below)
        np.copysign(below, x, out=y)
    return y


clip = declare("Clip", inputs="input min? max?", outputs="output", flags=replace(UNARY, fp16_safe=True))
clip.cost(vector_cost(2))


@clip.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, NUMBERS)
    for i in (1, 2):
        if n.has(i):
            check_same_dtype(n, (0, i))
            shape = n.shape(i)
            if shape is not None and any(type(d) is int and d != 1 for d in shape):
                n.fail(f"input {i} must be a scalar, but has shape {list(shape)}")
    return n.tensor(0)


def extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The lowest and the largest finite value of a numeric type."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype.kind == "f":
        return np.finfo(dtype).min, np.finfo(dtype).max
    import ml_dtypes

    finfo: Any = ml_dtypes.finfo
    return finfo(dtype).min, finfo(dtype).max


@clip.kernel
def _(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    # An absent bound is the type's lowest or largest finite value: infinities are clipped too.
    ends = extremes(x.dtype)
    bounds = [
        np.asarray(end, x.dtype) if given is None else np.reshape(given, ()) for given, end in zip((low, high), ends)
    ]
    if x.size >= TABLE_FROM and is_half(x.dtype):
        return looked_up(call, half_table(_direct_clip, x.dtype, tuple(float(b) for b in bounds)), x)
    return _clip(call, x, bounds)


def _direct_clip(x: Array, low: float, high: float) -> Array:
    return _clip(Call({}), x, [np.array(low, x.dtype), np.array(high, x.dtype)])


def _clip(call: Call, x: Array, bounds: Sequence[Array]) -> Array:
    y = fitting(call, 0, x.shape, x.dtype)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fiu":
            np.clip(x, bounds[0], bounds[1], out=y)
        else:
            np.maximum(x, bounds[0], out=y)
            np.minimum(y, bounds[1], out=y)
    return y


def _clip_rule(n: Infer, a: Any, *given: Any) -> Any:
    bounds = list(given)
    low = bounds.pop(0) if n.has(1) else None
    high = bounds.pop(0) if n.has(2) else None
    a = a if low is None else values.maximum(a, low)
    return a if high is None or a is None else values.minimum(a, high)


values.propagate(clip, _clip_rule)


dropout = declare(
    "Dropout",
    inputs="data ratio? training_mode?",
    outputs="output mask?",
    attrs={"seed": Attr("int", None)},
    flags=Flags(elementwise=True, inplace=(0,), layout_agnostic=True, keeps_zero=True, fp16_safe=True, random=True),
    host_inputs=(1, 2),
)
dropout.cost(vector_cost(1))


@dropout.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, FLOATS | FLOAT8)
    data = n.tensor(0)
    mask = Tensor(DType.BOOL, data.shape, data.format, data.storage)
    return (data, mask)[: max(n.outputs, 1)]


def _drawn(call: Call, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in [0, 1).

    The specification names no generator. A given seed means the one that ONNX's own tests use, MT19937, seeded
    anew for each run, so that their outputs are ours; without a seed it is the simulator's, which goes on.
    """
    seed = call.attrs["seed"]
    if seed is None:
        return call.random().random(shape, np.float64)
    return np.asarray(np.random.RandomState(int(seed) & 0xFFFFFFFF).uniform(0.0, 1.0, shape))


@dropout.kernel
def _(call: Call, x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, ...]:
    share = 0.5 if ratio is None else float(np.reshape(ratio, ()))
    y = fitting(call, 0, x.shape, x.dtype)
    if training is None or not bool(np.reshape(training, ())) or share == 0:
        mask = np.ones(x.shape, np.bool_)
        np.copyto(y, x)
    else:
        mask = np.asarray(_drawn(call, x.shape) >= share)
        scale = 1 / (1 - share) if share < 1 else 0.0
        kept = np.where(mask, x.astype(np.float64 if x.dtype == np.float64 else np.float32), 0)
        np.copyto(y, kept * scale, casting="unsafe")
    return (y, mask)[: max(len(call.outs), 1)]
