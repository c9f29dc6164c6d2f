"""Models without weights: stand-ins that stay apart, shared ones that stay one, and other batches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc_py import frontend
from atc_py.errors import AtcError
from atc_py.frontend.skeleton import skeleton
from atc_py.ir.types import Tensor
from atc_py.passes import optimize


def stand_in(name: str, value: float = 0.02) -> onnx.NodeProto:
    fill = numpy_helper.from_array(np.array([value], np.float32))
    return helper.make_node("ConstantOfShape", ["shape"], [name], value=fill)


def proto(nodes: list[onnx.NodeProto], shape: list[int], outputs: list[str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [
            numpy_helper.from_array(np.array([8, 8], np.int64), "shape"),
            numpy_helper.from_array(np.ones(8, np.float32), "bias"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def products(model: onnx.ModelProto) -> int:
    graph = frontend.read(model)
    optimize(graph)
    return sum(n.op in ("MatMul", "Gemm") for n in graph.nodes.values())


def test_equal_stand_ins_are_different_weights() -> None:
    model = proto(
        [stand_in("w"), stand_in("v"), *(helper.make_node("MatMul", ["x", k], [f"y{k}"]) for k in "wv")],
        [4, 8],
        ["yw", "yv"],
    )
    assert products(model) == 1 and products(skeleton(model)) == 2


def test_layers_that_share_a_bias_share_their_weight() -> None:
    model = proto(
        [stand_in("w"), stand_in("v"), *(helper.make_node("Gemm", ["x", k, "bias"], [f"y{k}"]) for k in "wv")],
        [4, 8],
        ["yw", "yv"],
    )
    assert products(skeleton(model)) == 1


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zero_and_one_are_meant(value: float) -> None:
    model = proto([stand_in("w", value), helper.make_node("Mul", ["x", "w"], ["y"])], [8, 8], ["y"])
    assert skeleton(model) == model


def image(target: list[int]) -> onnx.ModelProto:
    shape = numpy_helper.from_array(np.array(target, np.int64))
    nodes = [helper.make_node("Constant", [], ["to"], value=shape), helper.make_node("Reshape", ["x", "to"], ["y"])]
    return proto(nodes, [1, 8, 4], ["y"])


@pytest.mark.parametrize("target", [[1, 2, 4, 4], [1, -1], [-1, 4]])
def test_a_new_batch_reaches_constant_shapes(target: list[int]) -> None:
    graph = frontend.read(skeleton(image(target), {"x": (6, 8, 4)}))
    found = graph.type(graph.outputs[0])
    first = 6 if target[0] == 1 else 6 * 8
    assert isinstance(found, Tensor) and found.dims[0] == first
    assert image(target) == image(target), "the given model is not changed"


def test_wrong_shapes_are_told() -> None:
    with pytest.raises(AtcError, match="no input of this name"):
        skeleton(image([1, -1]), {"z": (1, 2)})
    with pytest.raises(AtcError, match="2 dims"):
        skeleton(image([1, -1]), {"x": (1, 2)})
