"""Normalizations written in pieces become one operator again.

    x / √(mean(x²) + ε)                              →    RMSNormalization(x, 1)              mean over the last axes
    (x - mean(x)) / √(mean((x - mean(x))²) + ε)      →    LayerNormalization(x, 1)
    LayerNormalization(x, s, b) · w + c              →    LayerNormalization(x, s·w, b·w + c)
    Reshape(InstanceNormalization(Reshape(x, [N, G, -1]), 1, 0), [N, C, H, W])    →    GroupNormalization(x, 1, 0)

The core of a normalization is found first, with a scale of ones; factors and summands after it then go into its scale
and bias, in whatever order an exporter wrote them. A core over all axes from 2 on whose factor is one number a channel
([C, 1, 1]) is an InstanceNormalization. What is equal in exact arithmetic is equal here up to rounding: the operators
accumulate in float32, the pieces in their own dtype; E[x²] - E[x]² becomes E[(x - E[x])²].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atc_py.ir.constants import Constant, Splat, blob
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.ops.base import Array
from atc_py.ops.evaluate import evaluate
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, given, ints, same_types, uniform
from atc_py.passes.pattern import Con, Num, Op, Pattern, Through, Var
from atc_py.passes.rewriting import filled
from atc_py.passes.rules import Rewrite, Rule, apply_rules, index_rules

PASS = "norms"
FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


def recognise_norms(graph: Graph, ctx: PassContext) -> int:
    """Recognise normalizations, and fold what follows them into their scales and biases; returns how many."""
    return apply_rules(graph, ctx, PASS, _TABLE)


# -- cores -------------------------------------------------------------------------------------------------------


def _keeps_dims(graph: Graph, node: Node) -> bool:
    return bool(node.attrs.get("keepdims", 1))


def _between(p: Pattern) -> Pattern:
    """p, with what exporters put between the parts of a statistic."""
    return Through("Cast Identity", p)


def _mean(p: Pattern) -> Pattern:
    return _between(Op("ReduceMean", p, Con("axes"), when=_keeps_dims))


def _square(p: Pattern) -> Pattern:
    return Op("Mul", p, p) | Op("Pow", p, Num(2.0))


def _over_deviation(p: Pattern, variance: Pattern) -> Pattern:
    """p / √(variance + ε), as a quotient or as a product with the inverse; a factor γ may be within."""
    shifted = Op("Add", variance, Num("epsilon"))
    root = _between(Op("Sqrt", shifted) | Op("Pow", shifted, Num(0.5)))
    inverse = Op("Reciprocal", root) | Op("Div", Num(1.0), root) | Op("Pow", shifted, Num(-0.5))
    scaled = Op("Mul", inverse, Var("gamma")) | Op("Div", Var("gamma"), root)
    return Op("Div", p, root) | Op("Mul", p, _between(inverse)) | Op("Mul", p, scaled)


X = Var("x")
_SEEN = _between(X)
_CENTERED = Op("Sub", X, _mean(_SEEN))
_SPREAD = _mean(_square(_between(_CENTERED)))
_MOMENTS = Op("Sub", _mean(_square(_SEEN)), _square(_mean(_SEEN)))
_CLAMPED = Op("Max", _MOMENTS, Num(0.0)) | Op("Relu", _MOMENTS)

_RMS = _over_deviation(X, _mean(_square(_SEEN)))
_LAYER = _over_deviation(_CENTERED, _SPREAD | _MOMENTS | _CLAMPED)


def _core(r: Rewrite, op: str) -> str | None:
    graph, x, root = r.graph, r.m["x"], r.m.root
    type_, dims = r.m.type("x"), dims_of(graph, x)
    if type_.dtype not in FLOATS or dims is None or not same_types(graph, x, r.m.result):
        return ""
    reducing = next(n for n in r.m.nodes if n.op == "ReduceMean")
    axes = ints(graph, reducing, 1)
    axes = None if axes is None else sorted(a % len(dims) for a in axes)
    if not axes or axes != list(range(axes[0], len(dims))):
        return f"the mean is over axes {axes} of rank {len(dims)}, not over the last ones"
    if r.m.numbers["epsilon"] < 0:
        return f"epsilon is {r.m.numbers['epsilon']}"
    over = dims[axes[0] :]
    if "gamma" in r.m.values:
        scale = _trailing(graph, r.m["gamma"], type_.dtype, over, root)
        if scale is None:
            return f"its factor of shape {_told(graph, r.m['gamma'])} is not one number for each of {_shown(over)}"
    else:
        ones = filled(graph, type_.dtype, over, 1.0)
        if ones is None:
            return f"the sizes {_shown(over)} are known only at run time"
        scale = r.constant(ones)
    r.replace(op, [x, scale], {"axis": axes[0] - len(dims), "epsilon": r.m.numbers["epsilon"]})
    return None


def _shown(dims: tuple[Size, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _told(graph: Graph, value: int) -> str:
    dims = dims_of(graph, value)
    return "unknown rank" if dims is None else _shown(dims)


# -- scales and biases -------------------------------------------------------------------------------------------


def _trailing(graph: Graph, value: int, dtype: DType, over: tuple[Size, ...], heir: Node) -> int | None:
    """A value that broadcasts over all but the last axes `over`, as a tensor of just these; None where it is not."""
    dims = dims_of(graph, value)
    if dims is None or graph.tensor(value).dtype is not dtype:
        return None
    if dims == over:
        return value
    constant = graph.const(value)
    lead = len(dims) - len(over)
    if constant is None or any(d != 1 for d in dims[: max(0, lead)]):
        return None
    last = (1,) * max(0, -lead) + dims[max(0, lead) :]
    if any(d not in (1, o) for d, o in zip(last, over)):
        return None
    made = _widened(graph, constant, last, over)
    return None if made is None else graph.add_const(made, graph.producer(value).name, heir.origin)


def _widened(graph: Graph, constant: Constant, last: tuple[Size, ...], over: tuple[Size, ...]) -> Constant | None:
    number = uniform(constant)
    if number is not None:
        return filled(graph, constant.dtype, over, float(number))
    if any(type(d) is not int for d in (*over, *constant.shape)):
        return None
    array = evaluate(constant).reshape([d for d in last if type(d) is int])
    return blob(np.ascontiguousarray(np.broadcast_to(array, [d for d in over if type(d) is int])))


def _channels(graph: Graph, value: int, dtype: DType, x: tuple[Size, ...], heir: Node) -> int | None:
    """A constant that is one number a channel (axis 1 of x) as a vector; None where it is not."""
    constant, dims = graph.const(value), dims_of(graph, value)
    if constant is None or dims is None or constant.dtype is not dtype or len(dims) > len(x) or type(x[1]) is not int:
        return None
    full = (1,) * (len(x) - len(dims)) + dims
    if any(d != 1 for i, d in enumerate(full) if i != 1) or full[1] not in (1, x[1]):
        return None
    made = _widened(graph, constant, (full[1],), (x[1],))
    return None if made is None else graph.add_const(made, graph.producer(value).name, heir.origin)


def _combined(graph: Graph, a: int, b: int, how: Callable[[Array, Array], Array], heir: Node) -> int | None:
    """The constant `how(a, b)`, computed in float64 and rounded once; None when it does not fit, or one is computed."""
    first, second = graph.const(a), graph.const(b)
    if first is None or second is None:
        return None
    numbers = uniform(first), uniform(second)
    dtype = first.dtype.numpy
    with np.errstate(all="ignore"):
        if numbers[0] is not None and numbers[1] is not None and isinstance(first, Splat):
            number = how(np.float64(numbers[0]), np.float64(numbers[1])).astype(dtype)  # type: ignore[arg-type]
            made: Constant = Splat(first.dtype, first.shape, number)
            finite = bool(np.isfinite(float(number)))
        elif any(type(d) is not int for d in (*first.shape, *second.shape)):
            return None
        else:
            array = how(evaluate(first).astype(np.float64), evaluate(second).astype(np.float64)).astype(dtype)
            made, finite = blob(np.ascontiguousarray(array)), bool(np.isfinite(array.astype(np.float64)).all())
    return graph.add_const(made, graph.producer(b).name, heir.origin) if finite else None


def _is_unit(graph: Graph, value: int, number: float) -> bool:
    return uniform(graph.const(value)) == number


def _is_settled(graph: Graph, node: Node) -> bool:
    return not node.attrs.get("training_mode", 0) and len(node.outputs) == 1


_BY_CHANNEL = frozenset({"InstanceNormalization", "GroupNormalization", "BatchNormalization"})
_NORMED = Op("LayerNormalization", X, Var("scale")) | Op("LayerNormalization", X, Var("scale"), Var("bias"))
_NORMS = (
    _NORMED
    | Op("RMSNormalization", X, Var("scale"))
    | Op("InstanceNormalization GroupNormalization", X, Var("scale"), Var("bias"))
    | Op("BatchNormalization", X, Var("scale"), Var("bias"), Con("mean"), Con("var"), when=_is_settled)
)


def _scaled(r: Rewrite) -> str | None:
    """norm(x; s, b) · w = norm(x; s·w, b·w)"""
    graph, root = r.graph, r.m.root
    norm, w = r.m.inner()[-1], r.m["w"]
    dims = dims_of(graph, r.m["x"])
    if dims is None or not same_types(graph, r.m["x"], r.m.result) or r.m.type("w").dtype is not r.m.type("x").dtype:
        return ""
    by_channel = _as_instance(graph, norm, w, dims)
    factor = _operand(graph, norm, w, dims, root, by_channel)
    if factor is None:
        return f"the factor of shape {_told(graph, w)} does not fit the scale of {norm.op}"
    scale, bias = norm.inputs[1], norm.inputs[2] if given(norm, 2) else None
    if by_channel:
        zeros = filled(graph, r.m.type("x").dtype, (dims[1],), 0.0)
        if zeros is None:
            return ""
        r.replace("InstanceNormalization", [r.m["x"], factor, r.constant(zeros)], {"epsilon": norm.attrs["epsilon"]})
        return None
    new_scale = factor if _is_unit(graph, scale, 1.0) else _combined(graph, scale, factor, np.multiply, root)
    new_bias = bias
    if bias is not None and not _is_unit(graph, bias, 0.0):
        new_bias = _combined(graph, bias, factor, np.multiply, root)
    if new_scale is None or (bias is not None and new_bias is None):
        return f"the scale or the bias of {norm.op}, or the factor, is computed, or their product overflows"
    inputs = [r.m["x"], new_scale, *([] if new_bias is None else [new_bias]), *norm.inputs[3:]]
    r.replace(norm.op, inputs, dict(norm.attrs))
    return None


def _scaled_by_value(r: Rewrite) -> str | None:
    """As `_scaled`, with a factor that is computed (a weight that is dequantized, say); it has to fit as it is."""
    norm = r.m.inner()[-1]
    dims, w = dims_of(r.graph, r.m["x"]), dims_of(r.graph, r.m["w"])
    if norm.op not in ("LayerNormalization", "RMSNormalization") or dims is None or r.m.outside():
        return ""
    fits = w == dims[int(norm.attrs["axis"]) % len(dims) :] and _is_unit(r.graph, norm.inputs[1], 1.0)
    plain = not given(norm, 2) or _is_unit(r.graph, norm.inputs[2], 0.0)
    return _scaled(r) if fits and plain else ""


def _shifted(r: Rewrite) -> str | None:
    """norm(x; s, b) + c = norm(x; s, b + c)"""
    graph, root = r.graph, r.m.root
    norm, c = r.m.inner()[-1], r.m["w"]
    dims = dims_of(graph, r.m["x"])
    if norm.op == "RMSNormalization" or dims is None or not same_types(graph, r.m["x"], r.m.result):
        return ""
    if graph.tensor(c).dtype is not r.m.type("x").dtype:
        return ""
    summand = _operand(graph, norm, c, dims, root, False)
    if summand is None:
        return f"the summand of shape {_told(graph, c)} does not fit the bias of {norm.op}"
    bias = norm.inputs[2] if given(norm, 2) else None
    if bias is not None and not _is_unit(graph, bias, 0.0):
        summand = _combined(graph, bias, summand, np.add, root)
        if summand is None:
            return f"the bias of {norm.op} is computed, or the sum overflows"
    r.replace(norm.op, [r.m["x"], norm.inputs[1], summand, *norm.inputs[3:]], dict(norm.attrs))
    return None


def _operand(graph: Graph, norm: Node, value: int, x: tuple[Size, ...], heir: Node, by_channel: bool) -> int | None:
    """The value as the norm's scale or bias; None where it has another shape."""
    dtype = graph.tensor(norm.inputs[0]).dtype
    if by_channel or norm.op in _BY_CHANNEL:
        return _channels(graph, value, dtype, x, heir)
    return _trailing(graph, value, dtype, x[int(norm.attrs["axis"]) % len(x) :], heir)


