"""Activations that exporters write in pieces become one operator again.

    x · sigmoid(a·x)                           →    Swish(x; a)
    x · hard_sigmoid(x; 1/6, 1/2)              →    HardSwish(x)
    x · clip(x + 3, 0, 6) / 6                  →    HardSwish(x)
    x / 2 · (1 + erf(x / √2))                  →    Gelu(x)
    x / 2 · (1 + tanh(√(2/π)(x + 0.044715x³))) →    Gelu(x; tanh)           also as x·√(2/π)(1 + 0.044715x²)
    x · tanh(softplus(x))                      →    Mish(x)                 also with log(1 + exp(x))

Each is a product of x, of a gate that x passes through, and of a number. A product is collected over Mul and over Div
by a constant, in any order and nesting:

    Div(Mul(Clip(Add(x, 3), 0, 6), x), 6)      factors  Clip(…), x, 1/6      gate  Clip(Add(x, 3), 0, 6)

What lies between must have no other reader. Numbers are compared within the rounding of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isclose, pi, sqrt

from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.passes.base import PassContext
from atc_py.passes.known import given, same_types, uniform
from atc_py.passes.lineage import Lineage

RULE = "activations"
MOST_FACTORS = 5
"""Factors of the longest product that is looked into."""


@dataclass
class _Product:
    """y = scale · factors…; `nodes` are the multiplications, the last one first."""

    scale: float = 1.0
    factors: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class _Gate:
    """A gate of x: what the product with x and `scale` is called, and the gate's nodes, the last one first."""

    op: str
    attrs: dict[str, float | str]
    scale: float
    nodes: list[Node]


