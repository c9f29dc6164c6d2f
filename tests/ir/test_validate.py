"""Each law of `validate` is broken once, and only that law complains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.constants import Blob, Derived, DimVec, Splat, blob
from atc_py.ir.dims import symbol
from atc_py.ir.graph import ABSENT, Graph, Node, Range, Value
from atc_py.ir.types import DType, Format, Tensor
from atc_py.ir.validate import GROUND, LAWS, STAGES, validate
from tests.ir.graphs import Plan, X, build, plans

F = Tensor(DType.FLOAT32, (2, 3, 4, 4), Format.NCHW)


def sample() -> Graph:
    """x, w → Add → If(c){Relu}{Neg} → Split"""
    g = Graph("g", {"N": Range(1)})
    x, c = g.add_input("x", F), g.add_input("c", Tensor(DType.BOOL, ()))
    w = g.add_const(blob(np.zeros(F.dims, np.float32)), "w")
    add = g.add("Add", [x, w], [F], {"k": (1, (2.0, "s"))}, name="sum", origin=("a",))
    bodies = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        body = Graph(name, g.symbols)
        inner = body.add_input("i", F)
        body.set_outputs(body.add(op, [inner], [F], origin=("b",)).outputs, ["o"])
        bodies[name] = body
    branch = g.add("If", [c, add.outputs[0]], [F], subgraphs=bodies, captures=1, origin=("c",))
    split = g.add("Split", branch.outputs, [F, F], origin=("d",))
    g.set_outputs([split.outputs[0], x], ["y", "z"])
    return g


def node(g: Graph, op: str) -> Node:
    return next(n for n in g.nodes.values() if n.op == op)


def out(g: Graph, op: str) -> Value:
    return g.values[node(g, op).outputs[0]]


def retype(g: Graph, op: str, **changes: Any) -> None:
    value = out(g, op)
    value.type = replace(value.tensor, **changes)


def constant(g: Graph, const: Any) -> None:
    target = node(g, "Const")
    target.const = const
    g.values[target.outputs[0]].type = Tensor(const.dtype, const.shape)


def loop(g: Graph, inputs: int, outputs: int) -> None:
    body = Graph("body", g.symbols)
    values = [body.add_input(f"i{i}", F) for i in range(inputs)]
    body.set_outputs((values * 9)[:outputs], ["o"] * outputs)
    x = g.inputs[0]
    made = g.add("Loop", [ABSENT, ABSENT, x, x], [F, F], subgraphs={"body": body}, captures=1, origin=("l",))
    assert made.captures == 1


def end_elsewhere(g: Graph) -> None:
    end = g.net_output
    end.op, end.origin = "Relu", ("x",)


def without_captures(g: Graph) -> None:
    branch = node(g, "If")
    branch.captures = 0
    g.set_inputs(branch, branch.inputs[:1])


def attribute(value: Any) -> Callable[[Graph], Any]:
    return lambda g: node(g, "Add").attrs.update(k=value)


FLOAT = DType.FLOAT32
BREAKS: dict[str, list[Callable[[Graph], Any]]] = {
    "EI001": [
        lambda g: g.nodes.update({99: g.nodes.pop(node(g, "Add").id)}),
        lambda g: setattr(out(g, "Add"), "id", 99),
        lambda g: setattr(g, "_next_node", 2),
        lambda g: setattr(g, "_next_value", 2),
    ],
    "EI002": [
        lambda g: setattr(out(g, "Add"), "producer", 0),
        lambda g: setattr(out(g, "Split"), "index", 1),
        lambda g: node(g, "Split").outputs.append(99),
        lambda g: node(g, "Split").outputs.pop(),
        lambda g: node(g, "Split").outputs.append(node(g, "Add").outputs[0]),
    ],
    "EI003": [
        lambda g: out(g, "Add").uses.clear(),
        lambda g: out(g, "Split").uses.update({(0, 0): None}),
        lambda g: node(g, "Add").inputs.append(0),
        lambda g: node(g, "Add").inputs.append(99),
    ],
    "EI004": [
        lambda g: g.inputs.append(node(g, "Add").outputs[0]),
        lambda g: g.inputs.append(99),
        lambda g: setattr(g, "_net_output", None),
    ],
    "EI005": [lambda g: g.set_input(node(g, "Add"), 0, node(g, "Split").outputs[0])],
    "EI006": [
        lambda g: g.inputs.reverse(),
        lambda g: g.inputs.append(g.inputs[0]),
        lambda g: g.inputs.pop(),
        lambda g: node(g, "Data").attrs.clear(),
        lambda g: g.set_inputs(node(g, "Data"), [node(g, "Const").outputs[0]]),
    ],
    "EI007": [
        lambda g: g.add("NetOutput", [], []),
        lambda g: g.output_names.pop(),
        lambda g: g.set_input(g.net_output, 0, ABSENT),
        end_elsewhere,
    ],
    "EI008": [
        lambda g: setattr(node(g, "Const"), "const", None),
        lambda g: setattr(node(g, "Add"), "const", node(g, "Const").const),
        lambda g: retype(g, "Const", dtype=DType.INT32),
        lambda g: retype(g, "Const", shape=(96,)),
        lambda g: retype(g, "Const", shape=None),
    ],
    "EI009": [
        lambda g: constant(g, Blob(FLOAT, (5,), memoryview(bytes(19)))),
        lambda g: constant(g, Blob(DType.INT4, (5,), memoryview(bytes(5)))),
        lambda g: constant(g, Blob(DType.STRING, (2,), memoryview(b"\1\0\0\0a\2\0\0\0b"))),
        lambda g: constant(g, DimVec(DType.INT64, (3,), (symbol("N"), 2))),
        lambda g: constant(g, DimVec(FLOAT, (1,), (symbol("N"),))),
        lambda g: constant(g, Splat(FLOAT, (2,), "x")),
        lambda g: constant(g, Splat(DType.STRING, (2,), 1.0)),
        lambda g: constant(g, Splat(FLOAT, (2,), np.zeros(2))),
        lambda g: constant(g, Derived(FLOAT, (2,), "Neg", (Blob(FLOAT, (2,), memoryview(b"")),))),
    ],
    "EI010": [
        lambda g: node(g, "If").subgraphs.pop("then_branch"),
        lambda g: node(g, "If").subgraphs["else_branch"].add_input("more", F),
        without_captures,
        lambda g: g.set_input(node(g, "If"), 1, ABSENT),
        lambda g: setattr(node(g, "Add"), "captures", 1),
        lambda g: loop(g, 3, 3),
        lambda g: loop(g, 4, 2),
        lambda g: g.add("Mine", [g.inputs[0]], [], subgraphs={"b": empty(g)}, captures=1, origin=("m",)),
    ],
    "EI011": [
        lambda g: retype(g, "Add", shape=(symbol("K"), 3, 4, 4)),
        lambda g: node(g, "Add").attrs.update(k=symbol("K")),
        lambda g: node(g, "Add").attrs.update(k=(1, Tensor(FLOAT, (symbol("K"),)))),
        lambda g: constant(g, DimVec(DType.INT64, (1,), (symbol("K"),))),
    ],
    "EI012": [lambda g: setattr(node(g, "If").subgraphs["then_branch"], "symbols", {})],
    "EI013": [*map(attribute, [[1], (1, [2]), np.int64(1), np.zeros(1), {}])],
    "EI014": [
        lambda g: retype(g, "Add", shape=(-1, 3, 4, 4)),
        lambda g: retype(g, "Add", shape=(2.0, 3, 4, 4)),
        lambda g: setattr(out(g, "Split"), "type", None),
        lambda g: retype(g, "Add", shape=(2, 3), storage=Format.NC1HWC0),
        lambda g: retype(g, "Add", shape=(3,), storage=Format.FRACTAL_NZ),
    ],
    "EI015": [lambda g: retype(g, "Add", dtype=DType.FLOAT16), lambda g: retype(g, "If", dtype=DType.FLOAT16)],
}  # fmt: skip


def empty(g: Graph) -> Graph:
    body = Graph("b", g.symbols)
    body.set_outputs([], [])
    return body


def codes(graph: Graph, stage: str | None = None) -> set[str]:
    try:
        validate(graph, stage)
    except AtcError as problem:
        return {p.code for p in problem.problems}
    return set()


def test_a_sound_graph_passes() -> None:
    for stage in (None, "import", "optimize"):
        validate(sample(), stage)


def test_every_law_has_a_test() -> None:
    assert set(BREAKS) == {law.code for law in GROUND + LAWS}
    assert len({law.text for law in GROUND + LAWS}) == len(BREAKS)


@pytest.mark.parametrize(("code", "number"), [(c, i) for c, breaks in BREAKS.items() for i in range(len(breaks))])
def test_a_broken_law_is_found(code: str, number: int) -> None:
    graph = sample()
    BREAKS[code][number](graph)
    assert codes(graph) == {code}


def test_all_violations_come_at_once_with_their_places() -> None:
    graph = sample()
    BREAKS["EI011"][0](graph)
    BREAKS["EI013"][0](graph)
    node(graph, "If").subgraphs["else_branch"].nodes[1].attrs["l"] = [1]
    with pytest.raises(AtcError) as caught:
        validate(graph)
    text = str(caught.value)
    assert text.count("EI013") == 2 and "EI011 graph 'g' #3 Add 'sum': it speaks of the symbol 'K'" in text
    assert "#4.else_branch #1 Neg: attribute 'l' is or holds a list" in text
    assert "law: symbols in use are declared" in text


def test_stages_add_laws() -> None:
    graph = sample()
    assert codes(graph, "lower") == {"EI023"}
    for inner in graph.walk():
        for n in inner.nodes.values():
            n.engine = "aicore"
    assert codes(graph, "lower") == set() and codes(graph, "optimize") == {"EI022"}
    node(graph, "Add").origin = ()
    assert codes(graph, "lower") == {"EI021"} and codes(graph) == set()
    retype(graph, "Add", storage=Format.NC1HWC0)
    assert "EI022" in codes(graph, "import") and set(STAGES) == {"import", "optimize", "lower"}


def test_nodes_inside_a_fused_task_need_no_engine() -> None:
    g, body = Graph("g"), Graph("body")
    body.symbols = g.symbols
    x, i = g.add_input("x", F), body.add_input("i", F)
    body.set_outputs(body.add("Relu", [i], [F], origin=("r",)).outputs, ["o"])
    fused = g.add("Fused", [x], [F], subgraphs={"body": body}, origin=("r",))
    g.set_outputs(fused.outputs, ["y"])
    assert codes(g, "lower") == {"EI023"} and codes(g, "optimize") == {"EI022"}
    fused.engine = "aicore"
    assert codes(g, "lower") == set()


def test_a_constant_may_lie_as_its_storage_format_does() -> None:
    graph = sample()
    constant(graph, blob(np.zeros((2, 3, 4, 4), np.float16)))
    stored = Tensor(DType.FLOAT16, (2, 3, 4, 4), Format.NCHW, Format.FRACTAL_Z)
    out(graph, "Const").type = stored
    assert codes(graph) == set()
    node(graph, "Const").const = blob(np.zeros(stored.storage_shape, np.float16))
    assert codes(graph) == set()


def test_a_graph_in_two_places_is_found() -> None:
    graph = sample()
    bodies = node(graph, "If").subgraphs
    bodies["else_branch"] = bodies["then_branch"]
    assert codes(graph) == {"EI000"}


@given(plans(), st.integers(0, 99))
def test_random_graphs_are_sound(plan: Plan, seed: int) -> None:
    validate(build(plan, seed), "import")


def test_symbols_may_stand_in_any_type() -> None:
    graph = sample()
    out(graph, "Split").type = X
    assert codes(graph) == set()