def _as_instance(graph: Graph, norm: Node, w: int, x: tuple[Size, ...]) -> bool:
    """Whether a plain core over all axes from 2 on has a factor for each channel."""
    dims = dims_of(graph, w)
    if norm.op != "LayerNormalization" or given(norm, 2) or len(x) < 3 or int(norm.attrs["axis"]) % len(x) != 2:
        return False
    if not _is_unit(graph, norm.inputs[1], 1.0) or dims is None or graph.const(w) is None:
        return False
    return len(dims) >= len(x) - 1 and dims[1 - len(x)] != 1 and all(d == 1 for d in dims[2 - len(x) :])


# -- casts -------------------------------------------------------------------------------------------------------


def _narrowed(r: Rewrite) -> str | None:
    """Cast(norm(Cast(x; float32)); float16) = norm(x), which accumulates in float32 anyway"""
    graph, m = r.graph, r.m
    norm, type_ = next(n for n in m.inner() if n.op.endswith("Normalization")), m.type("x")
    if type_.dtype not in (DType.FLOAT16, DType.BFLOAT16) or not same_types(graph, m["x"], m.result):
        return ""
    if graph.tensor(norm.outputs[0]).dtype is not DType.FLOAT32:
        return ""
    made = [_exactly(graph, v, type_.dtype) for v in norm.inputs[1:]]
    if any(c is None for c in made):
        return f"the scale or the bias of {norm.op} is not held by {type_.dtype.value}"
    r.replace(norm.op, [m["x"], *(r.constant(c) for c in made if c is not None)], dict(norm.attrs))
    return None


