"""ai.onnx.ml's linear models, support vector machines and tree ensembles, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from atc_py.errors import AtcError
from tests.ops.one_node import agree, expected, model, ours, same

RNG = np.random.default_rng(5)
X = RNG.normal(size=(37, 4)).astype(np.float32)
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]


def floats(*shape: int) -> list[float]:
    return [float(v) for v in RNG.normal(size=shape).astype(np.float32).reshape(-1)]


# -- linear ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("labels", [{"classlabels_ints": [7, 3, 5]}, {"classlabels_strings": ["a", "b", "c"]}])
def test_linear_classifier(transform: str, labels: dict[str, Any]) -> None:
    given: dict[str, Any] = dict(coefficients=floats(3, 4), intercepts=floats(3), post_transform=transform, **labels)
    for x in (X, X[0], X.astype(np.float64), (X * 9).astype(np.int64), X[:0]):
        agree("ai.onnx.ml::LinearClassifier", [x], 2, **given)
    agree("ai.onnx.ml::LinearClassifier", [X], 2, symbolic=True, **given)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("labels", [{"classlabels_ints": [7, 3]}, {"classlabels_strings": ["a", "b"]}])
def test_binary_linear_classifier(transform: str, labels: dict[str, Any]) -> None:
    given: dict[str, Any] = dict(coefficients=floats(1, 4), intercepts=floats(1), post_transform=transform, **labels)
    agree("ai.onnx.ml::LinearClassifier", [X], 2, **given)


def test_softmax_of_a_binary_classifier() -> None:
    """onnxruntime skips the transform, which the specification asks for."""
    weights = floats(1, 4)
    attrs = {"coefficients": weights, "intercepts": [0.0], "classlabels_ints": [7, 3], "post_transform": "SOFTMAX"}
    _, scores = ours(model("ai.onnx.ml::LinearClassifier", [X], attrs, 2), {"x0": X})
    s = X @ np.array(weights, np.float32)
    same([scores], [np.stack([1 / (1 + np.exp(2 * s)), 1 / (1 + np.exp(-2 * s))], 1).astype(np.float32)])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(transform: str, targets: int) -> None:
    given: dict[str, Any] = {"coefficients": floats(targets, 4), "targets": targets, "post_transform": transform}
    agree("ai.onnx.ml::LinearRegressor", [X], symbolic=True, **given)
    agree("ai.onnx.ml::LinearRegressor", [X], intercepts=floats(targets), **given)


def test_probit() -> None:
    x = RNG.uniform(0.01, 0.99, (9, 2)).astype(np.float32)
    unit: dict[str, Any] = {"coefficients": [1.0, 0.0, 0.0, 1.0], "targets": 2, "post_transform": "PROBIT"}
    agree("ai.onnx.ml::LinearRegressor", [x], rtol=1e-4, **unit)


# -- support vectors ---------------------------------------------------------------------------------------

KERNELS = [("LINEAR", []), ("POLY", [0.5, 0.3, 2.0]), ("RBF", [0.4, 0.0, 3.0]), ("SIGMOID", [0.3, 0.1, 3.0])]


@pytest.mark.parametrize(("kernel", "params"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, params: list[float], one_class: int) -> None:
    agree(
        "ai.onnx.ml::SVMRegressor", [X], kernel_type=kernel, kernel_params=params or [0.0] * 3, one_class=one_class,
        support_vectors=floats(6, 4), coefficients=floats(6), rho=floats(1), n_supports=6, rtol=1e-4, symbolic=True,
    )  # fmt: skip


def test_linear_svm_regressor() -> None:
    params = [0.0, 0.0, 0.0]
    agree("ai.onnx.ml::SVMRegressor", [X], coefficients=floats(4), rho=floats(1), kernel_params=params)


@pytest.mark.parametrize(("kernel", "params"), KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel: str, params: list[float], classes: int, probabilities: bool) -> None:
    counts = [3, 2, 4, 1][:classes]
    pairs = classes * (classes - 1) // 2
    given: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": params or [0.0, 0.0, 0.0], "support_vectors": floats(sum(counts), 4),
        "coefficients": floats(classes - 1, sum(counts)), "rho": floats(pairs), "vectors_per_class": counts,
        "classlabels_ints": [5, 6, 7, 8][:classes],
    }  # fmt: skip
    if probabilities:
        given |= {"prob_a": [-abs(v) for v in floats(pairs)], "prob_b": floats(pairs)}
    agree("ai.onnx.ml::SVMClassifier", [X], 2, rtol=1e-4, atol=1e-5, **given)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_svm_classifier_of_two_classes_with_strings(transform: str) -> None:
    given: dict[str, Any] = {
        "kernel_type": "RBF", "kernel_params": [0.4, 0.0, 3.0], "support_vectors": floats(5, 4),
        "coefficients": floats(1, 5),
        "rho": floats(1), "vectors_per_class": [2, 3], "classlabels_strings": ["no", "yes"],
        "post_transform": transform,
    }  # fmt: skip
    agree("ai.onnx.ml::SVMClassifier", [X], 2, rtol=1e-4, symbolic=True, **given)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_svm_classifier(transform: str) -> None:
    agree(
        "ai.onnx.ml::SVMClassifier", [X], 2, coefficients=floats(3, 4), rho=floats(1), kernel_type="LINEAR",
        classlabels_ints=[5, 6, 7], post_transform=transform, kernel_params=[0.0, 0.0, 0.0],
    )  # fmt: skip


# -- trees -------------------------------------------------------------------------------------------------

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def forest(
    trees: int, depth: int, modes: list[str], kind: str, ids: list[int], positive: bool = False
) -> dict[str, Any]:
    """Random trees whose leaves lie at different depths; splits are taken from the data, so that equality happens."""
    names = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true"
    t: dict[str, list[Any]] = {f"nodes_{n}": [] for n in names.split()}
    leaves: dict[str, list[Any]] = {f"{kind}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        nodes = 2 ** (depth + 1) - 1
        cut: set[int] = set()
        for node in range(nodes):
            if node and (node - 1) // 2 in cut:
                cut.add(node)
                continue
            leaf = node >= nodes // 2 or (node > 0 and RNG.random() < 0.2)
            if leaf:
                cut.add(node)
                for k in ids:
                    weight = float(np.float32(RNG.normal()))
                    leaves[f"{kind}_treeids"].append(tree)
                    leaves[f"{kind}_nodeids"].append(node + 10)
                    leaves[f"{kind}_ids"].append(k)
                    leaves[f"{kind}_weights"].append(abs(weight) if positive else weight)
            row = (tree, node + 10, int(RNG.integers(4)), "LEAF" if leaf else modes[int(RNG.integers(len(modes)))],
                   float(RNG.choice(X.reshape(-1))), 0 if leaf else 2 * node + 11, 0 if leaf else 2 * node + 12,
                   int(RNG.integers(2)))  # fmt: skip
            for name, value in zip(t, row, strict=True):
                t[name].append(value)
    return t | leaves


GAPS = X.copy()
GAPS[RNG.random(X.shape) < 0.2] = np.nan


@pytest.mark.parametrize("modes", [MODES[:1], MODES[1:2], MODES])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(modes: list[str], targets: int, how: str) -> None:
    given = forest(5, 4, modes, "target", list(range(targets)))
    agree("ai.onnx.ml::TreeEnsembleRegressor", [X], n_targets=targets, aggregate_function=how, **given)
    agree(
        "ai.onnx.ml::TreeEnsembleRegressor", [X], n_targets=targets, aggregate_function=how, symbolic=True,
        base_values=floats(targets), **given,
    )  # fmt: skip
    if "BRANCH_NEQ" not in modes:
        agree("ai.onnx.ml::TreeEnsembleRegressor", [GAPS], n_targets=targets, aggregate_function=how, **given)


def test_tree_regressor_of_float64_and_of_integers() -> None:
    given = forest(3, 3, MODES[:1], "target", [0])
    tensors: dict[str, Any] = {
        f"{name}_as_tensor": helper.make_tensor(name, 11, [len(given[name])], given[name])
        for name in ("nodes_values", "target_weights")
    }
    rest = {k: v for k, v in given.items() if k not in ("nodes_values", "target_weights")}
    agree("ai.onnx.ml::TreeEnsembleRegressor", [X.astype(np.float64)], n_targets=1, **rest, **tensors)
    whole, op = (9 * X).astype(np.int64), "ai.onnx.ml::TreeEnsembleRegressor"
    [got] = ours(model(op, [whole], given | {"n_targets": 1}), {"x0": whole})
    [want] = ours(model(op, [X], given | {"n_targets": 1}), {"x0": whole.astype(np.float32)})
    same([got], [want])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("base", [0, 3])
def test_tree_classifier(transform: str, base: int) -> None:
    given = forest(4, 3, MODES[:1], "class", [0, 1, 2])
    extra: dict[str, Any] = {"base_values": floats(3)} if base else {}
    for labels in ({"classlabels_int64s": [7, 3, 5]}, {"classlabels_strings": ["a", "b", "c"]}):
        agree("ai.onnx.ml::TreeEnsembleClassifier", [X], 2, post_transform=transform, **given, **labels, **extra)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [0, 1])
def test_tree_classifier_of_two_classes(transform: str, positive: bool, base: int) -> None:
    given = forest(4, 3, MODES[:1], "class", [0], positive)
    given["class_weights"] = [w / 4 for w in given["class_weights"]]
    extra: dict[str, Any] = {"base_values": [0.1]} if base else {}
    for labels in ({"classlabels_strings": ["no", "yes"]}, {"classlabels_int64s": [4, 2]}):
        agree("ai.onnx.ml::TreeEnsembleClassifier", [X], 2, post_transform=transform, **given, **labels, **extra)


@pytest.mark.parametrize("positive", [False, True])
def test_tree_classifier_with_weights_of_the_second_class(positive: bool) -> None:
    given = forest(4, 3, MODES[:1], "class", [1], positive)
    agree("ai.onnx.ml::TreeEnsembleClassifier", [X], 2, classlabels_strings=["no", "yes"], **given)


def test_tree_classifier_with_weights_of_both_classes() -> None:
    """The greater score wins, and the label is the model's (onnxruntime answers 0 or 1 whatever the labels are)."""
    given = forest(4, 3, MODES[:1], "class", [0, 1]) | {"classlabels_int64s": [4, 2]}
    labels, scores = ours(model("ai.onnx.ml::TreeEnsembleClassifier", [X], given, 2), {"x0": X})
    same([labels], [np.array([4, 2])[np.argmax(scores, 1)]])
    same([scores], expected(model("ai.onnx.ml::TreeEnsembleClassifier", [X], given, 2), {"x0": X})[1:])


