"""Models of which only the structure counts: stand-in weights, and a batch that the file does not have.

    W = ConstantOfShape([768, 768], 0.02)     V = ConstantOfShape([768, 768], 0.02)       two weights, not one
    x: [1, 3, 224, 224], Reshape(c, [1, 2, 64])   at batch 4:     x: [4, 3, 224, 224], Reshape(c, [4, 2, 64])

A prediction of time needs no weights, so networks travel without them: a ConstantOfShape stands where an initializer
was. Equal stand-ins are not equal weights, and merging them would drop work that the network has; so each gets a value
of its own, and those that stand for one weight the same. 0 and 1 stay: a model may mean them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.helper
from onnx import numpy_helper

from atc_py.errors import Problems
from atc_py.frontend import codes

_SHAPE = ".shape of the weight"
_FILL = 0.02
"""The value of stand-ins: neither 0 nor 1, which would let a pass drop work."""
_STEP = 2.0**-20
"""Relative difference between one stand-in and the next; float32 tells apart 2**-23."""


def skeleton(model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None) -> onnx.ModelProto:
    """A copy of `model` for predictions of time: distinct stand-in weights, inputs of the given shapes.

    Unlike the shapes of a conversion, these may differ from what the file fixes. Where they change the batch (axis 0),
    constant targets of Reshape and Expand that start with the old batch start with the new one. Raises `AtcError`
    E10002 for an input that the model does not have or a shape of another rank.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _stand_in(copy.graph)
    _distinguish(copy.graph)
    batches = _resize(copy.graph, input_shapes or {})
    if batches:
        _rebatch(copy.graph, *batches)
    return copy


def _stand_in(graph: onnx.GraphProto) -> None:
    """Put a ConstantOfShape in the place of each weight whose bytes lie in another file, which need not be there."""
    outside = [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    inside = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    if not outside:
        return
    nodes = list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(inside)
    for number, tensor in enumerate(outside):
        shape = f"{tensor.name}{_SHAPE}"
        value = np.array([_FILL], onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        graph.initializer.append(numpy_helper.from_array(np.array(tensor.dims, np.int64), shape))
        held = numpy_helper.from_array(value)
        graph.node.append(
            onnx.helper.make_node("ConstantOfShape", [shape], [tensor.name], name=f"weight_{number}", value=held)
        )
    graph.node.extend(nodes)


def _distinguish(graph: onnx.GraphProto) -> None:
    """Give each stand-in a value of its own, those of one weight the same one."""
    stored = {t.name for t in graph.initializer}
    stand_ins = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in stored]
    tied = _tied(graph, stored | {n.output[0] for n in stand_ins})
    steps: dict[tuple[str, ...], int] = {}
    for node in stand_ins:
        for attribute in node.attribute:
            value = numpy_helper.to_array(attribute.t)
            if value.dtype.kind == "f" and value.size == 1 and value.flat[0] not in (0, 1):
                key = (node.input[0], repr(value.flat[0]), *tied.get(node.output[0], ("", node.output[0])))
                step = steps.setdefault(key, len(steps) + 1)
                distinct = (value.astype(np.float64) * (1 + step * _STEP)).astype(value.dtype)
                attribute.t.CopyFrom(numpy_helper.from_array(distinct))


def _tied(graph: onnx.GraphProto, stored: set[str]) -> dict[str, tuple[str, ...]]:
    """For stand-ins of what may be one weight, what they then have in common: operator, input, the other constants.

    Layers that share their weights show it where an exporter kept a weight's name: Gemms with one bias have one
    weight, even if each got a transposed copy of its own.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, tuple[str, ...]] = {}
    for node in graph.node:
        constants = [name for name in node.input if name in stored]
        for i, name in enumerate(node.input):
            others = [c for c in constants if c != name]
            if name in stored and len(readers[name]) == 1 and any(len(readers[c]) > 1 for c in others):
                found[name] = (node.op_type, str(i), *others)
    return found


def _resize(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> tuple[int, int] | None:
    """Give inputs their shapes; (old, new) batch where it changes."""
    problems = Problems()
    inputs = {i.name: i for i in graph.input}
    batches: list[tuple[int, int]] = []
    for name, sizes in shapes.items():
        place = f"input '{name}'"
        if name not in inputs:
            listed = ", ".join(inputs) or "none"
            problems.add(codes.INPUT_SHAPE, place, "the model has no input of this name", f"its inputs are {listed}")
            continue
        dims = inputs[name].type.tensor_type.shape.dim
        if len(dims) != len(sizes):
            cause = f"the shape given has {len(sizes)} dims, the model's has {len(dims)}"
            problems.add(codes.SHAPE_RANK, place, cause, "give one size for each dim")
            continue
        if sizes and dims[0].HasField("dim_value") and dims[0].dim_value != sizes[0]:
            batches.append((dims[0].dim_value, sizes[0]))
        for dim, size in zip(dims, sizes, strict=True):
            if size >= 0:
                dim.dim_value = size
    problems.raise_any()
    return batches[0] if batches and len(set(batches)) == 1 else None


def _rebatch(graph: onnx.GraphProto, old: int, new: int) -> None:
    """Constant shapes that start with the old batch start with the new one; what was inferred for the old one goes."""
    targets = {n.input[1] for n in graph.node if n.op_type in ("Reshape", "Expand") and len(n.input) > 1}
    tensors = [t for t in graph.initializer if t.name in targets]
    tensors += [
        a.t for n in graph.node if n.op_type == "Constant" and n.output[0] in targets for a in n.attribute
        if a.name == "value"
    ]  # fmt: skip
    for tensor in tensors:
        value = numpy_helper.to_array(tensor).copy()
        if value.ndim == 1 and value.size and value[0] == old:
            value[0] = new
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
