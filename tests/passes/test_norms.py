"""Normalizations in the forms in which exporters write them, and what must not be taken for one."""

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

Form = Callable[[Builder, int, int], int]


def number(b: Builder, value: float, like: DType = DType.FLOAT32) -> int:
    return b.const(value, like.numpy)


def mean(b: Builder, x: int, axes: Any = (-1,)) -> int:
    return b.op("ReduceMean", x, b.const(axes, np.int64), keepdims=1)


def dtype(b: Builder, x: int) -> DType:
    return b.graph.tensor(x).dtype


SQUARES: dict[str, Callable[[Builder, int], int]] = {
    "pow": lambda b, x: b.op("Pow", x, number(b, 2, dtype(b, x))),
    "mul": lambda b, x: b.op("Mul", x, x),
}

OVER: dict[str, Callable[[Builder, int, int], int]] = {
    "div sqrt": lambda b, x, v: b.op("Div", x, b.op("Sqrt", v)),
    "mul reciprocal": lambda b, x, v: b.op("Mul", b.op("Reciprocal", b.op("Sqrt", v)), x),
    "mul one over": lambda b, x, v: b.op("Mul", x, b.op("Div", number(b, 1, dtype(b, x)), b.op("Sqrt", v))),
    "div pow half": lambda b, x, v: b.op("Div", x, b.op("Pow", v, number(b, 0.5, dtype(b, x)))),
    "mul pow": lambda b, x, v: b.op("Mul", x, b.op("Pow", v, number(b, -0.5, dtype(b, x)))),
}


