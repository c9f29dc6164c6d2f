"""Names: order, single assignment, bodies and captures, functions, constants, outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from atc_py import frontend
from tests.frontend.interpreter import interpret
from tests.frontend.models import const, model, ops, problems, read, shape

X = np.array([[-1, 2, -3]], np.float32)


# -- order and single assignment -------------------------------------------------------------------------------


def test_unsorted_file() -> None:
    proto = model("g (float[N, 3] x) => (float[N, 3] y) { a = Relu(x) b = Neg(a) c = Exp(b) y = Add(c, a) }")
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        del other.graph.node[:]
        other.graph.node.extend(proto.graph.node[i] for i in order)
        assert ops(read(other)) == ["Relu", "Neg", "Exp", "Add"]


def test_unsorted_by_captures() -> None:
    """A node whose body reads an outer tensor comes after the tensor's producer."""
    graph = read(
        """g (float[N, 3] x, bool c) => (float[N, 3] y) {
        y = If(c) <then_branch = t () => (float[N, 3] p) { p = Neg(a) },
                   else_branch = e () => (float[N, 3] q) { q = Exp(a) }>
        a = Relu(x) }"""
    )
    assert ops(graph) == ["Relu", "If"]


def test_cycle_names_its_nodes() -> None:
    proto = model("g (float[3] x) => (float[3] y) { a = Add(x, c) b = Neg(a) c = Exp(b) y = Relu(x) }")
    [p] = problems(proto)
    assert p.code == "E16111" and "Add_0 → Neg_1 → Exp_2 → Add_0" in p.cause
    [p] = problems("g (float[3] x) => (float[3] y) { y = Add(x, y) }")
    assert p.code == "E16111"


def test_undefined_names_at_once_with_similar_ones() -> None:
    found = problems("g (float[3] image) => (float[3] y, float[3] z) { a = Relu(imag) y = Add(a, b) }")
    assert [(p.code, p.place) for p in found] == [
        ("E16109", "node 'Relu_0' (Relu)"),
        ("E16109", "node 'Add_1' (Add)"),
        ("E16109", "output 'z'"),
    ]
    assert "image" in found[0].hint


def test_undefined_in_a_body() -> None:
    [p] = problems(
        """g (float[3] x, bool c) => (float[3] y) {
        y = If(c) <then_branch = t () => (float[3] p) { p = Neg(nothing) },
                else_branch = e () => (float[3] q) { q = Exp(x) }>
        }"""
    )
    assert p.code == "E16109" and "'nothing'" in p.cause


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[3] a) { a = Relu(x) a = Neg(x) }",
        "g (float[3] x) => (float[3] x) { x = Relu(x) }",
        "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { w = Relu(x) y = Neg(w) }",
        "g (float[3] x, float[3] x) => (float[3] y) { y = Neg(x) }",
        "g (float[3] x) => (float[3] y, float[3] y) { y = Neg(x) }",
    ],
)
def test_defined_twice(text: str) -> None:
    assert "E16110" in [p.code for p in problems(text)]


def test_node_names_are_unique_and_origins_stay() -> None:
    proto = model("g (float[3] x) => (float[3] y) { a = Relu(x) b = Neg(a) y = Exp(b) }")
    for node, name in zip(proto.graph.node, ("same", "same", ""), strict=True):
        node.name = name
    graph = read(proto)
    nodes = [n for n in graph.nodes.values() if n.op in ("Relu", "Neg", "Exp")]
    assert [n.name for n in nodes] == ["same", "same_2", "Exp_2"]
    assert [n.origin for n in nodes] == [("same",), ("same_2",), ("Exp_2",)]


# -- inputs, outputs, initializers -----------------------------------------------------------------------------


def test_outputs_that_are_inputs_constants_or_equal() -> None:
    graph = read(
        """g (float[3] x) => (float[3] x, float[2] w, float[3] y, float[3] z) <float[2] w = {1, 2}>
        { y = Relu(x) z = Identity(y) }"""
    )
    assert graph.output_names == ["x", "w", "y", "z"]
    assert [graph.producer(v).op for v in graph.outputs] == ["Data", "Const", "Relu", "Identity"]


