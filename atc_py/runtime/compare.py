"""Comparing arrays: how far two results lie apart, and whether that is within what their dtype can promise.

    want [1.0, 2.0, 4.0]   got [1.0, 2.001, 4.1]   float32: |got - want| <= 1e-4 * 4.0 + 1e-3 * |want|

    2.001 is within 0.0024 of 2.0; 4.1 is 0.1 away and may be 0.0044: one mismatch, the worst at [2]

Tolerances belong to a dtype, never to a model or a test. NaN equals NaN at the same place, and so does infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from atc_py.ir.types import DType
from atc_py.runtime.arrays import Array, leaves


@dataclass(frozen=True)
class Tolerance:
    """An element may differ by `atol` × the greatest magnitude of the wanted tensor + `rtol` × its own magnitude."""

    rtol: float
    atol: float


EXACT = Tolerance(0.0, 0.0)
TOLERANCES: Mapping[DType, Tolerance] = {
    DType.FLOAT64: Tolerance(1e-6, 1e-8),
    DType.FLOAT32: Tolerance(1e-3, 1e-4),
    DType.FLOAT16: Tolerance(1e-2, 2e-3),
    DType.BFLOAT16: Tolerance(4e-2, 1e-2),
    DType.COMPLEX128: Tolerance(1e-6, 1e-8),
    DType.COMPLEX64: Tolerance(1e-3, 1e-4),
    DType.FLOAT8_E4M3FN: Tolerance(0.125, 0.02),
    DType.FLOAT8_E4M3FNUZ: Tolerance(0.125, 0.02),
    DType.FLOAT8_E5M2: Tolerance(0.25, 0.04),
    DType.FLOAT8_E5M2FNUZ: Tolerance(0.25, 0.04),
}
"""What two right results may differ by, for sums are taken in different orders. Types that are not here are compared
exactly."""


def tolerance(dtype: DType, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """The dtype's tolerance; `rtol` and `atol` replace its parts, except for types that are compared exactly."""
    base = TOLERANCES.get(dtype, EXACT)
    if base is EXACT:
        return base
    return Tolerance(base.rtol if rtol is None else rtol, base.atol if atol is None else atol)


@dataclass(frozen=True)
class Worst:
    """The element that lies farthest beyond its tolerance."""

    index: tuple[int, ...]
    got: Any
    want: Any


@dataclass(frozen=True)
class Difference:
    """One compared array. Figures are None where they have no meaning (strings, results of another shape).

    `max_rel` is over the elements that should not be 0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    elements: int
    mismatches: int
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    passed: bool
    reason: str = ""
    worst: Worst | None = None

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object; numbers that JSON lacks are text ("inf", "nan")."""
        found = asdict(self)
        for key in ("max_abs", "max_rel", "cosine"):
            found[key] = number(found[key])
        found["shape"] = None if self.shape is None else list(self.shape)
        if self.worst is not None:
            found["worst"] = {
                "index": list(self.worst.index),
                "got": plain(self.worst.got),
                "want": plain(self.worst.want),
            }
        return found


def number(x: float | None) -> float | str | None:
    """A number as JSON can hold it."""
    return x if x is None or math.isfinite(x) else str(x)


def plain(item: Any) -> Any:
    """One element as JSON can hold it."""
    value = item.item() if isinstance(item, np.generic) else item
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, (bool, int, str)) else str(value)


