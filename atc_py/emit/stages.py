"""What each pass did to a model's figures, and to one node of it: watchers for `compiler.compile_model`.

    stage              nodes  tensors     bytes  predicted
    import             1,953    1,985   3.8 GiB   41.2 ms
    optimize/norms     1,745    1,777   3.1 GiB   33.0 ms
    ...
    schedule             402      450   1.2 GiB   12.3 ms

Figures are those of the whole graph as the pass left it, each node a task on one stream; a pass that changed nothing
has no row. Prices are of the operators' own dtypes, or where the precision mode will lower them, of the lower one. The
last row is the plan: its tasks on its streams, as the host hands it over, which is the figure of `summary`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atc_py.emit.summary import counts, work_nodes
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import DType
from atc_py.plan.types import Plan, Task
from atc_py.target import Target
from atc_py.target.cost import microseconds_of


@dataclass(frozen=True)
class StageRow:
    """A graph after one stage or pass: bytes are those that its nodes read and write, time is in microseconds."""

    stage: str
    nodes: int
    tensors: int
    moved: int
    predicted_us: float

    def to_json(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return {
            "stage": self.stage,
            "nodes": self.nodes,
            "tensors": self.tensors,
            "bytes_moved": self.moved,
            "predicted_us": round(self.predicted_us, 1),
        }


@dataclass
class Figures:
    """Watches a conversion and measures the graph each time; `hint` has the values of symbols, `dtypes` what counts as
    what (`schedule.costs.priced_as`)."""

    target: Target
    hint: Mapping[str, int] | None = None
    dtypes: Mapping[DType, DType] | None = None
    rows: list[StageRow] = field(default_factory=list)
    _sizes: dict[str, int] | None = None

    def __call__(self, stage: str, graph: Graph, plan: Plan | None = None) -> None:
        """Add a row; stages that end with the graph of their last pass add none, but for the plan."""
        from atc_py.schedule.costs import graph_timeline, plan_handing, plan_timeline
        from atc_py.schedule.hint import graph_hint

        if plan is not None:
            timeline = plan_timeline(plan, self.target)
            predicted = microseconds_of(plan_handing(plan, self.target).cycles, self.target)
        elif stage in ("optimize", "lower") and self.rows:
            return
        else:
            self._sizes = graph_hint(graph, self.hint) if self._sizes is None else self._sizes
            timeline = graph_timeline(graph, self.target, self._sizes, self.dtypes)
            predicted = timeline.microseconds
        moved = sum(t.job.times * sum(b.nbytes for b in (*t.job.reads, *t.job.writes)) for t in timeline.jobs)
        self.rows.append(StageRow(stage, *counts(graph), moved, predicted))


@dataclass
class Operators:
    """Watches which operators there are after each stage: (stage, operator → how often, a fused task by its body)."""

    rows: list[tuple[str, Mapping[str, int]]] = field(default_factory=list)

    def __call__(self, stage: str, graph: Graph, plan: Plan | None = None) -> None:
        """Count after `import`, `optimize` and `lower`."""
        if stage in ("import", "optimize", "lower"):
            self.rows.append((stage, Counter(described(n) for n in work_nodes(graph))))


@dataclass
class Journey:
    """Watches what becomes of one node: `steps` are (stage, what stands for it then), one where that changed."""

    name: str
    steps: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def __call__(self, stage: str, graph: Graph, plan: Plan | None = None) -> None:
        """Look for the nodes that stand for it."""
        found = tuple(described(n) for n in standing_for(graph, self.name))
        if not self.steps or self.steps[-1][1] != found:
            self.steps.append((stage, found))


def standing_for(graph: Graph, name: str) -> list[Node]:
    """The nodes that stand for the ONNX node `name`, or have that name themselves, in order of their ids."""
    return [n for n in work_nodes(graph) if name in n.origin or n.name == name]


def described(node: Node) -> str:
    """A node in a few words: its operator, of a fused task all its operators."""
    return _operators(node.subgraphs["body"]) if node.op == "Fused" else node.op


def described_task(task: Task) -> str:
    """A task in a few words: its kernel, of a fused one all operators of its body."""
    return task.kernel if task.body is None else _operators(task.body)


def _operators(body: Graph) -> str:
    return " + ".join(n.op for n in body.order() if n.op not in STRUCTURAL)
