#!/usr/bin/env python3
"""Make the two small models of our own, `small_cnn.onnx` and `small_transformer.onnx`, with seeded weights.

    python models/make_small.py            # write them beside this file

The bytes depend on the seeds and on nothing else, so that the committed files can be checked against the
script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the oldest that opset 17 allows: readable everywhere
OUT_DIR = Path(__file__).resolve().parent


class _Builder:
    """Collects nodes and initializers; each method adds one node and returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        # A legacy generator: its stream is frozen by numpy's policy, default_rng's is not.
        self.random = np.random.RandomState(seed)

    def weight(self, name: str, shape: Sequence[int], fan_in: int) -> str:
        """Normal values scaled by 1/sqrt(fan_in), which keeps the activations' scale through the layers."""
        return self.constant(name, self.random.standard_normal(shape) / math.sqrt(fan_in))

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        array = np.asarray(value, dtype=dtype)
        if array.dtype == np.float32 and array.ndim:
            # Rounded to 1/1024: exact in float32, so no platform's last digit of log() can change the file.
            array = (np.round(array * 1024) / 1024).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def model(self, name: str, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> ModelProto:
        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs), self.weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="atc-py", opset_imports=[opset], ir_version=IR_VERSION)


def _conv_bn(b: _Builder, name: str, x: str, cin: int, cout: int, kernel: int, stride: int = 1) -> str:
    weight = b.weight(f"{name}.weight", (cout, cin, kernel, kernel), cin * kernel * kernel)
    pad = kernel // 2
    y = b.add("Conv", f"{name}.conv", [x, weight], kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2)
    params = [
        b.constant(f"{name}.scale", 1 + b.random.standard_normal(cout) / 8),
        b.constant(f"{name}.bias", b.random.standard_normal(cout) / 8),
        b.constant(f"{name}.mean", b.random.standard_normal(cout) / 8),
        b.constant(f"{name}.var", b.random.uniform(0.5, 1.5, cout)),
    ]
    return b.add("BatchNormalization", f"{name}.bn", [y, *params], epsilon=1e-5)


def small_cnn() -> ModelProto:
    """An image classifier: x [N, 3, 32, 32] → probabilities [N, 10]; one residual block; 10,298 weights."""
    b = _Builder(seed=1)
    x = b.add("Relu", "stem.relu", [_conv_bn(b, "stem", "x", 3, 16, 3, stride=2)])
    x = b.add("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    y = b.add("Relu", "block.relu1", [_conv_bn(b, "block.1", x, 16, 16, 3)])
    y = _conv_bn(b, "block.2", y, 16, 16, 3)
    x = b.add("Relu", "block.relu2", [b.add("Add", "block.add", [y, x])])
    x = b.add("Relu", "wide.relu", [_conv_bn(b, "wide", x, 16, 32, 3, stride=2)])
    x = b.add("GlobalAveragePool", "gap", [x])
    x = b.add("Flatten", "flatten", [x], axis=1)
    x = b.add("Gemm", "fc", [x, b.weight("fc.weight", (10, 32), 32), b.weight("fc.bias", (10,), 32)], transB=1)
    b.add("Softmax", "probabilities", [x], axis=1)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 32, 32])
    return b.model("small_cnn", [image], [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10])])


def _linear(b: _Builder, name: str, x: str, cin: int, cout: int) -> str:
    y = b.add("MatMul", f"{name}.matmul", [x, b.weight(f"{name}.weight", (cin, cout), cin)])
    return b.add("Add", name, [y, b.weight(f"{name}.bias", (cout,), cin)])


def _layer_norm(b: _Builder, name: str, x: str, width: int) -> str:
    scale = b.constant(f"{name}.scale", 1 + b.random.standard_normal(width) / 8)
    bias = b.constant(f"{name}.bias", b.random.standard_normal(width) / 8)
    return b.add("LayerNormalization", name, [x, scale, bias], axis=-1, epsilon=1e-5)


def _attention(b: _Builder, x: str, width: int, heads: int) -> str:
    split = b.constant("heads.split", [0, 0, heads, width // heads], np.int64)
    merge = b.constant("heads.merge", [0, 0, width], np.int64)

    def head(name: str, perm: list[int]) -> str:
        y = b.add("Reshape", f"{name}.heads", [_linear(b, name, x, width, width), split])
        return b.add("Transpose", f"{name}.t", [y], perm=perm)

    query, key, value = head("q", [0, 2, 1, 3]), head("k", [0, 2, 3, 1]), head("v", [0, 2, 1, 3])
    scores = b.add("MatMul", "scores", [query, key])
    scores = b.add("Div", "scores.scaled", [scores, b.constant("sqrt_d", math.sqrt(width / heads))])
    context = b.add("MatMul", "context", [b.add("Softmax", "attention", [scores], axis=-1), value])
    context = b.add("Transpose", "context.t", [context], perm=[0, 2, 1, 3])
    return _linear(b, "attention.out", b.add("Reshape", "context.merged", [context, merge]), width, width)


def _gelu(b: _Builder, x: str) -> str:
    """x · ½ · (1 + erf(x / √2)), spelled out as exporters below opset 20 do."""
    erf = b.add("Erf", "gelu.erf", [b.add("Div", "gelu.div", [x, b.constant("sqrt2", math.sqrt(2))])])
    y = b.add("Mul", "gelu.mul", [x, b.add("Add", "gelu.add", [erf, b.constant("one", 1)])])
    return b.add("Mul", "gelu", [y, b.constant("half", 0.5)])


def small_transformer(width: int = 32, heads: int = 4) -> ModelProto:
    """One transformer block, [N, T, width] → same: attention, GELU FFN, a LayerNorm after each residual."""
    b = _Builder(seed=2)
    x = b.add("Add", "residual1", [_attention(b, "x", width, heads), "x"])
    x = _layer_norm(b, "norm1", x, width)
    y = _linear(b, "ffn.down", _gelu(b, _linear(b, "ffn.up", x, width, 2 * width)), 2 * width, width)
    x = b.add("Add", "residual2", [y, x])
    _layer_norm(b, "norm2", x, width)
    tokens = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", width])
    return b.model(
        "small_transformer",
        [tokens],
        [helper.make_tensor_value_info("norm2", TensorProto.FLOAT, ["N", "T", width])],
    )


def make_all() -> dict[str, bytes]:
    """The file name and bytes of each model."""
    models = {"small_cnn.onnx": small_cnn(), "small_transformer.onnx": small_transformer()}
    return {name: model.SerializeToString(deterministic=True) for name, model in models.items()}


if __name__ == "__main__":
    for file_name, data in make_all().items():
        (OUT_DIR / file_name).write_bytes(data)
        print(f"{OUT_DIR / file_name}: {len(data):,} bytes")
