"""Shape arithmetic that is known becomes constants, and what computed it goes away.

    Shape(x: [N, 3, H]) → Gather 0 → Concat(·, -1) → Reshape        →        Const [N, -1] → Reshape

Values that mention a symbol which only the run time binds stay computed.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.captures import drop_unused_captures
from atc_py.ir.dims import Dim, symbols_of
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Array
from atc_py.ops.build import Scope, as_constant


def foldable(graph: Graph, array: Array, dtype: DType) -> bool:
    """Whether the value can be a constant: numbers, or integers with symbols that are known before anything runs."""
    if array.dtype != object:
        return True
    if not dtype.is_int or not all(isinstance(d, (Dim, int, np.integer)) for d in array.reshape(-1)):
        return False
    names = (name for d in array.reshape(-1) if isinstance(d, Dim) for name in symbols_of(d))
    return all(name in graph.symbols and not graph.symbols[name].runtime for name in names)


def fold_known(graph: Graph, scope: Scope) -> int:
    """Replace known values by constants, here and in all bodies; returns how many were replaced.

    What nobody reads any more goes where that decides what is captured: everywhere, if there are bodies.
    """
    folded = _fold(graph, scope)
    if not any(node.subgraphs for node in graph.nodes.values()):
        return folded
    graph.prune()
    for node in list(graph.nodes.values()):
        for body in node.subgraphs.values():
            folded += fold_known(body, scope.inner(body))
            body.prune()
        if node.captures:
            drop_unused_captures(graph, node)
    graph.prune()
    return folded


def _fold(graph: Graph, scope: Scope) -> int:
    count = 0
    for output, array in list(scope.facts.items()):
        value = graph.values.get(output)
        if value is None or not value.uses or not isinstance(value.type, Tensor):
            continue
        node = graph.nodes[value.producer]
        if node.op in STRUCTURAL or not _pure(node) or not foldable(graph, array, value.type.dtype):
            continue
        new = graph.add_const(as_constant(array, value.type.dtype), value.name, node.origin)
        value.name = ""
        graph.replace_uses(output, new)
        count += 1
    return count


def _pure(node: Node) -> bool:
    op = get(node.op)
    return op is not None and not op.flags.random and not op.flags.side_effects
