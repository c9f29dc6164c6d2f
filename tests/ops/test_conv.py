"""Conv, ConvTranspose, DeformConv: node tests, random parameters against onnxruntime, blocks, dtypes, symbols."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ops import conv_impl, conv_windows
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import bound, check, infer, onnxruntime_run, run

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("test", node_models.node_tests("Conv", "ConvTranspose", "DeformConv"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@st.composite
def convolutions(draw: Any) -> tuple[str, dict[str, Any], list[Any]]:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    group, width, outs = (draw(st.sampled_from(c)) for c in ([1, 1, 2, 3], [1, 2, 5], [1, 2, 3]))

    def several(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(rank)]

    kernel, spatial = several(1, 4), several(1, 9)
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "group": group,
        "strides": several(1, 3),
        "dilations": several(1, 3),
    }
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    attrs |= {"pads": several(0, 2) + several(0, 2)} if auto == "NOTSET" else {"auto_pad": auto}
    op = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    if op == "ConvTranspose" and draw(st.booleans()):
        limits = [max(s, d) - 1 for s, d in zip(attrs["strides"], attrs["dilations"])]
        attrs["output_padding"] = [draw(st.integers(0, limit)) for limit in limits]
    if op == "ConvTranspose" and draw(st.integers(0, 4)) == 0:
        attrs["output_shape"] = [max(1, (x - 1) * s + 1) for x, s in zip(spatial, attrs["strides"])]
    weight = (group * width, outs) if op == "ConvTranspose" else (group * outs, width)
    bias = normal(group * outs) if draw(st.booleans()) else None
    return op, attrs, [normal(draw(st.integers(1, 3)), group * width, *spatial), normal(*weight, *kernel), bias]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions(), st.sampled_from([None, 0, 256, 4096]))
def test_against_onnxruntime(case: tuple[str, dict[str, Any], list[Any]], budget: int | None) -> None:
    """By windows (None), or by planes cut into blocks (0: as the budgets are): onnxruntime's numbers either way."""
    op, attrs, inputs = case
    wanted = onnxruntime_run(op, attrs, inputs)
    assume(wanted is not None)
    assert wanted is not None
    assert infer(op, attrs, [None if v is None else v.shape for v in inputs]) == (wanted[0].shape,)
    with pytest.MonkeyPatch.context() as patch:
        if budget is not None:
            patch.setattr(conv_windows, "SMALL", 0)
        if budget:
            patch.setattr(conv_impl, "GEMM_BUDGET", budget)
            patch.setattr(conv_impl, "DEPTHWISE_BUDGET", budget)
        for consts in ((), (1,)):
            np.testing.assert_allclose(run(op, attrs, inputs, consts=consts)[0], wanted[0], 2e-4, 2e-4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions())
def test_symbolic_shapes(case: tuple[str, dict[str, Any], list[Any]]) -> None:
    """A symbolic shape evaluates to the shape that is inferred from the sizes themselves."""
    op, attrs, (x, w, _) = case
    names = ["N", "C", "D", "H", "W"][: x.ndim]
    env = dict(zip(names, x.shape))
    try:
        plain = infer(op, attrs, [x.shape, w.shape])[0]
    except InferError:
        assume(False)
    symbolic = infer(op, attrs, [tuple(symbol(n) for n in names), w.shape])[0]
    assert bound(symbolic, env) == plain


def test_shape_in_normal_form() -> None:
    h = symbol("H")
    attrs = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    assert infer("Conv", attrs, [(1, 3, h, 8), (4, 3, 3, 3)])[0] == (1, 4, (h + 1) // 2, 4)
    assert infer("Conv", {"auto_pad": "SAME_UPPER"}, [(1, 3, h, 8), (4, 3, 3, 3)])[0] == (1, 4, h, 8)
    assert infer("Conv", {"kernel_shape": [3, 3]}, [(1, 3, h, 8), ...])[0][2:] == (h - 2, 6)
    assert infer("ConvTranspose", {"strides": [2, 2]}, [(1, 3, h, 8), (3, 4, 2, 2)])[0] == (1, 4, 2 * h, 16)


@pytest.mark.parametrize("attrs", [{}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 1]}, {"group": 4}, {"group": 2}])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 1), (3, 3)])
def test_views(attrs: dict[str, Any], kernel: tuple[int, int]) -> None:
    """Strided inputs, an output view inside a larger buffer, and an empty batch."""
    x = normal(2, 6, 5, 4).transpose(0, 3, 1, 2)[:, :, ::-1]
    w = normal(8, 4 // attrs.get("group", 1), *kernel)
    want = run("Conv", attrs, [np.ascontiguousarray(x), w])[0]
    buffer = np.full((2, 12, *(d + 3 for d in want.shape[2:])), 9, np.float32)
    view = buffer[:, 1:9, : want.shape[2], : want.shape[3]]
    assert run("Conv", attrs, [x, w], outs=[view])[0] is view
    np.testing.assert_allclose(view, want, 1e-5, 1e-5)
    assert (buffer[:, 0] == 9).all() and (buffer[:, 9:] == 9).all()
    still = np.broadcast_to(np.float32(1.5), x.shape)
    np.testing.assert_allclose(run("Conv", attrs, [still, w])[0], run("Conv", attrs, [still.copy(), w])[0])
    assert run("Conv", attrs, [x[:0], w])[0].shape == (0, *want.shape[1:])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("dtype", "unit"), [(np.float16, 2**-10), (ml_dtypes.bfloat16, 2**-7), (np.float64, 1e-12)])
def test_dtypes(op: str, dtype: Any, unit: float) -> None:
    """Narrow floats are summed in float32 and rounded once: at most half a unit from the exact sum."""
    x, w, b = normal(1, 32, 6, 6).astype(dtype), normal(32, 32, 3, 3).astype(dtype), normal(32).astype(dtype)
    exact = run(op, {}, [x.astype(np.float64), w.astype(np.float64), b.astype(np.float64)])[0]
    got = run(op, {}, [x, w, b], consts=(1,))[0]
    assert got.dtype == dtype
    assert np.all(np.abs(got.astype(np.float64) - exact) <= unit * np.maximum(np.abs(exact), 1e-2))


def test_infinite_values_stay_local() -> None:
    """An inf reaches the outputs whose windows meet it, and no other."""
    x = np.zeros((1, 2, 6, 6), np.float32)
    x[0, 0, 2, 3] = np.inf
    got = run("Conv", {"pads": [1, 1, 1, 1]}, [x, np.ones((2, 2, 3, 3), np.float32)])[0]
    assert np.isinf(got).sum() == 18 and np.isfinite(got).sum() == 54


def test_errors() -> None:
    with pytest.raises(InferError, match="3 channels"):
        infer("Conv", {}, [(1, 3, 8, 8), (4, 2, 3, 3)])
    with pytest.raises(InferError, match="'pads' has 2 entries"):
        infer("Conv", {"pads": [1, 1]}, [(1, 3, 8, 8), (4, 3, 3, 3)])
    with pytest.raises(InferError, match="auto_pad"):
        infer("Conv", {"auto_pad": "SOME"}, [(1, 3, 8, 8), (4, 3, 3, 3)])
    with pytest.raises(InferError, match="reaches over"):
        infer("Conv", {}, [(1, 3, 2, 8), (4, 3, 5, 3)])
    assert infer("Conv", {}, [..., (4, 3, 3, 3)]) == (None,)
