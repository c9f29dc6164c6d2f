"""How a model is handed to the device: launches, waits, and the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
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


def test_what_the_host_does_costs_time() -> None:
    times = [figures(branching(), sink)[2] for sink in ("graph", "subgraph", "op")]
    assert times[0] < times[1] < times[2]


def test_a_sink_that_is_none() -> None:
    with pytest.raises(AtcError, match="--sink"):
        compile_model(branching(), Options(sink="whole"))
