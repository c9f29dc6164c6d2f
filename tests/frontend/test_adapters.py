# ruff: noqa: E501 - models in text form
"""Old forms of operators: each is imported in its newest form and must compute what onnxruntime computes
for the old one.

Opsets below 7, which onnxruntime does not run, are held against results worked out by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.defs
import pytest

from atc_py.frontend.attributes import old_defaults
from atc_py.frontend.draft import ADAPTERS
from atc_py.frontend.meaning import RENAMED
from tests.frontend.interpreter import interpret
from tests.frontend.models import model, ops, problems, read, same_as_onnxruntime


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


X4 = "float[2, 4, 6, 6] x"
OLD = {
    "squeeze": (11, f"g ({'float[2, 1, 3, 1] x'}) => (float[2, 3] y) {{ y = Squeeze<axes = [1, -1]>(x) }}"),
    "squeeze all": (11, "g (float[2, 1, 3, 1] x) => (float[2, 3] y) { y = Squeeze(x) }"),
    "unsqueeze": (11, "g (float[2, 3] x) => (float[1, 2, 3, 1] y) { y = Unsqueeze<axes = [0, 3]>(x) }"),
    "reduce axes": (12, f"g ({X4}) => (float[2, 6] y) {{ y = ReduceMean<axes = [1, -1], keepdims = 0>(x) }}"),
    "reduce all": (12, f"g ({X4}) => (float[1, 1, 1, 1] y) {{ y = ReduceL2(x) }}"),
    "reduce 17": (17, f"g ({X4}) => (float[2, 1, 6, 6] y) {{ y = ReduceMax<axes = [1]>(x) }}"),
    "reduce sum": (12, f"g ({X4}) => (float[2, 1, 6, 6] y) {{ y = ReduceSum<axes = [1]>(x) }}"),
    "slice": (9, f"g ({X4}) => (float[2, 2, 6, 3] y) {{ y = Slice<axes = [1, 3], starts = [1, -4], ends = [3, -1]>(x) }}"),
    "slice no axes": (9, f"g ({X4}) => (float[1, 2, 6, 6] y) {{ y = Slice<starts = [1, 1], ends = [9, 3]>(x) }}"),
    "pad": (10, f"g ({X4}) => (float[2, 4, 9, 7] y) {{ y = Pad<pads = [0, 0, 1, 0, 0, 0, 2, 1], value = 1.5>(x) }}"),
    "pad reflect": (10, f'g ({X4}) => (float[2, 4, 9, 6] y) {{ y = Pad<mode = "reflect", pads = [0, 0, 1, 0, 0, 0, 2, 0]>(x) }}'),
    "clip": (10, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Clip<min = -0.5, max = 0.25>(x) }}"),
    "clip min": (10, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Clip<min = -0.5>(x) }}"),
    "split": (11, f"g ({X4}) => (float[2, 1, 6, 6] y, float[2, 3, 6, 6] z) {{ y, z = Split<axis = 1, split = [1, 3]>(x) }}"),
    "split equal": (13, f"g ({X4}) => (float[2, 2, 6, 6] y, float[2, 2, 6, 6] z) {{ y, z = Split<axis = 1>(x) }}"),
    "top k": (9, "g (float[3, 8] x) => (float[3, 2] y, int64[3, 2] z) { y, z = TopK<axis = 1, k = 2>(x) }"),
    "dropout": (10, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Dropout<ratio = 0.3>(x) }}"),
    "softmax": (11, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Softmax<axis = 1>(x) }}"),
    "softmax default": (12, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Softmax(x) }}"),
    "softmax negative": (11, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = LogSoftmax<axis = -2>(x) }}"),
    "softmax last": (11, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Softmax<axis = 3>(x) }}"),
    "softmax of ones": (11, "g (float[2, 4, 1, 1] x) => (float[2, 4, 1, 1] y) { y = Softmax<axis = 1>(x) }"),
    "hardmax": (11, f"g ({X4}) => (float[2, 4, 6, 6] y) {{ y = Hardmax<axis = 2>(x) }}"),
    "upsample 7": (7, f'g ({X4}) => (float[2, 4, 12, 18] y) {{ y = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]>(x) }}'),
    "upsample 9": (9, f"g ({X4}) => (float[2, 4, 12, 9] y) <float[4] s = {{1.0, 1.0, 2.0, 1.5}}> {{ y = Upsample(x, s) }}"),
    "upsample linear": (9, f'g ({X4}) => (float[2, 4, 12, 12] y) <float[4] s = {{1.0, 1.0, 2.0, 2.0}}> {{ y = Upsample<mode = "linear">(x, s) }}'),
    "resize 10 down": (10, f"g ({X4}) => (float[2, 4, 3, 4] y) <float[4] s = {{1.0, 1.0, 0.6, 0.7}}> {{ y = Resize(x, s) }}"),
    "resize 10 mixed": (10, f"g ({X4}) => (float[2, 4, 3, 9] y) <float[4] s = {{1.0, 1.0, 0.6, 1.5}}> {{ y = Resize(x, s) }}"),
    "resize 11 empty": (11, f'g ({X4}) => (float[2, 4, 9, 5] y) <float[0] e = {{}}, int64[4] s = {{2, 4, 9, 5}}> {{ y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, e, e, s) }}'),
    "scatter": (10, "g (float[3, 3] x, int64[1, 3] i, float[1, 3] u) => (float[3, 3] y) { y = Scatter<axis = 0>(x, i, u) }"),
    "batch norm": (8, f"g ({X4}, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2, 4, 6, 6] y) {{ y = BatchNormalization(x, s, b, m, v) }}"),
    "batch norm outputs": (9, f"g ({X4}, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2, 4, 6, 6] y) {{ y = BatchNormalization<momentum = 0.8>(x, s, b, m, v) }}"),
    "group norm": (20, f"g ({X4}, float[2] s, float[2] b) => (float[2, 4, 6, 6] y) {{ y = GroupNormalization<num_groups = 2>(x, s, b) }}"),
    "prelu": (8, f"g ({X4}, float[4, 1, 1] s) => (float[2, 4, 6, 6] y) {{ y = PRelu(x, s) }}"),
    "grid sample": (16, f"g ({X4}, float[2, 3, 3, 2] u) => (float[2, 4, 3, 3] y) {{ y = GridSample(x, u) }}"),
    "grid sample cubic": (16, f'g ({X4}, float[2, 3, 3, 2] u) => (float[2, 4, 3, 3] y) {{ y = GridSample<mode = "bicubic">(x, u) }}'),
    "roi align": (10, f"g ({X4}, float[1, 4] r, int64[1] i) => (float[1, 4, 2, 2] y) {{ y = RoiAlign<output_height = 2, output_width = 2>(x, r, i) }}"),
    "gemm": (7, "g (float[3, 4] x, float[4, 5] b, float[5] c) => (float[3, 5] y) { y = Gemm<alpha = 0.5>(x, b, c) }"),
    "dft": (17, "g (float[1, 4, 5, 1] x) => (float[1, 4, 5, 2] y) { y = DFT<axis = 2>(x) }"),
    "dft default": (17, "g (float[1, 4, 5, 1] x) => (float[1, 4, 5, 2] y) { y = DFT(x) }"),
    "lstm": (7, "g (float[5, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (float[5, 1, 2, 4] y) { y = LSTM<hidden_size = 4>(x, w, r) }"),
    "gru": (7, "g (float[5, 2, 3] x, float[1, 12, 3] w, float[1, 12, 4] r) => (float[1, 2, 4] h) { , h = GRU<hidden_size = 4>(x, w, r) }"),
    "arg max": (11, f"g ({X4}) => (int64[2, 1, 6, 6] y) {{ y = ArgMax<axis = 1>(x) }}"),
    "average pool": (9, f'g ({X4}) => (float[2, 4, 3, 3] y) {{ y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER">(x) }}'),
    "cumsum": (11, "g (float[3, 4] x) => (float[3, 4] y) <int64 a = {1}> { y = CumSum<exclusive = 1>(x, a) }"),
    "flatten": (9, f"g ({X4}) => (float[8, 36] y) {{ y = Flatten<axis = 2>(x) }}"),
    "depth to space": (10, f"g ({X4}) => (float[2, 1, 12, 12] y) {{ y = DepthToSpace<blocksize = 2>(x) }}"),
    "equal": (7, "g (int64[3] x, int64[3] u) => (bool[3] y) { y = Equal(x, u) }"),
    "pow": (7, "g (float[3] x, float[3] u) => (float[3] y) { y = Pow(x, u) }"),
    "quantize": (10, "g (float[2, 3] x) => (uint8[2, 3] y) <float s = {0.05}, uint8 z = {128}> { y = QuantizeLinear(x, s, z) }"),
    "one hot": (9, "g (int64[3] x) => (float[3, 4] y) <int64 d = {4}, float[2] v = {0.0, 2.0}> { y = OneHot(x, d, v) }"),
    "scan": (9, "g (float[2] s, float[3, 2] x) => (float[2] y, float[3, 2] z) { y, z = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Mul(a, b) }>(s, x) }"),
    "scan 8": (8, "g (float[4, 2] s, float[4, 3, 2] x) => (float[4, 2] y, float[4, 3, 2] z) { y, z = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Mul(c, k) }>(, s, x) k = Constant<value: tensor = float {3.0}>() }"),
    "scan 8 backwards": (8, "g (float[4, 2] s, float[4, 3, 2] x) => (float[4, 2] y, float[4, 3, 2] z) { y, z = Scan<num_scan_inputs = 1, directions = [1], body = b (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Identity(c) }>(, s, x) }"),
    "scan 8 lengths": (8, "g (int64[4] n, float[4, 2] s, float[4, 3, 2] x) => (float[4, 2] y, float[4, 3, 2] z) { y, z = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Mul(c, b) }>(n, s, x) }"),
    "scan 8 lengths backwards": (8, "g (int64[4] n, float[4, 2] s, float[4, 3, 2] x) => (float[4, 2] y, float[4, 3, 2] z) { y, z = Scan<num_scan_inputs = 1, directions = [1], body = b (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Mul(c, b) }>(n, s, x) }"),
    "loop": (8, "g (float[2] x) => (float[2] y) <int64 n = {3}, bool c = {1}> { y = Loop(n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool go2, float[2] w) { go2 = Identity(go) w = Add(v, v) }> }"),
}  # fmt: skip


def feed(info: onnx.ValueInfoProto) -> np.ndarray[Any, Any]:
    t = info.type.tensor_type
    shape = [d.dim_value for d in t.shape.dim]
    if t.elem_type == 7:
        return (
            np.random.default_rng(7).integers(0, 3, shape)
            if info.name != "i" or len(shape) > 1
            else np.zeros(shape, np.int64)
        )
    if info.name == "r" and shape == [1, 4]:
        return np.array([[0, 0, 5, 4]], np.float32)
    return np.abs(rand(*shape)) + 0.1 if info.name in ("v", "u") else rand(*shape)


@pytest.mark.parametrize("name", OLD)
def test_old_forms_compute_the_same(name: str) -> None:
    opset, text = OLD[name]
    proto = model(text, opset, ir=7)
    same_as_onnxruntime(proto, [feed(i) for i in proto.graph.input], 1e-4)


def test_canonical_forms() -> None:
    """What the newest opset writes as an input is an input, whatever the file's opset."""
    for old, new in (
        ((12, "y = ReduceSum<axes = [1]>(x)"), (21, "y = ReduceSum(x, k)")),
        ((12, "y = Squeeze<axes = [1]>(x)"), (21, "y = Squeeze(x, k)")),
        ((9, "y = Upsample(x, s)"), (10, "y = Resize(x, s)")),
    ):
        graphs = [
            read(
                model(
                    f"g (float[2, 1, 3] x) => (float y) <int64[1] k = {{1}}, float[3] s = {{1.0, 1.0, 2.0}}> {{ {t} }}",
                    o,
                )
            )
            for o, t in (old, new)
            if o
        ]
        nodes = [next(n for n in g.nodes.values() if n.op not in ("Data", "Const", "NetOutput")) for g in graphs]
        assert nodes[0].op == nodes[1].op and nodes[0].attrs == nodes[1].attrs
        assert [g.type(v) for g, n in zip(graphs, nodes) for v in n.outputs[:1]].count(
            graphs[0].type(nodes[0].outputs[0])
        ) == 2