def test_initializer_that_is_an_input_is_a_constant_unless_a_shape_is_given() -> None:
    proto = model("g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }", ir=3)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    assert len(read(proto).inputs) == 1
    graph = read(proto, input_shapes={"w": [3]})
    assert [graph.producer(v).name for v in graph.inputs] == ["x", "w"]


def test_unused_initializers_and_dead_nodes_stay_out() -> None:
    proto = model("g (float[3] x) => (float[3] y) <float[2] w = {1, 2}> { y = Relu(x) z = Nonsense(w) }")
    found = frontend.import_model(proto)
    assert len(found.graph.nodes) == 3
    assert [w.code for w in found.warnings] == ["W16203"]


def test_absent_inputs_and_outputs() -> None:
    graph = read("g (float[3] x, float hi) => (float[3] y) { y = Clip(x, , hi) }")
    [clip] = [n for n in graph.nodes.values() if n.op == "Clip"]
    assert clip.inputs[1] == -1 and len(clip.inputs) == 3
    graph = read("g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) { y, i = MaxPool<kernel_shape = [3, 3]>(x) }")
    [pool] = [n for n in graph.nodes.values() if n.op == "MaxPool"]
    assert len(pool.outputs) == 1


def test_first_output_unused() -> None:
    graph = read("g (float[5] x, int64[1] k) => (int64[K] i) { , i = TopK(x, k) }")
    [top] = [n for n in graph.nodes.values() if n.op == "TopK"]
    assert len(top.outputs) == 2 and graph.outputs == [top.outputs[1]]


def test_out_nodes() -> None:
    proto = model("g (float[3] x) => (float[3] y) { a = Relu(x) b, c = Split<num_outputs = 2>(a) y = Missing(b) }")
    proto.graph.node[1].name = "cut:here"
    for asked in ("c", "cut:here:1"):
        graph = read(proto, out_nodes=[asked])
        assert graph.output_names == ["c"] and ops(graph) == ["Relu", "Split"]
    assert read(proto, out_nodes=["b", "Relu_0:0", "x"]).output_names == ["b", "a", "x"]
    [p, q] = problems(proto, out_nodes=["bb", "cut:here:2"])
    assert p.code == q.code == "E10016" and "b" in p.hint and "cut:here:0, cut:here:1" in q.hint


