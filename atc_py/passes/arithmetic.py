"""Arithmetic with constants, in one form.

    x · 1, x / 1, x + 0, x - 0, x¹  →  x               Max(x, -∞), Min(x, ∞), And(x, true), Or(x, false)  →  x
    0 - x, x · -1, -(-x)            →  -x, -x, x       Where(true, a, b), Where(c, a, a)                  →  a
    x²                              →  x · x           1 / x, x⁻¹          →  Reciprocal(x)
    x / 4                           →  x · 0.25        x · Reciprocal(y)   →  x / y
    (x · a) · b                     →  x · (a·b)       ReduceSum(x) / n    →  ReduceMean(x)
    Reshape(ReduceMean(x; keepdims=0), [.., 1])        →  ReduceMean(x; keepdims=1)
    Min(Max(x, 0), 1), Relu(Min(x, 1))                 →  Clip(x, 0, 1)
    Sum(x, y)  →  x + y                                    a > b or a = b         →  a ≥ b

Each line is equal in real arithmetic, and in floating point up to rounding (x / c only where 1 / c is exact, a·b only
where it neither overflows nor underflows). A result that would be broadcast to another shape is left alone. Dialects of
exporters end here, so that the patterns of later passes have fewer forms to look for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, isclose, isfinite, isinf

from atc_py.ir.constants import Blob, Splat, blob_array
from atc_py.ir.dims import prod
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.passes.base import PassContext
from atc_py.passes.known import SMALL, dims_of, given, ints, known_at_start, same_types, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.norms import FLOATS
from atc_py.passes.pattern import tolerance
from atc_py.passes.rewriting import become, filled, sweep

RULE = "arithmetic"
FAR = 2.0**60
"""Factors that are merged lie between 1 / FAR and FAR, so that no product leaves float32's range unseen."""


