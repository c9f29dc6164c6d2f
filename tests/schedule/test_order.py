"""The order: never a higher peak than the canonical one's, near the best of all orders, deterministic, by priority."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from atc_py import Options, compile_model
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.schedule import ScheduleOptions, schedule
from atc_py.schedule.frames import lay_out
from atc_py.schedule.jobs import sizes_of
from atc_py.schedule.order import low_order
from tests.making import FLOAT, model, node

SIZES = sizes_of({}, {})


def random_graph(rng: random.Random, count: int) -> Graph:
    """Forks and joins of tensors of 1 to 8 KiB; what they are made by cannot work in place."""
    graph = Graph("g")
    values = [graph.add_input("x", Tensor(DType.FLOAT32, (256,)))]
    for _ in range(count):
        reads = rng.sample(values, k=min(len(values), rng.choice([1, 1, 2, 2, 3])))
        type_ = Tensor(DType.FLOAT32, (256 * rng.choice([1, 2, 4, 8]),))
        values += graph.add("Concat", reads, [type_], {"axis": 0}).outputs
    used = {v for n in graph.nodes.values() for v in n.inputs}
    ends = [v for v in values if v not in used]
    graph.set_outputs(ends, [f"y{k}" for k in range(len(ends))])
    return graph


def peak(graph: Graph, tasks: list[Node]) -> int:
    """The most bytes live at once: values from the task that makes them to the last one that reads them."""
    position = {n.id: k for k, n in enumerate(tasks)}
    spans = []
    for k, task in enumerate(tasks):
        for value in task.outputs:
            if value not in graph.outputs:
                last = max((position[u] for u, _ in graph.values[value].uses if u in position), default=k)
                spans.append((k, last, graph.tensor(value).nbytes))
    return max((sum(int(str(b)) for a, z, b in spans if a <= k <= z) for k in range(len(tasks))), default=0)


def all_orders(graph: Graph, tasks: list[Node]) -> Iterator[list[Node]]:
    """Every valid order."""
    made = {v for n in tasks for v in n.outputs}

    def grow(done: list[Node], there: set[int]) -> Iterator[list[Node]]:
        if len(done) == len(tasks):
            yield done
        for n in tasks:
            if n not in done and all(v in there or v not in made for v in n.inputs):
                yield from grow([*done, n], there | set(n.outputs))

    yield from grow([], set())


def ordered(graph: Graph) -> tuple[list[Node], list[Node]]:
    """The tasks in the canonical order, and in the one that is found."""
    frame = lay_out(graph, joining=False)
    found = low_order(frame, SIZES)
    assert sorted(n.id for n in found) == sorted(n.id for n in frame.nodes)
    seen: set[int] = set()
    for n in found:
        assert all(v in seen for v in n.inputs), "producers come first"
        seen |= set(n.outputs)
    return [n for n in frame.nodes if n.op == "Concat"], [n for n in found if n.op == "Concat"]


def test_the_peak_is_near_the_best_of_all_orders() -> None:
    rng = random.Random(0)
    found, best, canonical = [], [], []
    for _ in range(60):
        graph = random_graph(rng, 7)
        before, after = ordered(graph)
        found.append(peak(graph, after))
        canonical.append(peak(graph, before))
        best.append(min(peak(graph, order) for order in all_orders(graph, before)))
    assert all(f <= c for f, c in zip(found, canonical, strict=True))
    assert any(f < c for f, c in zip(found, canonical, strict=True))
    exact = sum(f == b for f, b in zip(found, best, strict=True))
    assert exact >= 57, exact
    assert sum(found) <= 1.01 * sum(best)


def test_larger_graphs_are_never_worse_than_canonical() -> None:
    rng = random.Random(1)
    for count in (20, 60, 150):
        for _ in range(5):
            graph = random_graph(rng, count)
            before, after = ordered(graph)
            assert peak(graph, after) <= peak(graph, before)
            assert [n.id for n in ordered(graph)[1]] == [n.id for n in after], "the same graph, the same order"


def test_a_chain_is_left_alone() -> None:
    graph = Graph("g")
    value = graph.add_input("x", Tensor(DType.FLOAT32, (8,)))
    for _ in range(50):
        [value] = graph.add("Concat", [value], [Tensor(DType.FLOAT32, (8,))], {"axis": 0}).outputs
    graph.set_outputs([value], ["y"])
    frame = lay_out(graph, joining=False)
    assert low_order(frame, SIZES) is frame.nodes


def test_the_arena_is_smaller() -> None:
    """A branch whose result is small comes first, though the canonical order has the other one first."""
    nodes = [
        node("Tile", ["x", "rep"], ["big"]),
        node("Tile", ["x", "rep"], ["wide"]),
        node("Exp", ["wide"], ["kept"]),
        node("ReduceSum", ["big", "axes"], ["small"]),
        node("Mul", ["kept", "small"], ["m"]),
        node("ReduceMean", ["m", "axes"], ["y"]),
    ]
    constants = {"rep": np.array([1, 64]), "axes": np.array([1])}
    proto = model(nodes, {"x": (FLOAT, [64, 4])}, ["y"], constants)
    plan = compile_model(proto, Options(opt_level=0, single_stream=True)).plan
    kernels = [t.kernel for t in plan.tasks()]
    assert kernels.index("ReduceSum") < kernels.index("Exp")
    assert plan.arena == 64 * 256 * 4 + 512, "`big` has gone before `wide` comes"


def test_priority_orders_tasks_that_are_ready() -> None:
    graph = Graph("g")
    x = graph.add_input("x", Tensor(DType.FLOAT32, (8,)))
    made = [graph.add("Exp", [x], [Tensor(DType.FLOAT32, (8,))], name=f"e{k}") for k in range(4)]
    ends = [graph.add("Neg", n.outputs, [Tensor(DType.FLOAT32, (8,))], name=f"n{k}") for k, n in enumerate(made)]
    graph.set_outputs([n.outputs[0] for n in ends], [f"y{k}" for k in range(4)])
    for n, priority in zip(made, (0, 3, -1, 3), strict=True):
        n.priority = priority
    names = [t.name for t in schedule(graph, ScheduleOptions()).tasks()]
    assert [n for n in names if n[0] == "e"] == ["e1", "e3", "e0", "e2"]
    assert names[-1] == "n2" and names.index("e0") < names.index("e2")
