"""ai.onnx.ml's SVMClassifier and SVMRegressor.

The kernel values of all rows and all support vectors are one matrix; every pair of classes (i, j) takes a slice of it,
as in libsvm's one-against-one scheme, for three classes with 2, 3 and 1 vectors:

    kernel: [rows, 6]     pair (0, 1):  c[0, 0:2] · kernel[:, 0:2]  +  c[0, 2:5] · kernel[:, 2:5]  +  ρ[0]

A pair votes for i when its score is positive, else for j, and the votes decide the label. With `prob_a` and `prob_b`
the pairs' scores become probabilities, coupled by the second method of Wu, Lin and Weng (2004), for all rows at once.
Without support vectors the model is linear, one row of coefficients a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.ml_scores import (
    as_real,
    check_features,
    check_numeric,
    check_transform,
    label_types,
    labels_of,
    logistic,
    matrix,
    rows,
    transform,
    two_columns,
)

_SHARED = {
    "coefficients": Attr("floats"),
    "kernel_params": Attr("floats", None),
    "kernel_type": Attr("str", "LINEAR"),
    "post_transform": Attr("str", "NONE"),
    "rho": Attr("floats"),
    "support_vectors": Attr("floats", None),
}
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")

classifier = declare(
    "ai.onnx.ml::SVMClassifier",
    inputs="X",
    outputs="Y Z",
    attrs={
        **_SHARED,
        "classlabels_ints": Attr("ints", None),
        "classlabels_strings": Attr("strs", None),
        "prob_a": Attr("floats", None),
        "prob_b": Attr("floats", None),
        "vectors_per_class": Attr("ints", None),
    },
    flags=Flags(recomputable=True),
)
regressor = declare(
    "ai.onnx.ml::SVMRegressor",
    inputs="X",
    outputs="Y",
    attrs={**_SHARED, "n_supports": Attr("int", 0), "one_class": Attr("int", 0)},
    flags=Flags(recomputable=True),
)


def kernel(attrs: Mapping[str, Any], x: Array, vectors: Array, name: str) -> Array:
    """The kernel of every row of `x` and every vector: [rows, vectors]."""
    gamma, coefficient, degree = (*(attrs["kernel_params"] or ()), 0.0, 0.0, 0.0)[:3]
    real = x.dtype.type
    if name == "RBF":
        # |a - b|² in blocks of rows: the expansion |a|² - 2ab + |b|² would lose digits.
        out = np.empty((len(x), len(vectors)), x.dtype)
        step = max(1, (1 << 22) // max(1, vectors.size))
        for at in range(0, len(x), step):
            np.sum(np.square(x[at : at + step, None] - vectors), axis=-1, out=out[at : at + step])
        return np.asarray(np.exp(out * real(-gamma)))
    dots: Array = x @ vectors.T
    if name == "LINEAR":
        return dots
    dots = dots * real(gamma) + real(coefficient)
    return np.asarray(np.tanh(dots) if name == "SIGMOID" else np.power(dots, real(int(degree))))


def _check(n: Infer, vectors: int) -> None:
    check_numeric(n)
    check_transform(n)
    if n.attrs["kernel_type"] not in KERNELS:
        n.fail(f"attribute 'kernel_type' is '{n.attrs['kernel_type']}'; expected one of {', '.join(KERNELS)}")
    if vectors:
        given = len(n.attrs["support_vectors"] or ())
        if not given or given % vectors:
            n.fail(f"{given} numbers do not divide into {vectors} support vectors")
        check_features(n, given // vectors, "the support vectors")


def _cost(n: Infer) -> Cost:
    given = len(n.attrs["support_vectors"] or n.attrs["coefficients"])
    return Cost(macs=rows(n) * given)


regressor.cost(_cost)
classifier.cost(_cost)


# -- regression --------------------------------------------------------------------------------------------


@regressor.infer
def _(n: Infer) -> Result:
    _check(n, n.attrs["n_supports"])
    if not n.attrs["rho"]:
        n.fail("attribute 'rho' is empty")
    return Tensor(DType.FLOAT32, (rows(n), 1))


@regressor.kernel
def _(call: Call, x: Array) -> Array:
    attrs, real = call.attrs, as_real(matrix(x))
    coefficients = np.array(attrs["coefficients"], real.dtype)
    with np.errstate(all="ignore"):
        if attrs["n_supports"] > 0:
            vectors = np.array(attrs["support_vectors"], real.dtype).reshape(attrs["n_supports"], -1)
            values = kernel(attrs, real, vectors, attrs["kernel_type"])
            score = values @ coefficients[: attrs["n_supports"], None]
        else:
            score = kernel(attrs, real, coefficients.reshape(1, -1), "LINEAR")
        score = score + real.dtype.type(attrs["rho"][0])
        if attrs["one_class"]:
            score = np.where(score > 0, 1, -1)
        y = call.into(0, score.shape, np.float32)
        np.copyto(y, score if attrs["one_class"] else transform(score, attrs["post_transform"]), casting="unsafe")
    return y


# -- classification ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A classifier's numbers. `weights` is [pairs, vectors], one row for each pair of classes."""

    classes: int
    labels: Array | None
    vectors: Array | None
    weights: Array
    rho: Array
    positive: bool
    pairs: tuple[Array, Array]


def _classes(attrs: Mapping[str, Any]) -> int:
    return max(1, len(attrs["classlabels_strings"] or attrs["classlabels_ints"] or attrs["vectors_per_class"] or ()))