def _exactly(graph: Graph, value: int, dtype: DType) -> Constant | None:
    """A constant in another dtype, where that holds each of its numbers."""
    constant = graph.const(value)
    if isinstance(constant, Splat):
        number = dtype.numpy.type(constant.value)
        return Splat(dtype, constant.shape, number) if float(number) == float(constant.value) else None
    if constant is None or any(type(d) is not int for d in constant.shape):
        return None
    array = evaluate(constant)
    with np.errstate(all="ignore"):
        narrow = array.astype(dtype.numpy)
    return blob(narrow) if np.array_equal(narrow.astype(array.dtype), array) else None


# -- groups ------------------------------------------------------------------------------------------------------


def _grouped(r: Rewrite) -> str | None:
    """Each group of channels normalized on its own, between two Reshapes, is GroupNormalization."""
    graph, root = r.graph, r.m.root
    norm = next(n for n in r.m.inner() if n.op.endswith("Normalization"))
    inside, dims = dims_of(graph, norm.inputs[0]), dims_of(graph, r.m.result)
    if inside is None or dims is None or len(inside) < 3 or len(dims) < 3 or inside[0] != dims[0]:
        return ""
    if norm.op == "LayerNormalization" and int(norm.attrs["axis"]) % len(inside) != 2:
        return ""
    groups, channels, dtype = inside[1], dims[1], graph.tensor(norm.inputs[0]).dtype
    if type(groups) is not int or type(channels) is not int or not groups or channels % groups:
        return ""
    scale = _repeated(graph, norm, 1, 1.0, channels)
    bias = _repeated(graph, norm, 2, 0.0, channels)
    if scale is None or bias is None or dtype not in FLOATS:
        return "the scale or the bias of a group is computed"
    x = r.m["x"]
    if not same_types(graph, x, r.m.result):
        x = r.emit("Reshape", [x, root.inputs[1]], dict(root.attrs))
        if not same_types(graph, x, r.m.result):
            graph.remove(graph.producer(x))
            return ""
    vectors = [r.constant(c) for c in (scale, bias)]
    r.replace("GroupNormalization", [x, *vectors], {"num_groups": groups, "epsilon": norm.attrs["epsilon"]})
    return None


