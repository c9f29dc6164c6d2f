"""Transposes that move down, products of rows, and packed projections: laws on random graphs, and structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ir.graph import Range
from atc_py.ir.types import DType
from tests.passes.interp import Builder, optimized, origins, work

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
RNG = np.random.default_rng(0)


def c(b: Builder, *shape: int) -> int:
    return b.const(RNG.standard_normal(shape), np.float32)


PAST: dict[str, Any] = {
    "relu": lambda b, v: b.op("Relu", v),
    "add channels": lambda b, v: b.op("Add", v, c(b, 3)),
    "mul a plane": lambda b, v: b.op("Mul", c(b, 4, 5, 1), v),
    "add all": lambda b, v: b.op("Add", c(b, 1, 4, 5, 3), v),
    "clip": lambda b, v: b.op("Clip", v, b.const(-1, np.float32), b.const(1, np.float32)),
    "cast": lambda b, v: b.op("Cast", v, to=DType.FLOAT64),
    "where": lambda b, v: b.op("Where", b.op("Greater", v, b.const(0, np.float32)), v, c(b, 3)),
    "pad": lambda b, v: b.op("Pad", v, b.const([0, 1, 0, 2, 0, 0, 3, 0])),
    "pad axes": lambda b, v: b.op("Pad", v, b.const([1, 2]), b.const(7, np.float32), b.const([-3])),
    "slice": lambda b, v: b.op("Slice", v, b.const([1, 0]), b.const([3, 2]), b.const([2, 3])),
    "reduce": lambda b, v: b.op("ReduceMean", v, b.const([1, -2]), keepdims=1),
    "normalize": lambda b, v: b.op("Mul", v, b.op("Sigmoid", v)),
}


@pytest.mark.parametrize("step", PAST)
@pytest.mark.parametrize("back", [False, True])
def test_past(step: str, back: bool) -> None:
    b = Builder()
    v = PAST[step](b, b.op("Transpose", b.input("x", (2, 3, 4, 5)), perm=NHWC))
    if back:
        v = b.op("Transpose", v, perm=NCHW)
    g = optimized(b.done(v))
    assert back or work(g)[-1] in ("Transpose", "Reshape")  # axes of size 1 need no Transpose
    assert work(g).count("Transpose") <= (0 if back else 1) and origins(g) >= {"n1"}


def test_reductions_that_drop_axes() -> None:
    b = Builder()
    x = b.input("x", (2, 3, 4, 5))
    rows = b.op("ReduceSum", b.op("Transpose", x, perm=NHWC), b.const([1]), keepdims=0)
    g = optimized(b.done(b.op("Transpose", rows, perm=(0, 2, 1))))
    assert work(g) == ["ReduceSum"]


def test_two_operands() -> None:
    b = Builder()
    x, y = b.input("x", (2, 3, 4)), b.input("y", (2, 3, 4))
    turned = [b.op("Transpose", v, perm=(2, 0, 1)) for v in (x, y)]
    both = b.op("Concat", b.op("Add", *turned), b.op("Transpose", x, perm=(2, 0, 1)), axis=0)
    assert work(optimized(b.done(both))) == ["Add", "Concat", "Transpose"]


@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_matrix_products_take_transposes_in(which: str) -> None:
    b = Builder()
    x = b.input("x", (4, 3) if which != "b" else (3, 4))
    y = b.input("y", (5, 4) if which != "a" else (4, 5))
    left = b.op("Transpose", x, perm=(1, 0)) if which != "b" else x
    right = b.op("Transpose", y, perm=(1, 0)) if which != "a" else y
    g = optimized(b.done(b.op("MatMul", left, right)))
    [node] = [n for n in g.nodes.values() if n.op == "Gemm"]
    assert work(g) == ["Gemm"] and (node.attrs["transA"], node.attrs["transB"]) == (which != "b", which != "a")


def test_rows_of_a_matrix_product() -> None:
    b = Builder(N=Range(1))
    x = b.op("Transpose", b.input("x", (symbol("N"), 3, 4)), perm=(1, 0, 2))
    y = b.op("Add", b.op("MatMul", x, c(b, 4, 5)), c(b, 5))
    y = b.op("LayerNormalization", y, c(b, 5), c(b, 5))
    g = optimized(b.done(b.op("Transpose", y, perm=(1, 0, 2))), {"N": 2})
    assert work(g) == ["MatMul", "Add", "LayerNormalization"]


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_reshapes_around_rows(op: str) -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (3, symbol("N"), 4))
    flat = b.op("Reshape", x, b.const([-1, 4]))
    y = b.op("Gemm", flat, c(b, 5, 4), c(b, 5), transB=1) if op == "Gemm" else b.op("MatMul", flat, c(b, 4, 5))
    g = optimized(b.done(b.op("Reshape", y, b.const([3, -1, 5]))), {"N": 2})
    assert work(g) == (["MatMul", "Add"] if op == "Gemm" else ["MatMul"])


def test_a_transpose_with_several_readers_stays() -> None:
    b = Builder()
    v = b.op("Transpose", b.input("x", (2, 3)), perm=(1, 0))
    assert work(optimized(b.done(b.op("Relu", v), b.op("Exp", v))))[0] == "Transpose"


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(range(4)), st.lists(st.sampled_from([*sorted(PAST)[:7], "relu", "slice"]), max_size=4), st.data()
)
def test_law(perm: list[int], steps: list[str], data: st.DataObject) -> None:
    """Any Transpose, any steps, any Transpose: the optimized graph computes the same and is at rest."""
    b = Builder()
    dims = [0] * 4
    for i, axis in enumerate(perm):
        dims[axis] = (2, 4, 5, 3)[i]
    v = b.op("Transpose", b.input("x", tuple(dims)), perm=tuple(perm))
    for step in steps:
        if b.graph.tensor(v).dims == (2, 4, 5, 3) and b.graph.tensor(v).dtype is DType.FLOAT32:
            v = PAST[step](b, v)
    v = b.op("Transpose", v, perm=tuple(data.draw(st.permutations(range(4)))))
    assert work(optimized(b.done(v))).count("Transpose") <= 1


@pytest.mark.parametrize("take", ["slice", "gather", "split"])
def test_packed_projections(take: str) -> None:
    """Query, key and value of one product, [batch, positions, 3 · heads · size]."""
    b = Builder()
    x = b.input("x", (2, 5, 8))
    packed = b.op("Add", b.op("MatMul", x, c(b, 8, 24)), c(b, 24))
    five = b.op("Transpose", b.op("Reshape", packed, b.const([2, 5, 3, 2, 4])), perm=(2, 0, 3, 1, 4))
    if take == "split":
        parts = [b.op("Squeeze", v, b.const([0])) for v in b.ops("Split", five, outputs=3, axis=0, num_outputs=3)]
    elif take == "gather":
        parts = [b.op("Gather", five, b.const(i), axis=0) for i in range(3)]
    else:
        cut = [b.op("Slice", five, b.const([i]), b.const([i + 1]), b.const([0])) for i in range(3)]
        parts = [b.op("Squeeze", v, b.const([0])) for v in cut]
    q, k, v = parts
    s = b.op("MatMul", b.op("Mul", q, b.const(0.5, np.float32)), b.op("Transpose", k, perm=(0, 1, 3, 2)))
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", s, axis=-1), v), perm=(0, 2, 1, 3))
    g = optimized(b.done(b.op("Reshape", y, b.const([2, 5, 8]))))
    assert "Transpose" not in work(g) and work(g)[-1] == "Attention"


def test_positions_first() -> None:
    """[positions, batch, features] throughout, as torch's MultiheadAttention has it."""
    b = Builder()
    x = b.op("Transpose", b.input("x", (2, 5, 8)), perm=(1, 0, 2))
    heads = []
    for _ in range(3):
        y = b.op("Reshape", b.op("Add", b.op("MatMul", x, c(b, 8, 8)), c(b, 8)), b.const([5, 8, 2]))
        heads.append(b.op("Reshape", b.op("Transpose", y, perm=(1, 0, 2)), b.const([2, 4, 5, 2])))
    s = b.op("MatMul", heads[0], b.op("Transpose", heads[1], perm=(0, 1, 3, 2)))
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", s, axis=-1), heads[2]), perm=(2, 0, 1, 3))
    y = b.op("Gemm", b.op("Reshape", y, b.const([10, 8])), c(b, 8, 8), c(b, 8), transB=1)
    y = b.op("Transpose", b.op("Reshape", y, b.const([5, 2, 8])), perm=(1, 0, 2))
    g = optimized(b.done(y))
    assert "Attention" in work(g) and work(g).count("Transpose") <= 1


