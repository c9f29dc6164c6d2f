"""A graph of the IR as the text form of an ONNX ModelProto, which Netron opens (GE: `ge_onnx_*.pbtxt`).

    graph {
      node { input: "x:0" input: "w:0" output: "fc:0" name: "fc" op_type: "MatMul" }
      initializer { dims: 64 dims: 8 data_type: 1 name: "w:0" raw_data: "..." }
      input { name: "x:0" type { tensor_type { elem_type: 1 shape { dim { dim_param: "N" } dim { dim_value: 64 } } } } }

It is for being looked at: operators are those of the IR, not only ONNX's own; a value is named `node:output`, as GE
does. What a pass knows besides (engine, precision, storage format) becomes attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atc_py.emit.attrs import type_text
from atc_py.emit.model_def import node_attrs
from atc_py.ir.constants import Blob, Constant, Splat
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Format, Map, Optional, Sequence, Tensor, Type

IR_VERSION = 10
ELEMENT = {
    dtype: number
    for number, dtype in enumerate(
        ("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64",
         "uint32", "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
         "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2",
         "float6_e2m3fn", "float6_e3m2fn"),
        1,
    )
}  # fmt: skip
"""ONNX's numbers of element types (TensorProto.DataType)."""


def onnx_text(graph: Graph, weights: bool = True, attributes: bool = True) -> str:
    """The model's text; ends with a line break. Without `weights`, constants have no bytes."""
    lines = [f"ir_version: {IR_VERSION}", 'producer_name: "atc-py"', "graph {"]
    lines += _graph(graph, weights, attributes, "  ")
    lines += ["}", "opset_import {", '  domain: ""', "  version: 21", "}", ""]
    return "\n".join(lines)


def _graph(graph: Graph, weights: bool, attributes: bool, pad: str) -> Iterator[str]:
    names = _names(graph)
    for node in graph.order():
        if node.op not in ("Data", "Const", "NetOutput"):
            yield from _node(graph, node, names, weights, attributes, pad)
    yield f"{pad}name: {_quoted(graph.name or 'graph')}"
    for node in graph.order():
        if node.const is not None:
            yield from _initializer(names[node.outputs[0]], node.const, weights, pad)
    for value in graph.inputs:
        yield f"{pad}input {{ {_value(names[value], graph.type(value))} }}"
    for value in graph.outputs:
        if value != ABSENT:
            yield f"{pad}output {{ {_value(names[value], graph.type(value))} }}"
    for node in graph.order():
        if node.op not in ("Data", "Const", "NetOutput"):
            for value in node.outputs:
                yield f"{pad}value_info {{ {_value(names[value], graph.type(value))} }}"


def _names(graph: Graph) -> dict[int, str]:
    """Unique names of the graph's values: `node:output`."""
    taken: set[str] = set()
    names: dict[int, str] = {ABSENT: ""}
    for node in graph.order():
        label = node.name or (graph.values[node.outputs[0]].name if node.outputs else "") or f"{node.op}_{node.id}"
        if label in taken:
            label = f"{label}_{node.id}"
        taken.add(label)
        for i, value in enumerate(node.outputs):
            names[value] = f"{label}:{i}"
    return names


def _node(
    graph: Graph, node: Node, names: Mapping[int, str], weights: bool, attributes: bool, pad: str
) -> Iterator[str]:
    inner = pad + "  "
    yield f"{pad}node {{"
    yield from (f"{inner}input: {_quoted(names[v])}" for v in node.inputs)
    yield from (f"{inner}output: {_quoted(names[v])}" for v in node.outputs)
    domain, _, kind = node.op.rpartition("::")
    yield f"{inner}name: {_quoted(node.name or f'{node.op}_{node.id}')}"
    yield f"{inner}op_type: {_quoted(kind)}"
    if domain:
        yield f"{inner}domain: {_quoted(domain)}"
    if attributes:
        for name, value in sorted(_told(graph, node).items()):
            yield from _attribute(name, value, inner)
    for name, body in sorted(node.subgraphs.items()):
        yield f"{inner}attribute {{"
        yield f"{inner}  name: {_quoted(name)}"
        yield f"{inner}  type: GRAPH"
        yield f"{inner}  g {{"
        yield from _graph(body, weights, attributes, inner + "    ")
        yield f"{inner}  }}"
        yield f"{inner}}}"
    yield f"{pad}}}"


