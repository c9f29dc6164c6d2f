"""Sigmoids, rectifiers, softmax and unit vectors written in pieces become one operator again.

    1 / (1 + exp(-x))              →    Sigmoid(x)              y / (1 + exp(-x))        →    y · Sigmoid(x)
    Max(x, 0), Clip(x, 0, ∞)       →    Relu(x)                 Max(x, a·x), 0 ≤ a ≤ 1   →    LeakyRelu(x; a)
    Clip(a·x + b, 0, 1)            →    HardSigmoid(x; a, b)    Clip(x + 3, 0, 6) / 6    →    HardSigmoid(x; 1/6, 1/2)
    x / (1 + |x|)                  →    Softsign(x)
    exp(x - max(x)) / Σ exp(x - max(x))    →    Softmax(x)      its logarithm in pieces    →    LogSoftmax(x)
    x / max(√Σx², ε)               →    L2Normalize(x; ε)       also x / √max(Σx², ε)

Each is equal in real arithmetic, and in floating point up to rounding: exp(-x) may overflow to ∞, of which the inverse
is the right limit. A softmax that does not subtract the maximum overflows where Softmax does not, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isclose, isinf

from atc_py.ir.graph import Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, given, ints, same_types, uniform
from atc_py.passes.norms import FLOATS
from atc_py.passes.pattern import Con, Num, Op, Pattern, Through, Var, tolerance
from atc_py.passes.rewriting import emit
from atc_py.passes.rules import Rewrite, Rewriter, Rule, apply_rules, index_rules

PASS = "gates"
X, Y = Var("x"), Var("y")


def recognise_gates(graph: Graph, ctx: PassContext) -> int:
    """Recognise sigmoids, rectifiers and softmax; returns how many."""
    return apply_rules(graph, ctx, PASS, _TABLE)


def _same(r: Rewrite) -> bool:
    return r.m.type("x").dtype in FLOATS and same_types(r.graph, r.m["x"], r.m.result)


def _unary(op: str) -> Rewriter:
    def rewrite(r: Rewrite) -> str | None:
        if not _same(r):
            return ""
        r.replace(op, [r.m["x"]])
        return None

    return rewrite


def _times_sigmoid(r: Rewrite) -> str | None:
    """y / (1 + exp(-x)) = y · sigmoid(x)"""
    if r.m.type("x").dtype not in FLOATS:
        return ""
    r.replace("Mul", [r.m["y"], emit(r.graph, "Sigmoid", [r.m["x"]], {}, r.m.root)])
    return None


def _bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    found = []
    for i, default in ((1, float("-inf")), (2, float("inf"))):
        number = uniform(graph.const(node.inputs[i])) if given(node, i) else default
        if number is None:
            return None
        found.append(float(number))
    return found[0], found[1]


def _is_relu(graph: Graph, node: Node) -> bool:
    bounds = _bounds(graph, node)
    return bounds is not None and bounds[0] == 0 and isinf(bounds[1])


def _clips(low: float, high: float) -> Callable[[Graph, Node], bool]:
    return lambda graph, node: _bounds(graph, node) == (low, high)


def _leaky(r: Rewrite) -> str | None:
    """max(x, a·x) = LeakyRelu(x; a) for a from 0 to 1"""
    slope = r.m.numbers["slope"]
    if not _same(r) or not 0 <= slope <= 1:
        return ""
    r.replace("LeakyRelu", [r.m["x"]], {"alpha": slope})
    return None


def _leaky_choice(r: Rewrite) -> str | None:
    """x where x ≥ 0, a·x elsewhere"""
    if not _same(r):
        return ""
    r.replace("LeakyRelu", [r.m["x"]], {"alpha": r.m.numbers["slope"]})
    return None


def _log_softmax(r: Rewrite) -> str | None:
    """x - max(x) - log Σ exp(x - max(x))"""
    axes = _one_axis(r)
    if isinstance(axes, str):
        return axes
    r.replace("LogSoftmax", [r.m["x"]], {"axis": axes})
    return None


def _hard(r: Rewrite) -> str | None:
    """clip(a·x + b, 0, 1) = HardSigmoid(x; a, b)"""
    alpha, beta = r.m.numbers.get("alpha", 1.0), r.m.numbers["beta"]
    if not _same(r) or not alpha:
        return ""
    r.replace("HardSigmoid", [r.m["x"]], {"alpha": alpha, "beta": beta})
    return None


def _hard_sixth(r: Rewrite) -> str | None:
    """clip(x + 3, 0, 6) / 6 = HardSigmoid(x; 1/6, 1/2)"""
    by = r.m.numbers["by"]
    inverse = 1 / by if r.m.root.op == "Div" and by else by
    if not _same(r) or not isclose(inverse, 1 / 6, rel_tol=tolerance(r.m.type("x").dtype)):
        return ""
    r.replace("HardSigmoid", [r.m["x"]], {"alpha": 1 / 6, "beta": 0.5})
    return None


def _keeps(graph: Graph, node: Node) -> bool:
    return bool(node.attrs.get("keepdims", 1))


def _unit(r: Rewrite) -> str | None:
    """x / max(‖x‖, ε) = L2Normalize(x; ε)"""
    graph, m = r.graph, r.m
    dims = dims_of(graph, m["x"])
    reducing = next(n for n in m.nodes if n.op in ("ReduceL2", "ReduceSum", "ReduceSumSquare"))
    axes = ints(graph, reducing, 1)
    if dims is None or not axes or not _same(r):
        return ""
    eps = m.numbers.get("length", m.numbers.get("square", 0.0) ** 0.5 if m.numbers.get("square", 0) >= 0 else -1.0)
    if eps < 0:
        return f"it is bounded by {eps}"
    r.replace("L2Normalize", [m["x"]], {"axis": tuple(sorted({a % len(dims) - len(dims) for a in axes})), "eps": eps})
    return None


def _low_only(graph: Graph, node: Node) -> bool:
    bounds = _bounds(graph, node)
    return bounds is not None and isinf(bounds[1])


def _at_least(p: Pattern, name: str) -> Pattern:
    """max(p, ε)"""
    return Op("Max", p, Num(name)) | Op("Clip", p, Num(name), when=_low_only, rest=True)


def _softmax(r: Rewrite) -> str | None:
    axis = _one_axis(r)
    if isinstance(axis, str):
        return axis
    r.replace("Softmax", [r.m["x"]], {"axis": axis})
    return None


def _one_axis(r: Rewrite) -> int | str:
    """The one axis of all reductions of the match, from the end; or why there is none."""
    graph, m = r.graph, r.m
    dims = dims_of(graph, m["x"])
    if dims is None or not _same(r):
        return ""
    over = []
    for node in m.nodes:
        if node.op in ("ReduceSum", "ReduceMax"):
            axes = ints(graph, node, 1)
            if not axes:
                return "the axes are not known"
            over.append(sorted({a % len(dims) for a in axes}))
    proper = [a for a in over[0] if dims[a] != 1]
    if any(axes != over[0] for axes in over) or len(proper) > 1:
        return f"the sum and the maximum are over axes {over}"
    return (proper[0] if proper else over[0][0]) - len(dims)


_ONE_PLUS_EXP = Op("Add", Op("Exp", Op("Neg", X)), Num(1.0))
_LARGEST = Through("Cast Identity", Op("ReduceMax", X, Con("a"), when=_keeps))
_BELOW = Op("Sub", X, _LARGEST)
_EXP = Op("Exp", _BELOW)
_NEGATIVE = Op("Less", X, Num(0.0))
_SHIFTED = Op("Add", Op("Mul", X, Num("alpha")), Num("beta")) | Op("Add", X, Num("beta"))
_SIXTH = Op("Clip", Op("Add", X, Num(3.0)), Con("l"), Con("h"), when=_clips(0.0, 6.0))
_UNIT = Op("Clip", _SHIFTED, Con("l"), Con("h"), when=_clips(0.0, 1.0))

_SQUARES = Op("ReduceSum", Op("Mul", X, X) | Op("Pow", X, Num(2.0)), Con("a"), when=_keeps) | Op(
    "ReduceSumSquare", X, Con("a"), when=_keeps
)
_LENGTH = Op("ReduceL2", X, Con("a"), when=_keeps) | Op("Sqrt", _SQUARES)
_BOUNDED = _at_least(_LENGTH, "length") | Op("Sqrt", _at_least(_SQUARES, "square"))
_UNIT_VECTOR = Op("Div", X, Through("Expand Identity", _BOUNDED | _LENGTH))

RULES = (
    Rule("L2Normalize", _UNIT_VECTOR, _unit),
    Rule("Sigmoid", Op("Reciprocal", _ONE_PLUS_EXP), _unary("Sigmoid")),
    Rule("Sigmoid", Op("Div", Y, _ONE_PLUS_EXP), _times_sigmoid),
    Rule("Softsign", Op("Div", X, Op("Add", Op("Abs", X), Num(1.0))), _unary("Softsign")),
    Rule("Softmax", Op("Div", _EXP, Op("ReduceSum", _EXP, Con("b"), when=_keeps)), _softmax),
    Rule("Relu", Op("Max", X, Num(0.0)), _unary("Relu")),
    Rule("Relu", Op("Clip", X, when=_is_relu, rest=True), _unary("Relu")),
    Rule("LogSoftmax", Op("Sub", _BELOW, Op("Log", Op("ReduceSum", _EXP, Con("b"), when=_keeps))), _log_softmax),
    Rule("LeakyRelu", Op("Where", _NEGATIVE, Op("Mul", X, Num("slope")), X), _leaky_choice),
    Rule("LeakyRelu", Op("Max", X, Op("Mul", X, Num("slope"))), _leaky),
    Rule("HardSigmoid", _UNIT, _hard),
    Rule("HardSigmoid", Op("Mul Div", _SIXTH, Num("by")), _hard_sixth),
)
_TABLE = index_rules(RULES)
