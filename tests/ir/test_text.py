"""The text form gives back exactly what was printed, and refuses everything else with a place."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.attr_text import attrs_key, keyed_attrs
from atc_py.ir.constants import Blob, Derived, Splat
from atc_py.ir.graph import Graph, Range
from atc_py.ir.text import (
    BlobTable,
    GraphPrinter,
    parse_attrs,
    parse_const,
    parse_graph,
    parse_type,
    print_attrs,
    print_const,
    print_graph,
    print_type,
)
from atc_py.ir.types import DType, Tensor
from tests.ir.graphs import Plan, Step, X, build, constant, decorated, odd_attrs, plans


def exact(a: Any, b: Any) -> bool:
    """Equal in value and in Python type, bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(exact, a, b))
    if hasattr(a, "digest"):
        same = (a.dtype, a.shape, a.digest) == (b.dtype, b.shape, b.digest)
        return same and (not isinstance(a, Derived) or exact(dict(a.attrs), dict(b.attrs)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(exact(a[k], b[k]) for k in a)
    return bool(a == b)


def assert_same(a: Graph, b: Graph) -> None:
    assert (a.name, a.doc, a.inputs, a.output_names) == (b.name, b.doc, b.inputs, b.output_names)
    assert list(a.symbols.items()) == list(b.symbols.items())
    assert (a._next_node, a._next_value, a._net_output) == (b._next_node, b._next_value, b._net_output)
    assert a.nodes.keys() == b.nodes.keys() and a.values.keys() == b.values.keys()
    for key, n in a.nodes.items():
        m = b.nodes[key]
        for field in ("id", "op", "inputs", "outputs", "name", "origin", "captures", "engine", "precision", "stream"):
            assert getattr(n, field) == getattr(m, field), field
        assert (n.priority, n.notes, list(n.subgraphs)) == (m.priority, m.notes, list(m.subgraphs))
        assert exact(n.attrs, m.attrs) and exact(n.const, m.const)
        for name, inner in n.subgraphs.items():
            assert (inner.symbols is a.symbols) == (m.subgraphs[name].symbols is b.symbols)
            assert_same(inner, m.subgraphs[name])
    for key, v in a.values.items():
        w = b.values[key]
        assert (v.id, v.type, v.name, v.producer, v.index) == (w.id, w.type, w.name, w.producer, w.index)
        assert set(v.uses) == set(w.uses)


def round_trip(graph: Graph) -> None:
    table = BlobTable()
    text = print_graph(graph, table)
    again = parse_graph(text, table.views)
    assert_same(graph, again)
    assert print_graph(again, BlobTable()) == text


def test_everything_that_a_graph_carries_comes_back() -> None:
    round_trip(decorated())


@given(plans(), st.integers(0, 9))
def test_random_graphs_come_back(plan: Plan, seed: int) -> None:
    round_trip(build(plan, seed))


def test_rewritten_graphs_come_back() -> None:
    graph = build(
        Plan(2, (Step("Relu", ((-1, 0),)), Step("Neg", ((0, 0),)), Step("Add", ((1, 0), (-2, 0)))), ((2, 0),))
    )
    relu, neg = (n for n in graph.nodes.values() if n.op in ("Relu", "Neg"))
    graph.replace_chain([relu, neg], "Softplus", relu.inputs)
    graph.inputs.reverse()
    round_trip(graph)


def test_a_graph_with_a_cycle_can_be_printed_and_read() -> None:
    graph = build(Plan(1, (Step("Relu", ((-1, 0),)), Step("Neg", ((0, 0),))), ((1, 0),)))
    relu, neg = (n for n in graph.nodes.values() if n.op in ("Relu", "Neg"))
    graph.set_input(relu, 0, neg.outputs[0])
    round_trip(graph)


def test_blobs_are_kept_once_and_by_reference() -> None:
    data = memoryview(bytes(400))
    graph = Graph("g")
    values = [graph.add_const(Blob(DType.FLOAT32, s, data)) for s in ((100,), (100,), (10, 10))]
    values.append(graph.add_const(Blob(DType.INT32, (100,), data)))
    graph.set_outputs(values, list("abcd"))
    table = BlobTable()
    again = parse_graph(print_graph(graph, table), table.views)
    assert len(table) == 3
    consts = [again.const(v) for v in again.outputs]
    assert consts[0] is consts[1]
    assert all(isinstance(c, Blob) and c.data.obj is data.obj for c in consts)


def test_without_a_table_the_text_is_only_for_reading() -> None:
    text = print_const(constant(0))
    assert text == "blob ?: float32[20]"
    with pytest.raises(AtcError, match="without a table"):
        parse_const(text)


def test_attributes_keep_their_types() -> None:
    table = BlobTable()
    text = print_attrs(odd_attrs(), table)
    assert "\n" not in text and text.encode()
    assert exact(parse_attrs(text, table.views), odd_attrs())


def test_lists_and_numpy_scalars_become_plain() -> None:
    given_ = {"a": [1, [2]], "b": np.int64(3), "c": np.float32(0.5), "d": np.bool_(True), "e": (np.int32(1),)}
    assert exact(parse_attrs(print_attrs(given_)), {"a": (1, (2,)), "b": 3, "c": 0.5, "d": True, "e": (1,)})


@pytest.mark.parametrize("value", [object(), {1}, {"a": 1}, np.zeros(2), 1j])
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(AtcError, match=r"attribute 'x'.*cannot be written"):
        print_attrs({"x": value})


@given(st.binary(min_size=8, max_size=8))
def test_every_double_comes_back(raw: bytes) -> None:
    (value,) = struct.unpack("d", raw)
    assert exact(parse_attrs(print_attrs({"x": value})), {"x": value})


NUMERIC = [d for d in DType if d is not DType.STRING and (d.bits >= 8 or d.is_int) and d is not DType.BOOL]


@given(st.sampled_from(NUMERIC), st.binary(min_size=16, max_size=16))
def test_every_splat_comes_back(dtype: DType, raw: bytes) -> None:
    value = np.frombuffer(raw[: dtype.itemsize], np.uint8 if dtype.bits < 8 else dtype.numpy)[0]
    if dtype.bits < 8:
        low = -(1 << dtype.bits - 1) if dtype.is_signed_int else 0
        value = np.asarray(int(value) % (1 << dtype.bits) + low).astype(dtype.numpy)[()]
    splat = Splat(dtype, (3,), value)
    again = parse_const(print_const(splat))
    assert isinstance(again, Splat) and type(again.value) is type(value)
    assert again.value.tobytes() == value.tobytes() and again.digest == splat.digest


def test_splats_read_well() -> None:
    assert print_const(Splat(DType.FLOAT32, (2,), np.float32(0.1))) == "splat 0.1: float32[2]"
    assert print_const(Splat(DType.BFLOAT16, (), ml_dtypes.bfloat16(1.5))) == "splat 1.5: bfloat16[]"
    assert print_const(Splat(DType.FLOAT16, (), np.float16(-math.inf))) == "splat -inf: float16[]"


@pytest.mark.parametrize(
    "text",
    ["float32[]", "float32[?]", "int64[N, 3, H//2]", "float16[1, 20, 5, 5] NCHW as NC1HWC0", "bool[min(N, 4), 2]",
     'uint4["a, b]", 3] as ND', "map<string, sequence<optional<float32[?]>>>", "sequence<int8[0]>"],
)  # fmt: skip
def test_types(text: str) -> None:
    assert print_type(parse_type(text)) == text


def test_statements_and_comments() -> None:
    text = """
    // a comment
    graph "g" {
      symbol N in [1, 8]
      #5 %7 "x": float32[N] = Data() {index = 0}

      // another
      #9 %8: float32[N] = Relu(%7)
      #11 NetOutput(%8) -> "y"
    }
    """
    graph = parse_graph(text)
    assert [n.name for n in graph.nodes.values()] == ["x", "", "NetOutput"]
    assert graph.inputs == [7] and graph.output_names == ["y"] and graph.add("Op", [], []).id == 12


WRONG = {
    "": "ends before",
    "graph g {": "one graph",
    'graph "g" {\n  #0 %0: float32[2] = Data()': "ends before",
    'graph "g" {\n}\nx': "line 3.*one graph",
    'graph "g" {\n  what\n}': "line 2, column 3: expected a node",
    'graph "g" {\n  #0 %0: float99[2] = Data()\n}': "line 2, column 10: 'float99' is no dtype",
    'graph "g" {\n  #0 %0: float32[2 = Data()\n}': "expected a type",
    'graph "g" {\n  #0 %0: float32[-2] = Data()\n}': "negative",
    'graph "g" {\n  #0 %0: float32[N/2] = Data()\n}': "unexpected character",
    'graph "g" {\n  #0 Relu(%3)\n}': "line 2.*%3 is read and never made",
    'graph "g" {\n  #0 A()\n  #0 B()\n}': "line 3.*#0 comes twice",
    'graph "g" {\n  #0 %0: int8[] = A()\n  #1 %0: int8[] = B()\n}': "%0 comes twice",
    'graph "g" {\n  #0 A() -> "x"\n}': "NetOutput",
    'graph "g" {\n  #0 A() {a = 1, a = 2}\n}': "'a' comes twice",
    'graph "g" {\n  #0 A() {a = what}\n}': "line 2, column 15: expected a value",
    'graph "g" {\n  #0 A() {a = "\\q"}\n}': "malformed escape",
    'graph "g" {\n  #0 A() stray\n}': "line 2, column 10",
    'graph "g" {\n  symbol N in [1, 2]\n  symbol N in [1, 2]\n}': "declared twice",
    'graph "g" {\n  b: graph "x" {\n  }\n}': "without its node",
    'graph "g" {\n  next #0 %0\n  #0 A()\n}': "next id",
    'graph "g" {\n  #0 %0: float32[2] = Const(blob 0)\n}': "blob 0 does not exist",
    'graph "g" {\n  #0 %0: float32[N] = Const(blob x"00")\n}': "only splats",
    'graph "g" {\n  #0 %0: float32[2] = Const(blob x"00")\n}': "1 bytes, but float32.2. takes 8",
    'graph "g" {\n  #0 %0: int8[2] = Const(splat 300)\n}': "no int8",
}


@pytest.mark.parametrize("text", list(WRONG))
def test_errors_name_the_place(text: str) -> None:
    with pytest.raises(AtcError, match=WRONG[text]) as caught:
        parse_graph(text)
    assert caught.value.code in ("EI101", "EI102")


@pytest.mark.parametrize(
    "text",
    ["{a = " + "[" * 500 + "]" * 500 + "}", "{a = " + "sequence<" * 500 + "int8[]}", "{a = " + "A(" * 500 + "}",
     "{a = " + "9" * 5000 + "}", "{a = dim[" + "(" * 5000 + "]}", "{a = float32[" + "1, " * 99 + "1]}"],
)  # fmt: skip
def test_limits(text: str) -> None:
    with pytest.raises(AtcError):
        parse_attrs(text)


def test_nested_graphs_have_a_limit() -> None:
    with pytest.raises(AtcError, match="nest more than"):
        parse_graph('graph "g" {\n' + '#0 A()\nb: graph "g" {\n' * 100)
    inner = graph = Graph("g")
    for _ in range(100):
        inner.add("A", [], [], subgraphs={"b": Graph("b")})
        inner = inner.nodes[0].subgraphs["b"]
    with pytest.raises(AtcError, match="nest more than"):
        print_graph(graph)


def test_recipes_that_share_their_parts_do_not_explode() -> None:
    recipe: Any = constant(0)
    for _ in range(40):
        recipe = Derived(DType.FLOAT32, (20,), "Add", (recipe, recipe))
    with pytest.raises(AtcError, match="recipe"):
        print_const(recipe, BlobTable())


TABLE = BlobTable()
SAMPLE = print_graph(decorated(), TABLE)


@given(st.integers(0, len(SAMPLE)), st.integers(0, 12), st.text(alphabet='"\\{}[]()%#=,: 0N\n-é', max_size=4))
def test_damaged_text_is_read_or_refused(at: int, length: int, put: str) -> None:
    text = SAMPLE[:at] + put + SAMPLE[at + length :]
    try:
        parse_graph(text, TABLE.views)
    except AtcError as problem:
        assert "line" in str(problem)


def test_equal_texts_share_their_types() -> None:
    a, b = parse_type("float32[N, 3]"), parse_type("float32[N, 3]")
    assert a is b and isinstance(a, Tensor)
    first, second = parse_attrs("{a = 1}"), parse_attrs("{a = 1}")
    first["a"] = 2
    assert second == {"a": 1}


@pytest.mark.slow
def test_reading_is_linear_and_quick() -> None:
    graph = Graph("chain", {"N": Range(1)})
    value = graph.add_input("x", X)
    for i in range(4000):
        value = graph.add("Relu", [value], [X], {"k": i}, name=f"relu {i}", origin=(f"relu {i}",)).outputs[0]
    graph.set_outputs([value], ["y"])
    text = print_graph(graph)
    start = time.process_time()
    parse_graph(text)
    assert time.process_time() - start < 1.0  # about 0.06 s on one core of 2024


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": (1, 2)}, {"a": (1, 2.0)}),
        ({"a": (1, 0)}, {"a": (True, False)}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": "float16"}, {"a": DType.FLOAT16}),
    ],
)
def test_attributes_that_python_takes_for_equal_have_texts_of_their_own(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    for attrs in (one, other, one):
        read = parse_attrs(print_attrs(attrs))
        assert [(k, repr(v), type(v)) for k, v in read.items()] == [(k, repr(v), type(v)) for k, v in attrs.items()]
    keys = [attrs_key(attrs) for attrs in (one, other)]
    assert keys[0] is None or keys[0] != keys[1]


def test_attributes_come_back_from_their_key() -> None:
    attrs = {"pads": (1, 1), "mode": "same", "eps": 1e-5, "to": DType.FLOAT16, "k": None, "b": True, "raw": b"x"}
    key = attrs_key(attrs)
    assert key is not None and keyed_attrs(key) == attrs and list(keyed_attrs(key)) == list(attrs)
    for value in (0.0, [1], (), (1.5,), np.float32(1), Splat(DType.FLOAT32, (2,), np.float32(1))):
        assert attrs_key({"v": value}) is None


@given(plans(), plans())
def test_a_printer_prints_each_graph_as_if_it_were_the_first(one: Plan, other: Plan) -> None:
    together, alone = GraphPrinter(BlobTable()), BlobTable()
    for graph in (build(one), build(other), build(one)):
        assert together.text(graph) == print_graph(graph, alone)