def compare_values(
    names: Sequence[str],
    got: Sequence[Any],
    want: Sequence[Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    cosine: float | None = None,
) -> list[Difference]:
    """Compare outputs one by one; sequences and maps by their elements."""
    found: list[Difference] = []
    for name, g, w in zip(names, got, want, strict=True):
        mine, theirs = leaves(name, g), leaves(name, w)
        if [label for label, _ in mine] != [label for label, _ in theirs]:
            reason = f"has {len(mine)} parts, expected {len(theirs)}"
            found.append(_refused(name, "", None, reason))
            continue
        for (label, a), (_, b) in zip(mine, theirs, strict=True):
            found.append(_compare_leaf(label, a, b, rtol, atol, cosine))
    return found


def _compare_leaf(
    name: str, got: Any, want: Any, rtol: float | None, atol: float | None, cosine: float | None
) -> Difference:
    if got is None or want is None:
        if got is want:
            return Difference(name, "none", None, 0, 0, None, None, None, True)
        return _refused(name, "none", None, "is absent" if got is None else "is there, but should be absent")
    return compare(name, got, want, rtol=rtol, atol=atol, cosine=cosine)


def compare(
    name: str,
    got: Array,
    want: Array,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    cosine: float | None = None,
) -> Difference:
    """Compare two arrays under the tolerance of the wanted one's dtype; `cosine` asks for a least similarity too."""
    dtype = DType.of(want.dtype)
    if got.shape != want.shape:
        return _refused(name, dtype.value, got.shape, f"has shape {list(got.shape)}, expected {list(want.shape)}")
    if DType.of(got.dtype) is not dtype:
        return _refused(name, dtype.value, got.shape, f"has dtype {DType.of(got.dtype).value}, expected {dtype.value}")
    if dtype is DType.STRING:
        return _compare_exact(name, dtype, got, want)
    allowed = tolerance(dtype, rtol, atol)
    wide = np.complex128 if dtype.is_complex else np.float64
    with np.errstate(all="ignore"):
        g, w = got.astype(wide), want.astype(wide)
        finite = np.isfinite(g) & np.isfinite(w)
        same = (got == want) | (np.isnan(g) & np.isnan(w))
        distance = np.where(same, 0.0, np.where(finite, np.abs(g - w), np.inf))
        magnitude = np.where(np.isfinite(w), np.abs(w), 0.0)
        limit = allowed.atol * (magnitude.max(initial=0.0) or 1.0) + allowed.rtol * magnitude
        bad = ~same & ~(distance <= limit) if allowed is not EXACT else ~same
        relative = np.where((distance > 0) & (magnitude > 0), distance / magnitude, 0.0)
        alike = _cosine(g, w)
    mismatches = int(np.count_nonzero(bad))
    reason = _reason(mismatches, got.size, alike, cosine, allowed)
    return Difference(
        name,
        dtype.value,
        got.shape,
        got.size,
        mismatches,
        float(distance.max(initial=0.0)),
        float(relative.max(initial=0.0)),
        alike,
        not reason,
        reason,
        _worst(np.where(bad, distance - limit, -np.inf), got, want) if mismatches else None,
    )


def _compare_exact(name: str, dtype: DType, got: Array, want: Array) -> Difference:
    flat = [str(a) != str(b) for a, b in zip(got.reshape(-1), want.reshape(-1), strict=True)]
    bad = np.array(flat, bool).reshape(got.shape)
    mismatches = int(np.count_nonzero(bad))
    reason = _reason(mismatches, got.size, None, None, EXACT)
    worst = _worst(bad.astype(np.float64), got, want) if mismatches else None
    return Difference(name, dtype.value, got.shape, got.size, mismatches, None, None, None, not reason, reason, worst)


def _reason(mismatches: int, elements: int, alike: float | None, cosine: float | None, allowed: Tolerance) -> str:
    if mismatches:
        how = "exact" if allowed is EXACT else f"rtol {allowed.rtol:g}, atol {allowed.atol:g} of its scale"
        return f"{mismatches} of {elements} elements differ ({how})"
    if cosine is not None and alike is not None and not alike >= cosine:
        return f"the cosine similarity is {alike:.7f}, at least {cosine:g} is wanted"
    return ""


def _worst(beyond: Array, got: Array, want: Array) -> Worst:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(beyond)), got.shape))
    return Worst(index, got[index], want[index])


def _cosine(g: Array, w: Array) -> float | None:
    """The cosine of the angle between two arrays as vectors; None when one of them is not finite everywhere."""
    a, b = g.reshape(-1), w.reshape(-1)
    greatest = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    if not math.isfinite(greatest):
        return None
    a, b = a / (greatest or 1.0), b / (greatest or 1.0)
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if lengths == 0.0:
        return 1.0 if not a.any() and not b.any() else 0.0
    return float(np.real(np.vdot(a, b))) / lengths


def spread(a: Any, b: Any) -> float:
    """How far two results for one tensor lie apart, as a part of its scale; 0 for what has no such distance."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape or not a.size:
        return 0.0
    if a.dtype == object or tolerance(DType.of(a.dtype)) is EXACT:
        return 0.0
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        distance, magnitude = np.abs(a.astype(wide) - b.astype(wide)), np.abs(a.astype(wide))
    scale = magnitude[np.isfinite(magnitude)].max(initial=0.0) or 1.0
    return float(distance[np.isfinite(distance)].max(initial=0.0) / scale)


def statistics(array: Array) -> dict[str, Any]:
    """Least, greatest, mean and standard deviation of the numbers that are no NaN, and how many are NaN.

    None for strings, complex numbers and empty arrays. Values are JSON's.
    """
    none: dict[str, Any] = {"min": None, "max": None, "mean": None, "std": None, "nan": 0}
    if array.dtype == object or array.dtype.kind in "cUS" or not array.size:
        return none
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        missing = np.isnan(wide)
        kept = wide[~missing]
        nan = int(np.count_nonzero(missing))
        if not kept.size:
            return {**none, "nan": nan}
        figures = {"min": kept.min(), "max": kept.max(), "mean": kept.mean(), "std": kept.std()}
    return {**{k: number(float(v)) for k, v in figures.items()}, "nan": nan}


def _refused(name: str, dtype: str, shape: tuple[int, ...] | None, reason: str) -> Difference:
    return Difference(name, dtype, shape, 0, 0, None, None, None, False, reason)
