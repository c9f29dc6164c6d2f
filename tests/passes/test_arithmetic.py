"""Arithmetic with constants, and gates: every line of the tables, on random numbers; and what must stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atc_py.ir.types import DType
from atc_py.passes import OptimizeOptions, optimize
from tests.passes.interp import Builder, optimized, origins, work

Form = Callable[[Builder, int], int]


def n(b: Builder, value: Any, dtype: Any = np.float32) -> int:
    return b.const(value, dtype)


FORMS: dict[str, tuple[Form, list[str]]] = {
    "x * 1": (lambda b, x: b.op("Mul", n(b, 1), x), []),
    "x * ones": (lambda b, x: b.op("Mul", x, n(b, np.ones((3, 4)))), []),
    "x / 1": (lambda b, x: b.op("Div", x, n(b, [1])), []),
    "x + 0": (lambda b, x: b.op("Add", n(b, 0), x), []),
    "x - 0": (lambda b, x: b.op("Sub", x, n(b, 0)), []),
    "x ** 1": (lambda b, x: b.op("Pow", x, n(b, 1)), []),
    "x ** 2": (lambda b, x: b.op("Pow", x, n(b, 2, np.int64)), ["Mul"]),
    "x ** -1": (lambda b, x: b.op("Pow", x, n(b, -1)), ["Reciprocal"]),
    "x ** 3": (lambda b, x: b.op("Pow", x, n(b, 3)), ["Pow"]),
    "0 - x": (lambda b, x: b.op("Sub", n(b, 0), x), ["Neg"]),
    "x * -1": (lambda b, x: b.op("Mul", x, n(b, -1)), ["Neg"]),
    "--x": (lambda b, x: b.op("Neg", b.op("Neg", x)), []),
    "1 / x": (lambda b, x: b.op("Div", n(b, 1), x), ["Reciprocal"]),
    "x / 4": (lambda b, x: b.op("Div", x, n(b, 4)), ["Mul"]),
    "x / 3": (lambda b, x: b.op("Div", x, n(b, 3)), ["Div"]),
    "x * a * b": (lambda b, x: b.op("Mul", n(b, 3), b.op("Mul", x, n(b, 0.3))), ["Mul"]),
    "x * a * vast": (lambda b, x: b.op("Mul", b.op("Mul", x, n(b, 1e-30)), n(b, 1e30)), ["Mul", "Mul"]),
    "x * reciprocal": (lambda b, x: b.op("Mul", x, b.op("Reciprocal", b.op("Exp", x))), ["Exp", "Div"]),
    "max with -inf": (lambda b, x: b.op("Max", n(b, -np.inf), x), []),
    "min with inf": (lambda b, x: b.op("Min", x, n(b, np.inf)), []),
    "clip": (lambda b, x: b.op("Min", b.op("Max", x, n(b, -0.5)), n(b, 0.5)), ["Clip"]),
    "clip of relu": (lambda b, x: b.op("Min", n(b, 6), b.op("Relu", x)), ["Clip"]),
    "clip from above": (lambda b, x: b.op("Relu", b.op("Min", x, n(b, 1))), ["Clip"]),
    "clip from below": (lambda b, x: b.op("Max", n(b, -1), b.op("Min", x, n(b, 1))), ["Clip"]),
    "sum of two": (lambda b, x: b.op("Sum", x, b.op("Exp", x)), ["Exp", "Add"]),
    "greater or equal": (
        lambda b, x: at_least(b, x, b.op("Exp", x), "Greater"), ["Exp", "GreaterOrEqual", "Cast"]
    ),
    "less or equal": (lambda b, x: at_least(b, x, b.op("Exp", x), "Less"), ["Exp", "LessOrEqual", "Cast"]),
    "leaky relu by choice": (
        lambda b, x: b.op("Where", b.op("Less", x, n(b, 0)), b.op("Mul", x, n(b, 0.3)), x), ["LeakyRelu"]
    ),
    "log softmax": (lambda b, x: log_soft(b, b.op("Identity", x)), ["LogSoftmax"]),
    "clip upside down": (lambda b, x: b.op("Min", b.op("Max", x, n(b, 2)), n(b, 1)), ["Max", "Min"]),
    "where true": (lambda b, x: b.op("Where", n(b, True, bool), x, b.op("Exp", x)), []),
    "where same": (lambda b, x: b.op("Where", b.op("Greater", x, n(b, 0)), x, x), []),
    "where wider": (lambda b, x: b.op("Where", n(b, np.ones((2, 3, 4)), bool), x, n(b, 0)), ["Where"]),
    "x * 1 wider": (lambda b, x: b.op("Mul", x, n(b, np.ones((2, 3, 4)))), ["Mul"]),
    "sum / n": (lambda b, x: b.op("Div", b.op("ReduceSum", x, b.const([1]), keepdims=1), n(b, 4)), ["ReduceMean"]),
    "sum * 1/n": (lambda b, x: b.op("Mul", n(b, 1 / 12), b.op("ReduceSum", x, b.const([0, 1]))), ["ReduceMean"]),
    "sum / m": (lambda b, x: b.op("Div", b.op("ReduceSum", x, b.const([1])), n(b, 3)), ["ReduceSum", "Div"]),
    "reduced and back": (
        lambda b, x: b.op("Unsqueeze", b.op("ReduceMax", x, b.const([-1]), keepdims=0), b.const([1])), ["ReduceMax"]
    ),
    "sigmoid": (
        lambda b, x: b.op("Div", n(b, 1), b.op("Add", n(b, 1), b.op("Exp", b.op("Neg", x)))), ["Sigmoid"]
    ),
    "swish by division": (lambda b, x: b.op("Div", x, b.op("Add", b.op("Exp", b.op("Neg", x)), n(b, 1))), ["Swish"]),
    "swish with alpha": (lambda b, x: b.op("Mul", b.op("Sigmoid", b.op("Mul", n(b, 1.702), x)), x), ["Swish"]),
    "softsign": (lambda b, x: b.op("Div", x, b.op("Add", n(b, 1), b.op("Abs", x))), ["Softsign"]),
    "relu by max": (lambda b, x: b.op("Max", n(b, 0), x), ["Relu"]),
    "relu by clip": (lambda b, x: b.op("Clip", x, n(b, 0)), ["Relu"]),
    "leaky relu": (lambda b, x: b.op("Max", x, b.op("Mul", n(b, 0.1), x)), ["LeakyRelu"]),
    "no leaky relu": (lambda b, x: b.op("Max", x, b.op("Mul", n(b, 1.5), x)), ["Mul", "Max"]),
    "hard sigmoid": (
        lambda b, x: b.op("Clip", b.op("Add", b.op("Mul", x, n(b, 0.3)), n(b, 0.5)), n(b, 0), n(b, 1)), ["HardSigmoid"]
    ),
    "hard sigmoid by six": (
        lambda b, x: b.op("Mul", b.op("Clip", b.op("Add", x, n(b, 3)), n(b, 0), n(b, 6)), n(b, 1 / 6)), ["HardSigmoid"]
    ),
    "mish": (lambda b, x: b.op("Mul", x, b.op("Tanh", b.op("Softplus", x))), ["Mish"]),
    "mish in pieces": (
        lambda b, x: b.op("Mul", b.op("Tanh", b.op("Log", b.op("Add", b.op("Exp", x), n(b, 1)))), x), ["Mish"]
    ),
    "softmax": (lambda b, x: soft(b, x, True, -1), ["Softmax"]),
    "softmax over rows": (lambda b, x: soft(b, x, True, 0), ["Softmax"]),
    "softmax, axes dropped": (lambda b, x: soft(b, x, False, -1), ["Softmax"]),
}  # fmt: skip


def at_least(b: Builder, x: int, y: int, strict: str) -> int:
    return b.op("Cast", b.op("Or", b.op("Equal", y, x), b.op(strict, x, y)), to=DType.FLOAT32)


def log_soft(b: Builder, x: int) -> int:
    below = b.op("Sub", x, b.op("ReduceMax", x, b.const([1]), keepdims=1))
    return b.op("Sub", below, b.op("Log", b.op("ReduceSum", b.op("Exp", below), b.const([-1]), keepdims=1)))


def soft(b: Builder, x: int, keep: bool, axis: int) -> int:
    def reduced(op: str, v: int) -> int:
        v = b.op(op, v, b.const([axis]), keepdims=int(keep))
        return v if keep else b.op("Unsqueeze", v, b.const([axis]))

    e = b.op("Exp", b.op("Sub", x, reduced("ReduceMax", x)))
    return b.op("Div", e, reduced("ReduceSum", e))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    make, left = FORMS[form]
    b = Builder()
    g = optimized(b.done(b.op("Sin", make(b, b.op("Cos", b.input("x", (3, 4)))))))
    assert work(g)[1:-1] == left
    if not form.startswith("where"):  # what computes a condition that is not asked is dead
        assert origins(g) == {f"n{i}" for i in range(b.count)}


def tanh_argument(b: Builder, x: int, form: str) -> int:
    if form.startswith("pow"):
        cube = b.op("Pow", x, n(b, 3))
    else:
        cube = b.op("Mul", x, b.op("Mul", x, x))
    if form.endswith("factored"):
        inner = b.op("Add", n(b, 1), b.op("Mul", b.op("Mul", x, n(b, 0.044715)), x))
        return b.op("Mul", b.op("Mul", x, n(b, (2 / np.pi) ** 0.5)), inner)
    return b.op("Mul", n(b, (2 / np.pi) ** 0.5), b.op("Add", x, b.op("Mul", cube, n(b, 0.044715))))


@pytest.mark.parametrize("form", ["pow", "mul", "mul factored"])
@pytest.mark.parametrize("half", ["first", "last", "gate"])
def test_gelu_by_tanh(form: str, half: str) -> None:
    b = Builder()
    x = b.input("x", (3, 5))
    gate = b.op("Add", b.op("Tanh", tanh_argument(b, x, form)), n(b, 1))
    if half == "gate":
        y = b.op("Mul", x, b.op("Mul", gate, n(b, 0.5)))
    elif half == "first":
        y = b.op("Mul", b.op("Mul", n(b, 0.5), x), gate)
    else:
        y = b.op("Mul", b.op("Mul", gate, x), n(b, 0.5))
    g = optimized(b.done(y))
    [node] = [v for v in g.nodes.values() if v.op == "Gelu"]
    assert work(g) == ["Gelu"] and node.attrs["approximate"] == "tanh"


@pytest.mark.parametrize("number", [0.044, 0.0447151])
def test_a_cubic_that_is_not_gelu(number: float) -> None:
    b = Builder()
    x = b.input("x", (3, 5))
    cubic = b.op("Add", x, b.op("Mul", b.op("Pow", x, n(b, 3)), n(b, number)))
    gate = b.op("Add", b.op("Tanh", b.op("Mul", cubic, n(b, (2 / np.pi) ** 0.5))), n(b, 1))
    g = optimized(b.done(b.op("Mul", b.op("Mul", x, n(b, 0.5)), gate)))
    assert (work(g) == ["Gelu"]) is (abs(number - 0.044715) < 1e-6)


@pytest.mark.parametrize("dtype", [DType.INT32, DType.BOOL])
def test_integers_and_bools(dtype: DType) -> None:
    b = Builder()
    x = b.input("x", (3, 4), dtype)
    if dtype is DType.BOOL:
        y = b.op("Or", b.op("And", x, n(b, True, bool)), n(b, [False], bool))
        left: list[str] = []
    else:
        y = b.op("Div", b.op("Add", b.op("Mul", x, n(b, 1, np.int32)), n(b, 0, np.int32)), n(b, 4, np.int32))
        left = ["Div"]
    assert work(optimized(b.done(b.op("Identity", y)))) == left


def test_softmax_over_two_axes_stays() -> None:
    b = Builder()
    x = b.input("x", (2, 3, 4))
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, b.const([1, 2]), keepdims=1)))
    graph = b.done(b.op("Div", e, b.op("ReduceSum", e, b.const([1, 2]), keepdims=1)))
    report = optimize(graph, OptimizeOptions(debug=True))
    assert "Softmax" not in work(graph) and any("over axes" in d.reason for d in report.declined)
