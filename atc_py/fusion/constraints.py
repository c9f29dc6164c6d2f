"""Constraints that several rules share: each gives the reason, with its numbers, or None.

same_engine    Relu on aicpu                     "Relu runs on aicpu, not on aicore"
same_shape     Add(conv [5, 4], r [2, 5, 4])     "the shape changes from [5, 4] to [2, 5, 4]"
border         Cast of the input before a Conv   "it reads the model's input: the conversion of format casts"
"""

from __future__ import annotations

from atc_py.fusion.rule import Constraint, Join
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Format, Tensor, on_host
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.ops.layouts import is_map, layout_of
from atc_py.ops.shapes import show
from atc_py.ops.tiles import tileable


def elementwise(op: Op) -> bool:
    """Operators that map element to element and may be fused, by their declaration."""
    f = op.flags
    return f.elementwise and f.fusible and quiet(op)


def quiet(op: Op) -> bool:
    """Operators that may be moved and repeated, and whose result has bytes of its own."""
    f = op.flags
    return f.deterministic and not (f.random or f.side_effects or f.alias or f.control) and tileable(op)


def dims_of(graph: Graph, value: int) -> tuple[Size, ...] | None:
    """A tensor's dims; None when they are not known."""
    t = graph.type(value)
    return t.shape if isinstance(t, Tensor) else None


def _same_engine(join: Join) -> str | None:
    engine = join.node.engine
    return None if engine == "aicore" else f"{join.node.op} runs on {engine or 'no engine'}, not on aicore"


def _same_dtype(join: Join) -> str | None:
    before, after = join.type, join.result
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or on_host(after):
        return "a value is no tensor of the device"
    if before.dtype is not after.dtype:
        return f"the dtype changes from {before.dtype.value} to {after.dtype.value}"
    return None


def _same_shape(join: Join) -> str | None:
    before, after = dims_of(join.graph, join.value), dims_of(join.graph, join.node.outputs[0])
    if before is None or after is None:
        return "the shape is known only at run time"
    return None if before == after else f"the shape changes from {show(before)} to {show(after)}"


def _known_shapes(join: Join) -> str | None:
    values = join.graph.values
    for edges in (join.node.inputs, join.node.outputs):
        for value in edges:
            if value == ABSENT:
                continue
            t = values[value].type
            if not isinstance(t, Tensor) or t.dtype is DType.STRING:
                return f"'{values[value].name}' is no tensor of the device"
            if t.shape is None:
                return f"the shape of '{values[value].name}' is known only at run time"
    return None


def _same_label(join: Join) -> str | None:
    a, b = join.group.anchor.stream, join.node.stream
    return None if a == b else f"it has the stream label '{b}', {join.group.anchor.op} has '{a}'"


def _inside(join: Join) -> str | None:
    """A Cast at the model's border from or to a wider type stays by itself where the group works in blocks of channels.

    A conversion of format stands there anyway, which casts while it converts: in the task, the Cast would make it move
    the wider elements, in blocks.
    """
    node, graph = join.node, join.graph
    if node.op != "Cast" or join.target.prefers is not Format.NC1HWC0 or not is_map(join.result):
        return None
    before, after = (graph.tensor(v).dtype.bits for v in (node.inputs[0], node.outputs[0]))
    readers = [graph.nodes[n].op for n, _ in graph.values[node.outputs[0]].uses]
    if before > after and graph.producer(node.inputs[0]).op == "Data":
        why = "it reads the model's input"
    elif before < after and all(op == "NetOutput" for op in readers):
        why = "it makes the model's output"
    else:
        return None
    return f"{why}: the conversion of format casts" if _needs_blocks(graph, join.anchor) else None


def _needs_blocks(graph: Graph, node: Node) -> bool:
    types = [None if v == ABSENT else graph.type(v) for v in node.inputs]
    found = layout_of(lookup(node.op, node.attrs), node.attrs, types, [graph.type(v) for v in node.outputs], ())
    return found is not None and found.needs


ENGINE = Constraint("engine", _same_engine)
DTYPE = Constraint("dtype", _same_dtype)
SHAPE = Constraint("shape", _same_shape)
KNOWN = Constraint("known shape", _known_shapes)
LABEL = Constraint("stream", _same_label)
BORDER = Constraint("border", _inside)
