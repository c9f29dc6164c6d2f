"""Products of models that quantise as they run, recognised as one operator with a float32 result.

    x ─ DynamicQuantizeLinear ┬ bytes ──────┐
                              ├ scale s     MatMulInteger(·, w) ─ Cast ─ Mul(s · w_scale) ─ Add(bias)
                              └ zero point ─┘

    x ─ DynamicQuantizeLinear ─ QuantMatmul(bytes, s, zero point, w, w_scale, w_zero, bias)

The numbers are the same to the last bit: the sums are exact, and the factor is the product of the same two float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.passes.known import given
from atc_py.passes.quantized_sums import Replacement
from atc_py.target import Target


@dataclass(frozen=True)
class Dynamic:
    """What was found: the node whose result the quantised product gives, and the product."""

    root: Node
    replacement: Replacement


def find_dynamic(graph: Graph, node: Node, target: Target) -> Dynamic | str | None:
    """The float32 product that starts at a MatMulInteger; a reason why there is none; None for integer results."""
    cast = graph.sole_consumer(node.outputs[0])
    if cast is None or cast.op != "Cast" or cast.attrs["to"] is not DType.FLOAT32:
        return None
    scaled = graph.sole_consumer(cast.outputs[0])
    if scaled is None or scaled.op != "Mul":
        return "scale: no Mul follows the Cast of the sums"
    factor = scaled.inputs[1 - scaled.inputs.index(cast.outputs[0])]
    maker = graph.producer(factor)
    if maker.op != "Mul" or maker.const is not None:
        return f"scale: the factor is made by {maker.op}, not as the product of two scales"
    sides = _scales(graph, node, maker)
    if isinstance(sides, str):
        return sides
    reason = _unfit(graph, node, sides[1], target)
    if reason is not None:
        return reason
    root, bias = _biased(graph, scaled)
    zeros = [node.inputs[i] if given(node, i) else ABSENT for i in (2, 3)]
    inputs = [node.inputs[0], sides[0], zeros[0], node.inputs[1], sides[1], zeros[1], bias]
    gone = (node, cast, scaled, maker)
    return Dynamic(root, Replacement("QuantMatmul", inputs, {"transB": 0}, gone))


def _scales(graph: Graph, node: Node, factor: Node) -> tuple[int, int] | str:
    """(scale of the left operand, scale of the right one); the left one is a single number."""
    first, second = factor.inputs
    for left, right in ((first, second), (second, first)):
        one = graph.type(left)
        whole = isinstance(one, Tensor) and one.shape in ((), (1,)) and one.dtype is DType.FLOAT32
        if whole and graph.producer(left) is graph.producer(node.inputs[0]):
            return left, right
    return f"scale: neither factor is the scale with which {graph.producer(node.inputs[0]).op} quantises input 0"


def _unfit(graph: Graph, node: Node, scale: int, target: Target) -> str | None:
    for value in node.inputs[:2]:
        dtype = graph.tensor(value).dtype
        if not target.has_cube(dtype):
            return f"cube: {target.name} multiplies {', '.join(d.value for d in target.cube)}, not {dtype.value}"
    if given(node, 2) and graph.tensor(node.inputs[2]).shape not in ((), (1,)):
        return "zero point: input 0 has more than one"
    shape, columns = graph.tensor(scale).shape, graph.tensor(node.inputs[1]).shape
    if shape is None or columns is None or not (shape in ((), (1,)) or (len(columns) > 1 and shape == columns[-1:])):
        return f"scale: input 1 has scales of shape {shape}; expected one, or one a column"
    return None


def _biased(graph: Graph, scaled: Node) -> tuple[Node, int]:
    """(the last node, the bias) where a constant is added to each row, else (the node itself, ABSENT)."""
    add = graph.sole_consumer(scaled.outputs[0])
    columns = graph.tensor(scaled.outputs[0]).shape
    if add is None or add.op != "Add" or not columns:
        return scaled, ABSENT
    bias = add.inputs[1 - add.inputs.index(scaled.outputs[0])]
    if graph.const(bias) is None or graph.tensor(bias).shape not in ((columns[-1],), (1,), ()):
        return scaled, ABSENT
    return add, bias