class _Simplifier:
    """One run over one graph."""

    def __init__(self, graph: Graph, lineage: Lineage) -> None:
        self.graph, self.lineage = graph, lineage

    # -- what is asked -------------------------------------------------------------------------------------------

    def number(self, node: Node, i: int) -> float | int | bool | None:
        """The one number that input `i` repeats."""
        return uniform(self.graph.const(node.inputs[i])) if given(node, i) else None

    def is_float(self, value: int) -> bool:
        """Whether the value is a tensor of floating-point numbers."""
        return self.graph.tensor(value).dtype in FLOATS

    def only(self, value: int) -> bool:
        """Whether the value is read once."""
        return len(self.graph.values[value].uses) == 1

    # -- what is done --------------------------------------------------------------------------------------------

    def keep(self, node: Node, i: int) -> bool:
        """The result is input `i`, where the types are the same."""
        if not same_types(self.graph, node.inputs[i], node.outputs[0]):
            return False
        self.lineage.bypass(node, node.inputs[i])
        return True

    def become(self, node: Node, op: str, inputs: list[int], *gone: Node, **attrs: object) -> bool:
        """The node is `op` now; `gone` are nodes that it may have been the last to read."""
        constants = [v for v in node.inputs if v >= 0 and self.graph.const(v) is not None]
        become(self.graph, node, op, inputs, attrs)
        sweep(self.graph, self.lineage, node, gone, constants)
        return True

    def unary(self, node: Node, op: str, i: int) -> bool:
        """The node is `op` of its input `i`, where that has the result's type."""
        return same_types(self.graph, node.inputs[i], node.outputs[0]) and self.become(node, op, [node.inputs[i]])

    def constant(self, like: int, number: float, heir: Node) -> int:
        """A scalar of the dtype of `like`."""
        made = filled(self.graph, self.graph.tensor(like).dtype, (), number)
        assert made is not None
        return self.graph.add_const(made, "", heir.origin)

    # -- the rules -----------------------------------------------------------------------------------------------

    def mul(self, node: Node) -> bool:
        """x · 1 = x;  x · -1 = -x;  x · Reciprocal(y) = x / y;  (x · a) · b = x · (a·b);  Σx · (1/n) = mean"""
        for i in (0, 1):
            c = self.number(node, 1 - i)
            if c == 1 and self.keep(node, i):
                return True
            if c == -1 and self.graph.tensor(node.inputs[i]).dtype.is_float and self.unary(node, "Neg", i):
                return True
            number = float(c) if c is not None and self.is_float(node.outputs[0]) else None
            if number is not None and (self._mean(node, i, number) or self._product(node, i, number)):
                return True
            maker = self.graph.producer(node.inputs[i])
            if maker.op == "Reciprocal" and self.only(node.inputs[i]) and node.inputs[0] != node.inputs[1]:
                return self.become(node, "Div", [node.inputs[1 - i], maker.inputs[0]], maker)
        return False

    def div(self, node: Node) -> bool:
        """x / 1 = x;  1 / x = Reciprocal(x);  x / 2ᵏ = x · 2⁻ᵏ;  Σx / n = mean"""
        by, of = self.number(node, 1), self.number(node, 0)
        if by == 1:
            return self.keep(node, 0)
        if not self.is_float(node.outputs[0]):
            return False
        if of == 1 and self.unary(node, "Reciprocal", 1):
            return True
        if by and isfinite(by):
            if self._mean(node, 0, 1 / float(by)):
                return True
            if abs(frexp(by)[0]) == 0.5 and 1 / FAR <= abs(by) <= FAR and self._fits(node, 1 / by):
                inverse = self.constant(node.outputs[0], 1 / by, node)
                return self.become(node, "Mul", [node.inputs[0], inverse])
        return False

    def _fits(self, node: Node, number: float) -> bool:
        """Whether the node's dtype holds the number, and no subnormal one."""
        dtype = self.graph.tensor(node.outputs[0]).dtype
        least, most = (2.0**-14, 65504.0) if dtype is DType.FLOAT16 else (1 / FAR**2, FAR**2)
        return least <= abs(number) <= most

    def _product(self, node: Node, i: int, b: float) -> bool:
        inner = self.graph.producer(node.inputs[i])
        if inner.op != "Mul" or not self.only(node.inputs[i]):
            return False
        for j in (0, 1):
            a = self.number(inner, 1 - j)
            if a is None or self.number(inner, j) is not None:
                continue
            small = all(1 / FAR <= abs(float(x)) <= FAR for x in (a, b))
            if small and self._fits(node, float(a) * b) and same_types(self.graph, inner.inputs[j], node.outputs[0]):
                factor = self.constant(node.outputs[0], float(a) * b, node)
                return self.become(node, "Mul", [inner.inputs[j], factor], inner)
        return False

    def _mean(self, node: Node, i: int, factor: float) -> bool:
        """Σx · (1/n) over n elements"""
        total = self.graph.producer(node.inputs[i])
        if total.op != "ReduceSum" or not self.only(node.inputs[i]) or not given(total, 1):
            return False
        dims, axes = dims_of(self.graph, total.inputs[0]), ints(self.graph, total, 1)
        if dims is None or not axes or not same_types(self.graph, total.outputs[0], node.outputs[0]):
            return False
        count = prod([dims[a] for a in sorted({a % len(dims) for a in axes})])
        close = tolerance(self.graph.tensor(total.inputs[0]).dtype)
        if type(count) is not int or not isclose(factor * count, 1.0, rel_tol=close):
            return False
        attrs = {"keepdims": total.attrs.get("keepdims", 1), "noop_with_empty_axes": 0}
        return self.become(node, "ReduceMean", list(total.inputs), total, **attrs)

    def add(self, node: Node) -> bool:
        """x + 0 = x"""
        return any(self.number(node, 1 - i) == 0 and self.keep(node, i) for i in (0, 1))

    def sub(self, node: Node) -> bool:
        """x - 0 = x;  0 - x = -x"""
        if self.number(node, 1) == 0 and self.keep(node, 0):
            return True
        return self.number(node, 0) == 0 and self.is_float(node.outputs[0]) and self.unary(node, "Neg", 1)

    def power(self, node: Node) -> bool:
        """x¹ = x;  x² = x·x;  x⁻¹ = 1 / x"""
        exponent = self.number(node, 1)
        if exponent == 1:
            return self.keep(node, 0)
        if exponent == 2 and same_types(self.graph, node.inputs[0], node.outputs[0]):
            return self.become(node, "Mul", [node.inputs[0], node.inputs[0]])
        return exponent == -1 and self.is_float(node.outputs[0]) and self.unary(node, "Reciprocal", 0)

    def neg(self, node: Node) -> bool:
        """-(-x) = x"""
        inner = self.graph.producer(node.inputs[0])
        if inner.op != "Neg":
            return False
        self.graph.set_input(node, 0, inner.inputs[0])
        if self.lineage.drop(inner):
            self.lineage.inherit(node, inner)
        return self.keep(node, 0)

    def extreme(self, node: Node) -> bool:
        """Max(x, -∞) = x;  Min(x, ∞) = x;  Min(Max(x, a), b) = Clip(x, a, b) where a ≤ b"""
        if len(node.inputs) != 2 or not self.is_float(node.outputs[0]):
            return False
        for i in (0, 1):
            c = self.number(node, 1 - i)
            if c is None:
                continue
            if isinf(c) and (c < 0) is (node.op == "Max") and self.keep(node, i):
                return True
            if self._clip(node, i, float(c)):
                return True
        return False

    def relu(self, node: Node) -> bool:
        """Relu(Min(x, b)) = Clip(x, 0, b) where 0 ≤ b"""
        return self.is_float(node.outputs[0]) and self._clip(node, 0, 0.0)

    def _clip(self, node: Node, i: int, outer: float) -> bool:
        """A bound of a bound on the other side"""
        inner = self.graph.producer(node.inputs[i])
        wanted = ("Max", "Relu") if node.op == "Min" else ("Min",)
        if inner.op not in wanted or not self.only(node.inputs[i]) or len(inner.inputs) > 2:
            return False
        at = 0 if inner.op == "Relu" or self.number(inner, 1) is not None else 1
        bound = 0.0 if inner.op == "Relu" else self.number(inner, 1 - at)
        if bound is None:
            return False
        low, high = (float(bound), outer) if node.op == "Min" else (outer, float(bound))
        x = inner.inputs[at]
        if not low <= high or not same_types(self.graph, x, node.outputs[0]):
            return False
        bounds = [self.constant(x, b, node) for b in (low, high)]
        return self.become(node, "Clip", [x, *bounds], inner)

    def sum(self, node: Node) -> bool:
        """A Sum of two is an Add"""
        return len(node.inputs) == 2 and self.become(node, "Add", list(node.inputs))

    def either(self, node: Node) -> bool:
        """a > b or a = b is a ≥ b"""
        parts = [self.graph.producer(v) for v in node.inputs]
        for strict, equal in (parts, parts[::-1]):
            name = {"Greater": "GreaterOrEqual", "Less": "LessOrEqual"}.get(strict.op)
            if name is None or equal.op != "Equal" or set(strict.inputs) != set(equal.inputs):
                continue
            if all(self.only(n.outputs[0]) for n in parts):
                return self.become(node, name, list(strict.inputs), strict, equal)
        return self.logic(node)

    def logic(self, node: Node) -> bool:
        """And(x, true) = x;  Or(x, false) = x"""
        neutral = node.op == "And"
        return any(self.number(node, 1 - i) is neutral and self.keep(node, i) for i in (0, 1))

    def where(self, node: Node) -> bool:
        """Where(true, a, b) = a;  Where(false, a, b) = b;  Where(c, a, a) = a"""
        condition = self.number(node, 0)
        if node.inputs[1] == node.inputs[2]:
            return self.keep(node, 1)
        return condition is not None and self.keep(node, 1 if condition else 2)

    def reshape(self, node: Node) -> bool:
        """A Reshape that puts the reduced axes back as axes of size 1"""
        reduce = self.graph.producer(node.inputs[0])
        if not reduce.op.startswith("Reduce") or reduce.attrs.get("keepdims", 1) or not self.only(node.inputs[0]):
            return False
        dims, out = dims_of(self.graph, reduce.inputs[0]), dims_of(self.graph, node.outputs[0])
        axes = ints(self.graph, reduce, 1) if given(reduce, 1) else None
        if dims is None or out is None or not axes or not known_at_start(self.graph, out):
            return False
        over = {a % len(dims) for a in axes}
        if out != tuple([1 if i in over else d for i, d in enumerate(dims)]):
            return False
        return self.become(node, reduce.op, list(reduce.inputs), reduce, **{**reduce.attrs, "keepdims": 1})

    def constant_node(self, node: Node) -> bool:
        """A constant that repeats one number says so"""
        constant = node.const
        if not isinstance(constant, Blob) or not (constant.dtype in FLOATS or constant.dtype is DType.BOOL):
            return False
        data, size = constant.data, constant.dtype.itemsize
        if not size < data.nbytes <= SMALL * size or data[:size] != data[size : 2 * size]:
            return False
        array = blob_array(constant).reshape(-1)
        raw = array.view(f"u{size}")
        if not (raw == raw[0]).all():
            return False
        node.const = Splat(constant.dtype, constant.shape, array[0])
        return True


_RULES: dict[str, Callable[[_Simplifier, Node], bool]] = {
    "Mul": _Simplifier.mul,
    "Div": _Simplifier.div,
    "Add": _Simplifier.add,
    "Sub": _Simplifier.sub,
    "Pow": _Simplifier.power,
    "Neg": _Simplifier.neg,
    "Max": _Simplifier.extreme,
    "Min": _Simplifier.extreme,
    "Relu": _Simplifier.relu,
    "Sum": _Simplifier.sum,
    "And": _Simplifier.logic,
    "Or": _Simplifier.either,
    "Where": _Simplifier.where,
    "Reshape": _Simplifier.reshape,
    "Unsqueeze": _Simplifier.reshape,
    "Const": _Simplifier.constant_node,
}


def simplify_arithmetic(graph: Graph, ctx: PassContext) -> int:
    """Bring arithmetic with constants into its one form; returns how many nodes changed."""
    changed = 0
    with Lineage(graph) as lineage:
        simplifier = _Simplifier(graph, lineage)
        for node in list(graph.nodes.values()):
            rule = _RULES.get(node.op)
            if rule is not None and node.id in graph.nodes and rule(simplifier, node):
                changed += 1
    return changed