# -- constants -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "want"),
    [
        ("value_float = 2.5", np.float32(2.5)),
        ("value_floats = [2.5, 1.0]", np.array([2.5, 1], np.float32)),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [3, 4]", np.array([3, 4])),
        ('value_string = "ab"', np.array("ab", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
    ],
)
def test_constant_nodes(attribute: str, want: np.ndarray) -> None:
    proto = model(f"g () => (float y) {{ y = Constant<{attribute}>() }}")
    proto.graph.output[0].ClearField("type")
    got = const(graph := read(proto), graph.outputs[0])
    assert got.dtype == want.dtype and got.shape == want.shape and got.tolist() == want.tolist()


def test_sparse_constants() -> None:
    values = numpy_helper.from_array(np.array([5], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [3])
    proto = model("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    proto.graph.sparse_initializer.append(sparse)
    assert interpret(read(proto), [np.zeros(3, np.float32)])[0].tolist() == [0, 5, 0]
    node = helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    del proto.graph.sparse_initializer[:]
    proto.graph.node.insert(0, node)
    assert interpret(read(proto), [np.zeros(3, np.float32)])[0].tolist() == [0, 5, 0]


@pytest.mark.parametrize("attributes", ["", "<value_int = 1, value_float = 1.0>", "<other = 1>"])
def test_wrong_constants(attributes: str) -> None:
    [p] = problems(f"g () => (float y) {{ y = Constant{attributes}() }}")
    assert p.code == "E16112"


# -- bodies ----------------------------------------------------------------------------------------------------

BRANCHES = """g (float[N, 3] x, bool c, bool d) => (float[N, 3] y) <float w = {2.0}> {
  a = Relu(x)
  b = Neg(x)
  y = If(c) <
    then_branch = t () => (float[N, 3] p) { p = Mul(b, w) },
    else_branch = e () => (float[N, 3] q) {
      a2 = Exp(a)
      q = If(d) <then_branch = tt () => (float[N, 3] r) { r = Add(a2, b) },
              else_branch = ee () => (float[N, 3] s) { s = Sub(a, w) }>
    }>
}"""


def test_captures_are_explicit_and_nested_ones_pass_through() -> None:
    graph = read(BRANCHES)
    [node] = [n for n in graph.nodes.values() if n.op == "If"]
    # b, a and d are computed outside; the constant w is written into the bodies.
    assert node.captures == 3 and len(node.inputs) == 4
    assert all(len(body.inputs) == 3 for body in node.subgraphs.values())
    for c in (True, False):
        for d in (True, False):
            x = X.astype(np.float64)
            inner = np.exp(np.maximum(x, 0)) - x if d else np.maximum(x, 0) - 2
            [y] = interpret(graph, [X, np.array(c), np.array(d)])
            np.testing.assert_allclose(y, -x * 2 if c else inner, 1e-6)


def test_shadowed_names() -> None:
    """A body's own tensor hides the outer one of the same name, also where only the other branch reads that."""
    graph = read(
        """g (float[N, 3] x, bool c) => (float[N, 3] y) {
        a = Relu(x)
        y = If(c) <then_branch = t () => (float[N, 3] a) { b = Neg(x) a = Exp(b) },
                   else_branch = e () => (float[N, 3] q) { q = Abs(a) }> }"""
    )
    np.testing.assert_allclose(interpret(graph, [X, np.array(True)])[0], np.exp(-X), 1e-6)
    np.testing.assert_allclose(interpret(graph, [X, np.array(False)])[0], np.maximum(X, 0))


def test_body_initializers_and_outer_values_as_outputs() -> None:
    graph = read(
        """g (float[N, 3] x, bool c) => (float[N, 3] y) {
        a = Relu(x)
        y = If(c) <then_branch = t () => (float[N, 3] p) <float k = {3.0}> { p = Mul(a, k) },
                   else_branch = e () => (float[N, 3] a) { }> }"""
    )
    np.testing.assert_allclose(interpret(graph, [X, np.array(True)])[0], np.maximum(X, 0) * 3)
    np.testing.assert_allclose(interpret(graph, [X, np.array(False)])[0], np.maximum(X, 0))


def test_known_condition_takes_one_branch() -> None:
    """torch writes Squeeze as an If on the dim's size: with a fixed shape nothing of it is left."""
    body = """g (float[N, 1, 3] x) => (float[A, B] y) <int64[1] i = {1}, int64[1] one = {1}> {
      s = Shape(x) d = Gather(s, i) c = Equal(d, one)
      y = If(c) <then_branch = t () => (float[A, B] p) { p = Squeeze(x, i) },
              else_branch = e () => (float[A, 1, B] q) { q = Identity(x) }>
    }"""
    graph = read(body)
    assert ops(graph) == ["Squeeze"] and shape(graph, "y") == ["N", "3"]


def test_loop_captures_and_types() -> None:
    graph = read(
        """g (float[N, 3] x, int64 n) => (float[N, 3] y, float[n, N, 3] z) {
        a = Relu(x)
        y, z = Loop(n, , x) <body = b (int64 i, bool go, float[N, 3] v) => (bool go2, float[N, 3] w, float[N, 3] z0) {
          go2 = Identity(go) w = Add(v, a) z0 = Neg(w) }> }"""
    )
    y, z = interpret(graph, [X, np.array(2)])
    np.testing.assert_allclose(y, X + 2 * np.maximum(X, 0))
    np.testing.assert_allclose(z, -np.stack([X + np.maximum(X, 0), y]))


def test_loop_whose_rank_grows_is_imported_anew() -> None:
    """Softmax-11 depends on the rank; the rank of the first iteration must not be taken for all."""
    graph = read(
        model(
            """g (float[2] x, int64 n) => (float[...] y) {
        one = Constant<value_ints = [0]>()
        y = Loop(n, , x) <body = b (int64 i, bool go, float[...] v) => (bool go2, float[...] w) {
          go2 = Identity(go) s = Softmax<axis = 0>(v) w = Unsqueeze<axes = [0]>(s) }> }""".replace("[...]", ""),
            opset=12,
        )
    )
    [y] = interpret(graph, [np.array([1, 2], np.float32), np.array(3)])
    want = np.array([1, 2], np.float32)
    want = np.exp(want) / np.exp(want).sum()
    for _ in range(2):
        want = np.exp(want) / np.exp(want).sum()
    np.testing.assert_allclose(y, want.reshape(1, 1, 1, 2), 1e-5)


def test_known_captures_become_constants() -> None:
    graph = read(
        """g (float[N, 3] x, bool c) => (float[3, N] y) {
        s = Shape(x)
        r = Constant<value_ints = [1, 0]>()
        t = Gather(s, r)
        y = If(c) <then_branch = t1 () => (float[3, N] p) { p = Reshape(x, t) },
                else_branch = e () => (float[3, N] q) { q = Transpose(x) }>
        }"""
    )
    [node] = [n for n in graph.nodes.values() if n.op == "If"]
    assert ops(graph) == ["If"] and node.captures == 1


def test_deep_nesting_is_an_error() -> None:
    proto = model("g (float[3] x, bool c) => (float[3] y) { y = Relu(x) }")
    inner = onnx.GraphProto(name="t", node=proto.graph.node, output=proto.graph.output)
    proto.graph.node[0].CopyFrom(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))
    for _ in range(40):
        node = onnx.NodeProto()
        node.CopyFrom(proto.graph.node[0])
        proto.graph.node[0].attribute[0].g.node[0].CopyFrom(node)
    assert problems(proto)[0].code == "E16115"


# -- functions -------------------------------------------------------------------------------------------------

FUNCTIONS = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
g (float[N, 3] x) => (float[N, 3] y) {
  a = own.scaled <alpha = 3.0> (x)
  y = own.twice (a)
}
<domain: "own", opset_import: ["": 21]>
scaled <alpha: float, beta: float = 0.5> (v) => (r) {
  k = Constant <value_float: float = @alpha> ()
  l = Constant <value_float: float = @beta> ()
  m = Mul(v, k)
  r = Add(m, l)
}
<domain: "own", opset_import: ["": 12, "own": 1]>
twice (v) => (r) {
  s = own.scaled <alpha = 2.0, beta = 0.0> (v)
  t = Squeeze <axes = [0]> (s)
  r = Unsqueeze <axes = [0]> (t)
}"""


def test_functions_are_written_out() -> None:
    graph = read(onnx.parser.parse_model(FUNCTIONS))
    assert ops(graph) == ["Mul", "Add", "Mul", "Add", "Squeeze", "Unsqueeze"]
    np.testing.assert_allclose(interpret(graph, [X])[0], (X * 3 + 0.5) * 2)
    names = [n.name for n in graph.nodes.values() if n.op == "Mul"]
    assert names == ["scaled_0/Mul_2", "twice_1/scaled_0/Mul_2"]
    assert graph.values[graph.outputs[0]].name == "y"


def test_recursive_function() -> None:
    text = FUNCTIONS.replace("k = Constant <value_float: float = @alpha> ()", "k = own.twice(v)")
    [p] = problems(onnx.parser.parse_model(text))
    assert p.code == "E16115" and "twice" in p.cause


def test_exponential_functions_stop() -> None:
    """30 functions that call each other twice stand for 2³⁰ nodes."""
    bodies = "".join(
        f'<domain: "own", opset_import: ["": 21, "own": 1]> f{i} (v) => (r) {{ a = own.f{i + 1}(v) '
        f"r = own.f{i + 1}(a) }}"
        for i in range(40)
    )
    text = f"""<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[3] x) => (float[3] y) {{ y = own.f0(x) }} {bodies}
    <domain: "own", opset_import: ["": 21]> f40 (v) => (r) {{ r = Relu(v) }}"""
    assert problems(onnx.parser.parse_model(text))[0].code == "E16115"


def test_function_with_a_body_that_captures() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[N, 3] x, bool c) => (float[N, 3] y) { y = own.pick <alpha = 3.0> (x, c) }
    <domain: "own", opset_import: ["": 21]> pick <alpha> (v, c) => (r) {
      n = Neg(v)
      r = If(c) <then_branch = t () => (p) { k = Constant <value_float: float = @alpha> () p = Mul(n, k) },
                 else_branch = e () => (q) { q = Abs(v) }>
    }"""
    graph = read(onnx.parser.parse_model(text))
    np.testing.assert_allclose(interpret(graph, [X, np.array(True)])[0], -X * 3)
    np.testing.assert_allclose(interpret(graph, [X, np.array(False)])[0], abs(X))


def test_absent_argument_in_a_body() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[N, 3] x, bool c) => (float[N, 3] y) { y = own.bounded (c, x) }
    <domain: "own", opset_import: ["": 21]> bounded (c, v, low) => (r) {
      r = If(c) <then_branch = t () => (p) { p = Clip(v, low) }, else_branch = e () => (q) { q = Neg(v) }>
    }"""
    graph = read(onnx.parser.parse_model(text))
    np.testing.assert_allclose(interpret(graph, [X, np.array(True)])[0], X)


def test_function_overloads_and_precedence() -> None:
    """A local function hides the operator of its name."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }
    <opset_import: ["": 21]> Relu (v) => (r) { r = Neg(v) }"""
    assert ops(read(onnx.parser.parse_model(text))) == ["Neg"]
    proto = onnx.parser.parse_model(text)
    proto.functions[0].overload = "other"
    assert ops(read(proto)) == ["Relu"]
    proto.graph.node[0].overload = "other"
    assert ops(read(proto)) == ["Neg"]


def test_wrong_functions() -> None:
    proto = onnx.parser.parse_model(FUNCTIONS)
    proto.functions.append(proto.functions[0])
    assert "E16116" in [p.code for p in problems(proto)]
    [p] = problems(onnx.parser.parse_model(FUNCTIONS.replace("m = Mul(v, k)", "m = Mul(v, gone)")))
    assert p.code == "E16109" and "'gone'" in p.cause
    [p] = problems(onnx.parser.parse_model(FUNCTIONS.replace("y = own.twice (a)", "y = own.twice (a, a)")))
    assert "takes 1 inputs, but has 2" in p.cause


def test_operators_that_onnx_defines_by_others() -> None:
    """MeanVarianceNormalization has a fixed body, CenterCropPad one that depends on the types."""
    for text in (
        "g (float[2, 3, 4, 5] x) => (float[2, 3, 4, 5] y) { y = MeanVarianceNormalization(x) }",
        "g (float[10, 7] x) => (float[6, 9] y) <int64[2] s = {6, 9}> { y = CenterCropPad(x, s) }",
    ):
        from onnx.reference import ReferenceEvaluator

        proto = model(text, opset=18)
        x = np.random.default_rng(0).normal(size=[d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim])
        x = x.astype(np.float32)
        [want] = ReferenceEvaluator(proto).run(None, {"x": x})
        assert isinstance(want, np.ndarray)
        np.testing.assert_allclose(interpret(read(proto), [x])[0], want, 1e-4, 1e-6)
