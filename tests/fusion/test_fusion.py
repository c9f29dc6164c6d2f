"""Fusion: what becomes one task, that it computes the same, and the reason where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion import RULES, Rule, fuse
from atc_py.fusion.engine import fused_task
from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Node, Range
from atc_py.ir.types import DType
from atc_py.ir.validate import validate
from atc_py.passes import LowerOptions, lower
from atc_py.target import load
from tests.passes.interp import Builder, assert_same, interpret, origins, random_inputs, work

RNG = np.random.default_rng(2)
TARGET = load("Ascend310P3")


def rand(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def lowered(graph: Graph, env: Any = None, exact: bool = True, **options: Any) -> Graph:
    """Lower a copy; prove that it computes the same (bit by bit), is valid and at rest."""
    inputs = random_inputs(graph, env)
    want = interpret(graph, inputs, env)
    copy = clone(graph)
    lower(copy, TARGET, LowerOptions(debug=True, **options))
    validate(copy, "lower")
    assert origins(copy) == origins(graph)
    got = interpret(copy, inputs, env)
    assert_same(got, want, *((0, 0) if exact else ()))
    again = clone(copy)
    assert lower(again, TARGET, LowerOptions(**options)).changed == 0
    return copy


def bodies(graph: Graph) -> list[list[str]]:
    return [work(n.subgraphs["body"]) for n in graph.order() if n.op == "Fused"]


def anchor(b: Builder, kind: str, dtype: Any = np.float32) -> int:
    t = DType.of(np.dtype(dtype))
    if kind == "Conv":
        return b.op("Conv", b.input("x", (1, 3, 6, 6), t), b.const(rand(4, 3, 3, 3, dtype=dtype)), pads=(1, 1, 1, 1))
    if kind == "ConvTranspose":
        return b.op("ConvTranspose", b.input("x", (1, 3, 6, 6), t), b.const(rand(3, 4, 3, 3, dtype=dtype)))
    if kind == "Gemm":
        return b.op("Gemm", b.input("x", (5, 3), t), b.const(rand(3, 4, dtype=dtype)), b.const(rand(4, dtype=dtype)))
    return b.op("MatMul", b.input("x", (2, 5, 3), t), b.const(rand(3, 4, dtype=dtype)))


FOLLOWERS = ["Relu", "Sigmoid", "HardSwish", "LeakyRelu", "HardSigmoid", "Tanh", "Elu", "Gelu", "Swish", "Abs", "Neg"]
FOLLOWERS += ["Clip", "PRelu", "bias", "residual", "twice", "minus"]


def follow(b: Builder, v: int, name: str, dtype: Any) -> int:
    dims = b.graph.tensor(v).dims
    if name == "Clip":
        return b.op("Clip", v, b.const(-0.5, dtype), b.const(0.75, dtype))
    if name == "PRelu":
        return b.op("PRelu", v, b.const(np.asarray(0.25, dtype).reshape((1,) * len(dims))))
    if name == "bias":
        return b.op("Add", b.const(rand(int(dims[-1]), dtype=dtype)), v)
    if name == "residual":
        return b.op("Add", v, b.op("Exp", b.input(f"r{b.count}", dims, DType.of(np.dtype(dtype)))))
    if name == "minus":
        return b.op("Sub", b.input(f"r{b.count}", dims, DType.of(np.dtype(dtype))), v)
    return b.op("Mul", v, v) if name == "twice" else b.op(name, v)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["Conv", "ConvTranspose", "Gemm", "MatMul"]),
    st.lists(st.sampled_from(FOLLOWERS), min_size=1, max_size=5),
    st.sampled_from([np.float32, np.float16]),
)
def test_epilogues_compute_the_same(kind: str, followers: list[str], dtype: Any) -> None:
    b = Builder()
    v = anchor(b, kind, dtype)
    for f in followers:
        v = follow(b, v, f, dtype)
    g = lowered(b.done(v))
    [body] = bodies(g)
    assert body[0] == kind and len(body) == 1 + len(followers)
    assert [op for op in work(g) if op != "Exp"] == ["Fused"]


def test_symbolic_batches_fuse_once_for_all_sizes() -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (symbol("N"), 3, 6, 6))
    one, two = (b.op("Conv", x, b.const(rand(4, 3, 1, 1))) for _ in range(2))
    graph = b.done(b.op("Relu", b.op("Add", one, two)))
    for n in (1, 3):
        g = lowered(graph, {"N": n})
        # The later convolution takes the Add and the Relu; the other one is its operand.
        assert work(g) == ["Conv", "Fused"] and bodies(g) == [["Conv", "Add", "Relu"]]


def test_the_task_carries_what_its_parts_were() -> None:
    b = Builder()
    v = b.op("Relu", anchor(b, "Conv"))
    b.graph.values[v].name = "activated"
    g = lowered(b.done(v))
    [node] = [n for n in g.nodes.values() if n.op == "Fused"]
    assert node.origin == ("n0", "n1") and node.engine == "aicore" and node.precision == "emulated"
    assert node.captures == len(node.inputs) == 2 and g.values[node.outputs[0]].name == "activated"


def test_disabled_and_level_one_fuse_nothing() -> None:
    b = Builder()
    graph = b.done(b.op("Relu", anchor(b, "Conv")))
    for level in (0, 1):
        assert work(lowered(graph, level=level)) == ["Conv", "Relu"]
    for name in ("fusion", "conv_epilogue"):
        assert work(lowered(graph, disabled=frozenset({name}))) == ["Conv", "Relu"]


# -- one test a constraint ------------------------------------------------------------------------------------------


def refused(b: Builder, *outputs: int, op: str = "Conv", target: str = "Ascend310P3") -> str:
    """The note on the node that was left alone."""
    graph = b.done(*outputs)
    report = lower(graph, load(target), LowerOptions(debug=True))
    notes = [note for n in graph.nodes.values() for note in n.notes]
    assert len(notes) == 1 and op in work(graph)
    assert notes[0] == f"conv_epilogue: {report.declined[0].reason}"
    return notes[0]


def test_refused_two_readers() -> None:
    b = Builder()
    c = anchor(b, "Conv")
    note = refused(b, b.op("Relu", c), b.op("Exp", c))
    assert "the result of Conv is read by 2 nodes (Exp, Relu)" in note


def test_refused_an_output() -> None:
    b = Builder()
    c = anchor(b, "Conv")
    assert "the result of Conv is an output of the graph" in refused(b, b.op("Relu", c), c)


def test_refused_shape() -> None:
    b = Builder()
    c = anchor(b, "Gemm")
    note = refused(b, b.op("Add", c, b.input("r", (2, 5, 4))), op="Gemm")
    assert "the shape changes from [5, 4] to [2, 5, 4]" in note


def test_refused_dtype() -> None:
    b = Builder()
    assert "the dtype changes from float32 to bool" in refused(b, b.op("IsNaN", anchor(b, "Conv")))


def test_refused_operand_shape() -> None:
    b = Builder()
    c = anchor(b, "Conv")
    note = refused(b, b.op("Mul", c, b.input("gate", (1, 4, 1, 1))))
    assert "operand of shape [1, 4, 1, 1] is computed and is not of the result's shape [1, 4, 6, 6]" in note


def test_refused_position() -> None:
    b = Builder()
    c = anchor(b, "Conv")
    note = refused(b, b.op("Pow", b.input("r", (1, 4, 6, 6)), c))
    assert "cannot write over input 1" in note


def test_refused_engine() -> None:
    b = Builder()
    assert "runs on aicpu" in refused(b, b.op("Relu", anchor(b, "Conv", np.float64)))


def test_refused_unknown_shape() -> None:
    b = Builder()
    x = b.op("Reshape", b.input("x", (24,)), b.input("s", (4,), DType.INT64))
    b.graph.values[x].type = b.graph.tensor(x).with_shape(None)
    c = b.op("MatMul", x, b.const(rand(4, 4)))
    assert "known only at run time" in refused(b, b.op("Relu", c), op="MatMul")


def test_a_chain_that_stops_says_so_on_the_task() -> None:
    b = Builder()
    r = b.op("Relu", anchor(b, "Conv"))
    graph = b.done(b.op("Exp", r), b.op("Neg", r))
    lower(graph, TARGET)
    [node] = [n for n in graph.nodes.values() if n.op == "Fused"]
    assert node.notes == ("conv_epilogue: Exp is not fused: the result of Relu is read by 2 nodes (Exp, Neg)",)


def test_nothing_is_said_where_nothing_could_follow() -> None:
    b = Builder()
    graph = b.done(b.op("Softmax", anchor(b, "Gemm")))
    assert lower(graph, TARGET).declined == ()


@pytest.mark.parametrize("saving", [0, 1])
def test_rules_are_data_and_profit_decides(saving: int) -> None:
    rule = Rule(
        name="softmax_scale",
        doc="Softmax and what follows it",
        anchors=frozenset({"Softmax"}),
        followers=lambda op: op.name == "Neg",
        constraints=(),
        replacement=fused_task,
        profit=lambda match: saving,
    )
    b = Builder()
    graph = b.done(b.op("Neg", b.op("Softmax", b.input("x", (3, 4)))))
    result = fuse(graph, (*RULES, rule), TARGET)
    assert result.made == saving
    assert [r.reason for r in result.refused] == ([] if saving else ["fusing Softmax ─ Neg saves 0 bytes"])


def test_two_tasks_never_wait_for_each_other() -> None:
    # Each convolution's epilogue could take the other's result as its operand; the graph must stay acyclic.
    b = Builder()
    x = b.input("x", (1, 4, 6, 6))
    a, c = (b.op("Conv", x, b.const(rand(4, 4, 1, 1))) for _ in range(2))
    total = b.op("Add", a, c)
    d = b.op("Conv", total, b.const(rand(4, 4, 1, 1)))
    g = lowered(b.done(b.op("Relu", b.op("Add", d, total))))
    assert bodies(g) == [["Conv", "Add"], ["Conv", "Add", "Relu"]]
    assert isinstance(g.order()[0], Node)
