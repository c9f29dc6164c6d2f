"""A matrix product of rows needs no Reshape around it, and one of matrices takes its summand in.

    [S, B, K] ─ Reshape [S·B, K] ─ Gemm(W, c) ─ Reshape [S, B, N]       →       [S, B, K] ─ MatMul(W) ─ Add(c)
    [M, K] ─ MatMul(W) ─ Add(c: [N])                                    →       [M, K] ─ Gemm(W, c)

Law: each row of a product with a matrix depends on that row alone, so the leading axes may stay as they are. The matrix
is a constant; the summand c broadcasts over rows. What stands before the first Reshape, or behind the second one, then
is seen by other rules.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.constants import Splat, blob
from atc_py.ir.dims import Size, prod
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ops.evaluate import evaluate
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, given, known_at_start
from atc_py.passes.lineage import Lineage
from atc_py.passes.norms import FLOATS
from atc_py.passes.rewriting import become, emit, shaped, sweep

PASS = "rows"


def unfold_rows(graph: Graph, ctx: PassContext) -> int:
    """Take Reshapes away around products of rows; returns how many products changed."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op in ("Gemm", "MatMul")]:
            changed += _unfold(graph, ctx, lineage, node) or _with_summand(graph, lineage, node)
    return changed


def _with_summand(graph: Graph, lineage: Lineage, node: Node) -> int:
    """MatMul and Add of one number a column are Gemm, for matrices"""
    add = graph.sole_consumer(node.outputs[0]) if node.op == "MatMul" else None
    dims = dims_of(graph, node.outputs[0])
    if add is None or add.op != "Add" or dims is None or len(dims) != 2 or len(node.inputs) != 2:
        return 0
    summand = add.inputs[1] if add.inputs[0] == node.outputs[0] else add.inputs[0]
    shape = dims_of(graph, summand)
    plain = shape in ((dims[1],), (1, dims[1])) and graph.const(summand) is not None
    if not plain or dims_of(graph, add.outputs[0]) != dims or graph.tensor(node.outputs[0]).dtype not in FLOATS:
        return 0
    if any(len(dims_of(graph, v) or ()) != 2 for v in node.inputs):
        return 0
    become(graph, add, "Gemm", [*node.inputs, summand])
    sweep(graph, lineage, add, [node])
    return 1


def _unfold(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node) -> int:
    first, last = graph.producer(node.inputs[0]), graph.sole_consumer(node.outputs[0])
    if first.op != "Reshape" or last is None or last.op != "Reshape" or last.inputs[0] != node.outputs[0]:
        return 0
    source, flat = dims_of(graph, first.inputs[0]), dims_of(graph, node.inputs[0])
    out, weight = dims_of(graph, last.outputs[0]), dims_of(graph, node.inputs[1])
    if source is None or flat is None or out is None or weight is None or len(flat) != 2 or len(weight) != 2:
        return 0
    if not known_at_start(graph, (*source, *out)) or graph.const(node.inputs[1]) is None:
        return 0
    width = weight[0] if node.attrs.get("transB", 0) else weight[1]
    if len(out) < 3 or out[-1] != width or node.attrs.get("transA", 0) or prod(out[:-1]) != flat[0]:
        return 0
    lead = (*out[:-1], flat[1])
    if not _splits_only(source, lead):
        return 0
    if node.op == "Gemm" and not _plain(graph, ctx, node):
        return 0
    _rewrite(graph, lineage, first, node, last, lead)
    return 1


def _splits_only(source: tuple[Size, ...], lead: tuple[Size, ...]) -> bool:
    """Whether the leading axes are those of the source, so that a Reshape goes for good."""
    return source[: len(lead) - 1] == lead[:-1]


def _plain(graph: Graph, ctx: PassContext, node: Node) -> bool:
    """Whether a Gemm is a product and a sum, with a summand for each column."""
    if node.attrs.get("alpha", 1.0) != 1.0 or (given(node, 2) and node.attrs.get("beta", 1.0) != 1.0):
        ctx.decline(node, PASS, "Gemm scales its product")
        return False
    dims = dims_of(graph, node.inputs[2]) if given(node, 2) else ()
    if dims is None or (len(dims) > 1 and dims[0] != 1):
        ctx.decline(node, PASS, "the summand of Gemm differs from row to row")
        return False
    return True


def _rewrite(graph: Graph, lineage: Lineage, first: Node, node: Node, last: Node, lead: tuple[Size, ...]) -> None:
    weight, bias = node.inputs[1], node.inputs[2] if given(node, 2) else ABSENT
    constant = graph.const(weight)
    assert constant is not None
    if node.attrs.get("transB", 0):
        name, origin = graph.producer(weight).name, graph.producer(weight).origin
        if isinstance(constant, Splat):
            weight = graph.add_const(Splat(constant.dtype, constant.shape[::-1], constant.value), name, origin)
        else:
            weight = graph.add_const(blob(np.ascontiguousarray(evaluate(constant).T)), name, origin)
    x = shaped(graph, first.inputs[0], lead, node)
    old = graph.producer(node.inputs[1])
    if bias == ABSENT:
        become(graph, last, "MatMul", [x, weight])
        heir = last
    else:
        product = emit(graph, "MatMul", [x, weight], {}, node)
        become(graph, last, "Add", [product, bias])
        heir = graph.producer(product)
        heir.name = node.name
    sweep(graph, lineage, heir, [node, first, old])
