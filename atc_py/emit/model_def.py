"""MODEL_DEF: the lowered graph with the plan's addresses, as GE's ModelDef.

Each node becomes an OpDef. A node that is a task has the task's offsets (`input_i`, `output_i`, `workspace`), stream
and id; one that moves no byte (a Reshape, a constant's recipe) is marked `_no_task`. Offsets are bytes in the operand's
space: WEIGHTS for constants, the arena for feature maps, 0 in the caller's buffers; -1 where `bind` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.emit.attrs import attrs_bytes, described, descriptor, fields, in_file, nbytes_of
from atc_py.emit.constants import Raw, Step, draw
from atc_py.emit.wire import nested, number, packed, text, texts
from atc_py.ir.constants import Blob
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.plan.types import Operand, Plan, Task
from om_format.proto.ge_ir_pb2 import AttrDef, GraphDef, ModelDef, OpDef, TensorDef

MODEL_VERSION = 1
_MODEL, _GRAPH, _OP, _TENSOR, _VALUE = map(fields, (ModelDef, GraphDef, OpDef, TensorDef, AttrDef))
_INPUT, _OUTPUT = _OP["input_desc"], _OP["output_desc"]


@dataclass
class Drawing:
    """What is needed to draw one graph: unique names, where blobs lie, and the tasks of its nodes (root graph)."""

    locate: Callable[[Blob], int | None]
    plan: Plan | None
    tasks: Mapping[int, Task] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        """`name`, or `name_2`, … when it is taken. Netron and GE address values as "node:index"."""
        candidate, i = name, 1
        while candidate in self.taken:
            i += 1
            candidate = f"{name}_{i}"
        self.taken.add(candidate)
        return candidate

    def offset(self, operand: Operand | None) -> int:
        """An operand's address in its space in bytes, -1 where it is bound later."""
        if operand is None or self.plan is None:
            return -1
        base = self.plan.buffers[operand.buffer].offset
        return -1 if base is None or isinstance(operand.delta, Dim) else base + operand.delta


def task_by_value(plan: Plan) -> dict[int, Task]:
    """The task that writes each value."""
    return {o.value: t for t in plan.tasks() for o in t.outputs}


def model_def(
    name: str, graph: Graph, plan: Plan | None, locate: Callable[[Blob], int | None], model_attrs: Mapping[str, Any]
) -> bytes:
    """The ModelDef of a lowered graph and its plan, in its bytes; subgraphs follow the root graph."""
    taken: set[str] = set()
    writers = {} if plan is None else task_by_value(plan)
    tasks = {n.id: writers[n.outputs[0]] for n in graph.nodes.values() if n.outputs and n.outputs[0] in writers}
    parts = [text(_MODEL["name"], name), number(_MODEL["version"], MODEL_VERSION)]
    for label, inner in _all_graphs(name, graph):
        root = inner is graph
        drawing = Drawing(locate, plan if root else None, tasks if root else {}, taken)
        parts.append(nested(_MODEL["graph"], _graph_def(label, inner, drawing)))
    return b"".join([*parts, attrs_bytes(_MODEL["attr"], model_attrs)])


def _all_graphs(name: str, graph: Graph) -> Iterator[tuple[str, Graph]]:
    """The root graph and every subgraph under the name by which its node refers to it."""
    stack = [(name, graph)]
    while stack:
        label, current = stack.pop()
        yield label, current
        found = [
            (_subgraph_name(label, node, key), body)
            for node in current.order()
            if node.op != "Fused"
            for key, body in node.subgraphs.items()
        ]
        stack.extend(reversed(found))


def _subgraph_name(graph: str, node: Node, key: str) -> str:
    return f"{graph}/{node.id}.{key}"


def _graph_def(label: str, graph: Graph, drawing: Drawing) -> bytes:
    names: dict[int, str] = {}
    ops: list[bytes] = []
    for node in graph.order():
        if node.op == "Const":
            ops += _draw_const(graph, node, names, drawing)
        else:
            ops.append(_draw_node(label, graph, node, names, drawing))
    ends = texts(_GRAPH["input"], [names[v] for v in graph.inputs])
    ends += texts(_GRAPH["output"], [names[v] for v in graph.outputs if v != ABSENT])
    return b"".join([text(_GRAPH["name"], label), ends, *[nested(_GRAPH["op"], op) for op in ops]])


def _draw_const(graph: Graph, node: Node, names: dict[int, str], drawing: Drawing) -> Iterator[bytes]:
    value = graph.values[node.outputs[0]]
    assert node.const is not None
    label = drawing.unique(value.name or node.name or f"const_{node.id}")
    names[value.id] = f"{label}:0"
    for part in draw(label, node.const, drawing.locate):
        if part.name != label:
            drawing.taken.add(part.name)
        made = described(_OUTPUT, value.type if part.name == label else part.type)
        yield (_raw(part) if isinstance(part, Raw) else _step(part)) + made


