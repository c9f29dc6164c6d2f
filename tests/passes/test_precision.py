"""Precision modes on graphs by hand: who computes in what, where Casts stand, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.errors import AtcError
from atc_py.ir.clone import clone
from atc_py.ir.constants import Blob, Derived, Splat
from atc_py.ir.graph import STRUCTURAL, Graph, Node, Range
from atc_py.ir.types import DType
from atc_py.ir.validate import validate
from atc_py.passes import LowerOptions, lower
from atc_py.passes.mixlist import Kind, PrecisionLists
from atc_py.passes.precision import in_precision
from atc_py.target import load
from tests.passes.interp import Builder, interpret, random_inputs, work

TARGET = load("Ascend310P3")
F16, F32, BF16 = DType.FLOAT16, DType.FLOAT32, DType.BFLOAT16
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def moded(graph: Graph, mode: str, lists: PrecisionLists | None = None) -> Graph:
    """The mode carried out on a copy, which is valid and has the ports of the graph."""
    got = in_precision(graph, TARGET, mode, None if lists is None else lists.to_json())
    validate(got)
    for ports in ("inputs", "outputs"):
        assert [got.type(v) for v in getattr(got, ports)] == [graph.type(v) for v in getattr(graph, ports)]
    return got


def dtypes(graph: Graph) -> dict[str, str]:
    """Node → dtype of its first output, Casts left out."""
    nodes = [n for n in graph.order() if n.op not in STRUCTURAL and n.op != "Cast"]
    return {n.name: graph.tensor(n.outputs[0]).dtype.value for n in nodes}


def casts(graph: Graph) -> list[Node]:
    return [n for n in graph.order() if n.op == "Cast"]


def test_fp16_lowers_what_is_safe_and_keeps_the_ports() -> None:
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    c = b.op("Conv", x, b.const(normal(4, 3, 3, 3)), b.const(normal(4)))
    y = b.op("Exp", b.op("Relu", c))
    g = moded(b.done(b.op("MatMul", y, b.const(normal(6, 2)))), "fp16")
    assert work(g) == ["Cast", "Conv", "Relu", "Cast", "Exp", "Cast", "MatMul", "Cast"]
    assert dtypes(g) == {"n0": "float16", "n1": "float16", "n2": "float32", "n3": "float16"}
    assert {n.name: n.precision for n in g.nodes.values() if n.op in ("Conv", "Exp")} == {
        "n0": "float16",
        "n2": "float32",
    }


def test_origin_changes_nothing() -> None:
    b = Builder()
    g = b.done(b.op("Relu", b.op("MatMul", b.input("x", (2, 3)), b.const(normal(3, 4)))))
    got = moded(g, "origin")
    assert work(got) == ["MatMul", "Relu"] and set(dtypes(got).values()) == {"float32"}


def test_one_cast_serves_all_readers() -> None:
    b = Builder()
    x = b.input("x", (4, 4))
    w = b.const(normal(4, 4))
    parts = [b.op("MatMul", x, w), b.op("Tanh", x), b.op("Sigmoid", x)]
    e = b.op("Exp", b.op("Sum", *parts))
    g = moded(b.done(e, b.op("Log", e)), "fp16")
    assert len(casts(g)) == 2  # x for all three, and the sum for Exp
    consts = [n for n in g.nodes.values() if n.op == "Const"]
    assert len(consts) == 1 and isinstance(consts[0].const, Derived)


def test_a_cast_comes_before_operators_that_only_move_elements() -> None:
    b = Builder()
    e = b.op("Exp", b.input("x", (6, 4)))
    parts = b.ops("Split", e, outputs=3, axis=0, num_outputs=3)
    turned = [b.op("Transpose", p, perm=(1, 0)) for p in parts]
    g = moded(b.done(*[b.op("MatMul", t, b.const(normal(2, 2))) for t in turned]), "fp16")
    into = [n for n in casts(g) if n.attrs["to"] is F16]
    assert len(into) == 1 and g.producer(into[0].inputs[0]).op == "Exp"
    assert all(g.tensor(n.outputs[0]).dtype is F16 for n in g.nodes.values() if n.op in ("Split", "Transpose"))


def test_what_moves_from_a_port_to_a_port_is_not_cast() -> None:
    b = Builder()
    x = b.input("x", (6, 4))
    g = moded(b.done(b.op("Transpose", x, perm=(1, 0)), b.op("MatMul", x, b.const(normal(4, 4)))), "fp16")
    assert dtypes(g) == {"n0": "float32", "n1": "float16"}
    assert len(casts(g)) == 2


def test_concat_takes_the_dtype_that_needs_fewer_casts() -> None:
    for wide, expected in ((1, "float16"), (3, "float32")):
        b = Builder()
        x = b.input("x", (2, 2))
        narrow = [b.op("MatMul", x, b.const(normal(2, 2)))] if wide == 1 else []
        parts = [*narrow, b.op("Tanh", x), *[b.op("Exp", b.input(f"e{i}", (2, 2))) for i in range(wide)]]
        joined = b.op("Concat", *parts, axis=0)
        g = moded(b.done(b.op("MatMul", joined, b.const(normal(2, 2)))), "fp16")
        assert g.tensor(next(n for n in g.nodes.values() if n.op == "Concat").outputs[0]).dtype.value == expected


def test_a_cast_of_the_model_gives_the_narrow_type_at_once() -> None:
    b = Builder()
    c = b.op("Cast", b.input("ids", (2, 4), DType.INT32), to=F32)
    g = moded(b.done(b.op("MatMul", c, b.const(normal(4, 4)))), "fp16")
    assert [n.attrs["to"] for n in casts(g)] == [F16, F32] and work(g) == ["Cast", "MatMul", "Cast"]


def test_a_cast_of_the_model_from_the_narrow_type_is_seen_through() -> None:
    b = Builder()
    c = b.op("Cast", b.input("x", (2, 4), F16), to=F32)
    g = moded(b.done(b.op("MatMul", c, b.const(normal(4, 4)))), "fp16")
    assert work(g) == ["MatMul", "Cast"]


def test_a_cast_of_the_model_to_the_narrow_type_goes() -> None:
    b = Builder()
    m = b.op("MatMul", b.input("x", (2, 4)), b.const(normal(4, 4)))
    g = moded(b.done(b.op("Cast", m, to=F16), b.op("Cast", m, to=DType.INT32)), "fp16")
    assert [n.attrs["to"] for n in casts(g)] == [F16, DType.INT32]


def test_float32_values_that_nothing_narrow_reads_stay() -> None:
    b = Builder()
    x = b.input("x", (2, 4))
    g = moded(b.done(b.op("Shape", b.op("MatMul", x, b.const(normal(4, 4)))), b.op("Exp", x)), "fp16")
    assert len(casts(g)) == 1 and "float32" in dtypes(g).values()


# -- statistics ------------------------------------------------------------------------------------------------------


def spelled(b: Builder, x: int, how: str) -> int:
    """The mean of squares over the last axis."""
    axes = b.const([-1], np.int64)
    if how == "Mul":
        return b.op("ReduceMean", b.op("Mul", x, x), axes)
    if how == "Pow":
        return b.op("ReduceMean", b.op("Pow", x, b.const(2.0, np.float32)), axes)
    return b.op("Div", b.op("ReduceSumSquare", x, axes), b.const(8.0, np.float32))


@pytest.mark.parametrize("mode", ["fp16", "mixed_float16", "cube_fp16in_fp32out"])
@pytest.mark.parametrize("how", ["Mul", "Pow", "ReduceSumSquare"])
def test_statistics_of_large_values_stay_finite(how: str, mode: str) -> None:
    b = Builder()
    x = b.op("MatMul", b.input("x", (2, 8)), b.const(np.eye(8), np.float32))
    root = b.op("Sqrt", b.op("Add", spelled(b, x, how), b.const(1e-6, np.float32)))
    graph = b.done(b.op("MatMul", b.op("Div", x, root), b.const(np.eye(8), np.float32)))
    g = moded(graph, mode)
    values = [(RNG.standard_normal((2, 8)) * 3000).astype(np.float32)]
    with np.errstate(over="raise"):
        [got], [want] = interpret(g, values), interpret(graph, values)
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=2e-3)
    products = [n for n in g.nodes.values() if n.op == "MatMul"]
    assert all(g.tensor(n.inputs[0]).dtype is F16 for n in products)


@pytest.mark.parametrize(
    ("bound", "dtype"),
    [(1e-10, "float32"), (2.0**-25, "float32"), (2.0**-24, "float16"), (1e5, "float32"), (65519.0, "float16"),
     (-3.4e38, "float32"), (-np.inf, "float16"), (0.0, "float16"), (np.nan, "float16")],
)  # fmt: skip
def test_single_numbers_that_float16_does_not_have_keep_their_operator_in_float32(bound: float, dtype: str) -> None:
    b = Builder()
    m = b.op("MatMul", b.input("x", (2, 4)), b.const(normal(4, 4)))
    g = moded(b.done(b.op("MatMul", b.op("Max", m, b.const(bound, np.float32)), b.const(normal(4, 4)))), "fp16")
    assert dtypes(g) == {"n0": "float16", "n1": dtype, "n2": "float16"}
    with np.errstate(all="ignore"):
        lost = (np.float16(bound) == 0) != (bound == 0) or np.isinf(np.float16(bound)) != np.isinf(bound)
    assert lost == (dtype == "float32")  # the truth


def test_a_square_in_float16_would_overflow() -> None:
    """The test above can fail: what it guards against is real."""
    with np.errstate(over="ignore"):
        assert np.isinf(np.square(np.float16(300)))


# -- mixed modes -----------------------------------------------------------------------------------------------------


def mixed_net(b: Builder) -> Graph:
    x = b.input("x", (2, 4))
    gray = b.op("Relu", x)  # n0 follows a port: float32
    m = b.op("MatMul", gray, b.const(normal(4, 4)))  # n1 white
    r = b.op("Relu", m)  # n2 follows n1
    e = b.op("Exp", r)  # n3 black
    s = b.op("Sigmoid", e)  # n4 follows n3
    return b.done(b.op("Add", s, r))  # n5: one operand is float32


@pytest.mark.parametrize(("mode", "low"), [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16")])
def test_mixed_modes_follow_the_lists(mode: str, low: str) -> None:
    g = moded(mixed_net(Builder()), mode)
    wide = "float32"
    assert dtypes(g) == {"n0": wide, "n1": low, "n2": low, "n3": wide, "n4": wide, "n5": wide}
    assert len(casts(g)) == 2


def test_lists_move_operators_and_nodes_keep_their_dtypes() -> None:
    lists = PrecisionLists({"Exp": Kind.WHITE, "MatMul": Kind.BLACK, "Sigmoid": Kind.GRAY})
    g = moded(mixed_net(Builder()), "mixed_float16", lists)
    low, wide = "float16", "float32"
    assert dtypes(g) == {"n0": wide, "n1": wide, "n2": wide, "n3": low, "n4": low, "n5": wide}
    for kept in (PrecisionLists(keep_nodes=frozenset({"n1"})), PrecisionLists(keep_types=frozenset({"MatMul"}))):
        g = moded(mixed_net(Builder()), "fp16", kept)
        assert dtypes(g) == {"n0": low, "n1": wide, "n2": low, "n3": wide, "n4": wide, "n5": wide}


def test_a_fused_node_is_kept_by_the_name_of_any_node_that_it_stands_for() -> None:
    b = Builder()
    g = b.done(b.op("MatMul", b.input("x", (2, 4)), b.const(normal(4, 4))))
    next(n for n in g.nodes.values() if n.op == "MatMul").origin = ("a", "inner", "z")
    lists = PrecisionLists(keep_nodes=frozenset({"inner"}))
    assert dtypes(moded(g, "fp16", lists)) == {"n0": "float32"}


@pytest.mark.parametrize(
    ("mode", "lists", "place"),
    [
        ("half", PrecisionLists(), "--precision-mode"),
        ("fp16", PrecisionLists({"Exp": Kind.WHITE}), "--modify-mixlist"),
        ("origin", PrecisionLists(keep_types=frozenset({"Exp"})), "--keep-dtype"),
    ],
)
def test_modes_that_are_not_there_and_lists_without_a_meaning(mode: str, lists: PrecisionLists, place: str) -> None:
    g = mixed_net(Builder())
    with pytest.raises(AtcError) as caught:
        lower(g, TARGET, LowerOptions(precision_mode=mode, precision_lists=lists))
    [problem] = caught.value.problems
    assert (problem.code, problem.place) == ("E20003", place) and problem.hint


# -- the cube, and float32 -------------------------------------------------------------------------------------------


def test_cube_operands_are_float16_and_results_are_not_rounded() -> None:
    b = Builder()
    x, w = b.input("x", (1, 3, 9, 9)), normal(4, 3, 3, 3)
    bias = normal(4)
    graph = b.done(b.op("Relu", b.op("Conv", x, b.const(w), b.const(bias), pads=(1, 1, 1, 1))))
    g = moded(graph, "cube_fp16in_fp32out")
    node = next(n for n in g.nodes.values() if n.op == "Conv")
    assert [g.tensor(v).dtype for v in (*node.inputs, *node.outputs)] == [F16, F16, F32, F32]
    assert node.precision == "float16" and dtypes(g) == {"n0": "float32", "n1": "float32"}
    values = random_inputs(graph)
    rounded = Builder()
    y = rounded.op("Conv", rounded.input("x", (1, 3, 9, 9)), rounded.const(w.astype(np.float16), np.float32),
                   rounded.const(bias), pads=(1, 1, 1, 1))  # fmt: skip
    want = interpret(rounded.done(rounded.op("Relu", y)), [values[0].astype(np.float16).astype(np.float32)])
    [got] = interpret(g, values)
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)
    assert np.any(got.astype(np.float16) != got)  # float32 left the cube


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Einsum", "Attention", "LSTM", "ConvTranspose"])
def test_every_cube_operator_gives_float32_of_float16_operands(op: str) -> None:
    b = Builder()
    if op == "Einsum":
        y = b.op(op, b.input("x", (3, 4)), b.const(normal(4, 5)), equation="ij,jk->ik")
    elif op == "Attention":
        y = b.op(op, *[b.input(n, (1, 2, 4, 8)) for n in "qkv"])
    elif op == "LSTM":
        y = b.op(op, b.input("x", (3, 2, 4)), b.const(normal(1, 20, 4)), b.const(normal(1, 20, 5)), hidden_size=5)
    elif op == "ConvTranspose":
        y = b.op(op, b.input("x", (1, 3, 4, 4)), b.const(normal(3, 2, 2, 2)), strides=(2, 2))
    else:
        y = b.op(op, b.input("x", (3, 4)), b.const(normal(4, 5)))
    graph = b.done(y)
    g = moded(graph, "cube_fp16in_fp32out")
    node = next(n for n in g.nodes.values() if n.op == op)
    assert g.tensor(node.inputs[0]).dtype is F16 and g.tensor(node.outputs[0]).dtype is F32
    assert [n.attrs["to"] for n in casts(g)] == [F16] * len(casts(g))
    values = random_inputs(graph)
    [got], [want] = interpret(g, values), interpret(graph, values)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3 * float(np.abs(want).max()))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_fp32_computes_narrow_models_in_float32(dtype: DType) -> None:
    b = Builder()
    x = b.input("x", (2, 8), dtype)
    m = b.op("MatMul", x, b.const(normal(8, 8).astype(dtype.numpy)))
    y = b.op("Sub", b.op("Add", m, b.const(np.full(8, 1000), dtype.numpy)), b.const(np.full(8, 1000), dtype.numpy))
    graph = b.done(b.op("Exp", y))
    g = moded(graph, "fp32")
    assert set(dtypes(g).values()) == {"float32"} and len(casts(g)) == 2
    [x] = random_inputs(graph)
    [got], [rough] = interpret(g, [x]), interpret(graph, [x])
    w = next(n for n in graph.nodes.values() if n.op == "Const").const
    assert isinstance(w, Blob)
    exact = np.exp(x.astype(np.float64) @ np.frombuffer(w.data, dtype.numpy).reshape(8, 8).astype(np.float64))
    error = np.abs(got.astype(np.float64) - exact) / exact
    assert error.max() < 0.02 < (np.abs(rough.astype(np.float64) - exact) / exact).max()


# -- constants -------------------------------------------------------------------------------------------------------


def test_weights_become_recipes_and_single_elements_constants() -> None:
    b = Builder()
    x = b.input("x", (2, 4))
    m = b.op("MatMul", x, b.const(normal(4, 4)))
    s = b.constant(Splat(F32, (4,), np.float32(0.1)))
    g = moded(b.done(b.op("Mul", b.op("Add", m, s), b.const(1.5, np.float32))), "fp16")
    consts = [n.const for n in g.order() if n.op == "Const"]
    assert [type(c) for c in consts] == [Derived, Splat, Blob]
    assert all(c is not None and c.dtype is F16 for c in consts)
    derived = consts[0]
    assert isinstance(derived, Derived) and isinstance(derived.inputs[0], Blob)


def test_parameters_of_statistics_and_coordinates_stay_float32() -> None:
    b = Builder()
    x = b.input("x", (1, 4, 3, 3))
    y = b.op("BatchNormalization", x, *[b.const(np.abs(normal(4))) for _ in range(4)])
    g = moded(b.done(y), "fp16")
    node = next(n for n in g.nodes.values() if n.op == "BatchNormalization")
    assert [g.tensor(v).dtype for v in node.inputs] == [F16, F32, F32, F32, F32]


def test_the_sizes_that_the_host_reads_are_left_alone() -> None:
    b = Builder()
    x = b.input("x", (1, 4, 3, 3))
    y = b.op("Resize", x, -1, b.const([1, 1, 2, 2], np.float32), mode="nearest")
    g = moded(b.done(y), "fp16")
    node = next(n for n in g.nodes.values() if n.op == "Resize")
    assert [g.tensor(v).dtype for v in node.inputs if v >= 0] == [F16, F32]


# -- where nothing is lowered ----------------------------------------------------------------------------------------


def test_operators_on_bytes_keep_their_scales() -> None:
    b = Builder()
    one, zero = b.const(0.05, np.float32), b.const(0, np.int8)
    x = b.op("QuantizeLinear", b.op("Relu", b.input("x", (2, 4))), one, zero)
    w = b.const(RNG.integers(-9, 9, (4, 4)), np.int8)
    y = b.op("QLinearMatMul", x, one, zero, w, one, zero, one, zero)
    g = moded(b.done(b.op("Relu", b.op("DequantizeLinear", y, one, zero))), "fp16")
    scales = [g.tensor(v).dtype for n in g.nodes.values() for v in n.inputs if n.op.endswith(("Linear", "MatMul"))]
    assert scales.count(F32) == 6 and F16 not in scales  # what QuantizeLinear reads is one of the six
    assert dtypes(g)["n0"] == dtypes(g)["n4"] == "float16"


def test_what_is_quantised_is_not_rounded_before() -> None:
    b = Builder()
    x = b.input("x", (64, 64))
    bytes_ = b.op("QuantizeLinear", b.op("Reshape", x, b.const([4096])), b.const(0.01, np.float32), b.const(0, np.int8))
    graph = b.done(bytes_, b.op("Relu", x))
    g = moded(graph, "fp16")
    assert [n.op for n in g.nodes.values() if n.op == "Cast"], "Relu reads float16"
    given = random_inputs(graph)
    np.testing.assert_array_equal(interpret(g, given)[0], interpret(graph, given)[0])


def test_operators_that_other_engines_run_keep_their_dtypes() -> None:
    b = Builder()
    d = b.op("Cast", b.input("x", (2, 4)), to=DType.FLOAT64)
    g = moded(b.done(b.op("Relu", d)), "fp16")
    assert dtypes(g) == {"n1": "float64"} and len(casts(g)) == 1


# -- loops, and running it again -------------------------------------------------------------------------------------


def loop_graph(captured_const: bool) -> Graph:
    b = Builder()
    x = b.input("x", (2, 4))
    weights = normal(4, 4)
    w = b.const(weights) if captured_const else b.op("Exp", b.input("w", (4, 4)))
    inner = Builder()
    inner.graph.symbols = b.graph.symbols
    inner.input("i", (), DType.INT64)
    go = inner.input("go", (), DType.BOOL)
    h, v = inner.input("h", (2, 4)), inner.input("v", (4, 4))
    step = inner.op("Tanh", inner.op("MatMul", h, v))
    inner.graph.set_outputs([go, step], ["go", "h"])
    trips, cond = b.const(3, np.int64), b.const(True, np.bool_)
    [y] = b.scope.emit("Loop", [trips, cond, x, w], {}, subgraphs={"body": inner.graph}, captures=1, name="loop",
                       origin=("loop",))  # fmt: skip
    return b.done(y)


@pytest.mark.parametrize("captured_const", [True, False])
def test_weights_of_a_loop_are_converted_outside_of_it(captured_const: bool) -> None:
    graph = loop_graph(captured_const)
    g = clone(graph)
    report = lower(g, TARGET, LowerOptions(level=0, precision_mode="fp16", debug=True))
    assert report.settled
    loop = next(n for n in g.nodes.values() if n.op == "Loop")
    assert g.tensor(loop.inputs[-1]).dtype is F16
    assert (g.const(loop.inputs[-1]) is not None) == captured_const
    body = loop.subgraphs["body"]
    assert len(casts(body)) == 2  # the state, in and out
    values = random_inputs(graph)
    np.testing.assert_allclose(interpret(g, values)[0], interpret(graph, values)[0], rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("mode", ["fp16", "mixed_float16", "mixed_bfloat16", "cube_fp16in_fp32out"])
def test_running_it_again_changes_nothing(mode: str) -> None:
    graph = mixed_net(Builder())
    options = LowerOptions(level=0, precision_mode=mode, debug=True)
    lower(graph, TARGET, options)
    before = work(graph)
    assert lower(graph, TARGET, options).changed == 0 and work(graph) == before


def test_symbols_are_left_as_they_are() -> None:
    b = Builder(N=Range(1, 8))
    from atc_py.ir.dims import symbol

    x = b.input("x", (symbol("N"), 4))
    graph = b.done(b.op("Tile", b.op("MatMul", x, b.const(normal(4, 4))), b.const([2, 1], np.int64)))
    g = moded(graph, "fp16")
    assert dict(g.symbols) == dict(graph.symbols)


def test_what_takes_its_dtype_from_an_input_keeps_it() -> None:
    b = Builder()
    m = b.op("MatMul", b.input("x", (3, 4)), b.const(normal(4, 3)))
    graph = b.done(b.op("EyeLike", m), b.op("MatMul", m, b.const(normal(3, 3))))
    g = moded(graph, "fp16")
    assert interpret(g, random_inputs(graph))[0].dtype == np.float32
