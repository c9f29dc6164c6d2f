"""More streams are never predicted to be slower than one, whatever the host does in between; late tasks overlap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import prove
from atc_py.emit import Om, om_bytes
from atc_py.errors import AtcError
from atc_py.plan.types import Host, Static, walk
from tests.making import FLOAT, model, node

from .programs import programs

ROUNDING = 0.1
"""Microseconds: predicted latencies are given to one decimal place, tasks' costs in whole cycles."""
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def latency(om: Om) -> float:
    found: float = om.summary["predicted_latency_us"]["after"]
    return found


@st.composite
def mixtures(draw: st.DrawFn) -> ModelProto:
    """Independent chains over one side: products on the cores, determinants on AI CPU, strings and lists on the host.

    Some end where the data tell the size, and some of these are used again.
    """
    side = draw(st.sampled_from([16, 128, 384]))
    nodes: list[NodeProto] = []
    floats, texts = ["x", "z"], ["s"]
    outputs: dict[str, Any] = {}
    for k in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(["product", "softmax", "product", "add", "det", "text", "list", "late", "used"]))
        a, name = draw(st.sampled_from(floats[-4:])), f"v{k}"
        if kind == "text":
            nodes.append(node("StringNormalizer", [texts[-1]], [name], case_change_action=draw(st.sampled_from(CASES))))
            texts.append(name)
            continue
        if kind == "product":
            nodes.append(node("MatMul", [a, "w"], [name]))
        elif kind == "softmax":
            nodes.append(node("Softmax", [a], [name]))
        elif kind == "add":
            nodes.append(node("Add", [a, draw(st.sampled_from(floats))], [name]))
        elif kind == "det":
            nodes += [node("Det", [a], [f"d{k}"]), node("Mul", [a, f"d{k}"], [name])]
        elif kind == "list":
            nodes += [
                node("SequenceConstruct", [a, floats[0]], [f"l{k}"]),
                node("SequenceAt", [f"l{k}", "one"], [name]),
            ]
        else:
            nodes.append(node("NonZero", [a], [f"n{k}"]))
            if kind == "late":
                outputs[f"n{k}"] = TensorProto.INT64
                continue
            nodes += [node("Cast", [f"n{k}"], [f"c{k}"], to=FLOAT), node("ReduceSum", [f"c{k}"], [f"r{k}"], keepdims=0)]
            nodes.append(node("Sub", [a, f"r{k}"], [name]))
        floats.append(name)
    used = {name for n in nodes for name in n.input}
    ends = [v for v in (*floats[2:], *texts[1:], *outputs) if v not in used]
    inputs = {"x": (FLOAT, [side, side]), "z": (FLOAT, [side, side]), "s": (TensorProto.STRING, [3])}
    weight = np.eye(side, dtype=np.float32)
    return model(nodes, inputs, ends or floats[2:3] or texts[1:], {"w": weight, "one": np.array(1)})


CASES = ["UPPER", "LOWER"]


@settings(max_examples=80, suppress_health_check=SLOW, deadline=None)
@given(proto=mixtures(), sink=st.sampled_from(["graph", "subgraph"]), level=st.sampled_from([0, 2]))
def test_the_default_is_never_slower_than_one_stream(proto: ModelProto, sink: str, level: int) -> None:
    default = compile_model(proto, Options(sink=sink, opt_level=level))
    single = compile_model(proto, Options(sink=sink, opt_level=level, single_stream=True))
    assert latency(default) <= latency(single) + ROUNDING
    prove(default.plan)


@settings(max_examples=40, suppress_health_check=SLOW, deadline=None)
@given(proto=programs(), sink=st.sampled_from(["graph", "subgraph"]))
def test_nor_with_branches_and_loops(proto: ModelProto, sink: str) -> None:
    default = compile_model(proto, Options(sink=sink, opt_level=0))
    single = compile_model(proto, Options(sink=sink, opt_level=0, single_stream=True))
    assert latency(default) <= latency(single) + ROUNDING


