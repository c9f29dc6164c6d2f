"""Pooling over regions of interest: RoiAlign and MaxRoiPool.

RoiAlign's average is separable: every sample is a bilinear mix of two rows and two columns, so a region is
`rows @ image @ columns.T` with one small weight matrix an axis. For a bin of two samples at y = 0.25 and 0.75, the row
weights over pixels 0 and 1 are (0.75 + 0.25) / 2 and (0.25 + 0.75) / 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import Tensor
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.layouts import feature_maps

roi_align = declare(
    "RoiAlign",
    inputs="X rois batch_indices",
    outputs="Y",
    attrs={
        "coordinate_transformation_mode": Attr("str", "half_pixel"),
        "mode": Attr("str", "avg"),
        "output_height": Attr("int", 1),
        "output_width": Attr("int", 1),
        "sampling_ratio": Attr("int", 0),
        "spatial_scale": Attr("float", 1.0),
    },
    flags=Flags(splittable=(0, 1), fp16_safe=True, wide_inputs=(1,)),
)

max_roi_pool = declare(
    "MaxRoiPool",
    inputs="X rois",
    outputs="Y",
    attrs={"pooled_shape": Attr("ints", REQUIRED), "spatial_scale": Attr("float", 1.0)},
    flags=Flags(splittable=(0, 1), fp16_safe=True, wide_inputs=(1,)),
)
roi_align.layout(feature_maps(0, needs=True))
max_roi_pool.layout(feature_maps(0, needs=True))


def _regions(n: Infer, height: int, width: int, columns: int) -> Tensor:
    x, rois = n.shape(0), n.shape(1)
    if x is not None and len(x) != 4:
        n.fail(f"X has rank {len(x)}; expected 4 (batch, channels, height, width)")
    if rois is not None and (len(rois) != 2 or (type(rois[1]) is int and rois[1] != columns)):
        n.fail(f"rois has shape {[str(d) for d in rois]}; expected [regions, {columns}]")
    regions = rois[0] if rois is not None else n.fresh("rois")
    channels = x[1] if x is not None else n.fresh("channels")
    return Tensor(n.dtype(0), (regions, channels, height, width))


@roi_align.infer
def _(n: Infer) -> Result:
    if n.attrs["mode"].lower() not in ("avg", "max"):
        n.fail(f"mode is '{n.attrs['mode']}'; expected 'avg' or 'max'")
    if n.attrs["coordinate_transformation_mode"].lower() not in ("half_pixel", "output_half_pixel"):
        n.fail(f"coordinate_transformation_mode is '{n.attrs['coordinate_transformation_mode']}'")
    return _regions(n, n.attrs["output_height"], n.attrs["output_width"], 4)


@roi_align.cost
def _(n: Infer) -> Cost:
    samples = max(1, n.attrs["sampling_ratio"] or 2) ** 2
    out = _regions(n, n.attrs["output_height"], n.attrs["output_width"], 4)
    return Cost(vector=prod(out.dims) * samples * 4)


class _Axis:
    """The samples of one axis of a region: lower and upper neighbour, and the weight of each."""

    def __init__(self, start: Any, extent: Any, bins: int, ratio: int, size: int) -> None:
        kind = np.dtype(type(start)).type
        width = extent / kind(bins)
        self.bins = bins
        self.grid = ratio if ratio > 0 else max(0, int(np.ceil(width)))
        step = (np.arange(self.grid, dtype=kind) + kind(0.5)) * (width / kind(max(self.grid, 1)))
        at = (start + np.arange(bins, dtype=kind)[:, None] * width + step).reshape(-1)
        inside = (at >= -1) & (at <= size)
        at = np.where(inside, np.maximum(at, 0), 0)
        self.low = np.minimum(at.astype(np.int64), size - 1)
        self.high = np.minimum(self.low + 1, size - 1)
        upper = np.where(self.low >= size - 1, 0, at - self.low).astype(kind)
        self.upper = np.where(inside, upper, 0).astype(kind)
        self.lower = np.where(inside, 1 - upper, 0).astype(kind)

    def matrix(self) -> tuple[slice, Array]:
        """The pixels that matter, and the weights [bins, pixels] of the average over each bin's samples."""
        first, last = (int(self.low.min()), int(self.high.max()) + 1) if self.low.size else (0, 0)
        weights = np.zeros((self.bins, last - first), self.lower.dtype)
        bins = np.repeat(np.arange(self.bins), self.grid)
        np.add.at(weights, (bins, self.low - first), self.lower)
        np.add.at(weights, (bins, self.high - first), self.upper)
        return slice(first, last), weights / max(self.grid, 1)


