"""Gathers, scatters and selections: node tests, duplicate and negative indices, dtypes, symbolic shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ir.types import DType, Tensor
from atc_py.ops import index_ops, scatter_ops, select_ops  # noqa: F401 - registers the operators
from atc_py.ops.base import REGISTRY, Call, Infer, InferError
from tests.ops import node_models
from tests.ops.test_shape_ops import H, N, S, build, run, shape_of, value_of

OPS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter", "Compress", "Unique")


@pytest.mark.parametrize("test", node_models.node_tests(*OPS, "TopK", "NonMaxSuppression"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    node_models.check(test)


def test_gather_shapes_and_values() -> None:
    assert shape_of("Gather", [(N, 8), (2, 3)], {"axis": 1}) == (N, 2, 3)
    assert shape_of("Gather", [(N, 8), ()], {"axis": -2}) == (8,)
    assert list(value_of("Gather", [[N, 3, H], [2, 0]])) == [H, N]
    n = Infer(
        (Tensor(DType.INT64, (3,)), Tensor(DType.INT64, ())), {"axis": 0}, 1,
        (build("Gather", [[N, 3, H]]).values[0], np.array(-1)), symbol,
    )  # fmt: skip
    value = REGISTRY["Gather"].value_fn
    assert value is not None
    picked: Any = value(n)
    assert picked.shape == () and picked.item() == H
    assert shape_of("GatherND", [(N, 4, 5), (N, 7, 1)], {"batch_dims": 1}) == (N, 7, 5)
    assert shape_of("GatherElements", [(N, 4), (S, 2)]) == (S, 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.bool_, np.complex64])
def test_gather_of_views(dtype: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    index = np.array([[0, -1], [2, 1]], np.int32)
    want = x[:, index % 3]
    np.testing.assert_array_equal(run("Gather", {"axis": 1}, x, index), want)
    np.testing.assert_array_equal(run("Gather", {"axis": 0}, x.transpose(1, 0, 2), index), want.transpose(1, 2, 0, 3))
    call = Call({"axis": 1}, (), [out := np.empty_like(want)])
    kernel = REGISTRY["Gather"].kernel_fn
    assert kernel is not None and kernel(call, x, index) is out
    np.testing.assert_array_equal(out, want)


def test_gather_outside() -> None:
    for bad in (3, -4, 2**62):
        with pytest.raises(InferError, match="outside"):
            run("Gather", {}, np.arange(3), np.array([0, bad]))
    assert run("Gather", {}, np.zeros((0, 2)), np.zeros((0,), np.int64)).shape == (0, 2)


def test_gather_elements_covers_less() -> None:
    x = np.arange(12).reshape(3, 4)
    assert run("GatherElements", {"axis": 0}, x, np.array([[2, -1]])).tolist() == [[8, 9]]


@pytest.mark.parametrize(("reduction", "want"), [("none", [20, 2, 30]), ("add", [31, 2, 33]), ("mul", [200, 2, 90]),
                                                 ("max", [20, 2, 30]), ("min", [1, 2, 3])])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_scatter_with_duplicates(reduction: str, want: list[int], dtype: Any) -> None:
    x, updates = np.array([1, 2, 3]).astype(dtype), np.array([10, 20, 30]).astype(dtype)
    index = np.array([0, -3, 2])
    for got in (
        run("ScatterElements", {"reduction": reduction}, x, index, updates),
        run("ScatterND", {"reduction": reduction}, x, index[:, None], updates),
    ):
        assert got.dtype == x.dtype and got.astype(int).tolist() == want
    assert x.astype(int).tolist() == [1, 2, 3]


def test_half_precision_scatter_is_summed_wide() -> None:
    ones = np.ones(4096, np.float16)
    got = run("ScatterElements", {"reduction": "add"}, np.zeros(1, np.float16), np.zeros(4096, np.int64), ones)
    assert got.tolist() == [4096]  # float16 alone would stop at 2048


def test_scatter_in_place_and_values() -> None:
    x = np.arange(3, dtype=np.float32)
    kernel = REGISTRY["ScatterND"].kernel_fn
    assert kernel is not None
    assert kernel(Call({"reduction": "none"}, (), [x]), x, np.array([[1]]), np.array([9], np.float32)) is x
    assert x.tolist() == [0, 9, 2]
    n = build("ScatterND", [[1, 2, 3], None, [N]])
    types = (n.types[0], Tensor(DType.INT64, (1, 1)), n.types[2])
    n = Infer(types, n.attrs, 1, (n.values[0], np.array([[1]]), n.values[2]), symbol)
    value = REGISTRY["ScatterND"].value_fn
    assert value is not None
    written: Any = value(n)
    assert list(written) == [1, N, 3]


def test_tensor_scatter_wraps_only_when_circular() -> None:
    cache, update = np.zeros((1, 3, 1)), np.array([[[1.0], [2.0]]])
    got = run("TensorScatter", {"mode": "circular"}, cache, update, np.array([2]))
    assert got[0, :, 0].tolist() == [2, 0, 1]
    with pytest.raises(InferError):
        run("TensorScatter", {}, cache, update, np.array([2]))


def test_topk_ties_and_extremes() -> None:
    values, places = run("TopK", {}, np.array([3, 1, 3, 2, 3], np.uint8), np.array([4]), outputs=2)
    assert values.tolist() == [3, 3, 3, 2] and places.tolist() == [0, 2, 4, 3]
    values, places = run("TopK", {"largest": 0}, np.array([[-128, 127], [-128, -128]], np.int8), np.array([1]))
    assert values.tolist() == [[-128], [-128]] and places.tolist() == [[0], [0]]
    values, places = run("TopK", {"axis": 0}, np.zeros((3, 2), np.float16), np.array([0]))
    assert values.shape == (0, 2)
    infer = REGISTRY["TopK"].infer_fn
    assert infer is not None
    types: Any = infer(build("TopK", [(N, 100), [5]], outputs=2))
    assert [t.shape for t in types] == [(N, 5), (N, 5)]
    with pytest.raises(InferError):
        infer(build("TopK", [(N, 4), [5]], outputs=2))


def test_unique_of_strings_and_rows() -> None:
    y, first, inverse, counts = run("Unique", {"sorted": 0}, np.array(["b", "a", "b"], object), outputs=4)
    assert (y.tolist(), first.tolist(), inverse.tolist(), counts.tolist()) == (["b", "a"], [0, 1], [0, 1, 0], [2, 1])
    rows = np.array([[2, 2], [1, 5], [2, 2]], np.float16)
    y, *_ = run("Unique", {"axis": -2}, rows, outputs=4)
    assert y.tolist() == [[1, 5], [2, 2]]
    assert run("Unique", {}, np.zeros((0,), np.float32), outputs=1)[0].shape == (0,)


def test_compress() -> None:
    x = np.arange(6).reshape(2, 3)
    assert run("Compress", {"axis": -1}, x, np.array([False, True])).tolist() == [[1], [4]]
    assert run("Compress", {}, x, np.array([True, False, False, True])).tolist() == [0, 3]


def test_nms_without_boxes_or_limit() -> None:
    boxes, scores = np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32)
    assert run("NonMaxSuppression", {}, boxes, scores, np.array(5)).shape == (0, 3)
    box, score = np.array([[[0, 0, 1, 1]]], np.float32), np.array([[[0.9]]], np.float32)
    assert run("NonMaxSuppression", {}, box, score).shape == (0, 3)
    assert run("NonMaxSuppression", {}, box, score, np.array(3)).tolist() == [[0, 0, 0]]
