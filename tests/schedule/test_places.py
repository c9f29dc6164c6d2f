"""Which values share bytes, where they lie, and how long they are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.emit import om_bytes
from atc_py.plan.types import Buffer, Host, If, Loop, Operand, Plan, Space, Static, Task, walk
from tests.making import BOOL, FLOAT, INT64, body_attribute, graph, info, model, node


def plan_of(proto: ModelProto, level: int = 0) -> Plan:
    """A plan whose tasks are the model's nodes."""
    return compile_model(proto, Options(opt_level=level)).plan


def task(plan: Plan, kernel: str) -> Task:
    [found] = [t for t in plan.tasks() if t.kernel == kernel]
    return found


def buffer(plan: Plan, operand: Operand | None) -> Buffer:
    assert operand is not None
    return plan.buffers[operand.buffer]


def out(plan: Plan, kernel: str) -> Buffer:
    return buffer(plan, task(plan, kernel).outputs[0])


def into(plan: Plan, kernel: str, i: int = 0) -> Buffer:
    return buffer(plan, task(plan, kernel).inputs[i])


X = {"x": (FLOAT, [8, 64])}


# -- views ---------------------------------------------------------------------------------------------------------


def test_reshapes_are_no_tasks() -> None:
    chain = [
        node("Sin", ["x"], ["a"]),
        node("Reshape", ["a", "s"], ["r"]),
        node("Flatten", ["r"], ["f"]),
        node("Squeeze", ["f"], ["q"]),
        node("MatMul", ["q", "w"], ["m"]),
        node("Cos", ["m"], ["y"]),
    ]
    plan = plan_of(model(chain, X, ["y"], {"s": np.array([1, 512]), "w": np.ones((512, 3), np.float32)}))
    assert [t.kernel for t in plan.tasks()] == ["Sin", "MatMul", "Cos"]
    assert into(plan, "MatMul") is out(plan, "Sin")
    sin, view = task(plan, "Sin").outputs[0], task(plan, "MatMul").inputs[0]
    sources = {a.value: a.source for a in plan.aliases}
    value = view.value if view else -1
    while value in sources:
        value = sources[value]
    assert value == sin.value


def test_a_view_keeps_its_source_alive() -> None:
    chain = [
        node("Sin", ["x"], ["a"]),
        node("Reshape", ["a", "s"], ["r"]),
        node("MatMul", ["x", "w"], ["b"]),
        node("MatMul", ["b", "w"], ["c"]),
        node("Reshape", ["c", "s"], ["d"]),
        node("Add", ["r", "d"], ["y"]),
    ]
    plan = plan_of(model(chain, X, ["y"], {"s": np.array([512]), "w": np.ones((64, 64), np.float32)}))
    made = out(plan, "Sin")
    order = [t.kernel for t in plan.tasks()]
    assert made.first <= order.index("Sin") and made.last >= order.index("Add")


def test_a_view_of_an_input_lies_in_the_input() -> None:
    chain = [node("Reshape", ["x", "s"], ["r"]), node("Sin", ["r"], ["y"])]
    plan = plan_of(model(chain, X, ["y"], {"s": np.array([512])}))
    assert into(plan, "Sin").space is Space.INPUT and out(plan, "Sin").space is Space.OUTPUT


# -- in place ------------------------------------------------------------------------------------------------------


def test_the_last_reader_works_in_place() -> None:
    chain = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
    plan = plan_of(model(chain, X, ["y"], {"w": np.ones((64, 64), np.float32)}))
    assert out(plan, "Relu") is into(plan, "Relu")
    assert out(plan, "Relu").space is Space.ARENA


def test_nobody_overwrites_what_is_read_later() -> None:
    chain = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Sub", ["b", "a"], ["c"]),
        node("MatMul", ["c", "w2"], ["y"]),
    ]
    constants = {"w": np.ones((64, 64), np.float32), "w2": np.ones((64, 3), np.float32)}
    plan = plan_of(model(chain, X, ["y"], constants))
    assert out(plan, "Relu") is not into(plan, "Relu")
    assert out(plan, "Sub") in (into(plan, "Sub", 0), into(plan, "Sub", 1))


