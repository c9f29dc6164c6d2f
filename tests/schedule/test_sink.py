"""How a model is handed to the device: launches, waits, and the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.emit import om_bytes
from atc_py.errors import AtcError
from tests.making import BOOL, FLOAT, INT64, body_attribute, branching, graph, model, node

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


def test_what_the_host_does_costs_time() -> None:
    times = [figures(branching(), sink)[2] for sink in ("graph", "subgraph", "op")]
    assert times[0] < times[1] < times[2]


def test_a_sink_that_is_none() -> None:
    with pytest.raises(AtcError, match="--sink"):
        compile_model(branching(), Options(sink="whole"))
