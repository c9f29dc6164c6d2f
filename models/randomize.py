"""Seeded weights for the models whose own are constants (`drawn` in the manifest).

onnx ships these zoo networks with every weight made by `ConstantOfShape`: all elements equal, so that the outputs say
nothing about the network. `randomized` puts normal weights in their place, scaled so that activations neither vanish
nor overflow: He et al., "Delving Deep into Rectifiers" (2015), for what has a fan-in; small biases; positive variances.
The logits become an output beside the probabilities.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models.catalog import Entry


def source(entry: Entry, path: Path) -> Path | onnx.ModelProto:
    """What to convert of a model of the catalogue: its file, or the model with seeded weights where it is `drawn`."""
    return randomized(path) if entry.drawn else path


def randomized(path: str | Path, seed: int = 0) -> onnx.ModelProto:
    """The model at `path` with seeded float32 initializers instead of its `ConstantOfShape` weights."""
    model = onnx.load(path)
    graph = model.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    readers = {name: (node, i) for node in graph.node for i, name in enumerate(node.input)}
    rng = np.random.default_rng(seed)
    kept = []
    replaced: set[str] = set()
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        reader, position = _reader(readers, node.output[0])
        weights = _weights(rng, shape, reader, position)
        graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        replaced.add(node.input[0])
    del graph.node[:]
    graph.node.extend(kept)
    inputs = [i for i in graph.input if i.name not in replaced]
    del graph.input[:]
    graph.input.extend(inputs)
    rest = [i for i in graph.initializer if i.name not in replaced]
    del graph.initializer[:]
    graph.initializer.extend(rest)
    _expose_logits(graph)
    return model


def _expose_logits(graph: onnx.GraphProto) -> None:
    """Make the input of a final Softmax an output too: probabilities near 0 and 1 hide errors."""
    names = {o.name for o in graph.output}
    for node in graph.node:
        if node.op_type == "Softmax" and node.output[0] in names:
            graph.output.add(name=node.input[0]).type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _reader(readers: dict[str, tuple[onnx.NodeProto, int]], name: str) -> tuple[str, int]:
    """The operator that reads a weight, through nodes that only reshape it, and the position at which it does."""
    node, position = readers[name]
    while node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in readers:
        node, position = readers[node.output[0]]
    return node.op_type, position


def _weights(rng: np.random.Generator, shape: tuple[int, ...], reader: str, position: int) -> np.ndarray:
    normal = rng.standard_normal(shape, dtype=np.float32)
    if reader == "BatchNormalization" and position in (1, 4):
        return np.abs(normal) * np.float32(0.2) + np.float32(0.9)
    if len(shape) >= 2:
        fan_in = int(np.prod(shape[1:]))
        return normal * np.float32(np.sqrt(2.0 / fan_in))
    return normal * np.float32(0.05) + np.float32(1.0 if reader == "Mul" else 0.0)
