"""Graphs and functions of the file as plain records: producers before consumers, free names of bodies known.

    b = Relu(a)            file order b, a, If     →   a, b, If
    a = Conv(x)                                        If.implicit == ("b",): its branches read b of this graph
    y = If(c){ Neg(b) }{ Abs(b) }

Everything that is wrong with names alone is found here: undefined tensors, tensors defined twice, cycles.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from atc_py.errors import Problems, error
from atc_py.frontend import codes
from atc_py.frontend.asked import Asked, asked
from atc_py.frontend.model_file import imports, normal_domain
from atc_py.frontend.onnx_types import text, texts

MAX_NESTING = 32
"""Subgraphs and function calls inside one another."""

Initializer = onnx.TensorProto | onnx.SparseTensorProto
Named = tuple[str, str, onnx.AttributeProto]
"""An attribute's name, the name of the function's attribute that it refers to (or ""), and the attribute."""


@dataclass(eq=False, slots=True)
class NodeInfo:
    """A node of the file. `label` is its name, or `OpType_<index>`.

    `implicit` are the outer tensors that its bodies read.
    """

    op: str
    domain: str
    overload: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Sequence[Named] = ()
    bodies: dict[str, GraphInfo] = field(default_factory=dict)
    implicit: tuple[str, ...] = ()
    version: int = 0
    """The opset to take, where it is not that of the surrounding graph (0)."""
    asked: Asked | None = None
    """What its metadata ask of the schedule."""

    @property
    def spelled(self) -> str:
        """The operator as messages write it."""
        return f"{self.domain}::{self.op}" if self.domain else self.op

    @property
    def place(self) -> str:
        """The node as messages write it."""
        return f"node '{self.label}' ({self.spelled})"


@dataclass(eq=False)
class GraphInfo:
    """A graph of the file, its nodes in an order in which they can run.

    `free` maps the outer names that it reads to their first reader.
    """

    name: str
    inputs: dict[str, onnx.TypeProto]
    outputs: tuple[str, ...]
    nodes: list[NodeInfo]
    initializers: dict[str, Initializer] = field(default_factory=dict)
    declared: dict[str, onnx.TypeProto] = field(default_factory=dict)
    free: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class FunctionInfo:
    """A local function, or an operator's body as onnx defines it."""

    key: str
    graph: GraphInfo
    opsets: dict[str, int]
    required: tuple[str, ...] = ()
    defaults: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)


def nodes_of(protos: Iterable[onnx.NodeProto], problems: Problems, depth: int = 0, path: str = "") -> list[NodeInfo]:
    """Records of nodes in file order, their bodies included; `path` goes before the labels of nodes without a name."""
    found = []
    for index, proto in enumerate(protos):
        op, name, overload, domain = texts((proto.op_type, proto.name, proto.overload, proto.domain))
        label = name or f"{path}{op}_{index}"
        info = NodeInfo(op, normal_domain(domain), overload, label, texts(proto.input), texts(proto.output))
        info.attributes = named(proto.attribute)
        if proto.metadata_props:
            info.asked = asked(proto.metadata_props)
        for name, _, attribute in info.attributes:
            if attribute.HasField("g"):
                info.bodies[name] = graph_of(attribute.g, problems, depth + 1, f"{label}/{name}")
        if info.bodies:
            info.implicit = tuple(dict.fromkeys(name for body in info.bodies.values() for name in body.free))
        found.append(info)
    return found


def named(protos: Iterable[onnx.AttributeProto]) -> list[Named]:
    """Attributes with the names that they have and refer to."""
    return [(text(a.name), text(a.ref_attr_name), a) for a in protos]


def graph_of(proto: onnx.GraphProto, problems: Problems, depth: int = 0, name: str = "") -> GraphInfo:
    """The record of a graph; what is wrong with its names is added to `problems`."""
    if depth > MAX_NESTING:
        raise error(codes.NESTING, name, f"subgraphs are nested more than {MAX_NESTING} deep")
    inputs: dict[str, onnx.TypeProto] = {}
    for value in proto.input:
        if text(value.name) in inputs:
            problems.add(codes.DEFINED_TWICE, f"tensor '{value.name}'", "two inputs of the graph have this name")
        inputs[value.name] = value.type
    tensors: list[tuple[str, Initializer]] = [(t.name, t) for t in proto.initializer]
    tensors += [(t.values.name, t) for t in proto.sparse_initializer]
    initializers = dict(tensors)
    texts(initializers)
    if len(initializers) < len(tensors):
        for key, count in Counter(key for key, _ in tensors).items():
            if count > 1:
                problems.add(codes.DEFINED_TWICE, f"tensor '{key}'", "two initializers of the graph have this name")
    declared = {v.name: v.type for v in proto.value_info} | {v.name: v.type for v in proto.output}
    nodes = nodes_of(proto.node, problems, depth, f"{name}/" if depth else "")
    outputs = texts(v.name for v in proto.output)
    graph = GraphInfo(name or proto.name, inputs, outputs, nodes, initializers, declared)
    arrange(graph, problems)
    return graph


