"""Statistics that are taken while a map is made: the same numbers, whole and tile by tile, and only where it pays."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.compiler import Options, compile_graph
from atc_py.emit import om_bytes
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.runtime import Session
from tests.fusion.making import TARGET, bodies, fused, notes, proved, rand
from tests.passes.interp import Builder, interpret, random_inputs

SMALL = replace(TARGET, ub=32_768, l1=131_072, l0c=32_768, rates=replace(TARGET.rates, task_us=0.0))
"""A core with little room, on which launching a task costs nothing: small graphs are cut as large ones are."""
GENERATED = settings(max_examples=20, deadline=None, derandomize=True)
STATISTICS = ("InstanceNormalization", "GroupNormalization", "GlobalAveragePool", "ReduceMean")


def graph_of(
    kind: str,
    dtype: Any,
    size: tuple[int, int],
    channels: int = 16,
    between: str = "",
    after: str = "",
    mean: float = 0.0,
) -> Graph:
    """Conv ─ between ─ statistics ─ after."""
    b = Builder()
    x = b.input("x", (1, 4, *size), DType.of(np.dtype(dtype)))
    bias = b.const(rand(channels, dtype=dtype) + dtype(mean))
    v = b.op("Conv", x, b.const(rand(channels, 4, 3, 3, dtype=dtype)), bias, pads=(1, 1, 1, 1))
    v = b.op(between, v) if between else v
    scale, shift = (b.const(rand(channels, dtype=dtype)) for _ in range(2))
    if kind == "GroupNormalization":
        y = b.op(kind, v, scale, shift, num_groups=4)
    elif kind == "InstanceNormalization":
        y = b.op(kind, v, scale, shift)
    else:
        pooled = b.op(kind, v) if kind == "GlobalAveragePool" else b.op(kind, v, b.const([2, 3]))
        y = b.op("Mul", v, b.op("Sigmoid", pooled))
    if after == "Conv":
        y = b.op("Conv", b.op("Relu", y), b.const(rand(8, channels, 3, 3, dtype=dtype)), pads=(1, 1, 1, 1))
    elif after:
        y = b.op(after, y, v) if after == "Add" else b.op(after, y)
    return b.done(y)


def ops(g: Graph) -> list[str]:
    return [n.op for n in g.order()] + [op for body in bodies(g) for op in body]


@GENERATED
@given(
    st.sampled_from(STATISTICS),
    st.sampled_from([np.float32, np.float16]),
    st.tuples(st.sampled_from([41, 64]), st.sampled_from([48, 60])),
    st.sampled_from(["", "Relu", "Swish"]),
    st.sampled_from(["", "Relu", "Add", "Conv"]),
    st.sampled_from([0.0, 30.0]),
)
def test_the_same_numbers(kind: str, dtype: Any, size: tuple[int, int], between: str, after: str, mean: float) -> None:
    graph = graph_of(kind, dtype, size, 16, between, after, mean)
    made = ops(proved(graph, target=SMALL))
    assert kind not in made and "BlockMoments" in made and made.count("CombineMoments") == 1
    assert ("INInferV2" in made) == kind.endswith("Normalization")


@pytest.mark.parametrize("kind", STATISTICS)
def test_the_task_that_makes_the_map_takes_the_moments(kind: str) -> None:
    g = fused(graph_of(kind, np.float16, (64, 64), between="Relu"), SMALL)
    [makes] = [body for body in bodies(g) if "Conv" in body]
    assert makes == ["Conv", "Relu", "BlockMoments"]


def test_what_reads_the_map_applies_them() -> None:
    g = fused(graph_of("InstanceNormalization", np.float16, (64, 64), after="Conv"), SMALL)
    assert ["INInferV2", "Relu", "Conv"] in bodies(g)


def test_what_makes_one_pixel_puts_them_together() -> None:
    b = Builder()
    v = b.op("Conv", b.input("x", (1, 4, 48, 48), DType.FLOAT16), b.const(rand(16, 4, 3, 3, dtype=np.float16)))
    gate = b.op("Conv", b.op("GlobalAveragePool", v), b.const(rand(16, 16, 1, 1, dtype=np.float16)))
    g = proved(b.done(b.op("Mul", v, b.op("Sigmoid", gate))), target=SMALL)
    assert bodies(g)[:2] == [["Conv", "BlockMoments"], ["CombineMoments", "Conv", "Sigmoid"]]


def test_where_whole_planes_fit_nothing_is_cut() -> None:
    g = proved(graph_of("InstanceNormalization", np.float16, (24, 24), after="Relu"))
    assert bodies(g) == [["Conv", "InstanceNormalization", "Relu"]]
    g = proved(graph_of("GlobalAveragePool", np.float16, (24, 24)))
    assert ["Conv", "GlobalAveragePool"] in bodies(g)


def test_where_it_does_not_pay_the_operator_stays_and_says_why() -> None:
    dear = replace(SMALL, rates=replace(SMALL.rates, task_us=50.0))
    g = fused(graph_of("InstanceNormalization", np.float16, (64, 64)), dear)
    assert "InstanceNormalization" in ops(g) and "BlockMoments" not in ops(g)
    assert any(note.startswith("moments: profit: InstanceNormalization") and "in parts" in note for note in notes(g))


@pytest.mark.parametrize("case", ["input", "unknown size", "axes", "shape"])
def test_what_is_left_alone(case: str) -> None:
    b = Builder(N=Range(1, 4096))
    n = symbol("N") if case == "unknown size" else 64
    x = b.input("x", (1, 4, n, 64), DType.FLOAT16)
    v = x if case == "input" else b.op("Conv", x, b.const(rand(16, 4, 1, 1, dtype=np.float16)))
    axes, keep = ([1, 2, 3], 1) if case == "axes" else ([2, 3], int(case != "shape"))
    y = b.op("ReduceMean", v, b.const(axes), keepdims=keep)
    made = ops(fused(b.done(v, y), SMALL))
    assert "ReduceMean" in made and "BlockMoments" not in made


def test_it_can_be_switched_off_with_the_rule_that_it_is_for() -> None:
    graph = graph_of("InstanceNormalization", np.float16, (64, 64))
    assert "BlockMoments" not in ops(fused(graph, SMALL, disabled=frozenset({"moments"})))


@pytest.mark.parametrize("kind", STATISTICS)
def test_a_session_gives_the_same_in_tiles_and_with_formats(kind: str, tmp_path: Path) -> None:
    text = (files("atc_py.target") / "data" / "Ascend310P3.toml").read_text(encoding="utf-8")
    for key, value in {"ub": SMALL.ub, "l1": SMALL.l1, "l0c": SMALL.l0c, "task_us": 0}.items():
        text = re.sub(rf"^{key} = ([\d_]{{5,}}|2\.93)", f"{key} = {value}", text, flags=re.MULTILINE)
    target = tmp_path / "small.toml"
    target.write_text(text, encoding="utf-8")
    graph = graph_of(kind, np.float32, (64, 48), 20, between="Relu", after="Conv", mean=3.0)
    given = random_inputs(graph)
    [want] = interpret(graph, given)
    om = om_bytes(compile_graph(graph, Options(soc_version=str(target))))
    inner = [n.op for t in Session(om).plan.tasks() if t.body is not None for n in t.body.order()]
    assert "BlockMoments" in inner
    for kernels in ("fast", "tiles"):
        session = Session(om, kernels=kernels, debug_memory=True)
        [got] = session.run(None, {"x": given[0]})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
