"""ONNX models in a line, and the OM that comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx import defs as onnx_defs

from atc_py import Options, Session, compile_model
from atc_py.emit import Om, om_bytes

FLOAT, FLOAT16, BFLOAT16, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
INT64, INT32, BOOL, STRING = TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING
node = helper.make_node


def info(name: str, declared: Any) -> Any:
    """A value's declaration from (dtype, shape) or from a type."""
    if isinstance(declared, TypeProto):
        return helper.make_value_info(name, declared)
    return helper.make_tensor_value_info(name, declared[0], declared[1])


def tensor(name: str, value: Any) -> TensorProto:
    """A constant from an array, or the given tensor under the name."""
    if isinstance(value, TensorProto):
        named = TensorProto()
        named.CopyFrom(value)
        named.name = name
        return named
    return numpy_helper.from_array(np.asarray(value), name)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    name: str = "g",
) -> GraphProto:
    """A graph; the types of its outputs are left to the compiler."""
    ins = [info(n, t) for n, t in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs]
    return helper.make_graph(list(nodes), name, ins, outs, [tensor(n, v) for n, v in (constants or {}).items()])


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int | None = None,
    name: str = "g",
) -> ModelProto:
    """A model at the newest opset (or the given one)."""
    domains = dict.fromkeys(["", *(n.domain for n in nodes)])
    newest = onnx_defs.onnx_opset_version() if opset is None else opset
    opsets = [helper.make_opsetid(d, newest if not d else 1) for d in domains]
    return helper.make_model(graph(nodes, inputs, outputs, constants, name), opset_imports=opsets, ir_version=10)


def sequence_of(dtype: int, shape: Sequence[int | str] | None = None) -> TypeProto:
    """The type of a sequence of tensors."""
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(dtype, shape))


def compiled(proto: ModelProto, **options: Any) -> Om:
    """What a conversion makes of the model."""
    return compile_model(proto, Options(**options))


def om_of(proto: ModelProto, **options: Any) -> bytes:
    """The OM's bytes."""
    return om_bytes(compiled(proto, **options))


def session(proto: ModelProto, **options: Any) -> Session:
    """A session of the model, through the whole path."""
    return Session(om_of(proto, **options))


def body_attribute(proto: GraphProto, name: str = "body") -> AttributeProto:
    """A subgraph as an attribute."""
    return helper.make_attribute(name, proto)


def branching() -> ModelProto:
    """An If of two branches in the middle of a model; which one is taken depends on the input's sum."""
    then = graph([node("Neg", ["x"], ["t0"]), node("Exp", ["t0"], ["t"])], {}, ["t"], name="then")
    other = graph([node("Abs", ["x"], ["e"])], {}, ["e"], name="else")
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["i"]),
    ]
    nodes[-1].attribute.extend([body_attribute(then, "then_branch"), body_attribute(other, "else_branch")])
    nodes.append(node("Sin", ["i"], ["y"]))
    return model(nodes, {"x": (FLOAT, [4])}, ["y"], {"zero": np.float32(0)})