def tower(prefix: str, depth: int = 5, side: int = 512) -> tuple[list[NodeProto], str]:
    """A chain of products and what lies between them."""
    nodes, value = [], "x"
    for k in range(depth):
        nodes.append(node("MatMul", [value, "w"], [f"{prefix}m{k}"]))
        nodes.append(node("Softmax", [f"{prefix}m{k}"], [f"{prefix}s{k}"], axis=0))
        value = f"{prefix}s{k}"
    return nodes, value


def test_a_task_of_the_host_does_not_make_streams() -> None:
    """A string that is put into upper case beside a tower: no stream hides what the host does."""
    nodes, end = tower("a")
    nodes.insert(5, node("StringNormalizer", ["s"], ["t"], case_change_action="UPPER"))
    inputs = {"x": (FLOAT, [512, 512]), "s": (TensorProto.STRING, [3])}
    om = compile_model(model(nodes, inputs, [end, "t"], {"w": np.eye(512, dtype=np.float32)}))
    assert om.plan.streams == 1
    assert (om.summary["sink"]["launches"], om.summary["sink"]["synchronisations"]) == (1, 1)


def late_beside(first: bool) -> ModelProto:
    """NonZero of the input beside a tower; the larger it is, the longer AI CPU takes."""
    nodes, end = tower("a")
    nodes.insert(0 if first else len(nodes), node("NonZero", ["x"], ["n"]))
    return model(nodes, {"x": (FLOAT, [512, 512])}, [end, "n"], {"w": np.eye(512, dtype=np.float32)})


@pytest.mark.parametrize("first", [False, True])
def test_a_size_is_found_out_beside_other_work(first: bool) -> None:
    proto = late_beside(first)
    om, single = compile_model(proto), compile_model(proto, Options(single_stream=True))
    assert om.plan.streams == 2
    assert latency(om) < latency(single) - 20
    (region,) = om.plan.regions
    assert isinstance(region, Static) and any(t.binds for t in region.tasks)
    assert any(isinstance(r, Host) for r in walk(single.plan.regions))
    feeds = {"x": np.eye(512, dtype=np.float32) * np.arange(512, dtype=np.float32)}
    for a, b in zip(Session(om_bytes(om)).run(None, feeds), Session(om_bytes(single)).run(None, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_sizes_are_found_out_in_one_list() -> None:
    """The host waits once for both."""
    nodes = []
    for prefix in "ab":
        some, end = tower(prefix)
        nodes += [*some, node("NonZero", [end], [f"{prefix}n"])]
    proto = model(nodes, {"x": (FLOAT, [512, 512])}, ["an", "bn"], {"w": np.eye(512, dtype=np.float32)})
    om, single = (
        compile_model(proto, Options(opt_level=0)),
        compile_model(proto, Options(opt_level=0, single_stream=True)),
    )
    assert latency(om) < latency(single)
    assert sum(bool(t.binds) for r in om.plan.regions if isinstance(r, Static) for t in r.tasks) == 2
    assert om.summary["sink"]["synchronisations"] < single.summary["sink"]["synchronisations"]


def test_what_needs_a_size_comes_in_a_later_list() -> None:
    """The verifier refuses a plan in which it does not."""
    nodes, end = tower("a")
    nodes += [node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["c"], to=FLOAT), node("Exp", ["c"], ["e"])]
    proto = model(nodes, {"x": (FLOAT, [512, 512])}, [end, "e"], {"w": np.eye(512, dtype=np.float32)})
    plan = compile_model(proto, Options(opt_level=0)).plan
    assert plan.streams > 1
    lists = [r for r in plan.regions if isinstance(r, Static)]
    number = next(k for k, r in enumerate(lists) if any(t.binds for t in r.tasks))
    assert len(lists) > number + 1
    together = (Static(tuple(t for r in lists for t in r.tasks)),)
    with pytest.raises(AtcError, match="finds out in the same list") as caught:
        prove(replace(plan, regions=together))
    assert "E31011" in {p.code for p in caught.value.problems}
