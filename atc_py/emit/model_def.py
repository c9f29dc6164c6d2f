"""MODEL_DEF: the lowered graph with the plan's addresses, as GE's ModelDef.

Each node becomes an OpDef. A node that is a task has the task's offsets (`input_i`, `output_i`, `workspace`), stream
and id; one that moves no byte (a Reshape, a constant's recipe) is marked `_no_task`. Offsets are bytes in the operand's
space: WEIGHTS for constants, the arena for feature maps, 0 in the caller's buffers; -1 where `bind` decides.

The id of an OpDef is what `op_index` names in TASK_INFO: a task's id, a control node's number, and for all else numbers
that follow these; ids are unique over all graphs. A control node has the offsets of what its region reads itself, and
says what its switch reads and jumps to (`emit.regions`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from atc_py.emit.attrs import (
    attr_entry,
    attrs_bytes,
    described,
    fields,
    in_file,
    nbytes_of,
    number_entry,
    texts_entry,
    unnamed,
)
from atc_py.emit.constants import Raw, Step, draw
from atc_py.emit.regions import Control, Part, control_attrs, parts_of
from atc_py.emit.task_info import free_id
from atc_py.emit.wire import BYTES, VARINT, VARINTS, nested, number, packed, sized, tag, text, texts, varint, within
from atc_py.ir.attr_text import attrs_key, keyed_attrs
from atc_py.ir.constants import Blob
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node, Value
from atc_py.ir.types import Tensor, Type
from atc_py.plan.types import Operand, Plan, Task
from om_format.proto.ge_ir_pb2 import AttrDef, GraphDef, ModelDef, OpDef, TensorDef, TensorDescriptor

MODEL_VERSION = 1
_MODEL, _GRAPH, _OP, _TENSOR, _VALUE, _DESC, _ENTRY = map(
    fields, (ModelDef, GraphDef, OpDef, TensorDef, AttrDef, TensorDescriptor, OpDef.AttrEntry)
)
_ORIGIN, _TASK = "_datadump_original_op_names", "_task_id"
_UNMARKED = ("Data", "NetOutput")
"""What runs no task, and need not say so."""
_DRAWN = tag(_GRAPH["op"], BYTES)
_NAME, _READ, _INPUT_AT, _OUTPUT_AT, _IS_CONST, _MADE = (
    tag(_OP[name], BYTES) for name in ("name", "input", "input_i", "output_i", "is_input_const", "output_desc")
)
_BOUND_LATER = varint(-1)
_ID, _STREAM = tag(_OP["id"], VARINT), tag(_OP["stream_id"], VARINT)
_NOTHING, _UNDESCRIBED = _READ + sized(b""), nested(_OP["input_desc"], b"")
_CALLED = tag(_DESC["name"], BYTES)
_VALUE_OF_CONST = (
    tag(_VALUE["t"], BYTES),
    nested(_ENTRY["key"], b"value") + tag(_ENTRY["value"], BYTES),
    tag(_OP["attr"], BYTES),
)


_NO_PART = Part({}, {})


@dataclass
class Drawing:
    """What is needed to draw one graph: unique names and ids, where blobs lie, and the tasks and regions of its nodes.

    `ids` are those of what is no task and no region; `switches` the labels of switches by their regions' numbers.
    """

    locate: Callable[[Blob], int | None]
    plan: Plan | None
    part: Part = _NO_PART
    ids: Iterator[int] = field(default_factory=count)
    switches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    starts: dict[int, bytes] = field(default_factory=dict)
    """The offsets of whole buffers as they are written, by the buffer's number."""

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

    def places(self, operands: Sequence[Operand | None]) -> list[bytes]:
        """The offsets of operands as they are written; most operands are whole buffers."""
        starts = self.starts
        return [
            (starts.get(o.buffer) or self._start(o)) if o is not None and o.delta == 0 else VARINTS[self.offset(o)]
            for o in operands
        ]

    def _start(self, operand: Operand) -> bytes:
        found = self.starts[operand.buffer] = VARINTS[self.offset(operand)]
        return found


