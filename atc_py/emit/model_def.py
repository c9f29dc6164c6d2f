"""MODEL_DEF: the lowered graph with the plan's addresses, as GE's ModelDef.

Each node becomes an OpDef. A node that is a task has the task's offsets (`input_i`, `output_i`, `workspace`), stream
and id; one that moves no byte (a Reshape, a constant's recipe) is marked `_no_task`. Offsets are bytes in the operand's
space: WEIGHTS for constants, the arena for feature maps, 0 in the caller's buffers; -1 where `bind` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from atc_py.emit.attrs import descriptor, set_attrs
from atc_py.emit.constants import Raw, draw
from atc_py.ir.constants import Blob
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.plan.types import Operand, Plan, Task
from om_format.proto.ge_ir_pb2 import GraphDef, ModelDef, OpDef, TensorDescriptor

MODEL_VERSION = 1


def bytes_of(type_: Type) -> int:
    """A value's bytes where they are known, else 0."""
    if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
        return 0
    size = type_.nbytes
    return 0 if isinstance(size, Dim) else size


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


def model_def(name: str, graph: Graph, plan: Plan, locate: Callable[[Blob], int | None], model_attrs: Any) -> ModelDef:
    """The ModelDef of a lowered graph and its plan; subgraphs follow the root graph."""
    model = ModelDef(name=name, version=MODEL_VERSION, custom_version="")
    set_attrs(model.attr, model_attrs)
    taken: set[str] = set()
    writers = task_by_value(plan)
    tasks = {n.id: writers[n.outputs[0]] for n in graph.nodes.values() if n.outputs and n.outputs[0] in writers}
    for label, inner in _all_graphs(name, graph):
        root = inner is graph
        drawing = Drawing(locate, plan if root else None, tasks if root else {}, taken)
        model.graph.append(_graph_def(label, inner, drawing))
    return model


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


def _graph_def(label: str, graph: Graph, drawing: Drawing) -> GraphDef:
    message = GraphDef(name=label)
    names: dict[int, str] = {}
    for node in graph.order():
        if node.op == "Const":
            _draw_const(message, graph, node, names, drawing)
        else:
            _draw_node(label, message, graph, node, names, drawing)
    message.input.extend(f"{names[v]}" for v in graph.inputs)
    message.output.extend(names[v] for v in graph.outputs if v != ABSENT)
    return message


def _draw_const(message: GraphDef, graph: Graph, node: Node, names: dict[int, str], drawing: Drawing) -> None:
    value = graph.values[node.outputs[0]]
    assert node.const is not None
    label = drawing.unique(value.name or node.name or f"const_{node.id}")
    names[value.id] = f"{label}:0"
    for part in draw(label, node.const, drawing.locate):
        if part.name != label:
            drawing.taken.add(part.name)
        op = message.op.add(name=part.name)
        if isinstance(part, Raw):
            op.type = "Const"
            tensor = op.attr["value"].t
            tensor.desc.CopyFrom(descriptor(part.name, part.type, part.nbytes))
            tensor.desc.weight_size = part.nbytes
            if part.inline is not None:
                tensor.data = part.inline
            else:
                tensor.desc.data_offset = part.offset
        else:
            op.type = part.op
            set_attrs(op.attr, {**part.attrs, "_no_task": True})
            for source, type_ in part.inputs:
                op.input.append(source)
                op.input_desc.append(descriptor("", type_, bytes_of(type_)))
        op.output_desc.append(descriptor("", part.type, bytes_of(part.type)))


def _draw_node(
    label: str, message: GraphDef, graph: Graph, node: Node, names: dict[int, str], drawing: Drawing
) -> None:
    task = drawing.tasks.get(node.id)
    op = message.op.add(name=drawing.unique(_node_name(graph, node)), type=op_type(node), id=node.id)
    _draw_inputs(op, graph, node, names, task, drawing)
    for i, value in enumerate(node.outputs):
        names[value] = f"{op.name}:{i}"
        type_ = graph.type(value)
        op.output_desc.append(descriptor(graph.values[value].name, type_, bytes_of(type_)))
        op.output_i.append(drawing.offset(task.outputs[i]) if task else -1)
    attrs = node_attrs(node)
    if task is not None:
        op.stream_id = task.stream
        attrs["_task_id"] = task.id
        if task.workspace is not None:
            op.workspace.append(drawing.offset(task.workspace))
            op.workspace_bytes.append(bytes_of(task.workspace.type))
    elif node.op not in ("Data", "NetOutput"):
        attrs["_no_task"] = True
    set_attrs(op.attr, attrs)
    if node.op != "Fused":
        op.subgraph_name.extend(_subgraph_name(label, node, key) for key in node.subgraphs)


def _draw_inputs(
    op: OpDef, graph: Graph, node: Node, names: dict[int, str], task: Task | None, drawing: Drawing
) -> None:
    for i, value in enumerate(node.inputs):
        if value == ABSENT:
            op.input.append("")
            op.input_desc.append(TensorDescriptor())
            op.is_input_const.append(False)
            op.input_i.append(-1)
            continue
        type_ = graph.type(value)
        op.input.append(names[value])
        op.input_desc.append(descriptor("", type_, bytes_of(type_)))
        op.is_input_const.append(graph.const(value) is not None)
        operand = task.inputs[i] if task is not None and i < len(task.inputs) else None
        op.input_i.append(drawing.offset(operand))


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
