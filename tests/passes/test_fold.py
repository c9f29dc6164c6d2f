"""Constant folding, folding into weights, and decided Ifs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.constants import Blob, DimVec, Splat, blob
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import Scope
from atc_py.passes import OptimizeOptions, optimize
from tests.passes.interp import Builder, optimized, origins, work

RNG = np.random.default_rng(1)


def rand(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def result(g: Graph, i: int = 0) -> Any:
    return g.const(g.outputs[i])


def test_operators_over_constants_are_computed() -> None:
    b = Builder()
    w = b.op("Transpose", b.op("Add", b.const(rand(2, 3)), b.const(rand(3))), perm=(1, 0))
    g = optimized(b.done(b.op("Mul", b.input("x", (3, 2)), w)))
    assert work(g) == ["Mul"] and origins(g) == {"n0", "n1", "n2"}


def test_several_outputs_and_sole_results() -> None:
    b = Builder()
    parts = b.ops("Split", b.const(rand(6, 2)), b.const([2, 4]), outputs=2)
    g = optimized(b.done(parts[0], parts[1], parts[0]))
    assert work(g) == [] and result(g, 1).shape == (4, 2) and g.outputs[0] == g.outputs[2]


def test_what_repeats_one_number_costs_no_bytes() -> None:
    b = Builder(N=Range(1))
    n = symbol("N")
    shape = b.constant(DimVec(DType.INT64, (2,), (n, 1 << 30)))
    zeros = b.op("ConstantOfShape", shape, value=blob(np.array([0.0], np.float32)))
    ones = b.op("Transpose", b.op("Exp", zeros), perm=(1, 0))
    big = b.op("Expand", b.const(2.5, np.float32), b.const([1 << 20, 1 << 10]))
    tiled = b.op("Mul", b.op("Tile", big, b.const([2, 3])), b.const(2.0, np.float32))
    joined = b.op("Concat", tiled, tiled, axis=0)
    b.graph.set_outputs([ones, joined], ["a", "b"])
    optimize(b.graph, OptimizeOptions(debug=True))
    assert work(b.graph) == []
    first, second = result(b.graph), result(b.graph, 1)
    assert isinstance(first, Splat) and first.value == 1 and first.shape == (1 << 30, n)
    assert isinstance(second, Splat) and second.value == 5 and second.shape == (1 << 22, 3 << 10)


def test_growth_is_bounded_net_of_what_is_freed() -> None:
    b = Builder()
    grows = b.op("Mul", b.const(rand(100, 1)), b.const(rand(1, 100)))
    w = b.const(rand(200, 200))
    stays_the_same = b.op("Transpose", w, perm=(1, 0))
    graph = b.done(grows, stays_the_same)
    report = optimize(graph, OptimizeOptions(fold_limit=1000))
    assert work(graph) == ["Mul"]
    [decline] = report.declined
    assert decline.rule == "fold_constants" and "40000 bytes" in decline.reason and "800" in decline.reason
    assert work(optimized(graph)) == []


def test_random_operators_and_quantised_weights_stay() -> None:
    b = Builder()
    q = b.op("DequantizeLinear", b.const([[1, 2]], np.int8), b.const(0.5, np.float32))
    r = b.op("RandomUniformLike", b.const(rand(3)))
    graph = b.done(q, r)
    optimize(graph)
    assert sorted(work(graph)) == ["DequantizeLinear", "RandomUniformLike"]


def test_a_failing_kernel_leaves_its_node_alone() -> None:
    b = Builder()
    # Index 9 is out of bounds: the model fails at run time, the conversion does not.
    y = b.op("Gather", b.const(rand(3)), b.const([9]))
    graph = b.done(y)
    report = optimize(graph)
    assert work(graph) == ["Gather"] and "kernel fails" in report.declined[0].reason


def test_sizes_that_folding_finds_out_become_numbers() -> None:
    b = Builder()
    x = b.input("x", (3, 4))
    where = b.op("NonZero", b.const([[1, 0, 2, 0]], np.float32))
    columns = b.op("Gather", b.op("Transpose", where, perm=(1, 0)), b.const(1), axis=1)
    g = optimized(b.done(b.op("Gather", x, columns, axis=1)))
    assert work(g) == ["Gather"] and g.tensor(g.outputs[0]).dims == (3, 2) and not g.symbols


def test_constants_of_every_kind_fold_alike() -> None:
    for constant in (Splat(DType.FLOAT32, (2, 2), np.float32(3)), blob(np.full((2, 2), 3, np.float32))):
        b = Builder()
        g = optimized(b.done(b.op("MatMul", b.constant(constant), b.const(rand(2, 2)))))
        assert isinstance(result(g), Blob)


# -- folding into weights -----------------------------------------------------------------------------------------


def norm(b: Builder, x: int, channels: int, dtype: Any = np.float32, **attrs: Any) -> int:
    params = [rand(channels), rand(channels), rand(channels), np.abs(rand(channels)) + 0.1]
    return b.op("BatchNormalization", x, *(b.const(p.astype(dtype)) for p in params), **attrs)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["Conv", "ConvTranspose", "Gemm"]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.lists(st.sampled_from(["norm", "mul", "add", "sub", "from", "div", "scalar"]), min_size=1, max_size=4),
    st.sampled_from([np.float32, np.float16, np.float64]),
    st.booleans(),
)
def test_followers_go_into_the_weights(
    anchor: str, group: int, bias: bool, followers: list[str], dtype: Any, flip: bool
) -> None:
    b = Builder()
    channels = 4
    given_bias = [b.const(rand(channels, dtype=dtype))] if bias else []
    if anchor == "Gemm":
        x = b.input("x", (3, 6), DType.of(np.dtype(dtype)))
        w = b.const(rand(channels, 6, dtype=dtype) if flip else rand(6, channels, dtype=dtype))
        v = b.op("Gemm", x, w, *given_bias, alpha=0.5, beta=2.0, transB=int(flip))
    else:
        x = b.input("x", (1, 6, 5, 5), DType.of(np.dtype(dtype)))
        w_shape = (channels, 6 // group, 3, 3) if anchor == "Conv" else (6, channels // group, 3, 3)
        v = b.op(anchor, x, b.const(rand(*w_shape, dtype=dtype)), *given_bias, group=group)
    shape = (channels,) if anchor == "Gemm" else (channels, 1, 1)
    for f in followers:
        c = b.const(np.asarray(rand(*(() if f == "scalar" else shape)) * 0.3 + 1, dtype))
        if f == "norm":
            v = norm(b, v, channels, dtype)
        elif f in ("mul", "scalar"):
            v = b.op("Mul", *((v, c) if flip else (c, v)))
        elif f == "from":
            v = b.op("Sub", c, v)
        else:
            v = b.op(f.capitalize(), v, c)
    graph = b.done(v)
    from tests.passes.interp import assert_same, interpret, random_inputs

    want = interpret(graph, random_inputs(graph))
    optimize(graph, OptimizeOptions(debug=True))
    assert work(graph) == [anchor]
    tolerance = {np.float16: 3e-2, np.float32: 1e-4, np.float64: 1e-9}[dtype]
    assert_same(interpret(graph, random_inputs(graph)), want, tolerance, tolerance)
    count = 1 + len(followers)
    assert origins(graph) >= {f"n{i}" for i in range(count)}


def conv(b: Builder, dtype: Any = np.float32) -> int:
    return b.op("Conv", b.input("x", (1, 3, 5, 5), DType.of(np.dtype(dtype))), b.const(rand(4, 3, 3, 3).astype(dtype)))


def reason(graph: Graph, **options: Any) -> str:
    """The one reason why the Conv stays as it is."""
    report = optimize(graph, OptimizeOptions(debug=True, **options))
    [found] = [d for d in report.declined if d.rule == "fold_affine"]
    assert "Conv" in work(graph) and len(work(graph)) >= 2
    return found.reason


def test_reasons_two_readers() -> None:
    b = Builder()
    c = conv(b)
    assert "2 readers" in reason(b.done(norm(b, c, 4), b.op("Exp", c)))


def test_reasons_an_output() -> None:
    b = Builder()
    c = conv(b)
    assert "output of the graph" in reason(b.done(norm(b, c, 4), c))


def test_reasons_weights_that_are_computed() -> None:
    b = Builder()
    x, w = b.input("x", (1, 3, 5, 5)), b.input("w", (4, 3, 3, 3))
    assert "the weight is computed by Data" in reason(b.done(norm(b, b.op("Conv", x, w), 4)))


def test_reasons_training_and_statistics() -> None:
    b = Builder()
    params = [b.const(np.abs(rand(4))) for _ in range(4)]
    y, _, _ = b.ops("BatchNormalization", conv(b), *params, outputs=3, training_mode=1)
    assert "training mode" in reason(b.done(y))


def test_reasons_not_per_channel() -> None:
    b = Builder()
    assert "not one number for each of 4 channels" in reason(b.done(b.op("Mul", conv(b), b.const(rand(1, 4, 3, 3)))))


def test_reasons_overflow() -> None:
    b = Builder()
    y = b.op("Mul", conv(b, np.float16), b.const(np.full((4, 1, 1), 60000), np.float16))
    y = b.op("Mul", y, b.const(np.full((4, 1, 1), 60000), np.float16))
    assert "do not fit float16" in reason(b.done(y))


def test_reasons_division_by_zero_and_of_a_constant() -> None:
    b = Builder()
    assert "a zero" in reason(b.done(b.op("Div", conv(b), b.const(0.0, np.float32))))
    b = Builder()
    assert "divides a constant" in reason(b.done(b.op("Div", b.const(3.0, np.float32), conv(b))))


def test_reasons_growth() -> None:
    b = Builder()
    x = b.input("x", (1, 3, 5, 5))
    w = b.const(rand(4, 3, 3, 3))
    y = norm(b, b.op("Conv", x, w), 4)
    z = b.op("Conv", b.op("Relu", x), w)
    assert "take 448 bytes and free 0" in reason(b.done(y, z), fold_limit=100)


def test_shared_weights_are_not_changed_for_others() -> None:
    b = Builder()
    x = b.input("x", (1, 3, 5, 5))
    w = b.const(rand(4, 3, 3, 3))
    g = optimized(b.done(norm(b, b.op("Conv", x, w), 4), b.op("Conv", b.op("Relu", x), w)))
    assert sorted(work(g)) == ["Conv", "Conv", "Relu"]


def test_repeated_weights_stay_repeated() -> None:
    b = Builder()
    x = b.input("x", (1, 3, 5, 5))
    w = b.constant(Splat(DType.FLOAT32, (4, 3, 3, 3), np.float32(2)))
    g = optimized(b.done(b.op("Mul", b.op("Conv", x, w), b.const(0.25, np.float32))))
    [node] = [n for n in g.nodes.values() if n.op == "Conv"]
    weight = g.const(node.inputs[1])
    assert isinstance(weight, Splat) and weight.value == 0.5


def test_values_keep_the_names_of_what_they_hold() -> None:
    b = Builder()
    y = norm(b, conv(b), 4)
    b.graph.values[y].name = "normed"
    b.graph.producer(b.graph.producer(y).inputs[0]).name = "conv"
    g = optimized(b.done(b.op("Relu", y)))
    [node] = [n for n in g.nodes.values() if n.op == "Conv"]
    assert node.name == "conv" and g.values[node.outputs[0]].name == "normed"


# -- If -----------------------------------------------------------------------------------------------------------


def branch(outer: Graph, op: str, value: float) -> Graph:
    g = Graph(op, outer.symbols)
    x = g.add_input("x", Tensor(DType.FLOAT32, (3,)))
    scope = Scope(g)
    [c] = scope.emit("Exp", [scope.constant([value], np.float32)], origin=(f"{op}.exp",))
    [y] = scope.emit(op, [x, c], origin=(op,))
    g.set_outputs([y], ["y"])
    return g


@pytest.mark.parametrize("taken", [True, False])
def test_decided_ifs_are_written_out(taken: bool) -> None:
    b = Builder()
    x = b.input("x", (3,))
    bodies = {"then_branch": branch(b.graph, "Add", 1.0), "else_branch": branch(b.graph, "Sub", 2.0)}
    # The condition is a constant only after folding.
    condition = b.op("Not", b.op("Not", b.const(taken)))
    b.scope.facts.clear()
    [y] = b.scope.emit("If", [condition, x], name="choice", origin=("choice",), subgraphs=bodies, captures=1)
    g = optimized(b.done(b.op("Relu", y)))
    assert work(g) == ["Add" if taken else "Sub", "Relu"] and "choice" in origins(g)


def test_undecided_ifs_are_optimized_inside() -> None:
    b = Builder()
    x, c = b.input("x", (3,)), b.input("c", (), DType.BOOL)
    unused, known = b.op("Exp", x), b.op("Log", b.const([1.0, 2.0, 3.0], np.float32))
    bodies = {}
    for name, op in (("then_branch", "Add"), ("else_branch", "Sub")):
        g = Graph(op, b.graph.symbols)
        inner = [g.add_input(n, Tensor(DType.FLOAT32, (3,))) for n in "xuk"]
        scope = Scope(g)
        [k] = scope.emit("Neg", [inner[2]], origin=("neg",))
        [y] = scope.emit(op, [inner[0], k], origin=(op,))
        g.set_outputs([y], ["y"])
        bodies[name] = g
    [y] = b.scope.emit("If", [c, x, unused, known], name="if", origin=("if",), subgraphs=bodies, captures=3)
    g = optimized(b.done(y))
    assert work(g) == ["If"]
    [node] = [n for n in g.nodes.values() if n.op == "If"]
    assert node.captures == 1 and [work(body) for body in node.subgraphs.values()] == [["Add"], ["Sub"]]
