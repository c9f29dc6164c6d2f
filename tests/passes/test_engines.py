"""Which engine runs what and why: by type, by size, by the cost of crossing; and how much of a model AI Core does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.graph import STRUCTURAL, Graph, Range
from atc_py.ir.types import DType
from atc_py.passes import LowerOptions
from atc_py.passes.base import PassContext
from atc_py.passes.cut import Network
from atc_py.passes.engines import assign_engines
from atc_py.target import Target, load
from models import catalog
from tests.passes.engine_shares import survey
from tests.passes.interp import Builder

TARGET = load("Ascend310P3")


def slow_copies(launch: float, aicpu: float, host: float = 5.0) -> Target:
    """A target whose copies cost `launch` us at least, and whose AI CPU and host tasks cost so many."""
    rates = replace(TARGET.rates, task_us=launch, aicpu_task_us=aicpu, host_task_us=host)
    return replace(TARGET, rates=rates)


def engines(graph: Graph, target: Target = TARGET) -> dict[str, str]:
    """The engine of each node by its name; assigning again changes nothing."""
    ctx = PassContext(LowerOptions(), graph, target)
    assign_engines(graph, ctx)
    assert assign_engines(graph, ctx) == 0
    return {n.name: n.engine for n in graph.nodes.values() if n.op not in STRUCTURAL}


def between(b: Builder, links: int, size: int = 4) -> Graph:
    """MatMul, which only AI Core runs, then Unique, some small operators, NonZero: both ends are AI CPU's."""
    x = b.input("x", (size, size))
    v = b.ops("Unique", b.op("MatMul", x, x), outputs=1)[0]
    for _ in range(links):
        v = b.op("Neg", v)
    return b.done(b.op("NonZero", v))


@pytest.mark.parametrize("links", [1, 2, 5])
def test_small_operators_stay_with_their_neighbours_where_copies_cost_more(links: int) -> None:
    cheap, dear = slow_copies(20.0, 25.0), slow_copies(20.0, 60.0)
    found = engines(between(Builder(x=Range(1)), links), cheap)
    inner = [found[f"n{i}"] for i in range(2, 2 + links)]
    # One launch more than AI Core's costs 11 us a node with the margin; two copies cost 40 us.
    assert inner == ["aicpu" if links < 4 else "aicore"] * links and found["n0"] == "aicore"
    assert set(list(engines(between(Builder(), links), dear).values())[2:-1]) == {"aicore"}


def test_a_move_says_what_it_costs() -> None:
    graph = between(Builder(), 1)
    engines(graph, slow_copies(20.0, 25.0))
    notes = {n.name: n.notes for n in graph.nodes.values()}
    assert notes["n2"][0].startswith("engines: aicpu: it stays with its neighbours, where it takes 11.")
    assert "its copies would take up to 40." in notes["n2"][0]
    assert notes["n1"] == ("engines: aicpu: Unique is declared for AI CPU",) and not notes["n0"]


def test_an_operator_with_one_neighbour_stays_on_ai_core() -> None:
    b = Builder()
    v = b.op("Relu", b.op("Neg", b.op("Cast", b.op("NonZero", b.input("x", (4, 4))), to=DType.FLOAT32)))
    v = b.op("MatMul", v, b.input("y", (16, 4)))
    assert list(engines(b.done(v), slow_copies(20.0, 25.0)).values()) == ["aicpu", *["aicore"] * 4]


def test_a_copy_that_is_due_anyway_holds_nothing() -> None:
    b = Builder()
    v = b.op("Relu", b.input("x", (4, 4)))
    b.op("NonZero", v)
    found = b.op("NonZero", b.op("Neg", v))
    graph = b.done(b.op("NonZero", v), found)
    # Neg on AI CPU: v is copied there in any case, and Neg's own result need not be.
    assert engines(graph, slow_copies(20.0, 25.0))["n2"] == "aicpu"


def test_floats_between_host_operators_stay_on_the_host() -> None:
    b = Builder(N=Range(1))
    size = b.op("Shape", b.op("NonZero", b.input("x", (4, 4))))
    half = b.op("Floor", b.op("Mul", b.op("Cast", size, to=DType.FLOAT32), b.const(0.5, np.float32)))
    back = b.op("Cast", half, to=DType.INT64)
    graph = b.done(b.op("StringConcat", b.input("s", (2,), DType.STRING), b.input("t", (2,), DType.STRING)),
                   b.op("Expand", b.input("y", (1, 1)), back))  # fmt: skip
    found = engines(graph)
    assert [found[f"n{i}"] for i in range(1, 6)] == ["host", "aicore", "aicore", "aicore", "aicore"]
    b = Builder()
    size = b.op("Shape", b.op("NonZero", b.input("x", (4, 4))))
    real = b.op("Mul", b.op("Cast", size, to=DType.FLOAT32), b.const(0.5, np.float32))
    sequence = b.op("SequenceConstruct", real)  # the host keeps sequences
    found = engines(b.done(sequence), slow_copies(5.0, 60.0))
    assert found == {"n0": "aicpu", "n1": "host", "n2": "host", "n3": "host", "n4": "host"}


