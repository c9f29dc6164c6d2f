"""Tasks of the vector unit: elementwise operators, norms, reductions, softmax, pooling and lookups, tiled through UB.

    Add(x, r) ─ LayerNormalization            one task with two results where the sum is read again
    Gather ─ Add(·, Gather) ─ LayerNorm       one task: embeddings
    Exp ─ Mul ─ ReduceSum ─ Sqrt ─ Div        one task, of any length
    AveragePool ─ Add                         one task

Values are made tile by tile; what a reduction or a norm needs whole lies whole in the buffer, which is where the
longest chains end: the tile's bytes decide.
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, elementwise, quiet
from atc_py.fusion.rule import Constraint, Join, Rule
from atc_py.ops.base import Op
from atc_py.ops.traits import Pattern

NORMS = frozenset({Pattern.SCALE, Pattern.CHANNEL_NORM, Pattern.ROW_NORM, Pattern.NORM})
POOLS = frozenset({Pattern.POOL, Pattern.GLOBAL_POOL})
TILED = NORMS | {
    Pattern.REDUCTION, Pattern.SOFTMAX, Pattern.MOMENTS, Pattern.COMBINE, Pattern.ROTATION, Pattern.QUANTIZATION,
    Pattern.BITS,
}  # fmt: skip


def _vector(op: Op) -> bool:
    """Operators of the vector unit that make a result tile by tile."""
    return elementwise(op) or (op.flags.pattern in TILED and quiet(op))


def _table(join: Join) -> str | None:
    if join.op.flags.pattern is not Pattern.LOOKUP:
        return None
    if join.graph.const(join.node.inputs[0]) is None:
        return f"its table '{join.graph.values[join.node.inputs[0]].name}' is computed"
    axis = join.node.attrs.get("axis", 0)
    return None if axis == 0 else f"it picks along axis {axis}, not rows"


EMBEDDING = Rule(
    name="embedding",
    doc="rows of tables, their sum and its norm",
    anchors=lambda op: op.flags.pattern is Pattern.LOOKUP,
    admits=(ENGINE, Constraint("table", _table)),
    followers=lambda op: elementwise(op) or op.flags.pattern is Pattern.ROW_NORM,
    producers=lambda op: op.flags.pattern is Pattern.LOOKUP or elementwise(op),
    constraints=(ENGINE, LABEL, KNOWN, Constraint("table", _table)),
)

RESIDUAL_NORM = Rule(
    name="residual_norm",
    doc="a norm with the sum before it and what follows it elementwise",
    anchors=lambda op: op.flags.pattern in NORMS,
    admits=(ENGINE,),
    followers=elementwise,
    producers=lambda op: op.name in ("Add", "Sum"),
    constraints=(ENGINE, LABEL, KNOWN),
)

POOLING = Rule(
    name="pooling",
    doc="pooling with elementwise neighbours",
    anchors=lambda op: op.flags.pattern in POOLS,
    admits=(ENGINE,),
    followers=elementwise,
    producers=elementwise,
    constraints=(ENGINE, LABEL, KNOWN, BORDER),
)

VECTOR = Rule(
    name="vector_chain",
    doc="elementwise operators, reductions, softmax and norms, of any length",
    anchors=_vector,
    admits=(ENGINE,),
    followers=_vector,
    producers=_vector,
    constraints=(ENGINE, LABEL, KNOWN),
)
