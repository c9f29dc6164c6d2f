"""Cube operators with what follows them elementwise: bias, residual, activations, scales, quantization.

    Conv(x, W, b) ─ Add(·, r) ─ Relu                 one task: the cube's result meets r and Relu on its way out
    MatMul(x, W) ─ Add(·, [N]) ─ Gelu                one task
    Conv ─ Relu, Conv ─ Exp                          one task with two results
    Conv ─ Add(·, r: [2, N, C, H, W])                refused: the result has another shape

Each follower works on a tile of the anchor's result, so it must keep the shape; its other operands may broadcast.
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, SHAPE, elementwise, quiet
from atc_py.fusion.rule import Constraint, Join, Rule
from atc_py.ops.base import Op

QUANTIZED = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
NORMS = frozenset({"BatchNormalization", "InstanceNormalization"})
QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear"})


def product(op: Op) -> bool:
    """Products of the cube unit whose result is made tile by tile: Conv, ConvTranspose, Gemm, MatMul and their like."""
    return bool(op.flags.cube) and op.flags.fusible and quiet(op)


def _multiplies(op: Op) -> bool:
    return product(op) or op.name in QUANTIZED


def follows(op: Op) -> bool:
    """Elementwise operators, and those that change the scale of a tensor channel by channel.

    An InstanceNormalization takes whole planes of a few channels, where they fit the buffer.
    """
    return _plain(op) or op.name in NORMS


def _plain(op: Op) -> bool:
    return elementwise(op) or op.name in QUANTIZATION


def _behind_norm(join: Join) -> str | None:
    """A norm joins, and what follows it; what comes before one is not this rule's."""
    return None if any(n.op in NORMS for n in (join.node, *join.group.members.values())) else ""


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
