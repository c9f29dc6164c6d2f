"""Cube operators with what follows them elementwise: bias, residual, activations.

    Conv(x, W, b) ─ Add(·, r) ─ Relu                 one task: the cube's result meets r and Relu on its way out
    MatMul(x, W) ─ Add(·, [N]) ─ Gelu                one task
    Conv ─ Add(·, r: [N, C, 1, 1])                   refused: r is computed and has another shape
    Conv ─ Relu, Conv ─ Exp                          refused: two readers, the convolution's result has to be stored

Each follower works on the anchor's result in place, tile by tile, so it must keep shape and dtype, and its kernel must
allow writing over that operand. Other operands are constants that broadcast into the result, or tensors of its shape.
"""

from __future__ import annotations

from atc_py.fusion.engine import Constraint, Link, Rule, fused_task, saved_bytes
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import Tensor, on_host
from atc_py.ops.base import Op
from atc_py.ops.shapes import show


def elementwise_follower(op: Op) -> bool:
    """Operators that map element to element and may be fused, by their declaration."""
    f = op.flags
    return f.elementwise and f.fusible and f.deterministic and not (f.random or f.side_effects or f.alias)


def _on_aicore(graph: Graph, node: Node) -> str | None:
    return None if node.engine == "aicore" else f"{node.op} runs on {node.engine or 'no engine'}, not on aicore"


def _same_engine(link: Link) -> str | None:
    return _on_aicore(link.graph, link.node)


def _same_dtype(link: Link) -> str | None:
    before, after = link.type, link.result
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or on_host(after):
        return "a value is no tensor of the device"
    if before.dtype is not after.dtype:
        return f"the dtype changes from {before.dtype.value} to {after.dtype.value}"
    return None


def _same_shape(link: Link) -> str | None:
    before, after = _dims(link.type), _dims(link.result)
    if before is None or after is None:
        return "the shape is known only at run time"
    return None if before == after else f"the shape changes from {show(before)} to {show(after)}"


def _in_place(link: Link) -> str | None:
    stays = [i for i in link.positions() if i not in link.op.flags.inplace]
    return f"its kernel cannot write over input {stays[0]}" if stays else None


def _operands(link: Link) -> str | None:
    wanted = _dims(link.type)
    for value in link.others():
        dims = _dims(link.graph.type(value))
        if on_host(link.graph.type(value)) or dims is None:
            return f"operand '{link.graph.values[value].name}' has no known shape on the device"
        constant = link.graph.const(value)
        if constant is None and dims != wanted:
            return f"its operand of shape {show(dims)} is computed and is not of the result's shape {show(wanted)}"
    return None


def _dims(type_: object) -> tuple[Size, ...] | None:
    return type_.shape if isinstance(type_, Tensor) else None


CONV_EPILOGUE = Rule(
    name="conv_epilogue",
    doc="Conv, ConvTranspose, Gemm or MatMul with bias, residual and activations",
    anchors=frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"}),
    admits=_on_aicore,
    followers=elementwise_follower,
    constraints=(
        Constraint("engine", _same_engine),
        Constraint("dtype", _same_dtype),
        Constraint("shape", _same_shape),
        Constraint("in place", _in_place),
        Constraint("operands", _operands),
    ),
    replacement=fused_task,
    profit=saved_bytes,
)
