"""Loops that count, and loops that never run.

    Loop(M, true){ …; true }      →    Loop(M){ … }        the number of iterations is M, and so are scanned sizes
    Loop(0, …){ … }               →    what was carried in; nothing was scanned

Law: a condition that is true before the loop and after each iteration never ends it. A body that hands its condition on
as it got it says true when it got true.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.constants import DimVec, Splat
from atc_py.ir.dims import Dim, Size, dmax
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.passes.base import PassContext
from atc_py.passes.known import bare_symbol, given, ints, uniform
from atc_py.passes.lineage import Lineage

PASS = "loops"


def simplify_loops(graph: Graph, ctx: PassContext) -> int:
    """Drop conditions that are always true, and loops that never run; returns how many."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op == "Loop"]:
            if _never(graph, node):
                changed += _remove(graph, ctx, lineage, node)
            elif given(node, 1) and uniform(graph.const(node.inputs[1])) is True:
                changed += _count(graph, ctx, node)
    return changed


def _limit(graph: Graph, node: Node) -> Size | None:
    """M, where it is known up to symbols."""
    constant = graph.const(node.inputs[0]) if given(node, 0) else None
    if isinstance(constant, DimVec) and len(constant.elements) == 1:
        return constant.elements[0]
    numbers = ints(graph, node, 0) if constant is not None else None
    return numbers[0] if numbers is not None and len(numbers) == 1 else None


def _never(graph: Graph, node: Node) -> bool:
    limit = _limit(graph, node)
    stopped = given(node, 1) and uniform(graph.const(node.inputs[1])) is False
    return stopped or (isinstance(limit, int) and limit <= 0)


# -- counting ----------------------------------------------------------------------------------------------------


def _count(graph: Graph, ctx: PassContext, node: Node) -> int:
    body = node.subgraphs["body"]
    says, got = body.outputs[0], body.inputs[1]
    if not given(node, 0) or not (says == got or uniform(body.const(says)) is True):
        return 0
    graph.set_input(node, 1, ABSENT)
    body.replace_uses(got, body.add_const(Splat(DType.BOOL, (), np.True_), body.values[got].name))
    limit = _limit(graph, node)
    if limit is None:
        return 1
    trips = dmax(limit, 0) if isinstance(limit, Dim) else max(limit, 0)
    carried = len(node.inputs) - 2 - node.captures
    learnt: dict[str, Size] = {}
    for value in node.outputs[carried:]:
        type_ = graph.type(value)
        name = bare_symbol(type_.shape[0]) if isinstance(type_, Tensor) and type_.shape else None
        if name is not None and graph.symbols[name].runtime:
            learnt[name] = trips
    if learnt:
        ctx.bind_symbols(learnt)
    return 1


# -- never -------------------------------------------------------------------------------------------------------


def _remove(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node) -> int:
    first = len(node.inputs) - node.captures
    initial = node.inputs[2:first]
    scanned = node.outputs[len(initial) :]
    empty: list[Splat] = []
    for value in scanned:
        type_ = graph.type(value)
        dims = type_.shape[1:] if isinstance(type_, Tensor) and type_.shape else None
        if not isinstance(type_, Tensor) or dims is None or any(type(d) is not int for d in dims):
            if graph.values[value].uses:
                ctx.decline(node, PASS, "the loop never runs, but the sizes of what it would scan are not known")
                return 0
            dims = ()
        assert isinstance(type_, Tensor)
        empty.append(Splat(type_.dtype, (0, *dims), type_.dtype.numpy.type(0)))
    learnt: dict[str, Size] = {}
    sources: list[int | None] = [*initial, *([None] * len(scanned))]
    if not all(_learn(graph, out, source, learnt) for out, source in zip(node.outputs, sources)):
        return 0
    if learnt:
        ctx.bind_symbols(learnt)
    for out, value in zip(node.outputs, initial):
        graph.replace_uses(out, value)
        lineage.adopt(graph.producer(value), node)
    for out, constant in zip(scanned, empty):
        if graph.values[out].uses:
            graph.replace_uses(out, graph.add_const(constant, graph.values[out].name, node.origin))
    graph.remove(node)
    return 1


def _learn(graph: Graph, out: int, value: int | None, learnt: dict[str, Size]) -> bool:
    """Sizes of the loop's results are those of what was carried in, and 0 for what was scanned."""
    have = graph.type(out)
    if not isinstance(have, Tensor) or have.shape is None:
        return value is None or have == graph.type(value)
    want: tuple[Size, ...] | None = (0, *have.shape[1:])
    if value is not None:
        type_ = graph.type(value)
        want = type_.shape if isinstance(type_, Tensor) else None
    if want is None or len(want) != len(have.shape):
        return False
    for a, b in zip(have.shape, want):
        name = bare_symbol(a)
        if name is not None and a != b and graph.symbols[name].runtime:
            learnt[name] = b
        elif a != b:
            return False
    return True
