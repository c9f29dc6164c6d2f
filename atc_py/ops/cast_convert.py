"""Conversions between all element types, as Cast defines them; what ONNX leaves open is decided here.

* float -> integer: rounds toward zero. Out of range, infinite and NaN (undefined in ONNX) give what the usual C
  conversions on x86-64 give, on every host: int32 and int64 their smallest value; narrower types the low bits of the
  int32 result; uint32 the low bits of the int64 result; uint64 is exact up to 2**64, else 2**63.
      300.7 -> uint8: int32 300 -> 44        NaN -> int8: int32 -2147483648 -> 0        -1.5 -> uint8: 255
* integer -> narrower integer: the low bits (two's complement), down to 4 and 2 bits.
* number -> bool: not zero (NaN is true).
* float -> float8 (E4M3, E5M2 and their FNUZ forms): to the nearest, ties to even; with `saturate`, what is beyond the
  largest finite value becomes that value, infinities too; without, NaN or infinity, whichever the type has.
* float -> float8 E8M0: the exponent alone; see `to_e8m0`.
* float -> float4, float6: to the nearest, ties to even, always saturating; NaN gives -0 (the types have no NaN).
* number -> string: the shortest decimal that reads back as the same number of its type, whole floats without a
  fraction (`1`, `0.1`, `1e+20`), `NaN`, `INF`, `-INF`; bool as `1` and `0`.
* string -> number: Python's syntax of numbers, `INF` and `NaN` in any case; to an integer through float when it has a
  point or an exponent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.errors import error
from atc_py.ir.types import DType
from atc_py.ops.base import Array

_F8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_SUB_BYTE = ("int4", "uint4", "int2", "uint2")


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is an integer type, those below eight bits included."""
    return dtype.kind in "iu" or dtype.name in _SUB_BYTE


def as_ieee(x: Array) -> Array:
    """Floating-point types that numpy does not know as float32, others as they are."""
    return x if x.dtype.kind in "fiubc" and x.dtype.isbuiltin == 1 else x.astype(np.float32)


def _clipped(x: Array, low: float, high: float, dtype: Any, otherwise: int) -> Array:
    """x as integers `dtype`; `otherwise` where not low <= x < high."""
    bad = ~((x >= low) & (x < high))
    if not bad.any():
        return x.astype(dtype)
    whole: Array = np.where(bad, 0, x).astype(dtype)
    return np.where(bad, dtype(otherwise), whole)


def _within(x: Array, dtype: np.dtype[Any]) -> bool:
    """Whether every element is in the range of the integer type (NaN is not)."""
    info = np.iinfo(dtype)
    return float(x.min()) >= info.min and float(x.max()) <= info.max


def to_integer(x: Array, dtype: np.dtype[Any]) -> Array:
    """A float array as integers of 8 to 64 bits, rounded toward zero; out of range: see the module's docstring."""
    if x.dtype.itemsize < 4:
        x = x.astype(np.float32)
    if x.size == 0 or _within(x, dtype):
        return x.astype(dtype)
    if dtype in (np.int64, np.uint32):
        whole = _clipped(x, -(2.0**63), 2.0**63, np.int64, -(2**63))
    elif dtype == np.uint64:
        high = (x >= 2.0**63) & (x < 2.0**64)
        low = _clipped(np.where(high, 0, x), -(2.0**63), 2.0**63, np.int64, -(2**63)).astype(np.uint64)
        return np.where(high, np.where(high, x, 2.0**63).astype(np.uint64), low) if high.any() else low
    else:
        # -2**31 - 0.9 rounds to -2**31; float32 has no number between.
        x = np.trunc(x)
        whole = _clipped(x, -(2.0**31), 2.0**31, np.int32, -(2**31))
    return whole.astype(dtype, copy=False)