def _repeated(graph: Graph, norm: Node, i: int, default: float, channels: int) -> Constant | None:
    """The norm's scale or bias of each group as one number a channel."""
    dtype = graph.tensor(norm.inputs[0]).dtype
    constant = graph.const(norm.inputs[i]) if given(norm, i) else None
    number = uniform(constant) if given(norm, i) else default
    if number is None and constant is not None and norm.op == "InstanceNormalization":
        array = evaluate(constant)
        if array.size and (array == array[0]).all():
            number = float(array[0])
        else:
            return blob(np.ascontiguousarray(np.repeat(array, channels // array.size)))
    return None if number is None else filled(graph, dtype, (channels,), float(number))


_PLAIN = Op("InstanceNormalization", Op("Reshape", X, Con("in")), Con("scale"), Con("bias")) | Op(
    "LayerNormalization", Op("Reshape", X, Con("in")), Con("scale")
)

_CAST = Op("Cast", X)
_OF_CAST = (
    Op("LayerNormalization", _CAST, Con("scale"))
    | Op("LayerNormalization", _CAST, Con("scale"), Con("bias"))
    | Op("RMSNormalization", _CAST, Con("scale"))
)

RULES = (
    Rule("LayerNormalization", _LAYER, lambda r: _core(r, "LayerNormalization")),
    Rule("RMSNormalization", _RMS, lambda r: _core(r, "RMSNormalization")),
    Rule("scale of a norm", Op("Mul", _NORMS, Con("w")), _scaled),
    Rule("scale of a norm", Op("Mul", _NORMS, Var("w")), _scaled_by_value, shared=True),
    Rule("bias of a norm", Op("Add", _NORMS, Con("w")), _shifted),
    Rule("norm of a narrow type", Op("Cast", _OF_CAST), _narrowed),
    Rule("GroupNormalization", Op("Reshape", _PLAIN, Con("out")), _grouped),
)
_TABLE = index_rules(RULES)
