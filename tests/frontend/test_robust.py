"""Damaged files give an AtcError or a graph, never another exception; large graphs take a few seconds."""

from __future__ import annotations

import contextlib
import time

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from atc_py import frontend
from atc_py.errors import AtcError
from atc_py.ir.validate import validate
from tests.frontend.models import model
from tests.frontend.test_scopes import BRANCHES, FUNCTIONS

SOURCES = [
    model(BRANCHES).SerializeToString(),
    onnx.parser.parse_model(FUNCTIONS).SerializeToString(),
    model(
        """g (float[N, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[N, 4, 6] y)
        <int64[3] s = {0, 4, -1}, float[4] b = {1, 2, 3, 4}> {
        a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w, b) c = Softmax<axis = 1>(a) d = Reshape(c, s)
        e, f = Split<axis = 2, num_outputs = 2>(d) g = Concat<axis = 2>(f, e) h = Shape(g)
        y = Slice(g, i, h) i = ConstantOfShape(j) j = Constant<value_ints = [3]>() }""",
        18,
    ).SerializeToString(),
    model(
        """g (float[2, 4] x, int64 n) => (float[2, 4] y, float[K, 2, 4] z) {
        y, z = Loop(n, , x) <body = b (int64 i, bool go, float[2, 4] v) => (bool go2, float[2, 4] w, float[2, 4] u) {
          go2 = Identity(go) k = Cast<to = 1>(i) w = Add(v, k) u = Gemm<transB = 1>(w, m) } >
        m = Constant<value: tensor = float[4, 4] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}>() }""",
        13,
    ).SerializeToString(),
]


OPERATORS = [
    "Add",
    "Gather",
    "LSTM",
    "Resize",
    "Einsum",
    "If",
    "Constant",
    "Loop",
    "Concat",
    "Range",
    "TopK",
    "Pad",
    "",
]


def survives(data: bytes) -> None:
    try:
        validate(frontend.read(data))
    except AtcError as problem:
        assert all(p.code and p.cause for p in problem.problems)
        assert all(p.code != "E19999" for p in problem.problems), problem


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(SOURCES),
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_changed_bytes(source: bytes, changes: list[tuple[float, int]]) -> None:
    data = bytearray(source)
    for where, byte in changes:
        data[int(where * len(data))] = byte
    survives(bytes(data))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SOURCES), st.floats(0, 0.999), st.floats(0, 0.999), st.binary(max_size=6))
def test_cut_and_pasted_bytes(source: bytes, begin: float, end: float, between: bytes) -> None:
    survives(source[: int(begin * len(source))] + between + source[int(end * len(source)) :])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with contextlib.suppress(AtcError):
        frontend.read(data)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SOURCES), st.data())
def test_changed_fields(source: bytes, data: st.DataObject) -> None:
    """Well-formed files with wrong contents: what hits the importer rather than protobuf."""
    proto = onnx.ModelProto.FromString(source)
    for _ in range(data.draw(st.integers(1, 3))):
        node = data.draw(st.sampled_from(list(proto.graph.node)))
        what = data.draw(st.sampled_from(["op", "input", "output", "attribute", "drop", "more", "dim"]))
        number = data.draw(st.sampled_from([-(2**63), -9, -1, 0, 1, 2, 7, 2**31, 2**62]))
        names = [n for m in proto.graph.node for n in (*m.input, *m.output)]
        if what == "op":
            node.op_type = data.draw(st.sampled_from(OPERATORS))
        elif what == "input" and node.input:
            node.input[data.draw(st.integers(0, len(node.input) - 1))] = data.draw(st.sampled_from([*names, "", "nil"]))
        elif what == "output" and node.output:
            node.output[0] = data.draw(st.sampled_from([*names, ""]))
        elif what == "attribute" and node.attribute:
            attribute = data.draw(st.sampled_from(list(node.attribute)))
            if attribute.ints:
                attribute.ints[0] = number
            elif attribute.HasField("i"):
                attribute.i = number
            else:
                attribute.name = data.draw(st.sampled_from(["axis", "body", "value"]))
        elif what == "drop" and node.attribute:
            del node.attribute[0]
        elif what == "more":
            node.input.append(data.draw(st.sampled_from(names)))
        else:
            shape = data.draw(st.sampled_from(list(proto.graph.input))).type.tensor_type.shape
            if shape.dim:
                shape.dim[0].dim_value = number
    survives(proto.SerializeToString())


@pytest.mark.slow
def test_ten_thousand_nodes() -> None:
    """One chain, deeper than Python's recursion limit: at most 150 µs a node here, and no recursion."""
    count = 10_000
    ops = ["Relu", "Sigmoid", "Neg"]
    nodes = [helper.make_node(ops[i % 3], [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    values = [helper.make_tensor_value_info(n, 1, ["N", 3]) for n in ("t0", f"t{count}")]
    graph = helper.make_graph(list(reversed(nodes)), "g", values[:1], values[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    begin = time.perf_counter()
    found = frontend.read(proto)
    took = time.perf_counter() - begin
    assert len(found.nodes) == count + 2
    assert took / count < 150e-6 * 3, f"{took / count * 1e6:.0f} µs a node"  # room for a busy machine


def test_long_shape_chain() -> None:
    """Values follow shape arithmetic without growing with its length."""
    lines = ["s0 = Shape(x)"] + [f"s{i + 1} = Add(s{i}, one)" for i in range(1000)] + ["y = Expand(x, s0)"]
    proto = model(
        "g (float[N, 3] x) => (int64[2] t) <int64[2] one = {1, 0}> { " + " ".join(lines[:-1]) + " t = Identity(s1000) }"
    )
    graph = frontend.read(proto)
    assert [n.op for n in graph.nodes.values()] == ["Data", "Const", "NetOutput"]
