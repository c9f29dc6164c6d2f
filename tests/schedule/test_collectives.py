"""Collectives: one order on all devices, a stream of their own, and never folded, merged or turned round."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import compile_graph, prove
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.graph import Builder
from atc_py.ir.graph import Graph
from atc_py.plan.types import Plan, Static, Task
from atc_py.schedule import plan_timeline
from atc_py.schedule.links import BYTES_A_US, MESSAGE_US
from atc_py.target import load as load_target
from tests.making import BOOL, FLOAT, body_attribute, graph, model, node

from .devices import stuck

P3 = load_target("Ascend310P3")
SIDE = 256
MS = "com.microsoft"


def collective(kind: str, source: str, result: str, **attrs: Any) -> NodeProto:
    """A node of onnxruntime's."""
    return node(kind, [source], [result], domain=MS, name=f"at {result}", **attrs)


def towers(count: int = 2, depth: int = 3, scale: float = 1.0, prefix: str = "") -> ModelProto:
    """Layers that are split over devices, as tensor parallelism has them: each ends with a sum over all."""
    nodes, weights, ends = [], {}, []
    for t in range(count):
        value = "x"
        for k in range(depth):
            name = f"{prefix}{t}_{k}"
            weights[f"w{name}"] = np.eye(SIDE, dtype=np.float32) * (scale * (t + 1))
            nodes.append(node("MatMul", [value, f"w{name}"], [f"m{name}"]))
            nodes.append(collective("AllReduce", f"m{name}", f"r{name}"))
            nodes.append(node("Softmax", [f"r{name}"], [f"s{name}"], axis=0))
            value = f"s{name}"
        ends.append(value)
    return model(nodes, {"x": (FLOAT, [SIDE, SIDE])}, ends, weights)


def order(plan: Plan) -> list[str]:
    """The collectives by their places in the graph, in the order of the plan."""
    return [t.name for t in plan.tasks() if t.engine == "hccl"]


def static(plan: Plan) -> Static:
    (region,) = plan.regions
    assert isinstance(region, Static)
    return region


# -- what they become ------------------------------------------------------------------------------------------


def made(kind: str, dims: list[Any], **attrs: Any) -> tuple[Any, Graph]:
    """(shape of the result, the graph) of one collective."""
    proto = model([collective(kind, "x", "y", **attrs), node("Relu", ["y"], ["z"])], {"x": (FLOAT, dims)}, ["z"])
    found = compile_model(proto).canonical
    return found.tensor(found.outputs[0]).shape, found


@pytest.mark.parametrize(
    ("kind", "attrs", "op", "kept", "shape"),
    [
        ("AllReduce", {}, "HcomAllReduce", {"rank_size": 0, "reduction": "sum"}, (8, 6)),
        ("AllGather", {"group_size": 2, "axis": 0}, "HcomAllGather", {"rank_size": 2, "axis": 0}, (16, 6)),
        ("AllGather", {"group_size": 3}, "HcomAllGather", {"rank_size": 3, "axis": 1}, (8, 18)),
        ("AllGather", {"group_size": 3, "axis": -2}, "HcomAllGather", {"rank_size": 3, "axis": -2}, (24, 6)),
        ("AllToAll", {"group_size": 4}, "HcomAllToAll", {"rank_size": 4}, (8, 6)),
        ("AllToAll", {}, "HcomAllToAll", {"rank_size": 1}, (8, 6)),
    ],
)
def test_onnxruntimes_collectives(kind: str, attrs: Any, op: str, kept: Any, shape: Any) -> None:
    found, graph_ = made(kind, [8, 6], **attrs)
    (one,) = [n for n in graph_.nodes.values() if n.op == op]
    assert found == shape and {k: one.attrs[k] for k in kept} == kept and one.origin == ("at y",)


def test_several_tensors_are_one_collective_after_the_other() -> None:
    both = node("AllReduce", ["x", "z"], ["a", "b"], domain=MS, name="both")
    proto = model([both], {"x": (FLOAT, [8]), "z": (FLOAT, [4])}, ["a", "b"])
    assert order(compile_model(proto).plan) == ["both/0", "both/1"]


