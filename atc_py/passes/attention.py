"""Attention written in pieces becomes one operator again.

    MatMul(Softmax(MatMul(q, kᵀ) · scale + mask), v)          →    Attention(q, k, v, mask; scale)

in the dialects of all exporters: the scale on q, on k, on both or on the scores, as a factor or a divisor; masks that
are added, or chosen by Where; soft caps; keys and values repeated for groups of heads; a guard that replaces NaN by
zero; casts of the scores; batch and heads in one axis around the products.

Law: softmax is the same function of the same scores; a chosen mask is an added one: Where(m, s, c) has softmax's
weights of s + (0 or -∞), or for a finite c ≤ -10⁴ of s + (0 or the lowest float32), which a row of which all keys are
masked makes uniform, as c does; a masked weight exp(c - max) is zero in float32 as long as scores lie above -9800. A
query that may see no key gives NaN without the guard, and zeros with it (`nan_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from atc_py.ir.constants import Blob, blob_array
from atc_py.ir.dims import Size, prod
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, ints, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.masks import LOWEST, added, causal, chosen, fitted, never_infinite, regroupable
from atc_py.passes.norms import FLOATS
from atc_py.passes.rewriting import become, emit, shaped, sweep
from atc_py.passes.transposes import perm_of

PASS = "attention"
MOST_STEPS = 12
"""Operators between a product and the Softmax, and between the Softmax and the second product."""

_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze"})


class Refused(Exception):
    """Why the Softmax is left alone; empty when it is no attention."""


@dataclass(frozen=True)
class _Mask:
    """What is added to the scores: `value` itself; or for a bool `fill` where it is not `positive`, and else 0.

    `stage` is the shape that the scores had there.
    """

    value: int
    stage: tuple[Size, ...]
    fill: float = 0.0
    positive: bool = True


@dataclass
class _Found:
    """The parts of one attention: `masks` in the order of their use, `gone` what may go."""

    softmax: Node
    out: Node
    scores: Node
    v: int
    scale: float = 1.0
    softcap: float = 0.0
    masks: list[_Mask] = field(default_factory=list)
    guarded: bool = False
    guard: int = ABSENT
    finite: bool = True
    batch: tuple[Size, ...] | None = None
    gone: list[Node] = field(default_factory=list)


def recognise_attention(graph: Graph, ctx: PassContext) -> int:
    """Recognise attention around each Softmax; returns how many."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op == "Softmax"]:
            try:
                found = _find(graph, node)
                _write(graph, lineage, found)
                changed += 1
            except Refused as reason:
                if str(reason):
                    ctx.decline(node, PASS, f"no Attention: {reason}")
    return changed


# -- the parts ---------------------------------------------------------------------------------------------------


def _find(graph: Graph, softmax: Node) -> _Found:
    dims = dims_of(graph, softmax.outputs[0])
    if dims is None or int(softmax.attrs.get("axis", -1)) % len(dims) != len(dims) - 1:
        raise Refused
    scores, path = _product(graph, softmax.inputs[0])
    found = _Found(softmax, softmax, scores, ABSENT, gone=[softmax])
    _after(graph, found)
    _between(graph, found, path)
    for node in (scores, found.out):
        if graph.tensor(node.outputs[0]).dtype not in FLOATS:
            raise Refused
    return found


_PASSED = frozenset({"Mul", "Div", "Add", "Where", "Cast", "Tanh", "Reshape", "Identity"})


def _product(graph: Graph, value: int) -> tuple[Node, list[tuple[Node, int]]]:
    """The MatMul from which scores are made, and the way from it to them as (node, which input), the last one first.

    Where both operands of an Add come from products, the first one by id is taken for the scores.
    """
    stack: list[tuple[int, tuple[tuple[Node, int], ...]]] = [(value, ())]
    for _ in range(4 * MOST_STEPS):
        if not stack:
            break
        at, path = stack.pop()
        node = graph.producer(at)
        if node.op == "MatMul" and all(graph.const(v) is None for v in node.inputs):
            return node, list(path)
        if node.op not in _PASSED or len(path) >= MOST_STEPS:
            continue
        inputs = [i for i in (1, 2) if node.op == "Where"] or list(range(1 if node.op in ("Cast", "Reshape") else 2))
        choices = [i for i in inputs if i < len(node.inputs) and graph.const(node.inputs[i]) is None]
        stack += [(node.inputs[i], (*path, (node, i))) for i in sorted(choices, key=lambda i: -node.inputs[i])]
    raise Refused


