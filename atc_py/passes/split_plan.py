"""How operators that are too large are cut: along which axes, into how many pieces, and which are cut together.

    target memory 8 MiB;  A [1024, 1024] · B [1024, 1024] = S (4 MiB each),  Exp(S) = E,  ReduceMax(E, axis 1) = m

    too large       MatMul (12 MiB), Exp (8 MiB and something else is needed: no), ...
    region          MatMul, Exp, ReduceMax along the rows: piece i of S, E and m needs rows i of A alone
    pieces          the fewest with which every piece of every member fits

Which part of each input a part of the result needs is what the operator's tile rule says (`ops/tiles.py`). An axis
serves when the rule makes just what was wanted, for every piece. A reader joins its producer's region when, for every
piece, it needs just the producer's piece: then a value between them never exists whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod

import numpy as np

from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import Infer, InferError, Op
from atc_py.ops.build import as_types, known_value, lookup
from atc_py.ops.tiles import Dims, Need, Region, Untileable, Wanted, lengths, needed, tileable, whole

MOST_PIECES = 1024
"""An operator is cut into no more pieces than this."""
STEP = 32
"""Where a part lies in the whole, its bytes are a multiple of this, unless it is the last (`schedule/joins.py`)."""
GRAIN = 16
"""Pieces are multiples of so many indices where they are longer: rows of a block of the cube unit."""


@dataclass(frozen=True)
class Piece:
    """One piece of a node: the region of its result that it makes, and what it needs for that."""

    out: Region
    need: Need


@dataclass
class Cuts:
    """Nodes that are cut together: for each member, in order, its axis and its pieces."""

    members: dict[int, tuple[int, list[Piece]]] = field(default_factory=dict)


class Sizes:
    """Bytes of values as they are meant, and of what a task touches; only static tensors count.

    Formats of storage are chosen later, for what has been cut.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._bytes: dict[int, int] = {}

    def value(self, value: int) -> int:
        """Bytes of a value; 0 where they are not known."""
        found = self._bytes.get(value)
        if found is None:
            found = self._bytes[value] = _static_bytes(self.graph.values[value].type)
        return found

    def operands(self, node: Node) -> int:
        """Bytes of a task's operands, each value once; a view has none, a join or a cut in place those of the whole."""
        if node.op in STRUCTURAL:
            return 0
        op = lookup(node.op, node.attrs)
        if op.flags.alias or op.flags.control:
            return 0
        if self.in_place(node, op):
            return max(map(self.value, (*node.inputs, *node.outputs)))
        return sum(map(self.value, {v for v in (*node.inputs, *node.outputs) if v != ABSENT}))

    def in_place(self, node: Node, op: Op) -> bool:
        """Whether the parts of a Concat or a Split lie in the whole, one run of bytes each."""
        if not (op.flags.joins or op.flags.cuts):
            return False
        inputs = [v for v in node.inputs if v != ABSENT]
        whole_value, parts = (node.outputs[0], inputs) if op.flags.joins else (inputs[0], node.outputs)
        dims, shapes = _dims(self.graph, whole_value), [_dims(self.graph, v) for v in parts]
        if not dims or None in shapes:
            return False
        axis = int(node.attrs.get("axis") or 0) % len(dims)
        spans = [shape[axis] for shape in shapes if shape]
        return runs(dims, axis, spans, self.graph.tensor(whole_value).dtype.itemsize)


def _static_bytes(type_: object) -> int:
    if not isinstance(type_, Tensor) or type_.shape is None:
        return 0
    total = type_.dtype.itemsize
    for d in type_.shape:
        if type(d) is not int:
            return 0
        total *= d
    return total


def runs(dims: Dims, axis: int, spans: Sequence[int], itemsize: int) -> bool:
    """Whether parts along an axis are runs of bytes that begin at multiples of `STEP`: then no byte need be moved."""
    stride = prod(dims[axis + 1 :]) * itemsize
    return all(d == 1 for d in dims[:axis]) and all(span * stride % STEP == 0 for span in spans[:-1])


def cut_axis(pieces: Sequence[Piece], i: int, dims: Dims) -> int | None:
    """The axis along which the pieces' parts of input `i` are the whole of it, one after the other; None: no such."""
    regions = [p.need.inputs[i] for p in pieces]
    found = [k for k, d in enumerate(dims) if regions[0] is not None and regions[0][k] != (0, d)]
    if len(found) != 1:
        return None
    axis, at = found[0], 0
    for region in regions:
        if region is None or region[axis][0] != at or any(region[k] != (0, d) for k, d in enumerate(dims) if k != axis):
            return None
        at += region[axis][1]
    return axis if at == dims[axis] else None