def _told(graph: Graph, node: Node) -> dict[str, Any]:
    """The node's attributes, and the storage formats of its results where they are not those of the model."""
    told = node_attrs(node)
    for i, value in enumerate(node.outputs):
        type_ = graph.type(value)
        if isinstance(type_, Tensor) and type_.shape is not None and type_.storage_format is not type_.format:
            told[f"_storage_{i}"] = f"{type_.storage_format.value} {list(map(str, type_.storage_shape))}"
    return told


def _attribute(name: str, value: Any, pad: str) -> Iterator[str]:
    form = _form(value)
    if form is not None:
        kind, text = form
        yield f"{pad}attribute {{ name: {_quoted(name)} {text} type: {kind} }}"


def _form(value: Any) -> tuple[str, str] | None:
    """(type of the attribute, its field); None for what ONNX has no form for."""
    if isinstance(value, bool):
        return "INT", f"i: {int(value)}"
    if isinstance(value, int):
        return "INT", f"i: {value}"
    if isinstance(value, float):
        return "FLOAT", f"f: {value!r}"
    if isinstance(value, (str, bytes)):
        return "STRING", f"s: {_quoted(value)}"
    if isinstance(value, (DType, Format)):
        return "STRING", f"s: {_quoted(value.value)}"
    if isinstance(value, Dim):
        return "STRING", f"s: {_quoted(str(value))}"
    if isinstance(value, (Tensor, Sequence, Optional, Map)):
        return "STRING", f"s: {_quoted(type_text(value))}"
    if isinstance(value, (list, tuple)):
        return _many(value)
    return None


def _many(values: list[Any] | tuple[Any, ...]) -> tuple[str, str]:
    if values and all(isinstance(v, int) for v in values):
        return "INTS", " ".join(f"ints: {int(v)}" for v in values)
    if values and all(isinstance(v, (int, float)) for v in values):
        return "FLOATS", " ".join(f"floats: {float(v)!r}" for v in values)
    return "STRINGS", " ".join(f"strings: {_quoted(str(getattr(v, 'value', v)))}" for v in values)


def _initializer(name: str, constant: Constant, weights: bool, pad: str) -> Iterator[str]:
    dims = " ".join(f"dims: {d}" for d in constant.shape if isinstance(d, int))
    head = f"{dims} data_type: {ELEMENT[constant.dtype.value]} name: {_quoted(name)}"
    if isinstance(constant, Blob) and weights and constant.dtype is not DType.STRING:
        yield f"{pad}initializer {{ {head} raw_data: {_quoted(bytes(constant.data))} }}"
    elif isinstance(constant, Blob):
        yield f"{pad}initializer {{ {head} }}"
    else:
        what = f"every element {constant.value}" if isinstance(constant, Splat) else type(constant).__name__
        yield f"{pad}initializer {{ {head} doc_string: {_quoted(what)} }}"


def _value(name: str, type_: Type) -> str:
    return f"name: {_quoted(name)} type {{ {_type(type_)} }}"


def _type(type_: Type) -> str:
    if isinstance(type_, Tensor):
        shape = "" if type_.shape is None else f" shape {{ {' '.join(map(_dim, type_.shape))} }}"
        return f"tensor_type {{ elem_type: {ELEMENT[type_.dtype.value]}{shape} }}"
    if isinstance(type_, Sequence):
        return f"sequence_type {{ elem_type {{ {_type(type_.element)} }} }}"
    if isinstance(type_, Optional):
        return f"optional_type {{ elem_type {{ {_type(type_.element)} }} }}"
    return f"map_type {{ key_type: {ELEMENT[type_.key.value]} value_type {{ {_type(type_.value)} }} }}"


def _dim(size: Any) -> str:
    return f"dim {{ dim_value: {size} }}" if isinstance(size, int) else f"dim {{ dim_param: {_quoted(str(size))} }}"


_PLAIN = {c: chr(c) for c in range(32, 127)} | {ord('"'): '\\"', ord("\\"): "\\\\"}
_ESCAPED = [_PLAIN.get(c, f"\\{c:03o}") for c in range(256)]


def _quoted(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return '"' + "".join(_ESCAPED[c] for c in raw) + '"'
