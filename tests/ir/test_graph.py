"""Each method of `Graph` does what it says and leaves a graph that `validate` accepts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.constants import Splat
from atc_py.ir.dims import symbol
from atc_py.ir.graph import ABSENT, Graph, Node, Range, merge_origins
from atc_py.ir.text import BlobTable, print_graph
from atc_py.ir.types import DType, Sequence, Tensor
from atc_py.ir.validate import validate
from tests.ir.graphs import Plan, build, decorated, plans

F = Tensor(DType.FLOAT32, (2, 8))


def chain(*ops: str) -> tuple[Graph, list[Node]]:
    """x → ops… → output"""
    g = Graph("g")
    value = g.add_input("x", F)
    nodes: list[Node] = []
    for op in ops:
        nodes.append(g.add(op, [value], [F], name=op.lower(), origin=(f"o{len(nodes)}",), names=[f"{op}_out"]))
        value = nodes[-1].outputs[0]
    g.set_outputs([value], ["y"])
    return g, nodes


def ops(g: Graph) -> list[str]:
    return [n.op for n in g.order()]


def test_add_drops_absent_inputs_at_the_end_unless_captures_follow() -> None:
    g = Graph("g")
    x = g.add_input("x", F)
    assert g.add("Clip", [x, ABSENT, x], [F]).inputs == [x, ABSENT, x]
    assert g.add("Clip", [x, ABSENT, ABSENT], [F]).inputs == [x]
    assert g.add("Loop", [ABSENT, ABSENT, x], [F], captures=1).inputs == [ABSENT, ABSENT, x]


def test_looking_up() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    x, r = g.inputs[0], relu.outputs[0]
    k = g.add_const(Splat(DType.FLOAT32, (2, 8), 1.0), "k")
    add = g.add("Add", [r, r], [F])
    assert g.producer(r) is relu and g.tensor(r) == F and g.type(k) == F
    assert g.const(k) is not None and g.const(r) is None and g.const(ABSENT) is None
    assert g.consumers(r) == [neg, add] and g.sole_consumer(r) is None
    assert g.sole_consumer(x) is relu and g.sole_consumer(neg.outputs[0]) is g.net_output
    assert g.is_output(neg.outputs[0]) and not g.is_output(r)
    assert g.outputs == neg.outputs and g.output_names == ["y"]


def test_a_value_that_is_no_tensor_has_no_tensor_type() -> None:
    g = Graph("g")
    s = g.add_input("s", Sequence(F))
    with pytest.raises(AssertionError, match="no tensor"):
        g.tensor(s)


def test_order_puts_producers_first_and_low_ids_first() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    k = g.add_const(Splat(DType.FLOAT32, (2, 8), 1.0))
    relu2 = g.add("Relu", [k], [F])
    g.set_input(relu, 0, relu2.outputs[0])
    assert [n.id for n in g.order()] == [0, g.producer(k).id, relu2.id, relu.id, neg.id, g.net_output.id]
    g.set_input(relu, 0, neg.outputs[0])
    with pytest.raises(ValueError, match="cycle"):
        g.order()


def _one_by_one(g: Graph) -> list[int]:
    """Of the nodes whose inputs are there the lowest id, again and again."""
    made: list[int] = []
    while len(made) < len(g.nodes):
        ready = (n.id for n in g.nodes.values() if n.id not in made and {*map(g.producer, _read(n))} <= _nodes(g, made))
        made.append(min(ready))
    return made


def _read(node: Node) -> list[int]:
    return [v for v in node.inputs if v != ABSENT]


def _nodes(g: Graph, ids: list[int]) -> set[Node]:
    return {g.nodes[i] for i in ids}


@given(plans(), st.integers(0, 99), st.randoms(use_true_random=False))
def test_order_of_nodes_that_read_later_ones(plan: Plan, seed: int, rng: Random) -> None:
    g = build(plan, seed)
    for node in rng.sample(list(g.nodes.values()), min(4, len(g.nodes))):
        if node.op not in ("Data", "NetOutput") and not node.subgraphs:
            copy = g.add(node.op, node.inputs, [g.type(v) for v in node.outputs], node.attrs, const=node.const)
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                g.replace_uses(old, new)
    assert [n.id for n in g.order()] == _one_by_one(g)


def test_fresh_symbols_have_names_of_their_own() -> None:
    g = Graph("g", {"N": Range(1)})
    assert [str(g.fresh_symbol("len")) for _ in range(3)] == ["len", "len_2", "len_3"]
    assert g.fresh_symbol("N") is symbol("N_2") and g.symbols["N_2"].runtime
    assert g.fresh_symbol("M", Range(3, 4)) is symbol("M") and g.symbols["M"] == Range(3, 4)


def test_replace_uses_moves_readers_and_outputs() -> None:
    g, (relu, neg, abs_) = chain("Relu", "Neg", "Abs")
    g.replace_uses(neg.outputs[0], relu.outputs[0])
    g.replace_uses(relu.outputs[0], relu.outputs[0])
    validate(g)
    assert abs_.inputs == relu.outputs and g.consumers(neg.outputs[0]) == []
    g.replace_uses(abs_.outputs[0], g.inputs[0])
    validate(g)
    assert g.outputs == g.inputs


def test_replace_uses_where_a_node_reads_both() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    add = g.add("Add", [relu.outputs[0], neg.outputs[0]], [F])
    g.replace_uses(neg.outputs[0], relu.outputs[0])
    validate(g)
    assert add.inputs == [relu.outputs[0]] * 2 and len(g.values[relu.outputs[0]].uses) == 4


def test_replace_chain_keeps_output_values_names_and_origins() -> None:
    g, nodes = chain("Relu", "Neg", "Abs")
    kept = nodes[2].outputs[0]
    new = g.replace_chain(nodes[1:], "NegAbs", nodes[0].outputs, {"k": 1})
    validate(g)
    assert ops(g) == ["Data", "Relu", "NegAbs", "NetOutput"] and g.outputs == [kept] == new.outputs
    assert (new.name, new.origin, new.attrs) == ("abs", ("o1", "o2"), {"k": 1})
    assert g.values[kept].name == "Abs_out" and g.producer(kept) is new


def test_insert_on_edge_touches_one_edge() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    add = g.add("Add", [relu.outputs[0], relu.outputs[0]], [F], origin=("add",))
    half = Tensor(DType.FLOAT16, F.shape)
    cast = g.insert_on_edge(add, 1, "Cast", half)
    validate(g, "import")
    assert add.inputs == [relu.outputs[0], cast.outputs[0]] and cast.origin == ("add",)
    assert g.consumers(relu.outputs[0]) == [neg, add, cast]


def test_what_is_inserted_before_an_output_stands_for_its_producer() -> None:
    g, (relu,) = chain("Relu")
    cast = g.insert_on_edge(g.net_output, 0, "Cast", F)
    validate(g, "import")
    assert cast.origin == relu.origin


def test_remove_refuses_a_value_that_is_read() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    with pytest.raises(AssertionError, match="still read"):
        g.remove(relu)
    g.replace_uses(neg.outputs[0], relu.outputs[0])
    g.remove(neg)
    validate(g)
    assert ops(g) == ["Data", "Relu", "NetOutput"]


def test_bypass_hands_name_and_origin_on() -> None:
    g, (relu, identity) = chain("Relu", "Identity")
    g.values[relu.outputs[0]].name = ""
    g.bypass(identity, relu.outputs[0])
    validate(g)
    assert relu.origin == ("o0", "o1") and g.values[relu.outputs[0]].name == "Identity_out"
    g.bypass(relu, g.inputs[0])
    validate(g)
    assert g.producer(g.inputs[0]).origin == () and g.values[g.inputs[0]].name == "x"


def test_set_input_and_set_inputs_keep_uses() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    g.set_inputs(neg, [relu.outputs[0], g.inputs[0], ABSENT])
    validate(g)
    g.set_input(neg, 2, g.inputs[0])
    g.set_input(neg, 1, ABSENT)
    validate(g)
    g.set_inputs(neg, [])
    validate(g)
    assert len(g.prune()) == 1 and ops(g) == ["Data", "Neg", "NetOutput"]


def test_walk_yields_outer_graphs_first() -> None:
    inner, middle, g = Graph("inner"), Graph("middle"), Graph("outer")
    middle.add("If", [], [], subgraphs={"a": inner})
    g.add("If", [], [], subgraphs={"a": middle, "b": Graph("last")})
    assert [x.name for x in g.walk()] == ["outer", "middle", "inner", "last"]


def test_notes_are_kept_once() -> None:
    n = Node(0, "Relu", [], [])
    for reason in ("a", "b", "a"):
        n.note(reason)
    assert n.notes == ("a", "b")
    assert merge_origins([Node(0, "A", [], [], origin=("x", "y")), Node(1, "B", [], [], origin=("y", "z"))]) == tuple(
        "xyz"
    )


@given(plans(), st.integers(0, 99), st.randoms(use_true_random=False))
def test_renumber_follows_any_order(plan: Plan, seed: int, rng: object) -> None:
    g = build(plan, seed)
    before = [(n.op, n.name) for n in g.nodes.values()]
    order = list(reversed(g.nodes.values()))
    g.renumber(order)
    validate(g)
    assert [n.id for n in g.order()] == _asked_anew(g)
    assert [(n.op, n.name) for n in g.nodes.values()] == before[::-1]
    assert list(g.nodes) == list(range(len(before))) and list(g.values) == list(range(len(g.values)))


def test_renumber_leaves_out_what_is_not_in_the_order() -> None:
    g, (relu, neg) = chain("Relu", "Neg")
    unread = g.add("Exp", relu.outputs, [F])
    g.renumber([n for n in g.order() if n is not unread])
    validate(g, "import")
    assert ops(g) == ["Data", "Relu", "Neg", "NetOutput"] and g.sole_consumer(relu.outputs[0]) is neg


@given(plans(), st.integers(0, 99))
def test_prune_leaves_what_reaches_an_output(plan: Plan, seed: int) -> None:
    g = build(plan, seed)
    total = len(g.nodes)
    gone = len(g.prune())
    validate(g, "import")
    assert len(g.nodes) == total - gone and not g.prune()
    assert all(g.values[v].uses for n in g.nodes.values() if len(n.outputs) == 1 and n.op != "Data" for v in n.outputs)


@given(plans(), st.integers(0, 99), st.booleans())
def test_a_clone_has_the_order_that_is_known_and_nodes_of_its_own(plan: Plan, seed: int, asked: bool) -> None:
    g = build(plan, seed)
    if asked:
        g.renumber(g.order())
    copy = clone(g)
    assert [n.id for n in copy.order()] == _asked_anew(g)
    assert all(copy.nodes[n.id] is n for n in copy.order())


def test_a_clone_shares_nothing_that_changes() -> None:
    g = decorated()
    before = print_graph(g, BlobTable())
    copy = clone(g)
    for inner in copy.walk():
        for n in list(inner.nodes.values()):
            n.attrs["new"] = 1
            n.inputs.append(ABSENT)
        for v in inner.values.values():
            v.uses.clear()
            v.name = "changed"
        inner.symbols["new"] = Range()
        inner.doc["new"] = "1"
        inner.inputs.clear()
        inner.output_names.clear()
    assert print_graph(g, BlobTable()) == before


def test_a_deep_chain_needs_no_recursion() -> None:
    g, nodes = chain(*["Relu"] * 10_000)
    assert len(g.order()) == 10_002 and not g.prune()
    validate(g)
    g.renumber(g.order())
    for n in nodes[:100]:
        g.bypass(n, n.inputs[0])
    validate(g)


def _asked_anew(g: Graph) -> list[int]:
    return [n.id for n in g._sorted()]


def test_the_order_is_kept_only_while_the_graph_is_the_same() -> None:
    g = Graph("g")
    x = g.add_input("x", F)
    late = g.add("Relu", [x], [F])
    early = g.add("Neg", [x], [F])
    g.set_input(late, 0, early.outputs[0])  # ids no longer follow the order
    g.set_outputs([late.outputs[0]], ["y"])
    first = g.order()
    assert [n.op for n in first] == ["Data", "Neg", "Relu", "NetOutput"]
    first.clear()
    assert [n.id for n in g.order()] == _asked_anew(g), "the caller's list is its own"
    g.set_input(late, 0, x)
    assert [n.id for n in g.order()] == _asked_anew(g)
    g.set_input(early, 0, late.outputs[0])
    g.set_input(late, 0, x)
    g.set_input(g.net_output, 0, early.outputs[0])
    assert [n.id for n in g.order()] == _asked_anew(g)
    g.set_input(late, 0, x)
    other = g.replace_chain([late], "Abs", [x])
    assert other in g.order() and late not in g.order() and [n.id for n in g.order()] == _asked_anew(g)


def test_nodes_that_change_places_are_not_taken_for_each_other() -> None:
    g = Graph("g")
    x = g.add_input("x", F)
    late, early = g.add("Relu", [x], [F]), g.add("Neg", [x], [F])
    one, other = g.add("Sin", [x], [F]), g.add("Cos", [x], [F])
    g.set_input(late, 0, early.outputs[0])
    g.set_outputs([late.outputs[0]], ["y"])
    assert g.order().index(one) < g.order().index(other)
    g.renumber([g.producer(x), late, early, other, one, g.net_output])  # the edges look as they did before
    assert g.order().index(other) < g.order().index(one) and [n.id for n in g.order()] == _asked_anew(g)
