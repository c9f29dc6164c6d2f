"""Everything that is wrong is said at once, with node names, and nothing that merely follows from it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from atc_py import Session, compile_model, frontend
from atc_py.emit import om_bytes
from atc_py.frontend.codes import CODES
from tests.frontend.models import model, problems, read


def test_unknown_operators_are_all_named_once() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.acme": 3]>
    g (float[3] x, bool c) => (float[3] y) {
      a = com.acme.Fancy(x)
      b = com.acme.Fancy(a)
      d = ReLU(b)
      y = If(c) <then_branch = t () => (float[3] p) { p = grid_sampler(d) },
              else_branch = e () => (float[3] q) { q = Gelu(d) }>
    }"""
    found = problems(onnx.parser.parse_model(text))
    assert [p.code for p in found] == ["E16002"] * 3
    assert "'com.acme::Fancy' (opset 3 of 'com.acme')" in found[0].place and "'Fancy_0', 'Fancy_1'" in found[0].cause
    assert "Relu" in found[1].hint
    assert "grid_sampler" in found[2].place and "GridSample" in found[2].hint


def test_unknown_operators_in_functions() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[3] x) => (float[3] y) { y = own.f(x) }
    <domain: "own", opset_import: ["": 21, "other": 2]> f (v) => (r) { a = other.Odd(v) r = Relu(a) }"""
    [p] = problems(onnx.parser.parse_model(text))
    assert p.code == "E16002" and "opset 2 of 'other'" in p.place and "'f_0/Odd_0'" in p.cause


def test_operator_of_a_later_opset() -> None:
    [p] = problems(model("g (float[3] x) => (float[3] y) { y = Gelu(x) }", opset=17))
    assert p.code == "E16002" and "since opset 20" in p.cause and "17" in p.cause


def test_mistakes_do_not_cascade() -> None:
    found = problems(
        """g (float[2, 3] x, float[4, 5] w) => (float[2, 5] y, float[3] z) {
        a = MatMul(x, w) b = Relu(a) c = Add(b, b) y = Neg(c)
        k = Gather<axis = 7>(x, i) z = Exp(k)
        i = Constant<value_int = 0>() }"""
    )
    assert [(p.code, p.place) for p in found] == [
        ("E16113", "node 'MatMul_0' (MatMul)"),
        ("E16113", "node 'Gather_4' (Gather)"),
    ]


def test_mistakes_in_bodies_name_the_path_and_do_not_cascade() -> None:
    [p] = problems(
        """g (float[2, 3] x, bool c) => (float[2, 3] y) {
        r = If(c) <then_branch = t () => (float[2, 3] p) { p = Transpose<perm = [0, 5]>(x) },
                   else_branch = e () => (float[2, 3] q) { q = Relu(x) }>
        y = Neg(r) }"""
    )
    assert p.place == "node 'If_0/then_branch/Transpose_0' (Transpose)"


def test_attributes() -> None:
    found = problems(
        """g (float[2, 3] x) => (float[2, 3] a, float[2, 3] b, float[2, 3] c, float[2, 3] d) {
        a = Softmax<axis: float = 1.5>(x)
        b = Softmax<axes = 1>(x)
        c = Concat(x, x)
        d = Cast<to = 99>(x) }"""
    )
    assert [(p.code, p.place) for p in found] == [
        ("E16112", "node 'Softmax_0' (Softmax)"),
        ("E16112", "node 'Softmax_1' (Softmax)"),
        ("E16112", "node 'Concat_2' (Concat)"),
        ("E16112", "node 'Cast_3' (Cast)"),
    ]
    assert "must be an int" in found[0].cause and "'axis'" in found[1].hint and "'axis' is missing" in found[2].cause


def test_attribute_types_left_out_by_old_exporters() -> None:
    proto = model("g (float[2, 3] x) => (float[2, 3] y) { y = Softmax<axis = 1>(x) }")
    proto.graph.node[0].attribute[0].ClearField("type")
    read(proto)


def test_attribute_given_twice_or_a_stray_graph() -> None:
    proto = model("g (float[2, 3] x) => (float[2, 3] y) { y = Softmax<axis = 1>(x) }")
    proto.graph.node[0].attribute.append(proto.graph.node[0].attribute[0])
    assert "given twice" in problems(proto)[0].cause
    del proto.graph.node[0].attribute[1]
    proto.graph.node[0].attribute[0].CopyFrom(onnx.helper.make_attribute("axis", proto.graph))
    assert problems(proto)[0].code == "E16112"


def test_element_types() -> None:
    found = problems(
        """g (float[3] x, double[3] d, string[3] s) => (float[3] a, float[3] b, float[3] c) {
        a = Add(x, d)
        b = Gather(x, x)
        c = Relu(s) }"""
    )
    assert [p.cause for p in found] == [
        "inputs 0 (A) and 1 (B) must have one type, but are float32 and float64",
        "input 1 (indices) must be int32 or int64, but is float32",
        "input 0 (X) must be bfloat16, float16, float32, float64, int16, int32, int64 or int8, but is string",
    ]


def test_arity() -> None:
    [p, q] = problems("g (float[3] x) => (float[3] y, float[3] z) { y = Relu(x, x) z = Add(x) }")
    assert "takes 1 inputs, but has 2" in p.cause and "takes 2 inputs, but has 1" in q.cause


def test_different_kinds_of_mistakes_come_together() -> None:
    found = problems(
        "g (float[2, 3] x) => (float[2, 3] y, float[2] z) { y = Mystery(x) z = Add(gone, x) }",
        input_shapes={"no": [1]},
        out_nodes=["y", "z", "w"],
    )
    assert {p.code for p in found} == {"E16002", "E16109", "E10002", "E10016"}


def test_codes_have_explanations() -> None:
    for code, (meaning, explanation) in CODES.items():
        assert re.fullmatch(r"[EW]\d{5}", code) and meaning and len(explanation) > 20


@pytest.mark.parametrize(
    ("node", "since"),
    [("Min(x, w)", 12), ("Max(x, w)", 12), ("Clip(x, lo)", 12), ("Pow(x, w)", 12), ("Relu(x)", 14)],
)
def test_types_that_only_a_later_version_allows_are_warned_of(node: str, since: int) -> None:
    proto = model(f"g (int64[3] x, int64[3] w, int64 lo) => (int64[3] y) {{ y = {node} z = {node} }}", opset=11)
    found = frontend.import_model(proto)
    op = node.split("(")[0]
    [w] = [w for w in found.warnings if w.code == "W16205"]
    assert w.place == f"node '{op}_0' ({op})" and f"as {op}-{since} does" in w.cause
    feeds = {"x": np.array([-3, 4, 1]), "w": np.array([2, 2, 2]), "lo": np.array(0)}
    newer = model(f"g (int64[3] x, int64[3] w, int64 lo) => (int64[3] y) {{ y = {node} }}", opset=since)
    [want] = ReferenceEvaluator(newer).run(None, feeds)
    assert isinstance(want, np.ndarray)
    np.testing.assert_array_equal(Session(om_bytes(compile_model(proto))).run(None, feeds)[0], want)


def test_a_type_that_no_version_allows_is_an_error() -> None:
    [p] = problems(model("g (string[3] x, string[3] w) => (string[3] y) { y = Min(x, w) }", opset=11))
    assert p.code == "E16113" and "is string" in p.cause
