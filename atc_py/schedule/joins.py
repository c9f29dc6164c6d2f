"""Joins and cuts without a task: parts that lie in the whole from the beginning.

    a = Conv(x) [1, 32, 8, 8] ─┐                  a, b        are written where they lie in c: at 0 and at 8,192
    b = Pool(x) [1, 16, 8, 8] ─┴ Concat ─ c       c           is there as soon as both are: no task, no bytes moved
    c ─ Split ─ p, q                              p, q        are read where they lie in c

This is so when a part is one run of bytes in the whole (every dim before the axis is 1, and its storage does not pad
the axis), of a size known at compile time that is a multiple of `STEP` (GE: ConcatNotask's conditions). A part that
is joined must be made by a task of the same graph and go into one join; it may be joined again as a part of the result.
What leaves a graph keeps its own bytes. Operators say by flags that they join or cut (`Flags.joins`, `Flags.cuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Format, Tensor, lanes, on_host
from atc_py.ops.build import lookup

STEP = 32
"""Bytes of which the size of a part that others follow is a multiple."""


@dataclass
class Views:
    """The nodes of a graph that move no bytes, by id, and the parts that are made in their place.

    `aliases`: views of their first input. `joined`: joins. `cuts`: for each output where it begins in the input
    (bytes). `still`: all of these. `parts`: values, by the whole that they are made in: (whole, bytes from its
    beginning).
    """

    aliases: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    cuts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    still: set[int] = field(default_factory=set)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def sources(self, node: Node) -> list[int]:
        """The values whose bytes a node that is no task passes on."""
        return [v for v in (node.inputs if node.id in self.joined else node.inputs[:1]) if v != ABSENT]


def views_of(
    graph: Graph, order: list[Node], is_alias: Callable[[Graph, Node], bool], joining: bool, late: frozenset[int]
) -> Views:
    """The nodes of a graph that move no bytes; without `joining` only its aliases.

    `late`: outputs that lie in buffers whose size only the run time knows. One task makes such a buffer, not parts.
    """
    views = Views()
    moving: list[Node] = []
    for node in order:
        if node.op in STRUCTURAL:
            continue
        flags = lookup(node.op, node.attrs).flags
        if flags.alias and is_alias(graph, node):
            views.aliases.add(node.id)
        elif joining and (flags.joins or flags.cuts):
            moving.append(node)
    if moving:
        _joins_and_cuts(graph, moving, views, late)
    views.still = views.aliases | views.joined | views.cuts.keys()
    return views


def _joins_and_cuts(graph: Graph, moving: list[Node], views: Views, late: frozenset[int]) -> None:
    leaving, made_late = _viewed(graph, views, graph.outputs), _viewed(graph, views, late)
    for node in moving:
        if not lookup(node.op, node.attrs).flags.cuts:
            continue
        deltas = _offsets(graph, node, node.outputs, node.inputs[0])
        if deltas is None or leaving & set(node.outputs) or not _on_device(graph, node.inputs[0]):
            continue
        source = _viewed(graph, views, node.inputs[:1])
        if not source & made_late and not any(is_late(graph, v) for v in source):
            views.cuts[node.id] = deltas
    for node in reversed(moving):  # the last join first: what it joins may be a join
        if not lookup(node.op, node.attrs).flags.joins:
            continue
        deltas = _offsets(graph, node, node.inputs, node.outputs[0])
        if deltas is None or node.outputs[0] in made_late:
            continue
        made = [_made(graph, views, v, leaving) for v in node.inputs]
        found = [v for v in made if v is not None]
        if len(set(found)) == len(made) and not any(v in views.parts for v in found):
            views.joined.add(node.id)
            views.parts.update((v, (node.outputs[0], d)) for v, d in zip(found, deltas, strict=True))


def _viewed(graph: Graph, views: Views, values: Iterable[int]) -> set[int]:
    """The values, and those whose bytes these are."""
    found: set[int] = set()
    for value in values:
        while value not in found:
            found.add(value)
            node = graph.producer(value)
            if node.id not in views.aliases:
                break
            value = node.inputs[0]
    return found


def is_late(graph: Graph, value: int) -> bool:
    """Whether a value may be of a size that is not known at compile time."""
    type_ = graph.type(value)
    return not isinstance(type_, Tensor) or type_.shape is None or any(type(d) is not int for d in type_.shape)


def _on_device(graph: Graph, value: int) -> bool:
    """Whether the value is made by a node, a constant that is cut would have been folded."""
    return graph.producer(value).op != "Const"


def _made(graph: Graph, views: Views, value: int, leaving: set[int]) -> int | None:
    """The value whose bytes a task (or a join) makes for a part, where it may be made elsewhere than by itself.

    A view must be of the whole of it, which element counts say; a result of a region or of a cut stays where it is.
    """
    while graph.producer(value).id in views.aliases:
        value = graph.producer(value).inputs[0]
    node = graph.producer(value)
    if node.op in STRUCTURAL or (node.subgraphs and node.op != "Fused") or node.id in views.cuts or value in leaving:
        return None
    return value


def _offsets(graph: Graph, node: Node, parts: list[int], whole: int) -> tuple[int, ...] | None:
    """Where each part begins in the whole, in bytes; None where they are not runs of bytes with known places."""
    if len(parts) < 2 or ABSENT in parts:
        return None
    whole_type = graph.type(whole)
    if not isinstance(whole_type, Tensor) or not whole_type.shape or not _even(whole_type, node):
        return None
    offsets, at = [], 0
    for value in parts:
        part = graph.type(value)
        same = isinstance(part, Tensor) and part.dtype is whole_type.dtype and part.storage is whole_type.storage
        if not same or not isinstance(part, Tensor) or not part.shape or not _even(part, node) or at % STEP:
            return None
        offsets.append(at)
        nbytes = part.nbytes
        if type(nbytes) is not int or nbytes == 0:
            return None
        at += nbytes
    return tuple(offsets) if at == whole_type.nbytes else None


def _even(type_: Tensor, node: Node) -> bool:
    """Whether the storage has the parts along the node's axis one after the other."""
    dims = type_.dims
    axis = int(node.attrs.get("axis") or 0)
    axis += len(dims) if axis < 0 else 0
    if on_host(type_) or any(type(d) is not int for d in dims) or any(d != 1 for d in dims[:axis]):
        return False
    if type_.storage is None or type_.storage is type_.format:
        return True
    size = dims[axis]
    return type_.storage is Format.NC1HWC0 and axis == 1 and type(size) is int and size % lanes(type_.dtype) == 0


def whole_of(parts: Mapping[int, tuple[int, int]], value: int) -> tuple[int, int]:
    """(the outermost whole that a value is made in, bytes from its beginning); itself where it is no part."""
    delta = 0
    while value in parts:
        value, inner = parts[value]
        delta += inner
    return value, delta