def shifted(b: Builder, v: int, swap: bool) -> int:
    eps = number(b, 1e-5, dtype(b, v))
    return b.op("Add", eps, v) if swap else b.op("Add", v, eps)


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", ["rms", "layer", "moments"])
def test_cores(kind: str, over: str, square: str) -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (symbol("N"), 3, 8))
    if kind == "rms":
        y = OVER[over](b, x, shifted(b, mean(b, SQUARES[square](b, x)), False))
    else:
        centered = b.op("Sub", x, mean(b, x))
        if kind == "layer":
            variance = mean(b, SQUARES[square](b, centered))
        else:
            variance = b.op("Sub", mean(b, SQUARES[square](b, x)), SQUARES[square](b, mean(b, x)))
            variance = b.op("Max", variance, number(b, 0))
        y = OVER[over](b, centered, shifted(b, variance, True))
    g = optimized(b.done(y), {"N": 2})
    assert work(g) == ["RMSNormalization" if kind == "rms" else "LayerNormalization"]
    assert origins(g) == {f"n{i}" for i in range(b.count)}
    [node] = [n for n in g.nodes.values() if n.op.endswith("Normalization")]
    assert node.attrs["axis"] == -1 and abs(node.attrs["epsilon"] - 1e-5) < 1e-9


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["rms", "layer"]),
    st.sampled_from([DType.FLOAT16, DType.FLOAT32, DType.FLOAT64]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_law(kind: str, dt: DType, dims: list[int], axes: int, weight: bool, bias: bool, seed: int) -> None:
    """Norms over the last axes with weights: the pieces and the operator compute the same, at random shapes."""
    axes, dims[-1] = min(axes, len(dims)), dims[-1] + 1  # a mean over one element is no node
    b, rng = Builder(), np.random.default_rng(seed)
    x = b.input("x", tuple(dims), dt)
    over = tuple(range(len(dims) - axes, len(dims)))
    core = x if kind == "rms" else b.op("Sub", x, mean(b, x, over))
    y = b.op("Div", core, b.op("Sqrt", shifted(b, mean(b, SQUARES["pow"](b, core), over), bias)))
    tail = tuple(dims[-axes:])
    if weight:
        y = b.op("Mul", b.const(rng.standard_normal(tail), dt.numpy), y)
    if bias:
        y = b.op("Add", y, b.const(rng.standard_normal(tail), dt.numpy))
    graph = b.done(y)
    inputs = random_inputs(graph, seed=seed)
    want = interpret(graph, inputs)[0].astype(np.float64)
    copy = clone(graph)
    optimize(copy, OptimizeOptions(debug=True))
    found = work(copy)
    assert len(found) <= 1 + (kind == "rms" and bias) and optimize(copy).changed == 0
    got = interpret(copy, inputs)[0].astype(np.float64)
    tolerance = {DType.FLOAT16: 2e-2, DType.FLOAT32: 2e-4, DType.FLOAT64: 1e-9}[dt]
    np.testing.assert_allclose(got, want, tolerance, tolerance * max(1.0, float(np.abs(want).max())))


WEIGHTS: dict[str, Callable[[Builder, int, int, int], int]] = {
    "after": lambda b, y, w, c: b.op("Add", b.op("Mul", y, w), c),
    "before": lambda b, y, w, c: b.op("Add", c, b.op("Mul", w, y)),
    "two factors": lambda b, y, w, c: b.op("Add", b.op("Mul", b.op("Mul", y, w), number(b, 0.5)), c),
    "two summands": lambda b, y, w, c: b.op("Add", b.op("Add", b.op("Mul", y, w), c), number(b, 2)),
    "factor of the sum": lambda b, y, w, c: b.op("Mul", b.op("Add", b.op("Mul", y, w), c), w),
}


@pytest.mark.parametrize("form", WEIGHTS)
def test_weights_go_into_the_norm(form: str) -> None:
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", (2, 3, 6))
    w, c = b.const(rng.standard_normal(6), np.float32), b.const(rng.standard_normal((1, 6)), np.float32)
    ones = b.const(np.ones(6), np.float32)
    g = optimized(b.done(WEIGHTS[form](b, b.op("LayerNormalization", x, ones, axis=-1, epsilon=1e-6), w, c)))
    assert work(g) == ["LayerNormalization"] and origins(g) == {f"n{i}" for i in range(b.count)}


def test_a_factor_inside_the_inverse() -> None:
    """x̂ · (γ / √(σ² + ε)), as Keras writes it."""
    b, rng = Builder(), np.random.default_rng(0)
    x, gamma = b.input("x", (2, 6)), b.const(rng.standard_normal((1, 6)), np.float32)
    centered = b.op("Sub", x, mean(b, x))
    inverse = b.op("Reciprocal", b.op("Sqrt", shifted(b, mean(b, SQUARES["mul"](b, centered)), False)))
    y = b.op("Add", b.op("Mul", centered, b.op("Mul", inverse, gamma)), b.const(rng.standard_normal(6), np.float32))
    assert work(optimized(b.done(y))) == ["LayerNormalization"]


def test_casts_between_the_parts() -> None:
    b = Builder()
    x = b.input("x", (2, 6), DType.FLOAT16)
    wide = b.op("Cast", x, to=DType.FLOAT32)
    core = b.op("Mul", wide, b.op("Reciprocal", b.op("Sqrt", shifted(b, mean(b, SQUARES["pow"](b, wide)), False))))
    y = b.op("Mul", b.const(np.ones(6), np.float16), b.op("Cast", core, to=DType.FLOAT16))
    graph = b.done(y)
    want = interpret(graph, random_inputs(graph))[0]
    optimize(graph, OptimizeOptions(debug=True))
    assert work(graph) == ["RMSNormalization"] and optimize(graph).changed == 0
    np.testing.assert_allclose(interpret(graph, random_inputs(graph))[0], want, 2e-3, 2e-3)


def test_a_weight_that_float16_does_not_hold() -> None:
    b = Builder()
    x = b.op("Cast", b.input("x", (2, 6), DType.FLOAT16), to=DType.FLOAT32)
    y = b.op("RMSNormalization", x, b.const(np.full(6, 0.1) + np.arange(6), np.float32))
    assert "Cast" in work(optimized(b.done(b.op("Cast", y, to=DType.FLOAT16))))


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 4, 5)])
@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm(shape: tuple[int, ...], affine: bool) -> None:
    b, rng = Builder(), np.random.default_rng(0)
    x, axes = b.input("x", shape), tuple(range(2, len(shape)))
    centered = b.op("Sub", x, mean(b, x, axes))
    y = b.op("Div", centered, b.op("Sqrt", shifted(b, mean(b, SQUARES["pow"](b, centered), axes), False)))
    if affine:
        channels = (6, *(1,) * len(axes))
        y = b.op("Mul", y, b.const(rng.standard_normal(channels), np.float32))
        y = b.op("Add", y, b.const(rng.standard_normal(channels), np.float32))
    g = optimized(b.done(y))
    assert work(g) == ["InstanceNormalization" if affine else "LayerNormalization"]


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("form", ["instance", "pieces"])
def test_group_norm(groups: int, form: str) -> None:
    b, rng = Builder(N=Range(1)), np.random.default_rng(0)
    x = b.input("x", (symbol("N"), 6, 4, 4))
    flat = b.op("Reshape", x, b.const([0, groups, -1]))
    if form == "instance":
        vectors = b.const(rng.standard_normal(groups), np.float32), b.const(np.zeros(groups), np.float32)
        normed = b.op("InstanceNormalization", flat, *vectors, epsilon=1e-5)
    else:
        centered = b.op("Sub", flat, mean(b, flat))
        normed = b.op("Div", centered, b.op("Sqrt", shifted(b, mean(b, SQUARES["pow"](b, centered)), False)))
    y = b.op("Reshape", normed, b.op("Shape", x))
    y = b.op("Mul", y, b.const(rng.standard_normal((6, 1, 1)), np.float32))
    y = b.op("Add", y, b.const(rng.standard_normal((6, 1, 1)), np.float32))
    g = optimized(b.done(y), {"N": 2})
    assert work(g) == ["GroupNormalization"]
    [node] = [n for n in g.nodes.values() if n.op == "GroupNormalization"]
    assert node.attrs["num_groups"] == groups


def _miss(change: str) -> Graph:
    b = Builder()
    x, other = b.input("x", (2, 6, 4)), b.input("z", (2, 6, 4))
    axes = (1,) if change == "axis" else (-1,)
    second = other if change == "another value" else x
    variance = mean(b, SQUARES["mul"](b, second), axes)
    eps = b.input("eps", ()) if change == "epsilon" else number(b, 1e-5)
    root = b.op("Sqrt", b.op("Add", variance, eps))
    y = b.op("Div", x, root)
    return b.done(y, *([root] if change == "reader" else []))


@pytest.mark.parametrize(
    ("change", "word"),
    [("axis", "not over the last"), ("another value", ""), ("epsilon", ""), ("reader", "readers")],
)
def test_misses_of_one_condition(change: str, word: str) -> None:
    graph = _miss(change)
    report = optimize(graph, OptimizeOptions(debug=True))
    assert "RMSNormalization" not in work(graph)
    told = [d.reason for d in report.declined if d.rule == "norms"]
    assert any(word in r for r in told) if word else not told


def test_a_shared_core_keeps_its_weights_apart() -> None:
    b = Builder()
    x, w = b.input("x", (2, 6)), b.const(np.arange(6), np.float32)
    core = b.op("Div", x, b.op("Sqrt", shifted(b, mean(b, SQUARES["mul"](b, x)), False)))
    assert work(optimized(b.done(b.op("Mul", core, w), core))) == ["RMSNormalization", "Mul"]
