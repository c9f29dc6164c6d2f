"""BatchNorm, and constants multiplied or added per channel, go into the weights of what comes before them.

    Conv(x, W, b) ─ BatchNormalization(γ, β, μ, σ²) ─ y                →      Conv(x, s·W, s·(b - μ) + β) ─ y
                                                                              with s = γ / √(σ² + ε)
    Gemm(a, B) ─ Mul([1, N]) ─ Add([1, N]) ─ y                         →      Gemm(a, B·mul, add) ─ y

Law: each follower is y[c] = s[c]·x[c] + t[c], and a linear operator with output channel c takes s[c] into its weights
and t[c] into its bias. s, t and the new constants are computed in float64 and rounded once. The anchor's result must
have no other reader, and the weights must be constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.constants import Constant, Splat, blob
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType
from atc_py.ops.base import Array
from atc_py.ops.evaluate import evaluate
from atc_py.passes.base import PassContext
from atc_py.passes.known import given
from atc_py.passes.lineage import Lineage

RULE = "fold_affine"
ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm"})
FOLLOWERS = frozenset({"BatchNormalization", "Mul", "Div", "Add", "Sub"})
_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


class Refused(Exception):
    """Why a follower is not folded."""


@dataclass(frozen=True)
class Affine:
    """y = scale · x + shift, both float64 of shape [1] or [channels]."""

    scale: Array
    shift: Array


def fold_affine(graph: Graph, ctx: PassContext) -> int:
    """Fold followers into the weights and bias of their anchors; returns how many went."""
    changed = 0
    with Lineage(graph) as lineage, np.errstate(all="ignore"):  # a model's constants may be infinite or NaN
        for node in [n for n in graph.order() if n.op in FOLLOWERS]:
            found = _anchor(graph, node)
            if found is None:
                continue
            anchor, index = found
            try:
                _fold(graph, ctx, lineage, anchor, node, index)
            except Refused as reason:
                ctx.decline(anchor, RULE, f"{node.op} '{node.name}' stays: {reason}")
                continue
            changed += 1
    return changed


def _anchor(graph: Graph, node: Node) -> tuple[Node, int] | None:
    """The linear operator before a follower whose other inputs are constants, and the input that it feeds."""
    for i in (0,) if node.op == "BatchNormalization" else (0, 1):
        anchor = graph.producer(node.inputs[i])
        if anchor.op not in ANCHORS:
            continue
        if node.op == "BatchNormalization" or graph.const(node.inputs[1 - i]) is not None:
            return anchor, i
    return None


def _fold(graph: Graph, ctx: PassContext, lineage: Lineage, anchor: Node, node: Node, index: int) -> None:
    value = anchor.outputs[0]
    if len(graph.values[value].uses) > 1:
        what = "is an output of the graph and " if graph.is_output(value) else ""
        raise Refused(f"the result of {anchor.op} {what}has {len(graph.values[value].uses)} readers")
    type_ = graph.tensor(value)
    after = graph.tensor(node.outputs[0])
    if type_.dtype not in _FLOATS:
        raise Refused(f"{type_.dtype.value} is no floating-point type")
    if type_.shape is None or type_.shape != after.shape:
        raise Refused(f"the shape changes from {type_.shape} to {after.shape}")
    weight = _constant(graph, anchor, 1)
    channels = _channels(anchor, weight)
    affine = _affine(graph, node, index, channels, len(type_.shape))
    new_weight = _scaled(anchor, weight, affine.scale, type_.dtype)
    bias = _constant(graph, anchor, 2) if given(anchor, 2) else None
    new_bias = _biased(anchor, bias, affine, channels, type_.dtype)
    _check_growth(graph, ctx, anchor, [(1, weight, new_weight), (2, bias, new_bias)])
    _replace(graph, lineage, anchor, node, new_weight, new_bias)


def _constant(graph: Graph, anchor: Node, index: int) -> Constant:
    what = "weight" if index == 1 else "bias"
    constant = graph.const(anchor.inputs[index])
    if constant is None:
        raise Refused(f"the {what} is computed by {graph.producer(anchor.inputs[index]).op}")
    if not {*map(type, constant.shape)} <= {int}:
        raise Refused(f"the {what} has the symbolic shape {constant.shape}")
    return constant


def _channels(anchor: Node, weight: Constant) -> int:
    """Output channels of the anchor."""
    shape = [int(d) for d in weight.shape if type(d) is int]
    if anchor.op == "Conv":
        return shape[0]
    if anchor.op == "ConvTranspose":
        return shape[1] * int(anchor.attrs.get("group", 1))
    return shape[0] if anchor.attrs.get("transB", 0) else shape[1]


# -- the follower ------------------------------------------------------------------------------------------------


def _affine(graph: Graph, node: Node, index: int, channels: int, rank: int) -> Affine:
    if node.op == "BatchNormalization":
        return _batch_norm(graph, node)
    constant = graph.const(node.inputs[1 - index])
    assert constant is not None
    c = _per_channel(constant, channels, rank)
    one, zero = np.ones(1), np.zeros(1)
    if node.op == "Mul":
        return Affine(c, zero)
    if node.op == "Add":
        return Affine(one, c)
    if node.op == "Sub":
        return Affine(one, -c) if index == 0 else Affine(-one, c)
    if index != 0:
        raise Refused("it divides a constant by the result")
    if not c.all():
        raise Refused("it divides by a constant that holds a zero")
    return Affine(1 / c, zero)


def _batch_norm(graph: Graph, node: Node) -> Affine:
    if node.attrs.get("training_mode", 0):
        raise Refused("it is in training mode")
    if any(graph.values[v].uses for v in node.outputs[1:]):
        raise Refused("its running statistics are read")
    parts = [graph.const(v) for v in node.inputs[1:5]]
    if any(p is None for p in parts):
        raise Refused("its scale, bias, mean or variance is not a constant")
    gamma, beta, mean, variance = [evaluate(p).astype(np.float64) for p in parts if p is not None]
    scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    return Affine(scale, beta - mean * scale)


def _per_channel(constant: Constant, channels: int, rank: int) -> Array:
    """A constant that broadcasts over everything but the channels (axis 1), as a vector."""
    shape: tuple[Size, ...] = (1,) * (rank - len(constant.shape)) + tuple(constant.shape)
    others = [d for i, d in enumerate(shape) if i != 1]
    if rank < 2 or len(shape) != rank or any(d != 1 for d in others) or shape[1] not in (1, channels):
        raise Refused(f"its constant of shape {list(constant.shape)} is not one number for each of {channels} channels")
    return np.asarray(evaluate(constant).astype(np.float64).reshape(-1))


# -- the anchor --------------------------------------------------------------------------------------------------


def _scaled(anchor: Node, weight: Constant, scale: Array, dtype: DType) -> Constant:
    """The weight with each output channel multiplied by its scale."""
    same = not scale.size or bool(scale[0] == scale[-1] and (scale == scale[0]).all())
    if same and (not scale.size or scale[0] == 1):
        return weight
    if isinstance(weight, Splat) and same:
        return Splat(dtype, weight.shape, _checked(np.asarray(weight.value, np.float64) * scale[0], dtype)[()])
    w = evaluate(weight).astype(np.float64)
    if same:
        return blob(_checked(w * scale[0], dtype, w))
    return blob(_checked(_WEIGHTS[anchor.op](anchor, w, scale), dtype, w))


def _conv_weight(anchor: Node, w: Array, scale: Array) -> Array:
    return np.asarray(w * scale.reshape(-1, *(1,) * (w.ndim - 1)))


def _transposed_weight(anchor: Node, w: Array, scale: Array) -> Array:
    """W is [C, M / group, ...]: the inputs of group g make the output channels from g · M / group on."""
    group = int(anchor.attrs.get("group", 1))
    grouped = w.reshape(group, w.shape[0] // group, *w.shape[1:])
    return np.asarray((grouped * scale.reshape(group, 1, w.shape[1], *(1,) * (w.ndim - 2))).reshape(w.shape))


def _gemm_weight(anchor: Node, w: Array, scale: Array) -> Array:
    return np.asarray(w * (scale[:, None] if anchor.attrs.get("transB", 0) else scale[None, :]))


_WEIGHTS: dict[str, Callable[[Node, Array, Array], Array]] = {
    "Conv": _conv_weight,
    "ConvTranspose": _transposed_weight,
    "Gemm": _gemm_weight,
}


def _biased(anchor: Node, bias: Constant | None, affine: Affine, channels: int, dtype: DType) -> Constant | None:
    """scale · bias + shift, None where it was absent and stays zero."""
    if bias is None and not affine.shift.any():
        return None
    factor = float(anchor.attrs.get("beta", 1.0)) if anchor.op == "Gemm" else 1.0
    old = np.zeros(1) if bias is None else evaluate(bias).astype(np.float64) * factor
    new = old * affine.scale + affine.shift
    if new.size == 1 or (anchor.op != "Gemm" and new.shape != (channels,)):
        new = np.broadcast_to(new, (channels,))
    return blob(_checked(new, dtype, old, affine.shift))


def _checked(array: Array, dtype: DType, *sources: Array) -> Array:
    """The array rounded to the dtype; refuses when finite numbers become infinite or NaN."""
    rounded = np.asarray(array).astype(dtype.numpy)
    if not np.isfinite(rounded).all() and all(np.isfinite(s).all() for s in sources):
        raise Refused(f"the folded constants do not fit {dtype.value}")
    return rounded


def _check_growth(graph: Graph, ctx: PassContext, anchor: Node, parts: list[tuple[int, Any, Any]]) -> None:
    added = freed = 0
    for index, old, new in parts:
        if new is None or new is old:
            continue
        added += new.nbytes
        if old is not None and len(graph.values[anchor.inputs[index]].uses) == 1:
            freed += old.nbytes
    if added - freed > ctx.fold_limit:
        raise Refused(
            f"the folded constants take {added} bytes and free {freed}; the limit of the growth is {ctx.fold_limit}"
        )


def _replace(graph: Graph, lineage: Lineage, anchor: Node, node: Node, weight: Constant, bias: Constant | None) -> None:
    """One node in place of the two; it makes the follower's value, under the anchor's name."""
    inputs = [anchor.inputs[0], anchor.inputs[1], anchor.inputs[2] if given(anchor, 2) else ABSENT]
    stale = [graph.producer(v) for v in (*anchor.inputs[1:], *node.inputs) if graph.const(v) is not None]
    for i, new in ((1, weight), (2, bias)):
        old = graph.const(inputs[i])
        if new is not None and new is not old:
            source = anchor if old is None else graph.producer(inputs[i])
            inputs[i] = graph.add_const(new, "" if old is None else source.name, source.origin)
    attrs = dict(anchor.attrs)
    if anchor.op == "Gemm":
        attrs["beta"] = 1.0
    value = graph.values[node.outputs[0]]
    made = graph.add(anchor.op, inputs, [value.type], attrs, name=anchor.name, origin=node.origin, names=[value.name])
    graph.replace_uses(value.id, made.outputs[0])
    for gone in (node, anchor):
        graph.remove(gone)
        lineage.inherit(made, gone)
    for old_constant in dict.fromkeys(stale):
        lineage.drop(old_constant)