def piece_of(graph: Graph, node: Node, out: Region) -> Piece | str:
    """What the node needs for a region of its result; a reason where it cannot be made alone."""
    op = lookup(node.op, node.attrs)
    if not tileable(op) or node.subgraphs or len(node.outputs) != 1:
        return f"{node.op} declares no part of its result as independent"
    shapes = tuple(_dims(graph, v) for v in node.inputs)
    values = tuple(None if v == ABSENT else known_value(graph.const(v)) for v in node.inputs)
    target = _dims(graph, node.outputs[0])
    assert target is not None
    try:
        need = needed(op, Wanted(shapes, op.attributes(node.attrs), values, (out,), (target,)))
    except (Untileable, AssertionError) as problem:
        return str(problem) or f"{node.op} has no rule for these shapes"
    if need.outputs is not None and need.outputs[0] != out:
        return "a part of it takes the whole axis"
    return Piece(out, need) if _infers(graph, node, op, need, out, values) else "its shape does not follow"


def _dims(graph: Graph, value: int) -> Dims | None:
    type_ = None if value == ABSENT else graph.type(value)
    if not isinstance(type_, Tensor) or not type_.static:
        return None
    return tuple(d for d in type_.dims if type(d) is int)


def _infers(graph: Graph, node: Node, op: Op, need: Need, out: Region, values: Sequence[np.ndarray | None]) -> bool:
    """Whether the operator, on what the rule gives it, makes a result of the piece's shape."""
    types: list[Tensor | None] = []
    known = list(values)
    for i, value in enumerate(node.inputs):
        region = need.inputs[i] if i < len(need.inputs) else None
        type_ = None if value == ABSENT or region is None else graph.tensor(value)
        types.append(None if type_ is None or region is None else type_.with_shape(lengths(region)))
        if i in need.values:
            known[i] = need.values[i]
        elif region is not None and value != ABSENT and region != whole(_dims(graph, value) or ()):
            known[i] = None
    n = Infer(tuple(types), {**op.attributes(node.attrs), **need.attrs}, 1, tuple(known))
    try:
        found = as_types(op.infer_fn(n))[0] if op.infer_fn is not None else None
    except InferError:
        return False
    return isinstance(found, Tensor) and found.shape == lengths(out)


def ranges(size: int, count: int) -> list[tuple[int, int]]:
    """An axis cut into about `count` pieces, as (start, length); all but the last have the same length."""
    step = ceil(size / count)
    if step > GRAIN:
        step = ceil(step / GRAIN) * GRAIN
    ends = [*range(0, size, step), size]
    return [(a, b - a) for a, b in pairwise(ends)]


