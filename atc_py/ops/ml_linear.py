"""ai.onnx.ml's LinearClassifier and LinearRegressor: one matrix product, then labels and a post transform.

    x: [rows, 4]   coefficients: 3 classes · 4   →   x @ coefficientsᵀ + intercepts   →   [rows, 3], argmax → label

A classifier with one intercept and two labels has one score, that of its second class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.ml_scores import (
    check_numeric,
    check_transform,
    features,
    label_types,
    labels_of,
    matrix,
    rows,
    transform,
    two_columns,
)

classifier = declare(
    "ai.onnx.ml::LinearClassifier",
    inputs="X",
    outputs="Y Z",
    attrs={
        "classlabels_ints": Attr("ints", None),
        "classlabels_strings": Attr("strs", None),
        "coefficients": Attr("floats"),
        "intercepts": Attr("floats", None),
        "multi_class": Attr("int", 0),
        "post_transform": Attr("str", "NONE"),
    },
    flags=Flags(recomputable=True),
)
regressor = declare(
    "ai.onnx.ml::LinearRegressor",
    inputs="X",
    outputs="Y",
    attrs={
        "coefficients": Attr("floats"),
        "intercepts": Attr("floats", None),
        "post_transform": Attr("str", "NONE"),
        "targets": Attr("int", 1),
    },
    flags=Flags(recomputable=True),
)


def _weights(n: Infer, count: int) -> None:
    """The coefficients must be `count` rows of one for each feature, with as many intercepts.

    Models exist that carry more coefficients than that; the first ones count then, as in onnxruntime.
    """
    given, intercepts, width = len(n.attrs["coefficients"]), n.attrs["intercepts"], features(n)
    if count < 1:
        n.fail(f"the number of targets is {count}; expected at least 1")
    if intercepts and len(intercepts) != count:
        n.fail(f"there are {len(intercepts)} intercepts; expected {count}")
    if type(width) is int and given < count * width:
        n.fail(f"there are {given} coefficients; {count} scores of {width} features need {count * width}")


def _classes(attrs: Mapping[str, Any]) -> int:
    """The number of scores: one for each intercept, else for each label."""
    labels = labels_of(attrs, "classlabels_ints")
    return len(attrs["intercepts"] or ()) or (1 if labels is None else len(labels))


def _scores(call: Call, x: Array, count: int) -> Array:
    """x @ coefficientsᵀ + intercepts, in float32 (float64 for float64 inputs)."""
    dtype: Any = np.float64 if x.dtype == np.float64 else np.float32
    real = matrix(x).astype(dtype, copy=False)
    weights = np.array(call.attrs["coefficients"], dtype)[: count * real.shape[1]].reshape(count, real.shape[1])
    scores: Array = real @ weights.T
    if call.attrs["intercepts"]:
        np.add(scores, np.array(call.attrs["intercepts"], dtype), out=scores)
    return scores


def _cost(n: Infer) -> Cost:
    return Cost(macs=rows(n) * len(n.attrs["coefficients"]))


classifier.cost(_cost)
regressor.cost(_cost)


@classifier.infer
def _(n: Infer) -> Result:
    check_numeric(n)
    check_transform(n)
    count = _classes(n.attrs)
    _weights(n, count)
    labels = labels_of(n.attrs, "classlabels_ints")
    known = 0 if labels is None else len(labels)
    if count > 1 and known != count:
        n.fail(f"there are {known} class labels for {count} scores")
    if count == 1 and known > 2:
        n.fail(f"there are {known} class labels for one score")
    return label_types(n, "classlabels_ints", 2 if (count, known) == (1, 2) else count, rows(n))


@classifier.kernel
def _(call: Call, x: Array) -> tuple[Array, Array]:
    attrs = call.attrs
    count, labels = _classes(attrs), labels_of(attrs, "classlabels_ints")
    with np.errstate(all="ignore"):
        scores = _scores(call, x, count)
        if count > 1:
            assert labels is not None
            return labels[np.argmax(scores, axis=1)], transform(scores, attrs["post_transform"]).astype(np.float32)
        positive = (scores[:, 0] > 0).astype(np.int64)
        if labels is None:
            chosen: Array = positive
        elif len(labels) == 2:
            chosen = labels[positive]
        else:
            absent: Any = "" if labels.dtype == object else 0
            chosen = np.where(positive == 1, labels[0], absent)
        if labels is not None and len(labels) == 2:
            scores = two_columns(scores, attrs["post_transform"], probability=True)
        else:
            scores = transform(scores, attrs["post_transform"])
    return chosen, scores.astype(np.float32)


@regressor.infer
def _(n: Infer) -> Result:
    check_numeric(n)
    check_transform(n)
    targets = n.attrs["targets"]
    _weights(n, targets)
    return Tensor(DType.FLOAT32, (rows(n), targets))


@regressor.kernel
def _(call: Call, x: Array) -> Array:
    with np.errstate(all="ignore"):
        scores = _scores(call, x, call.attrs["targets"])
        y = call.into(0, scores.shape, np.float32)
        np.copyto(y, transform(scores, call.attrs["post_transform"]), casting="unsafe")
    return y
