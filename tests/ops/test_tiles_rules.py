"""Tile rules: the kernel on the regions that a rule names gives that region of the kernel's result on the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.types import DType
from atc_py.ops import get
from atc_py.ops.base import REGISTRY
from atc_py.ops.evaluate import run
from atc_py.ops.index import INDEX
from atc_py.ops.tiles import Region, Untileable, Wanted, cut, holds, needed, tileable, whole
from tests.ops.elementwise_cases import cases
from tests.ops.harness import attributes

for _family in sorted(set(INDEX.values())):
    import_module(f"atc_py.ops.{_family}")

RTOL = {"float16": 4e-3, "bfloat16": 2**-6}


@dataclass
class Whole:
    """One operation on whole tensors."""

    op: str
    attrs: Mapping[str, Any]
    inputs: Sequence[Any]
    outputs: int = 1


def results(op: Any, attrs: Mapping[str, Any], inputs: Sequence[Any], outputs: int) -> list[Any]:
    return [None if x is None else np.asarray(x) for x in run(op, attrs, inputs, [None] * outputs)]


def region(draw: Callable[[int, int], int], shape: Sequence[int]) -> Region:
    found = []
    for d in shape:
        length = draw(1, d) if d else 0
        found.append((draw(0, d - length), length))
    return tuple(found)


def confirm(w: Whole, draw: Callable[[int, int], int], which: int = 0, dims: Sequence[int] | None = None) -> bool:
    """Compare one region; False where the rule refuses. `dims`: cut only along these."""
    op = get(w.op)
    assert op is not None and tileable(op), w.op
    attrs = op.attributes(w.attrs)
    wants = results(op, attrs, w.inputs, w.outputs)
    box = region(draw, wants[which].shape)
    if dims is not None:
        box = tuple(r if k in dims else (0, d) for k, (r, d) in enumerate(zip(box, wants[which].shape)))
    wanted = Wanted(
        tuple(None if x is None else np.shape(x) for x in w.inputs),
        attrs,
        tuple(w.inputs),
        tuple(box if k == which else None for k in range(w.outputs)),
        tuple(y.shape for y in wants),
        tuple(0 if x is None else x.itemsize for x in w.inputs),
    )
    try:
        need = needed(op, wanted)
    except Untileable:
        return False
    parts: list[Any] = []
    for k, x in enumerate(w.inputs):
        r = need.inputs[k]
        assert (r is None) == (x is None), f"input {k} of {w.op}"
        if r is not None:
            assert holds(whole(x.shape), r), f"{w.op} needs {r} of input {k}, which is {list(x.shape)}"
        parts.append(need.values[k] if k in need.values else None if r is None else x[cut(r)])
    made = wanted.outs if need.outputs is None else need.outputs
    target = made[which]
    assert target is not None and holds(target, box)
    found = results(op, {**attrs, **need.attrs}, parts, w.outputs)
    for want, got, r in zip(wants, found, made):
        if r is not None:
            same(got, want[cut(r)], w)
    return True


def same(got: Any, want: Any, w: Whole) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, f"{w.op}: {got.shape} for {want.shape}"
    if want.dtype.kind in "iubOUS":
        np.testing.assert_array_equal(got, want)
    else:
        rtol = RTOL.get(want.dtype.name, 1e-5)
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        scale = np.abs(want[np.isfinite(want)].astype(kind)).max(initial=0)
        np.testing.assert_allclose(got.astype(kind), want.astype(kind), rtol=rtol, atol=rtol * float(scale) + 1e-30)


def data(draw: Any, *shape: int, dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -90), min(info.max, 90), shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def integers(draw: Any) -> Callable[[int, int], int]:
    return lambda low, high: draw(st.integers(low, high))


# -- every node test of every operator that can be cut -------------------------------------------------------------


RULED = sorted(name for name, op in REGISTRY.items() if tileable(op) and "::" not in name)
NEVER = {"TensorMove", "FlashAttentionScore", "L2Normalize", "BlockMoments", "CombineMoments", "INInferV2"}
"""Operators of the project's own, which onnx has no node tests for."""


