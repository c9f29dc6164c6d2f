"""The engine that an operator's declaration and the types of its operands force.

    Conv of float32          AI Core          Add of float64           AI CPU: AI Core has no unit for it
    Unique                   AI CPU           Identity of strings      the host: they have no address on the device

What a graph says beyond that (sizes, neighbours) is for `passes/engines.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.ir.types import DType, Tensor, Type, on_host
from atc_py.ops.base import Engine, Op

WIDE = frozenset({DType.FLOAT64, DType.COMPLEX64, DType.COMPLEX128})
"""Dtypes for which AI Core has no unit."""


def engine_by_type(op: Op, types: Sequence[Type]) -> tuple[Engine, str]:
    """The engine that an operator's declaration and the types of its operands force, and why it is not AI Core."""
    if op.engine is Engine.HOST:
        return Engine.HOST, "" if op.flags.control else f"host: {op.name} is declared for the host"
    if op.engine is Engine.HCCL:
        return Engine.HCCL, f"hccl: {op.name} is a collective"
    if any(map(on_host, types)):
        return Engine.HOST, "host: strings, sequences and maps have no address on the device"
    if op.reference:
        return Engine.AICPU, f"aicpu: {op.name} is served by onnx's reference implementation"
    if op.engine is Engine.AICPU:
        return Engine.AICPU, f"aicpu: {op.name} is declared for AI CPU"
    wide = next((t.dtype for t in types if isinstance(t, Tensor) and t.dtype in WIDE), None)
    if wide is not None:
        return Engine.AICPU, f"aicpu: AI Core has no unit for {wide.value}"
    return Engine.AICORE, ""
