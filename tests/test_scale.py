"""Models that are long, wide or deep: no recursion over the graph, no quadratic stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atc_py import Session, compile_model
from atc_py.compiler import Options
from atc_py.emit import om_bytes
from tests.making import BOOL, FLOAT, body_attribute, graph, model, node

LIMIT = 30.0
"""Seconds that a stage may take on a busy machine; alone each takes a few."""


def timed(name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    print(f"{name}: {elapsed:.2f} s")
    assert elapsed < LIMIT, name
    return result


def convert_and_run(proto: Any, level: int, feeds: dict[str, Any]) -> tuple[Any, list[Any]]:
    om = timed(f"convert O{level}", lambda: compile_model(proto, Options(opt_level=level)))
    data = timed("write", lambda: om_bytes(om))
    session = timed("load", lambda: Session(data))
    return om, timed("run", lambda: session.run(None, feeds))


def chain(length: int) -> Any:
    """x → Sin → Cos → Sin … : nothing to fold or to fuse into one."""
    ops = ["Sin", "Cos", "Tanh", "Abs"]
    nodes = [node(ops[i % 4], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    return model(nodes, {"v0": (FLOAT, [4])}, [f"v{length}"])


def expected_chain(length: int, x: Any) -> Any:
    for i in range(length):
        x = [np.sin, np.cos, np.tanh, np.abs][i % 4](x)
    return x


@pytest.mark.parametrize("level", [0, 2])
def test_a_chain_of_ten_thousand_nodes(level: int) -> None:
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    om, [y] = convert_and_run(chain(10_000), level, {"v0": x})
    np.testing.assert_allclose(y, expected_chain(10_000, x), rtol=1e-4)
    assert om.plan.arena <= 2 * 512, "a chain needs two buffers at the most"


def test_a_chain_with_a_symbolic_size() -> None:
    nodes = [node("Sin" if i % 2 else "Cos", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    proto = model(nodes, {"v0": (FLOAT, ["N", 4])}, ["v3000"])
    _, [y] = convert_and_run(proto, 2, {"v0": np.ones((3, 4), np.float32)})
    assert y.shape == (3, 4)


def test_a_chain_of_constants_is_folded() -> None:
    nodes = [node("Sin", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    proto = model(
        [*nodes, node("Add", ["x", "v3000"], ["y"])], {"x": (FLOAT, [4])}, ["y"], {"v0": np.array([1] * 4, np.float32)}
    )
    om, [y] = convert_and_run(proto, 2, {"x": np.zeros(4, np.float32)})
    assert len(list(om.plan.tasks())) == 1 and y.shape == (4,)


def test_two_thousand_branches() -> None:
    n = 2000
    nodes = [node("Mul", ["x", f"w{i}"], [f"b{i}"]) for i in range(n)] + [
        node("Sum", [f"b{i}" for i in range(n)], ["y"])
    ]
    weights = {f"w{i}": np.array([i], np.float32) for i in range(n)}
    proto = model(nodes, {"x": (FLOAT, [4])}, ["y"], weights)
    _, [y] = convert_and_run(proto, 2, {"x": np.ones(4, np.float32)})
    np.testing.assert_allclose(y, np.full(4, n * (n - 1) / 2), rtol=1e-5)


def test_two_thousand_outputs() -> None:
    n = 2000
    nodes = [node("Add", ["x", f"w{i}"], [f"y{i}"]) for i in range(n)]
    proto = model(
        nodes, {"x": (FLOAT, [2])}, [f"y{i}" for i in range(n)], {f"w{i}": np.array([i], np.float32) for i in range(n)}
    )
    _, ys = convert_and_run(proto, 2, {"x": np.zeros(2, np.float32)})
    assert [float(y[0]) for y in ys] == list(range(n))


def test_a_value_with_five_thousand_readers() -> None:
    n = 5000
    nodes = [node("Relu", ["x"], ["r"])]
    nodes += [node("Add", ["r" if i == 0 else f"s{i}", "r"], [f"s{i + 1}"]) for i in range(n)]
    proto = model(nodes, {"x": (FLOAT, [2])}, [f"s{n}"])
    _, [y] = convert_and_run(proto, 2, {"x": np.ones(2, np.float32)})
    assert y.tolist() == [n + 1, n + 1]


def nested(depth: int) -> Any:
    """If inside If …: each level captures x and the condition, and adds 1."""
    inner = graph([node("Add", ["x", "one"], ["z0"])], {}, ["z0"])
    other = graph([node("Neg", ["x"], ["e0"])], {}, ["e0"])
    for level in range(1, depth):
        branch = node("If", ["c"], [f"r{level}"])
        branch.attribute.append(body_attribute(inner, "then_branch"))
        branch.attribute.append(body_attribute(other, "else_branch"))
        inner = graph([branch, node("Add", [f"r{level}", "one"], [f"z{level}"])], {}, [f"z{level}"])
        other = graph([node("Neg", ["x"], [f"e{level}"])], {}, [f"e{level}"])
    outer = node("If", ["c"], ["y"])
    outer.attribute.append(body_attribute(inner, "then_branch"))
    outer.attribute.append(body_attribute(other, "else_branch"))
    return model([outer], {"x": (FLOAT, [2]), "c": (BOOL, [])}, ["y"], {"one": np.array([1], np.float32)})


@pytest.mark.parametrize("level", [0, 2])
def test_thirty_nested_ifs(level: int) -> None:
    proto = nested(30)
    x = np.zeros(2, np.float32)
    om, [y] = convert_and_run(proto, level, {"x": x, "c": np.array(True)})
    assert y.tolist() == [30, 30]
    assert Session(om_bytes(om)).run(None, {"x": x + 1, "c": np.array(False)})[0].tolist() == [-1, -1]