def brute(edges: list[tuple[int, int, int]], places: int) -> tuple[int, frozenset[int]]:
    """The cheapest cut between places 0 and 1, and of all such the fewest places beside 1."""
    best: tuple[int, int, frozenset[int]] | None = None
    for count in range(places - 1):
        for more in combinations(range(2, places), count):
            sink = {1, *more}
            cost = sum(c for a, b, c in edges if a not in sink and b in sink)
            key = (cost, len(sink), frozenset(sink))
            best = key if best is None or key[:2] < best[:2] else best
    assert best is not None
    return best[0], best[2]


@seed(4)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=14))
def test_cuts_against_all_subsets(edges: list[tuple[int, int, int]]) -> None:
    edges = [e for e in edges if e[0] != e[1]]
    network = Network()
    for a, b, capacity in edges:
        network.edge(a, b, capacity)
    cost, sink = brute(edges, 6)
    found = network.sink_side(0, 1)
    assert sum(c for a, b, c in edges if a not in found and b in found) == cost
    assert found == sink


STEPS = ("neg", "unique", "nonzero", "add", "matmul", "double")
# What is made of a value onward, of it and of the newest one.
ONWARD: dict[str, Callable[[Builder, int, int], int]] = {
    "neg": lambda b, v, _: b.op("Neg", v),
    "add": lambda b, v, last: b.op("Add", v, last) if b.graph.type(v) == b.graph.type(last) else v,
    "matmul": lambda b, v, _: b.op("MatMul", v, v),
    "double": lambda b, v, _: b.op("Cast", b.op("Exp", b.op("Cast", v, to=DType.FLOAT64)), to=DType.FLOAT32),
}
# What becomes an output, and the value stays.
ASIDE: dict[str, Callable[[Builder, int], int]] = {
    "unique": lambda b, v: b.ops("Unique", v, outputs=1)[0],
    "nonzero": lambda b, v: b.op("Abs", b.op("NonZero", v)),
}


def grown(steps: list[tuple[str, int]]) -> Graph:
    b = Builder()
    values = [b.input("x", (4, 4)), b.op("Relu", b.input("y", (4, 4)))]
    outputs: list[int] = []
    for step, pick in steps:
        v = values[pick % len(values)]
        if step in ASIDE:
            outputs.append(ASIDE[step](b, v))
        else:
            v = ONWARD[step](b, v, values[-1])
        values.append(v)
    return b.done(*dict.fromkeys([*outputs, values[-1]]))


@seed(5)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), min_size=1, max_size=12), st.randoms())
def test_the_order_of_nodes_changes_nothing(steps: list[tuple[str, int]], random: Any) -> None:
    graph = grown(steps)
    target = slow_copies(20.0, 25.0)
    shuffled = clone(graph)
    order = shuffled.order()
    ranks = {n.id: random.random() for n in order}
    done: list[Any] = []
    ready = list(order)
    while ready:  # any order that has producers first
        made = {v for n in done for v in n.outputs}
        free = [n for n in ready if all(v < 0 or v in made for v in n.inputs)]
        done.append(min(free, key=lambda n: ranks[n.id]))
        ready.remove(done[-1])
    shuffled.renumber(done)
    assert engines(shuffled, target) == engines(graph, target)


def cases() -> list[Any]:
    found = []
    for name, entry in catalog.load_manifest().items():
        marks = [] if entry.kind == "repo" else [pytest.mark.needs_models]
        found.append(pytest.param(name, marks=[*marks, pytest.mark.slow] if entry.bytes > 2 << 20 else marks))
    return found


@pytest.mark.parametrize("name", cases())
def test_almost_all_of_a_float_model_runs_on_ai_core(name: str, corpus_model: Callable[[str], Any]) -> None:
    found = survey(name, corpus_model(name).path)
    if all("StringNormalizer" in told for told in found.elsewhere()) and found.elsewhere():
        pytest.skip("the model is of strings, which no device takes")
    assert found.share("aicore") >= 0.99, found.elsewhere()
