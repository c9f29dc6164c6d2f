"""ai.onnx.ml's TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble.

All three become one kind of tables at bind (`ml_tree_tables`), which rows walk together (`ml_forest`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, InferError, Op, Result, declare
from atc_py.ops.ml_forest import Forest
from atc_py.ops.ml_scores import (
    TRANSFORMS,
    as_real,
    check_numeric,
    check_transform,
    label_types,
    labels_of,
    matrix,
    rows,
    transform,
    two_columns,
)
from atc_py.ops.ml_tree_tables import by_id, by_place, check_lengths, tree_numbers

_NODES = {
    "base_values": Attr("floats", None),
    "base_values_as_tensor": Attr("tensor", None),
    "nodes_falsenodeids": Attr("ints"),
    "nodes_featureids": Attr("ints"),
    "nodes_hitrates": Attr("floats", None),
    "nodes_hitrates_as_tensor": Attr("tensor", None),
    "nodes_missing_value_tracks_true": Attr("ints", None),
    "nodes_modes": Attr("strs"),
    "nodes_nodeids": Attr("ints"),
    "nodes_treeids": Attr("ints"),
    "nodes_truenodeids": Attr("ints"),
    "nodes_values": Attr("floats", None),
    "nodes_values_as_tensor": Attr("tensor", None),
    "post_transform": Attr("str", "NONE"),
}


def _leaves(kind: str) -> dict[str, Attr]:
    """The attributes that give leaves their weights: `class_…` or `target_…`."""
    return {
        f"{kind}_ids": Attr("ints"),
        f"{kind}_nodeids": Attr("ints"),
        f"{kind}_treeids": Attr("ints"),
        f"{kind}_weights": Attr("floats", None),
        f"{kind}_weights_as_tensor": Attr("tensor", None),
    }


_FLAGS = Flags(recomputable=True)
classifier = declare(
    "ai.onnx.ml::TreeEnsembleClassifier",
    inputs="X",
    outputs="Y Z",
    attrs={
        **_NODES,
        **_leaves("class"),
        "classlabels_int64s": Attr("ints", None),
        "classlabels_strings": Attr("strs", None),
    },
    flags=_FLAGS,
)
regressor = declare(
    "ai.onnx.ml::TreeEnsembleRegressor",
    inputs="X",
    outputs="Y",
    attrs={**_NODES, **_leaves("target"), "aggregate_function": Attr("str", "SUM"), "n_targets": Attr("int")},
    flags=_FLAGS,
)
ensemble = declare(
    "ai.onnx.ml::TreeEnsemble",
    inputs="X",
    outputs="Y",
    attrs={
        "aggregate_function": Attr("int", 1),
        "leaf_targetids": Attr("ints"),
        "leaf_weights": Attr("tensor"),
        "membership_values": Attr("tensor", None),
        "n_targets": Attr("int", REQUIRED),
        "nodes_falseleafs": Attr("ints"),
        "nodes_falsenodeids": Attr("ints"),
        "nodes_featureids": Attr("ints"),
        "nodes_hitrates": Attr("tensor", None),
        "nodes_missing_value_tracks_true": Attr("ints", None),
        "nodes_modes": Attr("tensor"),
        "nodes_splits": Attr("tensor"),
        "nodes_trueleafs": Attr("ints"),
        "nodes_truenodeids": Attr("ints"),
        "post_transform": Attr("int", 0),
        "tree_roots": Attr("ints"),
    },
    flags=_FLAGS,
)
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""In the order in which TreeEnsemble numbers them."""


def _real(dtype: DType) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype is DType.FLOAT64 else np.float32)


def _features(f: Forest, x: Array) -> Array:
    """The input as a matrix of floats that has the features which the trees look at."""
    real = as_real(matrix(x))
    if real.shape[1] < f.features:
        raise InferError(f"the trees look at {f.features} features, but the input has {real.shape[1]}")
    return real


def _check_input(n: Infer, kind: str = "") -> None:
    check_lengths(n.attrs, kind)
    shape = n.shape(0)
    if n.dtype(0) is not DType.FLOAT16:
        check_numeric(n)
    least = max(n.attrs["nodes_featureids"], default=0) + 1
    last = shape[-1] if shape else None
    if type(last) is int and last < least:
        n.fail(f"the trees look at {least} features, but the input has {last}")