@pytest.mark.parametrize("name", [n for n in RULED if n not in NEVER])
def test_node_tests(name: str) -> None:
    rng = np.random.default_rng(7)
    agreed = tried = 0
    for case in cases(name):
        if any(x is not None and np.asarray(x).dtype == object for x in case.inputs) or case.outputs[0] is None:
            continue
        op = REGISTRY[name]
        inputs = [None if x is None else np.asarray(x) for x in case.inputs]
        outputs = len(case.outputs)
        w = Whole(name, attributes(op, case.node), inputs, outputs)
        for _ in range(3):
            tried += 1
            agreed += confirm(w, lambda low, high: int(rng.integers(low, high + 1)))
    assert agreed or not tried, f"the rule of {name} refuses all of onnx's node tests"


# -- generated shapes and attributes -------------------------------------------------------------------------------


@st.composite
def products(draw: Any) -> Whole:
    m, k, n = (draw(st.integers(1, 9)) for _ in range(3))
    batch = draw(st.sampled_from([(), (2,), (3, 2)]))
    left = draw(st.sampled_from([batch, batch[1:], ()]))
    right = draw(st.sampled_from([batch, tuple(1 for _ in batch), ()]))
    a = data(draw, *left, m, k) if draw(st.integers(0, 5)) else data(draw, k)
    b = data(draw, *right, k, n) if draw(st.integers(0, 5)) else data(draw, k)
    return Whole("MatMul", {}, (a, b))


@st.composite
def gemms(draw: Any) -> Whole:
    m, k, n = (draw(st.integers(1, 9)) for _ in range(3))
    ta, tb = draw(st.booleans()), draw(st.booleans())
    a, b = data(draw, *((k, m) if ta else (m, k))), data(draw, *((n, k) if tb else (k, n)))
    c = data(draw, *draw(st.sampled_from([(m, n), (n,), (m, 1), (1, 1), ()])))
    return Whole("Gemm", {"transA": int(ta), "transB": int(tb), "alpha": 0.5, "beta": 2.0}, (a, b, c))


@st.composite
def quantized_products(draw: Any) -> Whole:
    m, k, n = (draw(st.integers(2, 9)) for _ in range(3))
    a, b = data(draw, m, k, dtype=np.uint8), data(draw, k, n, dtype=np.int8)
    by_row, by_column = draw(st.booleans()), draw(st.booleans())
    a_scale = abs(data(draw, *((m, 1) if by_row else ()))) + np.float32(0.1)
    a_zero = data(draw, *((m, 1) if by_row else ()), dtype=np.uint8)
    b_scale = abs(data(draw, *((n,) if by_column else ()))) + np.float32(0.1)
    b_zero = data(draw, *((n,) if by_column else ()), dtype=np.int8)
    y = (np.float32(3.5), np.uint8(100))
    inputs = (a, a_scale, a_zero, b, b_scale, b_zero, np.asarray(y[0]), np.asarray(y[1]))
    return Whole("QLinearMatMul", {}, tuple(np.asarray(x) for x in inputs))