def model_def(
    name: str,
    graph: Graph,
    plan: Plan | None,
    locate: Callable[[Blob], int | None],
    model_attrs: Mapping[str, Any],
    switches: Mapping[int, tuple[int, ...]] | None = None,
) -> bytes:
    """The ModelDef of a lowered graph and its plan, in its bytes; subgraphs follow the root graph.

    `switches` are the labels of TASK_INFO's switches (`TaskList.switches`).
    """
    taken: set[str] = set()
    ids, found = count(), {}
    if plan is not None:
        ids, found = count(free_id(plan)), parts_of(graph, plan)
    parts = [text(_MODEL["name"], name), number(_MODEL["version"], MODEL_VERSION)]
    for label, inner in _all_graphs(name, graph):
        drawing = Drawing(locate, plan, found.get(id(inner), _NO_PART), ids, switches or {}, taken)
        parts.append(nested(_MODEL["graph"], _GraphDrawing(label, inner, drawing).drawn()))
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
            if node.subgraphs and node.op != "Fused"
            for key, body in node.subgraphs.items()
        ]
        stack.extend(reversed(found))


def _subgraph_name(graph: str, node: Node, key: str) -> str:
    return f"{graph}/{node.id}.{key}"


class _GraphDrawing:
    """Draws one graph. What readers of a value say about it is made once, with the value."""

    def __init__(self, label: str, graph: Graph, drawing: Drawing) -> None:
        self.label, self.graph, self.drawing = label, graph, drawing
        self.ends = {*graph.inputs, *graph.outputs}
        self.names: dict[int, bytes] = {}  # of these
        self.reads: dict[int, bytes] = {ABSENT: _NOTHING}
        self.described: dict[int, bytes] = {ABSENT: _UNDESCRIBED}
        self.constants: set[int] = set()
        self._looks: dict[Type, tuple[bytes, bytes, bytes]] = {}
        self._types: dict[int, tuple[bytes, bytes, bytes]] = {}
        self._settled: dict[Hashable, tuple[bytes, bytes, bytes]] = {}

    def drawn(self) -> bytes:
        """The GraphDef."""
        ops: list[bytes] = []
        for node in self.graph.order():
            if node.op == "Const":
                ops += self.const(node)
            else:
                op = self.node(node)
                ops += (_DRAWN, VARINTS[len(op)], op)
        parts = [text(_GRAPH["name"], self.label)]
        parts += [nested(_GRAPH["input"], self.names[v]) for v in self.graph.inputs]
        parts += [nested(_GRAPH["output"], self.names[v]) for v in self.graph.outputs if v != ABSENT]
        return b"".join([*parts, *ops])

    def named(self, value: Value, name: bytes) -> tuple[bytes, bytes]:
        """Give a value its name, "node:index"; returns the descriptor of its type, and the field of such an output."""
        self.reads[value.id] = _READ + VARINTS[len(name)] + name
        if value.id in self.ends:
            self.names[value.id] = name
        type_ = value.type
        found = self._types.get(id(type_))
        if found is None:
            found = self._looks.get(type_)
            if found is None:
                read, made = (described(_OP[field], type_) for field in ("input_desc", "output_desc"))
                found = self._looks[type_] = (read, unnamed(type_), made)
            self._types[id(type_)] = found
        self.described[value.id] = found[0]
        return found[1], found[2]

    def const(self, node: Node) -> list[bytes]:
        """The OpDefs of a constant, as entries of the graph's list."""
        value = self.graph.values[node.outputs[0]]
        assert node.const is not None
        label = self.drawing.unique(value.name or node.name or f"const_{node.id}")
        self.constants.add(value.id)
        _, whole = self.named(value, label.encode() + b":0")
        ids = self.drawing.ids
        ops: list[bytes] = []
        for part in draw(label, node.const, self.drawing.locate):
            made = whole
            if part.name != label:
                self.drawing.taken.add(part.name)
                made = described(_OP["output_desc"], part.type)
            numbered = _ID + VARINTS[next(ids)]
            ops += (
                _raw(part, numbered + made) if isinstance(part, Raw) else (_DRAWN, sized(_step(part, numbered) + made))
            )
        return ops

    def node(self, node: Node) -> bytes:
        """An OpDef, its fields in the order of their numbers."""
        drawing = self.drawing
        values, task, control = self.graph.values, drawing.part.tasks.get(node.id), drawing.part.controls.get(node.id)
        name, inputs = self.drawing.unique(_node_name(self.graph, node)), node.inputs
        raw, constants, described = name.encode(), self.constants, self.described
        number = task.id if task is not None else control.number if control is not None else next(drawing.ids)
        parts = [
            _NAME,
            VARINTS[len(raw)],
            raw,
            _typed(op_type(node)),
            *[self.reads.get(v, _NOTHING) for v in inputs],
            *self._shown(node, task, control),
            _ID + VARINTS[number] if number else b"",
            *self._places(node, task, control),
        ]
        if inputs:
            parts += (_IS_CONST, VARINTS[len(inputs)], bytes([v in constants for v in inputs]))
        parts += [described[v] for v in inputs]
        for i, v in enumerate(node.outputs):
            value = values[v]
            type_, _ = self.named(value, b"%b:%d" % (raw, i))
            if value.name:
                called = value.name.encode()
                type_ = _CALLED + VARINTS[len(called)] + called + type_
            parts += (_MADE, VARINTS[len(type_)], type_)
        if node.op != "Fused" and node.subgraphs:
            parts.append(texts(_OP["subgraph_name"], [_subgraph_name(self.label, node, key) for key in node.subgraphs]))
        return b"".join(parts)

    def _shown(self, node: Node, task: Task | None, control: Control | None) -> tuple[bytes, ...]:
        """All attributes of a node as they are shown: its own, which ONNX nodes it stands for, and which task it is."""
        key = None if node.op == "Fused" or control is not None else attrs_key(node.attrs)
        if control is not None and self.drawing.plan is not None:
            said = control_attrs(control, self.drawing.plan, self.drawing.switches)
            before, between, after = _settled(node, True, said)
        elif key is None:
            before, between, after = _settled(node, task is not None)
        else:
            alike = (node.engine, node.precision, node.stream, task is not None, node.op in _UNMARKED, key)
            settled = self._settled.get(alike)
            if settled is None:
                settled = self._settled[alike] = _settled(node, task is not None)
            before, between, after = settled
        origin = texts_entry(_OP["attr"], _ORIGIN, node.origin) if node.origin else b""
        number = number_entry(_OP["attr"], _TASK, task.id) if task is not None else b""
        return before, origin, between, number, after

    def _places(self, node: Node, task: Task | None, control: Control | None) -> tuple[bytes, ...]:
        """The stream and the offsets of a node's operands."""
        places, inputs = self.drawing.places, len(node.inputs)
        if control is not None:
            ends = [places([control.operands.get(v) for v in values]) for values in (node.inputs, node.outputs)]
            return _offsets(_INPUT_AT, ends[0]), _offsets(_OUTPUT_AT, ends[1])
        if task is None:
            read, made = [_BOUND_LATER] * inputs, [_BOUND_LATER] * len(node.outputs)
            return _offsets(_INPUT_AT, read), _offsets(_OUTPUT_AT, made)
        read = places(task.inputs[:inputs])
        read += [_BOUND_LATER] * (inputs - len(read))
        parts = (
            _STREAM + VARINTS[task.stream] if task.stream else b"",
            _offsets(_INPUT_AT, read),
            _offsets(_OUTPUT_AT, places(task.outputs)),
        )
        if task.workspace is None:
            return parts
        scratch = packed(_OP["workspace_bytes"], [nbytes_of(task.workspace.type)])
        return (*parts, _offsets(tag(_OP["workspace"], BYTES), places([task.workspace])), scratch)