# -- opsets 1 to 6 ---------------------------------------------------------------------------------------------


def legacy(text: str, *feeds: np.ndarray[Any, Any], opset: int = 6) -> list[Any]:
    return interpret(read(model(text, opset, ir=3)), feeds)


def test_legacy_broadcasting() -> None:
    x, b = rand(2, 3, 4, 5), rand(3, 4)
    [y] = legacy(
        "g (float[2, 3, 4, 5] x, float[3, 4] b) => (float[2, 3, 4, 5] y) { y = Add<axis = 1, broadcast = 1>(x, b) }",
        x,
        b,
    )
    np.testing.assert_allclose(y, x + b[:, :, None])
    [y] = legacy(
        "g (float[2, 3, 4, 5] x, float[5] b) => (float[2, 3, 4, 5] y) { y = Mul<broadcast = 1>(x, b) }", x, b := rand(5)
    )
    np.testing.assert_allclose(y, x * b)


def test_legacy_batch_norm() -> None:
    x, s, b, m, v = rand(2, 3, 4), rand(3, 4), rand(3, 4), rand(3, 4), np.abs(rand(3, 4))
    kinds = ", ".join(f"float[3, 4] {n}" for n in "sbmv")
    text = (
        f"g (float[2, 3, 4] x, {kinds}) => (float[2, 3, 4] y) {{ y = BatchNormalization<spatial = 0>(x, s, b, m, v) }}"
    )
    [y] = legacy(text, x, s, b, m, v)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5) * s + b, 1e-4, 1e-5)
    text = text.replace("spatial = 0", "is_test = 1").replace("[3, 4] ", "[3] ")
    params = [p[:, 0] for p in (s, b, m, v)]
    [y] = legacy(text, x, *params)
    s, b, m, v = (p[:, None] for p in params)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5) * s + b, 1e-4, 1e-5)


