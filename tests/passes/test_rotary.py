"""Rotary embeddings in the forms in which exporters write them."""

from __future__ import annotations

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

B, H, S, D = 2, 3, 4, 8


def part(b: Builder, x: int, start: int, stop: int, step: int = 1) -> int:
    return b.op("Slice", x, *(b.const([i]) for i in (start, stop, -1, step)))


def halves(b: Builder, x: int, how: str, size: int = D) -> tuple[int, int]:
    if how == "split":
        low, high = b.ops("Split", x, outputs=2, axis=-1, num_outputs=2)
        return low, high
    return part(b, x, 0, size // 2), part(b, x, size // 2, 2**31 if how == "far" else size)


def turned(b: Builder, x: int, how: str, minus: str = "neg", size: int = D) -> int:
    low, high = halves(b, x, how, size)
    negative = b.op("Neg", high) if minus == "neg" else b.op("Mul", high, b.const(-1, np.float32))
    return b.op("Concat", negative, low, axis=-1)


def angles(b: Builder, how: str, lay: tuple[int, ...] = (B, 1, S, D), size: int = D) -> tuple[int, int]:
    """Cosines and sines for both halves, of the positions or from a table."""
    if how == "positions":
        at = b.op(
            "Cast", b.op("Unsqueeze", b.input("positions", (lay[0], S), DType.INT64), b.const([-1])), to=DType.FLOAT32
        )
        f = b.op("Mul", at, b.const(0.5 ** np.arange(size // 2), np.float32))
        both = b.op("Reshape", b.op("Concat", f, f, axis=-1), b.const(lay))
        scale = b.const(1.5, np.float32)
        return b.op("Mul", b.op("Cos", both), scale), b.op("Mul", b.op("Sin", both), scale)
    table = np.outer(np.arange(9), 0.5 ** np.arange(size // 2)).astype(np.float32)
    cos, sin = (np.concatenate([f(table), f(table)], axis=-1) for f in (np.cos, np.sin))
    if how == "table":
        at = b.input("positions", (lay[0], S), DType.INT64)
        rows = [b.op("Unsqueeze", b.op("Gather", b.const(t), at), b.const([1])) for t in (cos, sin)]
        return rows[0], rows[1]
    return b.const(cos[:S].reshape(1, 1, S, size)), b.const(sin[:S].reshape(1, 1, S, size))


def the_rotary(graph: Graph) -> Any:
    [node] = [n for n in graph.nodes.values() if n.op == "RotaryEmbedding"]
    return node


@pytest.mark.parametrize("source", ["positions", "table", "constant"])
@pytest.mark.parametrize("how", ["slice", "split", "far"])
@pytest.mark.parametrize("minus", ["neg", "mul"])
def test_halves(how: str, minus: str, source: str) -> None:
    b = Builder()
    x = b.input("x", (B, H, S, D))
    cos, sin = angles(b, source)
    y = b.op("Add", b.op("Mul", turned(b, x, how, minus), sin), b.op("Mul", cos, x))
    g = optimized(b.done(y))
    node = the_rotary(g)
    assert not {"Concat", "Neg", "Slice", "Split"} & set(work(g)) and not node.attrs["interleaved"]
    assert [g.tensor(v).dims for v in node.inputs[1:]] == [(B, S, D // 2)] * 2
    assert origins(g) == {f"n{i}" for i in range(b.count)}


def test_positions_before_heads() -> None:
    """[batch, positions, heads, size], the cosines for [batch, positions, 1, size]."""
    b = Builder()
    x = b.op("Reshape", b.input("x", (B, S, H * D)), b.const([B, S, H, D]))
    cos, sin = angles(b, "positions", (B, S, 1, D))
    y = b.op("Add", b.op("Mul", x, cos), b.op("Mul", turned(b, x, "slice"), sin))
    g = optimized(b.done(y))
    node = the_rotary(g)
    assert node.attrs["num_heads"] == H and g.tensor(node.inputs[0]).dims == (B, S, H * D)


def test_half_caches() -> None:
    b = Builder(S=Range(1))
    n = symbol("S")
    x = b.input("x", (B, H, n, D))
    cos, sin = (b.input(name, (B, 1, n, D // 2)) for name in ("cos", "sin"))
    low, high = halves(b, x, "split")
    first = b.op("Sub", b.op("Mul", low, cos), b.op("Mul", high, sin))
    second = b.op("Add", b.op("Mul", low, sin), b.op("Mul", high, cos))
    g = optimized(b.done(b.op("Concat", first, second, axis=-1)), {"S": 3})
    assert sorted(work(g)) == ["Reshape", "Reshape", "RotaryEmbedding"]


@pytest.mark.parametrize("form", ["halves", "neighbours"])
def test_a_part_with_half_caches(form: str) -> None:
    b = Builder()
    x = b.input("x", (B, H, S, D + 3))
    cos, sin = (b.input(name, (B, 1, S, D // 2)) for name in ("cos", "sin"))
    some, rest = b.ops("Split", x, b.const([D, 3]), outputs=2, axis=3)
    if form == "halves":
        p, q = halves(b, some, "split")
    else:
        p, q = part(b, some, 0, D, 2), part(b, some, 1, D, 2)
    first = b.op("Sub", b.op("Mul", p, cos), b.op("Mul", q, sin))
    second = b.op("Add", b.op("Mul", p, sin), b.op("Mul", q, cos))
    if form == "halves":
        y = b.op("Concat", first, second, axis=-1)
    else:
        apart = [b.op("Unsqueeze", v, b.const([-1])) for v in (first, second)]
        y = b.op("Reshape", b.op("Concat", *apart, axis=-1), b.const([B, H, S, D]))
    g = optimized(b.done(b.op("Concat", y, rest, axis=-1)))
    node = the_rotary(g)
    assert node.attrs["rotary_embedding_dim"] == D and node.attrs["interleaved"] == (form == "neighbours")
    assert "Concat" not in work(g) and "Split" not in work(g) and "Slice" not in work(g)


@pytest.mark.parametrize("form", ["slices", "pairs", "gathered"])
def test_interleaved(form: str) -> None:
    b = Builder()
    x = b.input("x", (B, H, S, D))
    cos, sin = (b.input(name, (B, 1, S, D // 2)) for name in ("cos", "sin"))
    if form == "slices":
        p, q = part(b, x, 0, D, 2), part(b, x, 1, D, 2)
    else:
        pairs = b.op("Reshape", x, b.const([B, H, S, D // 2, 2]))
        if form == "pairs":
            p, q = (b.op("Squeeze", v, b.const([-1])) for v in b.ops("Split", pairs, outputs=2, axis=-1, num_outputs=2))
        else:
            p, q = (b.op("Gather", pairs, b.const(i), axis=4) for i in (0, 1))
    first = b.op("Sub", b.op("Mul", p, cos), b.op("Mul", q, sin))
    second = b.op("Add", b.op("Mul", p, sin), b.op("Mul", q, cos))
    apart = [b.op("Unsqueeze", v, b.const([-1])) for v in (first, second)]
    y = b.op("Reshape", b.op("Concat", *apart, axis=-1), b.const([B, H, S, D]))
    g = optimized(b.done(y))
    assert sorted(work(g)) == ["Reshape", "Reshape", "RotaryEmbedding"] and the_rotary(g).attrs["interleaved"] == 1


def test_a_part_is_turned() -> None:
    b = Builder()
    x = b.input("x", (B, H, S, D + 4))
    some, rest = part(b, x, 0, D), part(b, x, D, D + 4)
    cos, sin = angles(b, "positions")
    y = b.op("Add", b.op("Mul", some, cos), b.op("Mul", turned(b, some, "slice"), sin))
    g = optimized(b.done(b.op("Concat", y, rest, axis=-1)))
    assert the_rotary(g).attrs["rotary_embedding_dim"] == D and "Concat" not in work(g) and "Slice" not in work(g)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.booleans(),
    st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.FLOAT16]), st.integers(0, 99),
)  # fmt: skip
def test_law(batch: int, heads: int, length: int, half: int, wide: bool, dtype: DType, seed: int) -> None:
    """x·cos + turned(x)·sin at random shapes, in pieces and as one operator."""
    b = Builder()
    x = b.input("x", (batch, heads, length, 2 * half), dtype)
    f = b.input("f", (batch if wide else 1, 1, length, half), dtype)
    both = b.op("Concat", f, f, axis=-1)
    low, high = b.ops("Split", x, outputs=2, axis=-1, num_outputs=2)
    rotated = b.op("Concat", b.op("Neg", high), low, axis=-1)
    graph = b.done(b.op("Add", b.op("Mul", x, b.op("Cos", both)), b.op("Mul", rotated, b.op("Sin", both))))
    inputs = random_inputs(graph, seed=seed)
    copy = clone(graph)
    optimize(copy, OptimizeOptions(debug=True))
    assert "RotaryEmbedding" in work(copy) and optimize(copy).changed == 0
    close = {DType.FLOAT16: 1e-2, DType.FLOAT32: 1e-5, DType.FLOAT64: 1e-9}[dtype]
    np.testing.assert_allclose(interpret(copy, inputs)[0], interpret(graph, inputs)[0], close, close)


@pytest.mark.parametrize(
    ("change", "word"),
    [("other halves", "not known to be the same"), ("other cut", "not the two halves"), ("shape", "do not go with")],
)
def test_misses_of_one_condition(change: str, word: str) -> None:
    b = Builder()
    x = b.input("x", (B, H, S, D))
    if change == "other halves":
        cos, sin = b.input("cos", (B, 1, S, D)), b.input("sin", (B, 1, S, D))
    elif change == "shape":
        f = b.input("f", (B, H, S, D // 2))
        both = b.op("Concat", f, f, axis=-1)
        cos, sin = b.op("Cos", both), b.op("Sin", both)
    else:
        cos, sin = angles(b, "positions")
    low, high = (part(b, x, 0, 2), part(b, x, 2, D)) if change == "other cut" else halves(b, x, "slice")
    rotated = b.op("Concat", b.op("Neg", high), low, axis=-1)
    graph = b.done(b.op("Add", b.op("Mul", x, cos), b.op("Mul", rotated, sin)))
    report = optimize(graph, OptimizeOptions(debug=True))
    assert "RotaryEmbedding" not in work(graph)
    assert any(word in d.reason for d in report.declined if d.rule == "rotary")