@pytest.mark.parametrize(
    ("six", "perm", "out", "op"),
    [
        ((2, 3, 2, 2, 4, 5), (0, 1, 4, 2, 5, 3), (2, 3, 8, 10), "DepthToSpace"),
        ((2, 2, 2, 3, 4, 5), (0, 3, 4, 1, 5, 2), (2, 3, 8, 10), "DepthToSpace"),
        ((2, 3, 4, 2, 5, 2), (0, 3, 5, 1, 2, 4), (2, 12, 4, 5), "SpaceToDepth"),
        ((2, 3, 4, 2, 5, 2), (0, 1, 3, 5, 2, 4), (2, 12, 4, 5), "SpaceToDepth"),
        ((2, 3, 4, 2, 5, 2), (0, 1, 5, 3, 2, 4), (2, 12, 4, 5), ""),
        ((2, 3, 4, 1, 4, 5), (0, 1, 4, 2, 5, 3), (2, 3, 16, 5), ""),
    ],
)
def test_pixel_shuffles(six: tuple[int, ...], perm: tuple[int, ...], out: tuple[int, ...], op: str) -> None:
    b = Builder()
    x = b.input("x", (2, 12, 4, 5) if six[2:] != (4, 2, 5, 2) else (2, 3, 8, 10))
    v = b.op("Transpose", b.op("Reshape", x, b.const(six)), perm=perm)
    g = optimized(b.done(b.op("Reshape", v, b.const(out))))
    assert work(g) == ([op] if op else ["Reshape", "Transpose", "Reshape"])


@pytest.mark.parametrize(("bias", "gemm"), [((5,), True), ((1, 5), True), ((3, 5), False), ((1,), False)])
def test_a_summand_goes_into_the_product(bias: tuple[int, ...], gemm: bool) -> None:
    b = Builder()
    v = b.op("Add", c(b, *bias), b.op("MatMul", b.input("x", (3, 4)), c(b, 4, 5)))
    assert work(optimized(b.done(v))) == (["Gemm"] if gemm else ["MatMul", "Add"])