def _after(graph: Graph, found: _Found) -> None:
    """From the Softmax to the product with the values."""
    value = found.softmax.outputs[0]
    for _ in range(MOST_STEPS):
        readers = graph.consumers(value)
        guard = _guard(graph, readers, value) or _row_guard(graph, found, readers, value)
        if guard is not None:
            found.guarded = True
            found.gone += guard
            value = guard[0].outputs[0]
            continue
        if len(graph.values[value].uses) != 1:
            raise Refused(f"the weights have {len(graph.values[value].uses)} readers" * _weighs(graph, readers, value))
        node = readers[0]
        if node.op == "MatMul" and node.inputs[0] == value:
            found.out, found.v = node, node.inputs[1]
            if graph.const(found.v) is not None:
                raise Refused
            return
        if node.op not in ("Cast", "Identity", "Reshape") or node.inputs[0] != value:
            raise Refused
        if node.op == "Reshape":
            _seen(graph, found, node)
        found.gone.append(node)
        value = node.outputs[0]
    raise Refused


def _weighs(graph: Graph, readers: list[Node], value: int) -> bool:
    return any(n.op == "MatMul" and n.inputs[0] == value for n in readers)


def _guard(graph: Graph, readers: list[Node], value: int) -> list[Node] | None:
    """Where(IsNaN(p), 0, p): the nodes, the last one first."""
    if len(readers) != 2 or len(graph.values[value].uses) != 2:
        return None
    test = next((n for n in readers if n.op == "IsNaN"), None)
    choice = next((n for n in readers if n.op == "Where"), None)
    if test is None or choice is None or graph.sole_consumer(test.outputs[0]) is not choice:
        return None
    zero = uniform(graph.const(choice.inputs[1])) == 0
    return [choice, test] if choice.inputs[0] == test.outputs[0] and choice.inputs[2] == value and zero else None


def _row_guard(graph: Graph, found: _Found, readers: list[Node], value: int) -> list[Node] | None:
    """Where(max(m) = -∞, 0, p) for rows of scores or of a mask: the nodes, the last one first"""
    choice = readers[0] if len(graph.values[value].uses) == 1 else None
    if choice is None or choice.op != "Where" or choice.inputs[2] != value:
        return None
    test = graph.producer(choice.inputs[0])
    if uniform(graph.const(choice.inputs[1])) != 0:
        return None
    if isinstance(test.const, Blob) and test.const.dtype is DType.BOOL:
        found.guard = choice.inputs[0]
        return [choice]
    if test.op != "Equal":
        return None
    for i in (0, 1):
        largest, bound = graph.producer(test.inputs[i]), uniform(graph.const(test.inputs[1 - i]))
        if largest.op != "ReduceMax" or bound != -np.inf or not largest.attrs.get("keepdims", 1):
            continue
        rank, axes = len(dims_of(graph, largest.inputs[0]) or ()), ints(graph, largest, 1)
        if axes in ([-1], [rank - 1]):
            found.guard = largest.inputs[0]
            return [choice, test, largest]
    return None


def _guards(graph: Graph, found: _Found) -> bool:
    """Whether the guard is for rows of the scores, or of a mask; a constant says which rows of a constant mask."""
    guard = graph.const(found.guard)
    added = [m.value for m in found.masks if not m.fill]
    if guard is None:
        return found.guard in (found.softmax.inputs[0], *added)
    masks = [graph.const(v) for v in added]
    if len(masks) != 1 or not isinstance(masks[0], Blob) or not isinstance(guard, Blob):
        return False
    rows = np.isneginf(blob_array(masks[0]).astype(np.float32)).all(axis=-1, keepdims=True)
    told = blob_array(guard)
    return told.ndim <= rows.ndim and np.array_equal(np.broadcast_to(told, rows.shape), rows)


