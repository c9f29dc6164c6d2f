"""MatMul, Gemm, Einsum, Det: node tests, ranks and dtypes against numpy, wrapping integers, symbolic shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.ir.dims import dmax, symbol
from atc_py.ops.base import InferError
from atc_py.ops.linear import parse
from tests.ops import node_models
from tests.ops.compute_cases import check, infer, run

RNG = np.random.default_rng(3)
N, K = symbol("N"), symbol("K")


@pytest.mark.parametrize("test", node_models.node_tests("MatMul", "Gemm", "Einsum", "Det"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


SHAPES = [((3,), (3,)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((5, 1, 4, 3), (2, 3, 6)), ((2, 4, 3), (3, 5)),
          ((0, 3), (3, 4)), ((2, 0), (0, 3)), ((2, 8, 9), (9, 8))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint64])
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    x, y = RNG.integers(-4, 5, a).astype(np.int64).astype(dtype), RNG.integers(-4, 5, b).astype(np.int64).astype(dtype)
    wide = np.float64 if np.dtype(dtype).kind in "fV" else dtype
    want = np.asarray(np.matmul(x.astype(wide), y.astype(wide)))
    assert infer("MatMul", {}, [a, b]) == (want.shape,)
    outer = np.zeros((*want.shape, 2), dtype)
    for outs in (None, [np.empty(want.shape, dtype)], [outer[..., 0]]):
        got = run("MatMul", {}, [x, y], outs=outs)[0]
        assert got.dtype == dtype and (outs is None or got is outs[0])
        np.testing.assert_array_equal(got.astype(wide), want.astype(dtype).astype(wide))
    if x.ndim > 1:
        turned = np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
        np.testing.assert_array_equal(run("MatMul", {}, [turned, y])[0].astype(wide), got.astype(wide))


def test_integers_wrap() -> None:
    a = np.full((2, 64), 2**30, np.int32)
    got = run("MatMul", {}, [a, np.full((64, 2), 3, np.int32)])[0]
    assert got.dtype == np.int32 and (got == np.int64(64 * 3 * 2**30).astype(np.int32)).all()
    big = RNG.integers(-(2**40), 2**40, (9, 64))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run("MatMul", {}, [big, big.T])[0], np.einsum("ij,kj->ik", big, big))


def test_half_sums_do_not_overflow() -> None:
    a = np.full((1, 4096), 16, np.float16)
    b = np.tile(np.array([16, -16], np.float16), 2048)[:, None]
    b[0] = 18
    assert run("MatMul", {}, [a, b])[0].item() == 32
    assert run("Gemm", {"alpha": 0.5}, [a, b])[0].item() == 16
    assert run("Einsum", {"equation": "ij,jk->ik"}, [a, b])[0].item() == 32


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("bias", [None, (), (5,), (4, 1), (4, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_gemm(transposed: tuple[int, int], bias: Any, dtype: Any) -> None:
    a, b = RNG.integers(-4, 5, (4, 3)).astype(dtype), RNG.integers(-4, 5, (3, 5)).astype(dtype)
    c = None if bias is None else np.asarray(RNG.integers(-4, 5, bias)).astype(dtype)
    x, y = (a.T.copy() if transposed[0] else a), (b.T.copy() if transposed[1] else b)
    for alpha, beta in ((1.0, 1.0), (2.0, 0.5), (1.0, 0.0)):
        want = alpha * (a.astype(np.float64) @ b) + (0 if c is None else beta * c.astype(np.float64))
        attrs = {"transA": transposed[0], "transB": transposed[1], "alpha": alpha, "beta": beta}
        got = run("Gemm", attrs, [x, y, c], outs=[np.empty((4, 5), dtype)])[0]
        np.testing.assert_array_equal(got, want.astype(dtype))
        shapes = [x.shape, y.shape, None if c is None else c.shape]
        assert infer("Gemm", attrs, shapes) == ((4, 5),)


EQUATIONS = ["ij,jk->ik", "bij,bjk", "ii->i", "ij->ji", "ii", "...ij,...jk->...ik", "a...b->b...", "i,j,k->kji",
             "bhqd,bhkd->bhqk", "ij,jk,kl->il", " i j , j -> i ", "Ab,bA", "...,i->i...", "ij->"]  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_einsum(equation: str, dtype: Any) -> None:
    size = {"i": 3, "j": 3, "k": 4, "l": 2, "a": 2, "b": 3, "A": 2, "h": 2, "q": 4, "d": 5, ".": 2}
    terms = equation.replace(" ", "").split("->")[0].replace("...", ".").split(",")
    inputs = [RNG.integers(-3, 4, [size[c] for c in t]).astype(dtype) for t in terms]
    want = np.asarray(np.einsum(equation, *inputs))
    assert infer("Einsum", {"equation": equation}, [x.shape for x in inputs]) == (want.shape,)
    got = run("Einsum", {"equation": equation}, inputs)[0]
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want)


def test_symbolic_shapes() -> None:
    assert infer("MatMul", {}, [(N, 1, K), (K, 8)])[0] == (N, 1, 8)
    assert infer("MatMul", {}, [(N, 4, 5), (2, 5, 3)])[0] == (2, 4, 3)
    assert infer("MatMul", {}, [(N, 4, 5), (K, 5, 3)])[0] == (dmax(N, K), 4, 3)
    assert infer("MatMul", {}, [..., (5, 3)]) == (None,)
    assert infer("Gemm", {"transA": 1}, [(K, N), (K, 7), (7,)])[0] == (N, 7)
    assert infer("Einsum", {"equation": "bij,bjk->bik"}, [(N, 2, K), (N, K, 3)])[0] == (N, 2, 3)
    assert infer("Det", {}, [(N, K, K)])[0] == (N,)
    assert parse("bij,bjk").output == ("i", "k")


def test_errors() -> None:
    with pytest.raises(InferError, match="inner sizes"):
        infer("MatMul", {}, [(2, 3), (4, 5)])
    with pytest.raises(InferError, match="do not broadcast"):
        infer("MatMul", {}, [(2, 3, 4), (5, 4, 3)])
    with pytest.raises(InferError, match="C has shape"):
        infer("Gemm", {}, [(2, 3), (3, 5), (4,)])
    with pytest.raises(InferError, match="2 terms for 1"):
        infer("Einsum", {"equation": "ij,jk"}, [(2, 3)])
    with pytest.raises(InferError, match="occurs in no operand"):
        infer("Einsum", {"equation": "ij->k"}, [(2, 3)])
    with pytest.raises(InferError, match="square"):
        infer("Det", {}, [(2, 3)])
