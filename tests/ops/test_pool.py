"""Pooling and regions of interest: node tests, random parameters against onnxruntime, indices, dtypes, symbols."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import bound, check, infer, onnxruntime_run, run

RNG = np.random.default_rng(11)
OPS = (
    "MaxPool",
    "AveragePool",
    "LpPool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GlobalLpPool",
    "MaxUnpool",
    "RoiAlign",
)


@pytest.mark.parametrize("test", node_models.node_tests(*OPS, "MaxRoiPool"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


@st.composite
def poolings(draw: Any) -> tuple[str, dict[str, Any], Any, int]:
    rank = draw(st.sampled_from([1, 2, 2, 3]))

    def several(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    kernel, spatial, dilations = several(1, 4), several(1, 9), several(1, 3)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": several(1, 3)}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if auto == "NOTSET":
        attrs |= {"pads": several(0, 2) + several(0, 2), "dilations": dilations, "ceil_mode": draw(st.integers(0, 1))}
    else:
        attrs |= {"auto_pad": auto}
    pads = attrs.get("pads", [0] * (2 * rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.get("dilations", [1] * rank))]
    # A window larger than the padded input is an error here; onnxruntime rounds its size towards zero. Rounded up as
    # ceil_mode says, there may be one position.
    over = [s - 1 if attrs.get("ceil_mode") else 0 for s in attrs["strides"]]
    assume(all(x + b + a + o >= r for x, b, a, r, o in zip(spatial, pads[:rank], pads[rank:], reach, over)))
    # SAME padding of a stride beyond the kernel would be negative, which onnxruntime's poolings treat differently.
    assume(not auto.startswith("SAME") or all(k >= s for k, s in zip(kernel, attrs["strides"])))
    op = draw(st.sampled_from(["MaxPool", "MaxPool", "AveragePool", "LpPool"]))
    extra = {"AveragePool": ("count_include_pad", 0, 1), "LpPool": ("p", 1, 3), "MaxPool": ("storage_order", 0, 1)}[op]
    attrs[extra[0]] = draw(st.integers(*extra[1:]))
    outputs = draw(st.integers(1, 2)) if op == "MaxPool" else 1
    return op, attrs, RNG.standard_normal([2, 3, *spatial]).astype(np.float32), outputs


@settings(max_examples=80, deadline=None, derandomize=True)
@given(poolings())
def test_against_onnxruntime(case: tuple[str, dict[str, Any], Any, int]) -> None:
    op, attrs, x, outputs = case
    wanted = onnxruntime_run(op, attrs, [x], outputs)
    assume(wanted is not None)
    assert wanted is not None
    assert infer(op, attrs, [x.shape], outputs=outputs) == tuple(w.shape for w in wanted)
    for got, want in zip(run(op, attrs, [x], outputs), wanted, strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    names = ["N", "C", "D", "H", "W"][: x.ndim]
    symbolic = infer(op, attrs, [tuple(symbol(n) for n in names)])[0]
    assert bound(symbolic, dict(zip(names, x.shape))) == wanted[0].shape


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"), [(1, 2, 2, [0, 0]), (2, 3, 2, [0, 0]), (1, 4, 3, [1, 0])]
)
def test_rounded_up_there_is_a_window_that_reaches_beyond(
    op: str, size: int, kernel: int, stride: int, pads: list[int]
) -> None:
    """As in a network whose maps have become small: 1 = ceil((1 - 2) / 2) + 1."""
    attrs = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "ceil_mode": 1}
    x = RNG.standard_normal([2, 3, size]).astype(np.float32)
    wanted = onnxruntime_run(op, attrs, [x], 1)
    assert wanted is not None and wanted[0].shape == (2, 3, 1) == infer(op, attrs, [x.shape])[0]
    np.testing.assert_allclose(run(op, attrs, [x], 1)[0], wanted[0], 1e-4, 1e-5)
    symbolic = infer(op, attrs, [(2, 3, symbol("L"))])[0]
    assert bound(symbolic, {"L": size}) == (2, 3, 1)
    with pytest.raises(InferError, match="the window reaches over"):
        infer(op, attrs | {"strides": [1]}, [x.shape])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes(dtype: Any) -> None:
    x = RNG.integers(0, 100, (1, 2, 9, 7)).astype(dtype)[:, :, ::2]
    attrs = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [1, 0, 0, 1]}
    want = run("MaxPool", attrs, [x.astype(np.float64)])[0]
    got = run("MaxPool", attrs, [x])[0]
    assert got.dtype == dtype and np.array_equal(got.astype(np.float64), want)
    values, indices = run("MaxPool", attrs, [x], 2)
    assert values.dtype == dtype and np.array_equal(x.reshape(-1)[indices.reshape(-1)], values.reshape(-1))
    if np.dtype(dtype).kind in "fV":
        for op in ("AveragePool", "LpPool"):
            want = run(op, attrs, [x.astype(np.float64)])[0]
            np.testing.assert_allclose(run(op, attrs, [x])[0].astype(np.float64), want, 2**-7)
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            want = run(op, {}, [x.astype(np.float64)])[0]
            assert want.shape == (1, 2, 1, 1)
            np.testing.assert_allclose(run(op, {}, [x])[0].astype(np.float64), want, 2**-7)


def test_average_of_half_does_not_overflow() -> None:
    x = np.full((1, 1, 64, 64), 60000, np.float16)
    assert run("GlobalAveragePool", {}, [x])[0].item() == 60000
    assert run("AveragePool", {"kernel_shape": [8, 8]}, [x])[0].max() == 60000


def test_unpool_inverts_pool() -> None:
    x = RNG.permutation(64).astype(np.float32).reshape(1, 1, 8, 8) + 1
    values, indices = run("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [x], 2)
    again = run("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [values, indices])[0]
    assert again.shape == x.shape and np.array_equal(again[again > 0], x[again > 0]) and (again > 0).sum() == 16
    h = symbol("H")
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    assert infer("MaxUnpool", attrs, [(1, 1, h, 4), (1, 1, h, 4)])[0] == (1, 1, 2 * h, 8)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("aligned", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, ratio: int, aligned: str) -> None:
    """onnxruntime's numbers, boxes outside the image and of no extent included (its max mode mixes no corners)."""
    x = RNG.random((2, 3, 12, 10)).astype(np.float32)
    boxes = np.array([[1, 2, 7, 9], [-3, -3, 4, 5], [5, 5, 30, 30], [4, 4, 4.5, 4.2], [50, 50, 60, 60]], np.float32)
    batch = np.array([0, 1, 0, 1, 0])
    attrs = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2, "spatial_scale": 0.7,
             "coordinate_transformation_mode": aligned}  # fmt: skip
    wanted = onnxruntime_run("RoiAlign", attrs, [x, boxes, batch], opset=16)
    assert wanted is not None
    np.testing.assert_allclose(run("RoiAlign", attrs, [x, boxes, batch])[0], wanted[0], 1e-4, 1e-5)
    n, c = symbol("R"), symbol("C")
    assert infer("RoiAlign", attrs, [(2, c, 12, 10), (n, 4), (n,)])[0] == (n, c, 3, 2)