@st.composite
def convolutions(draw: Any, transposed: bool = False, quantized: bool = False) -> Whole:
    rank = draw(st.integers(1, 2))
    group = draw(st.integers(1, 3))
    channels, filters = group * draw(st.integers(1, 3)), group * draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    spatial = tuple(draw(st.integers(5, 9)) for _ in range(rank))
    attrs: dict[str, Any] = {
        "group": group,
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
    }
    if draw(st.booleans()):
        attrs["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        # Wide pads of a convolution hold whole windows; those of a transposed one cut its result.
        attrs["pads"] = tuple(draw(st.integers(0, k - 1 if transposed else k + 2)) for k in kernel * 2)
    kind = (np.uint8, np.int8) if quantized else (np.float32, np.float32)
    x = data(draw, 2, channels, *spatial, dtype=kind[0])
    if transposed:
        w = data(draw, channels, filters // group, *kernel)
        attrs["output_padding"] = tuple(draw(st.integers(0, s - 1)) for s in attrs["strides"])
        return Whole("ConvTranspose", attrs, (x, w, data(draw, filters)))
    w = data(draw, filters, channels // group, *kernel, dtype=kind[1])
    if not quantized:
        return Whole("Conv", attrs, (x, w, data(draw, filters)))
    scale = abs(data(draw, filters)) + np.float32(0.1)
    parameters = (
        x,
        np.float32(0.1),
        np.uint8(60),
        w,
        scale,
        data(draw, filters, dtype=np.int8),
        np.float32(2),
        np.uint8(7),
    )
    bias = data(draw, filters, dtype=np.int32)
    return Whole("QLinearConv", attrs, tuple(np.asarray(p) for p in (*parameters, bias)))


@st.composite
def pools(draw: Any) -> Whole:
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    name = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    attrs: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": (draw(st.integers(1, 3)), draw(st.integers(1, 2))),
        "dilations": (draw(st.integers(1, 2)), 1),
        "pads": tuple(draw(st.integers(0, k - 1)) for k in kernel * 2),
        "ceil_mode": draw(st.integers(0, 1)),
    }
    if name == "AveragePool":
        attrs["count_include_pad"] = draw(st.integers(0, 1))
    return Whole(name, attrs, (data(draw, 2, 3, draw(st.integers(5, 9)), draw(st.integers(5, 9))),))


@st.composite
def norms(draw: Any) -> Whole:
    shape = (2, 6, draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    x, by_channel = data(draw, *shape), (data(draw, 6), data(draw, 6))
    axis = draw(st.integers(-2, 3))
    first = axis % 4
    tail = (data(draw, *shape[first:]), data(draw, *shape[first:]))
    found: Whole = draw(
        st.sampled_from(
            [
                Whole("InstanceNormalization", {}, (x, *by_channel)),
                Whole("GroupNormalization", {"num_groups": draw(st.sampled_from([1, 2, 3, 6]))}, (x, *by_channel)),
                Whole("BlockMoments", {"block": (2, 3)}, (x,), draw(st.integers(1, 2))),
                Whole(
                    "CombineMoments",
                    {
                        "block": (2, 3),
                        "size": (2 * shape[2], 3 * shape[3] - 1),
                        "num_groups": draw(st.sampled_from([0, 2, 3])),
                    },
                    (x, abs(x)),
                    2,
                ),
                Whole("INInferV2", {}, (x, *by_channel, x[:, :, :1, :1], abs(x[:, :, :1, :1]))),
                Whole("BatchNormalization", {}, (x, *by_channel, data(draw, 6), abs(data(draw, 6)))),
                Whole("LayerNormalization", {"axis": axis}, (x, *tail), draw(st.integers(1, 3))),
                Whole("RMSNormalization", {"axis": axis}, (x, tail[0])),
                Whole("Softmax", {"axis": axis}, (x,)),
                Whole("LogSoftmax", {"axis": axis}, (x,)),
                Whole("L2Normalize", {"axis": (axis,)}, (x,)),
                Whole("LpNormalization", {"axis": axis}, (x,)),
                Whole("MeanVarianceNormalization", {"axes": (0, 2)}, (x,)),
            ]
        )
    )
    return found


@st.composite
def reductions(draw: Any) -> Whole:
    x = data(draw, 3, 4, 2, 5)
    axes = draw(st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=3))
    keep = draw(st.integers(0, 1))
    if draw(st.booleans()):
        return Whole("ArgMax", {"axis": axes[0], "keepdims": keep}, (x,))
    name = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"]))
    return Whole(name, {"keepdims": keep}, (x, np.array(axes, np.int64)))


@st.composite
def quantizations(draw: Any) -> Whole:
    shape, axis = (3, 8, 5), draw(st.integers(0, 2))
    kind = draw(st.sampled_from(["tensor", "axis", "block"]))
    block = draw(st.integers(2, 4)) if kind == "block" else 0
    part = tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape)) if block else (shape[axis],)
    scale = abs(data(draw, *(() if kind == "tensor" else part))) + np.float32(0.1)
    zero = data(draw, *np.shape(scale), dtype=np.int8)
    attrs = {"axis": axis, "block_size": block}
    if draw(st.booleans()):
        return Whole("QuantizeLinear", attrs, (data(draw, *shape), np.asarray(scale), zero))
    return Whole("DequantizeLinear", attrs, (data(draw, *shape, dtype=np.int8), np.asarray(scale), zero))


