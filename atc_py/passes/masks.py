"""Masks of attention: what they allow, and how they are made for the operator.

Examples:
    causal(Where(k ≤ q, 0, -∞))    True: the mask says no more than the operator's attribute is_causal
    chosen(m)                      Where(m, 0, -∞): added to scores, so that only the places of m count
    fitted([1, 1, S, 1])           an Expand to [1, 1, S, K]: the operator wants a mask as wide as there are keys
    fitted([1, W, 1, S, K])        a mask of W windows for scores [B·W, heads, S, K]: Expand, then Reshape
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.constants import Blob, Splat, blob_array
from atc_py.ir.dims import DimOverflow, Size, prod
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType
from atc_py.passes.axes import refine
from atc_py.passes.known import SMALL, dims_of, uniform
from atc_py.passes.rewriting import emit, shaped

Dims = tuple[Size, ...]

MOST_VISITED = 64
"""Values that are looked at before a mask counts as unknown."""

LOWEST = float(np.finfo(np.float32).min)

FORBIDDING = -6e4
"""What is added to a score that must not count, where another score of its row counts: float16's lowest, or less."""

MOST_POSITIONS = 4096
"""Positions of the largest constant mask that is looked into."""

_SHAPED = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Tile", "Identity", "Flatten"})


def never_infinite(graph: Graph, mask: int) -> bool:
    """Whether a float mask provably holds no -∞: it is made of integers, bools and finite numbers alone."""
    stack, visited = [mask], 0
    while stack:
        value = stack.pop()
        visited += 1
        node, dtype = graph.producer(value), graph.tensor(value).dtype
        if not dtype.is_float:
            continue
        if visited > MOST_VISITED:
            return False
        if node.const is not None:
            if not _finite(node):
                return False
        elif node.op in _SHAPED or node.op in ("Neg", "Gather", "Clip"):
            stack.append(node.inputs[0])
        elif node.op == "Where":
            stack += node.inputs[1:3]
        elif node.op in ("Concat", "Min", "Max"):
            stack += node.inputs
        elif node.op == "Cast":
            if graph.tensor(node.inputs[0]).dtype.is_float:
                stack.append(node.inputs[0])
        elif node.op in ("Sub", "Add", "Mul") and _bounded(graph, node):
            stack += node.inputs
        else:
            return False
    return True


def _bounded(graph: Graph, node: Node) -> bool:
    """(1 - mask) · -10000 and the like: one operand is a number, the other comes straight from integers."""
    if any(uniform(graph.const(v)) is not None for v in node.inputs):
        other = next((v for v in node.inputs if uniform(graph.const(v)) is None), node.inputs[0])
        inner = graph.producer(other)
        if inner.op == "Cast":
            source = graph.tensor(inner.inputs[0]).dtype
            return source is DType.BOOL or (source.is_int and node.op != "Mul")
        # A product of (1 - 0 or 1) and a number is finite; a sum of finite masks may only overflow when both are vast.
        return inner.op in ("Sub", "Reshape", "Unsqueeze", "Expand", "Slice", "Where")
    return False


def _finite(node: Node) -> bool:
    constant = node.const
    if isinstance(constant, Splat):
        return bool(np.isfinite(np.float64(constant.value)))
    if not isinstance(constant, Blob) or prod(constant.shape) > SMALL * SMALL:
        return False
    return bool(np.isfinite(blob_array(constant).astype(np.float32)).all())


# -- causal masks ------------------------------------------------------------------------------------------------


def causal(graph: Graph, value: int, positive: bool) -> bool:
    """Whether a mask [..., S, S] provably lets query q see keys k ≤ q and no others.

    A bool mask is true where keys count if `positive`, else where they do not. A float mask is added: it is 0 and the
    lowest number or -∞.
    """
    node, dims = graph.producer(value), dims_of(graph, value)
    if dims is None or len(dims) < 2 or dims[-1] != dims[-2] or any(d != 1 for d in dims[:-2]):
        return False
    for _ in range(MOST_VISITED):
        if node.op == "Not":
            positive = not positive
        elif node.op == "Where" and graph.tensor(value).dtype.is_float:
            first, second = (uniform(graph.const(v)) for v in node.inputs[1:])
            keep, hide = (first, second) if first == 0 else (second, first)
            if keep != 0 or hide is None or hide > FORBIDDING:
                return False
            positive = first == 0
        elif node.op == "Cast":
            if graph.tensor(node.inputs[0]).dtype.is_float:
                return False
        elif node.op not in ("Reshape", "Unsqueeze", "Squeeze", "Identity"):
            break
        value = node.inputs[0]
        node, inner = graph.producer(value), dims_of(graph, value)
        if inner is None or inner[-2:] != dims[-2:]:
            return False
    if isinstance(node.const, Blob):
        return _lower_triangle(node.const, positive)
    if node.op == "Trilu":
        return _trilu(graph, node, positive)
    return _compared(graph, node, dims[-1], positive)


def _lower_triangle(constant: Blob, positive: bool) -> bool:
    size = constant.shape[-1]
    if size > MOST_POSITIONS:
        return False
    array = blob_array(constant).reshape(size, size)
    below = np.tri(size, dtype=bool)
    if array.dtype == np.bool_:
        return bool(np.array_equal(array, below if positive else ~below))
    numbers = array.astype(np.float64)
    return bool(not numbers[below].any() and (numbers[~below] <= FORBIDDING).all())


