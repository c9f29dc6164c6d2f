"""Traces show all of the predicted time: launches and waits, loops whole, units inside their tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from atc_py import Options, compile_model
from atc_py.schedule.advice import advice
from atc_py.schedule.lanes import EVENT_US
from atc_py.schedule.profile import Profile, profile
from atc_py.schedule.sink import SINKS
from atc_py.schedule.trace import HOST, STREAMS, UNITS, chrome_trace
from atc_py.target import load
from tests.cli.helpers import MODELS
from tests.making import BOOL, FLOAT, INT64, body_attribute, graph, model, node

from .branching import towers

FILES = sorted([*MODELS.glob("*.onnx"), *MODELS.glob("corpus/*.onnx")])
ROUNDING = 0.01
"""Microseconds: times in a trace have three digits, and costs are whole cycles."""

Spans = dict[tuple[int, int], list[tuple[float, float, str]]]


def profiled(source: Any, sink: str, **options: Any) -> Profile:
    plan = compile_model(source, Options(sink=sink, **options)).plan
    return profile(plan, load(plan.target))


def spans(found: Profile) -> Spans:
    """For each row of the trace its bars: from, to, name."""
    rows: Spans = defaultdict(list)
    for e in chrome_trace(found)["traceEvents"]:
        if e["ph"] == "X":
            rows[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    return rows


def last(rows: Spans, process: int) -> float:
    return max((bar[1] for (p, _), bars in rows.items() if p == process for bar in bars), default=0.0)


def check(found: Profile) -> Spans:
    """What holds for every trace; returns its rows."""
    rows = spans(found)
    assert max(last(rows, HOST), last(rows, STREAMS)) == pytest.approx(found.latency, abs=ROUNDING)
    for (process, _), bars in rows.items():
        if process != UNITS:
            ordered = sorted(bars)
            in_order = all(b[0] >= a[1] - 1e-6 for a, b in pairwise(ordered))
            assert in_order, "a row shows one thing after the other"
    task = None
    for e in chrome_trace(found)["traceEvents"]:
        if e["ph"] == "X" and e["pid"] == STREAMS:
            task = e
        elif e["ph"] == "X" and e["pid"] == UNITS:
            assert task is not None and task["args"]["task"] == e["args"]["task"]
            assert e["ts"] >= task["ts"] - ROUNDING and e["ts"] + e["dur"] <= task["ts"] + task["dur"] + ROUNDING
    return rows


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_trace_ends_when_the_model_does(path: Any, sink: str) -> None:
    found = profiled(path, sink)
    rows = check(found)
    assert last(rows, STREAMS) == pytest.approx(found.latency, abs=10), "but for a wait for what came of the last task"


def counting(trips: int) -> ModelProto:
    """A loop of two products a trip, known to run so often, between a task and another."""
    body = graph(
        [node("MatMul", ["a", "w"], ["n"]), node("MatMul", ["n", "w"], ["b"]), node("Identity", ["c"], ["again"])],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [64, 64])},
        ["again", "b"],
        name="body",
    )
    loop = node("Loop", ["n", "", "s"], ["l"])
    loop.attribute.append(body_attribute(body, "body"))
    nodes = [node("Softmax", ["x"], ["s"]), loop, node("Softmax", ["l"], ["y"])]
    weights = {"n": np.array(trips), "w": np.ones((64, 64), np.float32)}
    return model(nodes, {"x": (FLOAT, [64, 64])}, ["y"], weights)


@pytest.mark.parametrize("sink", SINKS)
def test_a_loop_is_drawn_over_its_whole_time(sink: str) -> None:
    found = profiled(counting(7), sink)
    rows = check(found)
    bars = sorted(rows[STREAMS, 0])
    [(start, stop, name)] = [bar for bar in bars if bar[2].startswith("…")]
    assert "6 more iterations" in name
    inside = [r for r in found.rows if r.times == 7]
    first = max(r.end for r in inside) - min(r.start for r in inside)
    assert 0 <= start - max(r.end for r in inside) + ROUNDING <= 2 * EVENT_US + 2 * ROUNDING, "when streams have joined"
    assert stop - start >= 6 * first - ROUNDING
    if sink == "graph":
        assert stop - start == pytest.approx(6 * first, abs=6 * 2 * EVENT_US + ROUNDING)
    assert bars[-1][0] >= stop - ROUNDING, "what follows the loop comes after all of it"
    on_host = [bar for bar in rows[HOST, 0] if bar[2].startswith("…")]
    assert len(on_host) == (sink != "graph"), "a loop that has sunk is none of the host's work"
    assert not [bar for bar in spans(profiled(counting(1), sink))[STREAMS, 0] if bar[2].startswith("…")]


def image_and_loop(trips: int) -> ModelProto:
    """A convolution whose result leaves, then a loop of two independent products."""
    body = graph(
        [
            node("MatMul", ["a", "w"], ["p"]),
            node("MatMul", ["a", "v"], ["q"]),
            node("Add", ["p", "q"], ["b"]),
            node("Identity", ["c"], ["again"]),
        ],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [256, 256])},
        ["again", "b"],
    )
    loop = node("Loop", ["n", "", "z"], ["l"])
    loop.attribute.append(body_attribute(body))
    square = np.ones((256, 256), np.float32)
    weights = {"n": np.array(trips), "w": square, "v": 2 * square, "k": np.ones((4, 3, 3, 3), np.float32)}
    inputs = {"x": (FLOAT, [1, 3, 16, 16]), "z": (FLOAT, [256, 256])}
    return model([node("Conv", ["x", "k"], ["y"]), loop], inputs, ["y", "l"], weights)


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("single", [True, False])
def test_a_result_is_converted_once_where_a_loop_comes_last(single: bool, sink: str) -> None:
    found = {n: profiled(image_and_loop(n), sink, opt_level=0, single_stream=single) for n in (2, 3, 40)}
    for one in found.values():
        check(one)
        assert [r.times for r in one.rows if r.name.startswith("convert")] == [1, 1], "of x and of y"
    trip = found[3].latency - found[2].latency
    assert found[40].latency - found[3].latency == pytest.approx(37 * trip, rel=1e-3)
    if single and sink != "op":
        tasks = sum(r.duration for r in found[40].rows if r.times == 40)
        assert trip == pytest.approx(tasks, abs=ROUNDING), "nothing else is done once a trip"


def test_each_launch_and_each_wait_has_a_bar() -> None:
    found = profiled(MODELS / "corpus/moe_nonzero.onnx", "graph")
    kinds = Counter(bar.kind for bar in found.handing.bars)
    assert kinds["launch"] == found.handing.launches > 1
    assert kinds["wait"] == found.handing.synchronisations > 1
    alone = profiled(towers(2, 3), "op")
    assert Counter(bar.kind for bar in alone.handing.bars)["launch"] == len(alone.rows) == alone.handing.launches
    for bar in (*found.handing.bars, *alone.handing.bars):
        assert bar.start <= bar.end


def test_ai_cpu_is_busy_while_its_task_runs() -> None:
    nodes = [node("MatMul", ["x", "x"], ["a"]), node("Softmax", ["a"], ["y"])]
    found = profiled(model(nodes, {"x": (TensorProto.DOUBLE, [64, 64])}, ["y"]), "graph")
    rows = check(found)
    assert [r.engine for r in found.rows] == ["aicpu"] * len(found.rows)
    tasks, units = rows[STREAMS, 0], rows[UNITS, 3]
    assert tasks == units and len(tasks) == len(found.rows)
    assert found.busy()["aicpu"] <= 1


def test_tasks_begin_when_they_have_been_launched() -> None:
    found = profiled(towers(2, 3), "op")
    launched = sorted(bar.end for bar in found.handing.bars if bar.kind == "launch")
    for row, ready in zip(sorted(found.rows, key=lambda r: r.start), launched, strict=True):
        assert row.start >= ready / found.target.frequency_mhz - ROUNDING


def test_advice_names_what_the_host_costs() -> None:
    found = profiled(MODELS / "corpus/moe_nonzero.onnx", "graph")
    [item] = [i for i in advice(found) if "launches and waits" in i.title]
    assert f"launches: {found.handing.launches}, waits: {found.handing.synchronisations}" in item.why
    # The first launch and the wait for the result are part of what any model takes.
    step = found.target.rates.host_task_us
    assert item.microseconds == pytest.approx(step * (found.handing.launches + found.handing.synchronisations - 2))
    assert not [i for i in advice(profiled(towers(2, 3), "graph")) if "waits of the host" in i.title]


def test_advice_names_only_tasks_that_wait() -> None:
    found = profiled(towers(8, 4), "graph")
    assert all(r.wait == 0 or r.wait > 0.0005 for r in found.rows), "no rests of sums"
    waiting = {r.name for r in found.rows if r.wait}
    for item in advice(found):
        if item.title == "waits for other streams":
            assert set(item.tasks) == waiting
