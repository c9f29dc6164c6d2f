"""Matrix products and convolutions with one input, and what comes before them on the way to the cube.

q, k, v = MatMul(x, Wq), MatMul(x, Wk), MatMul(x, Wv)      one task with three results: x is fetched once
Swish(MatMul(x, Wg)) · MatMul(x, Wu)                       one task with one result (SwiGLU)
RMSNormalization ─ MatMul                                  one task: rows are normalized on their way to L1
BatchNormalization ─ Relu ─ Conv                           one task
MatMul ─ RotaryEmbedding                                   one task
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, SHAPE, dims_of, elementwise
from atc_py.fusion.epilogue import follows, product
from atc_py.fusion.rule import PRODUCER, Constraint, Join, Rule
from atc_py.ir.graph import ABSENT
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.ops.shapes import show
from atc_py.ops.traits import Pattern

PREPARING = frozenset({Pattern.ROW_NORM, Pattern.COMBINE, Pattern.PAD})
"""What may come before a product, beside what may follow one."""


def _same_operator(join: Join) -> str | None:
    a, b = join.anchor, join.node
    if a.op != b.op:
        return f"it is no {a.op}"
    for name in ("transA", "group"):
        if a.attrs.get(name) != b.attrs.get(name):
            return f"{name} is {b.attrs.get(name)}, of the first {a.attrs.get(name)}"
    if a.precision != b.precision:
        return f"it computes in {b.precision}, {a.op} in {a.precision}"
    return None


def _left(join: Join) -> str | None:
    """The shared or prepared operand is the one that streams through the cube from the left."""
    readers = [join.node] if join.role != PRODUCER else [
        n for n in join.group.members.values() if join.value in n.inputs and product(lookup(n.op, n.attrs))
    ]  # fmt: skip
    for node in readers:
        places = [i for i, v in enumerate(node.inputs) if v == join.value]
        if places != [0]:
            return f"'{join.graph.values[join.value].name}' is input {places[-1]} of {node.op}"
    return None


def _constant_right(join: Join) -> str | None:
    for v in join.node.inputs[1:]:
        if v != ABSENT and join.graph.const(v) is None:
            return f"its operand '{join.graph.values[v].name}' is computed"
    return None


def _rows(join: Join) -> str | None:
    """Results that are cut alike: of one shape but for the channels."""
    graph = join.graph
    a, b = dims_of(graph, join.anchor.outputs[0]), dims_of(graph, join.node.outputs[0])
    if a is None or b is None or len(a) < 2:
        return "a shape is known only at run time"
    axis = 1 if join.anchor.op in ("Conv", "ConvTranspose") else len(a) - 1
    if len(a) != len(b) or any(p != q for i, (p, q) in enumerate(zip(a, b)) if i != axis):
        return f"the results have shapes {show(b)} and {show(a)}"
    return None


HORIZONTAL = Rule(
    name="horizontal",
    doc="matrix products or convolutions with one input (Q, K and V; gate and up)",
    anchors=frozenset({"MatMul", "Gemm", "Conv"}),
    admits=(ENGINE, Constraint("weights", _constant_right)),
    siblings=lambda op: op.name in ("MatMul", "Gemm", "Conv"),
    constraints=(
        Constraint("operator", _same_operator),
        ENGINE,
        LABEL,
        KNOWN,
        Constraint("left operand", _left),
        Constraint("weights", _constant_right),
        Constraint("rows", _rows),
    ),
)

ROTARY = Rule(
    name="rotary",
    doc="rotary embeddings of a product's result",
    anchors=frozenset({"MatMul", "Gemm"}),
    admits=(ENGINE,),
    followers=lambda op: op.flags.pattern is Pattern.ROTATION,
    constraints=(ENGINE, LABEL, KNOWN, SHAPE),
)


def _prepares(op: Op) -> bool:
    return op.flags.pattern in PREPARING or follows(op)


def _one_way(join: Join) -> str | None:
    """What prepares an operand keeps its shape, or pads it; other operands may broadcast.

    Moments are put together where there is one pixel to make: for a map, each of its tiles would do it again.
    """
    if join.op.flags.pattern is Pattern.PAD:
        return None
    before = dims_of(join.graph, join.node.inputs[0]) if join.node.inputs and join.node.inputs[0] != ABSENT else None
    after = dims_of(join.graph, join.value)
    if join.op.flags.pattern is Pattern.COMBINE:
        made = dims_of(join.graph, join.anchor.outputs[0])
        return None if made is not None and made[2:] == (1, 1) else ""
    if before == after:
        return None
    if elementwise(join.op) and any(dims_of(join.graph, v) == after for v in join.node.inputs if v != ABSENT):
        return None
    return f"its shape changes from {show(before or ())} to {show(after or ())}"


PROLOGUE = Rule(
    name="prologue",
    doc="norms, scales and activations on the way to a product or convolution",
    anchors=product,
    admits=(ENGINE,),
    producers=_prepares,
    constraints=(ENGINE, LABEL, KNOWN, BORDER, Constraint("left operand", _left), Constraint("shape", _one_way)),
)