def counts(size: int) -> list[int]:
    """The numbers of pieces that are tried, the fewest first."""
    found, count = [], 2
    while count <= min(size, MOST_PIECES):
        found.append(count)
        count = max(count + 1, count * 5 // 4)
    return [*found, size] if size <= MOST_PIECES and size not in found else found


def pieces_of(graph: Graph, node: Node, axis: int, cuts: Sequence[tuple[int, int]]) -> list[Piece] | str:
    """The node's pieces along an axis."""
    dims = _dims(graph, node.outputs[0])
    assert dims is not None
    found = []
    for span in cuts:
        piece = piece_of(graph, node, (*whole(dims[:axis]), span, *whole(dims[axis + 1 :])))
        if isinstance(piece, str):
            return piece
        found.append(piece)
    return found


def plan_region(
    graph: Graph, order: Sequence[Node], seed: int, large: Mapping[int, int], sizes: Sizes, memory: int
) -> Cuts | list[str]:
    """The region that starts at `order[seed]`; where no axis serves, a reason for each."""
    node = order[seed]
    dims = _dims(graph, node.outputs[0]) if len(node.outputs) == 1 else None
    if dims is None:
        return [f"{node.op} declares no part of its result as independent"]
    declared = {a % len(dims) for a in lookup(node.op, node.attrs).flags.splittable if -len(dims) <= a < len(dims)}
    best: Cuts | None = None
    reasons: dict[str, None] = {}
    for axis in sorted(range(len(dims)), key=lambda a: (a not in declared, a)):
        if dims[axis] < 2:
            continue
        found = _along(graph, order, seed, axis, dims[axis], large, sizes, memory)
        if isinstance(found, str):
            reasons[f"axis {axis} of {dims[axis]}: {found}"] = None
        elif best is None or len(found.members) > len(best.members):
            best = found
    return best or list(reasons) or ["every dim of its result is 1"]


def _along(
    graph: Graph, order: Sequence[Node], seed: int, axis: int, size: int, large: Mapping[int, int], sizes: Sizes,
    memory: int,
) -> Cuts | str:  # fmt: skip
    reason = ""
    for count in counts(size):
        cuts = ranges(size, count)
        first = pieces_of(graph, order[seed], axis, cuts)
        if isinstance(first, str):
            return first
        reason = _too_large(graph, order[seed], first, sizes, memory)
        if reason:
            continue
        region = Cuts({order[seed].id: (axis, first)})
        _grow(graph, order, seed, size, cuts, large, region, sizes, memory)
        reason = _outside(graph, region, sizes, memory)
        if not reason:
            return region
    return reason


def _grow(
    graph: Graph, order: Sequence[Node], seed: int, size: int, cuts: Sequence[tuple[int, int]],
    large: Mapping[int, int], region: Cuts, sizes: Sizes, memory: int,
) -> None:  # fmt: skip
    """Take in readers, in order, that need just their producers' pieces; `order` may hold what has been cut before."""
    made = {graph.nodes[seed_id].outputs[0] for seed_id in region.members}
    for node in order[seed + 1 :]:
        if node.id not in graph.nodes or len(node.outputs) != 1 or not made.intersection(node.inputs):
            continue
        if node.id not in large and not lookup(node.op, node.attrs).flags.alias:
            continue
        dims = _dims(graph, node.outputs[0])
        for axis, d in enumerate(dims or ()):
            if d % size:
                continue
            scaled = [(start * (d // size), length * (d // size)) for start, length in cuts]
            pieces = pieces_of(graph, node, axis, scaled)
            if isinstance(pieces, str) or not _aligned(graph, node, pieces, region):
                continue
            if not _too_large(graph, node, pieces, sizes, memory):
                region.members[node.id] = (axis, pieces)
                made.add(node.outputs[0])
                break


def _aligned(graph: Graph, node: Node, pieces: Sequence[Piece], region: Cuts) -> bool:
    """Whether each piece needs just its producers' pieces."""
    for i, value in enumerate(node.inputs):
        member = None if value == ABSENT else region.members.get(graph.producer(value).id)
        if member and any(p.need.inputs[i] != q.out for p, q in zip(pieces, member[1], strict=True)):
            return False
    return True


def _too_large(graph: Graph, node: Node, pieces: Sequence[Piece], sizes: Sizes, memory: int) -> str:
    """Why pieces of a node do not fit, or nothing."""
    largest = max((piece_bytes(graph, node, p, sizes) for p in pieces), default=0)
    if largest <= memory:
        return ""
    return f"a piece of {len(pieces)} still takes {largest:,} bytes"


def piece_bytes(graph: Graph, node: Node, piece: Piece, sizes: Sizes) -> int:
    """Bytes of the operands of one piece; a view has none."""
    if lookup(node.op, node.attrs).flags.alias:
        return 0
    total = prod(lengths(piece.out)) * graph.tensor(node.outputs[0]).dtype.itemsize
    seen: set[tuple[int, Region]] = set()
    for i, value in enumerate(node.inputs):
        region = piece.need.inputs[i] if i < len(piece.need.inputs) else None
        if value == ABSENT or region is None or (value, region) in seen:
            continue
        seen.add((value, region))
        total += prod(lengths(region)) * graph.tensor(value).dtype.itemsize if sizes.value(value) else 0
    return total


def _outside(graph: Graph, region: Cuts, sizes: Sizes, memory: int) -> str:
    """Why what goes into a region, or what leaves it, does not fit, or nothing."""
    for number, (axis, pieces) in region.members.items():
        node = graph.nodes[number]
        for i, value in enumerate(node.inputs):
            made = value != ABSENT and graph.producer(value).id in region.members
            if value != ABSENT and not made and (reason := _input(graph, node, i, pieces, sizes, memory)):
                return reason
        value = node.outputs[0]
        if all(n in region.members for n, _ in graph.values[value].uses):
            continue
        spans = [p.out[axis][1] for p in pieces]
        in_place = runs(_dims(graph, value) or (), axis, spans, graph.tensor(value).dtype.itemsize)
        joined = sizes.value(value) * (1 if in_place else 2)
        if joined > memory:
            return f"putting the pieces of the result together takes {joined:,} bytes"
    return ""


def _input(graph: Graph, node: Node, i: int, pieces: Sequence[Piece], sizes: Sizes, memory: int) -> str:
    """Why a value cannot be cut for the pieces, or nothing. Constants are cut at conversion."""
    value = node.inputs[i]
    dims = _dims(graph, value) or ()
    parts = {p.need.inputs[i] for p in pieces if i < len(p.need.inputs)} - {None, whole(dims)}
    if not parts or graph.const(value) is not None:
        return ""
    itemsize = graph.tensor(value).dtype.itemsize
    most = max(prod(lengths(r)) * itemsize for r in parts if r is not None)
    if in_runs(graph, value, pieces, i) is not None:
        most = 0
    if sizes.value(value) + most > memory:
        what = f"input {i} and a part of it take" if most else f"input {i} takes"
        return f"{what} {sizes.value(value) + most:,} bytes"
    return ""


def in_runs(graph: Graph, value: int, pieces: Sequence[Piece], i: int) -> int | None:
    """The axis along which a Split gives the pieces their parts of input `i` without moving a byte; None: no such."""
    dims = _dims(graph, value) or ()
    axis = cut_axis(pieces, i, dims)
    if axis is None:
        return None
    spans = [r[axis][1] for p in pieces if (r := p.need.inputs[i]) is not None]
    return axis if runs(dims, axis, spans, graph.tensor(value).dtype.itemsize) else None