def _seen(graph: Graph, found: _Found, reshape: Node) -> None:
    """A Reshape of scores or weights must leave queries and keys alone; what rank 4 calls batch and heads counts."""
    for value in (reshape.inputs[0], reshape.outputs[0]):
        dims = dims_of(graph, value)
        other = dims_of(graph, reshape.outputs[0])
        if dims is None or other is None or len(dims) < 2 or dims[-2:] != other[-2:]:
            raise Refused("the scores change their shape")
        if len(dims) == 4:
            found.batch = dims[:2]


def _between(graph: Graph, found: _Found, path: list[tuple[Node, int]]) -> None:
    """From the scores' product to the Softmax: scales, a soft cap, masks. `path` begins at the Softmax."""
    scaled = ""
    skip = 0
    for step, (node, i) in enumerate(path):
        readers = len(graph.values[node.outputs[0]].uses) - (node.outputs[0] == found.guard)
        if readers != 1:
            raise Refused(f"the result of {node.op} '{node.name}' has {readers} readers")
        found.gone.append(node)
        if skip:
            skip -= 1
        elif node.op == "Reshape":
            _seen(graph, found, node)
        elif node.op in ("Cast", "Identity"):
            continue
        elif node.op in ("Add", "Where"):
            if scaled:
                raise Refused(f"'{node.name}' masks the scores before '{scaled}' scales them")
            _mask(graph, found, node, i)
        elif not scaled and not found.softcap and step + 1 < len(path) and path[step + 1][0].op == "Tanh":
            # c · tanh(a·s) is a soft cap c of the scores s · a·c.
            found.softcap = _factor(graph, node, i)
            if node.op != "Mul" or found.softcap <= 0:
                raise Refused(f"the scores pass through {node.op} '{node.name}'")
            found.scale, scaled, skip = found.softcap, node.name or node.op, 1
        else:
            scaled = node.name or node.op
            found.scale *= _factor(graph, node, i)
    if len(graph.values[found.scores.outputs[0]].uses) - (found.scores.outputs[0] == found.guard) != 1:
        raise Refused("the scores have other readers")
    if found.guard != ABSENT and not _guards(graph, found):
        raise Refused("rows of something else than the scores and masks are guarded")


def _factor(graph: Graph, node: Node, i: int) -> float:
    number = uniform(graph.const(node.inputs[1 - i])) if node.op in ("Mul", "Div") else None
    if number is None or not isfinite(number) or (node.op == "Div" and (i == 1 or number == 0)):
        raise Refused(f"the scores pass through {node.op} '{node.name}'" if node.op != "Tanh" else "")
    return float(number) if node.op == "Mul" else 1 / float(number)


def _mask(graph: Graph, found: _Found, node: Node, i: int) -> None:
    stage = dims_of(graph, node.outputs[0]) or ()
    if node.op == "Add":
        found.masks.insert(0, _Mask(node.inputs[1 - i], stage))
        found.finite = found.finite and never_infinite(graph, node.inputs[1 - i])
        return
    fill = uniform(graph.const(node.inputs[3 - i]))
    if fill is None or not fill <= -1e4:
        raise Refused(f"'{node.name}' puts {fill if fill is not None else 'a tensor'} in the place of scores")
    found.masks.insert(0, _Mask(node.inputs[0], stage, -np.inf if np.isneginf(fill) else LOWEST, i == 1))
    found.finite = found.finite and not np.isneginf(fill)


# -- writing -----------------------------------------------------------------------------------------------------


