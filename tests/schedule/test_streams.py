"""Streams: where they pay they are taken, every event is needed, and any interleaving gives the same outputs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import compile_graph, prove
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.graph import Builder
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType
from atc_py.memory.bind import aligned, bind
from atc_py.plan.text import print_plan
from atc_py.plan.types import Buffer, Plan, Space, Static, Task
from atc_py.runtime.loader import Loaded, load
from atc_py.schedule import plan_handing, plan_timeline
from atc_py.schedule.lanes import Demand
from atc_py.schedule.streams import _Homes, _Work
from atc_py.target import load as load_target
from tests.making import FLOAT, model, node

from .branching import feeds_of, shuffled, towers

P3 = load_target("Ascend310P3")


@cache
def compiled(count: int = 2, **options: Any) -> Loaded:
    return load(om_bytes(compile_model(towers(count), Options(**options))))


def microseconds(plan: Plan) -> float:
    return plan_handing(plan, P3).cycles / P3.frequency_mhz


def test_two_towers_run_on_two_streams() -> None:
    several, single = compiled().plan, compiled(single_stream=True).plan
    assert (single.streams, single.events) == (1, 0)
    assert several.streams >= 2 and several.events >= 1
    assert microseconds(several) <= 0.95 * microseconds(single)


def test_the_option_limits_streams() -> None:
    plans = [compiled(4, stream_num=n).plan for n in (1, 2, 3, 4)]
    assert [p.streams for p in plans] == sorted(p.streams for p in plans) and plans[0].streams == 1
    assert all(p.streams <= n for n, p in enumerate(plans, 1)) and plans[1].streams == 2
    times = [microseconds(p) for p in plans]
    assert times == sorted(times, reverse=True)
    with pytest.raises(AtcError, match="--stream-num"):
        compile_model(towers(), Options(stream_num=0))


def test_a_chain_stays_on_one_stream() -> None:
    assert compiled(1).plan.streams == 1


def test_large_tasks_stay_on_one_stream() -> None:
    """Tasks that use all cores for long gain nothing but their launches."""
    large = compile_model(towers(2, 2, side=224, channels=64)).plan
    assert large.streams == 1


def test_the_same_model_gives_the_same_plan() -> None:
    one, other = (compile_model(towers(3)).plan for _ in range(2))
    assert print_plan(one) == print_plan(other)


def _with(plan: Plan, tasks: list[Task]) -> Plan:
    return replace(plan, regions=(Static(tuple(tasks)), *plan.regions[1:]))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_verifier_misses_each_event(count: int) -> None:
    plan = compiled(count).plan
    prove(plan)
    tasks = list(plan.tasks())
    removed = 0
    for k, task in enumerate(tasks):
        for event in task.waits:
            less = replace(task, waits=tuple(e for e in task.waits if e != event))
            with pytest.raises(AtcError, match=r"E31017|E31010"):
                prove(_with(plan, [*tasks[:k], less, *tasks[k + 1 :]]))
            removed += 1
    assert removed >= count - 1


@pytest.mark.parametrize("count", [2, 4])
def test_the_bound_of_the_arena_is_found_once(count: int) -> None:
    """What the scheduler has found out is what `bind` finds of the plan alone."""
    om = compile_model(towers(count))
    binding = bind(om.plan)
    assert om.plan.streams > 1 and om.binding == binding
    sizes = [aligned(n) for n in binding.sizes]
    live = max(sum(sizes[b.id] for b in arena_at(om.plan, at)) for at in range(len(list(om.plan.tasks()))))
    assert live < binding.lower_bound <= binding.arena, "what is live on two streams is more than what the order says"
    known = bind(om.plan, least=binding.lower_bound + 1)
    assert (known.lower_bound, known.offsets) == (binding.lower_bound + 1, binding.offsets)


def arena_at(plan: Plan, position: int) -> list[Buffer]:
    return [b for b in plan.buffers if b.space is Space.ARENA and b.first <= position <= b.last]


def test_outputs_are_those_of_one_stream() -> None:
    feeds = feeds_of(towers(3))
    want = Session(compiled(3, single_stream=True)).run(None, feeds)
    loaded = compiled(3)
    orders = set()
    for seed in range(20):
        plan = shuffled(loaded.plan, seed)
        orders.add(tuple(t.id for t in plan.tasks()))
        got = Session(replace(loaded, plans=(plan,))).run(None, feeds)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    assert len(orders) > 10, "the orders differ"


def test_the_timeline_keeps_streams_and_events() -> None:
    plan = compiled(3).plan
    timed = plan_timeline(plan, P3).jobs
    spans = {t.job.place: t for t in timed if t.job.place >= 0}
    recorded = {e: t for t in plan.tasks() for e in t.records}
    assert {t.stream for t in timed} == set(range(plan.streams))
    for task in plan.tasks():
        assert all(spans[recorded[e].id].end <= spans[task.id].start + 1e-6 for e in task.waits if e in recorded)
    for stream in range(plan.streams):
        ends = [(t.start, t.end) for t in timed if t.stream == stream]
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(ends))


CONSTANTS = {"from": np.array([4]), "to": np.array([12]), "axis": np.array([1])}


@st.composite
def branching(draw: st.DrawFn) -> ModelProto:
    """Graphs of small operators with many branches; parts along axis 1 are runs of bytes, and are joined in place."""
    nodes, values = [], ["x", "z"]
    for k in range(draw(st.integers(4, 16))):
        op = draw(st.sampled_from(["Relu", "Neg", "Tanh", "Add", "Mul", "MatMul", "Concat", "Split"]))
        one, other = draw(st.sampled_from(values)), draw(st.sampled_from(values[-6:]))
        if op in ("Relu", "Neg", "Tanh"):
            nodes.append(node(op, [one], [f"v{k}"]))
        elif op == "Concat":
            nodes += [node(op, [one, other], [f"j{k}"], axis=1), node("Softmax", [f"j{k}"], [f"s{k}"])]
            nodes.append(node("Slice", [f"s{k}", "from", "to", "axis"], [f"v{k}"]))
        elif op == "Split":
            nodes.append(node(op, [one], [f"p{k}", f"q{k}"], axis=1, num_outputs=2))
            nodes.append(node("Concat", [f"q{k}", f"p{k}"], [f"v{k}"], axis=1))
        else:
            nodes.append(node(op, [one, other], [f"v{k}"]))
        values.append(f"v{k}")
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    return model(nodes, {"x": (FLOAT, [1, 8, 8, 8]), "z": (FLOAT, [1, 8, 8, 8])}, outputs, CONSTANTS)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(proto=branching(), seed=st.integers(0, 1000))
def test_random_branches_in_random_interleavings(proto: ModelProto, seed: int) -> None:
    options = Options(disabled_passes=frozenset({"fusion"}))
    loaded = load(om_bytes(compile_model(proto, options)))
    feeds = feeds_of(proto, seed)
    want = Session(om_bytes(compile_model(proto, replace(options, single_stream=True)))).run(None, feeds)
    prove(loaded.plan)
    for k in range(3):
        got = Session(replace(loaded, plans=(shuffled(loaded.plan, seed + k),))).run(None, feeds)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_tasks_of_one_label_share_a_stream() -> None:
    """Two towers, the products of each under a label: each label is on one stream, and labels that differ on two."""
    graph = _labelled(("left", "right"))
    plan = compile_graph(graph, Options(disabled_passes=frozenset({"fusion"}))).plan
    labels = {o: n.stream for n in graph.nodes.values() for o in n.origin if n.stream}
    streams: dict[str, set[int]] = {}
    for task in plan.tasks():
        for label in {labels[o] for o in task.origin if o in labels}:
            streams.setdefault(label, set()).add(task.stream)
    assert plan.streams > 1 and all(len(s) == 1 for s in streams.values())
    assert streams["left"] != streams["right"]
    prove(plan)
    one = compile_graph(_labelled(("same", "same")), Options(disabled_passes=frozenset({"fusion"}))).plan
    assert {t.stream for t in one.tasks() if t.kernel == "MatMul"} == {0}


def test_a_label_keeps_its_stream_from_list_to_list() -> None:
    """The first list would begin with `a`, the second one, whose longest way is that of `c`, with `c`."""
    b = Builder("lists")
    weight, x = b.const(np.eye(256, dtype=np.float32)), b.data("x", "float32", (256, 256))
    first = _chains(b, x, weight, {"a": 8, "c": 4})
    count = b.op("ReduceMax", b.op("Cast", b.op("NonZero", first), to=DType.FLOAT32), keepdims=0)
    y = _chains(b, b.op("Add", x, count), weight, {"a": 4, "c": 8})
    graph = b.build(y=y)
    labels = {o: n.stream for n in graph.nodes.values() for o in n.origin if n.stream}
    plan = compile_graph(graph, Options(disabled_passes=frozenset({"fusion"}))).plan
    found: dict[str, list[set[int]]] = {"a": [], "c": []}
    for region in plan.regions:
        assert isinstance(region, Static) and len({t.stream for t in region.tasks}) > 1
        for label, streams in found.items():
            streams.append({t.stream for t in region.tasks if label in {labels.get(o) for o in t.origin}})
    assert len(plan.regions) == 2 and found["a"][0] == found["a"][1] != found["c"][0] == found["c"][1]
    prove(plan)


def _chains(b: Builder, x: Any, weight: Any, lengths: dict[str, int]) -> Any:
    """Chains of products from `x`, each of one label, joined."""
    ends = []
    for label, length in lengths.items():
        end = x
        for _ in range(length):
            for op, more in (("MatMul", [weight]), ("Softmax", [])):
                end = b.op(op, end, *more, name=f"{label}{len(b.graph.nodes)}")
                b.graph.producer(end.value).stream = label
        ends.append(end)
    return b.op("Concat", *ends, axis=1)


@pytest.mark.parametrize("count", [64, 512])
def test_what_waits_for_its_stream_is_not_looked_at(count: int) -> None:
    """A fan of tasks of one label: each waits once before the label has a stream, and once for the stream."""
    opened = []

    class Counted(_Homes):
        def open(self, i: int) -> None:
            opened.append(i)
            super().open(i)

    demands = [Demand(0.0, 10.0, (0.25, 0.0, 0.0, 0.0, 0.0))] * count
    homes = ["a" if i < count - 8 else "" for i in range(count)]
    urgency = [(0, -10.0, i) for i in range(count)]
    chosen = Counted(_Work(demands, 0.0, [()] * count, urgency, width=2), homes, {}).run_list()
    assert [i for i, s in chosen if s == 0] == list(range(count - 8))
    assert [i for i, s in chosen if s == 1] == list(range(count - 8, count))
    assert len(opened) <= 2 * count


def _labelled(labels: tuple[str, str]) -> Graph:
    """Two towers; the products of each have its label."""
    b = Builder("labelled")
    weight, ends = b.const(np.eye(64, dtype=np.float32)), []
    for name, label in zip("ab", labels, strict=True):
        x = b.data(name, "float32", (64, 64))
        for k in range(5):
            x = b.op("MatMul", x, weight, name=f"{name}{k}")
            b.graph.producer(x.value).stream = label
            x = b.op("Softmax", x)
        ends.append(x)
    return b.build(y=b.op("Add", *ends))
