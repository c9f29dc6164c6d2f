"""Nodes that compute the same thing become one, and equal constants too.

    a = Exp(x)   b = Exp(x)   y = Add(a, b)          →          a = Exp(x)   y = Add(a, a)

Two nodes are the same when operator, attributes, inputs and stream label are; names do not count, and the two operands
of a commutative operator have no order. Constants are the same when dtype, shape and bytes are. Nodes that draw random
numbers, have side effects, or hold subgraphs are never merged. When sizes known only at run time are named twice (each
NonZero gives its count a name of its own), the second name is replaced by the first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from atc_py.ir.constants import Blob, Derived, DimVec, Splat
from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Optional, Sequence, Tensor, Type
from atc_py.passes.base import PassContext
from atc_py.passes.known import bare_symbol
from atc_py.passes.lineage import Lineage

_CONSTANTS = (Blob, Splat, DimVec, Derived)


SAMPLE = 16
"""Bytes of a constant that are looked at as long as no other one has the same there."""


def merge_common(graph: Graph, ctx: PassContext) -> int:
    """Merge equal nodes and constants; returns how many went."""
    changed = 0
    seen, alone = _Seen(graph, ctx), set[int]()
    with Lineage(graph) as lineage:
        for node in graph.order():
            if node.op in ("Data", "NetOutput") or node.subgraphs:
                continue
            if _reads_alone(graph, node):
                alone.add(node.id)
                continue
            first = seen.first(node)
            if first is not None and first is not node and _unify(graph, ctx, first, node):
                for value in first.outputs:
                    reader = graph.sole_consumer(value)  # which may have others beside it now
                    if reader is not None and reader.id in alone:
                        alone.remove(reader.id)
                        seen.first(reader)
                _merge(graph, lineage, first, node)
                changed += 1
    return changed


def _reads_alone(graph: Graph, node: Node) -> bool:
    """Whether the node reads something that no other node reads, so that it is like no other one."""
    values = graph.values
    return 1 in map(len, [values[v].uses for v in node.inputs if v != ABSENT])


class _Seen:
    """The first node of each kind. Keys are made in full only for nodes that a rough one does not tell apart."""

    def __init__(self, graph: Graph, ctx: PassContext) -> None:
        self.graph, self.ctx = graph, ctx
        self._rough: dict[Hashable, Node | None] = {}
        self._full: dict[Hashable, Node] = {}

    def first(self, node: Node) -> Node | None:
        """The first node that computes the same, this one included; None for a node that is never merged."""
        rough = _rough_key(node)
        if rough not in self._rough:
            self._rough[rough] = node
            return node
        first = self._rough[rough]
        if first is not None:
            self._rough[rough] = None
            self._by_key(first)
        return self._by_key(node)

    def _by_key(self, node: Node) -> Node | None:
        key = _key(self.graph, self.ctx, node)
        return None if key is None else self._full.setdefault(key, node)


def _rough_key(node: Node) -> Hashable:
    """Equal where `_key` is."""
    constant = node.const
    if isinstance(constant, Blob):
        return (constant.dtype, constant.shape, constant.data[:SAMPLE].tobytes())
    if constant is not None:
        return constant.key
    inputs = node.inputs
    return (node.op, *(inputs if len(inputs) != 2 or inputs[0] <= inputs[1] else inputs[::-1]))


def _key(graph: Graph, ctx: PassContext, node: Node) -> Hashable | None:
    if node.const is not None:
        return ("Const", node.const.key, graph.type(node.outputs[0]))
    flags = ctx.op(node).flags
    if flags.random or flags.side_effects or flags.control or not flags.deterministic:
        return None
    inputs = tuple(node.inputs)
    if flags.commutative and len(inputs) == 2 and inputs[0] > inputs[1]:
        inputs = (inputs[1], inputs[0])
    attrs = tuple([(k, attribute_key(v)) for k, v in sorted(node.attrs.items())])
    return (node.op, inputs, len(node.outputs), node.stream, attrs)


def attribute_key(value: Any) -> Hashable:
    """A hashable stand-in: equal for equal attributes, different for 0.0 and -0.0."""
    if type(value) is float:
        return repr(value)
    if isinstance(value, tuple):
        return tuple([attribute_key(v) for v in value]) if value and type(value[0]) is float else value
    if isinstance(value, _CONSTANTS):
        return value.key
    return value  # type: ignore[no-any-return]


def _merge(graph: Graph, lineage: Lineage, first: Node, node: Node) -> None:
    lineage.adopt(first, node)
    for old, new in zip(node.outputs, first.outputs, strict=True):
        mine, kept = graph.values[old], graph.values[new]
        if mine.name and not kept.name:
            kept.name = mine.name
        graph.replace_uses(old, new)
    graph.remove(node)


def _unify(graph: Graph, ctx: PassContext, first: Node, node: Node) -> bool:
    """Give both nodes' results one type by naming run-time sizes alike; False where the types differ otherwise."""
    env: dict[str, Size] = {}
    for a, b in zip(first.outputs, node.outputs, strict=True):
        if not _match(graph, graph.type(a), graph.type(b), env):
            return False
    if env:
        ctx.bind_symbols(env)
    return True


def _match(graph: Graph, kept: Type, gone: Type, env: dict[str, Size]) -> bool:
    while isinstance(kept, (Sequence, Optional)) and type(kept) is type(gone):
        kept, gone = kept.element, gone.element
    if kept == gone:
        return True
    if not (isinstance(kept, Tensor) and isinstance(gone, Tensor)):
        return False
    if kept.with_shape(None) != gone.with_shape(None) or kept.shape is None or gone.shape is None:
        return False
    if len(kept.shape) != len(gone.shape):
        return False
    for a, b in zip(kept.shape, gone.shape):
        name = bare_symbol(b)
        if a == b or (name is not None and env.get(name) == a):
            continue
        if name is None or name in env or not graph.symbols[name].runtime:
            return False
        env[name] = a
    return True
