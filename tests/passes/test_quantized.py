"""Operators on bytes against the float operators that they replace: one step apart at most, tables not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.ir.validate import validate
from atc_py.passes import LowerOptions, lower
from atc_py.passes.base import PassContext
from atc_py.passes.quantized import fold_quantized
from atc_py.target import Target, load
from tests.passes.interp import Builder, interpret, random_inputs, work

TARGET = load("Ascend310P3")
RNG = np.random.default_rng(0)


def folded(graph: Graph, target: Target = TARGET, steps: int = 1, apart: float = 0.0) -> Graph:
    """The graph with what folds, at rest; integers that come out are at most `steps` from the float path's.

    Floats may lie `apart`, for graphs that quantise inside.
    """
    copy = clone(graph)
    ctx = PassContext(LowerOptions(), copy, target)
    fold_quantized(copy, ctx)
    for node, decline in ctx.take_declined():
        node.note(decline.reason)
    validate(copy, "optimize")
    assert fold_quantized(clone(copy), PassContext(LowerOptions(), copy, target)) == 0
    inputs = random_inputs(graph)
    for a, b in zip(interpret(copy, inputs), interpret(graph, inputs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=apart + 1e-5 * max(1, np.abs(b).max(initial=0)))
        else:
            assert np.abs(a.astype(int) - b.astype(int)).max(initial=0) <= steps
    dead = [n for n in copy.nodes.values() if n.op == "Const" and not copy.values[n.outputs[0]].uses]
    assert not dead
    return copy


def q(b: Builder, x: int, scale: float = 0.02, zero: int = 3, dtype: Any = np.int8) -> int:
    return b.op("QuantizeLinear", x, b.const(scale, np.float32), b.const(zero, dtype))


def dq(b: Builder, x: int, scale: Any = 0.02, zero: Any = 3, dtype: Any = np.int8, axis: int = 1) -> int:
    return b.op("DequantizeLinear", x, b.const(scale, np.float32), b.const(zero, dtype), axis=axis)


def fake(b: Builder, x: int, scale: float = 0.02, zero: int = 3, dtype: Any = np.int8) -> int:
    return dq(b, q(b, x, scale, zero, dtype), scale, zero, dtype)


def weights(b: Builder, shape: tuple[int, ...], axis: int | None = None) -> int:
    bytes_ = RNG.integers(-127, 128, shape).astype(np.int8)
    count = 1 if axis is None else shape[axis]
    scale = RNG.uniform(0.001, 0.01, count).astype(np.float32) if axis is not None else np.float32(0.005)
    zero = np.zeros(count, np.int8) if axis is not None else np.int8(0)
    return dq(b, b.const(bytes_), scale, zero, axis=axis or 0)


def image(b: Builder, channels: int = 4) -> int:
    return b.input("x", (2, channels, 6, 6))


FORMS: dict[str, tuple[Callable[[Builder], int], list[str]]] = {
    "conv": (lambda b: q(b, b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 3, 3), 0))), ["QLinearConv"]),
    "conv, relu is the saturation": (
        lambda b: q(b, b.op("Relu", b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 1, 1)))), 0.02, -128),
        ["QLinearConv"],
    ),
    "conv, relu clamps": (
        lambda b: q(b, b.op("Relu", b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 1, 1)))), 0.02, 10),
        ["QLinearConv", "Clip"],
    ),
    "conv with whole bias": (
        lambda b: q(b, b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 3, 3)), dq(
            b, b.const(RNG.integers(-9999, 9999, 5), np.int32), np.float32(0.02) * np.float32(0.005), 0, np.int32))),
        ["QLinearConv"],
    ),
    "conv with real bias, group": (
        lambda b: q(b, b.op("Conv", fake(b, image(b)), weights(b, (4, 1, 3, 3), 0),
                            b.const(RNG.normal(size=4), np.float32), group=4, pads=(1, 1, 1, 1))),
        ["QLinearConv"],
    ),
    "conv, moved": (
        lambda b: q(b, b.op("Reshape", b.op("Conv", fake(b, image(b), 0.02, 128, np.uint8),
                                            weights(b, (5, 4, 3, 3))), b.const([2, 80])), 0.05, 100, np.uint8),
        ["QLinearConv", "Reshape"],
    ),
    "conv with a whole bias and a real result": (
        lambda b: b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 3, 3)), dq(
            b, b.const(RNG.integers(-9999, 9999, 5), np.int32), np.float32(0.02) * np.float32(0.005), 0, np.int32)),
        ["ConvInteger", "Add", "DequantizeLinear"],
    ),
    "conv with a real result": (
        lambda b: b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 1, 1), 0), b.const(RNG.normal(size=5), np.float32)),
        ["ConvInteger", "Add", "DequantizeLinear"],
    ),
    "matmul": (
        lambda b: q(b, b.op("MatMul", fake(b, b.input("x", (3, 5, 32))), weights(b, (32, 7), 1))), ["QuantMatmul"]
    ),
    "matmul, bias, relu": (
        lambda b: q(b, b.op("Relu", b.op("Add", b.const(RNG.normal(size=7), np.float32), b.op(
            "MatMul", fake(b, b.input("x", (3, 32))), weights(b, (32, 7), 1)))), 0.02, -128),
        ["QuantMatmul"],
    ),
    "matmul of two that are computed": (
        lambda b: q(b, b.op("MatMul", fake(b, b.input("x", (2, 3, 8))), fake(b, b.input("y", (2, 8, 3))))),
        ["QuantizeLinear", "QuantMatmul"],
    ),
    "matmul with a real result": (
        lambda b: b.op("Add", b.op("MatMul", fake(b, b.input("x", (3, 32))), weights(b, (32, 7), 1)),
                       b.const(RNG.normal(size=(1, 7)), np.float32)),
        ["QuantMatmul"],
    ),
    "matmul of what is moved": (
        lambda b: q(b, b.op("MatMul", b.op("Reshape", fake(b, b.input("x", (3, 4, 8))), b.const([3, 32])),
                            b.op("Transpose", weights(b, (7, 32), 0), perm=(1, 0)))),
        ["Reshape", "QuantMatmul"],
    ),
    "gemm": (
        lambda b: q(b, b.op("Gemm", fake(b, b.input("x", (3, 32))), weights(b, (7, 32), 0),
                            b.const(RNG.normal(size=7), np.float32), transB=1)),
        ["QuantMatmul"],
    ),
    "add": (
        lambda b: q(b, b.op("Add", fake(b, image(b)), fake(b, b.input("y", (4, 1, 1)), 0.01, -7)), 0.03, 1),
        ["QuantizeLinear", "com.microsoft::QLinearAdd"],
    ),
    "mul, clip": (
        lambda b: q(b, b.op("Clip", b.op("Mul", fake(b, image(b)), fake(b, b.input("y", (4, 1, 1)), 0.01, -7)),
                            b.const(-0.5, np.float32), b.const(0.25, np.float32)), 0.03, 1),
        ["QuantizeLinear", "com.microsoft::QLinearMul", "Clip"],
    ),
    "concat of one scale": (
        lambda b: q(b, b.op("Concat", fake(b, image(b)), fake(b, b.input("y", (2, 1, 6, 6))), axis=1)),
        ["QuantizeLinear", "Concat"],
    ),
    "concat of two scales": (
        lambda b: q(b, b.op("Concat", fake(b, image(b)), fake(b, b.input("y", (2, 1, 6, 6)), 0.03), axis=1)),
        ["QuantizeLinear", "com.microsoft::QLinearConcat"],
    ),
    "pools": (
        lambda b: q(b, b.op("GlobalAveragePool", dq(b, q(b, b.op(
            "AveragePool", fake(b, image(b)), kernel_shape=(3, 3), pads=(1, 1, 1, 1)), 0.01, 5), 0.01, 5)), 0.004, 0),
        ["com.microsoft::QLinearAveragePool", "com.microsoft::QLinearGlobalAveragePool"],
    ),
    "moves": (
        lambda b: q(b, b.op("Transpose", b.op("MaxPool", fake(b, image(b)), kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
                            perm=(0, 2, 3, 1))),
        ["MaxPool", "Transpose"],
    ),
    "functions": (
        lambda b: q(b, b.op("Flatten", b.op("Mul", b.op("HardSwish", b.op("LeakyRelu", fake(b, image(b)), alpha=0.2)),
                                            b.const(1.5, np.float32))), 0.01, 0, np.uint8),
        ["Flatten", "LookupTable"],
    ),
    "moved and requantised": (
        lambda b: q(b, b.op("MaxPool", fake(b, image(b)), kernel_shape=(2, 2)), 0.05, -3), ["MaxPool", "LookupTable"]
    ),
    "pair": (lambda b: dq(b, q(b, fake(b, image(b)))), ["DequantizeLinear"]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    make, left = FORMS[form]
    b = Builder()
    graph = b.done(make(b))
    found = work(folded(graph, steps=0 if {"LookupTable", "MaxPool"} & set(left) else 1))
    assert sorted(found) == sorted(["QuantizeLinear", *left])


def test_dynamic_quantisation_is_one_product_with_the_same_bits() -> None:
    b = Builder()
    data, scale, zero = b.ops("DynamicQuantizeLinear", b.input("x", (3, 5, 16)), outputs=3)
    sums = b.op("MatMulInteger", data, b.const(RNG.integers(-127, 128, (16, 7)), np.int8), zero)
    factor = b.op("Mul", scale, b.const(RNG.uniform(0.001, 0.01, 7), np.float32))
    y = b.op("Add", b.op("Mul", b.op("Cast", sums, to=DType.FLOAT32), factor), b.const(RNG.normal(size=7), np.float32))
    graph = b.done(y)
    copy = folded(graph)
    assert work(copy) == ["DynamicQuantizeLinear", "QuantMatmul"]
    inputs = random_inputs(graph)
    np.testing.assert_array_equal(interpret(copy, inputs)[0], interpret(graph, inputs)[0])


def no_cube() -> Target:
    target = load("Ascend310P3")
    return replace(target, name="Floats", cube={d: s for d, s in target.cube.items() if d is DType.FLOAT16})


def product(b: Builder, right: int, **options: Any) -> int:
    return q(b, b.op("MatMul", fake(b, b.input("x", (3, 32))), right, **options))


MISSES: dict[str, tuple[Callable[[Builder], int], Target, str]] = {
    "cube": (lambda b: product(b, weights(b, (32, 7))), no_cube(), "cube: Floats multiplies float16, not int8"),
    "inner scales": (
        lambda b: product(b, weights(b, (32, 7), 0)),
        TARGET,
        "scale: input 1 has 32 scales along axis 0 of 2; only ",
    ),
    "real weights": (
        lambda b: product(b, b.const(np.ones((32, 7)), np.float32)),
        TARGET,
        "operands: input 1 of MatMul is not",
    ),
    "gemm's alpha": (
        lambda b: q(b, b.op("Gemm", fake(b, b.input("x", (3, 32))), weights(b, (32, 7)), alpha=0.5)),
        TARGET,
        "attributes: Gemm has alpha 0.5",
    ),
    "a vast bias": (
        lambda b: q(b, b.op("Conv", fake(b, image(b)), weights(b, (5, 4, 1, 1)), b.const([1e9] * 5, np.float32))),
        TARGET,
        "bias: it is 1e+13 steps of the product's scales; int32 holds 2.15e+09",
    ),
    "an activation": (
        lambda b: q(b, b.op("Tanh", b.op("Add", fake(b, image(b)), fake(b, b.input("y", (1,)))))),
        TARGET,
        "activation: Tanh lies between Add and the quantisation; expected Relu or Clip",
    ),
    "mixed bytes": (
        lambda b: q(b, b.op("Add", fake(b, image(b)), fake(b, b.input("y", (1,)), 0.1, 3, np.uint8))),
        TARGET,
        "dtype: an operand is uint8, the result int8",
    ),
}


@pytest.mark.parametrize("miss", MISSES)
def test_what_keeps_an_operator_from_bytes_is_told(miss: str) -> None:
    make, target, reason = MISSES[miss]
    b = Builder()
    graph = folded(b.done(make(b)), target)
    assert any(note.startswith(reason) for node in graph.nodes.values() for note in node.notes), notes(graph)


BIASED: dict[str, Callable[[Builder, int], int]] = {
    "conv": lambda b, bias: b.op("Conv", fake(b, image(b)), weights(b, (2, 4, 1, 1)), bias),
    "matmul": lambda b, bias: b.op("Add", b.op("MatMul", fake(b, b.input("x", (3, 32))), weights(b, (32, 2))), bias),
    "gemm": lambda b, bias: b.op("Gemm", fake(b, b.input("x", (3, 32))), weights(b, (32, 2)), bias),
}
FINE: dict[str, Callable[[Builder], int]] = {
    "float": lambda b: b.const([4.4e-5, -4.1e-5], np.float32),
    "foreign": lambda b: dq(b, b.const([44, -41], np.int32), np.float32(1e-6), 0, np.int32),
}


@pytest.mark.parametrize("bias", FINE)
@pytest.mark.parametrize("kind", BIASED)
def test_a_bias_that_would_be_rounded_away_is_added_in_float(kind: str, bias: str) -> None:
    """Both biases are below half a step of the product's scales (1e-4), and two steps of the result (2e-5)."""
    b = Builder()
    graph = b.done(q(b, BIASED[kind](b, FINE[bias](b)), 2e-5, 0, np.uint8))
    made = folded(graph, steps=1)
    assert "QLinearConv" not in work(made)
    assert {"ConvInteger", "QuantMatmul"} & set(work(made)), "the product still multiplies bytes"
    coarse = Builder()
    whole = folded(coarse.done(q(coarse, BIASED[kind](coarse, FINE[bias](coarse)), 0.02)))
    assert sorted(work(whole)) in (["QLinearConv", "QuantizeLinear"], ["QuantMatmul", "QuantizeLinear"])


