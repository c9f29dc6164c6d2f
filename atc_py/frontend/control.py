"""If, Loop, Scan and other operators with bodies: captured values become explicit inputs.

    y = If(c){ Neg(b) }{ Add(b, w) }   and w is a constant:
    y = If(c, b | captures 1)          then_branch(b) = Neg(b)    else_branch(b) = Add(b, Const w)

A capture that is a constant or a known value is written into the bodies; the others are appended to the node's inputs,
the union of all bodies in the order of their first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
import onnx.helper

from atc_py.frontend.attributes import coerce
from atc_py.frontend.fold import foldable
from atc_py.frontend.frame import POISONED, Frame, Site
from atc_py.frontend.onnx_types import UnusableType, to_type
from atc_py.frontend.topology import GraphInfo, NodeInfo, named
from atc_py.ir.graph import ABSENT, Graph
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.base import InferError
from atc_py.ops.build import as_constant
from atc_py.ops.shapes import axis

if TYPE_CHECKING:
    from atc_py.frontend.importer import Importer

ROUNDS = 4
"""How often bodies are built anew because the loop gave their inputs other ranks."""


def emit(importer: Importer, site: Site, attrs: dict[str, Any]) -> list[int]:
    """Import a node with bodies; returns its results (none when a body is wrong)."""
    frame, node, inputs, label, op = site.frame, site.node, site.inputs, site.label, site.meaning.declared
    assert op is not None
    missing = [b for b in op.bodies if b not in node.bodies]
    if missing:
        raise InferError(f"attribute '{missing[0]}' must be a graph of the node itself")
    if op.name == "Scan" and site.meaning.version < 9:
        return emit(importer, *_scan_8(site, attrs))
    if op.name == "If" and inputs and (taken := _condition(frame, inputs[0])) is not None:
        return _inline(importer, site, node.bodies["then_branch" if taken else "else_branch"])
    bodies = {b: node.bodies[b] for b in op.bodies}
    _check_outputs(op.name, bodies, len(node.outputs))
    captured = _captures(importer, frame, node)
    formal = {b: _formal_types(op.name, frame, info, inputs, attrs) for b, info in bodies.items()}
    given = coerce(op, attrs, site.meaning.schema)
    outputs = max(len(node.outputs), _results(op.name, bodies))
    graph = frame.scope.graph
    for _ in range(ROUNDS):
        graphs = {b: body(importer, frame, info, formal[b], captured, f"{label}/{b}") for b, info in bodies.items()}
        built = {b: g for b, g in graphs.items() if g is not None}
        if len(built) < len(graphs):
            return []
        before = {b: [_rank(g.type(v)) for v in g.inputs] for b, g in built.items()}
        results = frame.scope.emit(
            op.name, [*inputs, *captured.values()], given, outputs=outputs, name=label, origin=(label,),
            names=site.names, subgraphs=built, captures=len(captured),
        )  # fmt: skip
        if before == {b: [_rank(g.type(v)) for v in g.inputs] for b, g in built.items()}:
            return results
        # The bodies were imported for ranks that only the first iteration has.
        formal = {b: [g.type(v) for v in g.inputs[: len(formal[b])]] for b, g in built.items()}
        graph.remove(graph.producer(results[0]))
    raise InferError("the ranks of the values that the loop carries do not settle")


def _rank(type_: Type) -> tuple[type, DType | None, int | None]:
    """What importers of a body look at."""
    return (type(type_), type_.dtype, type_.rank) if isinstance(type_, Tensor) else (type(type_), None, None)


def _condition(frame: Frame, value: int) -> bool | None:
    known = frame.scope.known(value)
    return bool(known.reshape(-1)[0]) if known is not None and known.size == 1 and known.dtype != object else None


def _check_outputs(op: str, bodies: dict[str, GraphInfo], read: int) -> None:
    """The bodies must make what the node gives out."""
    for name, info in bodies.items():
        made = len(info.outputs) - (1 if op == "Loop" else 0)
        if made < read or (op == "If" and made != _results(op, bodies)):
            raise InferError(f"the node has {read} outputs, but its {name} makes {made}")


def _results(op: str, bodies: dict[str, GraphInfo]) -> int:
    count = max(len(b.outputs) for b in bodies.values())
    return count - 1 if op == "Loop" else count


def _captures(importer: Importer, frame: Frame, node: NodeInfo) -> dict[str, int]:
    """The outer values that bodies read and that must be handed in, by their names."""
    found: dict[str, int] = {}
    for name in node.implicit:
        value = importer.value(frame, name)
        if value != ABSENT and frame.scope.graph.const(value) is None and not _settled(frame, value):
            found[name] = value
    return found


def _settled(frame: Frame, value: int) -> bool:
    known, type_ = frame.scope.known(value), frame.scope.graph.type(value)
    return known is not None and isinstance(type_, Tensor) and foldable(frame.scope.graph, known, type_.dtype)


def body(
    importer: Importer, frame: Frame, info: GraphInfo, types: Sequence[Type], captured: dict[str, int], label: str
) -> Graph | None:
    """The graph of a body; None when something in it is wrong (which has been reported)."""
    if len(types) != len(info.inputs):
        raise InferError(f"{label.rpartition('/')[2]} takes {len(info.inputs)} inputs, but is given {len(types)}")
    outer = frame.scope
    graph = Graph(label, outer.graph.symbols)
    scope = outer.inner(graph)
    inner = frame.inside(info, scope, frame.prefix)
    for name, type_ in zip(info.inputs, types, strict=True):
        inner.names[name] = graph.add_input(name, type_)
    for name, value in captured.items():
        made = graph.add_input(name, outer.graph.type(value))
        if name in info.free:
            inner.names[name] = made
        known = outer.known(value)
        if known is not None:
            scope.facts[made] = known
    for name in info.free:
        if name and name not in captured:
            inner.names[name] = _copied(importer, frame, name, graph)
    importer.nodes(inner, info.outputs)
    values = [importer.value(inner, name) for name in info.outputs]
    if POISONED in values:
        return None
    if ABSENT in values:
        raise InferError(f"output {values.index(ABSENT)} of {label.rpartition('/')[2]} has no name")
    graph.set_outputs(values, list(info.outputs))
    return graph


def _copied(importer: Importer, frame: Frame, name: str, graph: Graph) -> int:
    """A constant of the outer graph in a body (its bytes are the same object), or what is absent there too."""
    value = importer.value(frame, name)
    if value == ABSENT:
        return ABSENT
    constant = frame.scope.graph.const(value)
    if constant is None:
        known = frame.scope.known(value)
        assert known is not None
        constant = as_constant(known, frame.scope.graph.tensor(value).dtype)
    return graph.add_const(constant, name)


def _formal_types(op: str, frame: Frame, info: GraphInfo, inputs: Sequence[int], attrs: dict[str, Any]) -> list[Type]:
    """The types that the body's own inputs have in the first iteration."""
    types = [None if v == ABSENT else frame.scope.graph.type(v) for v in inputs]
    if op == "If":
        return []
    if op == "Loop":
        carried = [t for t in types[2:] if t is not None]
        return [Tensor(DType.INT64, ()), Tensor(DType.BOOL, ()), *carried]
    if op == "Scan":
        scanned = attrs.get("num_scan_inputs")
        given = [t for t in types if t is not None]
        if not isinstance(scanned, int) or not 0 < scanned <= len(given):
            raise InferError(f"attribute 'num_scan_inputs' is {scanned}, but the node has {len(given)} inputs")
        axes = attrs.get("scan_input_axes") or (0,) * scanned
        if len(axes) != scanned:
            raise InferError(f"attribute 'scan_input_axes' has {len(axes)} entries for {scanned} scanned inputs")
        return [*given[:-scanned], *(_slice(t, a) for t, a in zip(given[-scanned:], axes, strict=True))]
    try:
        return [to_type(proto) for proto in info.inputs.values()]
    except UnusableType as problem:
        raise InferError(f"an input of the body cannot be used: {problem}") from None


