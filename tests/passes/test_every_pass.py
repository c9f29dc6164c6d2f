"""Every pass, each time it changes a graph: what the graph computed before, it computes after.

    import ─ dead_code ─▶ g1 ─ fold_constants ─▶ g2 ─ … ─ fusion ─▶ g24 ─ layouts ─▶ g25
       └────── same ───────┘└────── same ────────┘             └─────── same ──────┘

The graphs are the models of the corpus and generated ones (`generated.py`). Outputs are compared with the tolerances of
the main path (`runtime/compare.py`); integers and bools are equal. Both pipelines end at rest: run again, they change
nothing, not one byte of the text form.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py import frontend
from atc_py.errors import AtcError
from atc_py.ir.clone import clone
from atc_py.ir.graph import Graph
from atc_py.ir.text import print_graph
from atc_py.ir.validate import validate
from atc_py.passes import LOWER, OPTIMIZE, LowerOptions, OptimizeOptions, lower, optimize, pipeline
from atc_py.passes.base import Pass, PassContext
from atc_py.runtime.compare import compare_values
from atc_py.target import Target, load
from models import catalog
from tests.passes.generated import graph_of, graphs
from tests.passes.generating import SIZES, STEPS, Step
from tests.passes.interp import assert_same, interpret, random_inputs, work

P3 = load("Ascend310P3")
TINY = replace(P3, memory=6 << 10)
"""A device on which the larger operators have to be cut."""
FEW = replace(P3, ub=8 << 10, l1=64 << 10, l0c=16 << 10, rates=replace(P3.rates, task_us=0.0))
"""One whose buffers hold no whole planes of larger maps, and on which a task more costs nothing."""
TARGETS = ("Generic", "Ascend310P3", "Ascend910B1")
MODES = ("origin", "fp16", "mixed_float16")
OPTIONAL = sorted(p.name for p in (*OPTIMIZE, *LOWER) if p.level > 0)

MOVES = frozenset({"TensorMove", "TransData", "Cast"})
"""What lowering may add."""

Same = Callable[[Sequence[Any], Sequence[Any]], None]


def cases() -> list[Any]:
    """All models; those that are not of the repository are slow, for some are large."""
    other = [pytest.mark.needs_models, pytest.mark.slow]
    return [
        pytest.param(name, marks=[] if entry.kind == "repo" else other)
        for name, entry in catalog.load_manifest().items()
    ]


class Judge:
    """Shown the graph after each pass that changes it: runs it, and compares with what it gave before."""

    def __init__(self, graph: Graph, inputs: Sequence[Any], same: Same, env: Mapping[str, int] | None = None) -> None:
        self.inputs, self.same, self.env = inputs, same, env
        self.first = self.last = interpret(graph, inputs, env)
        self.seen: Counter[str] = Counter()

    def __call__(self, stage: str, graph: Graph) -> None:
        self.seen[stage] += 1
        made = interpret(graph, self.inputs, self.env)
        try:
            self.same(made, self.last)
        except AssertionError as e:
            raise AssertionError(f"{stage}: {e}") from e
        self.last = made


def judged(graph: Graph, judge: Judge, target: Target = P3, **options: Any) -> None:
    """Optimize and lower the graph, in place, under the judge's eyes."""
    for report in (
        optimize(graph, OptimizeOptions(debug=True, **options), judge),
        lower(graph, target, LowerOptions(debug=True, **options), judge),
    ):
        assert report.settled
    validate(graph, "lower")
    judge.same(judge.last, judge.first)


def at_rest(graph: Graph, target: Target, **options: Any) -> None:
    """Optimize and lower the graph, in place: each, run on its own result, changes nothing."""
    mode = {k: options.pop(k) for k in ("precision_mode",) if k in options}
    runs: tuple[Callable[[Graph], Any], ...] = (
        lambda g: optimize(g, OptimizeOptions(**options)),
        lambda g: lower(g, target, LowerOptions(**options, **mode)),
    )
    for run in runs:
        run(graph)
        again = clone(graph)
        report = run(again)
        assert {r.name: r.changed for r in report.rows if r.changed} == {}
        assert print_graph(again) == print_graph(graph)


@contextmanager
def too_large() -> Iterator[None]:
    """An operator that no cut makes small enough is refused: then there is nothing to compare."""
    try:
        yield
    except AtcError as e:
        if any(p.code != "E20040" for p in e.problems):
            raise


# -- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases())
def test_models_compute_the_same(name: str, corpus_model: Callable[[str], Any]) -> None:
    model = corpus_model(name)
    graph = frontend.read(model.source)
    feeds = model.inputs()
    inputs = [np.asarray(feeds[graph.values[v].name]) for v in graph.inputs]
    inputs = [a.astype(object) if a.dtype.kind in "US" else a for a in inputs]
    spread = 3 * (catalog.get(name).opt_rel_diff or 0.0)  # how far an optimizer's results may lie apart: requantization
    names = [graph.values[v].name for v in graph.outputs]

    def same(got: Sequence[Any], want: Sequence[Any]) -> None:
        found = compare_values(names, got, want, atol=max(1e-4, spread))
        assert [(d.name, d.reason, d.worst) for d in found if not d.passed] == []

    judge = Judge(graph, inputs, same)
    before = len(work(graph))
    judged(graph, judge)
    assert judge.seen and len([op for op in work(graph) if op not in MOVES]) <= before


