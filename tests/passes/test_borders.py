"""Copies between engines: where they must be, where they must not, and that they are the fewest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from atc_py.ir.clone import clone
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ir.validate import validate
from atc_py.ops.build import lookup
from atc_py.passes import LowerOptions, lower
from atc_py.passes.base import PassContext
from atc_py.passes.borders import insert_borders
from atc_py.plan.subgraphs import subgraphs
from atc_py.schedule import ScheduleOptions, schedule
from atc_py.schedule.costs import plan_timeline
from atc_py.target import load
from tests.passes.interp import Builder, assert_same, interpret, random_inputs

TARGET = load("Ascend310P3")


def lowered(graph: Graph, level: int = 2) -> Graph:
    """A lowered copy, valid and at rest, which computes the same."""
    copy = clone(graph)
    report = lower(copy, TARGET, LowerOptions(level=level, debug=True))
    assert report.settled
    validate(copy, "lower")
    assert lower(clone(copy), TARGET, LowerOptions(level=level)).changed == 0
    inputs = random_inputs(graph)
    assert_same(interpret(copy, inputs), interpret(graph, inputs))
    return copy


def copies(graph: Graph) -> list[Node]:
    return [n for n in graph.order() if n.op == "TensorMove" and n.attrs.get("to")]


def image(b: Builder) -> int:
    return b.op("Conv", b.input("x", (1, 3, 8, 8)), b.const(np.ones((4, 3, 1, 1)), np.float32))


@pytest.mark.parametrize("level", [0, 2])
def test_two_copies_around_an_operator_of_ai_cpu(level: int) -> None:
    b = Builder()
    found = b.op("Cast", b.op("NonZero", b.op("Relu", image(b))), to=DType.FLOAT32)
    graph = lowered(b.done(b.op("Exp", found)), level)
    assert [(n.attrs["to"], n.engine) for n in copies(graph)] == [("aicpu", "aicore"), ("aicore", "aicore")]
    into, out = copies(graph)
    assert graph.producer(out.inputs[0]).op == "NonZero"
    assert [n.op for n in graph.consumers(into.outputs[0])] == ["NonZero"]


def test_one_copy_for_all_readers_and_none_for_constants_inputs_and_outputs() -> None:
    b = Builder()
    x = b.input("x", (3, 4))
    table = b.const(np.arange(12).reshape(3, 4), np.float32)
    near, far = b.op("NonZero", x), b.op("NonZero", table)  # a model's input and a constant are read in place
    half = b.op("Cast", near, to=DType.FLOAT32)
    graph = lowered(b.done(near, far, half, b.op("Neg", near), b.op("Abs", near)), level=0)
    assert [n.attrs["to"] for n in copies(graph)] == ["aicore"]
    assert {n.op for n in graph.consumers(copies(graph)[0].outputs[0])} == {"Cast", "Neg", "Abs"}
    assert graph.producer(graph.outputs[0]).op == "NonZero"


def test_shapes_are_read_by_the_host_anyway() -> None:
    b = Builder()
    found = b.op("NonZero", image(b))
    size = b.op("Mul", b.op("Shape", found), b.const([1, 1]))
    graph = lowered(b.done(b.op("Expand", b.op("Cast", found, to=DType.FLOAT32), b.op("Abs", size))))
    assert [n.attrs["to"] for n in copies(graph)] == ["aicpu", "aicore"]  # NonZero's two; none for Shape and Expand


def test_what_the_host_has_made_is_copied_once_to_the_device() -> None:
    b = Builder()
    size = b.op("Shape", b.op("NonZero", image(b)))
    real = b.op("Cast", size, to=DType.FLOAT32)
    graph = lowered(b.done(b.op("Mul", b.input("y", (2,)), real), b.op("Add", b.input("z", (2,)), real)))
    host = [n for n in copies(graph) if graph.producer(n.inputs[0]).engine == "host"]
    assert len(host) == 1 and len(copies(graph)) == 2


def test_stale_copies_go() -> None:
    b = Builder()
    graph = lowered(b.done(b.op("Exp", b.op("Cast", b.op("NonZero", image(b)), to=DType.FLOAT32))))
    assert len(copies(graph)) == 2
    for node in graph.nodes.values():
        if node.op == "NonZero":
            node.engine = "aicore"
    assert insert_borders(graph, PassContext(LowerOptions(), graph, TARGET)) == 2
    assert not copies(graph)
    validate(graph, "lower")


def test_copies_are_tasks_that_the_clock_prices() -> None:
    b = Builder()
    graph = lowered(b.done(b.op("Exp", b.op("Cast", b.op("NonZero", image(b)), to=DType.FLOAT32))))
    plan = schedule(graph, ScheduleOptions(soc=TARGET))
    timed = [t for t in plan_timeline(plan, TARGET).jobs if t.job.kernel == "TensorMove"]
    assert len(timed) == 2 and all(t.breakdown.total > 0 and t.job.engine == "aicore" for t in timed)


STEPS = ("relu", "nonzero", "double", "single", "shape", "unique", "add", "flat", "sizes")


def grown(b: Builder, steps: list[str]) -> Graph:
    """A graph over running values, some of them on AI CPU, some on the host."""
    values = [b.input("x", (2, 6))]
    outputs = []
    for i, step in enumerate(steps):
        v = values[-1 - i % len(values)]
        wide = b.graph.tensor(v).dtype is DType.FLOAT64
        if step == "relu":
            values.append(b.op("Relu", v))
        elif step == "nonzero":
            outputs.append(b.op("Neg", b.op("NonZero", v)))
        elif step == "double":
            values.append(b.op("Cast", v, to=DType.FLOAT64))
        elif step == "single":
            values.append(b.op("Cast", v, to=DType.FLOAT32))
        elif step == "shape":
            outputs.append(b.op("Mul", b.op("Shape", v), b.const([3, 4])))
        elif step == "unique":
            outputs.append(b.op("Neg", b.ops("Unique", v, outputs=1)[0]))
        elif step == "add":
            values.append(b.op("Add", v, b.const(np.ones((2, 6)), np.float64 if wide else np.float32)))
        elif step == "flat":
            values.append(b.op("Reshape", b.op("Reshape", v, b.const([12])), b.const([2, 6])))
        else:
            size = b.op("Cast", b.op("Shape", v), to=b.graph.tensor(v).dtype)
            values.append(b.op("Mul", v, b.op("ReduceSum", size, b.const([0]), keepdims=1)))
    return b.done(*outputs, *values[1:]) if outputs or values[1:] else b.done(b.op("Relu", values[0]))


@seed(1)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=10), st.sampled_from([0, 2]))
def test_generated_graphs_have_every_copy_that_is_needed_and_no_other(steps: list[str], level: int) -> None:
    graph = lowered(grown(Builder(), steps), level)
    made = copies(graph)
    assert len({(n.inputs[0], n.attrs["to"]) for n in made}) == len(made)
    for node in graph.nodes.values():
        op = None if node.op in STRUCTURAL else lookup(node.op, node.attrs)
        for index, value in enumerate(node.inputs):
            source = graph.producer(value)
            if op is None or source.op in STRUCTURAL or node in made:
                assert not (node.op == "NetOutput" and source in made)
                continue
            free = op.flags.type_only or index in op.host_inputs or node.op == "Fused"
            if source in made:
                assert source.attrs["to"] == node.engine != graph.producer(source.inputs[0]).engine
            elif not free:
                assert source.engine == node.engine, (source, node)
    assert all(isinstance(graph.type(n.outputs[0]), Tensor) for n in made)


def test_subgraphs_of_a_plan() -> None:
    b = Builder()
    graph = lowered(b.done(b.op("Exp", b.op("Cast", b.op("NonZero", image(b)), to=DType.FLOAT32))), level=0)
    plan = schedule(graph, ScheduleOptions(soc=TARGET))
    found = subgraphs(plan, lambda operand: 1)
    assert [(g.phase, g.engine, g.tasks, g.bytes_in, g.bytes_out) for g in found] == [
        (0, "aicore", 1, 0, 1), (1, "aicpu", 1, 1, 1), (2, "aicore", 2, 1, 0)
    ]  # fmt: skip
