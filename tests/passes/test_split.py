"""Operators that exceed the target's memory: cut into pieces that fit, or refused with numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from atc_py.errors import AtcError
from atc_py.ir.clone import clone
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Graph, Range
from atc_py.ir.types import DType
from atc_py.ir.validate import validate
from atc_py.passes import LowerOptions, lower
from atc_py.passes.base import PassContext
from atc_py.passes.split import split_large
from atc_py.passes.split_plan import Sizes
from atc_py.schedule import ScheduleOptions, schedule
from atc_py.target import Target, load
from tests.passes.interp import Builder, assert_same, interpret, random_inputs, whole, work

MIB = 1 << 20


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[int], Target]:
    """A user's own target file with little memory."""

    def make(memory: int) -> Target:
        text = (files("atc_py.target") / "data/Ascend310P3.toml").read_text()
        text = re.sub(r"(?m)^memory = .*$", f"memory = {memory}", text).replace('"Ascend310P3"', '"Tiny"')
        path = tmp_path / "tiny.toml"
        path.write_text(text)
        return load(path)

    return make


def split(graph: Graph, target: Target, *, same: bool = True) -> Graph:
    """The graph in pieces: valid, at rest, no task too large, and the same results."""
    copy = clone(graph)
    ctx = PassContext(LowerOptions(), copy, target)
    assert split_large(copy, ctx) > 0
    validate(copy, "optimize")
    assert split_large(copy, ctx) == 0
    sizes = Sizes(copy)
    assert all(sizes.operands(n) <= target.memory for n in copy.nodes.values())
    assert not [n for n in copy.nodes.values() if n.op == "Const" and not copy.values[n.outputs[0]].uses]
    if same:
        inputs = random_inputs(graph)
        assert_same(interpret(copy, inputs), interpret(graph, inputs))
    return copy


def n(b: Builder, shape: tuple[int, ...], seed: int = 0) -> int:
    return b.const(np.random.default_rng(seed).standard_normal(shape), np.float32)