@st.composite
def rotaries(draw: Any) -> Whole:
    batch, heads, steps, size = 2, draw(st.integers(1, 4)), draw(st.integers(1, 6)), 2 * draw(st.integers(1, 4))
    flat = draw(st.booleans())
    x = data(draw, batch, steps, heads * size) if flat else data(draw, batch, heads, steps, size)
    attrs = {"interleaved": draw(st.integers(0, 1)), **({"num_heads": heads} if flat else {})}
    if draw(st.booleans()):
        tables = (data(draw, 9, size // 2), data(draw, 9, size // 2))
        return Whole("RotaryEmbedding", attrs, (x, *tables, abs(data(draw, batch, steps, dtype=np.int64)) % 9))
    tables = (data(draw, batch, steps, size // 2), data(draw, batch, steps, size // 2))
    return Whole("RotaryEmbedding", attrs, (x, *tables))


@st.composite
def attentions(draw: Any, name: str = "Attention") -> Whole:
    batch, groups, repeat = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows, new, past = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(0, 3))
    size, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    flat = draw(st.booleans())

    def heads(count: int, steps: int, features: int) -> Any:
        return data(draw, batch, steps, count * features) if flat else data(draw, batch, count, steps, features)

    q, k, v = heads(groups * repeat, rows, size), heads(groups, new, size), heads(groups, new, width)
    caches = (data(draw, batch, groups, past, size), data(draw, batch, groups, past, width)) if past else (None, None)
    mask = None
    kind = draw(st.sampled_from(["none", "bool", "float", "rows"]))
    if kind != "none":
        shape = draw(
            st.sampled_from([(rows, new + past), (batch, 1, rows, new + past), (1, groups * repeat, 1, new + past)])
        )
        mask = data(draw, *shape) > -0.5 if kind == "bool" else data(draw, *shape)
        if kind == "rows":
            mask[..., 0, :] = -np.inf
    lengths = None
    if not past and draw(st.booleans()):
        lengths = np.array([draw(st.integers(0, new)) for _ in range(batch)], np.int64)
    attrs: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)), "softcap": draw(st.sampled_from([0.0, 1.5])),
        "nan_rows": draw(st.integers(0, 1)), "left_window_size": draw(st.sampled_from([-1, -1, 2])),
        "right_window_size": draw(st.sampled_from([-1, -1, 1])),
    }  # fmt: skip
    if flat:
        attrs |= {"q_num_heads": groups * repeat, "kv_num_heads": groups}
    return Whole(name, attrs, (q, k, v, mask, *caches, lengths), draw(st.sampled_from([1, 1, 3])))


@st.composite
def paddings(draw: Any) -> Whole:
    shape = (2, draw(st.integers(1, 6)), draw(st.integers(2, 9)))
    pads = [draw(st.integers(0, 6)) for _ in range(4)]
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    return Whole(
        "Pad", {"mode": mode}, (data(draw, *shape), np.array(pads, np.int64), None, np.array([1, 2], np.int64))
    )