def _raw(part: Raw) -> bytes:
    """A Const up to what it makes."""
    desc = nested(_TENSOR["desc"], in_file(part.type, part.name, part.nbytes, part.offset))
    data = nested(_TENSOR["data"], part.inline) if part.inline else b""
    entry = nested(1, b"value") + nested(2, nested(_VALUE["t"], desc + data))
    return b"".join((text(_OP["name"], part.name), text(_OP["type"], "Const"), nested(_OP["attr"], entry)))


def _step(part: Step) -> bytes:
    """An operation of a constant's recipe up to what it makes."""
    parts = [
        text(_OP["name"], part.name),
        text(_OP["type"], part.op),
        texts(_OP["input"], [source for source, _ in part.inputs]),
        attrs_bytes(_OP["attr"], {**part.attrs, "_no_task": True}),
        *[described(_INPUT, type_) for _, type_ in part.inputs],
    ]
    return b"".join(parts)


def _draw_node(label: str, graph: Graph, node: Node, names: dict[int, str], drawing: Drawing) -> bytes:
    """An OpDef, its fields in the order of their numbers."""
    task, name = drawing.tasks.get(node.id), drawing.unique(_node_name(graph, node))
    values = [graph.values[v] for v in node.outputs]
    reads: Sequence[Operand | None] = task.inputs[: len(node.inputs)] if task is not None else ()
    known = [None if v == ABSENT else graph.values[v].type for v in node.inputs]
    parts = [
        text(_OP["name"], name),
        text(_OP["type"], op_type(node)),
        texts(_OP["input"], [names.get(v, "") for v in node.inputs]),
        attrs_bytes(_OP["attr"], _shown(node, task)),
        number(_OP["id"], node.id),
        number(_OP["stream_id"], task.stream if task else 0),
        packed(_OP["input_i"], [*map(drawing.offset, reads), *[-1] * (len(node.inputs) - len(reads))]),
        packed(_OP["output_i"], map(drawing.offset, task.outputs) if task else [-1] * len(values)),
    ]
    if task is not None and task.workspace is not None:
        parts.append(packed(_OP["workspace"], [drawing.offset(task.workspace)]))
        parts.append(packed(_OP["workspace_bytes"], [nbytes_of(task.workspace.type)]))
    parts.append(packed(_OP["is_input_const"], [graph.const(v) is not None for v in node.inputs]))
    parts += [nested(_INPUT, b"") if t is None else described(_INPUT, t) for t in known]
    parts += [nested(_OUTPUT, descriptor(v.type, v.name)) for v in values]
    if node.op != "Fused" and node.subgraphs:
        parts.append(texts(_OP["subgraph_name"], [_subgraph_name(label, node, key) for key in node.subgraphs]))
    names.update([(v.id, f"{name}:{i}") for i, v in enumerate(values)])
    return b"".join(parts)


def _shown(node: Node, task: Task | None) -> dict[str, Any]:
    """All attributes of a node as they are shown: its own, and which task it is."""
    attrs = node_attrs(node)
    if task is not None:
        attrs["_task_id"] = task.id
    elif node.op not in ("Data", "NetOutput"):
        attrs["_no_task"] = True
    return attrs


def _node_name(graph: Graph, node: Node) -> str:
    if node.op == "Data":
        return graph.values[node.outputs[0]].name or f"data_{node.id}"
    return node.name or f"{node.op}_{node.id}"


def op_type(node: Node) -> str:
    """The type under which a node is shown: a fused task is shown as its anchor."""
    if node.op == "Fused":
        return fused_ops(node)[0]
    return node.op


def fused_ops(node: Node) -> list[str]:
    """The operators of a fused task, in order."""
    body = node.subgraphs["body"]
    return [n.op for n in body.order() if n.op not in ("Data", "Const", "NetOutput")]


def node_attrs(node: Node) -> dict[str, Any]:
    """A node's attributes and notes as they are shown; a fused task shows its anchor's attributes too."""
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if not k.startswith("_")}
    if node.op == "Fused":
        anchor = next(n for n in node.subgraphs["body"].order() if n.op not in ("Data", "Const", "NetOutput"))
        attrs |= {k: v for k, v in anchor.attrs.items() if not k.startswith("_")}
        attrs["_fused_ops"] = fused_ops(node)
    if node.engine:
        attrs["_engine"] = node.engine
    if node.precision:
        attrs["_precision"] = node.precision
    if node.stream:
        attrs["_stream_label"] = node.stream
    if node.origin:
        attrs["_datadump_original_op_names"] = list(node.origin)
    return attrs
