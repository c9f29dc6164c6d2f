"""What an ONNX file tells before it is compiled: the shape of `atc inspect model.onnx --json`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from atc_py.cli.om_facts import histogram
from atc_py.emit.summary import port_json
from atc_py.errors import AtcError
from atc_py.frontend import codes, import_model, model_file
from atc_py.frontend.onnx_types import ELEMENTS, declared_dims
from atc_py.ir.graph import Graph
from atc_py.plan.types import Port


def overview(path: str) -> tuple[dict[str, Any], Graph | None]:
    """Facts about the model, and its imported graph (None when it cannot be imported, `problems` says why)."""
    proto = model_file.load(path).proto
    constants = [_held(node) for node in _nodes(proto.graph) if _operator(node) == "Constant"]
    facts: dict[str, Any] = {
        "format_version": 1,
        "name": _text(proto.graph.name),
        "file": {"path": path, "bytes": Path(path).stat().st_size},
        "properties": _properties(proto),
        "op_histogram": histogram(_operator(node) for node in _nodes(proto.graph)),
        "initializers": len(proto.graph.initializer),
        "constants": len(constants),
        "weights": sum(_bytes(t) for t in (*proto.graph.initializer, *constants)),
        "symbols": {},
        "supported": True,
        "unsupported": [],
        "problems": [],
        "warnings": [],
    }
    try:
        imported = import_model(path)
    except AtcError as e:
        unknown = [p for p in e.problems if p.code == codes.UNKNOWN_OP]
        facts |= {
            "supported": False,
            "unsupported": [f"{p.place}: {p.cause}" for p in unknown],
            "problems": [p.to_json() for p in e.problems],
            "inputs": _declared(proto, proto.graph.input),
            "outputs": _declared(proto, proto.graph.output),
        }
        return facts, None
    graph = imported.graph
    facts |= {
        "symbols": {s: {"low": r.lo, "high": r.hi} for s, r in graph.symbols.items() if not r.runtime},
        "warnings": [w.to_json() for w in imported.warnings],
        "inputs": [port_json(Port(graph.values[v].name, graph.type(v), -1)) for v in graph.inputs],
        "outputs": [
            port_json(Port(name, graph.type(v), -1)) for v, name in zip(graph.outputs, graph.output_names, strict=True)
        ],
    }
    return facts, graph


def _text(value: str | bytes) -> str:
    """A name; protobuf gives those that are no UTF-8 as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _properties(proto: onnx.ModelProto) -> dict[str, str]:
    opsets = ", ".join(f"{_text(o.domain) or 'ai.onnx'} {o.version}" for o in proto.opset_import)
    producer = " ".join(filter(None, (_text(proto.producer_name), _text(proto.producer_version))))
    return {"producer": producer, "ir_version": str(proto.ir_version), "opsets": opsets}


def _operator(node: onnx.NodeProto) -> str:
    domain, op_type = _text(node.domain), _text(node.op_type)
    return op_type if domain in ("", "ai.onnx") else f"{domain}::{op_type}"


def operators(proto: onnx.ModelProto) -> list[str]:
    """The operators that the model's graph and its functions use, sorted."""
    bodies = [onnx.GraphProto(node=f.node) for f in proto.functions]
    return sorted({_operator(node) for graph in (proto.graph, *bodies) for node in _nodes(graph)})


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs included."""
    stack = [graph]
    while stack:
        for node in stack.pop().node:
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    stack.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    stack.extend(attribute.graphs)


def _held(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a Constant node; an empty one for those that say their value in another way, which are small."""
    return next((a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR), onnx.TensorProto(dims=[0]))


def _bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor by its type and dims; strings count as nothing."""
    count = 1
    for d in tensor.dims:
        count *= d
    try:
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, TypeError):
        return 0


def _declared(proto: onnx.ModelProto, values: Any) -> list[dict[str, Any]]:
    """Inputs or outputs as the file declares them."""
    constants = {t.name for t in proto.graph.initializer}
    found = []
    for value in values:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        kind = value.type.WhichOneof("value") or "unknown"
        dims = declared_dims(tensor) if kind == "tensor_type" else None
        found.append(
            {
                "name": _text(value.name),
                "dtype": _dtype(tensor.elem_type) if kind == "tensor_type" else kind.removesuffix("_type"),
                "shape": None
                if dims is None
                else ["?" if d is None else d if isinstance(d, int) else _text(d) for d in dims],
            }
        )
    return found


def _dtype(number: int) -> str:
    """The type's name as an imported model's inputs have it."""
    known = ELEMENTS.get(number)
    return f"type {number}" if known is None else known.value
