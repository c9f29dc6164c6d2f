"""An If whose condition is a constant becomes the branch that is taken.

    c = true   y = If(c; a){ then(a') = Exp(a') }{ else(a') = Log(a') }          →          y = Exp(a)

Captured values take the place of the branch's inputs. The If's results may have been typed for both branches; sizes
that it had to leave open take what the branch says.
"""

from __future__ import annotations

from atc_py.ir.dims import Size
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.passes.base import PassContext
from atc_py.passes.known import bare_symbol, uniform


def inline_ifs(graph: Graph, ctx: PassContext) -> int:
    """Write out the branches of decided Ifs, those inside of them too; returns how many."""
    changed = 0
    if not any(n.op == "If" for n in graph.nodes.values()):
        return 0
    waiting = [n for n in graph.order() if n.op == "If"]
    while waiting:
        node = waiting.pop()
        condition = uniform(graph.const(node.inputs[0]))
        if condition is None:
            continue
        branch = node.subgraphs["then_branch" if condition else "else_branch"]
        waiting += _inline(graph, ctx, node, branch)
        changed += 1
    return changed


def _inline(graph: Graph, ctx: PassContext, node: Node, branch: Graph) -> list[Node]:
    """Copy the branch into the graph in place of the node; returns the Ifs among the copies."""
    outer = dict(zip(branch.inputs, node.inputs[len(node.inputs) - node.captures :], strict=True))
    outer[ABSENT] = ABSENT
    ifs: list[Node] = []
    for inner in branch.order():
        if inner.op in ("Data", "NetOutput"):
            continue
        copy = graph.add(
            inner.op,
            [outer[v] for v in inner.inputs],
            [branch.type(v) for v in inner.outputs],
            inner.attrs,
            name=inner.name,
            origin=inner.origin,
            names=[branch.values[v].name for v in inner.outputs],
            subgraphs=inner.subgraphs,
            captures=inner.captures,
            const=inner.const,
        )
        outer.update(zip(inner.outputs, copy.outputs, strict=True))
        if copy.op == "If":
            ifs.append(copy)
    learnt: dict[str, Size] = {}
    for value, inner_value in zip(node.outputs, branch.outputs, strict=True):
        new = outer[inner_value]
        _learn(graph, value, new, learnt)
        producer = graph.producer(new)
        if producer.op != "Data":
            producer.origin = tuple(dict.fromkeys((*producer.origin, *node.origin)))
        if not graph.values[new].name:
            graph.values[new].name = graph.values[value].name
        graph.replace_uses(value, new)
    graph.remove(node)
    if learnt:
        ctx.bind_symbols(learnt)
    return ifs


def _learn(graph: Graph, old: int, new: int, learnt: dict[str, Size]) -> None:
    """Sizes that the If left open and the branch knows."""
    before, after = graph.type(old), graph.type(new)
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)) or before.shape is None or after.shape is None:
        return
    for want, have in zip(before.shape, after.shape):
        name = bare_symbol(want)
        if name is not None and want != have and graph.symbols[name].runtime:
            learnt[name] = have
