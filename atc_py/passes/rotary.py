"""Rotary position embeddings written in pieces become one operator again.

    x · cos + Concat(-x[h:], x[:h]) · sin                 cos = Cos(Concat(f, f)), both halves alike
    Concat(a·c - b·s, b·c + a·s)                          a, b = x[:h], x[h:]
    Reshape(Concat(p·c - q·s, q·c + p·s; a new last axis))    p, q = x[0::2], x[1::2]: interleaved
                                                     →    RotaryEmbedding(x, c, s)
    Concat(RotaryEmbedding(x[:r]), x[r:])            →    RotaryEmbedding(x; rotary_embedding_dim = r)

Law: (x₁, x₂) ↦ (x₁·c - x₂·s, x₂·c + x₁·s) for the two halves (or neighbours) of the last axis; the operator takes one
number for each pair. Where a model has computed cosines for both halves, the pass looks for the half from which they
are made, and proves that both are the same: by a Concat of one value with itself, or by comparing a constant's halves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from atc_py.ir.constants import Blob, Constant, Splat, blob
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Node, merge_origins
from atc_py.ops.build import dims_constant
from atc_py.ops.evaluate import evaluate
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, ints, known_at_start, same_types, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.norms import FLOATS
from atc_py.passes.pattern import Match, Op, Pattern, Var
from atc_py.passes.rewriting import emit, filled, shaped
from atc_py.passes.rules import Rewrite, Rule, apply_rules, index_rules
from atc_py.passes.spans import last_span, rooted_span

PASS = "rotary"
MOST_STEPS = 16
"""Operators between a model's cosines and the half from which they are made."""


def recognise_rotary(graph: Graph, ctx: PassContext) -> int:
    """Recognise rotary embeddings; returns how many."""
    return apply_rules(graph, ctx, PASS, _TABLE)


def _is_span(graph: Graph, value: int, x: int, start: int, stop: int) -> bool:
    """Whether the value is x[..., start:stop]; both may be parts of one larger tensor."""
    part, whole = rooted_span(graph, value), rooted_span(graph, x)
    if part is None or whole is None or part.source != whole.source or part.step != 1 or whole.step != 1:
        return False
    return (part.start, part.stop) == (whole.start + start, whole.start + stop)


# -- halves ------------------------------------------------------------------------------------------------------

_ROWS = frozenset({"Gather", "Slice", "Expand"})
_POINTWISE = frozenset({"Cos", "Sin", "Cast", "Neg"})
_SCALED = frozenset({"Mul", "Div", "Add"})


@dataclass
class _Halving:
    """The way from a base whose two halves are alike to a value: the nodes on it, the last one first."""

    base: int
    half: int | Constant
    steps: list[Node] = field(default_factory=list)


def _halves(graph: Graph, value: int) -> _Halving | None:
    """How the value is made of something of which the two halves of the last axis are alike; None: not to be seen."""
    dims, found = dims_of(graph, value), _Halving(value, value)
    if not dims or type(dims[-1]) is not int or dims[-1] % 2:
        return None
    size = dims[-1]
    for _ in range(MOST_STEPS):
        node = graph.producer(value)
        if node.const is not None:
            half = _half_constant(node.const)
            return None if half is None else _Halving(value, half, found.steps)
        if node.op == "Concat" and len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]:
            rank = len(dims_of(graph, value) or ())
            last = rank and int(node.attrs["axis"]) % rank == rank - 1
            return _Halving(value, node.inputs[0], found.steps) if last else None
        source = _before(graph, node, size)
        if source is None:
            return None
        found.steps.append(node)
        value = source
    return None


def _before(graph: Graph, node: Node, size: int) -> int | None:
    """The input of a step that leaves the elements of the last axis as they lie; None for any other node."""
    index = 0
    if node.op in _SCALED:
        index = 0 if uniform(graph.const(node.inputs[1])) is not None else 1
        if uniform(graph.const(node.inputs[1 - index])) is None or (node.op == "Div" and index):
            return None
    elif node.op not in _POINTWISE and node.op not in _ROWS and node.op not in ("Reshape", "Unsqueeze", "Squeeze"):
        return None
    source = node.inputs[index]
    dims, out = dims_of(graph, source), dims_of(graph, node.outputs[0])
    if not dims or out is None or dims[-1] != size or out[-1] != size:
        return None
    if node.op == "Gather" and int(node.attrs.get("axis", 0)) % len(dims) == len(dims) - 1:
        return None
    if node.op == "Slice":
        axes = ints(graph, node, 3)
        if axes is None or len(dims) - 1 in [a % len(dims) for a in axes]:
            return None
    return source


