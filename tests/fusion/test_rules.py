"""The law of each rule: the fused graph computes what the graph does, for generated shapes, dtypes and neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion import RULES
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Range
from atc_py.ir.types import DType
from tests.fusion.making import TARGET, bodies, fused, notes, proved, rand, tasks
from tests.passes.interp import Builder, work

GENERATED = settings(max_examples=25, deadline=None, derandomize=True)
SIZES = st.sampled_from([1, 3, 8, 20])
DTYPES = st.sampled_from([np.float32, np.float16])


CUT = replace(TARGET, ub=16_384, l1=65_536, l0c=32_768)
"""A core on which maps of a few thousand pixels are cut."""


def only(rule: str) -> frozenset[str]:
    """All other rules."""
    return frozenset(r.name for r in RULES) - {rule}


def given_input(b: Builder, name: str, shape: tuple[Any, ...], dtype: Any) -> int:
    return b.input(name, shape, DType.of(np.dtype(dtype)))


@GENERATED
@given(SIZES, SIZES, st.lists(SIZES, min_size=2, max_size=4), st.sampled_from(["MatMul", "Gemm", "Conv"]), DTYPES)
def test_horizontal(rows: int, k: int, columns: list[int], kind: str, dtype: Any) -> None:
    b = Builder()
    x = given_input(b, "x", (1, k, rows, 3) if kind == "Conv" else (rows, k), dtype)
    shape = (lambda n: (n, k, 1, 1)) if kind == "Conv" else (lambda n: (k, n))
    made = [b.op(kind, x, b.const(rand(*shape(n), dtype=dtype))) for n in columns]
    g = proved(b.done(*made), disabled=only("horizontal"))
    assert bodies(g) == [[kind] * len(columns)] and len(tasks(g)[0].outputs) == len(columns)


@GENERATED
@given(st.sampled_from([1, 2]), SIZES, st.sampled_from([1, 2, 4]), st.booleans(), st.booleans())
def test_rotary(batch: int, rows: int, heads: int, interleaved: bool, bias: bool) -> None:
    b, size = Builder(), 8
    x = b.input("x", (batch, rows, 12))
    cos, sin = (b.input(name, (batch, rows, size // 2)) for name in ("c", "s"))
    v = b.op("MatMul", x, b.const(rand(12, heads * size)))
    v = b.op("Add", v, b.const(rand(heads * size))) if bias else v
    y = b.op("RotaryEmbedding", v, cos, sin, num_heads=heads, interleaved=int(interleaved))
    g = proved(b.done(y), disabled=only("rotary") - {"conv_epilogue"})
    assert bodies(g) == [["MatMul", *(["Add"] if bias else []), "RotaryEmbedding"]]


@GENERATED
@given(SIZES, SIZES, st.sampled_from(["RMSNormalization", "LayerNormalization", "Relu", "Mul"]), st.booleans(), DTYPES)
def test_prologue(rows: int, k: int, kind: str, read: bool, dtype: Any) -> None:
    b = Builder()
    x = given_input(b, "x", (2, rows, k), dtype)
    attrs = {"axis": -1} if "Norm" in kind else {}
    p = b.op(kind, x, **attrs) if kind == "Relu" else b.op(kind, x, b.const(rand(k, dtype=dtype)), **attrs)
    y = b.op("MatMul", p, b.const(rand(k, 5, dtype=dtype)))
    g = proved(b.done(y, b.op("CumSum", p, b.const(1))) if read else b.done(y), disabled=only("prologue"))
    assert bodies(g) == [[kind, "MatMul"]] and len(tasks(g)[0].outputs) == 1 + read


@GENERATED
@given(st.sampled_from([4, 9, 24]), st.sampled_from([16, 40]), st.booleans(), DTYPES)
def test_conv_norm(size: int, channels: int, act: bool, dtype: Any) -> None:
    b = Builder()
    x = given_input(b, "x", (2, 8, size, size), dtype)
    v = b.op("Conv", x, b.const(rand(channels, 8, 3, 3, dtype=dtype)), pads=(1, 1, 1, 1))
    scale, bias = (b.const(rand(channels, dtype=dtype)) for _ in range(2))
    v = b.op("InstanceNormalization", v, scale, bias)
    g = proved(b.done(b.op("Relu", v) if act else v), disabled=only("conv_norm"))
    # Planes that leave room for a few channels only make tiles compute more than it saves.
    whole = ["Conv", "InstanceNormalization", *(["Relu"] if act else [])]
    assert bodies(g) in ([whole], []) and (size == 24 or bodies(g))


@GENERATED
@given(
    st.sampled_from([5, 9, 20]),
    st.sampled_from(["GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"]),
    st.sampled_from([16, 40]),
    st.booleans(),
    DTYPES,
)
def test_conv_statistics(size: int, kind: str, channels: int, act: bool, dtype: Any) -> None:
    b = Builder()
    x = given_input(b, "x", (2, 8, size, size), dtype)
    v = b.op("Conv", x, b.const(rand(channels, 8, 3, 3, dtype=dtype)), pads=(1, 1, 1, 1))
    v = b.op("Relu", v) if act else v
    y = b.op(kind, v, b.const([2, 3])) if "Reduce" in kind else b.op(kind, v)
    g = proved(b.done(v, y), disabled=only("conv_statistics") - {"conv_epilogue"})
    assert bodies(g) == [["Conv", *(["Relu"] if act else []), kind]] and len(tasks(g)[0].outputs) == 2


def test_statistics_that_drop_the_pixels_dims_are_left_alone() -> None:
    b = Builder()
    v = b.op("Conv", b.input("x", (1, 8, 20, 20)), b.const(rand(16, 8, 3, 3)))
    g = proved(b.done(v, b.op("ReduceMean", v, b.const([2, 3]), keepdims=0)), disabled=only("conv_statistics"))
    assert bodies(g) == [] and any("not a number or more for each channel" in n for n in notes(g))


@GENERATED
@given(
    st.sampled_from([12, 33]),
    st.sampled_from(["MaxPool", "AveragePool", "LpPool"]),
    st.sampled_from([(2, 2), (3, 2), (3, 1)]),
    st.booleans(),
    st.booleans(),
    DTYPES,
)
def test_conv_pool(size: int, kind: str, window: tuple[int, int], act: bool, after: bool, dtype: Any) -> None:
    b = Builder()
    x = given_input(b, "x", (1, 8, size, size), dtype)
    v = b.op("Conv", x, b.const(rand(24, 8, 3, 3, dtype=dtype)), pads=(1, 1, 1, 1))
    v = b.op("Relu", v) if act else v
    kernel, stride = window
    pads = (kernel // 2,) * 4
    y = b.op(kind, v, kernel_shape=(kernel, kernel), strides=(stride, stride), pads=pads)
    y = b.op("Add", y, b.input("r", (1, 24, 1, 1), DType.of(np.dtype(dtype)))) if after else y
    g = proved(b.done(y), target=CUT, disabled=only("conv_pool") - {"conv_epilogue"})
    assert bodies(g) in ([["Conv", *["Relu"] * act, kind, *["Add"] * after]], [["Conv", "Relu"]], [])
    assert size == 33 or stride == 1 or kind in bodies(g)[0]


def test_a_pool_of_a_map_that_is_also_stored_is_left_alone() -> None:
    b = Builder()
    v = b.op("Conv", b.input("x", (1, 8, 12, 12)), b.const(rand(16, 8, 3, 3)))
    y = b.op("MaxPool", v, kernel_shape=(2, 2), strides=(2, 2))
    g = proved(b.done(v, y), disabled=only("conv_pool"))
    assert bodies(g) == [] and any("is read by 1 more" in n for n in notes(g))


def test_what_adds_nothing_does_not_join_a_group() -> None:
    """Windows of 7 rows that move by one: each tile would make much of the map again."""
    b = Builder()
    v = b.op("Conv", b.input("x", (1, 64, 96, 96), DType.FLOAT16), b.const(rand(64, 64, 3, 3, dtype=np.float16)))
    v = b.op("Relu", v)
    y = b.op("MaxPool", v, kernel_shape=(7, 7), strides=(1, 1))
    g = proved(b.done(y), disabled=only("conv_pool") - {"conv_epilogue"})
    assert bodies(g) == [["Conv", "Relu"]] and any("us, without" in n for n in notes(g))


@GENERATED
@given(
    st.sampled_from([9, 40]),
    st.sampled_from(["reflect", "edge", "constant", "wrap"]),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_prologue_that_pads(size: int, mode: str, pad: int, stride: int, read: bool) -> None:
    b = Builder()
    x = given_input(b, "x", (1, 8, size, 33), np.float16)
    r = b.op("Sigmoid", x)
    amounts = b.const([0, 0, pad, 1, 0, 0, 1, pad])
    fill = [b.const(np.array(2, np.float16))] if mode == "constant" else []
    p = b.op("Pad", r, amounts, *fill, mode=mode)
    y = b.op("Conv", p, b.const(rand(16, 8, 3, 3, dtype=np.float16)), strides=(stride, stride))
    g = proved(b.done(y, r) if read else b.done(y), target=CUT, disabled=only("prologue"))
    if size == 9 or mode == "wrap":  # it is one tile, or all of it would be made for each
        return
    assert bodies(g) in ([["Sigmoid", "Pad", "Conv"]], [["Pad", "Conv"]])
    assert any(tasks(g)[0].attrs["tile"][2:]) and len(tasks(g)[0].outputs) == 1 + (read and len(bodies(g)[0]) == 3)


@GENERATED
@given(SIZES, st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.booleans())
def test_prologue_of_a_convolution_keeps_zeros_in_the_pads(size: int, kernel: int, stride: int, gate: bool) -> None:
    b = Builder()
    x = b.input("x", (1, 4, size + 2, size + 3))
    # 1 in the padding instead of 0 would show.
    p = b.op("Mul", x, b.input("g", (1, 4, 1, 1))) if gate else b.op("Exp", x)
    pads = (kernel // 2,) * 4
    y = b.op("Conv", p, b.const(rand(6, 4, kernel, kernel)), pads=pads, strides=(stride, stride))
    assert len(bodies(proved(b.done(y), disabled=only("prologue")))) == 1


@pytest.mark.parametrize(("size", "channels", "read"), [(33, 8, False), (33, 8, True), (192, 64, False)])
def test_prologue_of_a_chain(size: int, channels: int, read: bool) -> None:
    """What the first of two convolutions reads is on the way to the second: it is no branch beside it."""
    b, half = Builder(), np.float16
    x, r = (b.input(name, (1, channels, size, size), DType.FLOAT16) for name in "xr")
    p = b.op("Add", b.op("Mul", x, b.input("g", (1, channels, 1, 1), DType.FLOAT16)), r)
    v = b.op("Relu", b.op("Conv", p, b.const(rand(16, channels, 1, 1, dtype=half))))
    v = b.op("Sigmoid", b.op("Conv", v, b.const(rand(channels, 16, 3, 3, dtype=half)), pads=(1, 1, 1, 1)))
    graph = b.done(v, b.op("CumSum", p, b.const(1))) if read else b.done(v)
    make = proved if size < 100 else fused
    g = make(graph, disabled=only("prologue") - {"conv_chain"})
    assert bodies(g) == [["Mul", "Add", "Conv", "Relu", "Conv", "Sigmoid"]] and len(tasks(g)[0].outputs) == 1 + read


@GENERATED
@given(st.sampled_from([20, 33]), st.sampled_from([1, 2]), st.sampled_from([1, 3]), st.booleans(), st.booleans())
def test_conv_chain(size: int, stride: int, kernel: int, depthwise: bool, residual: bool) -> None:
    b = Builder()
    x = b.input("x", (1, 8, size, size), DType.FLOAT16)
    v = b.op("Relu", b.op("Conv", x, b.const(rand(16, 8, 1, 1, dtype=np.float16))))
    shape = (16, 1, kernel, kernel) if depthwise else (16, 16, kernel, kernel)
    weights, pads = b.const(rand(*shape, dtype=np.float16)), (kernel // 2,) * 4
    v = b.op("Conv", v, weights, group=16 if depthwise else 1, strides=(stride, stride), pads=pads)
    v = b.op("Conv", b.op("Relu", v), b.const(rand(8, 16, 1, 1, dtype=np.float16)))
    v = b.op("Add", v, x) if residual and stride == 1 else v
    g = proved(b.done(v), disabled=only("conv_chain"))
    [task] = tasks(g)
    assert [op for op in bodies(g)[0] if op == "Conv"] == ["Conv"] * 3
    # Rows that two cores compute count in the price.
    assert task.attrs.get("again") or kernel == 1


@GENERATED
@given(st.sampled_from([1, 2]), SIZES, SIZES, st.sampled_from([(4, 4), (4, 2), (4, 1)]), st.booleans(), st.booleans())
def test_flash_attention(batch: int, q: int, k: int, heads: tuple[int, int], causal: bool, masked: bool) -> None:
    b = Builder()
    query = b.input("q", (batch, heads[0], q, 8))
    key, value = (b.input(name, (batch, heads[1], k, 8)) for name in "kv")
    mask = [b.input("m", (batch, 1, q, k))] if masked else []
    g = proved(b.done(b.op("Attention", query, key, value, *mask, is_causal=int(causal))))
    assert work(g) == ["FlashAttentionScore"]
    [node] = [n for n in g.order() if n.op == "FlashAttentionScore"]
    assert node.attrs["tile_queries"] % 16 == 0 and node.attrs["tile_keys"] % 16 == 0


@GENERATED
@given(SIZES, SIZES, st.integers(1, 3), st.booleans())
def test_embedding(rows: int, size: int, tables: int, norm: bool) -> None:
    b = Builder()
    total = -1
    for i in range(tables):
        ids = b.input(f"ids{i}", (2, rows), DType.INT64)
        part = b.op("Gather", b.const(rand(4, size)), ids, axis=0)
        total = part if i == 0 else b.op("Add", total, part)
    y = b.op("RMSNormalization", total, b.const(rand(size)), axis=-1) if norm or tables == 1 else total
    g = proved(b.done(y, total), disabled=only("embedding"))
    assert work(g) == ["Fused"]


@GENERATED
@given(
    st.sampled_from(["LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"]),
    SIZES, st.booleans(), st.booleans(), DTYPES,
)  # fmt: skip
def test_residual_norm(kind: str, size: int, read: bool, act: bool, dtype: Any) -> None:
    b = Builder()
    shape = (2, 4, size, 6)
    total = b.op("Add", given_input(b, "x", shape, dtype), given_input(b, "r", shape, dtype))
    if kind in ("InstanceNormalization", "GroupNormalization"):
        attrs: dict[str, Any] = {"num_groups": 2} if kind[0] == "G" else {}
        y = b.op(kind, total, b.const(rand(4, dtype=dtype)), b.const(rand(4, dtype=dtype)), **attrs)
    else:
        y = b.op(kind, total, b.const(rand(6, dtype=dtype)), axis=-1)
    y = b.op("Relu", y) if act else y
    g = proved(b.done(y, total) if read else b.done(y), disabled=only("residual_norm"))
    assert bodies(g) == [["Add", kind, *(["Relu"] if act else [])]] and len(tasks(g)[0].outputs) == 1 + read


@GENERATED
@given(st.sampled_from(["AveragePool", "MaxPool"]), st.sampled_from([2, 3]), st.booleans(), st.booleans(), DTYPES)
def test_pooling(kind: str, kernel: int, before: bool, after: bool, dtype: Any) -> None:
    b = Builder()
    v = given_input(b, "x", (1, 3, 9, 8), dtype)
    v = b.op("Relu", v) if before else v
    v = b.op(kind, v, kernel_shape=(kernel, kernel), strides=(2, 2), pads=(1, 1, 0, 0))
    v = b.op("Add", v, given_input(b, "r", b.graph.tensor(v).dims, dtype)) if after else v
    g = proved(b.done(v), disabled=only("pooling"))
    want = [*(["Relu"] if before else []), kind, *(["Add"] if after else [])]
    assert bodies(g) == ([want] if before or after else [])


STEPS = ["Exp", "Tanh", "Abs", "scale", "bias", "mean", "max", "softmax", "norm", "where", "cast"]


@GENERATED
@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=8), SIZES, st.booleans())
def test_vector_chain(steps: list[str], size: int, symbolic: bool) -> None:
    b = Builder(N=Range(1))
    v = b.input("x", (symbol("N") if symbolic else 3, size, 6))
    for step in steps:
        if step == "scale":
            v = b.op("Mul", v, b.const(rand(6)))
        elif step == "bias":
            v = b.op("Add", b.input(f"r{b.count}", (1, size, 1)), v)
        elif step in ("mean", "max"):
            v = b.op("Sub", v, b.op(f"Reduce{step.capitalize()}", v, b.const([-1]), keepdims=1))
        elif step == "softmax":
            v = b.op("Softmax", v, axis=-1)
        elif step == "norm":
            v = b.op("LayerNormalization", v, b.const(rand(6)), b.const(rand(6)), axis=-1)
        elif step == "where":
            v = b.op("Where", b.op("Greater", v, b.const(np.float32(0.1))), v, b.const(np.float32(-1)))
        elif step == "cast":
            v = b.op("Cast", b.op("Cast", v, to=DType.FLOAT16), to=DType.FLOAT32)
        else:
            v = b.op(step, v)
    g = proved(b.done(v), {"N": 3}, disabled=only("vector_chain"))
    assert work(g) == ["Fused"]


def test_a_decoder_layer_is_five_tasks() -> None:
    b = Builder(S=Range(1))
    s = symbol("S")
    x, cos, sin = b.input("x", (1, s, 32)), b.input("c", (1, s, 4)), b.input("s", (1, s, 4))
    h = b.op("RMSNormalization", x, b.const(rand(32)), axis=-1)
    q, k, v = (b.op("MatMul", h, b.const(rand(32, 32))) for _ in range(3))
    q, k = (b.op("RotaryEmbedding", y, cos, sin, num_heads=4) for y in (q, k))
    a = b.op("Attention", q, k, v, q_num_heads=4, kv_num_heads=4, is_causal=1)
    x = b.op("Add", x, b.op("MatMul", a, b.const(rand(32, 32))))
    h = b.op("RMSNormalization", x, b.const(rand(32)), axis=-1)
    gate, up = (b.op("MatMul", h, b.const(rand(32, 48))) for _ in range(2))
    x = b.op("Add", x, b.op("MatMul", b.op("Mul", b.op("Swish", gate), up), b.const(rand(48, 32))))
    g = proved(b.done(x), {"S": 7})
    assert work(g) == ["Fused", "FlashAttentionScore", "Fused", "Fused", "Fused"]
    qkv, out, swiglu, down = bodies(g)
    assert qkv.count("MatMul") == 3 and qkv.count("RotaryEmbedding") == 2 and len(tasks(g)[0].outputs) == 3
    assert swiglu[0] == "RMSNormalization" and len(tasks(g)[2].outputs) == 1
    assert out == down == ["MatMul", "Add"]


@pytest.mark.parametrize("rule", [r.name for r in RULES])
def test_each_rule_is_looked_at_here(rule: str) -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert rule in tests | {"conv_epilogue"}  # that one: test_fusion.py
