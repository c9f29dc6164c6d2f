"""Resize, one axis at a time: index and weight tables made once, then gathers or one matrix product an axis.

Doubling a row of 3 linearly with half-pixel coordinates: output j stands at (j + 0.5) / 2 - 0.5 of the input, so

    j         0      1     2     3     4     5
    x      -0.25   0.25  0.75  1.25  1.75  2.25
    taps    a a    a b   a b   b c   b c   c c      (indices outside are moved to the edge)
    weights        ¾ ¼   ¼ ¾   ¾ ¼   ¼ ¾

Coordinates, filters and the antialiasing stretch follow ONNX's Resize and its reference; the cubic filter is R. Keys,
"Cubic convolution interpolation for digital image processing", 1981.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod
from typing import Any

import numpy as np

from atc_py.ops.base import Array, InferError

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")
_DENSE = 512
"""Longest axis that is resized by a dense matrix product rather than by gathers."""


@dataclass(frozen=True)
class AxisPlan:
    """How one axis is resized: `indices` [out, taps] into the input, `weights` [out, taps] (None: nearest)."""

    axis: int
    size: int
    indices: Array
    weights: Array | None
    outside: Array | None


def output_size(size: int, scale: float) -> int:
    """floor(size · scale) in float32, as ONNX's shape inference and onnxruntime take it."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def by_policy(shape: Sequence[int], sizes: Mapping[int, int], policy: str) -> tuple[dict[int, int], dict[int, float]]:
    """Output sizes and scales by axis for wanted `sizes`, under a keep_aspect_ratio_policy."""
    scales = {axis: size / shape[axis] if shape[axis] else 1.0 for axis, size in sizes.items()}
    if policy == "stretch" or not scales:
        return dict(sizes), scales
    scale = min(scales.values()) if policy == "not_larger" else max(scales.values())
    return {axis: floor(scale * shape[axis] + 0.5) for axis in sizes}, dict.fromkeys(sizes, scale)


def plan(
    attrs: Mapping[str, Any], shape: Sequence[int], sizes: Mapping[int, int], scales: Mapping[int, float],
    roi: Mapping[int, tuple[float, float]],
) -> list[AxisPlan]:  # fmt: skip
    """The axes that change, those that shrink most first. `sizes`, `scales` and `roi` (start, end) are by axis."""
    plans = []
    for axis, size in sizes.items():
        crop = attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
        part = roi.get(axis, (0.0, 1.0)) if crop else (0.0, 1.0)
        if size != shape[axis] or abs(scales[axis] - 1) > 1e-9 or part != (0.0, 1.0):
            if not shape[axis] and size:
                raise InferError(f"axis {axis} is empty and cannot be resized to {size}")
            plans.append(_axis_plan(attrs, axis, shape[axis], size, scales[axis], part))
    return sorted(plans, key=lambda p: (p.size / max(1, shape[p.axis]), p.axis))


