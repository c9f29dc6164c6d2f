"""What ai.onnx.ml's models do with raw scores: post transforms, the second column of a binary model, class labels.

A binary classifier with one score a row gets two columns. With the score s = 0.8 of class 1:

    weights all positive (s is a probability)     [1 - s, s]             [0.2, 0.8]
    otherwise                                     [-s, s]                [-0.8, 0.8]
    a transform but PROBIT                        of [-s, s]             LOGISTIC [0.31, 0.69]

Where the specification is silent, the rules are onnxruntime's, for which the models of this domain are exported: a
single score without a second column is changed by PROBIT only. (onnxruntime leaves a binary model's two columns alone
under SOFTMAX; the specification and onnx's reference implementation transform them, and so do we.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Infer, Shape
from atc_py.ops.shapes import show

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order in which TreeEnsemble numbers them."""
NUMERIC = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32})


def check_transform(n: Infer, name: str = "post_transform") -> None:
    """Fail when the attribute names no transform."""
    if n.attrs[name] not in TRANSFORMS:
        n.fail(f"attribute '{name}' is '{n.attrs[name]}'; expected one of {', '.join(TRANSFORMS)}")


def check_numeric(n: Infer, i: int = 0) -> None:
    """Fail when an input is no number that this domain's operators take."""
    if n.dtype(i) not in NUMERIC:
        n.fail(f"input {i} must be float32, float64, int64 or int32, but is {n.dtype(i).value}", "cast it first")


def rows(n: Infer, i: int = 0) -> Any:
    """The number of rows of a [rows, features] input; a vector is one row."""
    shape = n.shape(i)
    if shape is None:
        return n.fresh("rows")
    if len(shape) not in (1, 2):
        n.fail(f"input {i} has shape {show(shape)}; expected [rows, features] or [features]")
    return shape[0] if len(shape) == 2 else 1


def features(n: Infer, i: int = 0) -> Any:
    """The number of features of a [rows, features] input; None when it is unknown."""
    shape = n.shape(i)
    return shape[-1] if shape else None


def check_features(n: Infer, expected: int, what: str) -> None:
    """Fail when the number of features is known and not what the model's numbers are for."""
    found = features(n)
    if type(found) is int and found != expected:
        n.fail(f"the input has {found} features, but {what} are for {expected}")


def matrix(x: Array) -> Array:
    """A vector as one row."""
    return x.reshape(1, -1) if x.ndim == 1 else x


def as_real(x: Array) -> Array:
    """Integers as float32; floats as they are."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


# -- labels ------------------------------------------------------------------------------------------------


def labels_of(attrs: Mapping[str, Any], ints: str) -> Array | None:
    """The class labels: strings or int64; None when the model gives none."""
    words = attrs["classlabels_strings"]
    if words:
        return np.array([*words, ""], object)[:-1]
    return np.array(attrs[ints], np.int64) if attrs[ints] else None


def label_types(n: Infer, ints: str, count: int, batch: Any) -> tuple[Tensor, Tensor]:
    """The types of a classifier's two outputs, labels and scores of `count` columns."""
    text = bool(n.attrs["classlabels_strings"])
    if text and n.attrs[ints]:
        n.fail(f"attributes 'classlabels_strings' and '{ints}' are both given", "keep one of them")
    shape: Shape = (batch, count)
    return Tensor(DType.STRING if text else DType.INT64, (batch,)), Tensor(DType.FLOAT32, shape)


# -- transforms --------------------------------------------------------------------------------------------


def logistic(x: Array) -> Array:
    """1 / (1 + exp -x), without overflow."""
    half: Array = 1 / (1 + np.exp(-np.abs(x)))
    return np.asarray(np.where(x < 0, 1 - half, half), x.dtype)


def probit(x: Array) -> Array:
    """The quantile of the normal distribution, by Winitzki's approximation of erf⁻¹ (a = 0.147); NaN outside [0, 1]."""
    t = 2 * x - 1
    log = np.log((1 - t) * (1 + t))
    v = 2 / (np.pi * 0.147) + 0.5 * log
    root = np.sqrt(2) * np.sqrt(-v + np.sqrt(v * v - log / 0.147))
    return np.asarray(np.sign(t) * root, x.dtype)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def softmax_zero(x: Array) -> Array:
    """Softmax that leaves scores of zero at zero."""
    largest = x.max(axis=-1, keepdims=True)
    e = np.where(np.abs(x) > 1e-7, np.exp(x - largest), x * np.exp(-largest))
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total == 0, 0.5, e / np.where(total == 0, 1, total))).astype(x.dtype, copy=False)


def transform(scores: Array, name: str) -> Array:
    """The transform of scores [rows, columns]; a single column knows PROBIT only."""
    if not scores.size or name == "NONE":
        return scores
    if name == "PROBIT":
        return probit(scores)
    if scores.shape[1] == 1:
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    return softmax(scores) if name == "SOFTMAX" else softmax_zero(scores)


def two_columns(score: Array, name: str, probability: bool) -> Array:
    """Both columns of a binary model from the score [rows, 1] of its second class."""
    if probability and name in ("NONE", "PROBIT"):
        return transform(np.concatenate([1 - score, score], axis=1), name)
    return transform(np.concatenate([-score, score], axis=1), name)


def numbers(values: Sequence[float] | None, dtype: Any = np.float32) -> Array | None:
    """A list attribute as an array; None when it is absent or empty."""
    return np.array(values, dtype) if values else None
