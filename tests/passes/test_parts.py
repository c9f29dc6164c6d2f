"""Cuts and joins, broadcasts that wait, loops that count, unit vectors: structure and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ir.graph import ABSENT, Graph, Range
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import as_constant
from atc_py.ops.shapes import as_objects
from atc_py.passes import OptimizeOptions, optimize
from tests.passes.interp import Builder, optimized, work

RNG = np.random.default_rng(0)


def c(b: Builder, *shape: int) -> int:
    return b.const(RNG.standard_normal(shape), np.float32)


def cut(b: Builder, x: int, start: int, stop: int, axis: int = 1, step: int = 1) -> int:
    return b.op("Slice", x, *(b.const([i]) for i in (start, stop, axis, step)))


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda b, x: cut(b, cut(b, x, 1, 6), 1, 4), ["Slice"]),
        (lambda b, x: cut(b, cut(b, x, 1, 7, 1, 2), 1, 3, 1, 2), ["Slice"]),
        (lambda b, x: cut(b, cut(b, x, 1, 6), 1, 2, 0), ["Slice"]),
        (lambda b, x: cut(b, b.op("Concat", b.op("Exp", x), x, axis=1), 9, 11), ["Slice"]),
        (lambda b, x: cut(b, b.op("Concat", b.op("Exp", x), x, axis=1), 7, 14), []),
        (lambda b, x: cut(b, b.op("Concat", b.op("Exp", x), x, axis=1), 5, 9), ["Exp", "Concat", "Slice"]),
        (lambda b, x: b.op("Concat", cut(b, x, 0, 3), cut(b, x, 3, 7), axis=1), []),
        (lambda b, x: b.op("Concat", cut(b, x, 0, 3), cut(b, x, 3, 5), axis=1), ["Slice"]),
        (lambda b, x: b.op("Concat", cut(b, x, 3, 7), cut(b, x, 0, 3), axis=1), ["Split", "Concat"]),
        (lambda b, x: b.op("Concat", *b.ops("Split", x, b.const([2, 4, 1]), outputs=3, axis=1), axis=-1), []),
        (lambda b, x: b.op("Concat", b.op("Concat", x, x, axis=0), x, axis=0), ["Concat"]),
        (lambda b, x: b.op("Add", *b.ops("Split", b.op("Concat", x, b.op("Exp", x), axis=0), outputs=2, axis=0)),
         ["Exp", "Add"]),
        (lambda b, x: b.op("Mul", cut(b, x, 0, 1, 0), cut(b, x, 1, 2, 0)), ["Split", "Mul"]),
        (lambda b, x: b.op("Pad", b.op("Pad", x, b.const([0, 1, 0, 2])), b.const([1, 0, 0, 3])), ["Pad"]),
        (lambda b, x: b.op("Pad", b.op("Pad", x, b.const([0, 1, 0, 2])), b.const([1, 0, 0, 3]), b.const(2, np.float32)),
         ["Pad", "Pad"]),
        (lambda b, x: b.op("Concat", *b.ops("Split", x, b.const([7, 0]), outputs=2, axis=1), axis=1), []),
        (lambda b, x: b.op("Gather", x, b.const(2), axis=1), ["Slice", "Reshape"]),
        (lambda b, x: b.op("Gather", x, b.const([-2]), axis=1), ["Slice"]),
        (lambda b, x: b.op("Gather", x, b.const([1, 0]), axis=0), ["Gather"]),
    ],
)  # fmt: skip
def test_cuts_and_joins(make: Any, left: list[str]) -> None:
    b = Builder()
    g = optimized(b.done(b.op("Sin", make(b, b.op("Cos", b.input("x", (2, 7)))))))
    assert work(g)[1:-1] == left


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_law_of_cuts(data: st.DataObject) -> None:
    """Random cuts and joins of one axis compute the same and come to rest."""
    b = Builder(N=Range(1))
    values = [b.input("x", (symbol("N"), 6)), b.input("y", (symbol("N"), 4))]
    for _ in range(data.draw(st.integers(1, 5))):
        v = data.draw(st.sampled_from(values))
        size = b.graph.tensor(v).dims[1]
        assert isinstance(size, int)
        if data.draw(st.booleans()) and size > 1:
            start = data.draw(st.integers(0, size - 1))
            stop = data.draw(st.integers(start + 1, size))
            values.append(cut(b, v, start, stop, 1, data.draw(st.integers(1, 2))))
        else:
            values.append(b.op("Concat", v, data.draw(st.sampled_from(values)), axis=1))
    optimized(b.done(b.op("Relu", values[-1]), b.op("Exp", values[-2])), {"N": 2})


POOLS: dict[str, tuple[Any, bool]] = {
    "conv": (lambda b, x, p: b.op("Conv", p, c(b, 4, 3, 3, 3), pads=(1, 0, 1, 0)), True),
    "average": (lambda b, x, p: b.op("AveragePool", p, kernel_shape=(3, 3)), True),
    "average of own pads": (lambda b, x, p: b.op("AveragePool", p, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), False),
    "max": (lambda b, x, p: b.op("MaxPool", p, kernel_shape=(3, 3)), False),
    "max after relu": (lambda b, x, p: b.op("MaxPool", p, kernel_shape=(3, 3)), True),
    "max, too wide": (lambda b, x, p: b.op("MaxPool", p, kernel_shape=(2, 2)), False),
}


@pytest.mark.parametrize("pool", POOLS)
def test_pads_go_into_windows(pool: str) -> None:
    make, goes = POOLS[pool]
    b = Builder()
    x = b.input("x", (1, 3, 6, 6))
    v = b.op("Relu", x) if pool.startswith("max ") or pool.startswith("max,") else x
    g = optimized(b.done(make(b, x, b.op("Pad", v, b.const([0, 0, 1, 2, 0, 0, 2, 0])))))
    assert ("Pad" in work(g)) is not goes


def test_pads_that_stay() -> None:
    for pads, value, word in (([0, 1, 0, 0, 0, 0, 0, 0], 0, "channels"), ([0, 0, 1, 1, 0, 0, 1, 1], 2, "pads with 2")):
        b = Builder()
        p = b.op("Pad", b.input("x", (1, 3, 6, 6)), b.const(pads), b.const(value, np.float32))
        graph = b.done(b.op("Conv", p, c(b, 4, 4 if value == 0 else 3, 3, 3)))
        report = optimize(graph, OptimizeOptions(debug=True))
        assert any(word in d.reason for d in report.declined) and "Pad" in work(graph)


# -- broadcasts --------------------------------------------------------------------------------------------------


def test_expands_that_are_not_needed() -> None:
    b = Builder(N=Range(1))
    n = symbol("N")
    x, y = b.input("x", (n, 1)), b.input("y", (n, 8))
    wide = b.op("Expand", x, b.constant(as_constant(as_objects((n, 8)), DType.INT64)))
    assert work(optimized(b.done(b.op("Add", b.op("Exp", wide), y)), {"N": 2})) == ["Exp", "Add"]


def test_masks_of_attention_need_no_expand() -> None:
    b = Builder()
    q = b.input("q", (2, 3, 4, 8))
    mask = b.op("Expand", b.input("m", (2, 1, 1, 4)), b.const([2, 1, 4, 4]))
    assert work(optimized(b.done(b.op("Attention", q, q, q, b.op("Neg", mask))))) == ["Neg", "Attention"]


def test_expands_that_are() -> None:
    b = Builder()
    x, y = b.input("x", (3, 1)), b.input("y", (1, 8))
    wide = b.op("Expand", x, b.const([3, 8]))
    assert work(optimized(b.done(b.op("Mul", wide, wide), b.op("Sub", y, wide)))) == ["Expand", "Mul", "Sub"]


@pytest.mark.parametrize("kernel", [(1, 3), (3, 1)])
def test_reshapes_wait_for_the_bias_of_a_convolution(kernel: tuple[int, int]) -> None:
    """Convolutions over one axis, as TensorFlow's exporter writes them."""
    b = Builder(N=Range(1))
    wide = (symbol("N"), 3, 1, 9) if kernel == (1, 3) else (symbol("N"), 3, 9, 1)
    v = b.op("Conv", b.input("x", wide), c(b, 4, 3, *kernel))
    v = b.op("Squeeze", v, b.const([2 if kernel == (1, 3) else 3]))
    v = b.op("Relu", b.op("Add", b.op("Mul", v, c(b, 1, 4, 1)), c(b, 4, 1)))
    assert work(optimized(b.done(v), {"N": 2})) == ["Conv", "Relu", "Reshape"]


