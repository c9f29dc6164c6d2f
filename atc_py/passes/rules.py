"""Rules: a pattern, and what takes the place of what it finds.

A rule looks at each node of the graph that its pattern's root may be. What lies between the root and the named operands
must have no reader outside the match. A rule that does not rewrite what it found says why, and that is the near miss
which the report tells; a match that it has nothing to say about is passed over for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atc_py.ir.constants import Constant
from atc_py.ir.graph import Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.lineage import Lineage
from atc_py.passes.pattern import Match, Needs, Pattern, made_by
from atc_py.passes.rewriting import become, emit, sweep


class Rewrite:
    """A match, and the ways to put something else in its place."""

    def __init__(self, m: Match, ctx: PassContext, lineage: Lineage) -> None:
        self.m, self.ctx, self.lineage, self.graph = m, ctx, lineage, m.graph

    def emit(self, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None) -> int:
        """A new node that stands for what the root stands for; returns its value. Its type is inferred."""
        return emit(self.graph, op, inputs, attrs, self.m.root)

    def constant(self, constant: Constant) -> int:
        """A new constant that stands for what the root stands for."""
        return self.graph.add_const(constant, "", self.m.root.origin)

    def replace(self, op: str, inputs: Sequence[int], attrs: Mapping[str, Any] | None = None) -> None:
        """The root becomes one node of `op`; what of the match is no longer read goes."""
        become(self.graph, self.m.root, op, inputs, attrs)
        sweep(self.graph, self.lineage, self.m.root, self.m.inner(), self.m.constants)


Rewriter = Callable[[Rewrite], "str | None"]
"""Rewrites a match; or leaves it alone and returns the reason ("" when it is nobody's business)."""


@dataclass(frozen=True)
class Rule:
    """A law: the pattern, and what takes its place. `shared`: inner results may be read outside of the match."""

    name: str
    pattern: Pattern
    rewrite: Rewriter
    shared: bool = False

    @cached_property
    def needs(self) -> Needs:
        """Sets of operators, of each of which one has to be in a graph for which the rule is of use."""
        return self.pattern.needs()


def index_rules(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    """Rules by the operator of their root, in their order."""
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in sorted(rule.pattern.makers() or ()):
            table.setdefault(op, []).append(rule)
    return table


def apply_rules(graph: Graph, ctx: PassContext, name: str, table: Mapping[str, Sequence[Rule]]) -> int:
    """Try the rules on each node, the first one that rewrites it wins; returns how many rewrites were made."""
    changed = 0
    choice = _Choice(table, {n.op for n in graph.nodes.values()})
    if not choice.useful:
        return 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op in table]:
            if node.id not in graph.nodes:
                continue
            last = next(reversed(graph.nodes))
            for rule in choice.rules(node.op, made_by(graph, node)):
                reason = _apply(graph, ctx, lineage, rule, node)
                if reason is None:
                    changed += 1
                    choice.made({node.op, *_ops_since(graph, last)})
                    break
                if reason:
                    ctx.decline(node, name, f"no {rule.name}: {reason}")
    return changed


class _Choice:
    """The rules that are worth trying in a graph with the operators `present`."""

    def __init__(self, table: Mapping[str, Sequence[Rule]], present: set[str]) -> None:
        self.table, self.present = table, present
        self.useful: dict[str, list[Rule]] = {}
        self._kinds: dict[tuple[str, tuple[str, ...]], list[Rule]] = {}
        self.made(set())

    def made(self, ops: set[str]) -> None:
        """Nodes of these operators have been made."""
        if ops <= self.present and self.useful:
            return
        self.present |= ops
        self._kinds.clear()
        self.useful.clear()
        for op in self.present & self.table.keys():
            rules = [r for r in self.table[op] if all(not one.isdisjoint(self.present) for one in r.needs)]
            if rules:
                self.useful[op] = rules

    def rules(self, op: str, makers: tuple[str, ...]) -> list[Rule]:
        """Those for a node of `op` whose inputs are made by `makers`."""
        kind = (op, makers)
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = [r for r in self.useful.get(op, ()) if r.pattern.fits(op, makers)]
        return found


def _ops_since(graph: Graph, last: int) -> Iterator[str]:
    """The operators of the nodes that were made after node `last`."""
    for number in reversed(graph.nodes):
        if number <= last:
            return
        yield graph.nodes[number].op


def _apply(graph: Graph, ctx: PassContext, lineage: Lineage, rule: Rule, node: Node) -> str | None:
    """Rewrite the first match that the rule takes; else the first reason why it took none, "" without any."""
    m, reasons = Match(graph), [""]

    def take() -> bool:
        last = next(reversed(graph.nodes))
        reason = (None if rule.shared else m.outside()) or rule.rewrite(Rewrite(m, ctx, lineage))
        if reason is None:
            return True
        while (made := next(reversed(graph.nodes))) != last:
            graph.remove(graph.nodes[made])
        reasons.append(reason)
        return False

    taken = rule.pattern.match(m, node.outputs[0], take)
    return None if taken else next((r for r in reasons if r), "")