def _slice(type_: Type, at: int) -> Type:
    if not isinstance(type_, Tensor) or type_.shape is None:
        return type_
    at = axis(at, len(type_.shape), "scan axis")
    return type_.with_shape((*type_.shape[:at], *type_.shape[at + 1 :]))


def _inline(importer: Importer, site: Site, info: GraphInfo) -> list[int]:
    """The branch that is always taken, written out in place of the If."""
    frame, node = site.frame, site.node
    inner = frame.inside(info, frame.scope, f"{site.label}/")
    inner.names = {name: importer.value(frame, name) for name in info.free}
    outer = set(inner.names.values())
    if len(info.outputs) != len(node.outputs):
        raise InferError(f"the branch has {len(info.outputs)} outputs, the node {len(node.outputs)}")
    importer.nodes(inner, info.outputs)
    results = [importer.value(inner, name) for name in info.outputs]
    for value, name in zip(results, site.names):
        if value >= 0 and name and value not in outer:
            frame.scope.graph.values[value].name = name
    return [] if POISONED in results else results


def _scan_8(site: Site, attrs: dict[str, Any]) -> tuple[Site, dict[str, Any]]:
    """Scan-8 ran once for each element of a batch: an outer Scan over the batch holds today's Scan as its body.

    With `sequence_lens`, the outer one also scans the lengths; the inner one gets so many steps, and zeros follow.
    """
    node = site.node
    lengths = bool(site.inputs) and site.inputs[0] != ABSENT
    count, scanned = len(site.inputs) - 1, attrs.get("num_scan_inputs")
    if not isinstance(scanned, int) or not 0 < scanned <= count:
        raise InferError(f"attribute 'num_scan_inputs' is {scanned}, but the node has {count} inputs")
    formal = tuple(f"{site.label}/in_{i}" for i in range(count))
    made = tuple(f"{site.label}/out_{i}" for i in range(len(node.outputs)))
    sequence = NodeInfo(
        "Scan", "", "", f"{node.label}_sequence", formal, made, (), node.bodies, node.implicit, version=9
    )
    directions = attrs.pop("directions", ())
    if directions:
        attrs["scan_input_directions"] = directions
    sequence.attributes = named(onnx.helper.make_attribute(n, v) for n, v in attrs.items())
    free = dict.fromkeys(node.implicit, node.place)
    batch = GraphInfo(f"{site.label}/batch", dict.fromkeys(formal, onnx.TypeProto()), made, [sequence], free=free)
    names, values = node.inputs[1:], list(site.inputs[1:])
    if lengths:
        _cut(batch, sequence, scanned)
        names, values = (*names, node.inputs[0]), [*values, site.inputs[0]]
    outer = replace(node, inputs=names, bodies={"body": batch}, version=9)
    found = replace(site.meaning, version=9)
    return replace(site, node=outer, meaning=found, inputs=values), {"num_scan_inputs": count + lengths}


