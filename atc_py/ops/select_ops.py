"""Operators that sort and select: Unique, TopK, NonMaxSuppression.

    TopK([3, 1, 3, 2], K=2)         values [3, 3], indices [0, 2]      (equal values: the lower index first)
    Unique([2, 1, 1, 3], sorted=0)  Y [2, 1, 3], indices [0, 1, 3], inverse [0, 1, 1, 2], counts [1, 2, 1]

Non-maximum suppression is greedy: the best box left is kept, and every box whose overlap with it
(intersection over union) exceeds the threshold goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.dims import Size, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, declare, elements
from atc_py.ops.shape_values import scalar
from atc_py.ops.shapes import axis, show

unique = declare(
    "Unique",
    inputs="X",
    outputs="Y indices? inverse_indices? counts?",
    attrs={"axis": Attr("int", None), "sorted": Attr("int", 1)},
    engine=Engine.AICPU,
)


@unique.infer
def _(n: Infer) -> Result:
    data, at = n.tensor(0), n.attrs["axis"]
    count = n.fresh("count")
    shape: tuple[Size, ...] | None
    if at is None:
        shape, places = (count,), n.fresh("elements") if data.shape is None else prod(data.shape)
    elif data.shape is None:
        shape, places = None, n.fresh("elements")
    else:
        at = axis(at, len(data.shape))
        shape, places = (*data.shape[:at], count, *data.shape[at + 1 :]), data.shape[at]
    one = Tensor(DType.INT64, (count,))
    return [data.with_shape(shape), one, Tensor(DType.INT64, (places,)), one][: n.outputs]


def _codes(x: Array) -> Array:
    """An int64 for each element, its rank among the distinct values: any dtype compares like integers."""
    comparable = x.astype(np.float32) if x.dtype.kind == "V" else x
    if x.dtype == object:
        rank = {text: i for i, text in enumerate(sorted(set(map(str, x.reshape(-1)))))}
        return np.array([rank[str(text)] for text in x.reshape(-1)], np.int64).reshape(x.shape)
    codes: Array = np.unique(comparable, return_inverse=True)[1]
    return codes.reshape(x.shape).astype(np.int64)


@unique.kernel
def _(call: Call, x: Array) -> tuple[Array, ...]:
    at = call.attrs["axis"]
    if at is None:
        x, at = x.reshape(-1), 0
    at = axis(at, x.ndim)
    if x.size:
        rows = np.moveaxis(_codes(x), at, 0).reshape(x.shape[at], -1)
    else:  # rows without elements are all equal
        rows = np.zeros((x.shape[at], 1), np.int64)
    _, first, inverse, counts = np.unique(rows, True, True, True, axis=0)
    inverse = inverse.reshape(-1)
    if not call.attrs["sorted"]:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        first, inverse, counts = first[order], place[inverse], counts[order]
    results = (np.take(x, first, axis=at), *(v.astype(np.int64) for v in (first, inverse, counts)))
    return results[: max(len(call.outs), len(call.out_types), 1)]


topk = declare(
    "TopK",
    inputs="X K",
    outputs="Values Indices",
    attrs={"axis": Attr("int", -1), "largest": Attr("int", 1), "sorted": Attr("int", 1)},
    flags=Flags(fp16_safe=True),
    host_inputs=(1,),
)


@topk.infer
def _(n: Infer) -> Result:
    data, k = n.tensor(0), scalar(n, 1)
    if data.shape is None:
        return [data, Tensor(DType.INT64, None)]
    at = axis(n.attrs["axis"], len(data.shape))
    if type(k) is int and (k < 0 or (type(data.shape[at]) is int and k > data.shape[at])):
        raise InferError(f"K is {k}, but axis {at} of shape {show(data.shape)} has {data.shape[at]} elements")
    shape = (*data.shape[:at], n.fresh("k") if k is None else k, *data.shape[at + 1 :])
    return [data.with_shape(shape), Tensor(DType.INT64, shape)][: n.outputs]


@topk.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    return Cost(vector=0 if shape is None else prod(shape) * 16)  # a merge sort's passes, as a rough constant


@topk.workspace
def _(n: Infer) -> Size:
    return elements(n.types[0]) * DType.INT64.itemsize  # the order of all elements, of which the first K leave


@topk.kernel
def _(call: Call, x: Array, k: Array) -> tuple[Array, Array]:
    at, count = axis(call.attrs["axis"], x.ndim), int(k.reshape(-1)[0])
    if count > x.shape[at]:
        raise InferError(f"K is {count}, but the axis has {x.shape[at]} elements")
    rows = np.moveaxis(x, at, -1)
    order = call.from_workspace(rows.shape, np.int64)
    if call.attrs["largest"]:
        # Stable on the mirrored row and mirrored back: descending, equal values in their own order.
        np.subtract(rows.shape[-1] - 1, np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1], out=order)
    else:
        np.copyto(order[..., :count], np.argsort(rows, axis=-1, kind="stable")[..., :count])
    order = order[..., :count].copy()
    values = np.take_along_axis(rows, order, axis=-1)
    return np.moveaxis(values, -1, at), np.moveaxis(order, -1, at)


nms = declare(
    "NonMaxSuppression",
    inputs="boxes scores max_output_boxes_per_class? iou_threshold? score_threshold?",
    outputs="selected_indices",
    attrs={"center_point_box": Attr("int", 0)},
    engine=Engine.AICPU,
    host_inputs=(2, 3, 4),
)


@nms.infer
def _(n: Infer) -> Result:
    boxes, scores = n.shape(0), n.shape(1)
    if boxes is not None and (len(boxes) != 3 or (type(boxes[2]) is int and boxes[2] != 4)):
        raise InferError(f"boxes must have shape [batches, boxes, 4], but have {show(boxes)}")
    if scores is not None and len(scores) != 3:
        raise InferError(f"scores must have shape [batches, classes, boxes], but have {show(scores)}")
    return Tensor(DType.INT64, (n.fresh("selected"), 3))


@nms.cost
def _(n: Infer) -> Cost:
    return Cost(vector=elements(n.types[1]) * 16)  # a sort of the scores; how many overlaps follow depends on data


def _corners(boxes: Array, center: bool) -> Array:
    """[boxes, 4] as y0, x0, y1, x1 with y0 <= y1 and x0 <= x1 (for centers: x, y, width, height given)."""
    if center:
        x, y, w, h = (boxes[..., i] for i in range(4))
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, high], axis=-1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with each of the others (float32; 0 where an area is 0)."""
    edges = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.maximum(edges[:, 0], 0) * np.maximum(edges[:, 1], 0)
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    union = area + areas - shared
    fine = (union > 0) & (area > 0) & (areas > 0)
    return np.where(fine, shared / np.where(fine, union, 1), 0)


def _suppress(boxes: Array, scores: Array, limit: int, overlap: float, least: float | None) -> list[int]:
    """Indices of the kept boxes of one class, best first."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[_overlaps(boxes[best], boxes[order]) <= overlap]
    return kept


def _one(value: Array | None, default: Any) -> Any:
    return default if value is None or not value.size else value.reshape(-1)[0]


@nms.kernel
def _(
    call: Call,
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    iou: Array | None = None,
    least: Array | None = None,
) -> Array:
    most = int(_one(limit, 0))
    overlap, threshold = _one(iou, np.float32(0)), _one(least, None)
    corners = _corners(boxes, bool(call.attrs["center_point_box"]))
    rows = [
        (b, c, i)
        for b in range(scores.shape[0])
        for c in range(scores.shape[1])
        for i in _suppress(corners[b], scores[b, c], most, overlap, threshold)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