def _cost(op: Op) -> None:
    def cost(n: Infer) -> Cost:
        trees = len(n.attrs["tree_roots"]) if "tree_roots" in n.attrs else len(set(n.attrs["nodes_treeids"]))
        nodes = len(n.attrs["nodes_featureids"])
        depth = max(1, (nodes // max(1, trees)).bit_length())
        return Cost(vector=rows(n) * (trees * depth * 6))

    op.cost(cost)


for _op in (classifier, regressor, ensemble):
    _cost(_op)


# -- regression --------------------------------------------------------------------------------------------


@regressor.infer
def _(n: Infer) -> Result:
    _check_input(n, "target")
    check_transform(n)
    if n.attrs["aggregate_function"] not in AGGREGATES:
        n.fail(f"attribute 'aggregate_function' is '{n.attrs['aggregate_function']}'; expected {', '.join(AGGREGATES)}")
    return Tensor(DType.FLOAT32, (rows(n), n.attrs["n_targets"]))


@regressor.prepare
def _(call: Call) -> Forest | None:
    x = call.in_types[0] if call.in_types else None
    return by_id(call.attrs, "target", call.attrs["n_targets"], _real(x.dtype)) if isinstance(x, Tensor) else None


@regressor.kernel
def _(call: Call, x: Array) -> Array:
    attrs, dtype = call.attrs, np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    f: Forest = call.state or by_id(attrs, "target", attrs["n_targets"], dtype)
    with np.errstate(all="ignore"):
        scores = f.scores(_features(f, x), attrs["aggregate_function"], dtype.type)
        base = tree_numbers(attrs, "base_values", dtype)
        if base is not None and base.size:
            scores = scores + base
        y = call.into(0, scores.shape, np.float32)
        np.copyto(y, transform(scores, attrs["post_transform"]), casting="unsafe")
    return y


@ensemble.infer
def _(n: Infer) -> Result:
    _check_input(n)
    for name, most in (("aggregate_function", len(AGGREGATES)), ("post_transform", len(TRANSFORMS))):
        if not 0 <= n.attrs[name] < most:
            n.fail(f"attribute '{name}' is {n.attrs[name]}; expected 0 to {most - 1}")
    return Tensor(n.dtype(0), (rows(n), n.attrs["n_targets"]))


@ensemble.prepare
def _(call: Call) -> Forest:
    return by_place(call.attrs)


@ensemble.kernel
def _(call: Call, x: Array) -> Array:
    f: Forest = call.state or by_place(call.attrs)
    dtype = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    with np.errstate(all="ignore"):
        scores = f.scores(_features(f, x), AGGREGATES[call.attrs["aggregate_function"]], dtype.type)
        y = call.into(0, scores.shape, x.dtype)
        np.copyto(y, transform(scores, TRANSFORMS[call.attrs["post_transform"]]), casting="unsafe")
    return y


# -- classification ----------------------------------------------------------------------------------------


def _classes(attrs: Mapping[str, Any]) -> int:
    labels = labels_of(attrs, "classlabels_int64s")
    return 0 if labels is None else len(labels)


def _single(attrs: Mapping[str, Any]) -> bool:
    """Whether leaves give weights to one class of at most two."""
    return _classes(attrs) <= 2 and len(set(attrs["class_ids"])) <= 1


@classifier.infer
def _(n: Infer) -> Result:
    _check_input(n, "class")
    check_transform(n)
    count = _classes(n.attrs)
    if not count:
        n.fail("one of 'classlabels_int64s' and 'classlabels_strings' must be given")
    return label_types(n, "classlabels_int64s", count, rows(n))


@classifier.prepare
def _(call: Call) -> Forest | None:
    x = call.in_types[0] if call.in_types else None
    return by_id(call.attrs, "class", _classes(call.attrs), _real(x.dtype)) if isinstance(x, Tensor) else None


@classifier.kernel
def _(call: Call, x: Array) -> tuple[Array, Array]:
    attrs, dtype = call.attrs, np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    labels = labels_of(attrs, "classlabels_int64s")
    assert labels is not None
    f: Forest = call.state or by_id(attrs, "class", len(labels), dtype)
    with np.errstate(all="ignore"):
        scores = f.scores(_features(f, x), "SUM", dtype.type)
        base = tree_numbers(attrs, "base_values", dtype)
        if base is not None and base.size:
            scores = scores + base
        if _single(attrs):
            return _binary(attrs, labels, scores)
        return labels[np.argmax(scores, axis=1)], transform(scores, attrs["post_transform"]).astype(np.float32)


def _binary(attrs: Mapping[str, Any], labels: Array, scores: Array) -> tuple[Array, Array]:
    """One score: above 0.5 it is the second class where all weights are positive, else above 0.

    Weights for class 0 are meant for class 1, and class 0 has what is left; weights for class 1 leave class 0 alone.
    """
    name = attrs["post_transform"]
    column = attrs["class_ids"][0] if attrs["class_ids"] else 0
    score = scores[:, column : column + 1]
    weights = tree_numbers(attrs, "class_weights", np.dtype(np.float32))
    probability = weights is None or bool((weights >= 0).all())
    if len(labels) == 1:
        absent: Any = "" if labels.dtype == object else 0
        return np.where(score[:, 0] > 0, labels[0], absent).astype(labels.dtype), transform(score, name).astype("f4")
    chosen = labels[(score[:, 0] > (0.5 if probability else 0)).astype(np.int64)]
    both = two_columns(score, name, probability) if column == 0 else transform(scores, name)
    return chosen, both.astype(np.float32)