def function_of(proto: onnx.FunctionProto, problems: Problems, place: str) -> FunctionInfo:
    """The record of a function; raises `AtcError` when its opset imports cannot be read."""
    graph = GraphInfo(
        proto.name,
        {name: onnx.TypeProto() for name in texts(proto.input)},
        texts(proto.output),
        nodes_of(proto.node, problems),
    )
    arrange(graph, problems)
    return FunctionInfo(
        place,
        graph,
        imports(proto.opset_import, place),
        texts(proto.attribute),
        {text(a.name): a for a in proto.attribute_proto},
    )


def arrange(graph: GraphInfo, problems: Problems) -> None:
    """Order the nodes and find the free names."""
    maker: dict[str, int] = {}
    inputs, initializers = graph.inputs, graph.initializers
    for i, node in enumerate(graph.nodes):
        for name in node.outputs:
            if not name:
                continue
            if name in maker or name in inputs or name in initializers:
                other = graph.nodes[maker[name]].place if name in maker else "an input or initializer"
                cause = f"it is made by {other} and again by {node.place}"
                problems.add(codes.DEFINED_TWICE, f"tensor '{name}'", cause, "give each tensor a name of its own")
            maker.setdefault(name, i)
    free: dict[str, str] = {}
    forward = False
    for i, node in enumerate(graph.nodes):
        for name in (*node.inputs, *node.implicit) if node.implicit else node.inputs:
            if name in maker:
                forward = forward or maker[name] >= i
            elif name and name not in inputs and name not in initializers:
                free.setdefault(name, node.place)
    for name in graph.outputs:
        if name and name not in maker and name not in inputs and name not in initializers:
            free.setdefault(name, f"output '{name}'")
    graph.free = free
    if forward:
        graph.nodes = _sorted(graph.nodes, maker, problems)


def _sorted(nodes: list[NodeInfo], maker: Mapping[str, int], problems: Problems) -> list[NodeInfo]:
    """The nodes, producers first, otherwise in file order; nodes on cycles are reported and left out."""
    needs = [{maker[n] for n in (*node.inputs, *node.implicit) if n in maker} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(needs):
        for source in sources:
            users[source].append(i)
    waiting = [len(sources) for sources in needs]
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users[i]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        cycle = _cycle(needs, waiting)
        shown = " → ".join(nodes[i].label for i in cycle[:8]) + (" → …" if len(cycle) > 8 else "")
        problems.add(codes.CYCLE, nodes[cycle[0]].place, f"it needs its own result: {shown} → {nodes[cycle[0]].label}")
    return [nodes[i] for i in order]


def _cycle(needs: Sequence[set[int]], waiting: Sequence[int]) -> list[int]:
    """One cycle among the nodes that still wait, in the direction of the data."""
    seen: dict[int, int] = {}
    at = next(i for i, count in enumerate(waiting) if count)
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = min(i for i in needs[at] if waiting[i])
    cycle = path[seen[at] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def undefined(graph: GraphInfo, problems: Problems) -> None:
    """Report the names that a graph without outer scope reads but nobody defines."""
    if not graph.free:
        return
    from difflib import get_close_matches

    defined = [*graph.inputs, *graph.initializers, *(o for n in graph.nodes for o in n.outputs if o)]
    for name, reader in graph.free.items():
        near = get_close_matches(name, defined, 3) if len(defined) < 20_000 else []
        hint = f"similar names: {', '.join(near)}" if near else "the model was cut or edited wrongly: export it again"
        problems.add(codes.UNDEFINED, reader, f"tensor '{name}' is not defined", hint)


def live(graph: GraphInfo, wanted: Iterable[str]) -> Iterator[tuple[NodeInfo, int]]:
    """The nodes that `wanted` depends on, in order, each with the number of its leading outputs that matter."""
    needed = set(filter(None, wanted))
    found: list[tuple[NodeInfo, int]] = []
    for node in reversed(graph.nodes):
        count = len(node.outputs)
        while count and node.outputs[count - 1] not in needed:
            count -= 1
        if count:
            found.append((node, count))
            needed.update(node.inputs)
            needed.update(node.implicit)
            needed.discard("")
    return reversed(found)
