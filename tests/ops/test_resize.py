"""Resize, GridSample, AffineGrid: node tests, random options against references, tables, dtypes, symbolic shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference.ops.op_resize import Resize as Reference

from atc_py.ir.dims import symbol
from atc_py.ops import resize_impl
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import check, infer, onnxruntime_run, run

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("test", node_models.node_tests("Resize", "GridSample", "AffineGrid"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


def reference(x: Any, scales: Any, sizes: Any, attrs: dict[str, Any]) -> Any:
    """onnx's reference implementation."""
    full = {"antialias": 0, "axes": None, "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
            "exclude_outside": 0, "extrapolation_value": 0.0, "keep_aspect_ratio_policy": "stretch", "mode": "nearest",
            "nearest_mode": "round_prefer_floor", **attrs}  # fmt: skip
    return Reference._run(Reference.__new__(Reference), x, None, scales, sizes, **full)[0]


@st.composite
def resizes(draw: Any) -> tuple[dict[str, Any], Any, Any, Any]:
    rank = draw(st.integers(1, 3))
    spatial = [draw(st.integers(1, 7)) for _ in range(rank)]
    attrs: dict[str, Any] = {"mode": draw(st.sampled_from(["nearest", "linear", "cubic"]))}
    attrs["axes"] = list(range(2, 2 + rank))
    attrs["coordinate_transformation_mode"] = draw(st.sampled_from(["half_pixel", "align_corners", "asymmetric"]))
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = draw(st.sampled_from(resize_impl.NEAREST))
    else:
        attrs |= {"antialias": draw(st.integers(0, 1)), "exclude_outside": draw(st.integers(0, 1))}
    x = RNG.standard_normal((2, 2, *spatial)).astype(np.float32)
    if draw(st.booleans()):
        return (
            attrs,
            x,
            np.array([draw(st.sampled_from([0.5, 0.6, 1, 1.5, 2, 2.3])) for _ in spatial], np.float32),
            None,
        )
    attrs["keep_aspect_ratio_policy"] = draw(st.sampled_from(["stretch", "not_larger", "not_smaller"]))
    return attrs, x, None, np.array([draw(st.integers(1, 9)) for _ in spatial])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(resizes(), st.sampled_from([0, 512]))
def test_against_reference(case: tuple[dict[str, Any], Any, Any, Any], dense: int) -> None:
    """Both ways to sum, by gathers and by products, give the reference's numbers."""
    attrs, x, scales, sizes = case
    want = reference(x, scales, sizes, attrs)
    shape = infer("Resize", attrs, [x.shape, None, None, None], {2: scales} if sizes is None else {3: sizes})[0]
    assume(shape == want.shape)  # the reference multiplies sizes and scales in float64
    inputs = [x, None, scales, sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize_impl, "_DENSE", dense)
        for consts in ((), (2,) if sizes is None else (3,)):
            np.testing.assert_allclose(run("Resize", attrs, inputs, consts=consts)[0], want, 1e-3, 1e-4)


@pytest.mark.parametrize("mode", ["half_pixel_symmetric", "pytorch_half_pixel"])
def test_other_coordinates(mode: str) -> None:
    x = RNG.standard_normal((1, 1, 7, 6)).astype(np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": mode}
    scales = np.array([1, 1, 0.6, 1.7], np.float32)
    np.testing.assert_allclose(
        run("Resize", attrs, [x, None, scales])[0], reference(x, scales, None, attrs), 1e-4, 1e-5
    )


def test_crop() -> None:
    """onnxruntime's tf_crop_and_resize, with what lies outside extrapolated."""
    x = RNG.standard_normal((1, 1, 6, 5)).astype(np.float32)
    roi = np.array([0, 0, 0.35, -0.3, 1, 1, 1.2, 0.8], np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    for scales, sizes in ((None, np.array([1, 1, 4, 3])), (np.array([1, 1, 1.5, 0.6], np.float32), None)):
        wanted = onnxruntime_run("Resize", attrs, [x, roi, scales, sizes], opset=19)
        assert wanted is not None
        np.testing.assert_allclose(run("Resize", attrs, [x, roi, scales, sizes])[0], wanted[0], 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, ml_dtypes.bfloat16, np.float64, np.bool_, object])
def test_dtypes(dtype: Any) -> None:
    x = RNG.integers(0, 100, (1, 2, 4, 6))[:, :, ::2].astype(dtype)
    empty, doubled = np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)
    got = run("Resize", {}, [x, empty, doubled, np.zeros(0, np.int64)])[0]
    assert got.dtype == dtype and np.array_equal(got, x.repeat(2, 2).repeat(2, 3))
    if dtype in (np.bool_, object):
        return
    want = run("Resize", {"mode": "linear"}, [x.astype(np.float64), empty, doubled])[0]
    outer = np.zeros((1, 2, 4, 13), dtype)
    got = run("Resize", {"mode": "linear"}, [x, empty, doubled], outs=[outer[..., :12]])[0]
    assert not outer[..., 12].any()
    if np.dtype(dtype).kind in "iu":
        np.testing.assert_array_equal(got, np.rint(want).astype(dtype))
    else:
        np.testing.assert_allclose(got.astype(np.float64), want, 2**-7)
    sharp = np.array([[0, 100, 0, 0]], np.uint8)
    overshoot = run("Resize", {"mode": "cubic"}, [sharp, None, np.array([1, 4], np.float32)])[0]
    assert overshoot.max() <= 110 and overshoot.min() == 0