@st.composite
def moves(draw: Any) -> Whole:
    shape = (2, 6, 4, 3)
    x = data(draw, *shape)
    cuts = draw(st.lists(st.integers(1, 4), min_size=4, max_size=4))
    targets = [
        (2, 24, 3),
        (12, 4, 3),
        (2, 6, 12),
        (2, 3, 2, 4, 3),
        (2, 1, 6, 4, 3),
        (144,),
        (2, 6, 2, 2, 3),
        (4, 3, 12),
    ]
    axis = draw(st.integers(0, 3))
    parts = [data(draw, *[draw(st.integers(1, 3)) if i == axis else d for i, d in enumerate(shape)]) for _ in range(3)]
    perm = tuple(draw(st.permutations(range(4))))
    sizes = np.array([1, shape[axis] - 1], np.int64)
    starts = np.array([draw(st.integers(-3, 1)), 0], np.int64)
    found: Whole = draw(
        st.sampled_from(
            [
                Whole("Transpose", {"perm": perm}, (x,)),
                Whole("Reshape", {}, (x, np.array(draw(st.sampled_from(targets)), np.int64))),
                Whole("Pad", {"mode": draw(st.sampled_from(["constant", "constant", "reflect"]))},
                      (x, np.array(draw(st.sampled_from([[2, -1, 0, 1, 2, 0], [1, 2, 0, 1, 0, 0]])), np.int64),
                       None, np.array([1, 2, 0], np.int64))),
                Whole("DepthToSpace", {"blocksize": 2}, (data(draw, 2, 8, 4, 3),)),
                Whole("SpaceToDepth", {"blocksize": 2}, (data(draw, 2, 3, 4, 6),)),
                Whole("Flatten", {"axis": draw(st.integers(0, 3))}, (x,)),
                Whole("Unsqueeze", {}, (x, np.array([1, 4], np.int64))),
                Whole("Squeeze", {}, (x[:, :1], np.array([1], np.int64))),
                Whole("Expand", {}, (x[:, :1], np.array(shape, np.int64))),
                Whole("Concat", {"axis": axis}, parts),
                Whole("Split", {"axis": axis}, (x, sizes), 2),
                Whole("Slice", {}, (x, starts, np.array([99, cuts[0]], np.int64), np.array([1, 2], np.int64),
                                    np.array([draw(st.integers(1, 2)), 1], np.int64))),
                Whole("Gather", {"axis": axis}, (x, abs(data(draw, 2, 5, dtype=np.int64)) % shape[axis])),
            ]
        )
    )  # fmt: skip
    return found


def check(strategy: Any, examples: int, least: float = 0.9) -> None:
    """Confirm many examples; the rule may refuse few of them."""
    agreed: list[bool] = []

    @settings(max_examples=examples)
    @given(st.data())
    def property_(source: Any) -> None:
        w = source.draw(strategy)
        which = source.draw(st.integers(0, w.outputs - 1))
        agreed.append(confirm(w, integers(source.draw), which))

    property_()
    assert sum(agreed) >= least * len(agreed), f"refused {len(agreed) - sum(agreed)} of {len(agreed)}"


def test_matrix_products() -> None:
    check(products(), 60)
    check(gemms(), 40)
    check(quantized_products(), 40)


def test_convolutions() -> None:
    check(convolutions(), 80)
    check(convolutions(quantized=True), 40)


def test_transposed_convolutions() -> None:
    check(convolutions(transposed=True), 80)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2])
def test_rows_that_lie_in_the_padding_alone_are_the_bias(stride: int, kernel: int) -> None:
    rng = np.random.default_rng(stride)
    x, w = rng.random((1, 2, 7, 6), np.float32), rng.random((4, 2, kernel, 1), np.float32)
    conv = Whole("Conv", {"pads": (5, 0, 6, 0), "strides": (stride, 1)}, (x, w, np.arange(4, dtype=np.float32)))
    rows = (7 + 11 - kernel) // stride + 1
    for low in range(rows):
        for length in range(1, min(rows - low, 3) + 1):
            lows, lengths = iter((0, 0, low, 0)), iter((1, 4, length, 6))
            assert confirm(conv, partial(_given, lows, lengths))


def _given(lows: Iterator[int], lengths: Iterator[int], least: int, most: int) -> int:
    """Draws a region that is decided: only a length is at least 1."""
    return next(lengths) if least == 1 else next(lows)