def notes(graph: Graph) -> list[str]:
    return [note for node in graph.nodes.values() for note in node.notes]


def test_sums_are_exact_at_any_length() -> None:
    for inner in (600, 5_000):
        b = Builder()
        x = b.op("DequantizeLinear", b.input("x", (2, inner), DType.UINT8), b.const(1, np.float32))
        w = dq(b, b.const(np.full((inner, 3), 127), np.int8), 1.0, 0)
        graph = b.done(b.op("MatMul", x, w))
        lower(graph, TARGET)
        data = np.full((2, inner), 255, np.uint8)
        data[1, :-1] = RNG.integers(0, 256, inner - 1)
        [y] = interpret(graph, [data])
        np.testing.assert_array_equal(y, (data.astype(np.int64).sum(1, keepdims=True) * 127).repeat(3, 1).astype("f4"))


STEPS = ("conv", "relu", "tanh", "add", "pool", "average", "turn", "fake", "coarse", "mul", "cat")


def step(b: Builder, x: int, kind: str) -> int:
    """One layer on a value of [2, 4, 6, 6]; each quantises its result."""
    made: dict[str, Callable[[], int]] = {
        "conv": lambda: b.op("Conv", x, weights(b, (4, 4, 3, 3), 0), pads=(1, 1, 1, 1)),
        "relu": lambda: b.op("Relu", x),
        "tanh": lambda: b.op("Tanh", x),
        "add": lambda: b.op("Add", x, x),
        "pool": lambda: b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        "average": lambda: b.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        "turn": lambda: b.op("Transpose", x, perm=(0, 1, 3, 2)),
        "fake": lambda: x,
        "coarse": lambda: fake(b, x, 0.1, 0),
        "mul": lambda: b.op("Mul", x, b.const(0.7, np.float32)),
        "cat": lambda: b.op("Slice", b.op("Concat", x, x, axis=1), b.const([0]), b.const([4]), b.const([1])),
    }
    return fake(b, made[kind](), 0.03, -4) if kind != "coarse" else made[kind]()


def dequantizers(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes.values() if n.op == "DequantizeLinear" and n.inputs[0] in graph.values]


@seed(2)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6))
def test_generated_networks_are_bytes_throughout(kinds: list[str]) -> None:
    b = Builder()
    x = fake(b, image(b), 0.03, -4)
    for kind in kinds:
        x = step(b, x, kind)
    graph = b.done(x)
    copy = folded(graph, apart=4 * 0.03)  # a step of one layer may grow in the next ones
    assert len(dequantizers(copy)) == 1, work(copy)  # the one before the output
    inputs = random_inputs(graph)
    [got], [want] = interpret(copy, inputs), interpret(graph, inputs)
    assert np.mean(np.abs(got - want) > 1e-6) < 0.05  # and most elements are equal


def test_lowered_models_stay_at_rest() -> None:
    b = Builder()
    x = fake(b, image(b), 0.03, -4)
    for kind in STEPS:
        x = step(b, x, kind)
    graph = b.done(x)
    report = lower(graph, TARGET, LowerOptions(debug=True))
    assert report.settled and lower(clone(graph), TARGET).changed == 0
