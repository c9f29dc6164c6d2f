"""Whole conversions of what engines, quantisation and splitting change, run on the device against onnxruntime."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc_py import Options, Session, compile_model
from atc_py.emit import write_file

RNG = np.random.default_rng(7)


class Model:
    """An ONNX model under construction: nodes and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attrs))
        return name

    def fake(self, x: str, scale: float = 0.03, zero: int = -4) -> str:
        pair = self.const(scale), self.const(zero, np.int8)
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *pair), *pair)

    def weights(self, *shape: int) -> str:
        scales = RNG.uniform(0.002, 0.01, shape[0])
        array, zeros = RNG.integers(-127, 128, shape), np.zeros(shape[0])
        return self.op("DequantizeLinear", self.const(array, np.int8), self.const(scales), self.const(zeros, np.int8),
                       axis=0)  # fmt: skip

    def done(self, inputs: dict[str, Any], outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in outputs], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def both(
    model: onnx.ModelProto, feeds: dict[str, Any], folder: Path, **options: Any
) -> tuple[Any, list[Any], list[Any]]:
    """(the OM, its results, onnxruntime's)."""
    om = compile_model(model, Options(debug=True, **options))
    write_file(om, folder / "m.om")
    want = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    return om, Session(folder / "m.om").run(None, feeds), want


def kernels(om: Any) -> list[str]:
    names = []
    for task in om.plans[0].tasks():
        inner = [n.op for n in task.body.order()] if task.body is not None else [task.kernel]
        names += [n for n in inner if n not in ("Data", "Const", "NetOutput")]
    return names


@pytest.mark.parametrize("size", [8, "N"])
def test_a_quantised_network_is_onnxruntimes(tmp_path: Path, size: Any) -> None:
    m = Model()
    x = m.fake("x")
    c = m.fake(m.op("Relu", m.op("Conv", x, m.weights(8, 3, 3, 3), pads=[1, 1, 1, 1])), 0.02, -128)
    d = m.fake(m.op("Conv", c, m.weights(8, 8, 1, 1)), 0.05, 3)
    y = m.fake(m.op("MaxPool", m.fake(m.op("Add", c, d), 0.06, -7), kernel_shape=[2, 2], strides=[2, 2]), 0.06, -7)
    y = m.fake(m.op("HardSigmoid", y), 0.01, -100)
    y = m.fake(m.op("Flatten", m.fake(m.op("GlobalAveragePool", y), 0.01, -100)), 0.01, -100)
    y = m.fake(m.op("Gemm", y, m.weights(5, 8), transB=1), 0.004, 11)
    model = m.done({"x": [size, 3, 10, 10]}, [y])
    feeds = {"x": RNG.standard_normal((8, 3, 10, 10)).astype(np.float32)}
    om, [got], [want] = both(model, feeds, tmp_path)
    left = kernels(om)
    assert left.count("QuantizeLinear") == left.count("DequantizeLinear") == 1
    assert left.count("QLinearConv") == 2 and left.count("QuantMatmul") == left.count("LookupTable") == 1
    assert np.abs(got - want).max() <= 0.004 + 1e-6 and np.mean(got == want) > 0.9


def test_copies_between_engines_run(tmp_path: Path) -> None:
    m = Model()
    found = m.op("NonZero", m.op("Relu", m.op("MatMul", "x", m.const(RNG.standard_normal((6, 6))))))
    y = m.op("Mul", m.op("Cast", found, to=TensorProto.FLOAT), m.const(0.5))
    om, [got], [want] = both(
        m.done({"x": [4, 6]}, [y]), {"x": RNG.standard_normal((4, 6)).astype(np.float32)}, tmp_path
    )
    moves = [t for t in om.plans[0].tasks() if t.kernel == "TensorMove"]
    assert [t.attrs["to"] for t in moves] == ["aicpu", "aicore"]
    np.testing.assert_array_equal(got, want)


def test_pieces_run_on_a_target_of_ones_own(tmp_path: Path) -> None:
    text = (files("atc_py.target") / "data/Generic.toml").read_text()
    target = tmp_path / "tiny.toml"
    target.write_text(re.sub(r"(?m)^memory = .*$", f"memory = {1 << 20}", text))
    m = Model()
    scores = m.op("Softmax", m.op("MatMul", "x", m.op("Transpose", "x", perm=[1, 0])), axis=-1)
    model = m.done({"x": [512, 64]}, [m.op("MatMul", scores, "x")])
    feeds = {"x": RNG.standard_normal((512, 64)).astype(np.float32)}
    whole, _, _ = both(model, feeds, tmp_path, opt_level=0, single_stream=True)
    om, [got], [want] = both(model, feeds, tmp_path, opt_level=0, single_stream=True, soc_version=str(target))
    assert kernels(om).count("Softmax") > 1
    assert om.memory["arena"] < 0.7 * whole.memory["arena"]
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)
