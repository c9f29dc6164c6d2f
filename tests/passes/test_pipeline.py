"""The pipelines as a whole: levels, options, errors, reports, long chains, time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atc_py.errors import AtcError, error
from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType, Tensor
from atc_py.ir.validate import validate
from atc_py.passes import LOWER, OPTIMIZE, LowerOptions, OptimizeOptions, Report, lower, optimize, pass_names
from atc_py.passes.base import Pass
from atc_py.target import load
from tests.passes.interp import Builder, assert_same, interpret, optimized, random_inputs, work
from tests.timing import cpu_seconds

TARGET = load("Ascend310P3")


def small_net(b: Builder) -> Graph:
    rng = np.random.default_rng(0)
    x = b.input("x", (1, 3, 8, 8))
    c = b.op("Conv", b.op("Identity", x), b.const(rng.standard_normal((4, 3, 3, 3)), np.float32), pads=(1, 1, 1, 1))
    params = [b.const(np.abs(rng.standard_normal(4)), np.float32) for _ in range(4)]
    v = b.op("BatchNormalization", c, *params)
    v = b.op("Mul", v, b.op("Sigmoid", v))
    v = b.op("Flatten", b.op("GlobalAveragePool", v))
    return b.done(b.op("Gemm", v, b.const(rng.standard_normal((4, 5)), np.float32)))


@pytest.mark.parametrize(
    ("level", "after"),
    [
        (0, ["Identity", "Conv", "BatchNormalization", "Sigmoid", "Mul", "GlobalAveragePool", "Flatten", "Gemm"]),
        (1, ["TransData", "Conv", "BatchNormalization", "Sigmoid", "Mul", "GlobalAveragePool", "TransData", "Reshape",
             "Gemm"]),
        (2, ["TransData", "Fused", "TransData", "Reshape", "Gemm"]),
        (3, ["TransData", "Fused", "TransData", "Reshape", "Gemm"]),
    ],
)  # fmt: skip
def test_levels(level: int, after: list[str]) -> None:
    graph = small_net(Builder())
    inputs = random_inputs(graph)
    want = interpret(graph, inputs)
    optimize(graph, OptimizeOptions(level=level, debug=True))
    lower(graph, TARGET, LowerOptions(level=level, debug=True))
    validate(graph, "lower")
    assert work(graph) == after
    assert_same(interpret(graph, inputs), want)


def test_disabled_passes_do_not_run() -> None:
    graph = small_net(Builder())
    report = optimize(graph, OptimizeOptions(disabled=frozenset({"fold_affine", "identity"})))
    assert {"Identity", "BatchNormalization"} <= set(work(graph)) and report.row("fold_affine") is None


def test_unknown_options_are_errors() -> None:
    graph = small_net(Builder())
    with pytest.raises(AtcError) as e:
        optimize(graph, OptimizeOptions(disabled=frozenset({"fold_afine"})))
    assert e.value.code == "E20002" and "fold_affine" in e.value.problems[0].hint
    with pytest.raises(AtcError):
        optimize(graph, OptimizeOptions(level=4))
    for mode, word in (("fp61", "no precision mode"), ("orign", "no precision mode")):
        with pytest.raises(AtcError) as e:
            lower(graph, TARGET, LowerOptions(precision_mode=mode))
        assert e.value.code == "E20003" and word in e.value.problems[0].cause
    assert "conv_epilogue" in pass_names() and len(set(pass_names())) == len(pass_names())


def test_reports() -> None:
    graph = small_net(Builder())
    first, second = optimize(graph), lower(graph, TARGET)
    report = Report().then(first).then(second)
    assert [r.name for r in report.rows] == [p.name for p in (*OPTIMIZE, *LOWER)]
    identity = report.row("identity")
    assert identity is not None and (identity.before, identity.changed) == (8, 1)
    fusion = report.row("fusion")
    assert fusion is not None and (fusion.before, fusion.after, fusion.changed) == (5, 3, 1)
    assert report.settled and report.changed == first.changed + second.changed
    assert report.to_json()[1]["nodes"]["before"] == 8 and Report().changed == 0


def test_errors_name_the_passes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import atc_py.passes.pipeline as pipeline

    def bad(graph: Graph, ctx: Any) -> int:
        raise KeyError("lost")

    def worse(graph: Graph, ctx: Any) -> int:
        raise error("E99999", "here", "cause")

    def breaking(graph: Graph, ctx: Any) -> int:
        graph.net_output.engine = "host"
        next(iter(graph.nodes.values())).id = 77
        return 1

    cases = ((bad, "E20001", "KeyError"), (worse, "E99999", "in pass 'bad': cause"), (breaking, "EI", "in pass"))
    for fn, code, word in cases:
        by_name = {p.name: p for p in OPTIMIZE}
        passes = (by_name["dead_code"], by_name["identity"], Pass("bad", fn, 0, ""))
        monkeypatch.setattr(pipeline, "OPTIMIZE", passes)
        with pytest.raises(AtcError) as e:
            optimize(small_net(Builder()), OptimizeOptions(debug=True))
        problem = e.value.problems[0]
        assert problem.code.startswith(code) and word in problem.cause
        assert "dead_code, identity" in problem.cause + problem.hint


def test_dead_nodes_go_and_inputs_stay() -> None:
    b = Builder()
    x, unused = b.input("x", (3,)), b.input("unused", (3,))
    b.op("Exp", unused)
    g = optimized(b.done(b.op("Relu", x)))
    assert work(g) == ["Relu"] and len(g.inputs) == 2


def test_engines_and_precision() -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (symbol("N"), 3, 8, 8))
    c = b.op("Conv", x, b.const(np.ones((4, 3, 1, 1)), np.float32))
    double = b.op("Exp", b.op("Cast", c, to=DType.FLOAT64))
    found = b.op("NonZero", x)
    size = b.op("Mul", b.op("Shape", found), b.const([2, 3]))
    text = b.op("StringConcat", b.input("s", (2,), DType.STRING), b.input("t", (2,), DType.STRING))
    graph = b.done(double, size, text, b.op("Reshape", c, b.const([-1])))
    for target, precision in ((TARGET, "emulated"), (load("Generic"), "float32")):
        copy = clone(graph)
        lower(copy, target, LowerOptions(debug=True))
        validate(copy, "lower")
        engine = {n.op: n.engine for n in copy.nodes.values()}
        assert engine["Conv"] == engine["Reshape"] == "aicore"
        assert engine["Exp"] == engine["Cast"] == engine["NonZero"] == "aicpu"
        assert engine["Shape"] == engine["Mul"] == engine["StringConcat"] == "host"
        assert next(n for n in copy.nodes.values() if n.op == "Conv").precision == precision
        assert next(n for n in copy.nodes.values() if n.op == "Exp").precision == "float64"


LINKS: dict[str, tuple[int, Callable[[Builder, int, int], int]]] = {
    "Relu": (10_000, lambda b, v, i: b.op("Relu", v)),
    "Identity": (1, lambda b, v, i: b.op("Identity", v)),
    "Transpose": (1, lambda b, v, i: b.op("Transpose", v, perm=((1, 0, 2), (0, 2, 1), (2, 1, 0))[i % 3])),
    "Reshape": (1, lambda b, v, i: b.op("Reshape", v, b.const(((2, 3, 3), (3, 2, 3), (18, 1, 1))[i % 3]))),
    "Cast": (1, lambda b, v, i: b.op("Cast", v, to=(DType.FLOAT64, DType.FLOAT32)[i % 2])),
}


@pytest.mark.parametrize("kind", LINKS)
def test_chains_of_ten_thousand_nodes(kind: str) -> None:
    most, link = LINKS[kind]
    b = Builder()
    v = b.input("x", (3, 3, 2))
    for i in range(10_000):
        v = link(b, v, i)
    graph = b.done(v)
    with cpu_seconds(5):  # 100 µs a node take 1 s
        optimize(graph)
        lower(graph, TARGET)
    assert len(work(graph)) <= most
    validate(graph, "lower")


def test_a_long_chain_of_constants_folds() -> None:
    b = Builder()
    v = b.const(np.ones((2, 2)), np.float32)
    one = b.const(np.full((2, 1), 0.5), np.float32)
    for _ in range(5_000):
        v = b.op("Add", v, one)
    graph = b.done(b.op("Mul", b.input("x", (2, 2)), v))
    with cpu_seconds(5):
        optimize(graph)
    assert work(graph) == ["Mul"]


def test_bodies_of_fused_tasks_are_left_alone() -> None:
    b = Builder()
    v = b.op("Conv", b.input("x", (1, 3, 4, 4)), b.const(np.arange(6).reshape(2, 3, 1, 1), np.float32))
    graph = b.done(b.op("Relu", v))
    lower(graph, TARGET)
    assert optimize(graph).changed == 0
    [fused] = [n for n in graph.nodes.values() if n.op == "Fused"]
    assert fused.captures == 2 and isinstance(graph.type(fused.outputs[0]), Tensor)
