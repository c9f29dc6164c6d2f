"""The simulated device: the plan and nothing beside it decides where a result lies; control flow; random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atc_py import AtcError, Options, Session, compile_model
from atc_py.compiler import prove
from atc_py.emit import om_bytes
from atc_py.npu.device import BoundPlan, Context
from atc_py.npu.weights import Weights
from atc_py.plan.types import Plan, Space, Static
from atc_py.runtime.loader import load
from tests.making import BOOL, FLOAT, INT64, body_attribute, graph, model, node, session


def loaded_plan(proto: Any, opt_level: int = 0, **options: Any) -> tuple[Plan, Weights]:
    loaded = load(om_bytes(compile_model(proto, Options(opt_level=opt_level, **options))))
    return loaded.plan, loaded.weights


def run(plan: Plan, weights: Weights, *inputs: Any, env: dict[str, int] | None = None) -> list[Any]:
    bound = BoundPlan(plan, weights, env or {})
    return Context(bound).run(inputs, bound.output_arrays())


def two_live() -> tuple[Plan, Weights]:
    """Two values that are live together: a = Sin(x) and b = Transpose(x), then y = a·b."""
    nodes = [node("Sin", ["x"], ["a"]), node("Transpose", ["x"], ["b"], perm=[1, 0]), node("MatMul", ["a", "b"], ["y"])]
    return loaded_plan(model(nodes, {"x": (FLOAT, [16, 16])}, ["y"]))


X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)


def test_a_wrong_address_gives_a_wrong_result() -> None:
    """Otherwise the plan would not be what is tested when a model is run."""
    plan, weights = two_live()
    np.testing.assert_allclose(run(plan, weights, X)[0], np.sin(X) @ X.T, rtol=1e-4, atol=1e-5)
    same = tuple(replace(b, offset=0) if b.space is Space.ARENA else b for b in plan.buffers)
    broken = replace(plan, buffers=same)
    assert not np.allclose(run(broken, weights, X)[0], np.sin(X) @ X.T, rtol=1e-4, atol=1e-5)
    with pytest.raises(AtcError):
        prove(broken)


def test_a_wrong_order_gives_a_wrong_result() -> None:
    plan, weights = two_live()
    [region] = plan.regions
    assert isinstance(region, Static)
    swapped = replace(plan, regions=(Static(tuple(reversed(region.tasks))),))
    bound = BoundPlan(swapped, weights)
    context = Context(bound)
    context.spaces.arena[:] = 0xFF  # NaN: new memory may hold what an earlier run, in the right order, has left
    got = context.run([X], bound.output_arrays())[0]
    assert not np.allclose(got, np.sin(X) @ X.T, rtol=1e-4, atol=1e-5)
    with pytest.raises(AtcError):
        prove(swapped)


def test_contexts_of_one_bound_plan_do_not_meet() -> None:
    plan, weights = two_live()
    bound = BoundPlan(plan, weights)
    one, two = Context(bound), Context(bound)
    a = one.run([X], bound.output_arrays())[0]
    b = two.run([X * 2], bound.output_arrays())[0]
    np.testing.assert_array_equal(a, one.run([X], bound.output_arrays())[0])
    assert not np.allclose(a, b)
    assert not np.shares_memory(one.spaces.arena, two.spaces.arena)


def test_the_caller_s_buffers_are_written_where_they_lie() -> None:
    plan, weights = two_live()
    bound = BoundPlan(plan, weights)
    outputs = bound.output_arrays()
    assert Context(bound).run([X], outputs)[0] is outputs[0]


def test_a_kernel_that_fails_names_its_task() -> None:
    gather = session(
        model([node("Gather", ["x", "i"], ["y"], name="pick")], {"x": (FLOAT, [3]), "i": (INT64, [1])}, ["y"])
    )
    with pytest.raises(AtcError) as caught:
        gather.run(None, {"x": np.zeros(3, np.float32), "i": np.array([5])})
    assert caught.value.code == "E40001" and "pick" in caught.value.problems[0].place


def test_splats_take_one_element() -> None:
    nodes = [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"])]
    plan, weights = loaded_plan(model(nodes, {"x": (FLOAT, [1000, 1000])}, ["y"], {"s": np.array([1000, 1000])}))
    if any(b.space is Space.WEIGHTS for b in plan.buffers):
        assert weights.made_nbytes <= 64
    assert run(plan, weights, np.ones((1000, 1000), np.float32))[0].sum() == 1e6


def test_a_constant_without_bytes_does_not_hide_the_one_that_begins_there() -> None:
    nodes = [node("Expand", ["c", "s"], ["e"]), node("MatMul", ["x", "e"], ["y"]), node("Identity", ["none"], ["z"])]
    constants = {"c": np.float32(0.25), "s": np.array([100, 100]), "none": np.zeros(0, np.float32)}
    plan, weights = loaded_plan(model(nodes, {"x": (FLOAT, [100, 100])}, ["y", "z"], constants), opt_level=2)
    splat, none = (next(b for b in plan.buffers if b.space is Space.WEIGHTS and b.nbytes == n) for n in (4, 0))
    assert splat.offset == none.offset and splat.id < none.id, "nothing would be hidden"
    y, z = run(plan, weights, np.ones((100, 100), np.float32))
    assert (y == 25).all() and z.shape == (0,)


# -- loops ---------------------------------------------------------------------------------------------------------


def looped(trips: Any, condition: str, body: Any, carried: dict[str, Any], outputs: list[str]) -> Session:
    loop = node("Loop", [trips, condition, *carried], outputs)
    loop.attribute.append(body_attribute(body))
    inputs = {**carried, **({"n": (INT64, [])} if trips else {}), **({"go": (BOOL, [])} if condition else {})}
    return session(model([loop], inputs, outputs))


@pytest.mark.parametrize("shape", [[], [3], ["N", 2]])
def test_loops_of_no_trips_give_empty_stacks_of_the_right_shape(shape: list[Any]) -> None:
    body = graph(
        [node("Identity", ["c"], ["c1"]), node("Neg", ["s"], ["s1"]), node("Abs", ["s"], ["item"])],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, shape)},
        ["c1", "s1", "item"],
    )
    runner = looped("n", "", body, {"x": (FLOAT, shape)}, ["y", "items"])
    actual = [d if isinstance(d, int) else 4 for d in shape]
    x = np.ones(actual, np.float32)
    for trips in (0, 2, 0):
        y, items = runner.run(None, {"x": x, "n": np.array(trips)})
        assert items.shape == (trips, *actual) and items.dtype == np.float32
        np.testing.assert_array_equal(y, x * (-1) ** trips)


def test_a_loop_ends_by_its_condition() -> None:
    body = graph(
        [node("Add", ["s", "s"], ["s1"]), node("Less", ["s1", "limit"], ["c1"])],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [])},
        ["c1", "s1"],
    )
    loop = node("Loop", ["", "go", "x"], ["y"])
    loop.attribute.append(body_attribute(body))
    runner = session(model([loop], {"x": (FLOAT, []), "go": (BOOL, [])}, ["y"], {"limit": np.float32(100)}))
    assert runner.run(None, {"x": np.float32(1), "go": np.array(True)})[0] == 128
    assert runner.run(None, {"x": np.float32(1), "go": np.array(False)})[0] == 1


def test_a_state_that_grows() -> None:
    body = graph(
        [node("Identity", ["c"], ["c1"]), node("Concat", ["s", "s"], ["s1"], axis=0)],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [None])},
        ["c1", "s1"],
    )
    runner = looped("n", "", body, {"x": (FLOAT, [None])}, ["y"])
    for trips in (0, 1, 4):
        assert runner.run(None, {"x": np.ones(3, np.float32), "n": np.array(trips)})[0].shape == (3 * 2**trips,)


def test_states_that_change_places() -> None:
    """(a, b) ← (b, a): each iteration must read both before it writes either."""
    body = graph(
        [node("Identity", ["c"], ["c1"])],
        {"i": (INT64, []), "c": (BOOL, []), "a": (FLOAT, [2]), "b": (FLOAT, [2])},
        ["c1", "b", "a"],
    )
    runner = looped("n", "", body, {"p": (FLOAT, [2]), "q": (FLOAT, [2])}, ["y", "z"])
    p, q = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    for trips in range(4):
        y, z = runner.run(None, {"p": p, "q": q, "n": np.array(trips)})
        assert (y.tolist(), z.tolist()) == ((p.tolist(), q.tolist()) if trips % 2 == 0 else (q.tolist(), p.tolist()))


def test_the_counter_and_the_condition_are_seen_inside() -> None:
    body = graph(
        [
            node("Identity", ["c"], ["c1"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Cast", ["c"], ["g"], to=FLOAT),
            node("Add", ["s", "f"], ["s1"]),
        ],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [])},
        ["c1", "s1", "f", "g"],
    )
    runner = looped("n", "", body, {"x": (FLOAT, [])}, ["y", "counts", "flags"])
    y, counts, flags = runner.run(None, {"x": np.float32(0), "n": np.array(5)})
    assert y == 10 and counts.tolist() == [0, 1, 2, 3, 4] and flags.tolist() == [1] * 5


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("direction", [0, 1])
def test_scans_along_any_axis_and_backwards(axis: int, direction: int) -> None:
    body = graph(
        [node("Add", ["s", "p"], ["t"]), node("Identity", ["t"], ["o"])],
        {"s": (FLOAT, [3]), "p": (FLOAT, [3])},
        ["t", "o"],
    )
    scan = node(
        "Scan",
        ["z", "x"],
        ["y", "ys"],
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_axes=[axis],
        scan_output_directions=[direction],
    )
    scan.attribute.append(body_attribute(body))
    shape = [5, 3] if axis == 0 else [3, 5]
    runner = session(model([scan], {"z": (FLOAT, [3]), "x": (FLOAT, shape)}, ["y", "ys"]))
    x = np.arange(15, dtype=np.float32).reshape(shape)
    y, ys = runner.run(None, {"z": np.zeros(3, np.float32), "x": x})
    rows = x if axis == 0 else x.T
    sums = np.cumsum(rows[::-1] if direction else rows, axis=0)
    np.testing.assert_array_equal(y, sums[-1])
    stacked = sums[::-1] if direction else sums
    np.testing.assert_array_equal(ys, stacked if axis == 0 else stacked.T)


# -- random operators ----------------------------------------------------------------------------------------------


def test_random_operators_differ_by_task() -> None:
    nodes = [node("RandomUniformLike", ["x"], ["y"], dtype=FLOAT), node("RandomUniformLike", ["x"], ["z"], dtype=FLOAT)]
    y, z = session(model(nodes, {"x": (FLOAT, [100])}, ["y", "z"])).run(None, {"x": np.zeros(100, np.float32)})
    assert not np.array_equal(y, z)
    assert y.min() >= 0 and y.max() < 1 and 0.3 < y.mean() < 0.7
