"""Conv, MatMul and Gemm of dequantised operands become products of bytes with exact int32 sums.

    DQ(x) ─ Conv(·, DQ(w), DQ(b)) ─ Relu ─ Q           QLinearConv(x, w, b) with requantisation; Relu is its saturation
    DQ(a) ─ MatMul(·, DQ(w)) ─ Add(bias) ─ Q           QuantMatmul(a, w, bias in int32)
    DQ(a) ─ MatMul(·, DQ(w)) ─ Add(bias)               QuantMatmul with a float32 result
    DQ(x) ─ Conv(·, DQ(w), DQ(b))                      ConvInteger ─ Add(b in int32) ─ DequantizeLinear
    DQ(x) ─ Conv(·, DQ(w), b)                          ConvInteger ─ DequantizeLinear ─ Add(b)

A bias counts in whole steps of the product of the two scales. Where it has to be rounded to them, the result is made as
float32 and quantised after the bias, unless the rounding is below 1/256 of a step of the result. Weights may have a
scale a channel or column; what varies along the inner axis of the product cannot be taken out of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array
from atc_py.ops.build import lookup
from atc_py.passes.known import given
from atc_py.passes.quantized_chain import moved_bytes, operand
from atc_py.passes.quantized_params import BYTES, Scaled, array_of, constant, dequantized, zero_point
from atc_py.passes.quantized_sums import Replacement
from atc_py.target import Target

PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
COARSEST = 1 / 256
"""How far rounding a bias may move a result, in steps of the result: it then changes one of some hundreds by a step."""
_INT32 = float(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class Product:
    """A product of dequantised operands: its node, its bias (ABSENT: none) and the nodes that it consists of."""

    node: Node
    left: Scaled
    right: Scaled
    bias: int
    nodes: tuple[Node, ...]

    @property
    def steps(self) -> Array:
        """What one unit of the integer sums stands for: one number, or one an output channel."""
        steps: Array = self.left.scales * self.right.scales
        return steps


def product_of(graph: Graph, value: int, target: Target) -> Product | str | None:
    """The product that makes a value, the Add of its bias included; a reason where it cannot be one of bytes.

    None: the value is made by no product of which an operand is dequantised.
    """
    node, bias, nodes = graph.producer(value), ABSENT, []
    if node.op == "Add" and (split := _biased(graph, node)) is not None:
        core, bias = split
        nodes, node = [node], graph.producer(core)
    if node.op not in PRODUCTS:
        return None
    left, right = operand(graph, node.inputs[0]), operand(graph, node.inputs[1])
    if left is None and right is None:
        return None
    if node.op != "MatMul" and given(node, 2):
        bias = node.inputs[2]
    if left is None or right is None:
        return f"operands: input {int(left is not None)} of {node.op} is {_told(graph, node, left is not None)}"
    found = Product(node, left, right, bias, (node, *nodes))
    return _unfit(graph, found, target) or found


def _biased(graph: Graph, add: Node) -> tuple[int, int] | None:
    """(the matrix product's value, the bias) of an Add that adds a constant, or a dequantised one, to each row."""
    for at in (0, 1):
        core, bias = add.inputs[at], add.inputs[1 - at]
        if graph.producer(core).op == "MatMul" and graph.sole_consumer(core) is add and _bias_dims(graph, bias, core):
            return core, bias
    return None


def _bias_dims(graph: Graph, bias: int, core: int) -> bool:
    """Whether the bias is known and has one number for each column, or one for all."""
    source = dequantized(graph, bias)
    if graph.const(bias if source is None else source.value) is None:
        return False
    dims, columns = graph.tensor(bias).shape, graph.tensor(core).shape
    if dims is None or columns is None or len(dims) > len(columns):
        return False
    return all(d == 1 for d in dims[:-1]) and (not dims or dims[-1] in (1, columns[-1]))


def _told(graph: Graph, node: Node, second: int) -> str:
    value = node.inputs[second]
    producer = graph.producer(value)
    if producer.op == "DequantizeLinear":
        return "dequantised with scales that are computed, blocked, of another type, or not positive"
    type_ = graph.type(value)
    dtype = type_.dtype.value if isinstance(type_, Tensor) else "no tensor"
    return f"not dequantised: {producer.op} makes it as {dtype}"


def _unfit(graph: Graph, p: Product, target: Target) -> str | None:
    """Why the product cannot be one of bytes."""
    if p.node.engine not in ("aicore", ""):
        return f"engine: {p.node.op} runs on {p.node.engine}"
    for side in (p.left, p.right):
        if side.dtype not in BYTES:
            return f"dtype: an operand is {side.dtype.value}; the cube takes int8 and uint8"
        if not target.has_cube(side.dtype):
            takes = ", ".join(d.value for d in target.cube)
            return f"cube: {target.name} multiplies {takes}, not {side.dtype.value}"
    if p.left.axis is not None:
        return f"scale: input 0 has {p.left.scales.size} scales along axis {p.left.axis}; expected one"
    return _unfit_columns(graph, p) or _unfit_attributes(p.node) or _unfit_bias(graph, p)


def _unfit_columns(graph: Graph, p: Product) -> str | None:
    rank = len(graph.tensor(p.node.inputs[1]).shape or ())
    columns = 0 if p.node.op == "Conv" or p.node.attrs.get("transB") else rank - 1
    if p.right.axis is None or (p.right.axis == columns and (p.node.op == "Conv" or rank == 2)):
        return None
    count = p.right.scales.size
    return f"scale: input 1 has {count} scales along axis {p.right.axis} of {rank}; only axis {columns} leaves the sum"


def _unfit_attributes(node: Node) -> str | None:
    a = node.attrs
    if node.op == "Gemm" and (a["alpha"] != 1 or a["beta"] != 1 or a["transA"]):
        return f"attributes: Gemm has alpha {a['alpha']:g}, beta {a['beta']:g}, transA {a['transA']}; expected 1, 1, 0"
    return None


def _unfit_bias(graph: Graph, p: Product) -> str | None:
    if p.bias == ABSENT:
        return None
    numbers = bias_numbers(graph, p.bias)
    if numbers is None:
        return "bias: it is computed"
    dims = graph.tensor(p.bias).shape or ()
    if any(d != 1 for d in dims[:-1]):
        return f"bias: it has shape {list(dims)}; expected one number a column"
    largest = float(np.max(np.abs(numbers / p.steps.astype(np.float64)), initial=0))
    if largest > _INT32:
        return f"bias: it is {largest:.3g} steps of the product's scales; int32 holds {_INT32:.3g}"
    return None


def bias_numbers(graph: Graph, bias: int) -> Array | None:
    """The bias as real numbers (float64), flat; None where it is computed."""
    source = dequantized(graph, bias)
    if source is not None:
        whole = array_of(graph.const(source.value))
        if whole is None or source.scales.size not in (1, whole.size):
            return None
        real: Array = (whole.reshape(-1).astype(np.int64) - source.zeros) * source.scales.astype(np.float64)
        return real
    array = array_of(graph.const(bias))
    return None if array is None else array.reshape(-1).astype(np.float64)


def _own_steps(graph: Graph, p: Product) -> bool:
    """Whether the model's own bias is int32 and counts in steps of the product of the scales.

    Scales that differ by a rounding of float32 are the same: the bias was counted with one of them.
    """
    source = dequantized(graph, p.bias)
    if source is None or source.dtype is not DType.INT32 or source.zeros.any():
        return False
    return len(graph.tensor(p.bias).shape or ()) == 1 and np.allclose(source.scales, p.steps, rtol=1e-6, atol=0)


def rounded_bias(graph: Graph, p: Product, q: Scaled) -> str | None:
    """Why the bias may not be rounded to the product's steps before its result is quantised as `q`; None: it may."""
    numbers = None if p.bias == ABSENT or _own_steps(graph, p) else bias_numbers(graph, p.bias)
    if numbers is None:
        return None
    steps = p.steps.astype(np.float64)
    moved = float(np.max(np.abs(np.rint(numbers / steps) * steps - numbers), initial=0)) / float(q.scales[0])
    if moved <= COARSEST:
        return None
    said = f"bias: in whole steps of the product's scales it is off by {moved:.3g} steps of the result's scale"
    return f"{said}; at most {COARSEST:g} is rounded away, so it is added in float32"


def whole_bias(graph: Graph, p: Product, heir: Node) -> int:
    """The bias in int32 steps: the model's own where it counts in those, else rounded to them; ABSENT without any."""
    if p.bias == ABSENT:
        return ABSENT
    source = dequantized(graph, p.bias)
    if source is not None and _own_steps(graph, p):
        return source.value
    numbers = bias_numbers(graph, p.bias)
    assert numbers is not None
    steps = np.rint(numbers / p.steps.astype(np.float64)).astype(np.int32)
    if p.node.op == "Conv" and steps.size == 1:
        steps = np.broadcast_to(steps, (int(_filters(graph, p)),))
    return constant(graph, np.ascontiguousarray(steps), heir)


def _filters(graph: Graph, p: Product) -> int:
    size = graph.tensor(p.node.inputs[1]).dims[0]
    assert type(size) is int
    return size


def whole_product(graph: Graph, p: Product, q: Scaled, heir: Node) -> Replacement:
    """The product with its result requantised as `q` says."""
    ends = [q.scale, zero_point(graph, q, heir)]
    bias = whole_bias(graph, p, heir)
    if p.node.op == "Conv":
        return Replacement("QLinearConv", [*_sides(graph, p, heir), *ends, bias], p.node.attrs, _gone(graph, p))
    attrs = {"transB": p.node.attrs.get("transB", 0)}
    return Replacement("QuantMatmul", [*_sides(graph, p, heir), bias, *ends], attrs, _gone(graph, p))


def real_product(graph: Graph, p: Product, heir: Node) -> Replacement:
    """A matrix product whose result is float32; a bias that does not count in its steps is added to it as it is."""
    bias = whole_bias(graph, p, heir) if _own_steps(graph, p) else p.bias
    if bias != ABSENT and graph.const(bias) is None and dequantized(graph, bias) is not None:
        numbers = bias_numbers(graph, bias)
        assert numbers is not None
        bias = constant(graph, numbers.astype(np.float32), heir)
    attrs = {"transB": p.node.attrs.get("transB", 0)}
    return Replacement("QuantMatmul", [*_sides(graph, p, heir), bias], attrs, _gone(graph, p))


def real_convolution(graph: Graph, p: Product, heir: Node) -> Replacement:
    """A convolution whose result is float32: integer sums, dequantised with the product of the scales, and the bias.

    A bias that counts in steps of the sums is added to them, another one to the result.
    """
    zeros = [zero_point(graph, side, heir) for side in (p.left, p.right)]
    inputs = [moved_bytes(graph, p.left, heir), moved_bytes(graph, p.right, heir), *zeros]
    real = graph.tensor(p.node.outputs[0])
    whole = replace(real, dtype=DType.INT32)
    steps = constant(graph, p.steps if p.steps.size > 1 else p.steps.reshape(()), heir)
    numbers = None if p.bias == ABSENT else bias_numbers(graph, p.bias)
    to_real = lookup("DequantizeLinear", {}).attributes({"axis": 1})

    def made(op: str, operands: list[int], type_: Tensor, attrs: Mapping[str, Any]) -> int:
        node = graph.add(op, operands, [type_], attrs, name=p.node.name, origin=p.node.origin)
        node.engine = heir.engine
        return node.outputs[0]

    def by_channel(array: Array) -> int:
        return constant(graph, array.reshape(-1, *(1,) * (len(real.dims) - 2)), heir)

    sums = made("ConvInteger", inputs, whole, p.node.attrs)
    if numbers is not None and _own_steps(graph, p):
        counted = np.rint(numbers / p.steps.astype(np.float64)).astype(np.int32)
        sums = made("Add", [sums, by_channel(counted)], whole, {})
        numbers = None
    if numbers is None:
        return Replacement("DequantizeLinear", [sums, steps], to_real, _gone(graph, p))
    result = made("DequantizeLinear", [sums, steps], real, to_real)
    return Replacement("Add", [result, by_channel(numbers.astype(np.float32))], {}, _gone(graph, p))


def _sides(graph: Graph, p: Product, heir: Node) -> list[int]:
    sides = [(moved_bytes(graph, s, heir), s.scale, zero_point(graph, s, heir)) for s in (p.left, p.right)]
    return [*sides[0], *sides[1]]


def _gone(graph: Graph, p: Product) -> tuple[Node, ...]:
    """The nodes of which the product is made, with what dequantises its operands."""
    source = dequantized(graph, p.bias)
    sides = (*p.left.moves, p.left.node, *p.right.moves, p.right.node)
    return (*p.nodes, *sides, *((source.node,) if source is not None else ()))