def test_max_roi_pool() -> None:
    x = RNG.standard_normal((2, 3, 12, 10)).astype(np.float32)
    boxes = np.array([[0, 1, 2, 7, 9], [1, 0, 0, 3, 3], [1, 5, 5, 30, 30], [0, 4, 4, 4, 4]], np.float32)
    attrs = {"pooled_shape": [3, 2], "spatial_scale": 0.7}
    wanted = onnxruntime_run("MaxRoiPool", attrs, [x, boxes], opset=16)
    assert wanted is not None
    np.testing.assert_allclose(run("MaxRoiPool", attrs, [x, boxes])[0], wanted[0])


def test_errors_and_empty() -> None:
    with pytest.raises(InferError, match="kernel_shape has 3"):
        infer("MaxPool", {"kernel_shape": [2, 2, 2]}, [(1, 1, 8, 8)])
    with pytest.raises(InferError, match="missing"):
        infer("MaxPool", {}, [(1, 1, 8, 8)])
    assert infer("AveragePool", {"kernel_shape": [2, 2]}, [...]) == (None,)
    empty = np.zeros((0, 3, 8, 8), np.float32)
    assert run("MaxPool", {"kernel_shape": [2, 2]}, [empty])[0].shape == (0, 3, 7, 7)
    assert run("GlobalMaxPool", {}, [empty])[0].shape == (0, 3, 1, 1)