def _cut(batch: GraphInfo, sequence: NodeInfo, scanned: int) -> None:
    """Give the batch's body the sequence's length as last input: it cuts what is scanned, and pads what is stacked."""
    own = f"{batch.name}/"
    length, one_, zero, pads = own + "length", own + "length_1", own + "zero", own + "pads"
    states = len(sequence.inputs) - scanned

    def node(op: str, inputs: tuple[str, ...], output: str, version: int, **attrs: Any) -> NodeInfo:
        made = named(onnx.helper.make_attribute(n, v) for n, v in attrs.items())
        return NodeInfo(op, "", "", f"{output}_{op}", inputs, (output,), made, version=version)

    before = [node("Unsqueeze", (length, zero), one_, 13)]
    cut = {name: f"{name}_cut" for name in sequence.inputs[states:]}
    before += [node("Slice", (name, zero, one_, zero), short, 13) for name, short in cut.items()]
    whole = {name: f"{name}_steps" for name in sequence.outputs[states:]}
    after = [
        node("Shape", (sequence.inputs[states],), own + "steps", 15, start=0, end=1),
        node("Sub", (own + "steps", one_), own + "missing", 14),
        node("Concat", (zero, own + "missing"), pads, 13, axis=0),
        *(node("Pad", (short, pads, "", zero), name, 18) for name, short in whole.items()),
    ]
    sequence.inputs = (*sequence.inputs[:states], *cut.values())
    sequence.outputs = (*sequence.outputs[:states], *whole.values())
    batch.inputs[length] = onnx.TypeProto()
    batch.initializers[zero] = onnx.helper.make_tensor(zero, onnx.TensorProto.INT64, [1], [0])
    batch.nodes[:] = [*before, sequence, *after]