def test_legacy_forms() -> None:
    x = rand(2, 3, 4)
    x4 = x.reshape(2, 3, 2, 2)
    for opset, text, want in (
        (4, "y = Reshape<shape = [6, -1]>(x)", x.reshape(6, 4)),
        (
            1,
            "y = Pad<paddings = [0, 0, 1, 0, 0, 2], value = 2.0>(x)",
            np.pad(x, [(0, 0), (0, 0), (1, 2)], constant_values=2),
        ),
        (5, 'y = Cast<to = "INT32">(x)', x.astype(np.int32)),
        (3, "y = Concat(x, x)", np.concatenate([x, x], 1)),
        (1, "y = Selu<consumed_inputs = [0]>(x)", np.where(x > 0, 1.0507 * x, 1.0507 * 1.6732 * (np.exp(x) - 1))),
        (1, "y = Dropout<is_test = 1, ratio = 0.9>(x)", x),
    ):
        kind = "int32" if opset == 5 else "float"
        [y] = legacy(f"g (float[2, 3, 4] x) => ({kind} y) {{ {text} }}", x, opset=opset)
        np.testing.assert_allclose(y, want, 1e-5)
    [y] = legacy(
        "g (float[2, 3, 2, 2] x) => (float y) { y = Upsample<height_scale = 2.0, width_scale = 1.0>(x) }", x4, opset=1
    )
    np.testing.assert_allclose(y, x4.repeat(2, 2))
    slope = np.array([0.1, 0.2, 0.3], np.float32)
    [y] = legacy("g (float[2, 3, 2, 2] x, float[3] s) => (float y) { y = PRelu(x, s) }", x4, slope)
    np.testing.assert_allclose(y, np.where(x4 < 0, x4 * slope[:, None, None], x4), 1e-6)


