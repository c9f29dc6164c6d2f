"""Cast, CastLike and BitCast. The conversions themselves, and what they do out of range, are in `cast_convert`."""

from __future__ import annotations

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops import elementwise_values as values
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Result, declare
from atc_py.ops.cast_convert import convert
from atc_py.ops.elementwise_base import apply, fitting, vector_cost
from atc_py.ops.traits import Pattern

_FLAGS = Flags(elementwise=True, fusible=True, recomputable=True, layout_agnostic=True, keeps_zero=True, fp16_safe=True)
_ROUNDING = {"saturate": Attr("int", 1), "round_mode": Attr("str", "up")}

cast = declare("Cast", inputs="input", outputs="output", attrs={"to": Attr("dtype"), **_ROUNDING}, flags=_FLAGS)
cast_like = declare("CastLike", inputs="input target_type", outputs="output", attrs=_ROUNDING, flags=_FLAGS)
for _op in (cast, cast_like):
    _op.cost(vector_cost(1))


def _typed(n: Infer, dtype: DType) -> Tensor:
    t = n.tensor(0)
    if t.dtype.is_complex != dtype.is_complex:
        n.fail(f"{t.dtype.value} cannot be cast to {dtype.value}", "take the real part in the model")
    if n.attrs.get("round_mode", "up") not in ("up", "down", "nearest"):
        n.fail(f"round_mode must be up, down or nearest, but is {n.attrs['round_mode']!r}")
    return Tensor(dtype, t.shape, t.format, t.storage)


@cast.infer
def _(n: Infer) -> Result:
    return _typed(n, n.attrs["to"])


@cast_like.infer
def _(n: Infer) -> Result:
    return _typed(n, n.dtype(1))


def _convert(call: Call, x: Array, dtype: DType) -> Array:
    target = dtype.numpy
    plain = x.dtype.isbuiltin == 1 and target.isbuiltin == 1 and x.dtype.kind in "fiub" and target.kind in "fiu"
    if plain and not (x.dtype.kind == "f" and target.kind in "iu"):
        # Between numpy's own types the conversion is the assignment.
        y = fitting(call, 0, x.shape, target)
        with np.errstate(all="ignore"):
            np.copyto(y, x, casting="unsafe")
        return y
    if target.kind == "b" and x.dtype.isbuiltin == 1 and x.dtype.kind in "fiu":
        return apply(call, np.not_equal, x, np.zeros((), x.dtype), dtype=np.bool_)
    return convert(x, dtype, bool(call.attrs["saturate"]), call.attrs["round_mode"])


@cast.kernel
def _(call: Call, x: Array) -> Array:
    return _convert(call, x, call.attrs["to"])


@cast_like.kernel
def _(call: Call, x: Array, like: Array) -> Array:
    return _convert(call, x, DType.of(like.dtype))


def _value(n: Infer, dtype: DType) -> Array | None:
    """Sizes keep their symbols where the type holds every size: integers and floats of 32 bits and more."""
    value, source = n.value(0), n.dtype(0)
    if value is None or value.size > values.LIMIT or dtype is DType.STRING or source is DType.STRING:
        return None
    if not values.symbolic(value):
        return np.asarray(convert(np.asarray(value, dtype=source.numpy), dtype, bool(n.attrs["saturate"]),
                                  n.attrs["round_mode"]))  # fmt: skip
    scalars = values.items(value)
    if dtype is DType.BOOL:
        scalars = [None if (same := values.equal(s, 0)) is None else not same for s in scalars]
    elif dtype.bits < 32:
        return None
    elif dtype.is_int:
        scalars = [values.truncate(s) if source.is_float else s for s in scalars]
    elif not dtype.is_float:
        return None
    return values.pack(scalars, value.shape, dtype)


@cast.value
def _(n: Infer) -> Array | None:
    return _value(n, n.attrs["to"])


@cast_like.value
def _(n: Infer) -> Array | None:
    return _value(n, n.dtype(1))


bit_cast = declare(
    "BitCast",
    inputs="input",
    outputs="output",
    attrs={"to": Attr("dtype")},
    flags=Flags(elementwise=True, recomputable=True, layout_agnostic=True, keeps_zero=True, pattern=Pattern.BITS),
)
bit_cast.cost(vector_cost(1))


@bit_cast.infer
def _(n: Infer) -> Result:
    t, to = n.tensor(0), n.attrs["to"]
    for dtype in (t.dtype, to):
        if dtype is DType.STRING:
            n.fail("strings have no bit pattern of fixed width")
    if t.dtype.bits != to.bits:
        n.fail(f"{t.dtype.value} has {t.dtype.bits} bits and {to.value} has {to.bits}: the widths must be equal")
    return Tensor(to, t.shape, t.format, t.storage)


@bit_cast.kernel
def _(call: Call, x: Array) -> Array:
    to: DType = call.attrs["to"]
    if to.bits >= 8:
        return x.view(to.numpy)
    # One element a byte: only the low bits count, and signed types keep theirs extended.
    codes = x.view(np.uint8) & np.uint8((1 << to.bits) - 1)
    return convert(codes, to) if to.is_int else codes.view(to.numpy)
