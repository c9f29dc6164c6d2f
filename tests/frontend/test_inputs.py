"""Input shapes: symbols, what --input-shape may say, and what the model declares about inner tensors."""

from __future__ import annotations

from typing import Any

import pytest

from atc_py import frontend
from atc_py.errors import AtcError
from atc_py.ir.graph import Range
from atc_py.ir.types import DType, Optional, Sequence, Tensor
from tests.frontend.models import model, ops, problems, read, shape

TWO = (
    "g (float[N, 3, H, 8] x, int64[N, seq] ids) => (float[N, 3, H, 8] y, int64[N, seq] z) { y = Relu(x) z = Abs(ids) }"
)


def inputs(graph: Any) -> dict[str, list[str] | None]:
    return {graph.producer(v).name: shape(graph, graph.producer(v).name) for v in graph.inputs}


def test_declared_dims() -> None:
    proto = model("g (float[N, 3, H, 8] x, float[] s, float[3] u) => (float[N, 3, H, 8] y) { y = Relu(x) }")
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[1].dim_value = -1
    dims[2].Clear()
    dims[3].dim_param = "?"
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    graph = read(proto)
    assert inputs(graph) == {"x": ["N", "x.1", "x.2", "x.3"], "s": None, "u": ["3"]}
    assert graph.symbols == {k: Range(0, None) for k in ("N", "x.1", "x.2", "x.3")}


def test_scalar_and_other_kinds_of_inputs() -> None:
    graph = read("g (float x, seq(float[N]) s, optional(float[2]) o) => (float y) { y = Relu(x) }")
    assert [graph.type(v) for v in graph.inputs] == [
        Tensor(DType.FLOAT32, ()),
        Sequence(Tensor(DType.FLOAT32, None)),
        Optional(Tensor(DType.FLOAT32, (2,))),
    ]


def test_unusable_inputs() -> None:
    proto = model("g (float[3] x, float[3] v, float[3] w) => (float[3] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.elem_type = 0
    proto.graph.input[1].ClearField("type")
    proto.graph.input[2].type.sparse_tensor_type.elem_type = 1
    assert [(p.code, p.place) for p in problems(proto)] == [("E16117", f"input '{n}'") for n in "xvw"]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"x": [2, 3, 4, 8]}, {"x": ["2", "3", "4", "8"], "ids": ["2", "seq"]}),
        ({"x": [-1, 3, None, 8]}, {"x": ["N", "3", "H", "8"], "ids": ["N", "seq"]}),
        ({"x": ["batch", -1, "1~9", -1]}, {"x": ["batch", "3", "H", "8"], "ids": ["batch", "seq"]}),
        ({"ids": ["4", "7~7"]}, {"x": ["4", "3", "H", "8"], "ids": ["4", "7"]}),
        ({"x": [0, 3, 1, 8]}, {"x": ["0", "3", "1", "8"], "ids": ["0", "seq"]}),
    ],
)
def test_given_shapes(given: Any, want: Any) -> None:
    assert inputs(read(model(TWO), input_shapes=given)) == want


def test_ranges() -> None:
    graph = read(model(TWO), input_shapes={"x": ["1~16", 3, "32~", -1], "ids": ["2~64", -1]})
    assert graph.symbols == {"N": Range(2, 16), "H": Range(32, None), "seq": Range(0, None)}


def test_shape_for_an_input_of_unknown_rank() -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert shape(read(proto), "y") is None
    assert shape(read(proto, input_shapes={"x": [2, "n"]}), "y") == ["2", "n"]


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"X": [1]}, "E10002", "ids: [N, seq]"),
        ({"x": [1, 3, 4]}, "E10049", "[N, 3, H, 8]"),
        ({"x": [1, 4, 4, 8]}, "E10002", "fixes it to 3"),
        ({"x": [1, 3, 4, 8], "ids": [2, 5]}, "E10002", "'N' is 2 here, but 1"),
        ({"x": [1, "4~9", 4, 8]}, "E10002", "outside 4~9"),
        ({"x": [-2, 3, 4, 8]}, "E10002", "-2 is no size"),
        ({"x": [1 << 63, 3, 4, 8]}, "E10002", f"{1 << 63} is no size"),
        ({"x": [f"1~{1 << 63}", 3, 4, 8]}, "E10002", f"{1 << 63} is no size"),
        ({"x": ["9~1", 3, 4, 8]}, "E10002", "no range"),
        ({"x": ["1~4", 3, 4, 8], "ids": ["5~9", 1]}, "E10002", "nothing in common"),
    ],
)
def test_wrong_shapes(given: Any, code: str, words: str) -> None:
    found = problems(model(TWO), input_shapes=given)
    assert found[0].code == code and any(words in str(p) for p in found), found


