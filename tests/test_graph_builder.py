"""Graphs made by hand compile and run like those that are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from atc_py import Session
from atc_py.compiler import Options, compile_graph
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.graph import Builder, Ref
from atc_py.ir.graph import Graph
from atc_py.ir.text import print_graph


def run(graph: Graph, **feeds: object) -> list[np.ndarray]:
    found: list[np.ndarray] = Session(om_bytes(compile_graph(graph, Options(debug=True)))).run(None, feeds)
    return found


def test_a_dense_layer_with_a_symbolic_batch() -> None:
    b = Builder("mlp")
    x = b.data("x", "float32", ("N", 64))
    w = np.linspace(-1, 1, 64 * 8, dtype=np.float32).reshape(64, 8)
    y = b.op("Relu", b.op("MatMul", x, b.const(w), name="fc"))
    graph = b.build(y=y)
    given = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_allclose(run(graph, x=given)[0], np.maximum(given @ w, 0), rtol=1e-5, atol=1e-5)
    assert [n.op for n in graph.order()] == ["Data", "Const", "MatMul", "Relu", "NetOutput"], "it is left as it was"


@pytest.mark.parametrize("flag", [True, False])
def test_bodies_read_outer_values(flag: bool) -> None:
    b = Builder("branches")
    x, c = b.data("x", "float32", ("N",)), b.data("c", "bool", ())
    two = b.const(np.float32(2))
    y = b.op("Relu", x)
    then, other = b.body("then"), b.body("else")
    then.give(then.op("Neg", y))
    other.give(other.op("Mul", other.op("Add", x, y), two))
    z = b.op("If", c, then_branch=then, else_branch=other)
    given = np.array([-1, 2, 3], np.float32)
    kept = np.maximum(given, 0)
    expected = -kept if flag else (given + kept) * 2
    np.testing.assert_array_equal(run(b.build(z=z), x=given, c=np.array(flag))[0], expected)


def test_a_loop_has_inputs_of_its_own_and_captures() -> None:
    b = Builder("powers")
    x = b.data("x", "float32", ())
    body = b.body("body")
    body.data("i", "int64", ())
    go = body.data("go", "bool", ())
    state = body.data("state", "float32", ())
    body.give(body.op("Identity", go), body.op("Mul", state, x))
    y = b.op("Loop", b.const(np.int64(5)), b.const(np.array(True)), b.const(np.float32(1)), body=body)
    np.testing.assert_allclose(run(b.build(y=y), x=np.float32(3))[0], 243.0)


def test_several_results_and_the_order_of_making_them() -> None:
    def made(swap: bool) -> Graph:
        b = Builder("split")
        x = b.data("x", "float32", (2, 6))
        parts = b.op("Split", x, outputs=2, axis=1, num_outputs=2)
        pair = [("Exp", parts[0]), ("Tanh", parts[1])]
        made = {op: b.op(op, part) for op, part in (reversed(pair) if swap else pair)}
        return b.build(a=made["Exp"], b=made["Tanh"])

    names = ("Exp_2", "Tanh_2", "Exp_3", "Tanh_3")
    one, other = print_graph(made(False)), print_graph(made(True))
    for name in names:
        one, other = one.replace(name, name[:3]), other.replace(name, name[:3])
    assert one == other


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda b, x: b.op("Relu"), "takes 1 inputs"),
        (lambda b, x: b.op("Softmax", x, axs=1), "did you mean 'axis'"),
        (lambda b, x: b.op("MatMul", x, b.const(np.ones((3, 3), np.float32))), "MatMul"),
        (lambda b, x: b.op("Relu", Builder("other").data("y", "float32", (1,))), "another graph"),
        (lambda b, x: b.data("y", "float31", (1,)), "float31"),
        (lambda b, x: b.build(), "no outputs"),
    ],
)
def test_mistakes_are_named(wrong: Callable[[Builder, Ref], object], said: str) -> None:
    b = Builder("wrong")
    x = b.data("x", "float32", (2, 64))
    with pytest.raises(AtcError) as caught:
        wrong(b, x)
    [problem] = caught.value.problems
    assert problem.code == "E20030" and problem.place and said in f"{problem} {problem.cause} {problem.hint}"