FORMS: dict[str, tuple[Callable[[Builder], int], str]] = {
    "matmul by rows": (lambda b: b.op("MatMul", b.input("x", (700, 300)), n(b, (300, 128))), "MatMul"),
    "matmul by columns": (lambda b: b.op("MatMul", b.input("x", (1, 300)), n(b, (300, 1000))), "MatMul"),
    "batched matmul": (lambda b: b.op("MatMul", b.input("x", (8, 128, 128)), b.input("y", (8, 128, 128))), "MatMul"),
    "gemm": (
        lambda b: b.op("Gemm", b.input("x", (400, 300)), n(b, (600, 300)), n(b, (600,)), transB=1, alpha=0.5), "Gemm"
    ),
    "conv, out channels": (
        lambda b: b.op("Conv", b.input("x", (1, 40, 50, 50)), n(b, (72, 40, 3, 3)), n(b, (72,))), "Conv"
    ),
    "conv, batch": (lambda b: b.op("Conv", b.input("x", (44, 8, 20, 20)), n(b, (8, 8, 3, 3)), pads=(1,) * 4), "Conv"),
    "conv, groups": (
        lambda b: b.op("Conv", b.input("x", (1, 32, 64, 64)), n(b, (32, 1, 3, 3)), group=32, pads=(1,) * 4), "Conv"
    ),
    "elementwise": (lambda b: b.op("Add", b.input("x", (300, 500)), b.input("y", (500,))), "Add"),
    "reduction": (lambda b: b.op("ReduceMax", b.input("x", (2, 120_000)), b.const([0]), keepdims=0), "ReduceMax"),
    "softmax": (lambda b: b.op("Softmax", b.input("x", (30, 40, 150)), axis=1), "Softmax"),
    "norm": (lambda b: b.op("LayerNormalization", b.input("x", (20, 30, 300)), n(b, (300,)), axis=-1),
             "LayerNormalization"),
    "pool": (lambda b: b.op("MaxPool", b.input("x", (2, 44, 50, 50)), kernel_shape=(3, 3)), "MaxPool"),
    "gather": (lambda b: b.op("Gather", n(b, (500, 256)), b.input("i", (700,), DType.INT64)), "Gather"),
    "transpose": (lambda b: b.op("Transpose", b.input("x", (300, 500)), perm=(1, 0)), "Transpose"),
    "concat": (lambda b: b.op("Concat", b.input("x", (300, 250)), b.input("y", (300, 250)), axis=1), "Concat"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tiny: Callable[[int], Target]) -> None:
    make, op = FORMS[form]
    b = Builder()
    graph = split(b.done(make(b)), tiny(MIB))
    assert 2 <= work(graph).count(op) < 40


def test_a_chain_goes_piece_by_piece_and_its_peak_falls(tiny: Callable[[int], Target]) -> None:
    b = Builder()
    x, y = b.input("x", (512, 64)), b.input("y", (64, 512))
    scores = b.op("Softmax", b.op("Exp", b.op("MatMul", x, y)), axis=-1)  # 1 MiB each, and never there whole
    graph = b.done(b.op("MatMul", scores, b.input("v", (512, 64))))
    copy = split(graph, tiny(MIB))
    assert work(copy).count("Softmax") == work(copy).count("Exp") == 2
    largest = max(whole(v.tensor.nbytes) for v in copy.values.values())
    assert largest < MIB
    order = work(copy)
    assert order.index("Softmax") < len(order) - 1 - order[::-1].index("Exp")  # one piece ends before the next begins

    def peak(g: Graph) -> int:
        lowered = clone(g)
        lower(lowered, load("Ascend310P3"), LowerOptions(level=0))
        arena = schedule(lowered, ScheduleOptions()).arena
        assert arena is not None
        return arena

    assert peak(copy) <= 0.6 * peak(graph)


def test_through_views(tiny: Callable[[int], Target]) -> None:
    b = Builder()
    heads = b.op("Reshape", b.op("Exp", b.input("x", (256, 1024))), b.const([256, 16, 64]))
    graph = b.done(b.op("ReduceSum", b.op("Abs", heads), b.const([1, 2]), keepdims=0))
    copy = split(graph, tiny(MIB))
    assert work(copy).count("Reshape") == work(copy).count("Abs") == work(copy).count("Exp") > 1
    kept = [v for v in copy.values.values() if whole(v.tensor.nbytes) >= MIB]
    assert [v.id for v in kept] == copy.inputs


def test_what_cannot_be_split_is_told_with_numbers(tiny: Callable[[int], Target]) -> None:
    b = Builder()
    long = b.op("Softmax", b.input("x", (1, 200_000)), axis=1)
    wide = b.op("CumSum", b.input("z", (400, 1000)), b.const(0))
    graph = b.done(long, wide)
    with pytest.raises(AtcError) as e:
        lower(graph, tiny(MIB))
    problems = {p.place: p for p in e.value.problems}
    assert set(problems) == {"n0", "n1"} and {p.code for p in e.value.problems} == {"E20040"}
    cause = problems["n0"].cause
    assert "operands of Softmax take 1,600,000 bytes" in cause and "Tiny has 1,048,576" in cause
    assert "'x' [1, 200000] 800,000" in cause and "axis 1 of 200000: a part of it takes the whole axis" in cause
    assert "a target with 1,600,000 bytes; Ascend310 (" in problems["n0"].hint


def test_what_fits_is_left_alone(tiny: Callable[[int], Target]) -> None:
    b = Builder(N=Range(1))
    x = b.input("x", (256, 256))
    graph = b.done(b.op("MatMul", x, n(b, (256, 256))), b.op("Exp", b.input("s", (symbol("N"), 1 << 20))))
    assert split_large(graph, PassContext(LowerOptions(), graph, tiny(MIB))) == 0


def test_lowered_and_at_rest(tiny: Callable[[int], Target]) -> None:
    b = Builder()
    v = b.op("Relu", b.op("MatMul", b.input("x", (700, 300)), n(b, (300, 128))))
    graph = b.done(b.op("Add", v, n(b, (128,))))
    copy = clone(graph)
    target = tiny(MIB)
    report = lower(copy, target, LowerOptions(debug=True))
    assert report.settled and lower(clone(copy), target).changed == 0
    inputs = random_inputs(graph)
    assert_same(interpret(copy, inputs), interpret(graph, inputs))


STEPS = ("exp", "bias", "matmul", "softmax", "turn", "flat", "sum", "norm", "residual", "halves")


def grown(b: Builder, steps: list[str]) -> Graph:
    v = b.input("x", (320, 256))
    for step in steps:
        v = further(b, v, step)
    return b.done(b.op("Neg", v))


def further(b: Builder, v: int, step: str) -> int:
    r, c = (whole(d) for d in b.graph.tensor(v).dims)
    made: dict[str, Callable[[], int]] = {
        "exp": lambda: b.op("Tanh", v),
        "bias": lambda: b.op("Add", v, n(b, (c,))),
        "matmul": lambda: b.op("Mul", b.op("MatMul", v, n(b, (c, c))), b.const(1 / c, np.float32)),
        "softmax": lambda: b.op("Softmax", v, axis=-1),
        "turn": lambda: b.op("Transpose", v, perm=(1, 0)),
        "flat": lambda: b.op("Reshape", b.op("Abs", b.op("Reshape", v, b.const([r, c // 8, 8]))), b.const([r, c])),
        "sum": lambda: b.op("Sub", v, b.op("ReduceMax", v, b.const([1]), keepdims=1)),
        "norm": lambda: b.op("LayerNormalization", v, n(b, (c,)), axis=-1),
        "residual": lambda: b.op("Add", v, b.op("Relu", v)),
        "halves": lambda: b.op("Concat", v, b.op("Neg", v), axis=0) if r < 640 else v,
    }
    return made[step]()


@seed(3)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6), st.sampled_from([5 * MIB // 8, 3 * MIB // 4, MIB]))
def test_generated_graphs_fit_and_compute_the_same(steps: list[str], memory: int) -> None:
    graph = grown(Builder(), steps)
    target = replace(load("Ascend310P3"), memory=memory)
    sizes = Sizes(graph)
    if max(map(sizes.operands, graph.nodes.values())) <= memory:
        return
    try:
        split(graph, target)
    except AtcError as e:  # a value that is cut or put together along no run of bytes may be too large by itself
        assert all(p.code == "E20040" for p in e.problems)
        assert max(map(sizes.value, graph.values)) * 2 > memory
