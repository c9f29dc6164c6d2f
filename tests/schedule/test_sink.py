"""How a model is handed to the device: launches, waits, and the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import prove
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from atc_py.schedule.known import tasks_of
from tests.making import BOOL, FLOAT, INT64, body_attribute, branching, graph, model, node, tensor

from .branching import feeds_of, towers

OPTIONS: dict[str, Any] = {"opt_level": 0}


def figures(proto: ModelProto, sink: str, **options: Any) -> tuple[int, int, float]:
    """(launches, synchronisations, predicted microseconds)."""
    summary = compile_model(proto, Options(sink=sink, **{**OPTIONS, **options})).summary
    found = summary["sink"]
    assert found["mode"] == sink
    return found["launches"], found["synchronisations"], summary["predicted_latency_us"]["after"]


def all_sinks(proto: ModelProto, **options: Any) -> dict[str, tuple[int, int]]:
    """Launches and synchronisations of each sink; the outputs are the same."""
    feeds = feeds_of(proto)
    found, outputs = {}, []
    for sink in ("graph", "subgraph", "op"):
        found[sink] = figures(proto, sink, **options)[:2]
        om = compile_model(proto, Options(sink=sink, **{**OPTIONS, **options}))
        outputs.append(Session(om_bytes(om)).run(None, feeds))
    for other in outputs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(outputs[0], other, strict=True))
    return found


def test_a_whole_model_is_launched_once() -> None:
    proto = towers(2, 3)
    tasks = len(list(compile_model(proto, Options(sink="op")).plan.tasks()))
    found = all_sinks(proto, opt_level=2)
    assert found == {"graph": (1, 1), "subgraph": (1, 1), "op": (tasks, 1)}
    assert figures(proto, "graph", opt_level=2)[2] < figures(proto, "op", opt_level=2)[2]


def test_a_size_to_find_out_cuts_the_model() -> None:
    nodes = [node("Sin", ["x"], ["s"]), node("NonZero", ["s"], ["n"]), node("Cast", ["n"], ["c"], to=FLOAT)]
    nodes += [node("ReduceSum", ["c"], ["y"], keepdims=0)]
    proto = model(nodes, {"x": (FLOAT, [8])}, ["y"])
    tasks = len(list(compile_model(proto, Options(sink="op", **OPTIONS)).plan.tasks()))
    # What comes before NonZero, NonZero, and what comes after it; the host waits for the size and for the result.
    assert all_sinks(proto) == {"graph": (2, 2), "subgraph": (3, 2), "op": (tasks, 2)}


def test_branches_sink_with_what_is_around_them() -> None:
    assert all_sinks(branching()) == {"graph": (1, 1), "subgraph": (3, 2), "op": (5, 2)}


def test_a_loop_is_launched_once_or_in_each_iteration() -> None:
    body = graph(
        [node("Neg", ["a"], ["n"]), node("Exp", ["n"], ["b"]), node("Identity", ["c"], ["again"])],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [4])},
        ["again", "b"],
        name="body",
    )
    loop = node("Loop", ["n", "", "x"], ["y"])
    loop.attribute.append(body_attribute(body, "body"))
    proto = model([loop], {"x": (FLOAT, [4])}, ["y"], {"n": np.array(7)})
    found = all_sinks(proto)
    assert found["graph"] == (1, 1)
    assert found["subgraph"][0] == 7 and found["op"][0] >= 14


def looping(*, start: Any = None, trips: bool = True, made: bool = True) -> ModelProto:
    """A loop; `start`: its condition is an input ("input"), constant or not given; `made`: its body makes the next."""
    following = node("Less", ["s", "limit"], ["again"]) if made else node("Identity", ["c"], ["again"])
    body = graph(
        [node("MatMul", ["a", "w"], ["n"]), node("ReduceSum", ["n"], ["s"], keepdims=0), following],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [8, 8])},
        ["again", "n"],
        name="body",
    )
    loop = node("Loop", ["n" if trips else "", "" if start is None else "start", "x"], ["y"])
    loop.attribute.append(body_attribute(body, "body"))
    inputs: dict[str, Any] = {"x": (FLOAT, [8, 8])}
    inputs |= {"n": (INT64, [])} if trips else {}
    inputs |= {"start": (BOOL, [])} if start == "input" else {}
    constants = {"w": np.ones((8, 8), np.float32), "limit": np.float32(1e9)}
    return model([loop], inputs, ["y"], constants | ({"start": np.array(True)} if start is True else {}))


@pytest.mark.parametrize("sink", ["subgraph", "op"])
def test_the_host_waits_for_a_condition_that_an_iteration_makes(sink: str) -> None:
    waits = {
        (start, trips, made): figures(looping(start=start, trips=trips, made=made), sink)[1]
        for start, trips, made in (
            ("input", True, True), ("input", False, True), (True, True, True), (None, False, True),
            ("input", True, False), ("input", False, False), (None, True, True), (None, True, False),
        )
    }  # fmt: skip
    # Sixteen iterations, as any number that is not known; the result; the condition with which the loop begins.
    assert waits == {
        ("input", True, True): 18,
        ("input", False, True): 18,
        (True, True, True): 17,  # what is constant the host knows
        (None, False, True): 17,
        ("input", True, False): 2,  # what the body only hands on ends no loop that has begun
        ("input", False, False): 2,
        (None, True, True): 1,  # a loop that counts: what its body says of the condition is not looked at
        (None, True, False): 1,
    }


def test_a_condition_that_a_loop_carries_or_a_branch_makes_is_made() -> None:
    body = graph(
        [node("MatMul", ["a", "w"], ["n"]), node("ReduceSum", ["n"], ["s"], keepdims=0),
         node("Less", ["s", "limit"], ["t"]), node("Identity", ["f"], ["again"])],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [8, 8]), "f": (BOOL, [])},
        ["again", "n", "t"],
        name="body",
    )  # fmt: skip
    loop = node("Loop", ["n", "go", "x", "go"], ["y", "z"])
    loop.attribute.append(body_attribute(body, "body"))
    constants = {"w": np.ones((8, 8), np.float32), "limit": np.float32(1e9)}
    inputs = {"x": (FLOAT, [8, 8]), "n": (INT64, []), "go": (BOOL, [])}
    assert figures(model([loop], inputs, ["y"], constants), "subgraph")[1] == 18


@pytest.mark.parametrize("trips", [1, 3])
def test_a_loop_that_counts_runs_as_often_as_it_is_told(trips: int) -> None:
    """The count of waits is right: at run time nothing asks what the body says of the condition."""
    proto = looping(made=True)
    limits = [t for t in proto.graph.initializer if t.name == "limit"]
    limits[0].CopyFrom(tensor("limit", np.float32(-1e9)))
    out = Session(om_bytes(compile_model(proto))).run(None, {"x": np.ones((8, 8), np.float32), "n": np.array(trips)})
    assert np.array_equal(out[0], np.full((8, 8), 8.0**trips, np.float32))


# -- what the host has to know to launch a task ------------------------------------------------------------------


def computed(*tail: NodeProto, size: Any) -> ModelProto:
    """`k`, integers that the device makes of the input `s`, beside `r` of x; the last of the nodes gives y."""
    nodes = [node("Relu", ["x"], ["r"]), node("Abs", ["s"], ["a"]), node("Cast", ["a"], ["f"], to=FLOAT)]
    nodes += [node("Sqrt", ["f"], ["q"]), node("Cast", ["q"], ["k"], to=INT64), *tail]
    return model(nodes, {"x": (FLOAT, [4, 6]), "s": (INT64, size)}, ["y"])


TOP = computed(node("TopK", ["r", "k"], ["y", "i"]), size=[1])
FORMED = computed(node("Reshape", ["r", "k"], ["z"]), node("Sigmoid", ["z"], ["p"]), node("Softmax", ["p"], ["y"]),
                  size=["K"])  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"single_stream": True}, {"opt_level": 0}, {"sink": "op"}])
@pytest.mark.parametrize(("proto", "value"), [(TOP, [4]), (FORMED, [9, 64])])
def test_such_a_task_begins_a_list(proto: ModelProto, value: list[int], options: dict[str, Any]) -> None:
    om = compile_model(proto, Options(**options))
    prove(om.plan)
    lists = [[t.kernel for t in tasks_of(r)] for r in om.plan.regions]
    firsts = ["TopK"] if proto is TOP else ["Reshape", "Sigmoid", "Softmax"]
    assert [names[0] for names in lists[1:]] == firsts and "Relu" in lists[0]
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (y,) = Session(om_bytes(om)).run(None, {"x": x, "s": np.array(value)})
    assert y.shape == ((4, 2) if proto is TOP else (3, 8))


def test_on_several_streams_such_a_task_begins_a_list_too() -> None:
    nodes = [node("Abs", ["s"], ["a"]), node("Cast", ["a"], ["f"], to=FLOAT), node("Sqrt", ["f"], ["q"])]
    nodes.append(node("Cast", ["q"], ["k"], to=INT64))
    for tower in range(2):
        ends = ["x", *(f"s{4 * tower + k}" for k in range(4))]
        for k in range(4):
            made = f"m{4 * tower + k}"
            nodes.append(node("MatMul", [ends[k], f"w{tower}"], [made]))
            nodes.append(node("Softmax", [made], [ends[k + 1]], axis=0))
    nodes.append(node("TopK", ["s3", "k"], ["v", "i"]))
    weights = {f"w{k}": np.eye(512, dtype=np.float32) * (k + 1) for k in range(2)}
    om = compile_model(model(nodes, {"x": (FLOAT, [512, 512]), "s": (INT64, [1])}, ["v", "s7"], weights))
    prove(om.plan)
    assert om.plan.streams > 1
    (its,) = [k for k, r in enumerate(om.plan.regions) if any(t.kernel == "TopK" for t in tasks_of(r))]
    assert its and tasks_of(om.plan.regions[0])


def test_the_host_waits_for_what_it_has_to_know() -> None:
    assert figures(TOP, "graph")[:2] == (2, 3), "k, the size of the result, the result"
    assert figures(FORMED, "graph")[:2] == (4, 4), "k, the shapes of z and p, the result"
    tasks = len(list(compile_model(TOP, Options(sink="op", **OPTIONS)).plan.tasks()))
    assert figures(TOP, "op")[:2] == (tasks, 3)
    given = model([node("Relu", ["x"], ["r"]), node("Expand", ["r", "s"], ["y"])],
                  {"x": (FLOAT, [4, 6]), "s": (INT64, [2])}, ["y"])  # fmt: skip
    assert figures(given, "graph")[1] < 3, "what the caller gives it knows"


@pytest.mark.parametrize("made", [True, False])
def test_a_loop_whose_tasks_are_launched_with_what_it_makes(made: bool) -> None:
    """The host runs it, and waits for what an iteration makes; the number of the iteration it knows."""
    following = [node("Div", ["a", "a"], ["d"]), node("Cast", ["d"], ["e"], to=INT64)]
    following += [node("ReduceMax", ["e"], ["m"], keepdims=1)]
    start = ["k"] if made else ["j"]
    nodes = [node("Reshape", ["i", "one"], ["j"]), node("Slice", ["x", *start, "end"], ["p"])]
    nodes += [node("ReduceSum", ["p"], ["s"], keepdims=0), node("Add", ["a", "s"], ["b"]), *(following if made else [])]
    nodes += [node("Identity", ["c"], ["again"])]
    inputs: dict[str, Any] = {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [4])}
    inputs |= {"k": (INT64, [1])} if made else {}
    body = graph(nodes, inputs, ["again", "b", *(["m"] if made else [])], name="body")
    loop = node("Loop", ["n", "", "x", *(["first"] if made else [])], ["y", *(["z"] if made else [])])
    loop.attribute.append(body_attribute(body, "body"))
    constants = {"n": np.array(3), "first": np.array([0]), "one": np.array([1]), "end": np.array([4])}
    proto = model([loop], {"x": (FLOAT, [4])}, ["y"], constants)
    launches, waits, _ = figures(proto, "graph")
    assert launches >= 3 and waits >= 4
    (y,) = Session(om_bytes(compile_model(proto))).run(None, {"x": np.ones(4, np.float32)})
    assert y.tolist() == ([11.0] * 4 if made else [10.0] * 4)


def test_what_the_host_does_costs_time() -> None:
    times = [figures(branching(), sink)[2] for sink in ("graph", "subgraph", "op")]
    assert times[0] < times[1] < times[2]


def test_a_sink_that_is_none() -> None:
    with pytest.raises(AtcError, match="--sink"):
        compile_model(branching(), Options(sink="whole"))