def test_pools() -> None:
    check(pools(), 80)


def test_quantized_pools() -> None:
    @st.composite
    def quantized_pools(draw: Any) -> Whole:
        x = data(draw, 2, 3, draw(st.integers(5, 9)), draw(st.integers(5, 9)), dtype=np.uint8)
        parameters = [np.asarray(v) for v in (np.float32(0.5), np.uint8(9), np.float32(0.4), np.uint8(7))]
        if draw(st.booleans()):
            return Whole("com.microsoft::QLinearGlobalAveragePool", {}, (x, *parameters))
        attrs = {
            "kernel_shape": (3, 2),
            "strides": (2, 1),
            "pads": (1, 1, 1, 0),
            "count_include_pad": draw(st.integers(0, 1)),
        }
        return Whole("com.microsoft::QLinearAveragePool", attrs, (x, *parameters))

    check(quantized_pools(), 40)


def test_norms() -> None:
    check(norms(), 80)


def test_reductions_and_quantization() -> None:
    check(reductions(), 50)
    check(quantizations(), 50)


def test_rotary_embeddings() -> None:
    check(rotaries(), 50)


@pytest.mark.parametrize("name", ["Attention", "FlashAttentionScore"])
def test_attention(name: str) -> None:
    check(attentions(name), 100)


def test_moves() -> None:
    check(moves(), 150)
    check(paddings(), 150, least=1.0)


@settings(max_examples=200, deadline=None)
@given(st.one_of(paddings(), norms()), st.data())
def test_lengths_that_are_asked_for_are_enough_anywhere(w: Whole, source: Any) -> None:
    """What a rule answers to lengths holds for each tile of these lengths, wherever it lies."""
    op = get(w.op)
    assert op is not None
    attrs = op.attributes(w.attrs)
    shapes = [y.shape for y in results(op, attrs, w.inputs, w.outputs)]
    tile = [source.draw(st.integers(1, d)) for d in shapes[0]]

    def asked(index: Sequence[int], anywhere: bool) -> tuple[list[Any], list[Any]]:
        box = tuple((i * n, min(n, d - i * n)) for i, n, d in zip(index, tile, shapes[0]))
        inputs = tuple(None if x is None else np.shape(x) for x in w.inputs)
        outs = (box, *[box if s == shapes[0] else None for s in shapes[1:]])
        sizes = tuple(0 if x is None else x.itemsize for x in w.inputs)
        need = needed(op, Wanted(inputs, attrs, tuple(w.inputs), outs, tuple(shapes), sizes, anywhere))
        made = outs if need.outputs is None else need.outputs
        return [r and [min(n, d) for (_, n), d in zip(r, s or ())] for r, s in zip(need.inputs, inputs)], [
            r and [min(n, d) for (_, n), d in zip(r, s)] for r, s in zip(made, shapes)
        ]

    most = asked([0] * len(tile), True)
    for index in np.ndindex(*[-(-d // n) for d, n in zip(shapes[0], tile)]):
        for side, limit in zip(asked(index, False), most, strict=True):
            for got, enough in zip(side, limit, strict=True):
                assert got is None or (enough is not None and all(a <= b for a, b in zip(got, enough))), (tile, index)


def test_operators_without_a_rule_are_not_tileable() -> None:
    for name in ("TopK", "NonZero", "Loop", "RandomNormal", "Bernoulli", "Resize", "LSTM"):
        op = get(name)
        assert op is not None and not tileable(op), name
    relu = get("Relu")
    assert relu is not None and tileable(relu)
    assert DType.FLOAT16.itemsize == 2


def test_a_rule_that_needs_a_value_says_so() -> None:
    op = get("ReduceSum")
    assert op is not None
    w = Wanted(((4, 4), (1,)), op.attributes({}), (None, None), (((0, 1), (0, 1)),), ((4, 1),))
    with pytest.raises(Untileable, match="input 1 is not known"):
        needed(op, w)