def test_nobody_overwrites_inputs_and_constants() -> None:
    chain = [node("Relu", ["x"], ["a"]), node("Add", ["c", "a"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
    constants = {"c": np.ones((8, 64), np.float32), "w": np.ones((64, 3), np.float32)}
    plan = plan_of(model(chain, X, ["y"], constants))
    assert out(plan, "Relu").space is Space.ARENA
    assert out(plan, "Add") is out(plan, "Relu")


def test_a_view_that_is_read_later_keeps_its_source_from_being_overwritten() -> None:
    chain = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Reshape", ["a", "s"], ["r"]),
        node("Relu", ["a"], ["b"]),
        node("Reshape", ["b", "s"], ["c"]),
        node("Sub", ["c", "r"], ["y"]),
    ]
    proto = model(chain, X, ["y"], {"w": np.eye(64, dtype=np.float32), "s": np.array([512])})
    plan = plan_of(proto)
    assert out(plan, "Relu") is not out(plan, "MatMul")
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)
    [y] = Session(om_bytes(compile_model(proto))).run(None, {"x": x})
    np.testing.assert_allclose(y, (np.maximum(x, 0) - x).reshape(-1), atol=1e-6)


def test_another_size_or_dtype_needs_bytes_of_its_own() -> None:
    chain = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "row"], ["b"]),  # b is larger than a
        node("Greater", ["b", "row"], ["c"]),  # c is bool
        node("Not", ["c"], ["y"]),
    ]
    constants = {"w": np.ones((64, 1), np.float32), "row": np.ones(5, np.float32)}
    plan = plan_of(model(chain, X, ["y"], constants))
    assert out(plan, "Add") is not into(plan, "Add")
    assert out(plan, "Greater") is not into(plan, "Greater")


# -- ports ---------------------------------------------------------------------------------------------------------


def test_results_are_written_where_the_caller_wants_them() -> None:
    chain = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Reshape", ["b", "s"], ["y"])]
    plan = plan_of(model(chain, X, ["y"], {"w": np.ones((64, 64), np.float32), "s": np.array([-1])}))
    assert plan.arena == 0
    assert {out(plan, k).space for k in ("MatMul", "Relu")} <= {Space.OUTPUT, Space.ARENA}
    assert out(plan, "Relu").space is Space.OUTPUT


def test_each_output_has_bytes_of_its_own() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "s"], ["f"]), node("Identity", ["r"], ["i"])]
    constants = {"s": np.array([-1]), "c": np.ones(3, np.float32)}
    plan = plan_of(model(nodes, X, ["r", "f", "i", "x", "c"], constants))
    ports = [plan.buffers[p.buffer] for p in plan.outputs]
    assert [b.index for b in ports] == [0, 1, 2, 3, 4]
    assert all(b.space is Space.OUTPUT for b in ports)
    # One of r, f and i is written by Relu itself; whoever reads the others gets a copy.
    assert [t.kernel for t in plan.tasks()].count("TensorMove") == 4


def test_an_output_that_is_read_again() -> None:
    chain = [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["y"], ["a"]), node("MatMul", ["a", "w"], ["z"])]
    proto = model(chain, X, ["y", "z"], {"w": np.eye(64, dtype=np.float32)})
    plan = plan_of(proto)
    assert out(plan, "Relu") is not into(plan, "Relu"), "the caller's y must not be overwritten"
    x = np.float32(np.linspace(-1, 1, 512)).reshape(8, 64)
    y, z = Session(om_bytes(compile_model(proto))).run(None, {"x": x})
    np.testing.assert_allclose(y, x, atol=1e-6)
    np.testing.assert_allclose(z, np.maximum(x, 0), atol=1e-6)


# -- the arena -----------------------------------------------------------------------------------------------------


def test_a_chain_needs_two_buffers() -> None:
    nodes = [node("Transpose", [f"v{i}"], [f"v{i + 1}"], perm=[1, 0]) for i in range(10)]
    plan = plan_of(model(nodes, {"v0": (FLOAT, [64, 64])}, ["v10"]))
    assert plan.arena == 2 * 64 * 64 * 4


def test_offsets_are_aligned_and_no_live_buffers_overlap() -> None:
    nodes = [node("Transpose", ["x"], [f"b{i}"], perm=[1, 0]) for i in range(5)]
    nodes += [node("Sum", [f"b{i}" for i in range(5)], ["y"])]
    plan = plan_of(model(nodes, {"x": (FLOAT, [3, 5])}, ["y"]))
    arena = [b for b in plan.buffers if b.space is Space.ARENA]
    assert all(b.offset is not None and b.offset % 512 == 0 for b in arena)
    for i, a in enumerate(arena):
        for b in arena[:i]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset != b.offset