def to_e8m0(x: Array, saturate: bool, mode: str) -> Array:
    """float32 as E8M0 codes (uint8): 2**(code - 127), 255 is NaN; the sign is dropped.

    `mode`: `up` to the next power of two that is not smaller, `down`, or `nearest` with ties up. What rounds beyond
    2**127 stays there when `saturate`, else becomes NaN; so do infinities. Numbers below 2**-126 take the exponent
    field that float32 gives them (0, which stands for 2**-127), rounded like the others.
    """
    raw = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).reshape(np.shape(x))
    exponent, fraction = ((raw >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int32), raw & np.uint32(0x7FFFFF)
    if mode == "up":
        more = fraction > 0
    elif mode == "nearest":
        # Subnormals have no implied one: half way is a tie that stays at 0.
        half = np.uint32(0x400000)
        more = np.where(exponent > 0, fraction >= half, fraction > half)
    elif mode == "down":
        more = np.zeros(raw.shape, np.bool_)
    else:
        raise error("E40001", "Cast", f"round_mode must be up, down or nearest, but is {mode!r}")
    special = exponent == 0xFF
    code = exponent + (more & ~special)
    if saturate:
        code = np.where(special & (fraction > 0), 0xFF, np.minimum(code, 0xFE))
    return np.asarray(code, dtype=np.uint8)


def to_strings(x: Array) -> Array:
    """Numbers as an object array of str."""
    out = np.empty(x.shape, dtype=object)
    flat = out.reshape(-1)
    if x.dtype.kind == "b":
        x = x.astype(np.int8)
    elif x.dtype.isbuiltin != 1:
        x = x.astype(np.int32 if is_integer(x.dtype) else np.float32)
    for i, item in enumerate(x.reshape(-1)):
        flat[i] = _text(item) if x.dtype.kind == "f" else str(item)
    return out


def _text(item: Any) -> str:
    if np.isnan(item):
        return "NaN"
    if np.isinf(item):
        return "INF" if item > 0 else "-INF"
    text = str(item)
    return text[:-2] if text.endswith(".0") else text


def from_strings(x: Array, dtype: np.dtype[Any]) -> Array:
    """Strings as numbers; raises `AtcError` for one that is no number."""
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in x.reshape(-1)]
    try:
        if is_integer(dtype):
            # int64 or uint64 first, so that large integers do not pass through a float.
            whole = [_whole(t) & (2**64 - 1) for t in texts]
            numbers = np.array(whole, dtype=np.uint64).astype(np.int64 if dtype != np.uint64 else np.uint64)
        else:
            numbers = np.array([float(t) for t in texts], dtype=np.float64)
    except (ValueError, OverflowError) as e:
        raise error("E40001", "Cast", f"a string is no number: {e}", "clean the strings before the cast") from e
    return numbers.reshape(x.shape)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def convert(x: Array, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """`x` as element type `dtype` (a new array, or x itself when it has that type already)."""
    target = dtype.numpy
    if dtype is DType.STRING:
        return x if x.dtype == object else to_strings(x)
    if x.dtype == object or x.dtype.kind in "SU":
        x = from_strings(x, target)
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"):
        return np.asarray(_numeric(x, target, saturate, round_mode))


def _numeric(x: Array, target: np.dtype[Any], saturate: bool, round_mode: str) -> Array:
    if x.dtype.kind == "c" and target.kind != "c":
        x = x.real
    if target.kind == "b":
        return np.not_equal(as_ieee(x), 0)
    from_integer = is_integer(x.dtype) or x.dtype.kind == "b"
    if is_integer(target):
        if target.name in _SUB_BYTE:
            return _sub_byte(x if from_integer else to_integer(as_ieee(x), np.dtype(np.int32)), target)
        return x.astype(target) if from_integer else to_integer(as_ieee(x), target)
    if target.name == "float8_e8m0fnu":
        return to_e8m0(x.astype(np.float32), saturate, round_mode).view(target)
    if target.name in _F8:
        import ml_dtypes

        x = x.astype(np.float64 if x.dtype.itemsize == 8 else np.float32, copy=False)
        if saturate:
            finfo: Any = ml_dtypes.finfo
            largest = float(finfo(target).max)
            x = np.clip(x, -largest, largest)
    elif x.dtype.isbuiltin != 1 and target.isbuiltin != 1:
        x = x.astype(np.float32)
    return x.astype(target)


def _sub_byte(x: Array, target: np.dtype[Any]) -> Array:
    """Integers as the low 4 or 2 bits, one element a byte."""
    width, signed = int(target.name[-1]), target.name.startswith("int")
    low = x.astype(np.int64).astype(np.uint8) & np.uint8((1 << width) - 1)
    sign = 1 << (width - 1)
    whole = (low ^ np.uint8(sign)).astype(np.int8) - np.int8(sign) if signed else low
    return whole.astype(target)