def _trilu(graph: Graph, node: Node, positive: bool) -> bool:
    """The lower triangle of ones, or the upper one above the diagonal"""
    ones = uniform(graph.const(node.inputs[0]))
    shift = uniform(graph.const(node.inputs[1])) if len(node.inputs) > 1 else 0
    upper = bool(node.attrs.get("upper", 1))
    return ones == 1 and (upper, shift) == ((False, 0) if positive else (True, 1))


def _compared(graph: Graph, node: Node, size: Size, positive: bool) -> bool:
    """k ≤ q (or k > q where that hides keys), the positions counted by Range"""
    if len(node.inputs) != 2:
        return False
    roles = [_positions(graph, v, size) for v in node.inputs]
    wanted = ("LessOrEqual", "GreaterOrEqual") if positive else ("Greater", "Less")
    return (node.op, roles) in ((wanted[0], ["key", "query"]), (wanted[1], ["query", "key"]))


def _positions(graph: Graph, value: int, size: Size) -> str:
    """Whether the value is 0, 1, … along the last axis ("key"), along the one before ("query"), or neither ("")."""
    dims = dims_of(graph, value) or ()
    padded = (1, *dims) if len(dims) == 1 else dims
    role = "key" if padded[-2:] == (1, size) else "query" if padded[-2:] == (size, 1) else ""
    node = graph.producer(value)
    for _ in range(MOST_VISITED):
        if node.op not in ("Reshape", "Unsqueeze", "Squeeze", "Cast", "Identity"):
            break
        node = graph.producer(node.inputs[0])
    if isinstance(node.const, Blob):
        array = blob_array(node.const).reshape(-1)
        return role if array.size == size and np.array_equal(array, np.arange(array.size)) else ""
    if node.op != "Range" or [uniform(graph.const(node.inputs[i])) for i in (0, 2)] != [0, 1]:
        return ""
    return role if dims_of(graph, node.outputs[0]) == (size,) else ""


# -- making masks ------------------------------------------------------------------------------------------------


def chosen(graph: Graph, where: int, positive: bool, fill: float, heir: Node) -> int:
    """Where(where, 0, fill) in float32, or the other way round."""
    parts = [graph.add_const(Splat(DType.FLOAT32, (), np.float32(n)), "", heir.origin) for n in (0.0, fill)]
    return emit(graph, "Where", [where, *(parts if positive else parts[::-1])], {}, heir)


def added(graph: Graph, masks: list[int], heir: Node) -> int:
    """The sum of float masks, in float32 where their dtypes differ."""
    dtypes = {graph.tensor(m).dtype for m in masks}
    total = None
    for mask in masks:
        if len(dtypes) > 1 and graph.tensor(mask).dtype is not DType.FLOAT32:
            mask = emit(graph, "Cast", [mask], {"to": DType.FLOAT32}, heir)
        total = mask if total is None else emit(graph, "Add", [total, mask], {}, heir)
    assert total is not None
    return total


def fitted(graph: Graph, mask: int, stage: Dims, scores: Dims, heir: Node) -> int:
    """The mask of scores that had the shape `stage`, for scores [batch, heads, queries, keys].

    Between them only the leading axes were grouped anew: [B, windows, heads, …] is [B·windows, heads, …].
    """
    dims = dims_of(graph, mask)
    assert dims is not None
    padded: Dims = (1,) * (len(stage) - len(dims)) + dims
    lead, last = padded[:-2], padded[-2:]
    if last[-1] != scores[-1]:
        last = (last[0], scores[-1])
        mask = shaped(graph, mask, (*lead, *last), heir, "Expand")
    if stage[:-2] == scores[:-2]:
        return mask
    if any(d != 1 for d in lead):
        return _regrouped(graph, mask, lead, stage[:-2], (*scores[:2], *last), heir)
    return mask if len(dims) <= len(scores) else shaped(graph, mask, last, heir)


def _regrouped(graph: Graph, mask: int, lead: Dims, stage: Dims, target: Dims, heir: Node) -> int:
    atoms = regroupable(stage, target[:2])
    assert atoms is not None
    sizes, by_stage, by_target = atoms
    owners = [i for i, d in enumerate(stage) if d != 1]
    wide = {a for group, i in zip(by_stage, owners) for a in group if lead[i] != 1}
    mixed = {a for group in by_target if wide & set(group) for a in group}
    last = target[2:]
    mask = shaped(graph, mask, (*(s if a in wide else 1 for a, s in enumerate(sizes)), *last), heir)
    mask = shaped(graph, mask, (*(s if a in mixed else 1 for a, s in enumerate(sizes)), *last), heir, "Expand")
    groups = iter(by_target)
    final = [d if d == 1 or mixed & set(next(groups)) else 1 for d in target[:2]]
    return shaped(graph, mask, (*final, *last), heir)


def regroupable(stage: Dims, target: Dims) -> tuple[list[Size], list[list[int]], list[list[int]]] | None:
    """The atoms of leading axes that are grouped in two ways (see `axes.refine`), None where they do not fit."""
    try:
        return refine([d for d in stage if d != 1], [d for d in target if d != 1])
    except DimOverflow:
        return None