# -- control flow --------------------------------------------------------------------------------------------------


def looping(trips: int = 3) -> ModelProto:
    """Sin(x) is captured by the loop's body and read at its beginning only."""
    body = graph(
        [
            node("Identity", ["c"], ["c1"]),
            node("Add", ["s", "a"], ["t"]),
            node("Transpose", ["t"], ["u"], perm=[1, 0]),
            node("Transpose", ["u"], ["s1"], perm=[1, 0]),
        ],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [8, 64])},
        ["c1", "s1"],
    )
    loop = node("Loop", ["n", "", "x"], ["y"])
    loop.attribute.append(body_attribute(body))
    return model([node("Sin", ["x"], ["a"]), loop], X, ["y"], {"n": np.array(trips)})


def test_what_a_loop_captures_is_kept_until_it_ends() -> None:
    plan = plan_of(looping())
    [loop] = [r for r in walk(plan.regions) if isinstance(r, Loop)]
    captured = out(plan, "Sin")
    end = max(b.last for b in plan.buffers if b.space is Space.ARENA)
    inner = [t for r in loop.body if isinstance(r, Static) for t in r.tasks]
    assert captured.last >= 2 + len(inner), "the next iteration reads it again"
    assert captured.last <= end
    for t in inner:
        assert all(o.buffer != captured.id for o in t.outputs)
    x = np.float32(np.linspace(-1, 1, 512)).reshape(8, 64)
    [y] = Session(om_bytes(compile_model(looping()))).run(None, {"x": x})
    np.testing.assert_allclose(y, x + 3 * np.sin(x), rtol=1e-5)


def test_a_state_is_one_buffer_inside_and_outside() -> None:
    plan = plan_of(looping())
    [loop] = [r for r in walk(plan.regions) if isinstance(r, Loop)]
    [state] = loop.carried
    assert state.state.buffer == loop.outputs[0].buffer
    assert state.state.buffer not in (state.initial.buffer, state.result.buffer)


def test_what_nobody_reads_of_a_loop_is_kept_while_it_is_written() -> None:
    body = graph(
        [node("Identity", ["c"], ["c1"]), node("Neg", ["s"], ["s1"]), node("Abs", ["s"], ["item"])],
        {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [2])},
        ["c1", "s1", "item"],
    )
    loop = node("Loop", ["n", "", "x"], ["y", "items"])
    loop.attribute.append(body_attribute(body))
    plan = plan_of(model([loop], {"x": (FLOAT, [2])}, ["y"], {"n": np.array(3)}))  # `items` is unused
    [region] = [r for r in walk(plan.regions) if isinstance(r, Loop)]
    stack = buffer(plan, region.collected[0].stack)
    assert stack.last >= max(b.last for b in plan.buffers if b.space is Space.ARENA)


def branching(then: list[Any], other: list[Any], results: tuple[str, str]) -> ModelProto:
    branch = node("If", ["c"], ["r"])
    branch.attribute.append(body_attribute(graph(then, {}, [results[0]]), "then_branch"))
    branch.attribute.append(body_attribute(graph(other, {}, [results[1]]), "else_branch"))
    nodes = [node("Sin", ["x"], ["a"]), branch, node("Transpose", ["r"], ["y"], perm=[1, 0])]
    return model(nodes, {**X, "c": (BOOL, [])}, ["y"])


def test_both_branches_write_the_same_place() -> None:
    plan = plan_of(branching([node("Relu", ["a"], ["t"])], [node("Exp", ["a"], ["e"])], ("t", "e")))
    [region] = [r for r in walk(plan.regions) if isinstance(r, If)]
    assert out(plan, "Relu").id == out(plan, "Exp").id == region.outputs[0].buffer
    assert into(plan, "Transpose").id == region.outputs[0].buffer


def test_a_branch_that_returns_what_it_captures_copies_it() -> None:
    proto = branching([node("Identity", ["a"], ["t"])], [node("Exp", ["a"], ["e"])], ("t", "e"))
    plan = plan_of(proto)
    assert out(plan, "Sin").id != out(plan, "TensorMove").id
    session = Session(om_bytes(compile_model(proto)))
    x = np.ones((8, 64), np.float32)
    for value in (True, False):
        [y] = session.run(None, {"x": x, "c": np.array(value)})
        np.testing.assert_allclose(y, (np.sin(x) if value else np.exp(np.sin(x))).T, rtol=1e-5)


