"""The latency before optimization is that of the same work: engines, loops and copies as any plan has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, compile_model
from tests.making import BOOL, DOUBLE, FLOAT, INT64, STRING, body_attribute, graph, model, node

HAND_OVER = 60.0
"""Microseconds of a task of AI CPU on the target, whatever it computes."""


def latency(proto: ModelProto, **options: Any) -> tuple[float, float]:
    """Predicted microseconds before and after."""
    found = compile_model(proto, Options(**options)).summary["predicted_latency_us"]
    return found["before"], found["after"]


@pytest.mark.parametrize("mode", ["origin", "fp16", "mixed_float16"])
def test_what_its_type_forces_to_ai_cpu_is_priced_there(mode: str) -> None:
    proto = model([node("MatMul", ["d", "d"], ["y"])], {"d": (DOUBLE, [128, 128])}, ["y"])
    before, after = latency(proto, precision_mode=mode)
    assert before == pytest.approx(after) and before > 1000
    single = model([node("MatMul", ["d", "d"], ["y"])], {"d": (FLOAT, [128, 128])}, ["y"])
    assert latency(single)[0] < before / 5


def test_what_its_kernel_or_strings_force_away_is_priced_there() -> None:
    unique = model([node("Unique", ["x"], ["y"])], {"x": (FLOAT, [64])}, ["y"])
    assert latency(unique)[0] >= 80 + HAND_OVER
    strings = model([node("StringNormalizer", ["s"], ["y"], case_change_action="UPPER")], {"s": (STRING, [3])}, ["y"])
    before, after = latency(strings)
    assert before <= after and after - before < 1


def test_work_of_both_kinds_gains_what_its_ai_core_part_gains() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["d", "d"], ["z"])]
    inputs: dict[str, Any] = {"x": (FLOAT, [64, 64]), "d": (DOUBLE, [64, 64])}
    proto = model(nodes + [node("Exp", ["b"], ["y"])], inputs, ["y", "z"], {"w": np.ones((64, 64), np.float32)})
    before, after = latency(proto)
    assert after < before < after + HAND_OVER


def swapping(count: int) -> ModelProto:
    """A loop that only swaps what it carries: nothing but copies, which no plan can do without."""
    names = [f"v{k}" for k in range(count)]
    nodes = [node("Identity", [name], [f"{name}_out"]) for name in names] + [node("Identity", ["c"], ["again"])]
    given = {"i": (INT64, []), "c": (BOOL, []), **{name: (FLOAT, [64, 64]) for name in names}}
    rotated = [f"{name}_out" for name in (*names[1:], names[0])]
    body = graph(nodes, given, ["again", *rotated], name="body")
    loop = node("Loop", ["n", "", *[f"x{k}" for k in range(count)]], [f"y{k}" for k in range(count)])
    loop.attribute.append(body_attribute(body, "body"))
    inputs: dict[str, Any] = {f"x{k}": (FLOAT, [64, 64]) for k in range(count)}
    return model([loop], inputs | {"n": (INT64, [])}, [f"y{k}" for k in range(count)])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_loops_are_priced_as_often_before_as_after(count: int) -> None:
    before, after = latency(swapping(count), single_stream=True)
    assert before == pytest.approx(after, rel=0.05) and after > 80 + 16 * count * 3


def test_outputs_that_need_copies_have_them_before_too() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])]
    proto = model(nodes, {"x": (FLOAT, [64, 64])}, ["y", "z"])
    before, after = latency(proto, single_stream=True)
    assert before == pytest.approx(after) and after > 80
    own = model([node("Exp", ["x"], ["y"])], {"x": (FLOAT, [64, 64])}, ["y"])
    assert latency(own)[0] == pytest.approx(latency(own)[1])


def test_branches_are_priced_by_the_longer_one_before_and_after() -> None:
    def branch(name: str, ops: list[str]) -> Any:
        values = ["x", *[f"{name}{k}" for k in range(len(ops))]]
        return graph([node(op, [values[k]], [values[k + 1]]) for k, op in enumerate(ops)], {}, [values[-1]], name=name)

    choice = node("If", ["c"], ["y"])
    choice.attribute.append(body_attribute(branch("then", ["Softmax"]), "then_branch"))
    choice.attribute.append(body_attribute(branch("else", ["Softmax", "Transpose", "Softmax"]), "else_branch"))
    proto = model([choice], {"x": (FLOAT, [64, 64]), "c": (BOOL, [])}, ["y"])
    before, after = latency(proto, opt_level=0)
    assert before == pytest.approx(after)