def test_several_wrong_shapes_are_reported_at_once() -> None:
    assert len(problems(model(TWO), input_shapes={"x": [1, 4, 4, 8], "ids": [1], "no": [1]})) == 3


def test_fixed_dim_asked_to_be_dynamic_is_a_warning() -> None:
    found = frontend.import_model(model(TWO), frontend.ReadOptions({"x": [-1, "c", -1, "1~9"]}))
    assert [w.code for w in found.warnings] == ["W16204", "W16204"]


def test_parse_input_shapes() -> None:
    assert frontend.parse_input_shapes("x:1,3,-1,224; in:0:1~8,N ;s:") == {
        "x": (1, 3, -1, 224),
        "in:0": ("1~8", "N"),
        "s": (),
    }
    for text in ("x", ":1,2", "x:1;x:2"):
        with pytest.raises(AtcError) as caught:
            frontend.parse_input_shapes(text)
        assert caught.value.code == "E10002"


def test_long_names() -> None:
    name = "d" * 300
    proto = model("g (float[N, M] x) => (float[N, M] y) { y = Relu(x) }")
    for axis, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = name + str(axis)
    graph = read(proto)
    assert len(graph.symbols) == 2


# -- declared inner types --------------------------------------------------------------------------------------

COUNT = "g (float[N] x) => (int64[1, K] y) { y = NonZero(x) }"


def test_declared_sizes_refine_what_only_the_run_time_knows() -> None:
    assert shape(read(COUNT.replace("K", "7")), "y") == ["1", "7"]
    assert shape(read(COUNT.replace("K", "N")), "y") == ["1", "N"]
    [name] = [d for d in shape(read(COUNT), "y") or [] if d != "1"]
    assert name.startswith("NonZero")


def test_declared_sizes_are_not_trusted_when_the_user_changed_the_inputs() -> None:
    graph = read(COUNT.replace("K", "7"), input_shapes={"x": [5]})
    assert shape(graph, "y") != ["1", "7"]


def test_declared_shape_of_an_unknown_rank() -> None:
    text = "g (float[N, 4] x, int64[R] s) => (float[2, M] y) { r = Reshape(x, s) y = Relu(r) }"
    proto = model(text)
    info = proto.graph.value_info.add(name="r")
    info.type.CopyFrom(proto.graph.output[0].type)
    graph = read(proto)
    found = shape(graph, "r")
    assert found is not None and found[0] == "2" and shape(graph, "y") == found


def test_contradicting_shapes_warn_and_lose() -> None:
    for declared in ("float[N, 5]", "float[N]"):
        found = frontend.import_model(model(f"g (float[N, 3] x) => ({declared} y) {{ y = Relu(x) }}"))
        assert [w.code for w in found.warnings] == ["W16201"] and shape(found.graph, "y") == ["N", "3"]


def test_contradicting_element_type_is_an_error() -> None:
    [p] = problems("g (float[N, 3] x) => (double[N, 3] y) { y = Relu(x) }")
    assert p.code == "E16114" and "float64" in p.cause and "float32" in p.cause


# -- shape arithmetic ------------------------------------------------------------------------------------------


def test_shape_arithmetic_is_folded() -> None:
    graph = read(
        """g (float[N, 3, H, W] x) => (float[N, M] y) <int64 zero = {0}, int64[1] rest = {-1}> {
        s = Shape(x) n = Gather(s, zero) m = Reshape(n, rest) t = Concat<axis = 0>(m, rest) y = Reshape(x, t) }"""
    )
    assert ops(graph) == ["Reshape"]
    assert shape(graph, "y") == ["N", "3*H*W"]


def test_values_of_the_run_time_are_not_folded() -> None:
    graph = read(
        """g (float[N, 4] x) => (int64[K] y) <int64[1] one = {1}> {
        i = NonZero(x) s = Shape(i) k = Gather(s, one) y = Add(k, one) }"""
    )
    assert ops(graph)[0] == "NonZero" and ops(graph)[-1] == "Add"


def test_folding_reaches_bodies_and_drops_captures() -> None:
    graph = read(
        """g (float[N, 4] x, int64 n) => (float[N, 4] y) {
        y = Loop(n, , x) <body = b (int64 i, bool go, float[N, 4] v) => (bool go2, float[N, 4] w) {
          go2 = Identity(go) s = Shape(x) f = Reshape(v, m) w = Reshape(f, s) }>
        m = Constant<value_ints = [-1]>() }"""
    )
    [loop] = [n for n in graph.nodes.values() if n.op == "Loop"]
    body = loop.subgraphs["body"]
    assert loop.captures == 0 and "Shape" not in ops(body) and len(body.inputs) == 3