def _settled(node: Node, tasked: bool, said: Mapping[str, Any] | None = None) -> tuple[bytes, bytes, bytes]:
    """What is before the node's origin in its attributes, between that and the task's number, and after it.

    `said` is what it has besides.
    """
    shown = {name: value for name, value in (node_attrs(node) | dict(said or {})).items() if name != _ORIGIN}
    if not tasked and node.op not in _UNMARKED:
        shown["_no_task"] = True
    parts: tuple[list[bytes], ...] = ([], [], [])
    for name in sorted(shown):
        parts[(name > _ORIGIN) + (name > _TASK)].append(attr_entry(_OP["attr"], name, shown[name]))
    before, between, after = map(b"".join, parts)
    return before, between, after


def _raw(part: Raw, made: bytes) -> tuple[bytes, ...]:
    """A Const as an entry of a graph's list."""
    name, offset = part.name.encode(), VARINTS[part.offset] if part.offset else b""
    data = nested(_TENSOR["data"], part.inline) if part.inline else b""
    before, between, after = _around_raw(len(name), len(offset), len(data), len(made), part.type, part.nbytes)
    return before, name, between, name, after, offset, data, made


@lru_cache(maxsize=1 << 12)
def _around_raw(name: int, offset: int, data: int, made: int, type_: Tensor, nbytes: int) -> tuple[bytes, bytes, bytes]:
    """What a Const has before its name, until it comes again, and up to its offset, if these parts have such sizes."""
    kind = in_file(type_, nbytes) + (tag(_DESC["data_offset"], VARINT) if offset else b"")
    called = _CALLED + VARINTS[name]
    size = len(called) + name + len(kind) + offset
    attr = within(within(bytes(size), tag(_TENSOR["desc"], BYTES)) + bytes(data), *_VALUE_OF_CONST)
    head, typed = _NAME + VARINTS[name], _typed("Const")
    total = len(head) + name + len(typed) + len(attr) + made
    return _DRAWN + VARINTS[total] + head, typed + attr[: len(attr) - size - data] + called, kind


