"""Concat and Split without a task: when parts lie in the whole, and when they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from atc_py import Options, Session, compile_model
from atc_py.compiler import compile_graph, prove
from atc_py.emit import om_bytes
from atc_py.graph import Builder
from atc_py.plan.types import Plan
from tests.making import BOOL, FLOAT, graph, model, node

from .branching import feeds_of

NO_FUSION = frozenset({"fusion"})


def planned(proto: ModelProto, **options: Any) -> Plan:
    """The plan; its outputs are those of a plan in which each node is a task."""
    om = compile_model(proto, Options(disabled_passes=NO_FUSION, **options))
    feeds = feeds_of(proto)
    want = Session(om_bytes(compile_model(proto, Options(opt_level=0)))).run(None, feeds)
    got = Session(om_bytes(om)).run(None, feeds)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    prove(om.plan)
    return om.plan


def kernels(plan: Plan) -> list[str]:
    return [t.kernel for t in plan.tasks()]


def joined(shape: list[int | str], axis: int, *tail: str) -> ModelProto:
    nodes = [node("Sin", ["x"], ["a"]), node("Cos", ["x"], ["b"]), node("Concat", ["a", "b"], ["c"], axis=axis)]
    nodes.append(node("Softmax", ["c"], ["y"], axis=-1))
    return model(nodes, {"x": (FLOAT, shape)}, ["y", *tail])


def test_parts_are_made_in_the_whole() -> None:
    plan = planned(joined([1, 8, 4], 1))
    assert "Concat" not in kernels(plan)
    made = {t.kernel: t.outputs[0] for t in plan.tasks()}
    assert made["Sin"].buffer == made["Cos"].buffer
    assert {made["Sin"].delta, made["Cos"].delta} == {0, 128}
    assert [(a.delta, a.strides) for a in plan.aliases if a.source == plan.outputs[0].value] == []
    assert len([a for a in plan.aliases if a.delta == 128]) == 1


@pytest.mark.parametrize(
    ("shape", "axis", "tail"),
    [
        ([2, 8, 4], 1, ()),  # not one run of bytes
        ([1, 3, 1], 1, ()),  # 12 bytes are no multiple of 32
        (["N", 8], 0, ()),  # a size that the run time knows
        ([1, 8, 4], 1, ("a",)),  # a part is an output of its own
    ],
)
def test_where_parts_cannot_lie_in_the_whole_there_is_a_task(
    shape: list[int | str], axis: int, tail: tuple[str, ...]
) -> None:
    assert "Concat" in kernels(planned(joined(shape, axis, *tail)))


def test_an_input_is_copied() -> None:
    nodes = [node("Sin", ["x"], ["a"]), node("Concat", ["a", "x"], ["c"], axis=0), node("Softmax", ["c"], ["y"])]
    assert "Concat" in kernels(planned(model(nodes, {"x": (FLOAT, [8, 4])}, ["y"])))


def test_a_value_goes_into_one_whole() -> None:
    nodes = [
        node("Sin", ["x"], ["a"]),
        node("Cos", ["x"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=0),
        node("Concat", ["b", "a"], ["d"], axis=0),
        node("Mul", ["c", "d"], ["m"]),
        node("Softmax", ["m"], ["y"]),
    ]
    assert kernels(planned(model(nodes, {"x": (FLOAT, [8, 4])}, ["y"]))).count("Concat") == 1


def test_the_same_value_twice_needs_a_task() -> None:
    nodes = [node("Sin", ["x"], ["a"]), node("Concat", ["a", "a"], ["c"], axis=0), node("Softmax", ["c"], ["y"])]
    assert "Tile" in kernels(p := planned(model(nodes, {"x": (FLOAT, [8, 4])}, ["y"]))) or "Concat" in kernels(p)


def test_joins_of_joins() -> None:
    """As in a dense block: each join is a part of the next one, and all parts lie in the last."""
    nodes = [node("Sin", ["x"], ["c0"])]
    for k in range(4):
        nodes += [
            node("ReduceMean", [f"c{k}", "axes"], [f"m{k}"]),
            node("Mul", [f"m{k}", "x"], [f"p{k}"]),
            node("Concat", [f"c{k}", f"p{k}"], [f"c{k + 1}"], axis=1),
        ]
    nodes.append(node("Softmax", ["c4"], ["y"], axis=1))
    plan = planned(model(nodes, {"x": (FLOAT, [1, 8, 4])}, ["y"], {"axes": np.array([1])}))
    assert "Concat" not in kernels(plan)
    parts = {t.outputs[0].delta for t in plan.tasks() if t.kernel in ("Sin", "Mul")}
    assert parts == {0, 128, 256, 384, 512}


def test_the_whole_may_be_an_output() -> None:
    nodes = [node("Sin", ["x"], ["a"]), node("Cos", ["x"], ["b"]), node("Concat", ["a", "b"], ["y"], axis=0)]
    plan = planned(model(nodes, {"x": (FLOAT, [8, 4])}, ["y"]))
    assert kernels(plan) == ["Sin", "Cos"] and plan.arena == 0


def test_parts_are_read_in_the_whole() -> None:
    nodes = [
        node("Sin", ["x"], ["s"]),
        node("Split", ["s"], ["a", "b"], axis=0, num_outputs=2),
        node("Softmax", ["a"], ["p"]),
        node("Exp", ["b"], ["q"]),
        node("Mul", ["p", "q"], ["y"]),
    ]
    plan = planned(model(nodes, {"x": (FLOAT, [16, 4])}, ["y"]))
    assert "Split" not in kernels(plan)
    reads = {t.kernel: t.inputs[0] for t in plan.tasks()}
    assert reads["Exp"] is not None and reads["Softmax"] is not None
    assert (reads["Softmax"].delta, reads["Exp"].delta) == (0, 128)
    assert reads["Exp"].buffer == reads["Softmax"].buffer


def test_a_part_is_overwritten_only_when_the_whole_has_been_read() -> None:
    nodes = [
        node("Sin", ["x"], ["a"]),
        node("Cos", ["x"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=0),
        node("Neg", ["a"], ["n"]),
        node("Softmax", ["c"], ["s"]),
        node("Split", ["s"], ["p", "q"], axis=0, num_outputs=2),
        node("Add", ["p", "n"], ["r"]),
        node("Mul", ["r", "q"], ["y"]),
    ]
    planned(model(nodes, {"x": (FLOAT, [8, 4])}, ["y"]))


def test_at_level_0_each_node_is_a_task() -> None:
    assert "Concat" in kernels(compile_model(joined([1, 8, 4], 1), Options(opt_level=0)).plan)


def test_an_output_does_not_take_over_the_first_part_of_a_whole() -> None:
    b = Builder("split")
    x = b.data("x", "float32", (4, 8))
    first, second = b.op("Split", b.op("Softmax", x), outputs=2, axis=0, num_outputs=2)
    graph = b.build(y=b.op("Neg", first), z=b.op("Exp", second))
    for level in (0, 1, 2):
        data = om_bytes(compile_graph(graph, Options(opt_level=level)))
        given = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
        y, z = Session(data, debug_memory=True).run(None, {"x": given})
        soft = np.exp(given) / np.exp(given).sum(-1, keepdims=True)
        np.testing.assert_allclose(y, -soft[:2], rtol=1e-5)
        np.testing.assert_allclose(z, np.exp(soft[2:]), rtol=1e-5)


def branched(nested: bool, alike: bool) -> ModelProto:
    """An If whose branch ends in a join, of two parts or of another If, beside one whose result is `alike` or not."""
    made = [node("Sin", ["x"], ["a"]), node("Cos", ["x"], ["b"]), node("Concat", ["a", "b"], ["c"], axis=0)]
    other = [node("Exp", ["x"], ["n"]), node("Concat", ["n", "n"], ["m"], axis=0)]
    first, second = graph(made, {}, ["c"]), graph(other, {}, ["m"])
    if nested:
        first = graph([node("If", ["q"], ["i"], then_branch=first, else_branch=second)], {}, ["i"])
    last = second if alike else graph([node("Tan", ["x"], ["t"])], {}, ["t"])
    nodes = [node("If", ["p"], ["y"], then_branch=first, else_branch=last)]
    return model(nodes, {"x": (FLOAT, [8, 4]), "p": (BOOL, []), "q": (BOOL, [])}, ["y"])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_parts_do_not_make_a_buffer_of_unknown_size(nested: bool, alike: bool) -> None:
    """Branches of two shapes: the If's result is made by one task, when its size is known."""
    proto = branched(nested, alike)
    loaded = Session(om_bytes(compile_model(proto, Options(disabled_passes=NO_FUSION))), debug_memory=True)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    for p in (True, False):
        for q in (True, False):
            twice = np.exp(np.concatenate([x, x]))
            want = np.concatenate([np.sin(x), np.cos(x)]) if p and (q or not nested) else twice
            want = np.tan(x) if not p and not alike else want
            (y,) = loaded.run(None, {"x": x, "p": np.array(p), "q": np.array(q)})
            np.testing.assert_allclose(y, want, rtol=1e-5)
    sin = next(t for t in loaded.plan.tasks() if t.kernel == "Sin")
    joins = [
        t
        for t in loaded.plan.tasks()
        if t.kernel == "Concat" and sin.outputs[0].value in [i and i.value for i in t.inputs]
    ]
    assert bool(joins) is not alike


def test_a_buffer_of_unknown_size_is_not_cut() -> None:
    """A result of an If whose branches have two shapes, which a Reshape says the size of."""
    first = graph([node("Concat", ["x", "x"], ["c"], axis=0)], {}, ["c"])
    second = graph([node("Tan", ["x"], ["t"])], {}, ["t"])
    nodes = [
        node("If", ["p"], ["i"], then_branch=first, else_branch=second),
        node("Reshape", ["i", "s"], ["r"]),
        node("Split", ["r"], ["u", "v"], axis=0, num_outputs=2),
        node("Sin", ["u"], ["y"]),
        node("Cos", ["v"], ["z"]),
    ]
    proto = model(nodes, {"x": (FLOAT, [8, 4]), "p": (BOOL, [])}, ["y", "z"], {"s": np.array([16, 4])})
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    y, z = Session(om_bytes(compile_model(proto)), debug_memory=True).run(None, {"x": x, "p": np.array(True)})
    np.testing.assert_allclose(y, np.sin(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(z, np.cos(x), rtol=1e-5, atol=1e-6)
