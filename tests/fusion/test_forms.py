"""Groups that are alike have one form, others never share one; what is alike is cut and priced once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion import fitting
from atc_py.fusion.forms import Form, Forms, Outline
from atc_py.fusion.pricing import Pricer
from atc_py.fusion.tiles import fit
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from tests.fusion.making import TARGET, fused, rand
from tests.passes.interp import Builder

Make = Callable[[Builder, int], int]
"""Adds a group that begins with a value; returns the value that the rest of the graph reads."""


def nodes_of(graph: Graph) -> list[Node]:
    return [n for n in graph.order() if n.op not in STRUCTURAL]


def two(first: Make, second: Make, count: int) -> tuple[Form, Form]:
    """The forms of two groups of `count` nodes each in one graph."""
    b = Builder()
    x, y = b.input("x", (1, 8, 16, 16)), b.input("y", (1, 8, 16, 16))
    ends = [first(b, x), second(b, y)]
    nodes = nodes_of(b.done(*ends))
    forms = Forms(b.graph)
    return forms.of(nodes[:count]).form(), forms.of(nodes[count : 2 * count]).form()


def convolved(channels: int = 8, **attrs: Any) -> Make:
    return lambda b, x: b.op("Relu", b.op("Conv", x, b.const(rand(channels, 8, 3, 3)), **attrs))


def test_layers_of_other_weights_are_alike() -> None:
    one, other = two(convolved(), convolved(), 2)
    assert one.number == other.number
    assert [n.name for n in one.nodes] == ["n0", "n1"] and [n.name for n in other.nodes] == ["n2", "n3"]


def doubled(b: Builder, x: int) -> int:
    return b.op("Relu", b.op("Mul", x, x))


def added(left: bool) -> Make:
    def make(b: Builder, x: int) -> int:
        made = b.op("Exp", x)
        return b.op("Sub", made, x) if left else b.op("Sub", x, made)

    return make


def times(computed: bool) -> Make:
    return lambda b, x: b.op("Relu", b.op("Mul", x, b.input("r", (8, 1, 1)) if computed else b.const(rand(8, 1, 1))))


def reshaped(*dims: int) -> Make:
    return lambda b, x: b.op("Relu", b.op("Reshape", x, b.const(dims, np.int64)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(convolved(), convolved(strides=(2, 2)), id="attributes"),
        pytest.param(convolved(), convolved(16), id="types"),
        pytest.param(doubled, times(False), id="one operand twice"),
        pytest.param(added(True), added(False), id="edges"),
        pytest.param(times(True), times(False), id="constants"),
        pytest.param(reshaped(8, 256), reshaped(1, 8, 256), id="results"),
        pytest.param(reshaped(8, 256), reshaped(8, -1), id="values that the host reads"),
    ],
)
def test_others_are_not(first: Make, second: Make) -> None:
    one, other = two(first, second, 2)
    assert one.number != other.number


def test_what_is_read_outside_counts() -> None:
    b = Builder()
    inputs = [b.input(name, (1, 8, 16, 16)) for name in "xyz"]
    made = [b.op("Exp", x) for x in inputs]
    ends = [b.op("Relu", v) for v in made]
    nodes = nodes_of(b.done(*ends, b.op("Neg", made[1])))
    forms = Forms(b.graph)
    numbers = [forms.of([nodes[i], nodes[i + 3]]).form().number for i in range(3)]
    assert numbers[0] == numbers[2] != numbers[1]


def branches() -> tuple[Graph, list[Node]]:
    """A graph with operands that are read twice and values that are read inside and outside of a group."""
    b = Builder()
    x = b.input("x", (4, 8))
    values = [x, b.const(rand(8))]
    for i in range(8):
        left, right = values[-1 - i % 2], values[len(values) // 2]
        values.append(b.op("Mul", left, right) if i % 3 else b.op("Exp", left))
    graph = b.done(values[-1], values[4])
    return graph, nodes_of(graph)


def same(one: Outline, other: Outline) -> bool:
    return (one.form().number, one.members, one.open, one.known, one.border(), list(one.form().nodes)) == (
        other.form().number, other.members, other.open, other.known, other.border(), list(other.form().nodes)
    )  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 7), min_size=1, unique=True), st.data())
def test_an_outline_is_what_has_joined_and_not_left(order: list[int], data: st.DataObject) -> None:
    graph, nodes = branches()
    forms, rank = Forms(graph), {n.id: i for i, n in enumerate(nodes)}
    joined = [nodes[i] for i in order]
    outline = forms.of(joined, rank)
    assert list(outline.form().nodes) == [nodes[i] for i in sorted(order)]
    kept = data.draw(st.integers(1, len(joined)))
    before, copy = forms.of(joined[:kept], rank), outline.copy()
    assert outline.form(kept).number == before.form().number
    assert list(outline.form(kept).nodes) == list(before.form().nodes)
    for _ in joined[kept:]:
        outline.leave()
    assert same(outline, before)
    for node in joined[kept:]:
        assert outline.with_(node).number == forms.of([*outline.members.values(), node], rank).form().number
        outline.join(node)
    assert same(outline, copy)


def test_a_node_alone_has_the_form_of_a_group_of_one() -> None:
    graph, nodes = branches()
    forms = Forms(graph)
    for node in [*nodes, *nodes]:
        assert forms.alone(node).number == forms.of([node]).form().number and forms.alone(node).nodes == [node]


def test_groups_of_one_form_have_one_price() -> None:
    graph, nodes = branches()
    found: dict[int, float] = {}
    shared = Pricer(graph, TARGET)
    for first in range(len(nodes)):
        for last in range(first + 1, len(nodes) + 1):
            form = shared.forms.of(nodes[first:last]).form()
            price = found.setdefault(form.number, shared.price(form, None).separate)
            alone = Pricer(graph, TARGET)
            assert alone.price(alone.forms.of(nodes[first:last]).form(), None).separate == price
            assert shared.together_us(form) == alone.task_us(nodes[first:last])


def blocks(count: int) -> Graph:
    b = Builder()
    v = b.input("x", (1, 8, 16, 16))
    for _ in range(count):
        inner = b.op("Relu", b.op("Conv", v, b.const(rand(8, 8, 3, 3)), pads=(1, 1, 1, 1)))
        v = b.op("Relu", b.op("Add", b.op("Conv", inner, b.const(rand(8, 8, 3, 3)), pads=(1, 1, 1, 1)), v))
    return b.done(v)


def test_equal_blocks_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(*given: Any) -> Any:
        looked[-1] += 1
        return fit(*given)

    monkeypatch.setattr(fitting, "fit", counted)
    for count in (8, 32):
        looked.append(0)
        graph = fused(blocks(count))
        assert sum(n.op == "Fused" for n in graph.nodes.values()) >= count // 2
    # Debugging runs the pass a second time; more blocks need no more looks.
    assert looked[0] == looked[1] > 0