def _step(part: Step, numbered: bytes) -> bytes:
    """An operation of a constant's recipe up to what it makes; `numbered` is the field of its id."""
    types, key = tuple([type_ for _, type_ in part.inputs]), attrs_key(part.attrs)
    shown, taken = _taken(part.attrs, types) if key is None else _taken_alike(key, types)
    named = text(_OP["name"], part.name) + _typed(part.op) + texts(_OP["input"], [n for n, _ in part.inputs])
    return named + shown + numbered + taken


def _taken(attrs: Mapping[str, Any], types: tuple[Tensor, ...]) -> tuple[bytes, bytes]:
    """The attributes and the inputs' types of an operation of a recipe."""
    shown = attrs_bytes(_OP["attr"], {**attrs, "_no_task": True})
    return shown, b"".join([described(_OP["input_desc"], type_) for type_ in types])


@lru_cache(maxsize=1 << 12)
def _taken_alike(key: tuple[Any, ...], types: tuple[Tensor, ...]) -> tuple[bytes, bytes]:
    return _taken(keyed_attrs(key), types)


@lru_cache(maxsize=1 << 10)
def _typed(op: str) -> bytes:
    """The field that says which operator it is."""
    return text(_OP["type"], op)


def _offsets(before: bytes, offsets: list[bytes]) -> bytes:
    content = b"".join(offsets)
    return before + VARINTS[len(content)] + content if content else b""


def _node_name(graph: Graph, node: Node) -> str:
    if node.op == "Data":
        return graph.values[node.outputs[0]].name or f"data_{node.id}"
    return node.name or f"{node.op}_{node.id}"


def op_type(node: Node) -> str:
    """The type under which a node is shown: a fused task is shown as its anchor."""
    return fused_nodes(node)[0].op if node.op == "Fused" else node.op


def fused_nodes(node: Node) -> list[Node]:
    """What a fused task does, in order; its anchor comes first."""
    return [n for n in node.subgraphs["body"].order() if n.op not in STRUCTURAL]


def node_attrs(node: Node) -> dict[str, Any]:
    """A node's attributes and notes as they are shown; a fused task shows its anchor's attributes too."""
    attrs: dict[str, Any] = {k: v for k, v in node.attrs.items() if not k.startswith("_")}
    if node.op == "Fused":
        inner = fused_nodes(node)
        attrs |= {k: v for k, v in inner[0].attrs.items() if not k.startswith("_")}
        attrs["_fused_ops"] = [n.op for n in inner]
    if node.engine:
        attrs["_engine"] = node.engine
    if node.precision:
        attrs["_precision"] = node.precision
    if node.stream:
        attrs["_stream_label"] = node.stream
    if node.origin:
        attrs[_ORIGIN] = list(node.origin)
    return attrs