def _half_constant(constant: Constant) -> Constant | None:
    if isinstance(constant, Splat):
        last = constant.shape[-1]
        return Splat(constant.dtype, (*constant.shape[:-1], last // 2), constant.value)
    if not isinstance(constant, Blob):
        return None
    array = evaluate(constant)
    h = array.shape[-1] // 2
    return blob(np.ascontiguousarray(array[..., :h])) if np.array_equal(array[..., :h], array[..., h:]) else None


def _build_half(graph: Graph, lineage: Lineage, found: _Halving, heir: Node) -> int:
    """The value's half, made of the base's half by the same steps; each stands for what the step stands for."""
    base = graph.producer(found.base)
    passed = [base] if isinstance(found.half, int) else []
    value = found.half if isinstance(found.half, int) else graph.add_const(found.half, base.name, base.origin)
    reshapes = any(n.op in _ROWS for n in found.steps)  # without them, all that Reshapes do is done at the end at once
    for node in reversed(found.steps):
        before = value
        if node.op in ("Reshape", "Unsqueeze", "Squeeze", "Expand"):
            dims = dims_of(graph, node.outputs[0])
            assert dims is not None and type(dims[-1]) is int
            if reshapes:
                value = shaped(graph, value, (*dims[:-1], dims[-1] // 2), node, "Expand" * (node.op == "Expand"))
        else:
            value = emit(graph, node.op, [value, *_operands(graph, node, value)], node.attrs, node)
        passed.append(node)
        if value != before:
            graph.producer(value).origin = merge_origins(passed)
            passed = []
    maker = graph.producer(value)
    for node in passed:
        lineage.adopt(heir if maker.op == "Data" else maker, node)
    return value


def _operands(graph: Graph, node: Node, half: int) -> list[int]:
    """The other inputs of a step."""
    if node.op not in _SCALED:
        return node.inputs[1:]
    number = next(n for n in (uniform(graph.const(v)) for v in node.inputs) if n is not None)
    scalar = filled(graph, graph.tensor(half).dtype, (), float(number))
    assert scalar is not None
    return [graph.add_const(scalar, "", node.origin)]


# -- layouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """How x lies: [batch, heads, positions, size], or with `flat` [batch, positions, heads, size].

    `cached` is the batch of the cosines: that of x, or 1.
    """

    flat: bool
    batch: Size
    heads: Size
    positions: Size
    cached: Size


def _layout(x: tuple[Size, ...], cache: tuple[Size, ...]) -> _Layout | None:
    """Where the positions are: the axis along which the cosines change (padded to the rank of x)."""
    if len(x) not in (3, 4) or len(cache) > len(x):
        return None
    c = (1,) * (len(x) - len(cache)) + cache
    if c[0] not in (1, x[0]):
        return None
    if len(x) == 3:
        return _Layout(True, x[0], 1, x[1], c[0]) if c[1] == x[1] else None
    if c[1] == 1 and c[2] == x[2]:
        return _Layout(False, x[0], x[1], x[2], c[0])
    if c[2] == 1 and c[1] == x[1] and type(x[2]) is int:
        return _Layout(True, x[0], x[2], x[1], c[0])
    return None


def _cache(graph: Graph, value: int, layout: _Layout, half: int, heir: Node) -> int:
    """A half cache as [batch, positions, half]."""
    value = shaped(graph, value, (layout.cached, layout.positions, half), heir)
    return shaped(graph, value, (layout.batch, layout.positions, half), heir, "Expand")


def _write(r: Rewrite, x: int, layout: _Layout, caches: list[int], interleaved: bool, part: int = 0) -> None:
    """The root becomes the embedding of x, or with `part` of the first elements of its last axis."""
    graph, root = r.graph, r.m.root
    dims = dims_of(graph, x)
    assert dims is not None
    attrs = {"interleaved": int(interleaved), "rotary_embedding_dim": part}
    if not layout.flat:
        r.replace("RotaryEmbedding", [x, *caches], attrs)
        return
    heads, size = layout.heads, dims[-1]
    together = shaped(graph, x, (layout.batch, layout.positions, heads * size), root)
    made = emit(graph, "RotaryEmbedding", [together, *caches], {**attrs, "num_heads": heads}, root)
    target = graph.add_const(dims_constant(dims), "", root.origin)
    r.replace("Reshape", [made, target], {"allowzero": int(any(type(d) is not int for d in dims))})


# -- the rules ---------------------------------------------------------------------------------------------------

X, COS, SIN = Var("x"), Var("cos"), Var("sin")
LOW, HIGH = Var("low"), Var("high")
_TURNED = Op("Concat", Op("Neg", HIGH), LOW)
_ROTATED = Op("Add", Op("Mul", X, COS), Op("Mul", _TURNED, SIN))


def _pair(low: Pattern, high: Pattern) -> tuple[Pattern, Pattern]:
    first = Op("Sub", Op("Mul", low, COS), Op("Mul", high, SIN))
    second = Op("Add", Op("Mul", high, COS), Op("Mul", low, SIN))
    return first, second


_PAIRED = Op("Concat", *_pair(LOW, HIGH))


def _ready(m: Match, x: int, pairs: bool = True) -> tuple[tuple[Size, ...], int] | None:
    dims = dims_of(m.graph, x)
    if not dims or type(dims[-1]) is not int or m.graph.tensor(x).dtype not in FLOATS or (pairs and dims[-1] % 2):
        return None
    return (dims, dims[-1]) if same_types(m.graph, x, m.result) and known_at_start(m.graph, dims) else None


def _last(graph: Graph, node: Node) -> bool:
    dims = dims_of(graph, node.outputs[0])
    return dims is not None and int(node.attrs["axis"]) % len(dims) == len(dims) - 1


def _whole(r: Rewrite) -> str | None:
    """x·cos + turned(x)·sin, with cosines for both halves"""
    graph, m = r.graph, r.m
    x, ready = m["x"], _ready(m, m["x"])
    concat = next(n for n in m.nodes if n.op == "Concat")
    if ready is None or not _last(graph, concat):
        return ""
    dims, size = ready
    h = size // 2
    if not (_is_span(graph, m["low"], x, 0, h) and _is_span(graph, m["high"], x, h, size)):
        return "what is turned are not the two halves of the last axis"
    found = [_halves(graph, m[name]) for name in ("cos", "sin")]
    layouts = [_layout(dims, dims_of(graph, m[name]) or ()) for name in ("cos", "sin")]
    if layouts[0] is None or layouts[0] != layouts[1]:
        return f"cosines of shape {_shape(graph, m['cos'])} do not go with x of shape {_shape(graph, x)}"
    if found[0] is None or found[1] is None:
        return "the two halves of the cosines or sines are not known to be the same"
    caches = []
    for halving in found:
        assert halving is not None
        caches.append(_cache(graph, _build_half(graph, r.lineage, halving, m.root), layouts[0], h, m.root))
    splits = [graph.producer(m[name]) for name in ("low", "high")]
    m.nodes.extend(splits)
    _write(r, x, layouts[0], caches, False)
    return None


def _shape(graph: Graph, value: int) -> str:
    return f"[{', '.join(map(str, dims_of(graph, value) or ('unknown',)))}]"


def _halved(r: Rewrite) -> str | None:
    """Concat of the two turned halves, with cosines for one half"""
    graph, m = r.graph, r.m
    low, high = last_span(graph, m["low"]), last_span(graph, m["high"])
    if low is None or high is None or low.source != high.source or not _last(graph, m.root):
        return ""
    if low.stop != high.start or low.length != high.length or low.step != 1 or high.step != 1:
        return "what is turned are not the two halves of the last axis"
    x = low.source
    if dims_of(graph, x) != dims_of(graph, m.result):
        numbers = [blob(np.array([n], np.int64)) for n in (low.start, high.stop, -1)]
        x = r.emit("Slice", [x, *map(r.constant, numbers)])
    ready = _ready(m, x)
    return "" if ready is None else _paired(r, x, ready[0], low.length, False)


def _halved_part(r: Rewrite) -> str | None:
    """As `_halved`, and the rest of the last axis behind it"""
    graph, m = r.graph, r.m
    low, high, rest = (rooted_span(graph, m[name]) for name in ("low", "high", "rest"))
    if low is None or high is None or rest is None or not low.source == high.source == rest.source:
        return ""
    ready, h = _ready(m, low.source, pairs=False), low.length
    parts = [(s.start, s.stop, s.step) for s in (low, high, rest)]
    if ready is None or not _last(graph, m.root) or parts != [(0, h, 1), (h, 2 * h, 1), (2 * h, ready[1], 1)]:
        return ""
    return _paired(r, low.source, ready[0], h, False, 2 * h)


def _paired(r: Rewrite, x: int, dims: tuple[Size, ...], h: int, interleaved: bool, part: int = 0) -> str | None:
    graph, m = r.graph, r.m
    shapes = [dims_of(graph, m[name]) or () for name in ("cos", "sin")]
    layouts = [_layout(dims, s) for s in shapes]
    if layouts[0] is None or layouts[0] != layouts[1] or any(s[-1:] != (h,) for s in shapes):
        return f"cosines of shape {_shape(graph, m['cos'])} do not go with x of shape {_shape(graph, x)}"
    caches = [_cache(graph, m[name], layouts[0], h, m.root) for name in ("cos", "sin")]
    m.nodes.extend(graph.producer(m[name]) for name in ("low", "high"))
    _write(r, x, layouts[0], caches, interleaved, part)
    return None


def _neighbour(graph: Graph, value: int) -> tuple[int, int] | None:
    """(x, i) where the value holds each second element of the last axis of x from i (0 or 1) on; else None.

    Either x[..., i::2], or x as [..., size / 2, 2] at i, with or without the last axis.
    """
    found = last_span(graph, value)
    if found is not None and found.step == 2 and found.start in (0, 1):
        return found.source, found.start
    dims = dims_of(graph, value)
    node = graph.producer(value)
    for _ in range(MOST_STEPS):
        if node.op in ("Reshape", "Squeeze", "Unsqueeze"):
            node, value = graph.producer(node.inputs[0]), node.inputs[0]
    at = None
    if node.op == "Gather" and uniform(graph.const(node.inputs[1])) is not None:
        pairs = dims_of(graph, node.inputs[0])
        number = uniform(graph.const(node.inputs[1]))
        if pairs and number is not None and int(node.attrs.get("axis", 0)) % len(pairs) == len(pairs) - 1:
            at = node.inputs[0], int(number) % 2
    elif (part := last_span(graph, value)) is not None and part.length == 1:
        at = part.source, part.start
    pairs = None if at is None else dims_of(graph, at[0])
    reshape = None if at is None else graph.producer(at[0])
    if at is None or reshape is None or not pairs or pairs[-1] != 2 or reshape.op != "Reshape" or dims is None:
        return None
    source = dims_of(graph, reshape.inputs[0])
    if not source or (*source[:-1], *pairs[-2:]) != pairs or type(source[-1]) is not int:
        return None
    return reshape.inputs[0], at[1]


def _interleaved(r: Rewrite) -> str | None:
    """The turned neighbours, put next to each other again"""
    graph, m = r.graph, r.m
    concat = next(n for n in m.nodes if n.op == "Concat")
    low, high = _neighbour(graph, m["low"]), _neighbour(graph, m["high"])
    if low is None or high is None or low != (high[0], 0) or high[1] != 1 or not _last(graph, concat):
        return ""
    x, paired, made = low[0], dims_of(graph, concat.outputs[0]), dims_of(graph, m.result)
    if paired is None or made is None or paired[-1] != 2 or type(made[-1]) is not int or paired[-2] != made[-1] // 2:
        return ""
    if dims_of(graph, x) != made and last_span(graph, m["low"]) is not None:
        numbers = [blob(np.array([n], np.int64)) for n in (0, made[-1], -1)]
        x = r.emit("Slice", [x, *map(r.constant, numbers)])
    ready = _ready(m, x)
    if ready is None:
        return ""
    return _paired(r, x, ready[0], ready[1] // 2, True)


def _partial(r: Rewrite) -> str | None:
    """Concat(rotary(x[:r]), x[r:]) = rotary(x) of the first r elements"""
    graph, m = r.graph, r.m
    made = graph.producer(m.root.inputs[0])
    part, rest = last_span(graph, m["part"]), last_span(graph, m["rest"])
    if part is None or rest is None or part.source != rest.source or not _last(graph, m.root):
        return ""
    x, dims = part.source, dims_of(graph, part.source)
    if dims is None or not _is_span(graph, m["part"], x, 0, part.stop):
        return ""
    if rest.start != part.stop or rest.stop != dims[-1] or rest.step != 1:
        return ""
    if made.attrs.get("rotary_embedding_dim") or made.attrs.get("num_heads") or not same_types(graph, x, m.result):
        return "" if not made.attrs.get("num_heads") else "the heads lie together in one axis"
    m.nodes.extend(graph.producer(m[name]) for name in ("part", "rest"))
    r.replace("RotaryEmbedding", [x, *made.inputs[1:]], {**made.attrs, "rotary_embedding_dim": part.stop})
    return None


_APART = "Reshape Unsqueeze"
_FIRST, _SECOND = _pair(LOW, HIGH)
_WOVEN = Op("Reshape", Op("Concat", Op(_APART, _FIRST, rest=True), Op(_APART, _SECOND, rest=True)), rest=True)

RULES = (
    Rule("RotaryEmbedding", _ROTATED, _whole),
    Rule("RotaryEmbedding", _PAIRED, _halved),
    Rule("RotaryEmbedding", Op("Concat", *_pair(LOW, HIGH), Var("rest")), _halved_part),
    Rule("RotaryEmbedding", _WOVEN, _interleaved),
    Rule("RotaryEmbedding", Op("Concat", Op("RotaryEmbedding", Var("part"), COS, SIN), Var("rest")), _partial),
)
_TABLE = index_rules(RULES)
