"""Cube operators with what follows them elementwise: bias, residual, activations, scales, quantization.

    Conv(x, W, b) ─ Add(·, r) ─ Relu                 one task: the cube's result meets r and Relu on its way out
    MatMul(x, W) ─ Add(·, [N]) ─ Gelu                one task
    Conv ─ Relu, Conv ─ Exp                          one task with two results
    Conv ─ Add(·, r: [2, N, C, H, W])                refused: the result has another shape

Each follower works on a tile of the anchor's result, so it must keep the shape; its other operands may broadcast.
"""

from __future__ import annotations

from atc_py.fusion.constraints import BORDER, ENGINE, KNOWN, LABEL, SHAPE, elementwise
from atc_py.fusion.rule import Rule
from atc_py.ops.base import Op

CUBE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
QUANTIZED = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
NORMS = frozenset({"BatchNormalization", "InstanceNormalization"})
QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear"})


def follows(op: Op) -> bool:
    """Elementwise operators, and those that change the scale of a tensor channel by channel.

    An InstanceNormalization takes whole planes of a few channels, where they fit the buffer.
    """
    return _plain(op) or op.name in NORMS


def _plain(op: Op) -> bool:
    return elementwise(op) or op.name in QUANTIZATION


CONV_EPILOGUE = Rule(
    name="conv_epilogue",
    doc="Conv, ConvTranspose, Gemm or MatMul with bias, residual, activations and quantization",
    anchors=CUBE | QUANTIZED,
    admits=(ENGINE,),
    followers=_plain,
    constraints=(ENGINE, LABEL, KNOWN, BORDER, SHAPE),
)

CONV_NORM = Rule(
    name="conv_norm",
    doc="Conv, ConvTranspose, Gemm or MatMul with a norm of channels, and what follows that elementwise",
    anchors=CUBE | QUANTIZED,
    admits=(ENGINE,),
    followers=follows,
    constraints=(ENGINE, LABEL, KNOWN, BORDER, SHAPE),
)
