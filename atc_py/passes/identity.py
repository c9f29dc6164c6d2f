"""Nodes that change nothing go.

    x: [2, 3] ─ Identity ─ Dropout (inference) ─ Transpose(0, 1) ─ Reshape(2, 3) ─ y          →          x ─ y

Law: op(x, …) = x for every x of this type. `_RULES` has a condition for each operator under which that is so; two
values of one type have equal dims, symbolic ones included, so "the type does not change" says that a Reshape, an Expand
or a Tile does nothing. A Slice may still reverse and a Pad may still shift, which is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from atc_py.ir.constants import Splat
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, given, ints, known_at_start, same_types, uniform
from atc_py.passes.lineage import Lineage

Rule = Callable[[Graph, Node], bool]
"""Whether a node whose output has the type of input 0 changes nothing."""


def _always(graph: Graph, node: Node) -> bool:
    return True


def _known_rank(graph: Graph, node: Node) -> bool:
    return dims_of(graph, node.inputs[0]) is not None


def _alone(graph: Graph, node: Node) -> bool:
    return len(node.inputs) == 1


def _straight(graph: Graph, node: Node) -> bool:
    perm, dims = node.attrs.get("perm"), dims_of(graph, node.inputs[0])
    if perm is None:
        return dims is not None and len(dims) < 2
    return list(perm) == sorted(perm)


def _forward(graph: Graph, node: Node) -> bool:
    """Forward steps over as many elements as there are take each of them once."""
    steps = ints(graph, node, 4)
    return _known_rank(graph, node) and (not given(node, 4) or (steps is not None and min(steps, default=1) > 0))


def _no_pads(graph: Graph, node: Node) -> bool:
    pads = ints(graph, node, 1)
    return pads is not None and not any(pads)


def _one_part(graph: Graph, node: Node) -> bool:
    return len(node.outputs) == 1 and _known_rank(graph, node)


_RULES: dict[str, Rule] = {
    "Identity": _always,
    "Cast": _always,
    "CastLike": _always,
    "BitCast": _always,
    "Transpose": _straight,
    "Reshape": _known_rank,
    "Flatten": _known_rank,
    "Squeeze": _known_rank,
    "Unsqueeze": _known_rank,
    "Expand": _known_rank,
    "Tile": _known_rank,
    "Slice": _forward,
    "Pad": _no_pads,
    "Split": _one_part,
    "Concat": _alone,
    "Sum": _alone,
    "Max": _alone,
    "Min": _alone,
    "Mean": _alone,
    # Where the shape stays, every reduced axis has one element. (ReduceL1 and the like compute something all the same.)
    "ReduceSum": _known_rank,
    "ReduceMean": _known_rank,
    "ReduceMax": _known_rank,
    "ReduceMin": _known_rank,
    "ReduceProd": _known_rank,
}


def remove_identities(graph: Graph, ctx: PassContext) -> int:
    """Bypass every node that changes nothing; see the module's page."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in list(graph.nodes.values()):
            rule = _RULES.get(node.op)
            if rule is not None:
                if same_types(graph, node.outputs[0], node.inputs[0]) and rule(graph, node):
                    lineage.bypass(node, node.inputs[0])
                    changed += 1
            elif node.op == "Dropout":
                changed += _remove_dropout(graph, ctx, lineage, node)
    return changed


def _remove_dropout(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node) -> int:
    """Law: outside of training, Dropout(x) = x and its mask is all true."""
    training = given(node, 2) and uniform(graph.const(node.inputs[2])) is not False
    nothing = given(node, 1) and uniform(graph.const(node.inputs[1])) == 0
    if training and not nothing:
        ctx.decline(node, "identity", "Dropout drops: its training_mode is not a constant false")
        return 0
    if len(node.outputs) > 1 and graph.values[node.outputs[1]].uses:
        type_ = graph.type(node.outputs[1])
        dims = type_.shape if isinstance(type_, Tensor) else None
        if dims is None or not known_at_start(graph, dims):
            ctx.decline(node, "identity", "the mask of Dropout is read, and its shape is known only at run time")
            return 0
        mask = graph.add_const(Splat(DType.BOOL, dims, DType.BOOL.numpy.type(True)), "", node.origin)
        graph.replace_uses(node.outputs[1], mask)
    lineage.bypass(node, node.inputs[0])
    return 1
