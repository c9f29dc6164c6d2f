"""Transposes move down, past what does not mind, to where they meet their inverse or a matrix product takes them in.

    x ─ Transpose(0, 2, 3, 1) ─ Relu ─ Add([C]) ─ Transpose(0, 3, 1, 2) ─ y     →     x ─ Relu ─ Add([C, 1, 1]) ─ y
    x ─ Transpose(1, 0, 2) ─ MatMul(W: [K, N])                                  →     x ─ MatMul(W) ─ Transpose(1, 0, 2)
    x: [M, K] ─ Transpose ─ MatMul(B)                                           →     x ─ Gemm(B; transA = 1)

Laws, T for a Transpose with permutation p:  f(T(x)) = T(f(x)) for an elementwise f;  T(x) ∘ T(y) = T(x ∘ y);
T(x) ∘ c = T(x ∘ T⁻¹(c)) for a constant;  op(T(x); axes a) = T(op(x; axes p[a])) for reductions, Concat, Pad, Slice and
norms of the last axis;  T(x)·W = T(x·W) when T leaves the last axis alone;  Reshape(T(x)) = T'(Reshape'(x)) where it
takes no axes together that T has brought together.

One visit of all nodes, producers first, finds whole regions that could do without their Transposes: a residual stream
with its branches is one. A region is changed when no more Transposes have to be made at its ends than go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from atc_py.ir.constants import Blob, Constant, Splat, blob
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ops.build import dims_constant
from atc_py.ops.evaluate import evaluate
from atc_py.passes.axes import through
from atc_py.passes.base import PassContext
from atc_py.passes.known import SMALL, dims_of, given, ints, known_at_start, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.norms import FLOATS
from atc_py.passes.rewriting import become
from atc_py.passes.transposes import perm_of

PASS = "sink_transposes"

Perm = tuple[int, ...]
Rule = Callable[["_Sinker", Node, Perm], "Perm | None"]
"""The permutation that a node's result needs when it reads what its Transposes read (None: it minds); unless the run is
dry, the node is rewired to read that."""


@dataclass
class _Region:
    """Nodes that can read what Transposes read: these, and the balance of Transposes that go and are made.

    A value that is a part of another one weighs as much less.
    """

    nodes: list[tuple[Node, Perm, Perm, Rule]] = field(default_factory=list)
    balance: float = 0.0


class _Sinker:
    """One run over one graph: `perms` says of which values what lies before a Transpose is at hand."""

    def __init__(self, graph: Graph, ctx: PassContext, lineage: Lineage) -> None:
        self.graph, self.ctx, self.lineage = graph, ctx, lineage
        self.perms: dict[int, Perm] = {}
        self.weights: dict[int, float] = {}
        self.parents: dict[int, int] = {}
        self.planned: list[tuple[Node, Perm, Perm, Rule]] = []
        self.dry = True

    # -- what rules ask and do -----------------------------------------------------------------------------------

    def perm(self, value: int) -> Perm | None:
        """The permutation that makes the value of what is at hand; None where nothing is."""
        return self.perms.get(value)

    def read(self, node: Node, i: int, value: int | None = None) -> None:
        """Input `i` reads what lies before its Transpose, or `value`; what is not read any more goes."""
        old = self.graph.producer(node.inputs[i])
        if value is None:
            if old.op != "Transpose":
                return  # its maker has been turned: the value is what lies before the Transpose
            value = old.inputs[0]
        self.graph.set_input(node, i, value)
        if self.lineage.drop(old):
            self.lineage.inherit(node, old)

    def before(self, value: int) -> tuple[Size, ...] | None:
        """The dims of what lies before the Transpose that makes the value."""
        dims, perm = dims_of(self.graph, value), self.perms[value]
        if dims is None or not self.dry:
            old = self.graph.producer(value)
            return dims_of(self.graph, old.inputs[0]) if old.op == "Transpose" else dims
        return tuple([dims[i] for i in _inverse(perm)])

    def ints_at(self, node: Node, i: int, numbers: Sequence[int]) -> None:
        """Input `i` becomes a constant of these integers."""
        made = self.graph.add_const(blob(np.array(numbers, np.int64)), "", node.origin)
        while len(node.inputs) <= i:
            self.graph.set_inputs(node, [*node.inputs, ABSENT])
        self.graph.set_input(node, i, made)

    # -- the plan ------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Find out, without changing anything, which nodes could read what Transposes read."""
        graph, parents = self.graph, self.parents
        for node in graph.order():
            known = [v for v in node.inputs if v in self.perms]
            if node.op == "Transpose":
                perm = perm_of(graph, node)
                if perm is not None and not known:
                    self.perms[node.outputs[0]], self.weights[node.outputs[0]] = perm, 1.0
                    parents[node.id] = node.id
                continue
            rule = self.rule(node) if known and len(node.outputs) == 1 else None
            after = None if rule is None else rule(self, node, self.perms[known[0]])
            if rule is None or after is None:
                continue
            self.planned.append((node, self.perms[known[0]], after, rule))
            parents[node.id] = node.id
            for value in known:
                parents[self.root(graph.values[value].producer)] = self.root(node.id)
            if after != tuple(range(len(after))):
                self.perms[node.outputs[0]] = after
                self.weights[node.outputs[0]] = self.weight(node, known)

    def may_move(self, transpose: Node) -> bool:
        """Whether some reader of the Transpose could do without it."""
        return any(n.op != "Transpose" and self.rule(n) is not None for n in self.graph.consumers(transpose.outputs[0]))

    def rule(self, node: Node) -> Rule | None:
        """What is known about the node's operator."""
        found = _RULES.get(node.op)
        if found is None and node.op not in STRUCTURAL:
            flags = self.ctx.op(node).flags
            return _elementwise if flags.elementwise and not flags.random and node.op != "BitCast" else None
        return found

    def weight(self, node: Node, known: Sequence[int]) -> float:
        """How much a Transpose of the node's result costs, beside that of a whole tensor."""
        weight = max(self.weights[v] for v in known)
        if node.op in ("Gather", "Slice"):
            readers = self.graph.consumers(known[0])
            return weight / sum(n.op in ("Gather", "Slice") for n in readers)
        return 0.0 if node.op.startswith("Reduce") else weight

    def root(self, node: int) -> int:
        """The node that stands for the node's region."""
        while self.parents[node] != node:
            self.parents[node] = node = self.parents[self.parents[node]]
        return node

    def regions(self) -> list[_Region]:
        """The regions in which no more Transposes are made than go."""
        graph = self.graph
        found: dict[int, _Region] = {}
        planned = {node.id for node, *_ in self.planned}
        for step in self.planned:
            found.setdefault(self.root(step[0].id), _Region()).nodes.append(step)
        for value in self.perms:
            maker = graph.producer(value)
            region = found.get(self.root(maker.id))
            if region is None:
                continue
            stays = any(n not in planned and graph.nodes[n].op != "Transpose" for n, _ in graph.values[value].uses)
            if maker.op == "Transpose":
                region.balance += 0.0 if stays else 1.0
            elif stays:
                region.balance -= self.weights[value]
        return [r for r in found.values() if r.balance > -1e-6]

    # -- the change ----------------------------------------------------------------------------------------------

    def apply(self, regions: Sequence[_Region]) -> int:
        """Let the nodes of the regions read what Transposes read."""
        graph = self.graph
        chosen = {self.root(r.nodes[0][0].id) for r in regions}
        self.perms = {v: p for v, p in self.perms.items() if self.root(graph.values[v].producer) in chosen}
        steps = [step for step in self.planned if self.root(step[0].id) in chosen]
        inside = {step[0].id for step in steps}
        self.dry = False
        for node, perm, after, rule in steps:
            rule(self, node, perm)
            if after != tuple(range(len(after))):
                value = graph.values[node.outputs[0]]
                dims = value.tensor.dims
                value.type = value.tensor.with_shape(tuple([dims[i] for i in _inverse(after)]))
        for node, *_ in steps:
            if node.outputs[0] in self.perms:
                self.turn(node, inside)
        return len(steps)

    def turn(self, node: Node, inside: set[int]) -> None:
        """Readers outside of the regions read the node's result through a Transpose."""
        graph, value = self.graph, self.graph.values[node.outputs[0]]
        uses = [(n, i) for n, i in value.uses if n not in inside]
        perm, dims = self.perms[value.id], value.tensor.dims
        if not uses:
            return
        type_ = value.tensor.with_shape(tuple([dims[i] for i in perm]))
        name, value.name = value.name, ""
        made = graph.add("Transpose", [value.id], [type_], {"perm": perm}, origin=node.origin, names=[name])
        for n, i in uses:
            graph.set_input(graph.nodes[n], i, made.outputs[0])


