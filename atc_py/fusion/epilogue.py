"""Cube operators with what follows them elementwise: bias, residual, activations, scales, quantization.

    Conv(x, W, b) ─ Add(·, r) ─ Relu                 one task: the cube's result meets r and Relu on its way out
    MatMul(x, W) ─ Add(·, [N]) ─ Gelu                one task
    Conv ─ Relu, Conv ─ Exp                          one task with two results
    Conv ─ Add(·, r: [2, N, C, H, W])                refused: the result has another shape
    Conv ─ Relu ┬ GlobalAveragePool                  one task with two results: the mean is taken in passing
    Conv ─ Relu ─ MaxPool                            one task: the map between is never stored

Each follower works on a tile of the anchor's result, so it must keep the shape; its other operands may broadcast. What
sums up a map, or pools it, ends the task, with what follows it elementwise.
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, SHAPE, dims_of, elementwise, quiet
from atc_py.fusion.rule import Constraint, Join, Rule
from atc_py.fusion.tiles import Misfit
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.ops.shapes import show
from atc_py.ops.traits import Pattern

BY_CHANNEL = frozenset({Pattern.SCALE, Pattern.CHANNEL_NORM})
"""Operators that change the scale of a tensor channel by channel."""


def product(op: Op) -> bool:
    """Products of the cube unit whose result is made tile by tile: Conv, ConvTranspose, Gemm, MatMul and their like."""
    return bool(op.flags.cube) and op.flags.fusible and quiet(op)


def _multiplies(op: Op) -> bool:
    return product(op) or op.flags.pattern is Pattern.QUANTIZED_PRODUCT


def follows(op: Op) -> bool:
    """Elementwise operators, and those that change the scale of a tensor channel by channel.

    An InstanceNormalization takes whole planes of a few channels, where they fit the buffer.
    """
    return _plain(op) or op.flags.pattern in BY_CHANNEL


def _plain(op: Op) -> bool:
    return elementwise(op) or op.flags.pattern is Pattern.QUANTIZATION


def _holds(join: Join, patterns: frozenset[Pattern]) -> bool:
    """Whether the group is of such a kind somewhere, the one that would join included."""
    nodes = (join.node, *join.group.members.values())
    return any(lookup(n.op, n.attrs).flags.pattern in patterns for n in nodes)


def _behind_norm(join: Join) -> str | None:
    """A norm joins, and what follows it; what comes before one is not this rule's."""
    return None if _holds(join, BY_CHANNEL) else ""


CONV_EPILOGUE = Rule(
    name="conv_epilogue",
    doc="Conv, ConvTranspose, Gemm or MatMul with bias, residual, activations and quantization",
    anchors=_multiplies,
    admits=(ENGINE,),
    followers=_plain,
    constraints=(ENGINE, LABEL, KNOWN, BORDER, SHAPE),
)

CONV_NORM = Rule(
    name="conv_norm",
    doc="Conv, ConvTranspose, Gemm or MatMul with a norm of channels, and what follows that elementwise",
    anchors=_multiplies,
    admits=(ENGINE,),
    followers=follows,
    constraints=(Constraint("norm", _behind_norm), ENGINE, LABEL, KNOWN, BORDER, SHAPE),
)

STATISTICS = frozenset({Pattern.MOMENTS, Pattern.GLOBAL_POOL, Pattern.REDUCTION})


def _sums_pixels(join: Join) -> str | None:
    """It sums up pixels of the map that the task makes, all of them or block by block, and keeps its dims."""
    if join.positions() != [0]:
        return f"'{join.graph.values[join.value].name}' is not what it sums up"
    before, after = dims_of(join.graph, join.value), dims_of(join.graph, join.node.outputs[0])
    if before is None or after is None or len(before) != len(after) or before[:2] != after[:2]:
        return f"it makes {show(after or ())} of {show(before or ())}, not a number or more for each channel"
    return None


CONV_STATISTICS = Rule(
    name="conv_statistics",
    doc="Conv or ConvTranspose with the mean, maximum or moments of the pixels of its map",
    anchors=frozenset({"Conv", "ConvTranspose"}),
    admits=(ENGINE,),
    followers=lambda op: op.flags.pattern in STATISTICS,
    constraints=(ENGINE, LABEL, KNOWN, Constraint("pixels", _sums_pixels)),
)


def _behind_pool(join: Join) -> str | None:
    """A pool joins, and what follows it elementwise; what comes before one is not this rule's."""
    return None if _holds(join, frozenset({Pattern.POOL})) else ""


def _only_reader(join: Join) -> str | None:
    """A pool reads a map that nobody else does: windows of neighbours share its rows, which are made once for each."""
    if join.op.flags.pattern is not Pattern.POOL:
        return None
    if len(join.node.outputs) > 1:
        return "its indices count the elements of the whole"
    count = sum(1 for user, _ in join.graph.values[join.value].uses if user not in join.group.members) - 1
    return f"'{join.graph.values[join.value].name}' is read by {count} more" if count else None


def _same_shape(join: Join) -> str | Misfit | None:
    return None if join.op.flags.pattern is Pattern.POOL else SHAPE.check(join)


CONV_POOL = Rule(
    name="conv_pool",
    doc="Conv with the pool that reads its map, and what follows that elementwise",
    anchors=frozenset({"Conv"}),
    admits=(ENGINE,),
    followers=lambda op: op.flags.pattern is Pattern.POOL or _plain(op),
    constraints=(
        Constraint("pool", _behind_pool),
        ENGINE,
        LABEL,
        KNOWN,
        BORDER,
        Constraint("readers", _only_reader),
        Constraint("shape", _same_shape),
    ),
)
