"""Restraint: branches that hold much end before others begin, at hardly any cost in time and never for more bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import prove
from atc_py.emit import Om, om_bytes
from atc_py.ir.clone import clone
from atc_py.plan.text import print_plan
from atc_py.plan.types import Plan
from atc_py.runtime.loader import load
from atc_py.schedule import ScheduleOptions, plan_handing, schedule
from atc_py.schedule.lanes import Demand
from atc_py.schedule.streams import GAIN, PATIENCE, RESTRAINTS, _Lister, _Restrained, _Work, list_again
from atc_py.target import load as load_target
from tests.making import FLOAT, model, node

from .branching import feeds_of, shuffled

P3 = load_target("Ascend310P3")
SCHEDULE = sys.modules[schedule.__module__]  # the package has a function of the same name

# Four chains of two tasks between a first and a last task, in the order of low memory; each task takes 10 cycles.
NEEDS = ((), (0,), (1,), (0,), (3,), (0,), (5,), (0,), (7,), (2, 4, 6, 8))
RANKS = (40, 30, 20, 30, 20, 30, 20, 30, 20, 10)
DEMANDS = [Demand(0.0, 10.0, (0.5, 0.0, 0.0, 0.0, 0.0)) for _ in NEEDS]
URGENCY = [(0, float(-rank), i) for i, rank in enumerate(RANKS)]
WORK = _Work(DEMANDS, 0.0, NEEDS, URGENCY, width=2)


def taken(deadline: float, window: int) -> tuple[list[int], float]:
    """(tasks in the order in which two streams take them, when the last one ends)."""
    lister = _Restrained(WORK, deadline, window)
    return [i for i, _ in lister.run_list()], max(lister.end)


def test_the_critical_path_alone_opens_all_chains() -> None:
    lister = _Lister(WORK)
    assert [i for i, _ in lister.run_list()] == [0, 1, 3, 5, 7, 2, 4, 6, 8, 9]
    assert max(lister.end) == 60


def test_with_restraint_two_chains_end_before_the_next_ones_begin() -> None:
    assert taken(inf, 4) == ([0, 1, 3, 2, 4, 5, 7, 6, 8, 9], 60)


def test_a_stream_stays_idle_rather_than_run_ahead() -> None:
    """The second chain may begin when its first task is the first one that is not taken: 10 cycles after the first."""
    assert taken(inf, 1) == ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 70)


def test_an_urgent_task_comes_first() -> None:
    """A chain has 30 cycles before it; at 20, when two have begun, the others would be done at 50."""
    assert taken(50, 4)[0] == [0, 1, 3, 5, 7, 2, 4, 6, 8, 9]
    assert taken(51, 4)[0] == [0, 1, 3, 2, 4, 5, 7, 6, 8, 9]


def chains(branches: Sequence[tuple[int, int]], batch: int | str = 1) -> ModelProto:
    """For each (length, channels) a chain of small convolutions over one image, narrow at its end; joined there."""
    nodes, constants = [], {}
    for b, (length, channels) in enumerate(branches):
        value, width = "x", 4
        for k in range(length):
            out = 4 if k == length - 1 else channels
            constants[f"w{b}_{k}"] = np.full((out, width, 1, 1), 0.1, np.float32)
            nodes.append(node("Conv", [value, f"w{b}_{k}"], [f"c{b}_{k}"]))
            value, width = f"c{b}_{k}", out
    ends = [f"c{b}_{length - 1}" for b, (length, _) in enumerate(branches)]
    nodes += [node("Concat", ends, ["j"], axis=1), node("Softmax", ["j"], ["y"])]
    return model(nodes, {"x": (FLOAT, [batch, 4, 8, 8])}, ["y"], constants)


def both(proto: ModelProto, **options: Any) -> tuple[Om, Om]:
    """The model compiled with restraint and without; each branch keeps its tasks."""
    given_ = Options(opt_level=0, **options)
    with_, patch = compile_model(proto, given_), pytest.MonkeyPatch()
    with patch.context() as m:
        m.setattr(SCHEDULE, "RESTRAINTS", ())
        return with_, compile_model(proto, given_)


def arena(om: Om) -> int:
    assert om.binding is not None
    return om.binding.arena


def cycles(plan: Plan) -> float:
    return plan_handing(plan, P3).cycles


@pytest.mark.parametrize(("count", "length", "share"), [(8, 2, 0.6), (16, 3, 0.5), (40, 3, 0.25)])
def test_the_peak_of_parallel_chains_falls(count: int, length: int, share: float) -> None:
    """Without restraint it grows with the number of chains, with it with that of streams."""
    ours, wide = both(chains([(length, 64)] * count))
    assert ours.plan.streams == wide.plan.streams > 1
    assert arena(ours) <= share * arena(wide)
    assert cycles(ours.plan) <= (1 + PATIENCE) * cycles(wide.plan)
    prove(ours.plan)


def test_a_template_is_judged_at_its_hint() -> None:
    ours, wide = both(chains([(3, 64)] * 16, "N"), input_hint={"N": 2})
    assert ours.plan.arena is None and ours.plan.streams > 1
    assert arena(ours) <= 0.5 * arena(wide)


def test_the_same_model_gives_the_same_plan() -> None:
    proto = chains([(3, 64), (2, 32)] * 8)
    assert print_plan(compile_model(proto).plan) == print_plan(compile_model(proto).plan)


def test_outputs_are_those_of_one_stream() -> None:
    proto = chains([(2, 64)] * 8)
    ours, wide = both(proto)
    assert arena(ours) < arena(wide)
    feeds, loaded = feeds_of(proto), load(om_bytes(ours))
    want = Session(om_bytes(compile_model(proto, Options(opt_level=0, single_stream=True)))).run(None, feeds)
    for seed in range(10):
        got = Session(replace(loaded, plans=(shuffled(loaded.plan, seed),))).run(None, feeds)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_what_priorities_say_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = clone(compile_model(chains([(2, 64)] * 8), Options(opt_level=0)).lowered)
    options, restrained = ScheduleOptions(soc=P3), schedule(clone(graph), ScheduleOptions(soc=P3))
    next(n for n in graph.nodes.values() if n.op == "Conv").priority = 1
    asked = schedule(clone(graph), options)
    monkeypatch.setattr(SCHEDULE, "RESTRAINTS", ())
    assert print_plan(asked) == print_plan(schedule(clone(graph), options)) != print_plan(restrained)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(branches=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([4, 16, 48, 64])), min_size=4, max_size=20))
def test_never_more_bytes_and_hardly_longer(branches: list[tuple[int, int]]) -> None:
    ours, wide = both(chains(branches))
    assert arena(ours) <= arena(wide)
    assert cycles(ours.plan) <= (1 + GAIN) * cycles(wide.plan)
    prove(ours.plan)


@pytest.mark.parametrize("restraint", RESTRAINTS)
def test_no_segment_gets_longer_than_patience_allows(restraint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def checked(*given_: Any) -> Any:
        listed, found = given_[:2]
        again = list_again(*given_)
        for old, new, segment in zip(listed, again, found, strict=True):
            assert (old is None) == (new is None)
            if new is not None:
                assert sorted(new.order) == list(range(len(segment.steps)))
                place = {i: k for k, i in enumerate(new.order)}
                assert all(place[p] < place[i] for i, needs in enumerate(segment.needs) for p in needs)
                seen.append(new.cycles / old.cycles)
        return again

    monkeypatch.setattr(SCHEDULE, "list_again", checked)
    monkeypatch.setattr(SCHEDULE, "RESTRAINTS", (restraint,))
    for count in (8, 12, 30):
        compile_model(chains([(1 + k % 5, 64) for k in range(count)]), Options(opt_level=0))
    assert seen and max(seen) <= 1 + PATIENCE