@pytest.mark.parametrize(
    ("kind", "attrs", "cause"),
    [
        ("AllGather", {"group_size": 0}, "'group_size' is 0"),
        ("AllGather", {"axis": 2}, "axis 2 of a tensor of rank 2"),
        ("AllToAll", {"group_size": 3}, "the first dim, 8, has no equal part for each of 3 devices"),
        ("AllReduce", {"group_size": 2}, "attribute 'group_size'"),
    ],
)
def test_what_is_no_collective(kind: str, attrs: Any, cause: str) -> None:
    with pytest.raises(AtcError) as caught:
        made(kind, [8, 6], **attrs)
    assert cause in str(caught.value)


def test_sizes_may_be_open() -> None:
    shape, _ = made("AllGather", ["N", 6], group_size=2, axis=0)
    assert [str(d) for d in shape] == ["2*N", "6"]


def test_they_are_neither_folded_nor_merged() -> None:
    nodes = [collective("AllReduce", "x", "a"), collective("AllReduce", "x", "b"), collective("AllReduce", "w", "c")]
    nodes += [node("Add", ["a", "b"], ["d"]), node("Mul", ["d", "c"], ["y"])]
    om = compile_model(model(nodes, {"x": (FLOAT, [8])}, ["y"], {"w": np.ones(8, np.float32)}))
    assert sorted(order(om.plan)) == ["at a", "at b", "at c"]
    assert om.summary["engines"]["hccl"] == 3


# -- one order -------------------------------------------------------------------------------------------------


def test_they_have_a_stream_of_their_own() -> None:
    om, single = compile_model(towers()), compile_model(towers(), Options(single_stream=True))
    streams = {e: {t.stream for t in om.plan.tasks() if t.engine == e} for e in ("hccl", "aicore")}
    assert streams["hccl"] == {1} and 1 not in streams["aicore"]
    after = [o.summary["predicted_latency_us"]["after"] for o in (om, single)]
    assert after[0] < 0.95 * after[1], "what one branch sends hides what the other one computes"


def test_the_order_follows_from_the_model_alone() -> None:
    """Neither options nor names, weights and the order of the file change it."""
    want = order(compile_model(towers()).plan)
    assert want == [f"at r{t}_{k}" for k in range(3) for t in range(2)], "branches take turns"
    ways: list[dict[str, Any]] = [{"single_stream": True}, {"stream_num": 2}, {"stream_num": 8}, {"sink": "op"}]
    ways += [{"opt_level": 0}, {"opt_level": 3}, {"soc_version": "Ascend910B1"}, {"precision_mode": "fp16"}]
    ways += [{"disabled_passes": frozenset({"fusion"})}]
    for options in ways:
        assert order(compile_model(towers(), Options(**options)).plan) == want, options
    assert order(compile_model(towers(scale=3.0)).plan) == want
    assert [n.replace("p", "") for n in order(compile_model(towers(prefix="p")).plan)] == want
    turned = towers()
    nodes = list(turned.graph.node)
    turned.graph.ClearField("node")
    turned.graph.node.extend(nodes[9:] + nodes[:9])
    assert order(compile_model(turned).plan) == want


def test_a_plan_keeps_the_order_when_it_is_compiled_again() -> None:
    from atc_py.compiler import recompile

    om = compile_model(towers())
    assert order(recompile(om.canonical, Options(opt_level=3)).plan) == order(om.plan)


@pytest.mark.parametrize("devices", [2, 3])
def test_devices_do_not_wait_for_each_other_for_ever(devices: int) -> None:
    tasks = static(compile_model(towers(3)).plan).tasks
    assert len({t.stream for t in tasks}) > 1
    for seed in range(40):
        assert stuck([tasks] * devices, seed) == []


def test_devices_with_different_orders_would() -> None:
    tasks = list(static(compile_model(towers()).plan).tasks)
    at = [k for k, t in enumerate(tasks) if t.engine == "hccl"][:2]
    turned = list(tasks)  # the first two have no need of each other
    turned[at[0]], turned[at[1]] = tasks[at[1]], tasks[at[0]]
    one, other = _plain(tasks), _plain(turned)
    assert stuck([one, one], 0) == [] == stuck([other, other], 0)
    assert all(sorted(stuck([one, other], seed)) == sorted(tasks[k].name for k in at) for seed in range(10))


