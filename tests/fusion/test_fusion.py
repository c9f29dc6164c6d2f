"""The engine: what becomes one task, that it computes the same, and that groups stay convex and in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion import RULES, Constraint, Rule, fuse
from atc_py.fusion.constraints import ENGINE
from atc_py.fusion.engine import MOST
from atc_py.ir.dims import evaluate, symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.passes import LowerOptions, lower
from tests.fusion.making import PLAIN, TARGET, bodies, fused, notes, proved, rand, tasks
from tests.passes.interp import Builder, interpret, random_inputs, work


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
FOLLOWERS += ["Clip", "PRelu", "bias", "residual", "twice", "minus", "gate"]


def follow(b: Builder, v: int, name: str, dtype: Any) -> int:
    dims = b.graph.tensor(v).dims
    t = DType.of(np.dtype(dtype))
    if name == "Clip":
        return b.op("Clip", v, b.const(-0.5, dtype), b.const(0.75, dtype))
    if name == "PRelu":
        return b.op("PRelu", v, b.const(np.asarray(0.25, dtype).reshape((1,) * len(dims))))
    if name == "bias":
        return b.op("Add", b.const(rand(evaluate(dims[-1], {}), dtype=dtype)), v)
    if name == "residual":
        return b.op("Add", v, b.op("Softmax", b.input(f"r{b.count}", dims, t)))
    if name == "gate":
        return b.op("Mul", v, b.input(f"g{b.count}", (*dims[:-1], 1), t))
    if name == "minus":
        return b.op("Sub", b.input(f"r{b.count}", dims, t), v)
    return b.op("Mul", v, v) if name == "twice" else b.op(name, v)


@settings(max_examples=60, deadline=None, derandomize=True)
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
    g = proved(b.done(v))
    [body] = bodies(g)
    assert body[0] == kind and len(body) == 1 + len(followers)
    assert [op for op in work(g) if op != "Softmax"] == ["Fused"]


@pytest.mark.parametrize("n", [1, 3])
def test_symbolic_batches_fuse_once_for_all_sizes(n: int) -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (symbol("N"), 3, 6, 6))
    one = b.op("Conv", x, b.const(rand(4, 3, 1, 1)))
    two = b.op("Conv", b.op("Transpose", x, perm=(0, 1, 3, 2)), b.const(rand(4, 3, 1, 1)))
    g = proved(b.done(b.op("Relu", b.op("Add", one, two))), {"N": n}, disabled=frozenset({"conv_chain"}))
    # The later convolution takes the Add and the Relu; the other one is its operand.
    assert sorted(work(g)) == ["Conv", "Fused", "Transpose"] and bodies(g) == [["Conv", "Add", "Relu"]]


def test_the_task_carries_what_its_parts_were() -> None:
    b = Builder()
    v = b.op("Relu", anchor(b, "Conv"))
    b.graph.values[v].name = "activated"
    for node in b.graph.nodes.values():
        node.stream, node.priority = "left", 3
    g = fused(b.done(v))
    [node] = tasks(g)
    assert node.origin == ("n0", "n1") and node.engine == "aicore" and node.precision == "emulated"
    assert node.captures == len(node.inputs) == 2 and (node.stream, node.priority) == ("left", 3)
    assert [g.values[v].name for v in node.outputs] == ["activated"]


def test_disabled_and_level_one_fuse_nothing() -> None:
    b = Builder()
    graph = b.done(b.op("Relu", anchor(b, "Conv")))
    for level in (0, 1):
        assert work(fused(graph, level=level)) == ["Conv", "Relu"]
    assert work(fused(graph, disabled=frozenset({"fusion"}))) == ["Conv", "Relu"]
    without = frozenset({"conv_epilogue"})
    assert work(fused(graph, disabled=without)) == ["Conv", "Relu"]


# -- results, order, convexity --------------------------------------------------------------------------------------


def test_an_inner_value_that_is_read_outside_is_stored() -> None:
    b = Builder()
    c = anchor(b, "Conv")
    r = b.op("Relu", c)
    g = proved(b.done(b.op("Softmax", c), b.op("Softmax", b.op("Neg", r)), r))
    [task] = tasks(g)
    assert bodies(g) == [["Conv", "Relu", "Neg"]] and len(task.outputs) == 3
    assert [g.values[v].index for v in task.outputs] == [0, 1, 2]


def test_ids_follow_the_order() -> None:
    b = Builder()
    x = b.input("x", (1, 4, 6, 6))
    v = x
    for _ in range(4):
        v = b.op("Softmax", b.op("Relu", b.op("Conv", v, b.const(rand(4, 4, 1, 1)))))
    g = proved(b.done(v))
    assert [n.id for n in g.order()] == list(g.nodes) == sorted(g.nodes)


def diamond(far: bool) -> tuple[Builder, int]:
    """conv ─ Relu ─┬─ Softmax ─┐       a path leaves the task by the Softmax and comes back to the Add
    └───────── Add"""
    b = Builder()
    r = b.op("Relu", anchor(b, "Conv"))
    return b, b.op("Add", b.op("Softmax", r) if far else b.op("Neg", r), r)


def test_a_path_that_comes_back_keeps_a_node_out() -> None:
    b, y = diamond(True)
    g = proved(b.done(y))
    assert bodies(g) == [["Conv", "Relu"], ["Softmax", "Add"]]
    b, y = diamond(False)
    assert bodies(proved(b.done(y))) == [["Conv", "Relu", "Neg", "Add"]]


def test_two_tasks_never_wait_for_each_other() -> None:
    # Each could take the other's result as its operand; the graph must stay acyclic.
    b = Builder()
    x, y = b.input("x", (1, 4, 6, 6)), b.input("y", (1, 4, 6, 6))
    a, c = (b.op("Conv", v, b.const(rand(4, 4, 1, 1))) for v in (x, y))
    total = b.op("Add", a, c)
    d = b.op("Conv", total, b.const(rand(4, 4, 1, 1)))
    graph = b.done(b.op("Relu", b.op("Add", d, total)))
    g = proved(graph, disabled=frozenset({"conv_chain"}))
    assert bodies(g) == [["Conv", "Add"], ["Conv", "Add", "Relu"]]
    assert bodies(proved(graph)) == [["Conv", "Conv", "Add", "Conv", "Add", "Relu"]]


@st.composite
def graphs(draw: Any) -> Graph:
    """Any DAG of elementwise operators, norms and products over [2, 6, 8]."""
    b = Builder()
    values = [b.input(f"x{i}", (2, 6, 8)) for i in range(2)]
    for _ in range(draw(st.integers(2, 14))):
        recent = st.integers(max(0, len(values) - 5), len(values) - 1)
        one, two = values[draw(recent)], values[draw(recent)]
        kind = draw(st.sampled_from(["MatMul", "Norm", "Softmax", "Add", "Mul", "Relu", "Tanh", "Sum", "Far"]))
        if kind == "MatMul":
            values.append(b.op("MatMul", one, b.const(rand(8, 8))))
        elif kind == "Norm":
            values.append(b.op("RMSNormalization", one, b.const(rand(8)), axis=-1))
        elif kind == "Sum":
            values.append(b.op("Mul", one, b.op("ReduceMean", two, b.const([-1]), keepdims=1)))
        elif kind == "Far":
            values.append(b.op("CumSum", one, b.const(1)))
        elif kind in ("Add", "Mul"):
            values.append(b.op(kind, one, two))
        else:
            values.append(b.op(kind, one))
    free = [v for v in values if not b.graph.values[v].uses]
    return b.done(*(free or values[-1:]))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(graphs())
def test_any_graph_computes_the_same(graph: Graph) -> None:
    g = proved(graph)
    assert len(work(g)) <= len(work(graph))


def test_a_long_chain_is_cut_and_linear() -> None:
    b = Builder()
    v = b.input("x", (4,))
    for i in range(3 * MOST + 5):
        v = b.op("Sin" if i % 2 else "Cos", v)
    g = fused(b.done(v))
    assert sorted(len(body) for body in bodies(g)) == [5, MOST, MOST, MOST]
    inputs = random_inputs(g)
    np.testing.assert_allclose(interpret(g, inputs)[0], interpret(b.graph, inputs)[0], rtol=1e-5)


def test_layers_that_are_alike_share_their_tiles() -> None:
    b = Builder()
    v = b.input("x", (2, 16, 8))
    for _ in range(3):
        v = b.op("Softmax", b.op("Relu", b.op("MatMul", v, b.const(rand(8, 8)))))
    found = [(t.attrs["tile"], t.attrs["inner"]) for t in tasks(proved(b.done(v)))]
    assert len(found) == 3 and len(set(found)) == 1


# -- rules as data --------------------------------------------------------------------------------------------------


def _never(join: Any) -> str:
    return f"{join.node.op} after {join.anchor.op}"


@pytest.mark.parametrize(("saving", "made"), [(-1.0, 0), (0.0, 0), (2.0, 1)])
def test_profit_decides_and_is_told_with_both_numbers(saving: float, made: int) -> None:
    rule = Rule(
        name="softmax_scale",
        doc="Softmax and what follows it",
        anchors=frozenset({"Softmax"}),
        followers=lambda op: op.name == "Neg",
        profit=lambda match: saving,
    )
    b = Builder()
    graph = b.done(b.op("Neg", b.op("Softmax", b.input("x", (3, 4)))))
    result = fuse(graph, (rule,), TARGET)
    assert result.made == made
    told = [(r.rule, r.constraint, r.reason) for r in result.refused]
    price = 2 * 2.93  # two launches, and a few bytes
    want = f"Softmax 'n0' ─ Neg 'n1' takes {price:.1f} us in 2 tasks, as one {price - saving:.1f} us"
    assert told == ([] if made else [("softmax_scale", "profit", want)])


def test_a_constraint_is_told_with_its_name() -> None:
    rule = Rule(
        name="never",
        doc="nothing joins",
        anchors=frozenset({"Softmax"}),
        followers=lambda op: op.name == "Neg",
        constraints=(Constraint("never", _never),),
    )
    b = Builder()
    graph = b.done(b.op("Neg", b.op("Softmax", b.input("x", (3, 4)))))
    [refusal] = fuse(graph, (rule,), TARGET).refused
    assert refusal.text == "never: Neg 'n1' is not fused: Neg after Softmax" and refusal.node.op == "Softmax"


def test_nothing_is_said_where_nothing_could_follow() -> None:
    b = Builder()
    graph = b.done(b.op("TopK", anchor(b, "Gemm"), b.const([2])))
    assert lower(graph, TARGET, LowerOptions(disabled=PLAIN)).declined == ()


def test_what_stopped_a_task_is_told_of_it_also_when_run_again() -> None:
    b, y = diamond(True)
    graph = b.done(y)
    options = LowerOptions(disabled=PLAIN)
    first = lower(graph, TARGET, options).declined
    assert notes(graph) and lower(graph, TARGET, options).declined == first
    assert any(d.reason.startswith("convex: Add 'n3' is not fused: a path leaves the task") for d in first)


def test_every_rule_has_a_name_of_its_own_and_checks_the_engine() -> None:
    assert len({r.name for r in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.doc and (ENGINE in rule.constraints or rule.least == 1) and ENGINE in rule.admits
