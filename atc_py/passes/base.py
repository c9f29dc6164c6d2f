"""What a pass is, what it may look at, and what it reports.

    def merge_twins(graph: Graph, ctx: PassContext) -> int:      # how many changes were made
        ...
        ctx.decline(node, "twins", "the attributes differ")     # why a node was left alone

    TWINS = Pass("merge_twins", merge_twins, level=1, doc="equal nodes become one")

A pass rewrites one graph in place; the pipeline calls it for the graph and for each graph inside it, and repeats the
list until nothing changes. A pass therefore has to be idempotent: on its own result it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from atc_py.errors import Problem
from atc_py.fusion.rule import Rule
from atc_py.ir.dims import Size
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.symbols import rename_symbols
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.passes.mixlist import NO_LISTS, PrecisionLists
from atc_py.target import Target

FOLD_LIMIT = 16 << 20
"""Bytes that folding one node may add to a model's constants, net of what it frees."""


@dataclass(frozen=True)
class OptimizeOptions:
    """What `optimize` may be told.

    `level` is 0 to 3 (O0 does only what is needed to run), `disabled` names passes that are left out, `fold_limit` is
    how many bytes one rewrite may add to the constants, net of what it frees. Under `debug` the graph is validated
    after each pass.
    """

    level: int = 2
    disabled: frozenset[str] = frozenset()
    fold_limit: int = FOLD_LIMIT
    debug: bool = False
    rules: tuple[Rule, ...] = ()
    """Fusion rules of the user, whose names may be disabled too."""


@dataclass(frozen=True)
class LowerOptions:
    """What `lower` may be told; see `OptimizeOptions`.

    `precision_mode` "origin" lowers no dtype unasked; `precision_lists` say what the mode does not touch.
    """

    level: int = 2
    disabled: frozenset[str] = frozenset()
    debug: bool = False
    precision_mode: str = "origin"
    precision_lists: PrecisionLists = NO_LISTS
    rules: tuple[Rule, ...] = ()
    """Fusion rules of the user, beside those of installed distributions."""
    input_hint: Mapping[str, int] = field(default_factory=dict)
    """The sizes that symbols count with where costs are weighed."""


@dataclass(frozen=True)
class Decline:
    """A rewrite that was considered and not made: the node's name, the rule, and the reason with its numbers."""

    node: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What one run of a pass did: how many changes, and what it decided against, at which node."""

    changed: int = 0
    declined: tuple[tuple[Node, Decline], ...] = ()


Observer = Callable[[str, Graph], None]
"""Shown the whole graph after each pass that changed something, under the name `stage/pass`; it must not change it."""


@dataclass
class PassContext:
    """What passes share: the options, the outermost graph, and for lowering the target."""

    options: OptimizeOptions | LowerOptions
    root: Graph
    target: Target | None = None
    observe: Observer | None = None
    _declined: list[tuple[Node, Decline]] = field(default_factory=list)
    warnings: dict[Problem, None] = field(default_factory=dict)
    """What was noticed on the way (codes W…), each once."""
    nested: bool | None = None
    """Whether there are program graphs inside the outermost one; None: not known since the last change."""

    @property
    def fold_limit(self) -> int:
        """Bytes that one rewrite may add to the constants."""
        return self.options.fold_limit if isinstance(self.options, OptimizeOptions) else FOLD_LIMIT

    @property
    def input_hint(self) -> Mapping[str, int]:
        """The sizes that symbols count with; others count as usual (`target.cost.counted_sizes`)."""
        return self.options.input_hint if isinstance(self.options, LowerOptions) else {}

    def op(self, node: Node) -> Op:
        """The declaration of the node's operator."""
        return lookup(node.op, node.attrs)

    def decline(self, node: Node, rule: str, reason: str) -> None:
        """Remember why `rule` left `node` alone."""
        self._declined.append((node, Decline(node.name or f"{node.op}#{node.id}", rule, reason)))

    def warn(self, problems: Iterable[Problem]) -> None:
        """Note what the user should know of."""
        self.warnings.update(dict.fromkeys(problems))

    def take_declined(self) -> tuple[tuple[Node, Decline], ...]:
        """What was declined since the last call."""
        taken, self._declined = tuple(self._declined), []
        return taken

    def bind_symbols(self, env: Mapping[str, Size]) -> None:
        """Symbols whose size has become known are replaced everywhere and forgotten."""
        rename_symbols(self.root, env)
        for name in env:
            self.root.symbols.pop(name, None)


PassFn = Callable[[Graph, PassContext], int]
"""Rewrites one graph, not those inside it; returns how many changes it made."""


@dataclass(frozen=True)
class Pass:
    """One entry of a pipeline: `level` is the lowest optimization level at which it runs."""

    name: str
    fn: PassFn
    level: int
    doc: str

    def run(self, ctx: PassContext) -> Outcome:
        """Run on the outermost graph and all program graphs inside it."""
        changed = self.fn(ctx.root, ctx)
        if changed or ctx.nested is None:
            ctx.nested = has_inner(ctx.root)
        if ctx.nested:
            inner = program_graphs(ctx.root)
            next(inner)
            found = sum(self.fn(graph, ctx) for graph in inner)
            changed, ctx.nested = changed + found, None if found else True
        return Outcome(changed, ctx.take_declined())


def program_graphs(root: Graph) -> Iterator[Graph]:
    """The graph and all graphs inside it, outer ones first; a fused task's body is no program of its own."""
    stack = [root]
    while stack:
        graph = stack.pop()
        yield graph
        if has_inner(graph):
            inner = [s for n in graph.nodes.values() if n.subgraphs and n.op != "Fused" for s in n.subgraphs.values()]
            stack.extend(reversed(inner))


def has_inner(graph: Graph) -> bool:
    """Whether there are program graphs inside."""
    nodes = graph.nodes.values()
    return any(map(_subgraphs, nodes)) and any(n.subgraphs and n.op != "Fused" for n in nodes)


def work_nodes(graph: Graph) -> int:
    """Nodes that stand for work, those of subgraphs included (a fused task is one)."""
    found = 0
    for inner in program_graphs(graph):
        ops = list(map(_op, inner.nodes.values()))
        found += len(ops) - sum(map(ops.count, STRUCTURAL))
    return found


_op, _subgraphs = attrgetter("op"), attrgetter("subgraphs")