def _plain(tasks: list[Task]) -> list[Task]:
    """The collectives alone, on one stream, without events."""
    return [replace(t, waits=(), records=()) for t in tasks if t.engine == "hccl"]


def test_the_verifier_wants_them_in_order() -> None:
    """Two streams may come to their collectives in any order, and two devices in different ones."""
    nodes = [node("MatMul", ["x", f"w{k}"], [f"m{k}"]) for k in range(2)]
    nodes += [collective("AllReduce", f"m{k}", f"y{k}") for k in range(2)]
    weights = {f"w{k}": np.eye(SIDE, dtype=np.float32) * (k + 1) for k in range(2)}
    plan = compile_model(model(nodes, {"x": (FLOAT, [SIDE, SIDE])}, ["y0", "y1"], weights), Options(opt_level=0)).plan
    prove(plan)
    tasks = [t for t in plan.tasks() if t.engine != "hccl"] + [t for t in plan.tasks() if t.engine == "hccl"]
    tasks = [replace(t, id=k, stream=0, waits=(), records=()) for k, t in enumerate(tasks)]
    first, second = tasks[-2:]
    tasks[-3] = replace(tasks[-3], records=(0,))
    tasks[-1] = replace(second, stream=1, waits=(0,))
    unordered = replace(plan, regions=(Static(tuple(tasks)),), streams=2, events=1)
    with pytest.raises(AtcError) as caught:
        prove(unordered)
    (found,) = [p for p in caught.value.problems if p.code == "E31019"]
    assert first.name in found.cause and second.name in found.place
    renamed = replace(unordered, regions=(Static(tuple([replace(t, engine="aicore") for t in tasks])),))
    with pytest.raises(AtcError) as caught:  # the operator is a collective, whatever engine the plan says
        prove(renamed)
    assert found in [replace(p) for p in caught.value.problems]
    assert any(stuck([tasks, tasks], seed) for seed in range(20))


@st.composite
def meshes(draw: st.DrawFn) -> Graph:
    """Random graphs of products and collectives."""
    b = Builder("mesh")
    values = [b.data("x", "float32", (64, 64)), b.data("z", "float32", (64, 64))]
    weight = b.const(np.eye(64, dtype=np.float32))
    for _ in range(draw(st.integers(4, 16))):
        kind = draw(st.sampled_from(["MatMul", "Softmax", "Add", "HcomAllReduce", "HcomAllToAll"]))
        x = values[-draw(st.integers(1, min(4, len(values))))]
        if kind.startswith("Hcom"):
            values.append(b.op(kind, x, outputs=2, rank_size=draw(st.sampled_from([0, 2, 8])))[0])
        elif kind == "Softmax":
            values.append(b.op(kind, x))
        else:
            values.append(b.op(kind, x, weight if kind == "MatMul" else draw(st.sampled_from(values))))
    return b.build(**{f"y{k}": v for k, v in enumerate(values[-3:])})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(mesh=meshes(), streams=st.integers(1, 6), seed=st.integers(0, 1000))
def test_random_meshes_in_random_interleavings(mesh: Graph, streams: int, seed: int) -> None:
    om = compile_graph(mesh, Options(stream_num=streams, opt_level=random.Random(seed).choice([0, 2])))
    prove(om.plan)
    tasks = static(om.plan).tasks
    assert order(om.plan) == order(compile_graph(mesh, Options(single_stream=True)).plan)
    assert len({t.stream for t in tasks if t.engine == "hccl"}) < 2
    assert stuck([tasks] * 3, seed) == []


# -- bodies, runs, files, time ---------------------------------------------------------------------------------


def choosing(condition: Any) -> ModelProto:
    """A collective in one branch of an If."""
    then = graph([collective("AllReduce", "x", "a")], {}, ["a"], name="then")
    other = graph([node("Neg", ["x"], ["b"])], {}, ["b"], name="other")
    choice = node("If", ["c"], ["y"], name="choice")
    choice.attribute.extend([body_attribute(then, "then_branch"), body_attribute(other, "else_branch")])
    inputs: dict[str, Any] = {"x": (FLOAT, [8])} | ({"c": (BOOL, [])} if condition is None else {})
    return model([choice], inputs, ["y"], {} if condition is None else {"c": np.array(condition)})