def test_infinite_values_stay_local() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 1] = np.inf
    got = run("Resize", {"mode": "linear"}, [x, None, None, np.array([1, 1, 8, 8])])[0]
    assert np.isinf(got).sum() == 16 and np.isfinite(got).sum() == 48


def test_symbolic_shapes_and_errors() -> None:
    n, h = symbol("N"), symbol("H")
    scales = np.array([1, 1, 2, 0.5], np.float32)
    assert infer("Resize", {}, [(n, 3, h, h), None, None], {2: scales})[0] == (n, 3, 2 * h, h // 2)
    third = infer("Resize", {}, [(n, 3, h, 9), None, None], {2: np.array([1, 1, 1 / 3, 1 / 3], np.float32)})[0]
    assert third[:2] == (n, 3) and third[2] == symbol("fresh0") and third[3] == 3
    wanted = np.array([n, 3, 2 * h, 7], object)
    assert infer("Resize", {}, [(n, 3, h, h), None, None, (4,)], {3: wanted})[0] == (n, 3, 2 * h, 7)
    assert infer("Resize", {"axes": [3]}, [(n, 3, h, 4), None, None], {2: np.array([2.3], np.float32)})[0] == (
        n,
        3,
        h,
        9,
    )
    with pytest.raises(InferError, match="neither"):
        infer("Resize", {}, [(1, 3, 4, 4), None, (0,)])
    with pytest.raises(InferError, match="expected 4"):
        infer("Resize", {}, [(1, 3, 4, 4), None, None], {2: np.array([2.0], np.float32)})
    with pytest.raises(InferError, match="nearest_mode"):
        infer("Resize", {"nearest_mode": "any"}, [(1, 3, 4, 4), None, None], {2: scales})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_grid_sample(data: Any) -> None:
    draw = data.draw
    rank = draw(st.integers(2, 3))
    modes = ["nearest", "linear", "cubic"][: 5 - rank]
    attrs = {"mode": draw(st.sampled_from(modes)), "align_corners": draw(st.integers(0, 1)),
             "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"]))}  # fmt: skip
    x = RNG.standard_normal((2, 3, *(draw(st.integers(1, 6)) for _ in range(rank)))).astype(np.float32)
    grid = (RNG.standard_normal((2, *(draw(st.integers(0, 4)) for _ in range(rank)), rank)) * 1.3).astype(np.float32)
    wanted = onnxruntime_run("GridSample", attrs, [x, grid], opset=20)
    assume(wanted is not None)
    assert wanted is not None and infer("GridSample", attrs, [x.shape, grid.shape])[0] == wanted[0].shape
    np.testing.assert_allclose(run("GridSample", attrs, [x, grid])[0], wanted[0], 1e-3, 1e-4)
    half = run("GridSample", attrs, [x[:, ::-1].astype(np.float16), grid])[0]
    assert half.dtype == np.float16
    if attrs["mode"] != "nearest":
        np.testing.assert_allclose(half, wanted[0][:, ::-1], 2e-2, 2e-2)


def test_affine_grid_of_identity() -> None:
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    for align in (0, 1):
        grid = run("AffineGrid", {"align_corners": align}, [theta, np.array([1, 1, 3, 4])])[0]
        x = RNG.standard_normal((1, 2, 3, 4)).astype(np.float32)
        np.testing.assert_allclose(run("GridSample", {"align_corners": align}, [x, grid])[0], x, 1e-5, 1e-5)
    n, h = symbol("N"), symbol("H")
    size = np.array([n, 1, h, 4], object)
    assert infer("AffineGrid", {}, [(n, 2, 3), (4,)], {1: size})[0] == (n, h, 4, 2)