def _align_max(image: Array, rows: _Axis, columns: _Axis) -> Array:
    """The largest weighted corner value of all samples of each bin (what the operator's definition takes)."""
    shape = (image.shape[0], rows.bins, rows.grid, columns.bins, columns.grid)
    if not rows.grid or not columns.grid:
        return np.zeros((image.shape[0], rows.bins, columns.bins), image.dtype)
    best: Array | None = None
    for y, wy in ((rows.low, rows.lower), (rows.high, rows.upper)):
        for x, wx in ((columns.low, columns.lower), (columns.high, columns.upper)):
            corner = image[:, y[:, None], x] * (wy[:, None] * wx)
            best = corner if best is None else np.maximum(best, corner)
    assert best is not None
    result: Array = best.reshape(shape).max(axis=(2, 4))
    return result


@roi_align.kernel
def _(call: Call, x: Array, rois: Array, batch_indices: Array) -> Array:
    attrs = call.attrs
    dtype = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    height, width = attrs["output_height"], attrs["output_width"]
    aligned = attrs["coordinate_transformation_mode"].lower() == "half_pixel"
    scaled = rois.astype(dtype) * dtype.type(attrs["spatial_scale"]) - dtype.type(0.5 if aligned else 0)
    y = call.into(0, (rois.shape[0], x.shape[1], height, width), x.dtype)
    with np.errstate(all="ignore"):
        for region, (box, batch) in enumerate(zip(scaled, batch_indices.reshape(-1))):
            extent = box[2:] - box[:2]
            if not aligned:
                extent = np.maximum(extent, 1)
            rows = _Axis(box[1], extent[1], height, attrs["sampling_ratio"], x.shape[2])
            columns = _Axis(box[0], extent[0], width, attrs["sampling_ratio"], x.shape[3])
            image = x[int(batch)]
            if attrs["mode"].lower() == "max":
                result = _align_max(image.astype(dtype, copy=False), rows, columns)
            else:
                (down, left), (across, right) = rows.matrix(), columns.matrix()
                result = left @ image[:, down, across].astype(dtype, copy=False) @ right.T
            np.copyto(y[region], result, casting="unsafe")
    return y


@max_roi_pool.infer
def _(n: Infer) -> Result:
    shape = n.attrs["pooled_shape"]
    if len(shape) != 2:
        n.fail(f"pooled_shape has {len(shape)} entries; expected 2 (height, width)")
    return _regions(n, int(shape[0]), int(shape[1]), 5)


def _bins(start: int, end: int, bins: int, size: int) -> list[tuple[int, int]]:
    """The half-open pixel range of each bin of [start, end], clipped to the image."""
    width = np.float32(max(end - start + 1, 1)) / np.float32(bins)
    low = np.floor(np.arange(bins, dtype=np.float32) * width).astype(int) + start
    high = np.ceil(np.arange(1, bins + 1, dtype=np.float32) * width).astype(int) + start
    return list(zip(np.clip(low, 0, size).tolist(), np.clip(high, 0, size).tolist()))


@max_roi_pool.kernel
def _(call: Call, x: Array, rois: Array) -> Array:
    height, width = (int(v) for v in call.attrs["pooled_shape"])
    y = call.into(0, (rois.shape[0], x.shape[1], height, width), x.dtype)
    y[...] = 0
    scaled = rois[:, 1:].astype(np.float32) * np.float32(call.attrs["spatial_scale"])
    boxes = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(int)
    for region, (left, top, right, bottom) in enumerate(boxes.tolist()):
        image = x[int(rois[region, 0])]
        for i, (r0, r1) in enumerate(_bins(top, bottom, height, x.shape[2])):
            for j, (c0, c1) in enumerate(_bins(left, right, width, x.shape[3])):
                if r1 > r0 and c1 > c0:
                    y[region, :, i, j] = image[:, r0:r1, c0:c1].max(axis=(1, 2))
    return y
