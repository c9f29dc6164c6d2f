"""How a model's operations divide among the engines, by the costs that operators declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atc_py import frontend
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Infer
from atc_py.ops.build import lookup
from atc_py.passes import LowerOptions, lower, optimize
from atc_py.schedule.graph_jobs import graph_program
from atc_py.schedule.hint import default_hint
from atc_py.schedule.jobs import sizes_of
from atc_py.target import load
from atc_py.target.cost import Work, work_of
from models import catalog
from tests.passes.interp import interpret


@dataclass
class Shares:
    """Operations by (engine, kernel), and how many copies lie between engines."""

    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    copies: int = 0

    @property
    def total(self) -> int:
        """All operations."""
        return self.operations.total()

    def share(self, engine: str) -> float:
        """The part of one engine; everything where there is nothing to do."""
        mine = sum(n for (e, _), n in self.operations.items() if e == engine)
        return mine / self.total if self.total else float(engine == "aicore")

    def elsewhere(self) -> list[str]:
        """Kernels that are not on AI Core, the most work first."""
        return [f"{k} ({e}) {n}" for (e, k), n in self.operations.most_common() if e != "aicore" and n]


def survey_graph(graph: Graph) -> Shares:
    """Count a lowered graph's operations, at the sizes that it is planned for."""
    shares = Shares()
    for job in graph_program(graph, sizes_of(graph.symbols, default_hint(graph, {}))).jobs:
        work = job.work
        shares.operations[job.engine, job.kernel] += (work.macs + work.vector + work.wide) * job.times
    moves = [n for g in graph.walk() for n in g.nodes.values() if n.op == "TensorMove" and n.attrs.get("to")]
    shares.copies = len(moves)
    return shares


def survey_run(graph: Graph, inputs: Sequence[Any]) -> Shares:
    """Count the operations of one run: for graphs with values whose rank nobody knows before."""
    shares = Shares(copies=survey_graph(graph).copies)

    def seen(inner: Graph, node: Node, given: list[Any], made: list[Any]) -> None:
        op = lookup(node.op, node.attrs)
        types, results = tuple(map(_type, given)), [_type(a) for a in made]
        values = tuple(a if isinstance(a, np.ndarray) and a.dtype != object and a.size < 1024 else None for a in given)
        n = Infer(types, op.attributes(node.attrs), len(made), values, bodies=node.subgraphs)
        work = Work() if op.flags.control else work_of(op.work(n, results))
        shares.operations[node.engine, node.op] += work.macs + work.vector + work.wide

    interpret(graph, inputs, seen=seen)
    return shares


def _type(array: Any) -> Tensor | None:
    return Tensor(DType.of(array.dtype), array.shape) if isinstance(array, np.ndarray) else None


def survey(name: str, path: Path) -> Shares:
    """The shares of a model of the catalogue on the default target."""
    graph = frontend.read(path)
    optimize(graph)
    lower(graph, load("Ascend310P3"), LowerOptions(level=0))  # plain nodes: fused ones do the same work
    values = [v for g in graph.walk() for v in g.values.values()]
    if all(not isinstance(v.type, Tensor) or v.type.shape is not None for v in values):
        return survey_graph(graph)
    feeds = catalog.make_inputs(catalog.get(name), path)
    return survey_run(graph, [np.asarray(feeds[graph.values[v].name]) for v in graph.inputs])