def _write(graph: Graph, lineage: Lineage, found: _Found) -> None:
    q, k_t, v = found.scores.inputs[0], found.scores.inputs[1], found.v
    plans = [dims_of(graph, x) for x in (q, k_t, v)]
    if any(d is None or len(d) not in (2, 3, 4) for d in plans):
        raise Refused("the ranks of query, key and value are not all 2, 3 or 4")
    qd, kd, vd = [d for d in plans if d is not None]
    rank = max(len(qd), len(kd), len(vd))
    if not len(qd) == len(kd) == len(vd) or len(dims_of(graph, found.softmax.outputs[0]) or ()) < rank:
        raise Refused("query, key and value differ in rank")
    types = {graph.tensor(x).dtype for x in (q, k_t, v, found.out.outputs[0])}
    if len(types) != 1:
        raise Refused(f"query, key and value have the dtypes {', '.join(sorted(t.value for t in types))}")
    batch = _batch(found, qd)
    if kd[:-2] != vd[:-2] or kd[-1] != vd[-2] or not _heads_fit(qd, kd):
        raise Refused(f"query {_shape(qd)}, key {_shape(kd)} (transposed) and value {_shape(vd)} do not go together")
    if dims_of(graph, found.out.outputs[0]) != (*qd[:-1], vd[-1]):
        raise Refused("a mask broadcasts the scores to another shape")
    for mask in found.masks:
        if dims_of(graph, mask.value) is None or regroupable(mask.stage[:-2], batch) is None:
            raise Refused(f"a mask is added to scores of shape {_shape(mask.stage)}")
    _rewrite(graph, lineage, found, (q, k_t, v), batch)