# -- loops -------------------------------------------------------------------------------------------------------


def loop(limit: Any, cond: Any, says: str) -> Graph:
    """x, scanned = Loop: x + 1, [x]"""
    b = Builder()
    body = Builder()
    body.graph.symbols = b.graph.symbols
    body.graph.add_input("i", Tensor(DType.INT64, ()))
    got = body.graph.add_input("cond", Tensor(DType.BOOL, ()))
    x = body.graph.add_input("x", Tensor(DType.FLOAT32, (2,)))
    more = body.op("Add", x, body.const([1, 1], np.float32))
    less = body.op("Less", body.op("ReduceMax", x, keepdims=0), body.const(9, np.float32))
    out = {"true": body.const(True), "as it got": got, "less": less}
    body.graph.set_outputs([out[says], more, x], ["c", "y", "z"])
    body.graph.prune()
    x = b.input("x", (2,))
    most = start = ABSENT
    if limit is not None:
        most = b.const(limit, np.int64) if isinstance(limit, int) else b.input("m", (), DType.INT64)
    if cond is not None:
        start = b.const(cond) if isinstance(cond, bool) else b.input("c", (), DType.BOOL)
    bodies = {"body": body.graph}
    values = b.scope.emit("Loop", [most, start, x], {}, outputs=2, name="loop", origin=("loop",), subgraphs=bodies)
    return b.done(*values)


