"""Canonical order: names, file order, capture order and the names of run-time symbols change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import ABSENT, Graph, Range
from atc_py.ir.order import canonicalize, structural_order
from atc_py.ir.text import BlobTable, print_graph
from atc_py.ir.types import DType, Tensor
from atc_py.ir.validate import validate
from tests.ir.graphs import Plan, Step, X, build, decorated, forget_names, plans
from tests.ir.structure import structural_hash

SEEDS = st.integers(0, 10**6)


def canonical(graph: Graph) -> str:
    """The text of the graph in canonical order, without names."""
    canonicalize(graph)
    validate(graph, "import")
    table = BlobTable()
    text = print_graph(forget_names(graph), table)
    return text + "".join(bytes(view).hex() for view in table.views)


@given(plans(), SEEDS, SEEDS)
def test_names_and_file_order_change_nothing(plan: Plan, one: int, other: int) -> None:
    assert canonical(build(plan, one)) == canonical(build(plan, other))


@given(plans(), SEEDS, SEEDS)
def test_the_hash_knows_structure_only(plan: Plan, one: int, other: int) -> None:
    a, b = build(plan, one), build(plan, other)
    before = structural_hash(a)
    canonicalize(b)
    if not any(step.op == "If" for step in plan.steps):
        assert before == structural_hash(b)
    canonicalize(a)
    assert structural_hash(a) == structural_hash(b)


@given(plans(), SEEDS)
def test_it_is_idempotent(plan: Plan, seed: int) -> None:
    graph = build(plan, seed)
    canonicalize(graph)
    once = print_graph(graph, BlobTable())
    canonicalize(graph)
    assert print_graph(graph, BlobTable()) == once


@given(plans(), SEEDS)
def test_ids_follow_the_order(plan: Plan, seed: int) -> None:
    graph = build(plan, seed)
    canonicalize(graph)
    for inner in graph.walk():
        assert [n.id for n in inner.order()] == list(inner.nodes) == list(range(len(inner.nodes)))
        assert [n.id for n in structural_order(inner)] == list(inner.nodes)
        assert list(inner.values) == list(range(len(inner.values)))
        data = [inner.producer(v).id for v in inner.inputs]
        assert data == list(range(len(data)))


@given(plans(), SEEDS)
def test_hashing_changes_nothing(plan: Plan, seed: int) -> None:
    graph = build(plan, seed)
    before = print_graph(graph, BlobTable())
    structural_hash(graph)
    assert print_graph(graph, BlobTable()) == before


def diamond(op: str = "Add", swap: bool = False, axis: int = 0) -> Graph:
    refs = ((0, 0), (1, 0))
    steps = (Step("Relu", ((-1, 0),)), Step("Neg", ((-1, 0),)), Step(op, refs[::-1] if swap else refs, 1, axis))
    return build(Plan(1, steps, ((2, 0),)))


def test_the_hash_tells_different_graphs_apart() -> None:
    twins = Plan(1, (Step("Relu", ((-1, 0),)), Step("Relu", ((-1, 0),)), Step("Add", ((0, 0), (1, 0)))), ((2, 0),))
    shared = Plan(1, (Step("Relu", ((-1, 0),)), Step("Add", ((0, 0), (0, 0)))), ((1, 0),))
    two = Plan(2, shared.steps, shared.outputs)
    graphs = [diamond(), diamond("Sub"), diamond(swap=True), diamond(axis=1), build(twins), build(shared), build(two)]
    for k in range(3):
        graphs.append(build(Plan(1, (Step("Const", (), 1, k),), ((0, 0),))))
    assert len({structural_hash(g) for g in graphs}) == len(graphs)


def test_the_hash_sees_types_engines_ranges_and_blob_content() -> None:
    base = diamond()
    seen = {structural_hash(base)}
    for change in ("type", "engine", "range"):
        graph = clone(base)
        relu = next(n for n in graph.nodes.values() if n.op == "Relu")
        if change == "type":
            graph.values[relu.outputs[0]].type = Tensor(DType.FLOAT16, X.shape)
        elif change == "engine":
            relu.engine = "aicpu"
        else:
            graph.symbols["N"] = Range(2)
        seen.add(structural_hash(graph))
    assert len(seen) == 4


def test_symmetrical_branches_are_told_apart_by_position_alone() -> None:
    steps = [Step("Relu", ((-1, 0),)) for _ in range(4)] + [Step("Sub", ((i, 0), (i + 1, 0))) for i in (0, 2)]
    plan = Plan(1, (*steps, Step("Sub", ((4, 0), (5, 0)))), ((6, 0),))
    assert len({canonical(build(plan, seed)) for seed in range(8)}) == 1


def test_constants_stand_before_their_first_reader() -> None:
    steps = (Step("Const"), Step("Relu", ((-1, 0),)), Step("Add", ((1, 0), (0, 0))), Step("Sub", ((2, 0), (0, 0))))
    graph = build(Plan(1, steps, ((3, 0),)))
    canonicalize(graph)
    assert [n.op for n in graph.nodes.values()] == ["Data", "Relu", "Const", "Add", "Sub", "NetOutput"]


def test_what_reaches_no_output_goes_and_inputs_stay() -> None:
    graph = build(Plan(3, (Step("Relu", ((-2, 0),)), Step("Neg", ((0, 0),))), ((0, 0),)))
    canonicalize(graph)
    assert [n.op for n in graph.nodes.values()] == ["Data", "Data", "Data", "Relu", "NetOutput"]
    assert graph.inputs == [0, 1, 2]


def test_absent_inputs_at_the_end_are_dropped() -> None:
    graph = Graph("g")
    x = graph.add_input("x", Tensor(DType.FLOAT32, (2,)))
    node = graph.add("Clip", [x, x, x], [graph.type(x)])
    graph.set_outputs(node.outputs, ["y"])
    graph.set_input(node, 2, ABSENT)
    graph.set_input(node, 1, ABSENT)
    canonicalize(graph)
    assert node.inputs == [0]


def test_captures_that_nobody_reads_are_dropped() -> None:
    graph = Graph("g")
    a, b, c = (graph.add_input(n, Tensor(DType.BOOL, ())) for n in "abc")
    bodies = {}
    for name in ("then_branch", "else_branch"):
        body = Graph(name, graph.symbols)
        inner = [body.add_input(n, graph.type(a)) for n in "ab"]
        body.set_outputs([inner[1]], ["o"])
        bodies[name] = body
    node = graph.add("If", [c, a, b], [graph.type(a)], subgraphs=bodies, captures=2, origin=("if",))
    graph.set_outputs(node.outputs, ["y"])
    canonicalize(graph)
    validate(graph, "import")
    assert node.captures == 1 and node.inputs == [c, b]
    assert [len(body.inputs) for body in node.subgraphs.values()] == [1, 1]


def test_run_time_symbols_are_named_after_their_node() -> None:
    graph = Graph("g", {"N": Range(1), "unused": Range(), "gone": Range(runtime=True)})
    x = graph.add_input("x", X)
    graph.fresh_symbol("Unique7.count")
    names = [graph.fresh_symbol("Unique7.count"), graph.fresh_symbol("other.len")]
    first = graph.add("com.acme::Unique", [x], [Tensor(DType.INT64, (names[0] * names[1], names[1], names[0]))])
    last = graph.add("Relu", first.outputs, [Tensor(DType.INT64, (names[0] + symbol("N"),))], {"dims": (names[1],)})
    graph.set_outputs(last.outputs, ["y"])
    canonicalize(graph)
    assert list(graph.symbols) == ["N", "Unique1.len", "Unique1.count", "unused"]
    count, length = symbol("Unique1.count"), symbol("Unique1.len")
    assert graph.tensor(1).shape == (count * length, length, count)
    assert graph.tensor(2).shape == (count + symbol("N"),) and last.attrs == {"dims": (length,)}


def test_a_cycle_is_refused() -> None:
    graph = diamond()
    relu, add = (next(n for n in graph.nodes.values() if n.op == op) for op in ("Relu", "Add"))
    graph.set_input(relu, 0, add.outputs[0])
    with pytest.raises(ValueError, match="cycle"):
        canonicalize(graph)


def test_a_chain_of_ten_thousand_nodes() -> None:
    graph = Graph("deep")
    value = graph.add_input("x", Tensor(DType.FLOAT32, (4,)))
    for _ in range(10_000):
        value = graph.add("Relu", [value], [graph.type(value)]).outputs[0]
    graph.set_outputs([value], ["y"])
    structural_hash(graph)
    canonicalize(graph)
    assert graph.outputs == [10_000]


def test_graphs_with_everything_are_ordered() -> None:
    graph = decorated()
    canonicalize(graph)
    assert [n.id for n in graph.order()] == list(graph.nodes)
