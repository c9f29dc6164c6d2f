"""Activations that exporters write in pieces become one operator again.

    x · sigmoid(x)                             →    Swish(x)
    x · hard_sigmoid(x; 1/6, 1/2)              →    HardSwish(x)
    x · clip(x + 3, 0, 6) / 6                  →    HardSwish(x)
    x / 2 · (1 + erf(x / √2))                  →    Gelu(x)

Each is a product of x, of a gate that x passes through, and of a number. A product is collected over Mul and over Div
by a constant, in any order and nesting:

    Div(Mul(Clip(Add(x, 3), 0, 6), x), 6)      factors  Clip(…), x, 1/6      gate  Clip(Add(x, 3), 0, 6)

What lies between must have no other reader. Numbers are compared within the rounding of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isclose, sqrt

from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.passes.base import PassContext
from atc_py.passes.known import given, same_types, uniform
from atc_py.passes.lineage import Lineage

RULE = "activations"
MOST_FACTORS = 4
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
    return _Gate("Swish", {"alpha": 1.0}, 1.0, [node]) if node.inputs[0] == x else None


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
    """1 + erf(x / √2)"""
    for i in (0, 1):
        erf = graph.producer(node.inputs[i])
        if erf.op != "Erf" or uniform(graph.const(node.inputs[1 - i])) != 1:
            continue
        inner = graph.producer(erf.inputs[0])
        if inner.op not in ("Mul", "Div"):
            continue
        product = _product(graph, inner)
        if product is None or product.factors != [x]:
            continue
        if isclose(product.scale, sqrt(0.5), rel_tol=_tolerance(graph, x)):
            return _Gate("Gelu", {"approximate": "none"}, 0.5, [node, erf, *product.nodes])
    return None


_GATES: dict[str, Callable[[Graph, Node, int], _Gate | None]] = {
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Add": _one_plus,
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