def _machine(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> Machine:
    counts = np.array(attrs["vectors_per_class"] or (), np.int64)
    total, classes = int(counts.sum()), _classes(attrs)
    coefficients, rho = np.array(attrs["coefficients"], dtype), np.array(attrs["rho"], dtype)
    labels = labels_of(attrs, "classlabels_ints")
    positive = bool((coefficients >= 0).all())
    pairs = np.triu_indices(classes, 1)
    if not total:
        return Machine(classes, labels, None, coefficients.reshape(classes, -1), rho, positive, pairs)
    table = coefficients.reshape(classes - 1, total)
    owner = np.repeat(np.arange(classes), counts)
    first, second = pairs[0][:, None], pairs[1][:, None]
    # Vectors of the first class of a pair have their coefficient in row j - 1, those of the second in row i.
    weights = np.where(owner == first, table[second[:, 0] - 1], np.where(owner == second, table[first[:, 0]], 0))
    vectors = np.array(attrs["support_vectors"], dtype).reshape(total, -1)
    return Machine(classes, labels, vectors, weights.astype(dtype), rho, positive, pairs)


@classifier.infer
def _(n: Infer) -> Result:
    counts = n.attrs["vectors_per_class"] or ()
    total, classes = sum(counts), _classes(n.attrs)
    _check(n, total)
    given, rho = len(n.attrs["coefficients"]), len(n.attrs["rho"])
    pairs = classes * (classes - 1) // 2
    if total and (len(counts) != classes or given != total * (classes - 1)):
        n.fail(f"{given} coefficients, vectors_per_class {list(counts)} and {classes} labels do not fit together")
    if not total and given % classes:
        n.fail(f"{given} coefficients do not divide into {classes} classes")
    if rho < (pairs if total else 1):
        n.fail(f"there are {rho} values of rho; expected {pairs if total else 1}")
    columns = pairs if total and not n.attrs["prob_a"] else classes
    return label_types(n, "classlabels_ints", 2 if columns == 1 and classes <= 2 else columns, rows(n))


def _couple(pair: Array) -> Array:
    """Class probabilities [rows, classes] from pairwise ones [rows, classes, classes] (Wu, Lin, Weng)."""
    count, k = pair.shape[:2]
    p = np.full((count, k), 1 / k, pair.dtype)
    q = -np.swapaxes(pair, 1, 2) * pair
    diagonal = np.arange(k)
    q[:, diagonal, diagonal] = np.square(pair).sum(axis=1) - np.square(pair[:, diagonal, diagonal])
    going = np.arange(count)
    for _ in range(max(100, k)):
        qp = np.einsum("nij,nj->ni", q[going], p[going])
        pqp = (p[going] * qp).sum(axis=1)
        on = np.abs(qp - pqp[:, None]).max(axis=1) >= 0.005 / k
        going, qp, pqp = going[on], qp[on], pqp[on]
        if not going.size:
            break
        mine, current = q[going], p[going]
        for t in range(k):
            step = (pqp - qp[:, t]) / mine[:, t, t]
            current[:, t] += step
            pqp = (pqp + step * (step * mine[:, t, t] + 2 * qp[:, t])) / np.square(1 + step)
            qp = (qp + step[:, None] * mine[:, t]) / (1 + step)[:, None]
            current /= (1 + step)[:, None]
        p[going] = current
    return p


def _probabilities(m: Machine, attrs: Mapping[str, Any], scores: Array) -> Array:
    a, b = (np.array(attrs[name], scores.dtype) for name in ("prob_a", "prob_b"))
    tiny = scores.dtype.type(1e-7)
    first = np.clip(1 - logistic(scores * a + b), tiny, 1 - tiny)
    pair = np.zeros((len(scores), m.classes, m.classes), scores.dtype)
    i, j = m.pairs
    pair[:, i, j], pair[:, j, i] = first, 1 - first
    return _couple(pair)


@classifier.prepare
def _(call: Call) -> Machine | None:
    x = call.in_types[0] if call.in_types else None
    if not isinstance(x, Tensor):
        return None
    return _machine(call.attrs, np.dtype(np.float64 if x.dtype is DType.FLOAT64 else np.float32))


@classifier.kernel
def _(call: Call, x: Array) -> tuple[Array, Array]:
    attrs, real = call.attrs, as_real(matrix(x))
    m: Machine = call.state or _machine(attrs, real.dtype)
    with np.errstate(all="ignore"):
        if m.vectors is None:
            # Liblinear's models have no kernel but the product, whatever the attribute says.
            scores = kernel(attrs, real, m.weights, "LINEAR") + m.rho[0]
            ranked = scores
        else:
            scores = kernel(attrs, real, m.vectors, attrs["kernel_type"]) @ m.weights.T + m.rho[: len(m.weights)]
            ranked = np.zeros((len(real), m.classes), np.int64)
            for column, (i, j) in enumerate(zip(*m.pairs)):
                won = scores[:, column] > 0
                ranked[:, i] += won
                ranked[:, j] += ~won
            if attrs["prob_a"]:
                scores = _probabilities(m, attrs, scores)
        return _labels(m, ranked), _final(m, attrs, scores).astype(np.float32)


def _labels(m: Machine, ranked: Array) -> Array:
    best = np.argmax(ranked, axis=1)
    if m.labels is None or len(m.labels) < 2:
        if len(m.rho) != 1:
            return np.asarray(best)
        positive = np.take_along_axis(ranked, best[:, None], 1)[:, 0] > 0
        if m.labels is not None and m.labels.dtype == object:
            return np.where(positive, m.labels[0], "").astype(object)
        return positive.astype(np.int64)
    chosen: Array = m.labels[best]
    return chosen


def _final(m: Machine, attrs: Mapping[str, Any], scores: Array) -> Array:
    if scores.shape[1] != 1 or m.classes != 2:
        return transform(scores, attrs["post_transform"])
    return two_columns(scores, attrs["post_transform"], probability=False)