def coordinates(mode: str, size: int, length: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where the `size` outputs of an axis stand on the input of `length` elements (float64)."""
    x = np.arange(size, dtype=np.float64)
    if mode == "align_corners":
        # The fractional output length, as ONNX's reference and its node tests take it.
        width = scale * length
        return np.zeros(size) if width == 1 else x * (length - 1) / (width - 1)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        if size == 1:
            return np.full(size, 0.5 * (start + end) * (length - 1))
        return start * (length - 1) + x * (end - start) * (length - 1) / max(1, size - 1)
    if mode == "pytorch_half_pixel" and size == 1:
        return np.zeros(size)
    shift = 0.0
    if mode == "half_pixel_symmetric" and length:
        shift = length / 2 * (1 - size / (scale * length))
    return shift + (x + 0.5) / scale - 0.5


def _axis_plan(
    attrs: Mapping[str, Any], axis: int, length: int, size: int, scale: float, roi: tuple[float, float]
) -> AxisPlan:
    mode = attrs["coordinate_transformation_mode"]
    x = coordinates(mode, size, length, scale, roi)
    outside = (x < 0) | (x > length - 1) if mode == "tf_crop_and_resize" else None
    if attrs["mode"] == "nearest":
        return AxisPlan(axis, size, _clamp(_nearest(x, attrs["nearest_mode"]), length)[:, None], None, outside)
    stretch = min(scale, 1.0) if attrs["antialias"] else 1.0
    base = np.floor(x)
    reach = 1 if attrs["mode"] == "linear" else 2
    first = 1 - ceil(reach / stretch)
    offsets = np.arange(first, 2 - first)
    distance = np.abs(offsets - (x - base)[:, None]) * stretch
    weights = np.maximum(1 - distance, 0) if reach == 1 else _cubic(distance, attrs["cubic_coeff_a"])
    if attrs["antialias"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    taps = base.astype(np.int64)[:, None] + offsets
    if attrs["exclude_outside"]:
        weights = np.where((taps < 0) | (taps >= length), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return AxisPlan(axis, size, _clamp(taps, length), weights, outside)


def _clamp(indices: Array, length: int) -> Array:
    return np.clip(indices, 0, max(0, length - 1)).astype(np.intp)


def _nearest(x: Array, mode: str) -> Array:
    if mode == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    return np.floor(x) if mode == "floor" else np.ceil(x)


def _cubic(d: Array, a: float) -> Array:
    """Keys' filter at distances `d`."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type to interpolate in: exact for the integers of 16 bits and less, float64 for wider ones."""
    if dtype.kind == "c" or dtype == np.float64:
        return dtype
    return np.dtype(np.float64) if dtype.kind in "iu" and dtype.itemsize > 2 else np.dtype(np.float32)


def apply(x: Array, plans: Sequence[AxisPlan], y: Array, extrapolation: float) -> None:
    """Resize `x` into `y` along the planned axes."""
    nearest = all(p.weights is None for p in plans)
    wide = x.dtype if nearest else working_dtype(x.dtype)
    current = x if x.dtype == wide else x.astype(wide)
    usable = y.dtype == wide and y.flags.c_contiguous
    dense = not nearest and bool(np.isfinite(np.add.reduce(current, axis=None)))
    for step, p in enumerate(plans):
        into = y if usable and step == len(plans) - 1 else None
        current = _gathered(current, p, into) if p.weights is None else _weighted(current, p, into, dense)
    if current is not y:
        if y.dtype.kind in "iub" and wide.kind == "f":
            limits = np.iinfo(y.dtype) if y.dtype.kind in "iu" else None
            current = np.rint(current)
            if limits is not None:
                current = np.clip(current, limits.min, limits.max)
        np.copyto(y, current, casting="unsafe")
    for p in plans:
        if p.outside is not None and p.outside.any():
            y[(slice(None),) * p.axis + (p.outside,)] = y.dtype.type(extrapolation)


def _gathered(x: Array, p: AxisPlan, into: Array | None) -> Array:
    if into is not None:
        return np.take(x, p.indices[:, 0], axis=p.axis, out=into, mode="clip")
    return np.take(x, p.indices[:, 0], axis=p.axis)


def _weighted(x: Array, p: AxisPlan, into: Array | None, dense: bool) -> Array:
    """Weighted sums along one axis: a dense product for short axes, a gather a tap otherwise.

    The dense product multiplies everything by something, hence it is for finite inputs only.
    """
    assert p.weights is not None
    length = x.shape[p.axis]
    shape = (*x.shape[: p.axis], p.size, *x.shape[p.axis + 1 :])
    out = np.empty(shape, x.dtype) if into is None else into
    # A product costs `length` multiply-adds an element, a gather a tap several memory passes (more on the last axis).
    limit = min(_DENSE, p.indices.shape[1] * (128 if p.axis == x.ndim - 1 else 64))
    if dense and 0 < length <= limit and out.size:
        matrix = np.zeros((p.size, length), x.dtype)
        np.add.at(matrix, (np.arange(p.size)[:, None], p.indices), p.weights.astype(x.dtype))
        outer, inner = prod(x.shape[: p.axis]), prod(x.shape[p.axis + 1 :])
        if inner == 1:
            np.matmul(x.reshape(outer, length), matrix.T, out=out.reshape(outer, p.size))
        else:
            np.matmul(matrix, x.reshape(outer, length, inner), out=out.reshape(outer, p.size, inner))
        return out
    weights = p.weights.astype(x.dtype).reshape(*p.weights.shape, *(1,) * (x.ndim - p.axis - 1))
    for tap in range(p.indices.shape[1]):
        part = np.take(x, p.indices[:, tap], axis=p.axis)
        part *= weights[:, tap]
        if tap:
            np.add(out, part, out=out)
        else:
            np.copyto(out, part)
    return out
