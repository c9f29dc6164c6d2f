"""What constants lose in a narrower float: found when they are converted, and said by name.

    w: float32 [64, 64], largest 71,302.5      →  W20041  3 of 4,096 values become infinite in float16
    s: float32 [256], 1e-9 … 3e-6              →  W20042  256 of 256 values lose their range in float16: 12 become 0,
                                                          244 keep fewer than 11 bits; the largest is 3e-06

A value is lost when it rounds to zero, or to a subnormal number, which keeps fewer bits the smaller it is. Weights that
were trained have a few such values, which do no harm; a tensor is named from one value in twenty on. Infinities of the
model (masks) stay what they are and are not counted. Nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atc_py.errors import Problem
from atc_py.ir.constants import Blob, Constant, Splat, blob_array
from atc_py.ir.types import DType
from atc_py.ops.base import Array

MANY = 0.05
"""From this share of a tensor's values on, values that are lost are worth a warning."""
_CHUNK = 1 << 20
"""Elements that are looked at together."""


def losses(constant: Constant, dtype: DType, name: str) -> list[Problem]:
    """Warnings for a constant of wider floats that is converted to `dtype`: W20041 overflow, W20042 range."""
    if isinstance(constant, Blob):
        array = blob_array(constant)
    elif isinstance(constant, Splat):
        array = np.array([constant.value], constant.dtype.numpy)
    else:
        return []  # recipes are evaluated when a plan is bound, not now
    if constant.dtype.bits <= dtype.bits:
        return []
    limit, least = _range(dtype)
    infinite = zero = low = nonzero = total = 0
    largest = 0.0
    with np.errstate(all="ignore"):
        for part in _chunks(array):
            size = np.abs(part)
            total += size.size
            peak, floor = float(size.max()), float(size.min())
            if not peak < limit:
                finite = size[np.isfinite(size)]
                peak = float(finite.max(initial=0.0))
                infinite += int(np.count_nonzero(finite >= limit))
            largest = max(largest, peak)
            if not floor >= least:
                nonzero += int(np.count_nonzero(size))
                small = size[(size < least) & (size > 0)]
                gone = int(np.count_nonzero(small.astype(dtype.numpy) == 0)) if small.size else 0
                zero, low = zero + gone, low + small.size - gone
            else:
                nonzero += size.size
    return list(_said(name, dtype, infinite, zero, low, nonzero, total, largest))


def is_lost(constant: Constant, dtype: DType) -> bool:
    """Whether the constant is one finite number that becomes infinite or 0 in `dtype`, but is neither."""
    if isinstance(constant, Blob) and constant.nbytes <= constant.dtype.itemsize:
        number = abs(float(blob_array(constant).reshape(-1)[0])) if constant.nbytes else 0.0
    elif isinstance(constant, Splat):
        number = abs(float(constant.value))
    else:
        return False
    limit, least = _range(dtype)
    bits = 10 if dtype is DType.FLOAT16 else 7
    return limit <= number < float("inf") or 0 < number <= least * 2.0 ** -(bits + 1)


def _said(
    name: str, dtype: DType, infinite: int, zero: int, low: int, nonzero: int, total: int, largest: float
) -> Iterator[Problem]:
    keep = "name the nodes that read it in a --keep-dtype file, or scale it in the model"
    if infinite:
        cause = f"{infinite:,} of {total:,} values become infinite in {dtype.value}; the largest is {largest:.6g}"
        yield Problem("W20041", f"tensor '{name}'", cause, keep)
    if zero + low > MANY * nonzero:
        cause = (
            f"{zero + low:,} of {nonzero:,} values that are not 0 lose their range in {dtype.value}: {zero:,} become "
            f"0, {low:,} keep fewer bits; the largest is {largest:.6g}"
        )
        yield Problem("W20042", f"tensor '{name}'", cause, keep)


def _chunks(array: Array) -> Iterator[Array]:
    flat: Any = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK]


def _range(dtype: DType) -> tuple[float, float]:
    """(what rounds to infinity, the smallest normal number) of a narrow float."""
    if dtype is DType.FLOAT16:
        return 65520.0, 2.0**-14
    assert dtype is DType.BFLOAT16
    return (2 - 2.0**-8) * 2.0**127, 2.0**-126