@cache
def imported(path: Any) -> Graph:
    return frontend.read(path)


QUICK = (("Generic", "origin"), ("Ascend310P3", "fp16"), ("Ascend910B1", "mixed_float16"))
EVERYWHERE = [
    pytest.param(target, mode, marks=[] if (target, mode) in QUICK else [pytest.mark.slow])
    for target in TARGETS
    for mode in MODES
]


@pytest.mark.parametrize(("target", "mode"), EVERYWHERE)
@pytest.mark.parametrize("name", cases())
def test_models_come_to_rest(name: str, target: str, mode: str, corpus_model: Callable[[str], Any]) -> None:
    at_rest(clone(imported(corpus_model(name).path)), load(target), precision_mode=mode)


# -- generated graphs ----------------------------------------------------------------------------------------------


def close(got: Sequence[Any], want: Sequence[Any]) -> None:
    """The float32 tolerances; a value that is nearly 0 everywhere may be off by what a value of size 1 may."""
    assert_same(got, want, 1e-3, 1e-4)


@settings(max_examples=150)
@given(graphs(), st.sampled_from(TARGETS), st.integers(0, 99))
def test_generated_graphs_compute_the_same(graph: Graph, target: str, seed: int) -> None:
    judge = Judge(graph, random_inputs(graph, SIZES, seed), close, SIZES)
    judged(graph, judge, load(target))


@settings(max_examples=80)
@given(graphs(), st.sets(st.sampled_from(OPTIONAL)), st.booleans(), st.integers(0, 3))
def test_any_passes_may_be_left_out(graph: Graph, some: set[str], rest: bool, level: int) -> None:
    off = frozenset(set(OPTIONAL) - some if rest else some)
    judge = Judge(graph, random_inputs(graph, SIZES), close, SIZES)
    judged(graph, judge, disabled=off, level=level)


@settings(max_examples=80)
@given(graphs(), st.sampled_from(TARGETS), st.sampled_from(MODES))
def test_generated_graphs_come_to_rest(graph: Graph, target: str, mode: str) -> None:
    at_rest(graph, load(target), precision_mode=mode)


@settings(max_examples=60)
@given(graphs())
def test_generated_graphs_in_pieces_compute_the_same(graph: Graph) -> None:
    with too_large():
        judged(graph, Judge(graph, random_inputs(graph, SIZES), close, SIZES), TINY)
        assert lower(clone(graph), TINY).changed == 0


@settings(max_examples=60)
@given(graphs())
def test_generated_graphs_on_small_buffers_compute_the_same(graph: Graph) -> None:
    judged(graph, Judge(graph, random_inputs(graph, SIZES), close, SIZES), FEW)
    at_rest(graph, FEW)


def test_a_pass_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Graph, ctx: PassContext) -> int:
        found = [n for n in graph.nodes.values() if n.op == "Sigmoid"]
        for n in found:
            n.op = "HardSigmoid"
        return len(found)

    monkeypatch.setattr(pipeline, "LOWER", (*LOWER, Pass("wrong", wrong, 0, "")))
    graph = graph_of([("unary", 0, 1, 0), ("matmul", 0, 0, 0)], True, 2)
    with pytest.raises(AssertionError, match="lower/wrong"):
        judged(graph, Judge(graph, random_inputs(graph, SIZES), close, SIZES), disabled=frozenset({"fusion"}))


def _any_step(rng: random.Random) -> Step:
    return rng.choice(sorted(STEPS)), rng.randrange(31), rng.randrange(31), rng.randrange(31)


def test_no_pass_and_no_step_is_left_out() -> None:
    """Among graphs of random steps each pass has something to do; each step makes something."""
    seen: set[str] = set()
    for number in range(260, 380):
        rng = random.Random(number)
        steps = [_any_step(rng) for _ in range(8)]
        graph = graph_of(steps, number % 2 == 0, 3)
        optimize(graph, observe=lambda stage, _: seen.add(stage))
        for target in (TINY, P3, FEW):
            with too_large():
                lower(clone(graph), target, observe=lambda stage, _: seen.add(stage))
    wanted = {f"optimize/{p.name}" for p in OPTIMIZE} | {f"lower/{p.name}" for p in LOWER}
    assert wanted - seen == set()
    for name in STEPS:
        made = [len(graph_of([("reduce", 0, 0, 1), (name, 0, n, n)], False, 2).nodes) for n in range(4)]
        assert max(made) > 8, f"{name} makes nothing"