def test_legacy_tile_and_mask() -> None:
    """The mask of Dropout before opset 10 has the data's type; in inference it keeps everything, as in opset 12."""
    x = rand(2, 3)
    constants = "n = Constant<value: tensor = float {3.0}>() a = Constant<value: tensor = float {1.0}>()"
    [y] = legacy(f"g (float[2, 3] x) => (float y) {{ {constants} y = Tile(x, n, a) }}", x, opset=5)
    np.testing.assert_array_equal(y, np.tile(x, (1, 3)))
    [y, z] = legacy("g (float[2, 3] x) => (float y, float z) { y, z = Dropout(x) }", x, opset=9)
    assert z.dtype == np.float32 and z.all()


def test_label_encoder_1() -> None:
    text = 'g (string[3] x) => (int64[3] y) {{ y = ai.onnx.ml.LabelEncoder<classes_strings = ["a", "b"], default_int64 = -9>(x) }}'
    graph = read(model(text.format(), 13, extra='"ai.onnx.ml": 1'))
    [y] = interpret(graph, [np.array(["b", "a", "z"], object)])
    assert y.tolist() == [1, 0, -9]


def test_what_cannot_be_converted_says_so() -> None:
    x = "float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v"
    for opset, text in (
        (9, f"g ({x}) => (float y, float z) {{ y, z = BatchNormalization(x, s, b, m, v) }}"),
        (5, 'g (float[2, 3] x) => (float y) { y = Cast<to = "QUATERNION">(x) }'),
        (1, "g (float[2, 3, 4, 4] x) => (float y) { y = GlobalLpPool<p = 1.5>(x) }"),
        (11, "g (float[2, 3] x) => (float y) { y = Softmax<axis = 4>(x) }"),
        (11, "g (float[2, 3] x) => (float y) { y = Unsqueeze(x) }"),
    ):
        [p] = problems(model(text, opset, ir=3))
        assert p.code in ("E16113", "E16112")


