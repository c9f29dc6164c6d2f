"""The pattern matcher: what fits, what does not, and that a refused match leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest

from atc_py.ir.graph import Graph
from atc_py.passes import OptimizeOptions
from atc_py.passes.base import PassContext
from atc_py.passes.pattern import Con, Match, Num, Op, Pattern, Through, Var
from atc_py.passes.rules import Rewrite, Rule, apply_rules, index_rules
from tests.passes.interp import Builder, work

X, Y = Var("x"), Var("y")


def found(pattern: Pattern, graph: Graph) -> Match | None:
    m = Match(graph)
    return m if pattern.match(m, graph.outputs[0], lambda: True) else None


def number(b: Builder, value: float) -> int:
    return b.const(value, np.float32)


@pytest.mark.parametrize("swap", [False, True])
def test_commutative_operands_have_no_order(swap: bool) -> None:
    b = Builder()
    x = b.input("x", (3,))
    operands = (b.op("Exp", x), number(b, 2))
    graph = b.done(b.op("Mul", *(operands[::-1] if swap else operands)))
    m = found(Op("Mul", Op("Exp", X), Num("c")), graph)
    assert m is not None and m["x"] == x and m.numbers == {"c": 2.0}


def test_others_have_one() -> None:
    b = Builder()
    graph = b.done(b.op("Sub", number(b, 2), b.op("Exp", b.input("x", (3,)))))
    assert found(Op("Sub", Op("Exp", X), Num("c")), graph) is None
    assert found(Op("Sub", Num("c"), Op("Exp", X)), graph) is not None


def test_one_name_is_one_value() -> None:
    b = Builder()
    x, y = b.input("x", (3,)), b.input("y", (3,))
    graph = b.done(b.op("Add", b.op("Mul", x, y), b.op("Exp", x)))
    assert found(Op("Add", Op("Mul", Y, X), Op("Exp", X)), graph) is not None  # found by turning the Mul around
    assert found(Op("Add", Op("Mul", X, X), Op("Exp", X)), graph) is None


def test_a_failed_alternative_leaves_nothing_behind() -> None:
    b = Builder()
    x = b.input("x", (3,))
    graph = b.done(b.op("Add", b.op("Exp", b.op("Neg", x)), number(b, 1)))
    first = Op("Add", Op("Exp", Op("Neg", Var("a"))), Num(2.0))
    m = found(first | Op("Add", Op("Exp", Y), Num(1.0)), graph)
    assert m is not None and set(m.values) == {"y"} and [n.op for n in m.nodes] == ["Add", "Exp"]


@pytest.mark.parametrize(("casts", "fits"), [(0, True), (1, True), (3, True), (9, False)])
def test_nodes_in_between(casts: int, fits: bool) -> None:
    b = Builder()
    v = b.op("Exp", b.input("x", (3,)))
    for _ in range(casts):
        v = b.op("Identity", v)
    m = found(Op("Neg", Through("Cast Identity", Op("Exp", X))), b.done(b.op("Neg", v)))
    assert (m is not None) is fits and (m is None or len(m.nodes) == 2 + casts)


def test_numbers_are_compared_within_their_rounding() -> None:
    for dtype, other, fits in ((np.float32, 1e-8, True), (np.float32, 1e-4, False), (np.float16, 1e-4, True)):
        b = Builder()
        x = b.op("Cast", b.input("x", (3,)), to=b.graph.tensor(b.const(0, dtype)).dtype)
        graph = b.done(b.op("Mul", x, b.const(0.5 * (1 + other), dtype)))
        assert (found(Op("Mul", X, Num(0.5)), graph) is not None) is fits


def test_outputs_and_further_inputs() -> None:
    b = Builder()
    parts = b.ops("Split", b.input("x", (4,)), b.const([1, 3]), outputs=2, axis=0)
    graph = b.done(b.op("Neg", parts[1]))
    assert found(Op("Neg", Op("Split", X, output=1, rest=True)), graph) is not None
    assert found(Op("Neg", Op("Split", X, rest=True)), graph) is None  # another output
    assert found(Op("Neg", Op("Split", X, output=1)), graph) is None  # another number of inputs
    assert found(Op("Neg", Op("Split", X, Con("sizes"), output=1)), graph) is not None


def _context(graph: Graph) -> PassContext:
    return PassContext(OptimizeOptions(), graph)


def test_a_rule_that_refuses_leaves_the_graph_as_it_was() -> None:
    b = Builder()
    graph = b.done(b.op("Exp", b.op("Neg", b.input("x", (3,)))))
    before = list(graph.nodes)

    def refuse(r: Rewrite) -> str:
        r.emit("Relu", [r.m["x"]])
        return "it is Monday"

    ctx = _context(graph)
    rule = Rule("twist", Op("Exp", Op("Neg", X)), refuse)
    assert apply_rules(graph, ctx, "test", index_rules([rule])) == 0
    assert list(graph.nodes) == before
    [(_, decline)] = ctx.take_declined()
    assert decline.reason == "no twist: it is Monday"


@pytest.mark.parametrize("shared", [False, True])
def test_values_that_others_read(shared: bool) -> None:
    b = Builder()
    inner = b.op("Neg", b.input("x", (3,)))
    graph = b.done(b.op("Exp", inner), inner)

    def rewrite(r: Rewrite) -> None:
        r.replace("Relu", [r.m["x"]])

    ctx = _context(graph)
    rule = Rule("twist", Op("Exp", Op("Neg", X)), rewrite, shared)
    assert apply_rules(graph, ctx, "test", index_rules([rule])) == shared
    assert work(graph) == (["Neg", "Relu"] if shared else ["Neg", "Exp"])
    assert shared or "has 2 readers" in ctx.take_declined()[0][1].reason


def test_what_a_match_was_made_of_goes_with_its_origins() -> None:
    b = Builder()
    graph = b.done(b.op("Mul", b.op("Exp", b.op("Neg", b.input("x", (3,)))), number(b, 2)))
    rule = Rule("twist", Op("Mul", Op("Exp", Op("Neg", X)), Num("c")), lambda r: r.replace("Relu", [r.m["x"]]))
    assert apply_rules(graph, _context(graph), "test", index_rules([rule])) == 1
    [node] = [n for n in graph.nodes.values() if n.op == "Relu"]
    assert set(node.origin) == {"n0", "n1", "n2"} and work(graph) == ["Relu"]


def test_what_a_pattern_needs_is_part_of_each_of_its_matches() -> None:
    root = Op("Sqrt", X) | Op("Pow", X, Num(0.5))
    either, exp = frozenset({"Sqrt", "Pow"}), frozenset({"Exp"})
    assert Op("Div", Op("Exp", X), Through("Cast", root)).needs() == {frozenset({"Div"}), exp, either}
    assert (Op("Neg", Op("Exp", X)) | Op("Abs", Op("Exp", Y))).needs() == {frozenset({"Neg", "Abs"}), exp}
    assert (Through("Cast", X) | Op("Exp", X)).needs() == frozenset()


def test_a_rule_sees_what_rules_before_it_have_made() -> None:
    b = Builder()
    graph = b.done(b.op("Exp", b.op("Abs", b.op("Neg", b.input("x", (3,))))))
    first = Rule("first", Op("Abs", Op("Neg", X)), lambda r: r.replace("Relu", [r.m["x"]]))
    second = Rule("second", Op("Exp", Op("Relu", X)), lambda r: r.replace("Softplus", [r.m["x"]]))
    assert apply_rules(graph, _context(graph), "test", index_rules([first, second])) == 2
    assert work(graph) == ["Softplus"]