def recognise_activations(graph: Graph, ctx: PassContext) -> int:
    """Replace products of x and a gate of x by one node; returns how many."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op in ("Mul", "Div")]:
            product = _product(graph, node)
            if product is None or len(product.factors) != 2:
                continue
            a, b = product.factors
            for x, gated in ((a, b), (b, a)):
                gate = _gate(graph, gated, x)
                if gate is not None and same_types(graph, x, node.outputs[0]):
                    changed += _replace(graph, ctx, lineage, node, x, product, gate)
                    break
    return changed


def _replace(
    graph: Graph, ctx: PassContext, lineage: Lineage, node: Node, x: int, product: _Product, gate: _Gate
) -> int:
    tolerance = _tolerance(graph, x)
    if not isclose(product.scale, gate.scale, rel_tol=tolerance):
        return 0
    inner = [*product.nodes[1:], *gate.nodes]
    for part in inner:
        if len(graph.values[part.outputs[0]].uses) > 1:
            readers = len(graph.values[part.outputs[0]].uses)
            ctx.decline(node, RULE, f"no {gate.op}: the result of {part.op} '{part.name}' has {readers} readers")
            return 0
    node.op, node.attrs = gate.op, dict(gate.attrs)
    graph.set_inputs(node, [x])
    for part in inner:
        if lineage.drop(part):
            lineage.inherit(node, part)
    return 1


def _product(graph: Graph, root: Node) -> _Product | None:
    """The product that a Mul or Div computes; None when it is long, or divides by a tensor."""
    product = _Product()
    stack = [root]
    while stack:
        node = stack.pop()
        product.nodes.append(node)
        for i, value in enumerate(node.inputs):
            number = uniform(graph.const(value))
            if node.op == "Div" and i == 1:
                if not number:
                    return None
                product.scale /= float(number)
            elif number is not None:
                product.scale *= float(number)
            elif _splits(graph, graph.producer(value)):
                stack.append(graph.producer(value))
            else:
                product.factors.append(value)
        if len(product.factors) + len(stack) > MOST_FACTORS:
            return None
    return product


def _splits(graph: Graph, node: Node) -> bool:
    """Whether the node is a factor that is itself a product: read once, and a Mul, or a Div by a constant."""
    if node.op not in ("Mul", "Div") or len(graph.values[node.outputs[0]].uses) != 1:
        return False
    return node.op == "Mul" or uniform(graph.const(node.inputs[1])) is not None


# -- gates -------------------------------------------------------------------------------------------------------


def _gate(graph: Graph, value: int, x: int) -> _Gate | None:
    node = graph.producer(value)
    recognise = _GATES.get(node.op)
    return None if recognise is None else recognise(graph, node, x)


def _sigmoid(graph: Graph, node: Node, x: int) -> _Gate | None:
    """sigmoid(a·x)"""
    if node.inputs[0] == x:
        return _Gate("Swish", {"alpha": 1.0}, 1.0, [node])
    inner = _multiple(graph, node.inputs[0], x)
    return None if inner is None else _Gate("Swish", {"alpha": inner.scale}, 1.0, [node, *inner.nodes])


def _multiple(graph: Graph, value: int, x: int) -> _Product | None:
    """The value as a number times x."""
    node = graph.producer(value)
    product = _product(graph, node) if node.op in ("Mul", "Div") else None
    return product if product is not None and product.factors == [x] else None


def _tanh(graph: Graph, node: Node, x: int) -> _Gate | None:
    """tanh(softplus(x)); where exp(x) overflows, the logarithm of 1 + ∞ gives the same limit"""
    inner = graph.producer(node.inputs[0])
    if inner.op == "Softplus" and inner.inputs[0] == x:
        return _Gate("Mish", {}, 1.0, [node, inner])
    shifted = graph.producer(inner.inputs[0]) if inner.op == "Log" else None
    if shifted is None or shifted.op != "Add":
        return None
    for i in (0, 1):
        exp = graph.producer(shifted.inputs[i])
        if exp.op == "Exp" and exp.inputs[0] == x and uniform(graph.const(shifted.inputs[1 - i])) == 1:
            return _Gate("Mish", {}, 1.0, [node, inner, shifted, exp])
    return None


def _hard_sigmoid(graph: Graph, node: Node, x: int) -> _Gate | None:
    alpha, beta = node.attrs.get("alpha", 0.2), node.attrs.get("beta", 0.5)
    if node.inputs[0] != x or not isclose(alpha, 1 / 6, rel_tol=_tolerance(graph, x)) or beta != 0.5:
        return None
    return _Gate("HardSwish", {}, 1.0, [node])


def _clip(graph: Graph, node: Node, x: int) -> _Gate | None:
    """clip(x + 3, 0, 6)"""
    bounds = [uniform(graph.const(node.inputs[i])) if given(node, i) else None for i in (1, 2)]
    shift = graph.producer(node.inputs[0])
    if bounds != [0, 6] or shift.op != "Add" or _plus(graph, shift, x) != 3:
        return None
    return _Gate("HardSwish", {}, 1 / 6, [node, shift])


def _one_plus(graph: Graph, node: Node, x: int) -> _Gate | None:
    """1 + erf(x / √2), or 1 + tanh(√(2/π)(x + 0.044715x³))"""
    for i in (0, 1):
        bent = graph.producer(node.inputs[i])
        if bent.op not in ("Erf", "Tanh") or uniform(graph.const(node.inputs[1 - i])) != 1:
            continue
        if bent.op == "Tanh":
            return _gelu_tanh(graph, node, bent, x)
        inner = _multiple(graph, bent.inputs[0], x)
        if inner is not None and isclose(inner.scale, sqrt(0.5), rel_tol=_tolerance(graph, x)):
            return _Gate("Gelu", {"approximate": "none"}, 0.5, [node, bent, *inner.nodes])
    return None


def _gelu_tanh(graph: Graph, node: Node, tanh: Node, x: int) -> _Gate | None:
    argument = graph.producer(tanh.inputs[0])
    product = _product(graph, argument) if argument.op in ("Mul", "Div") else None
    if product is None or not isclose(product.scale, sqrt(2 / pi), rel_tol=10 * _tolerance(graph, x)):
        return None
    # Either (x + 0.044715·x³), or x · (1 + 0.044715·x²).
    rest = [f for f in product.factors if f != x]
    if len(rest) != 1 or len(product.factors) > 2:
        return None
    outside = len(product.factors) - 1
    total = graph.producer(rest[0])
    cubic = _cubic(graph, total, x, 3 - outside) if total.op == "Add" else None
    if cubic is None:
        return None
    return _Gate("Gelu", {"approximate": "tanh"}, 0.5, [node, tanh, *product.nodes, total, *cubic])


def _cubic(graph: Graph, total: Node, x: int, power: int) -> list[Node] | None:
    """The nodes of 0.044715·xᵖ in the sum xᵖ⁻² + 0.044715·xᵖ; None where it is another one."""
    for i in (0, 1):
        other = total.inputs[1 - i]
        if not (other == x if power == 3 else uniform(graph.const(other)) == 1):
            continue
        term = graph.producer(total.inputs[i])
        product = _product(graph, term) if term.op in ("Mul", "Div") else None
        if product is None or not isclose(product.scale, 0.044715, rel_tol=10 * _tolerance(graph, x)):
            continue
        nodes, found = list(product.nodes), 0.0
        for factor in product.factors:
            maker = graph.producer(factor)
            exponent = uniform(graph.const(maker.inputs[1])) if maker.op == "Pow" and maker.inputs[0] == x else None
            if factor != x and exponent is None:
                break
            found += 1 if factor == x else float(exponent or 0)
            nodes += [] if factor == x else [maker]
        else:
            if found == power:
                return nodes
    return None


_GATES: dict[str, Callable[[Graph, Node, int], _Gate | None]] = {
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Add": _one_plus,
    "Tanh": _tanh,
}


def _plus(graph: Graph, node: Node, x: int) -> float | None:
    """The number that an Add adds to x."""
    for i in (0, 1):
        if node.inputs[i] == x:
            number = uniform(graph.const(node.inputs[1 - i]))
            return None if number is None else float(number)
    return None


def _tolerance(graph: Graph, x: int) -> float:
    """Relative: what rounding a constant to the dtype of x may change."""
    dtype = graph.tensor(x).dtype
    return {DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}.get(dtype, 1e-6)