RESHAPED = [node("Sin", ["x"], ["s"]), node("Reshape", ["s", "shape"], ["t"])]
"""A value of a branch that is a view of another shape."""
STACKED = graph([node("Concat", ["x", "x"], ["e"], axis=0)], {}, ["e"])


def chosen(then: Any, name: str = "c") -> Any:
    """The graph, or twice x below itself."""
    branch = node("If", [name], [f"y_{name}"])
    branch.attribute.append(body_attribute(then, "then_branch"))
    branch.attribute.append(body_attribute(STACKED, "else_branch"))
    return branch


@pytest.mark.parametrize("shape", [[16, 32], [512], [8, 1, 64], [8, 64]])
@pytest.mark.parametrize("nested", [False, True])
def test_a_view_leaves_a_branch_in_its_own_shape(shape: list[int], nested: bool) -> None:
    then = graph(RESHAPED, {}, ["t"])
    if nested:
        then = graph([chosen(then, "d")], {}, ["y_d"])
    proto = model([chosen(then)], {**X, "c": (BOOL, []), "d": (BOOL, [])}, ["y_c"], {"shape": np.array(shape)})
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)
    for level in (0, 2):
        om = compile_model(proto, Options(opt_level=level))
        copies = [t for t in om.plan.tasks() if t.kernel == "TensorMove"]
        assert len(copies) == (shape != [8, 64]), "a view of the same shape is what it views"
        session = Session(om_bytes(om))
        [y] = session.run(None, {"x": x, "c": np.array(True), "d": np.array(True)})
        np.testing.assert_allclose(y, np.sin(x).reshape(shape), rtol=1e-6)
        [y] = session.run(None, {"x": x, "c": np.array(False), "d": np.array(True)})
        assert y.shape == (16, 64)


@pytest.mark.parametrize("then", [node("Neg", ["late"], ["t"]), node("Identity", ["late"], ["t"])])
def test_what_is_declared_of_an_if_holds_of_branches_that_find_it_out(then: Any) -> None:
    branch = node("If", ["c"], ["y"])
    branch.attribute.append(body_attribute(graph([then], {}, ["t"]), "then_branch"))
    other = [node("Sin", ["late"], ["s"]), node("Reshape", ["s", "shape"], ["e"])]
    branch.attribute.append(body_attribute(graph(other, {}, ["e"]), "else_branch"))
    nodes = [node("SplitToSequence", ["x"], ["q"], axis=0), node("ConcatFromSequence", ["q"], ["late"], axis=0), branch]
    proto = model(nodes, {**X, "c": (BOOL, [])}, ["y"], {"shape": np.array([-1, 64])})
    proto.graph.output[0].CopyFrom(info("y", (FLOAT, [8, 64])))
    om = compile_model(proto)
    assert om.plan.buffers[om.plan.outputs[0].buffer].space is Space.OUTPUT
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)
    for value in (True, False):
        [y] = Session(om_bytes(om), debug_memory=True).run(None, {"x": x, "c": np.array(value)})
        np.testing.assert_allclose(y, np.sin(x) if not value else -x if then.op_type == "Neg" else x, rtol=1e-6)


# -- sizes that come at run time -----------------------------------------------------------------------------------


def test_a_task_that_finds_a_size_is_a_step_of_the_host() -> None:
    chain = [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["f"], to=FLOAT), node("Neg", ["f"], ["y"])]
    plan = plan_of(model(chain, X, ["y"]))
    hosts = [r for r in walk(plan.regions) if isinstance(r, Host)]
    assert [h.task.kernel for h in hosts] == ["NonZero"]
    [(symbol, output, axis)] = hosts[0].task.binds
    assert (output, axis) == (0, 1) and plan.symbols[symbol].runtime
    assert {out(plan, k).space for k in ("NonZero", "Cast", "Neg")} == {Space.DYNAMIC}
    assert plan.static, "nothing has to be bound before the run"


def test_strings_and_sequences_lie_in_slots() -> None:
    chain = [node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceLength", ["s"], ["y"])]
    plan = plan_of(model(chain, X, ["y"]))
    assert out(plan, "SequenceConstruct").space is Space.HOST
    assert out(plan, "SequenceLength").space is Space.OUTPUT