def sink_transposes(graph: Graph, ctx: PassContext) -> int:
    """Move Transposes down; returns how many nodes they have passed."""
    with Lineage(graph) as lineage:
        sinker = _Sinker(graph, ctx, lineage)
        if not any(n.op == "Transpose" and sinker.may_move(n) for n in graph.nodes.values()):
            return 0
        sinker.plan()
        regions = sinker.regions()
        return sinker.apply(regions) if regions else 0


def _inverse(perm: Perm) -> Perm:
    return tuple(np.argsort(perm).tolist())


# -- elementwise -------------------------------------------------------------------------------------------------


def _elementwise(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    """Operands are transposed alike, or constants."""
    graph, rank = s.graph, len(perm)
    out = dims_of(graph, node.outputs[0])
    if out is None or len(out) != rank:
        return None
    plan: list[tuple[int, Constant | None]] = []
    for i, value in enumerate(node.inputs):
        if value == ABSENT:
            continue
        if s.perm(value) == perm:
            plan.append((i, None))
            continue
        constant = graph.const(value)
        if constant is None:
            return None
        if uniform(constant) is not None and all(d == 1 for d in constant.shape):
            continue  # one number is the same in every order, also where an operator wants a scalar
        turned = _turned(constant, _inverse(perm))
        if turned is None:
            return None
        plan.append((i, turned))
    for i, turned in plan if not s.dry else ():
        if turned is None:
            s.read(node, i)
        else:
            s.read(node, i, graph.add_const(turned, graph.producer(node.inputs[i]).name, node.origin))
    return perm


def _turned(constant: Constant, perm: Perm) -> Constant | None:
    """The constant for operands in another order of axes; leading axes that it lacks are 1. None: too large to copy."""
    shape = (1,) * (len(perm) - len(constant.shape)) + tuple(constant.shape)
    new = tuple([shape[i] for i in perm])
    if isinstance(constant, Splat):
        return Splat(constant.dtype, _without_leading_ones(new), constant.value)
    if not isinstance(constant, Blob):
        return None
    moved = [i for i in perm if shape[i] != 1]
    whole = [d for d in shape if type(d) is int]
    if moved != sorted(moved) and int(np.prod(whole)) > SMALL:
        return None
    array = evaluate(constant).reshape(whole).transpose(perm)
    return blob(np.ascontiguousarray(array).reshape([d for d in _without_leading_ones(new) if type(d) is int]))


def _without_leading_ones(dims: tuple[Size, ...]) -> tuple[Size, ...]:
    first = next((i for i, d in enumerate(dims) if d != 1), len(dims))
    return dims[first:]


# -- operators with axes -----------------------------------------------------------------------------------------


def _reduce(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    axes = ints(s.graph, node, 1) if given(node, 1) else None
    if not axes:
        return None
    over = sorted({a % len(perm) for a in axes})
    if not s.dry:
        s.read(node, 0)
        s.ints_at(node, 1, sorted(perm[a] for a in over))
    if node.attrs.get("keepdims", 1):
        return perm
    kept = [p for i, p in enumerate(perm) if i not in over]
    rank = {axis: i for i, axis in enumerate(sorted(kept))}
    return tuple(rank[p] for p in kept)


def _concat(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    if any(s.perm(v) != perm for v in node.inputs):
        return None
    if not s.dry:
        for i in range(len(node.inputs)):
            s.read(node, i)
        node.attrs = {**node.attrs, "axis": perm[int(node.attrs["axis"]) % len(perm)]}
    return perm


def _pad(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    pads, rank = ints(s.graph, node, 1), len(perm)
    if pads is None or s.perm(node.inputs[0]) is None:
        return None
    axes = ints(s.graph, node, 3) if given(node, 3) else list(range(rank))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    if s.dry:
        return perm
    s.read(node, 0)
    full = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        full[perm[axis % rank]] = pads[at]
        full[rank + perm[axis % rank]] = pads[len(axes) + at]
    s.ints_at(node, 1, full)
    s.graph.set_inputs(node, node.inputs[:3])
    return perm


def _slice(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    starts = ints(s.graph, node, 1)
    axes = ints(s.graph, node, 3) if given(node, 3) else list(range(len(starts or [])))
    if s.perm(node.inputs[0]) is None or axes is None or starts is None:
        return None
    if s.dry:
        return perm
    s.read(node, 0)
    s.ints_at(node, 3, [perm[a % len(perm)] for a in axes])
    return perm


def _norm(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    """A norm over last axes that the Transpose leaves alone."""
    rank = len(perm)
    first = int(node.attrs["axis"]) % rank
    if s.perm(node.inputs[0]) is None or perm[first:] != tuple(range(first, rank)):
        return None
    if not s.dry:
        s.read(node, 0)
    return perm


def _softmax(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    axis, rank = int(node.attrs.get("axis", -1)) % len(perm), len(perm)
    if perm[axis] != rank - 1:
        return None  # over another axis than the last one it would cost more than the Transpose
    if not s.dry:
        s.read(node, 0)
        node.attrs = {**node.attrs, "axis": -1}
    return perm


def _reshape(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    before, after = s.before(node.inputs[0]), dims_of(s.graph, node.outputs[0])
    if before is None or after is None or not known_at_start(s.graph, (*before, *after)):
        return None
    found = through(before, perm, after)
    if found is None or s.dry:
        return None if found is None else found[1]
    dims, order = found
    s.read(node, 0)
    s.graph.set_input(node, 1, s.graph.add_const(dims_constant(dims), "", node.origin))
    node.attrs = {"allowzero": int(any(d == 0 or type(d) is not int for d in dims))}
    return order


def _gather(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    """One element of an axis"""
    at = s.graph.const(node.inputs[1])
    if at is None or at.shape != () or s.perm(node.inputs[0]) is None:
        return None
    axis = int(node.attrs.get("axis", 0)) % len(perm)
    if not s.dry:
        s.read(node, 0)
        node.attrs = {**node.attrs, "axis": perm[axis]}
    kept = [p for i, p in enumerate(perm) if i != axis]
    return tuple(p - (p > perm[axis]) for p in kept)


# -- matrix products ---------------------------------------------------------------------------------------------


def _matmul(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    a, b = (dims_of(s.graph, v) for v in node.inputs)
    if a is None or b is None:
        return None
    if len(a) == len(b) == 2:
        if s.graph.tensor(node.outputs[0]).dtype not in FLOATS:
            return None
        if not s.dry:
            become(s.graph, node, "Gemm", list(node.inputs))
        return _gemm(s, node, perm)
    first = s.perm(node.inputs[0])
    if first is None or len(b) != 2 or first[-1] != len(first) - 1 or s.perm(node.inputs[1]) is not None:
        return None
    if not s.dry:
        s.read(node, 0)
    return first


def _gemm(s: _Sinker, node: Node, perm: Perm) -> Perm | None:
    for i, name in enumerate(("transA", "transB")):
        if s.perm(node.inputs[i]) == (1, 0) and not s.dry:
            s.read(node, i)
            node.attrs = {**node.attrs, name: 1 - int(node.attrs.get(name, 0))}
    summand = len(node.inputs) > 2 and s.perm(node.inputs[2]) is not None
    return None if summand else (0, 1)


_RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
    "Gather": _gather,
    "Reshape": _reshape,
    "LayerNormalization": _norm,
    "RMSNormalization": _norm,
    "Softmax": _softmax,
    "MatMul": _matmul,
    "Gemm": _gemm,
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
        + ("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
        _reduce,
    ),
}