def test_there_are_none_in_branches() -> None:
    with pytest.raises(AtcError) as caught:
        compile_model(choosing(None))
    assert [p.code for p in caught.value.problems] == ["E20043"] and "at a" in caught.value.problems[0].place
    assert order(compile_model(choosing(True)).plan) == ["choice/at a"], "always taken, it is none"


def test_a_group_of_one_is_a_copy() -> None:
    nodes = [
        collective("AllReduce", "x", "a"),
        collective("AllGather", "a", "b", group_size=1),
        collective("AllToAll", "b", "y", group_size=1),
    ]
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    om = compile_model(model(nodes, {"x": (FLOAT, [8, 6])}, ["y"]))
    np.testing.assert_array_equal(Session(om_bytes(om)).run(None, {"x": x})[0], x)


def test_a_larger_group_is_refused_when_it_is_run() -> None:
    nodes = [collective("AllGather", "x", "y", group_size=2, axis=0)]
    om = compile_model(model(nodes, {"x": (FLOAT, [8, 6])}, ["y"]))
    with pytest.raises(AtcError) as caught:
        Session(om_bytes(om)).run(None, {"x": np.zeros((8, 6), np.float32)})
    (problem,) = caught.value.problems
    assert (problem.code, problem.place) == ("E40008", "task 'at y'") and "the simulator has one" in problem.cause
    assert problem.hint


def test_beside_ai_cpu_its_operands_are_copied() -> None:
    """A collective reads and writes AI Core's memory."""
    nodes = [node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["f"], to=FLOAT), node("ReduceSum", ["f"], ["s"])]
    nodes += [collective("AllReduce", "s", "r"), node("Relu", ["r"], ["y"])]
    plan = compile_model(model(nodes, {"x": (FLOAT, [8, 6])}, ["y"])).plan
    found = [(t.kernel, t.engine) for t in plan.tasks()]
    after = found[found.index(("HcomAllReduce", "hccl")) :]
    assert "TensorMove" not in [kernel for kernel, _ in after]


@pytest.mark.parametrize(
    ("kind", "attrs", "messages", "sent"),
    [
        ("AllReduce", {}, 14, 2 * 7 * 4 * SIDE * SIDE // 8),
        ("AllGather", {"group_size": 4, "axis": 0}, 3, 3 * 4 * SIDE * SIDE),
        ("AllToAll", {"group_size": 4}, 3, 3 * 4 * SIDE * SIDE // 4),
        ("AllToAll", {"group_size": 1}, 0, 0),
    ],
)
def test_what_they_take(kind: str, attrs: Any, messages: int, sent: int) -> None:
    nodes = [node("Relu", ["x"], ["a"]), collective(kind, "a", "b", **attrs), node("Neg", ["b"], ["y"])]
    plan = compile_model(model(nodes, {"x": (FLOAT, [SIDE, SIDE])}, ["y"])).plan
    (timed,) = [t for t in plan_timeline(plan, P3).jobs if t.job.engine == "hccl"]
    us = (timed.end - timed.start) / P3.frequency_mhz
    assert us == pytest.approx(P3.rates.task_us + messages * MESSAGE_US + sent / BYTES_A_US)


def test_task_info_has_them_as_its_own_kind() -> None:
    from atc_py.emit.task_info import task_info
    from om_format.proto.task_pb2 import ModelTaskDef
    from om_format.task_types import TaskType

    plan = compile_model(towers()).plan
    entries = [e for e in ModelTaskDef.FromString(task_info(plan)).task if e.type == TaskType.HCCL]
    tasks = [t for t in plan.tasks() if t.engine == "hccl"]
    assert [(e.kernel_hccl.op_index, e.kernel_hccl.hccl_type, e.stream_id) for e in entries] == [
        (t.id, "HcomAllReduce", 1) for t in tasks
    ]
