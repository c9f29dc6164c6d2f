"""Where a plan uses several streams, the verifier misses each event that is taken away, and says which order is gone.

    task 3 (stream 1) records 0    task 5 (stream 0) waits 0        without event 0: E31017 names tasks 3 and 5, or what
                                                                    comes after the one and before the other

That events are the transitive reduction of what must be in order is checked in `test_events.py`, by brute force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from atc_py.compiler import Options, compile_graph, compile_model, prove
from atc_py.errors import AtcError
from atc_py.graph import Builder, Ref
from atc_py.ir.graph import Graph
from atc_py.plan.types import Plan, Static, Task
from tests.conftest import CorpusModel
from tests.plan.mutants import edges


def _conv(b: Builder, x: Ref, inside: int, outside: int, side: int) -> Ref:
    weight = b.splat(0.1, "float32", (outside, inside, side, side))
    y: Ref = b.op("Relu", b.op("Conv", x, weight, pads=(side // 2,) * 4))
    return y


def inception(blocks: int = 2) -> Graph:
    """Blocks of four branches that are joined along the channels, small enough to be mostly launches."""
    b = Builder("inception")
    x, channels = b.data("x", "float32", (1, 16, 8, 8)), 16
    for _ in range(blocks):
        pooled = b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1,) * 4)
        branches = [
            _conv(b, x, channels, 8, 1),
            _conv(b, _conv(b, x, channels, 8, 1), 8, 8, 3),
            _conv(b, _conv(b, x, channels, 4, 1), 4, 4, 5),
            _conv(b, pooled, channels, 4, 1),
        ]
        x, channels = b.op("Concat", *branches, axis=1), 24
    return b.build(y=x)


def two_towers() -> Graph:
    """Two towers over inputs of their own that exchange a value half-way."""
    b = Builder("towers")
    values = [b.data(name, "float32", (16, 16)) for name in ("left", "right")]
    weight = b.const(np.eye(16, dtype=np.float32))
    for k in range(6):
        if k == 3:
            values = [b.op("Add", *values), values[1]]
        values = [b.op("Softmax", b.op("MatMul", v, weight), name=f"{side}{k}") for side, v in zip("lr", values)]
    return b.build(y=b.op("Mul", *values))


def without(plan: Plan) -> Iterator[tuple[Task, Task, Plan]]:
    """For each event: who records it, who waits for it, and the plan without it."""
    for number, region in enumerate(plan.regions):
        for event, early, late in edges(list(region.tasks)) if isinstance(region, Static) else []:
            assert isinstance(region, Static)
            tasks = list(region.tasks)
            one, other = tasks[early], tasks[late]
            tasks[early] = replace(one, records=tuple(e for e in one.records if e != event))
            tasks[late] = replace(other, waits=tuple(e for e in other.waits if e != event))
            regions = (*plan.regions[:number], Static(tuple(tasks)), *plan.regions[number + 1 :])
            yield one, other, replace(plan, regions=regions)


def check(plan: Plan) -> int:
    """Each event is missed, with tasks of both streams named; returns how many there are."""
    prove(plan)
    found = 0
    for one, other, less in without(plan):
        with pytest.raises(AtcError) as caught:
            prove(less)
        said = [p for p in caught.value.problems if p.code == "E31017"]
        assert said, "what an event keeps in order is a race without it"
        assert any(f"stream {one.stream}" in p.cause and f"(stream {other.stream})" in p.place for p in said)
        found += 1
    return found


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("graph", "least"), [(inception, 6), (two_towers, 2)])
def test_the_verifier_misses_each_event_of_built_graphs(graph: Callable[[], Graph], least: int, level: int) -> None:
    plan = compile_graph(graph(), Options(opt_level=level)).plan
    assert plan.streams >= 2 and check(plan) >= least


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("name", ["yolo_raw", "centernet_topk"])
def test_the_verifier_misses_each_event_of_models(
    name: str, level: int, corpus_model: Callable[[str], CorpusModel]
) -> None:
    plan = compile_model(corpus_model(name).path, Options(opt_level=level)).plan
    assert plan.streams >= 2 and check(plan) >= 2


@pytest.mark.needs_models
@pytest.mark.parametrize("name", ["light_inception_v1", "light_inception_v2"])
def test_the_verifier_misses_each_event_of_inception(name: str, corpus_model: Callable[[str], CorpusModel]) -> None:
    plan = compile_model(corpus_model(name).path).plan
    assert plan.streams >= 2 and check(plan) >= 9