@pytest.mark.parametrize(("says", "goes"), [("true", True), ("as it got", True), ("less", False)])
@pytest.mark.parametrize("limit", [3, "input"])
def test_conditions_that_are_always_true(says: str, goes: bool, limit: Any) -> None:
    g = optimized(loop(limit, True, says))
    [node] = [n for n in g.nodes.values() if n.op == "Loop"]
    assert (node.inputs[1] == ABSENT) is goes
    known = g.tensor(node.outputs[1]).dims[0] == 3
    assert known is (goes and limit == 3)


@pytest.mark.parametrize(("limit", "cond"), [(0, True), (-2, None), (5, False), (None, False)])
def test_loops_that_never_run(limit: Any, cond: Any) -> None:
    g = optimized(loop(limit, cond, "less"))
    assert work(g) == [] and g.tensor(g.outputs[1]).dims == (0, 2)


def test_loops_that_may_run() -> None:
    assert work(optimized(loop(2, "input", "true"))) == ["Loop"]


# -- unit vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["norm", "squares", "bounded squares", "expanded", "no bound"])
def test_unit_vectors(form: str) -> None:
    b = Builder()
    x = b.input("x", (3, 4))
    axes, eps = b.const([-1]), b.const(0.5, np.float32)
    if form in ("norm", "expanded", "no bound"):
        length = b.op("ReduceL2", x, axes, keepdims=1)
        length = length if form == "no bound" else b.op("Clip", length, eps)
    elif form == "squares":
        length = b.op("Max", eps, b.op("Sqrt", b.op("ReduceSum", b.op("Mul", x, x), axes, keepdims=1)))
    else:
        length = b.op("Sqrt", b.op("Max", b.op("ReduceSumSquare", x, axes, keepdims=1), eps))
    if form == "expanded":
        length = b.op("Expand", length, b.const([3, 4]))
    g = optimized(b.done(b.op("Div", x, length)))
    [node] = [n for n in g.nodes.values() if n.op == "L2Normalize"]
    want = {"no bound": 0.0, "bounded squares": 0.5**0.5}.get(form, 0.5)
    assert work(g) == ["L2Normalize"] and node.attrs["axis"] == (-1,) and abs(node.attrs["eps"] - want) < 1e-6
