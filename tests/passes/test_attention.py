"""Attention in the forms in which exporters write it, heads side by side, and near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.passes import OptimizeOptions, optimize
from tests.passes.interp import Builder, interpret, optimized, origins, random_inputs, work

B, H, S, K, D = 2, 4, 3, 5, 8


def number(b: Builder, value: float, dtype: DType = DType.FLOAT32) -> int:
    return b.const(value, dtype.numpy)


class Pieces:
    """Attention in pieces over [batch, heads, positions, size]; each step may be put otherwise."""

    def __init__(self, dtype: DType = DType.FLOAT32, keys: int = K, kv_heads: int = H) -> None:
        self.b = b = Builder()
        self.q = b.input("q", (B, H, S, D), dtype)
        self.k = b.input("k", (B, kv_heads, keys, D), dtype)
        self.v = b.input("v", (B, kv_heads, keys, D), dtype)
        self.dtype = dtype

    def scores(self, scale: str = "scores") -> int:
        b, q = self.b, self.q
        root, fourth = number(b, D**-0.5, self.dtype), number(b, D**-0.25, self.dtype)
        k_t = b.op("Transpose", self.k, perm=(0, 1, 3, 2))
        if scale == "q":
            q = b.op("Mul", q, root)
        elif scale == "both":
            q, k_t = b.op("Mul", q, fourth), b.op("Mul", k_t, fourth)
        elif scale == "divided q":
            q = b.op("Div", q, number(b, D**0.5, self.dtype))
        s = b.op("MatMul", q, k_t)
        if scale == "scores":
            s = b.op("Mul", s, root)
        elif scale == "divided":
            s = b.op("Div", s, number(b, D**0.5, self.dtype))
        return s

    def done(self, scores: int) -> Graph:
        b = self.b
        return b.done(b.op("MatMul", b.op("Softmax", scores, axis=-1), self.v))


def the_attention(graph: Graph) -> Any:
    [node] = [n for n in graph.nodes.values() if n.op == "Attention"]
    return node


@pytest.mark.parametrize("scale", ["scores", "divided", "q", "divided q", "both", "none"])
def test_scales(scale: str) -> None:
    p = Pieces()
    g = optimized(p.done(p.scores(scale)))
    assert work(g) == ["Attention"] and origins(g) == {f"n{i}" for i in range(p.b.count)}
    assert abs(the_attention(g).attrs["scale"] - (1 if scale == "none" else D**-0.5)) < 1e-6


def allowed(b: Builder, shape: tuple[int, ...]) -> int:
    """A mask in which each query may see some key."""
    mask = np.random.default_rng(1).integers(0, 2, shape).astype(bool)
    mask[..., 0] = True
    return b.const(mask)


MASKS: dict[str, Callable[[Builder, int], int]] = {
    "added input": lambda b, s: b.op("Add", s, b.input("mask", (B, 1, S, K))),
    "added first": lambda b, s: b.op("Add", b.input("mask", (S, K)), s),
    "a number": lambda b, s: b.op("Add", s, b.input("mask", ())),
    "by head": lambda b, s: b.op("Add", s, b.input("mask", (1, H, S, K))),
    "by key": lambda b, s: b.op("Add", s, b.input("mask", (B, 1, 1, K))),
    "by query": lambda b, s: b.op("Add", s, b.input("mask", (B, 1, S, 1))),
    "two": lambda b, s: b.op("Add", b.op("Add", s, b.input("mask", (S, K))), b.input("bias", (1, H, S, K))),
    "where": lambda b, s: b.op("Where", allowed(b, (B, 1, S, K)), s, number(b, -np.inf)),
    "masked fill": lambda b, s: b.op("Where", b.op("Not", allowed(b, (S, K))), number(b, -np.inf), s),
    "finite fill": lambda b, s: b.op("Where", b.input("m", (B, 1, S, K), DType.BOOL), s, number(b, -1e4)),
    "where and added": lambda b, s: b.op(
        "Add", b.op("Where", b.input("m", (S, K), DType.BOOL), s, number(b, -3.4e38)), b.input("mask", (B, 1, 1, K))
    ),
    "chosen": lambda b, s: b.op(
        "Add", s, b.op("Where", b.input("m", (B, 1, 1, K), DType.BOOL), number(b, 0), number(b, -1e4))
    ),
    "soft cap": lambda b, s: b.op("Mul", b.op("Tanh", b.op("Div", s, number(b, 5))), number(b, 5)),
    "cap and mask": lambda b, s: b.op(
        "Add", b.op("Mul", number(b, 4), b.op("Tanh", b.op("Mul", s, number(b, 0.25)))), b.input("mask", (S, K))
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", ["scores", "both"])
def test_masks(mask: str, scale: str) -> None:
    p = Pieces()
    g = optimized(p.done(MASKS[mask](p.b, p.scores(scale))))
    assert set(work(g)) <= {"Attention", "Where", "Add", "Expand", "Not"} and "Softmax" not in work(g)
    assert the_attention(g).attrs["softcap"] == {"soft cap": 5.0, "cap and mask": 4.0}.get(mask, 0.0)


@pytest.mark.parametrize("guard", ["", "nan", "rows of scores", "rows of the mask"])
@pytest.mark.parametrize("form", ["added", "where"])
def test_queries_that_see_nothing(form: str, guard: str) -> None:
    """NaN without a guard, zeros with one; and so it stays."""
    p = Pieces()
    b, s = p.b, p.scores()
    mask = np.zeros((S, K), np.float32)
    mask[1] = -np.inf
    if guard == "rows of the mask" and form == "where":
        pytest.skip("a bool mask has no numbers")
    if form == "added":
        s = b.op("Add", s, b.const(mask))
    else:
        s = b.op("Where", b.const(mask == 0), s, number(b, -np.inf))
    w = b.op("Softmax", s, axis=-1)
    if guard == "nan":
        w = b.op("Where", b.op("IsNaN", w), number(b, 0), w)
    elif guard:
        largest = b.op("ReduceMax", s if "scores" in guard else b.const(mask), b.const([-1]), keepdims=1)
        w = b.op("Where", b.op("Equal", largest, number(b, -np.inf)), number(b, 0), w)
    graph = b.done(b.op("MatMul", w, p.v))
    [y] = interpret(optimized(graph), random_inputs(graph))
    assert work(optimized(graph)) == ["Attention"]
    assert (np.isnan(y[:, :, 1]).all() and not guard) or (guard and not y[:, :, 1].any())
    assert np.isfinite(y[:, :, 0]).all()


def triangle(b: Builder, form: str, n: int) -> int:
    below = np.tri(n, dtype=bool)
    if form.startswith("range"):
        positions = b.op("Range", b.const(0), b.const(n), b.const(1))
        row, column = (b.op("Reshape", positions, b.const(d)) for d in ([1, n], [n, 1]))
        return b.op("LessOrEqual", row, column) if form == "range" else b.op("Less", column, row)
    return b.const(below if form == "constant" else ~below)


@pytest.mark.parametrize("form", ["constant", "constant above", "range", "range above"])
@pytest.mark.parametrize("use", ["where", "added"])
def test_causal_masks(form: str, use: str) -> None:
    n = 6
    b = Builder()
    q, k, v = (b.input(name, (B, H, n, D)) for name in "qkv")
    s = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    mask, hide = triangle(b, form, n), number(b, -np.inf if use == "where" else -3.4e38)
    keep = s if use == "where" else number(b, 0)
    chosen = b.op("Where", mask, hide, keep) if "above" in form else b.op("Where", mask, keep, hide)
    s = chosen if use == "where" else b.op("Add", s, chosen)
    g = optimized(b.done(b.op("MatMul", b.op("Softmax", s, axis=-1), v)))
    assert work(g) == ["Attention"] and the_attention(g).attrs["is_causal"] == 1
    assert not the_attention(g).attrs["nan_rows"]


@pytest.mark.parametrize("change", ["shifted", "weak", "oblong"])
def test_masks_that_are_not_causal(change: str) -> None:
    b = Builder()
    keys = 7 if change == "oblong" else 6
    q = b.input("q", (B, H, 6, D))
    k, v = (b.input(name, (B, H, keys, D)) for name in "kv")
    mask = np.where(np.tri(6, keys, k=int(change == "shifted")), 0, -100.0 if change == "weak" else -3e38)
    s = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), b.const(mask, np.float32))
    g = optimized(b.done(b.op("MatMul", b.op("Softmax", s, axis=-1), v)))
    assert work(g) == ["Attention"] and the_attention(g).attrs["is_causal"] == 0 and len(the_attention(g).inputs) == 4


@pytest.mark.parametrize("how", ["expand", "tile", "gather", "one head"])
def test_grouped_heads(how: str) -> None:
    heads = 1 if how == "one head" else 2
    p = Pieces(kv_heads=heads)
    b = p.b

    def repeat(x: int) -> int:
        if how == "gather":
            return b.op("Gather", x, b.const([0, 0, 1, 1]), axis=1)
        x = b.op("Unsqueeze", x, b.const([2]))
        if how == "tile":
            x = b.op("Tile", x, b.const([1, 1, 2, 1, 1]))
        else:
            x = b.op("Expand", x, b.const([B, 2, 2, K, D]))
        return b.op("Reshape", x, b.const([B, H, K, D]))

    if how != "one head":
        p.k, p.v = repeat(p.k), repeat(p.v)
    g = optimized(p.done(p.scores()))
    assert work(g) == ["Attention"] and g.tensor(the_attention(g).inputs[1]).dims[1] == heads


def test_batch_and_heads_in_one_axis() -> None:
    """bmm over [batch · heads, positions, size], with a mask for [batch, heads, ...] in between."""
    b = Builder()
    q, k, v = (b.input(n, (B, H, s, D)) for n, s in (("q", S), ("k", K), ("v", K)))
    flat = [b.op("Reshape", x, b.const([B * H, -1, D])) for x in (q, k, v)]
    s = b.op("MatMul", b.op("Mul", flat[0], number(b, 0.3)), b.op("Transpose", flat[1], perm=(0, 2, 1)))
    s = b.op("Add", b.op("Reshape", s, b.const([B, H, S, K])), b.input("mask", (B, 1, S, K)))
    w = b.op("Softmax", b.op("Reshape", s, b.const([B * H, S, K])), axis=-1)
    y = b.op("Reshape", b.op("MatMul", w, flat[2]), b.const([B, H, S, D]))
    assert work(optimized(b.done(y))) == ["Attention"]


def test_windows() -> None:
    """Swin: scores [batch · windows, heads, …], a bias for heads, a mask for windows in rank 5."""
    b = Builder()
    batch, windows = 2, 3
    q, k, v = (b.input(n, (batch * windows, H, S, D)) for n in "qkv")
    s = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    s = b.op("Add", s, b.input("bias", (1, H, S, S)))
    s = b.op("Add", b.op("Reshape", s, b.const([batch, windows, H, S, S])), b.input("mask", (1, windows, 1, S, S)))
    w = b.op("Softmax", b.op("Reshape", s, b.const([batch * windows, H, S, S])), axis=-1)
    g = optimized(b.done(b.op("MatMul", w, v)))
    assert "Softmax" not in work(g) and work(g).count("Attention") == 1


@pytest.mark.parametrize("rank", [2, 3])
def test_lower_ranks(rank: int) -> None:
    b = Builder()
    lead = (B,) * (rank - 2)
    q, k, v = (b.input(n, (*lead, s, D)) for n, s in (("q", S), ("k", K), ("v", K)))
    k_t = b.op("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))
    w = b.op("Softmax", b.op("Add", b.op("MatMul", q, k_t), b.input("m", (S, K))), axis=-1)
    g = optimized(b.done(b.op("MatMul", w, v)))
    assert "Attention" in work(g) and "Softmax" not in work(g)


def test_a_soft_max_in_float32() -> None:
    p = Pieces(DType.FLOAT16)
    b = p.b
    w = b.op("Softmax", b.op("Cast", p.scores(), to=DType.FLOAT32), axis=-1)
    graph = b.done(b.op("MatMul", b.op("Cast", w, to=DType.FLOAT16), p.v))
    want = interpret(graph, random_inputs(graph))[0]
    copy = clone(graph)
    optimize(copy, OptimizeOptions(debug=True))
    assert work(copy) == ["Attention"]
    np.testing.assert_allclose(interpret(copy, random_inputs(graph))[0], want, 2e-2, 5e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 2),
    st.sampled_from([DType.FLOAT32, DType.FLOAT64]), st.floats(0.05, 2), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_law(
    batch: int, heads: int, queries: int, keys: int, size: int, group: int, dtype: DType, scale: float, mask: bool,
    seed: int,
) -> None:  # fmt: skip
    """softmax(q·kᵀ·scale + mask)·v at random shapes, in pieces and as one operator."""
    b = Builder()
    q = b.input("q", (batch, heads * group, queries, size), dtype)
    k, v = (b.input(n, (batch, heads, keys, size + i), dtype) for i, n in enumerate("kv"))
    if group > 1:
        k, v = (b.op("Gather", x, b.const(np.repeat(np.arange(heads), group)), axis=1) for x in (k, v))
    s = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), number(b, scale, dtype))
    if mask:
        s = b.op("Add", s, b.input("m", (batch, 1, queries, keys), dtype))
    graph = b.done(b.op("MatMul", b.op("Softmax", s, axis=-1), v))
    inputs = random_inputs(graph, seed=seed)
    copy = clone(graph)
    optimize(copy, OptimizeOptions(debug=True))
    assert "Attention" in work(copy) and "Softmax" not in work(copy) and optimize(copy).changed == 0
    close = 1e-4 if dtype is DType.FLOAT32 else 1e-6
    np.testing.assert_allclose(interpret(copy, inputs)[0], interpret(graph, inputs)[0], close, close)


# -- heads side by side ------------------------------------------------------------------------------------------


def layer(b: Builder, x: int, rope: bool = False, dialect: str = "plain") -> int:
    """Self-attention with projections, as an exporter writes it."""
    rng = np.random.default_rng(0)
    n = symbol("N")
    heads = []
    for _ in range(3):
        y = b.op("MatMul", x, b.const(rng.standard_normal((16, 16)) * 0.3, np.float32))
        y = b.op("Add", y, b.const(rng.standard_normal(16), np.float32))
        y = b.op("Reshape", y, b.const([0, 0, 4, 4]))
        heads.append(b.op("Transpose", y, perm=(0, 2, 1, 3)))
    q, k, v = heads
    if rope:
        cos, sin = (b.input(name, (2, n, 2)) for name in ("cos", "sin"))
        q, k = b.op("RotaryEmbedding", q, cos, sin), b.op("RotaryEmbedding", k, cos, sin)
    if dialect == "dynamo":
        flat = b.op("Reshape", k, b.op("Concat", b.const([-1]), *(dim(b, k, i) for i in (2, 3)), axis=0))
        turned = b.op("Transpose", flat, perm=(0, 2, 1))
        k_t = b.op("Reshape", turned, b.op("Concat", b.const([2, 4, 4]), dim(b, k, 2), axis=0))
    else:
        k_t = b.op("Transpose", k, perm=(0, 1, 3, 2))
    w = b.op("Softmax", b.op("MatMul", b.op("Mul", q, number(b, 0.5)), k_t), axis=-1)
    y = b.op("Transpose", b.op("MatMul", w, v), perm=(0, 2, 1, 3))
    return b.op("Reshape", y, b.const([0, 0, 16]))


def dim(b: Builder, x: int, i: int) -> int:
    return b.op("Gather", b.op("Shape", x), b.const([i]))


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("dialect", ["plain", "dynamo"])
def test_projections_need_no_transposes(dialect: str, rope: bool) -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (2, symbol("N"), 16))
    g = optimized(b.done(layer(b, x, rope, dialect)), {"N": 3})
    assert sorted(set(work(g))) == sorted({"Add", "Attention", "MatMul"} | ({"RotaryEmbedding"} if rope else set()))
    assert work(g).count("Attention") == 1 and the_attention(g).attrs["q_num_heads"] == 4


def test_a_transpose_that_others_read() -> None:
    b = Builder()
    x = b.input("x", (2, 3, 16))
    apart = b.op("Transpose", b.op("Reshape", x, b.const([2, 3, 4, 4])), perm=(0, 2, 1, 3))
    y = b.op("Attention", apart, apart, apart)
    assert sorted(work(optimized(b.done(y, apart)))) == ["Attention", "Reshape", "Transpose"]


# -- near misses -------------------------------------------------------------------------------------------------


def _miss(change: str) -> Graph:
    p = Pieces()
    b, s = p.b, p.scores("none" if change in ("scale after the mask",) else "scores")
    axis = 2 if change == "axis" else -1
    if change == "a weak fill":
        s = b.op("Where", b.input("m", (S, K), DType.BOOL), s, number(b, -100))
    elif change == "scale after the mask":
        s = b.op("Mul", b.op("Add", s, b.input("m", (S, K))), number(b, 0.5))
    elif change == "something between":
        s = b.op("Mul", s, b.input("m", (S, K)))
    w = b.op("Softmax", s, axis=axis)
    y = b.op("MatMul", w, p.v)
    more = {"the weights are read": [w], "the scores are read": [s]}.get(change, [])
    return b.done(y, *more)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("axis", ""),
        ("a weak fill", "puts -100.0"),
        ("scale after the mask", "before"),
        ("something between", "pass through Mul"),
        ("the weights are read", "weights have 2 readers"),
        ("the scores are read", "readers"),
    ],
)
def test_misses_of_one_condition(change: str, word: str) -> None:
    graph = _miss(change)
    report = optimize(graph, OptimizeOptions(debug=True))
    assert "Attention" not in work(graph) and "Softmax" in work(graph)
    told = [d.reason for d in report.declined if d.rule == "attention"]
    assert any(word in r for r in told) if word else not told
    again = clone(graph)
    assert optimize(again).changed == 0