def _shape(dims: tuple[Size, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _heads_fit(q: tuple[Size, ...], k: tuple[Size, ...]) -> bool:
    """Whether batch and heads agree; one key head may serve all."""
    if len(q) < 4:
        return q[:-2] == k[:-2]
    return q[0] == k[0] and (q[1] == k[1] or k[1] == 1)


def _batch(found: _Found, q: tuple[Size, ...]) -> tuple[Size, Size]:
    """Batch and heads: of the query, or as the scores were shaped on their way."""
    if len(q) == 4:
        return q[0], q[1]
    if len(q) == 3:
        if found.batch is not None and prod(found.batch) == q[0]:
            return found.batch[0], found.batch[1]
        return q[0], 1
    return 1, 1


def _rewrite(
    graph: Graph, lineage: Lineage, found: _Found, sources: tuple[int, int, int], batch: tuple[Size, Size]
) -> None:
    out = found.out
    whole = dims_of(graph, out.outputs[0])
    scores = dims_of(graph, found.scores.outputs[0])
    assert whole is not None and scores is not None
    q, k_t, v = sources
    q = _unscaled(graph, lineage, found, q)
    k_t = _unscaled(graph, lineage, found, k_t)
    k = _transposed(graph, k_t, out, found.gone)
    four = len(whole) == 4
    if not four:
        q, k, v = (shaped(graph, x, (*batch, *(dims_of(graph, x) or ())[-2:]), out) for x in (q, k, v))
    k, v = _ungrouped(graph, found, k, v)
    ordered = len(found.masks) == 1 and scores[-2] == scores[-1] and _is_causal(graph, found.masks[0])
    found.masks, found.finite = ([], True) if ordered else (found.masks, found.finite)
    mask = _mask_input(graph, found, (*batch, *scores[-2:]))
    attrs: dict[str, float] = {
        "is_causal": int(ordered),
        "scale": found.scale,
        "softcap": found.softcap,
        "nan_rows": int(not found.guarded and not found.finite),
    }
    inputs = [q, k, v, mask]
    if four:
        become(graph, out, "Attention", inputs, attrs)
        heir = out
    else:
        made = emit(graph, "Attention", inputs if mask != ABSENT else inputs[:3], attrs, out)
        heir = graph.producer(made)
        back = shaped(graph, made, whole, out)
        graph.replace_uses(out.outputs[0], back)
        if not graph.values[back].name:
            graph.values[back].name = graph.values[out.outputs[0]].name
        found.gone.insert(0, out)
    sweep(graph, lineage, heir, [*found.gone, found.scores])


def _unscaled(graph: Graph, lineage: Lineage, found: _Found, value: int) -> int:
    """The value without the number that it is multiplied by, which goes into the scale.

    A factor is found behind views too, when nobody else reads what lies between.
    """
    at, path = value, 0
    while path < MOST_STEPS:
        node = graph.producer(at)
        if node.op in ("Mul", "Div"):
            i = 0 if graph.const(node.inputs[1]) is not None else 1
            number = uniform(graph.const(node.inputs[1 - i])) if node.op == "Mul" or i == 0 else None
            plain = number is not None and isfinite(number) and number != 0
            if not plain or dims_of(graph, node.inputs[i]) != dims_of(graph, node.outputs[0]):
                return value
            assert number is not None
            found.scale *= float(number) if node.op == "Mul" else 1 / float(number)
            if at == value:
                found.gone.append(node)
                return node.inputs[i]
            lineage.bypass(node, node.inputs[i])
            return value
        if node.op not in _VIEWS or len(graph.values[at].uses) != 1:
            return value
        at, path = node.inputs[0], path + 1
        if len(graph.values[at].uses) != 1:
            return value
    return value


def _transposed(graph: Graph, value: int, heir: Node, gone: list[Node]) -> int:
    """The value with its last two axes exchanged."""
    node, dims = graph.producer(value), dims_of(graph, value)
    assert dims is not None
    rank = len(dims)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if node.op == "Transpose" and perm_of(graph, node) == swap:
        gone.append(node)
        return node.inputs[0]
    if node.op == "Transpose":
        gone.append(node)
    return emit(graph, "Transpose", [value], {"perm": swap}, heir)


def _ungrouped(graph: Graph, found: _Found, k: int, v: int) -> tuple[int, int]:
    """Key and value before their heads were repeated for groups of queries, where both were alike."""
    keys = _repeated(graph, k)
    values = None if keys is None else _repeated(graph, v)
    if keys is None or values is None:
        return k, v
    (first, nodes), (second, more) = keys, values
    if dims_of(graph, first) is None or (dims_of(graph, first) or ())[1] != (dims_of(graph, second) or ())[1]:
        return k, v
    found.gone += [*nodes, *more]
    return first, second


def _repeated(graph: Graph, value: int) -> tuple[int, list[Node]] | None:
    """Each head of a [batch, heads, positions, size] tensor several times in a row: the tensor, and what repeats it."""
    node, dims = graph.producer(value), dims_of(graph, value)
    if dims is None or len(dims) != 4:
        return None
    if node.op == "Gather" and int(node.attrs.get("axis", 0)) % 4 == 1:
        order, source = ints(graph, node, 1), dims_of(graph, node.inputs[0])
        if order is None or source is None or type(source[1]) is not int or not source[1] or len(order) % source[1]:
            return None
        times = len(order) // source[1]
        return (node.inputs[0], [node]) if order == [i // times for i in range(len(order))] else None
    if node.op != "Reshape":
        return None
    spread = graph.producer(node.inputs[0])
    wide = dims_of(graph, node.inputs[0])
    if spread.op not in ("Expand", "Tile") or wide is None or len(wide) != 5:
        return None
    narrow = dims_of(graph, spread.inputs[0])
    if narrow is None or narrow[-3:-2] != (1,) or (*wide[:2], *wide[3:]) != (*narrow[:-3], *narrow[-2:]):
        return None
    if (wide[0], wide[1] * wide[2], *wide[3:]) != dims:
        return None
    split, apart = graph.producer(spread.inputs[0]), (*wide[:2], *wide[3:])
    if split.op in ("Reshape", "Unsqueeze") and dims_of(graph, split.inputs[0]) == apart:
        return split.inputs[0], [node, spread, split]
    return shaped(graph, spread.inputs[0], apart, node), [node, spread]


def _is_causal(graph: Graph, mask: _Mask) -> bool:
    return causal(graph, mask.value, mask.positive if mask.fill else True)


def _mask_input(graph: Graph, found: _Found, scores: tuple[Size, ...]) -> int:
    """The masks as one input of Attention, ABSENT where there is none."""
    masks, heir = found.masks, found.softmax
    if not masks:
        return ABSENT
    if len(masks) == 1 and np.isneginf(masks[0].fill):
        value = masks[0].value if masks[0].positive else emit(graph, "Not", [masks[0].value], {}, heir)
        return fitted(graph, value, masks[0].stage, scores, heir)
    parts = []
    for m in masks:
        value = chosen(graph, m.value, m.positive, m.fill, heir) if m.fill else m.value
        parts.append(fitted(graph, value, m.stage, scores, heir))
    return added(graph, parts, heir)
