"""Priorities and stream labels of an ONNX file: read from `metadata_props`, kept by rewrites, obeyed by the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from atc_py import Options, compile_model, frontend
from atc_py.compiler import compile_graph
from atc_py.errors import AtcError
from atc_py.graph import Builder
from tests.making import FLOAT, model, node

WEIGHT = np.eye(64, dtype=np.float32)


def asking(made: NodeProto, **entries: Any) -> NodeProto:
    """The node with entries of metadata."""
    for key, value in entries.items():
        made.metadata_props.add(key=key, value=str(value))
    return made


def fan(count: int = 6, key: str = "priority") -> ModelProto:
    """Products of one input, the last one with the highest priority, joined at the end."""
    nodes = []
    for k in range(count):
        nodes.append(asking(node("MatMul", ["x", "w"], [f"m{k}"], name=f"product{k}"), **{key: k}))
        nodes.append(node("Softmax", [f"m{k}"], [f"s{k}"], axis=0, name=f"softmax{k}"))
    nodes.append(node("Concat", [f"s{k}" for k in range(count)], ["y"], axis=1))
    return model(nodes, {"x": (FLOAT, [64, 64])}, ["y"], {"w": WEIGHT})


def products(proto: ModelProto, **options: Any) -> list[tuple[str, int]]:
    """(name, priority) of the tasks with a product, in the order of the plan."""
    plan = compile_model(proto, Options(**options)).plan
    return [(o, t.priority) for t in plan.tasks() for o in t.origin if o.startswith("product")]


@pytest.mark.parametrize("level", [0, 2])
def test_the_highest_priority_runs_first(level: int) -> None:
    apart = frozenset({"fusion"})  # one task could do all products, for they have one input
    found = products(distinct(fan()), opt_level=level, single_stream=True, disabled_passes=apart)
    assert found == [(f"product{k}", k) for k in reversed(range(6))]


def distinct(proto: ModelProto) -> ModelProto:
    """The same with a weight for each product: equal ones would become one."""
    proto.graph.ClearField("initializer")
    for k, made in enumerate(n for n in proto.graph.node if n.op_type == "MatMul"):
        made.input[1] = f"w{k}"
        proto.graph.initializer.append(helper.make_tensor(f"w{k}", FLOAT, [64, 64], WEIGHT.ravel() * (k + 1)))
    return proto


def test_keys_of_other_tools_mean_nothing() -> None:
    assert {p for _, p in products(distinct(fan(key="pkg.torch.priority")))} == {0}


def test_what_takes_a_nodes_place_is_asked_the_same() -> None:
    """MatMul and Add become one operator, and with Relu one task: it has the highest priority."""
    nodes = [
        asking(node("MatMul", ["x", "w"], ["m"], name="product"), priority=3, stream_label="left"),
        asking(node("Add", ["m", "b"], ["a"], name="bias"), priority=5),
        node("Relu", ["a"], ["r"], name="relu"),
        asking(node("Softmax", ["r"], ["y"], name="softmax", axis=0), priority=-2, stream_label="right"),
    ]
    proto = model(nodes, {"x": (FLOAT, [64, 64])}, ["y"], {"w": WEIGHT, "b": np.ones(64, np.float32)})
    om = compile_model(proto)
    found = {
        origin: (n.priority, n.stream) for n in om.lowered.nodes.values() for origin in n.origin if n.op != "Const"
    }
    assert found["product"][0] == 5 and found["bias"][0] == 5
    assert found["softmax"] == (-2, "right")


@pytest.mark.parametrize(("labels", "count"), [(("left", "left"), 1), (("left", "right"), 2)])
def test_equal_nodes_of_different_labels_stay_apart(labels: tuple[str, str], count: int) -> None:
    nodes = [asking(node("Exp", ["x"], [f"e{k}"], name=f"exp{k}"), stream_label=a) for k, a in enumerate(labels)]
    proto = model([*nodes, node("Add", ["e0", "e1"], ["y"])], {"x": (FLOAT, [8])}, ["y"])
    found = [n.stream for n in compile_model(proto).canonical.nodes.values() if n.op == "Exp"]
    assert sorted(found) == sorted(set(labels)) and len(found) == count


def test_all_that_a_node_becomes_is_asked() -> None:
    """A function's nodes, unless they say something themselves."""
    made = helper.make_node("Twice", ["x"], ["y"], name="call", domain="own")
    body = [node("Exp", ["a"], ["b"], name="one"), asking(node("Sin", ["b"], ["c"], name="two"), priority=9)]
    function = helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 18)])
    proto = model([asking(made, priority=4)], {"x": (FLOAT, [8])}, ["y"])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    graph = frontend.import_model(proto, frontend.ReadOptions()).graph
    assert {n.op: n.priority for n in graph.nodes.values() if n.op in ("Exp", "Sin")} == {"Exp": 4, "Sin": 9}


@pytest.mark.parametrize(
    ("entries", "cause"),
    [
        ({"priority": "high"}, "'priority' in its metadata is 'high'"),
        ({"priority": "1.5"}, "'priority' in its metadata is '1.5'"),
        ({"priority": ""}, "'priority' in its metadata is ''"),
        ({"priority": "--1"}, "'priority' in its metadata is '--1'"),
        ({"priority": "1" + "0" * 9}, "is '1000000000'"),
        ({"stream_label": ""}, "'stream_label' in its metadata is ''"),
        ({"stream_label": "a\nb"}, "'stream_label' in its metadata is"),
    ],
)
def test_what_cannot_be_asked(entries: dict[str, str], cause: str) -> None:
    nodes = [asking(node("Exp", ["x"], ["y"], name="exp"), **entries)]
    with pytest.raises(AtcError) as caught:
        compile_model(model(nodes, {"x": (FLOAT, [8])}, ["y"]))
    (problem,) = caught.value.problems
    assert (problem.code, problem.place) == ("E16112", "node 'exp' (Exp)") and cause in problem.cause


def test_a_key_is_given_once() -> None:
    nodes = [asking(asking(node("Exp", ["x"], ["y"]), priority=1), priority=2)]
    with pytest.raises(AtcError, match="the key 'priority' twice"):
        compile_model(model(nodes, {"x": (FLOAT, [8])}, ["y"]))


@pytest.mark.parametrize("name", ["priority", "_priority", "_stream_label"])
def test_an_attribute_is_no_place_for_it(name: str) -> None:
    made = node("Exp", ["x"], ["y"])
    made.attribute.append(helper.make_attribute(name, 1))
    with pytest.raises(AtcError, match="E16112") as caught:
        compile_model(model([made], {"x": (FLOAT, [8])}, ["y"]))
    assert "metadata_props" in caught.value.problems[0].hint


def test_a_fused_task_has_the_highest_priority_of_its_members() -> None:
    b = Builder("fused")
    x = b.data("x", "float32", (64, 64))
    product = b.op("MatMul", x, b.const(WEIGHT), name="product")
    y = b.op("Relu", product, name="relu")
    b.priority(y, 7)
    plan = compile_graph(b.build(y=y)).plan
    (task,) = [t for t in plan.tasks() if "product" in t.origin]
    assert set(task.origin) == {"product", "relu"} and task.priority == 7