def test_every_operator_with_an_attribute_that_disappeared_has_an_adapter() -> None:
    """onnx's own history decides which operators need one."""
    newest: dict[tuple[str, str], Any] = {}
    history = onnx.defs.get_all_schemas_with_history()
    for s in history:
        key = (s.domain, s.name)
        if key not in newest or newest[key].since_version < s.since_version:
            newest[key] = s
    for s in history:
        last = newest[s.domain, s.name]
        gone = s.attributes.keys() - last.attributes.keys()
        name = f"{s.domain}::{s.name}" if s.domain else s.name
        if gone and name not in ("Constant", "Scan") and s.name not in RENAMED:
            bounds = [bound for bound, _ in ADAPTERS.get(name, ())]
            assert any(s.since_version < b for b in bounds), f"{name}-{s.since_version} has {sorted(gone)}"


def test_defaults_that_changed_are_filled_in() -> None:
    assert dict(old_defaults("", "Softmax", 11)) == {"axis": 1}
    assert old_defaults("", "Softmax", 13) == () and old_defaults("", "Relu", 6) == ()


def test_same_graph_from_any_opset() -> None:
    text = "g (float[N, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[N, 4] y) { a = Conv(x, w) b = Relu(a) c = GlobalAveragePool(b) y = Flatten(c) }"
    assert {tuple(ops(read(model(text, opset)))) for opset in range(7, 22)} == {
        ("Conv", "Relu", "GlobalAveragePool", "Flatten")
    }