def test_tree_ensemble() -> None:
    """Version 5, with a set membership: the set's order of values does not matter."""
    attrs = {
        "n_targets": 2, "tree_roots": [0], "nodes_featureids": [0, 1], "nodes_trueleafs": [0, 1],
        "nodes_falseleafs": [1, 1],
        "nodes_truenodeids": [1, 0], "nodes_falsenodeids": [2, 1], "leaf_targetids": [0, 1, 0],
        "nodes_modes": helper.make_tensor("m", 2, [2], [6, 0]),
        "nodes_splits": helper.make_tensor("s", 1, [2], [0.0, 0.5]),
        "leaf_weights": helper.make_tensor("w", 1, [3], [1.0, 2.0, 4.0]),
        "membership_values": helper.make_tensor("v", 1, [4], [3.0, 1.0, 2.0, float("nan")]),
    }  # fmt: skip
    x = np.array([[1, 0], [2, 1], [3, 0.5], [4, 0], [float("nan"), 0]], np.float32)
    want = [np.array([[1, 0], [0, 2], [1, 0], [4, 0], [4, 0]], np.float32)]
    same(ours(model("ai.onnx.ml::TreeEnsemble", [x], attrs, version=5), {"x0": x}), want)
    half = x.astype(np.float16)
    same(ours(model("ai.onnx.ml::TreeEnsemble", [half], attrs, version=5), {"x0": half}), [want[0].astype(np.float16)])


def test_trees_that_do_not_fit_together_are_refused() -> None:
    given = forest(2, 2, MODES[:1], "target", [0]) | {"n_targets": 1}
    op = "ai.onnx.ml::TreeEnsembleRegressor"
    with pytest.raises(AtcError, match="differ in length"):
        ours(model(op, [X], given | {"nodes_modes": given["nodes_modes"][:-1]}), {"x0": X})
    with pytest.raises(AtcError, match="the trees look at 4 features, but the input has 2"):
        ours(model(op, [X[:, :2]], given), {"x0": X[:, :2]})
    with pytest.raises(AtcError, match="does not have"):
        away = [v + 90 if v else 0 for v in given["nodes_truenodeids"]]
        ours(model(op, [X], given | {"nodes_truenodeids": away}), {"x0": X})
