"""Tile programs: they fit the target's buffers, run in buffers of just those sizes, and compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion.tiles import SHARE, Fit, Misfit, fit
from atc_py.ir.constants import DimVec, blob
from atc_py.ir.dims import evaluate, symbol
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Range
from atc_py.ir.types import DType, Tensor
from atc_py.ops import get
from atc_py.ops.base import Call, InferError
from atc_py.ops.build import Scope, lookup
from atc_py.ops.evaluate import evaluate as fold
from atc_py.ops.evaluate import run, tensor_type
from atc_py.ops.fused_run import _symbols
from atc_py.target import Target, load

P3 = load("Ascend310P3")
SMALL = replace(P3, ub=8192, l1=16384, l0c=8192)
F32, F16, S8 = DType.FLOAT32, DType.FLOAT16, DType.INT8
S = symbol("S")


class Body:
    """A body by hand."""

    def __init__(self, **symbols: Range) -> None:
        self.graph = Graph("body", dict(symbols))
        self.scope = Scope(self.graph)

    def input(self, *shape: Any, dtype: DType = F32) -> int:
        return self.graph.add_input(f"x{len(self.graph.inputs)}", Tensor(dtype, shape))

    def const(self, value: Any, dtype: Any = np.int64) -> int:
        return self.graph.add_const(blob(np.asarray(value, dtype)))

    def ops(self, op: str, *inputs: int, outputs: int = 1, **attrs: Any) -> list[int]:
        return self.scope.emit(op, inputs, attrs, outputs=outputs)

    def op(self, op: str, *inputs: int, **attrs: Any) -> int:
        return self.ops(op, *inputs, **attrs)[0]

    def done(self, *outputs: int) -> Graph:
        self.graph.set_outputs(outputs, [f"y{i}" for i in range(len(outputs))])
        return self.graph


def feeds(body: Graph, env: Mapping[str, int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrays = []
    for v in body.inputs:
        t = body.tensor(v)
        shape = tuple(evaluate(d, env) for d in t.dims)
        whole = t.dtype.is_int
        arrays.append(
            rng.integers(0, 7, shape).astype(t.dtype.numpy)
            if whole
            else rng.standard_normal(shape).astype(t.dtype.numpy)
        )
    return arrays


def plain(body: Graph, arrays: Sequence[Any], env: Mapping[str, int] = {}) -> list[Any]:
    """The body's outputs, operator by operator."""
    values: dict[int, Any] = dict(zip(body.inputs, arrays)) | {ABSENT: None}
    for node in body.order():
        if node.const is not None:
            values[node.outputs[0]] = fold(node.const, env)
        elif node.op not in STRUCTURAL:
            op = lookup(node.op, node.attrs)
            made = run(op, node.attrs, [values[v] for v in node.inputs], [None] * len(node.outputs))
            values |= zip(node.outputs, map(np.asarray, made))
    return [values[v] for v in body.outputs]


def fused(body: Graph, arrays: Sequence[Any], attrs: Mapping[str, Any], tiles: bool, outs: Any = None) -> list[Any]:
    """The body's outputs as one task."""
    op = get("Fused")
    assert op is not None and op.kernel_fn is not None and op.prepare_fn is not None
    wants = plain(body, arrays, _symbols(body, dict(zip(body.inputs, map(tensor_type, arrays)))))
    views = [np.empty(y.shape, y.dtype) for y in wants] if outs is None else outs
    types = tuple(Tensor(DType.of(a.dtype), a.shape) for a in arrays)
    out_types = tuple(Tensor(DType.of(y.dtype), y.shape) for y in wants)
    call = Call(op.attributes(attrs), out_types, views, {}, types, body=body, tiles=tiles)
    call.state = op.prepare_fn(call)
    with np.errstate(all="ignore"):
        result = op.kernel_fn(call, *arrays)
    results = list(result) if isinstance(result, tuple) else [result]
    for got, view in zip(results, views, strict=True):
        assert got is view
    return results


def close(got: Sequence[Any], want: Sequence[Any], rtol: float = 2e-5) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        if w.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
        else:
            scale = np.abs(w.astype(np.float64)).max(initial=0)
            loose = 4e-3 if w.dtype.itemsize == 2 else rtol
            np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=loose, atol=loose * scale)


def confirm(body: Graph, target: Target = SMALL, env: Mapping[str, int] | None = None, cut: bool = True) -> Fit:
    """The body fits, and both implementations agree with the plain graph; with `cut`, in more than one tile."""
    env = env or {}
    found = fit(body, target)
    assert isinstance(found, Fit), found
    for name, size in (("UB", target.ub), ("L1", target.l1), ("L0C", target.l0c)):
        assert found.buffers[name] <= SHARE * size
    arrays = feeds(body, env)
    want = plain(body, arrays, env)
    close(fused(body, arrays, found.attrs(), tiles=False), want)
    close(fused(body, arrays, found.attrs(), tiles=True), want)
    if cut:
        assert any(t and t < d for t, d in zip(found.tile, want[0].shape)), (
            f"{found.tile} of {want[0].shape} is no tile"
        )
    if (not cut and env) or not any(found.inner):
        return found
    tighter = tuple(max(0, n - 1) for n in found.inner)
    with pytest.raises(InferError, match="planned are"):
        fused(body, arrays, {**found.attrs(), "inner": tighter}, tiles=True)
    return found


# -- bodies --------------------------------------------------------------------------------------------------------


def chain() -> Graph:
    b = Body()
    x, y = b.input(64, 48), b.input(48)
    return b.done(b.op("Tanh", b.op("Relu", b.op("Add", x, y))))


def diamond() -> Graph:
    """Two results, one of them read inside."""
    b = Body()
    x, y = b.input(40, 32), b.input(40, 1)
    a = b.op("Add", x, y)
    e = b.op("Exp", a)
    return b.done(b.op("Mul", e, b.op("Sigmoid", a)), a)


def norm_residual() -> Graph:
    b = Body()
    x, r, scale = b.input(2, 30, 64), b.input(2, 30, 64), b.input(64)
    total = b.op("Add", x, r)
    return b.done(b.op("RMSNormalization", total, scale), total)


def softmax_chain() -> Graph:
    b = Body()
    x, m = b.input(2, 4, 20, 30), b.input(2, 1, 20, 30)
    return b.done(b.op("Softmax", b.op("Add", x, m), axis=-1))


def conv_block() -> Graph:
    b = Body()
    x, w, bias, r = b.input(2, 3, 16, 12), b.input(16, 3, 3, 3), b.input(16), b.input(2, 16, 16, 12)
    return b.done(b.op("Relu", b.op("Add", b.op("Conv", x, w, bias, pads=(1, 1, 1, 1)), r)))


def two_convs() -> Graph:
    b = Body()
    x, w, v = b.input(1, 4, 24, 10), b.input(8, 4, 3, 3), b.input(8, 8, 3, 3)
    first = b.op("Relu", b.op("Conv", x, w, pads=(1, 1, 1, 1)))
    return b.done(b.op("Relu", b.op("Conv", first, v, pads=(1, 1, 1, 1), strides=(2, 2))))


def two_products() -> Graph:
    b = Body()
    x, w, v = b.input(100, 24, dtype=F16), b.input(24, 32, dtype=F16), b.input(32, 16, dtype=F16)
    return b.done(b.op("MatMul", b.op("Gelu", b.op("MatMul", x, w)), v))


def gate_and_up() -> Graph:
    b = Body()
    x, gate, up = b.input(1, 70, 32), b.input(32, 48), b.input(32, 48)
    return b.done(b.op("Mul", b.op("Swish", b.op("MatMul", x, gate)), b.op("MatMul", x, up)))


def heads() -> Graph:
    """Q, K and V of one input: three results with as many tiles along the rows."""
    b = Body()
    x = b.input(1, 60, 32)
    return b.done(*[b.op("MatMul", x, b.input(32, n)) for n in (32, 16, 16)])


def rotated() -> Graph:
    b = Body()
    x, w, cos, sin = b.input(2, 24, 16), b.input(16, 32), b.input(50, 4), b.input(50, 4)
    places = b.input(2, 24, dtype=DType.INT64)
    y = b.op("RotaryEmbedding", b.op("MatMul", x, w), cos, sin, places, num_heads=4)
    return b.done(b.op("Transpose", b.op("Reshape", y, b.const([2, 24, 4, 8])), perm=(0, 2, 1, 3)))


def embedding() -> Graph:
    b = Body()
    table, indices, more = b.input(7, 32), b.input(1, 50, dtype=DType.INT64), b.input(1, 50, 32)
    scale, bias = b.input(32), b.input(32)
    total = b.op("Add", b.op("Gather", table, indices), more)
    return b.done(b.op("LayerNormalization", total, scale, bias), total)


def two_ranks() -> Graph:
    """Results that cannot be cut alike are made at once."""
    b = Body()
    x = b.op("Relu", b.input(6, 20))
    return b.done(x, b.op("Reshape", b.op("Exp", x), b.const([6, 4, 5])))


def quantized() -> Graph:
    b = Body()
    x, w = b.input(50, 32, dtype=S8), b.input(32, 24, dtype=S8)
    y = b.op("Cast", b.op("MatMulInteger", x, w), to=F32)
    scale, zero = b.const(0.5, np.float32), b.const(0, np.int8)
    return b.done(b.op("QuantizeLinear", b.op("Mul", y, b.input(24)), scale, zero))


def joined() -> Graph:
    b = Body()
    x = b.input(40, 24)
    left, right = b.ops("Split", x, b.const([8, 16]), outputs=2, axis=1)
    turned = b.op("Concat", b.op("Neg", right), left, axis=1)
    return b.done(b.op("Add", b.op("Mul", x, b.input(24)), turned))


def reduced() -> Graph:
    b = Body()
    x = b.input(40, 24)
    mean = b.op("ReduceMean", x, b.const([1]), keepdims=1)
    centred = b.op("Sub", x, mean)
    return b.done(b.op("ReduceMean", b.op("Mul", centred, centred), b.const([1]), keepdims=1), centred, mean)


def pooled() -> Graph:
    b = Body()
    x = b.input(1, 8, 20, 10)
    return b.done(b.op("MaxPool", b.op("Relu", x), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)))


def group_normed() -> Graph:
    b = Body()
    x = b.input(2, 16, 6, 6)
    return b.done(b.op("Swish", b.op("GroupNormalization", x, b.input(16), b.input(16), num_groups=8)))


def flash_group() -> Graph:
    b = Body()
    x, k, v, w = b.input(1, 40, 16), b.input(1, 24, 16), b.input(1, 24, 16), b.input(16, 16)
    y = b.op("FlashAttentionScore", b.op("MatMul", x, w), k, v, q_num_heads=4, kv_num_heads=2 * 2, is_causal=1,
             tile_queries=8, tile_keys=8)  # fmt: skip
    return b.done(b.op("Add", y, x))


BODIES = [
    chain,
    diamond,
    norm_residual,
    softmax_chain,
    conv_block,
    two_convs,
    two_products,
    gate_and_up,
    heads,
    rotated,
]
BODIES += [embedding, quantized, joined, reduced, pooled, group_normed, flash_group]


@pytest.mark.parametrize("make", BODIES, ids=lambda f: f.__name__)
def test_tile_programs(make: Any) -> None:
    body = make()
    found = confirm(body)
    sizes = [prod(body.tensor(v).dims) * body.tensor(v).dtype.itemsize for n in body.order() for v in n.outputs
             if n.op not in STRUCTURAL]  # fmt: skip
    assert all(n < size for n, size in zip(found.inner, sizes, strict=True)), "an inner value has its full size"


@pytest.mark.parametrize("make", [*BODIES, two_ranks], ids=lambda f: f.__name__)
def test_everything_at_once_where_the_target_has_room(make: Any) -> None:
    found = confirm(make(), P3, cut=False)
    assert not any(found.tile)


@st.composite
def bodies(draw: Any) -> Graph:
    """Any few operators over [rows, columns], with one to three results."""
    b = Body()
    rows, columns = draw(st.integers(2, 70)), draw(st.sampled_from([4, 8, 12]))
    values, kinds = [b.input(rows, columns), b.input(columns), b.input(rows, 1)], []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(
            st.sampled_from(["unary", "binary", "binary", "mean", "softmax", "norm", "product", "turned", "joined"])
        )
        v = values[draw(st.integers(0, len(values) - 1))]
        if len(b.graph.tensor(v).dims) != 2:
            v = values[0]
        wide = b.graph.tensor(v).dims[1] != 1
        if kind == "binary":
            made = b.op(draw(st.sampled_from(["Add", "Mul", "Sub"])), v, values[draw(st.integers(0, len(values) - 1))])
        elif kind == "mean":
            made = b.op("ReduceMean", v, b.const([1]), keepdims=1)
        elif kind == "softmax":
            made = b.op("Softmax", v, axis=draw(st.sampled_from([-1, 1])))
        elif kind == "norm" and wide:
            made = b.op("RMSNormalization", v, values[1])
        elif kind == "product" and wide:
            made = b.op("MatMul", v, b.input(columns, columns))
        elif kind == "turned" and wide:
            split = b.op("Reshape", v, b.const([rows, 2, columns // 2]))
            made = b.op("Reshape", b.op("Neg", split), b.const([rows, columns]))
        elif kind == "joined" and wide:
            left, right = b.ops("Split", v, b.const([2, columns - 2]), outputs=2, axis=1)
            made = b.op("Concat", right, left, axis=1)
        else:
            made = b.op(draw(st.sampled_from(["Relu", "Tanh", "Neg"])), v)
        values.append(made)
        kinds.append(kind)
    made_ones = values[3:]
    count = draw(st.integers(1, min(3, len(made_ones))))
    others = draw(st.permutations(made_ones[:-1]))[: count - 1]
    # The result of the full shape comes first: the tile is cut by it.
    outs = sorted({made_ones[-1], *others}, key=lambda v: -prod(b.graph.tensor(v).dims))
    return b.done(*outs)


def test_any_body() -> None:
    tight = replace(SMALL, ub=2048, l1=8192)
    cut = []

    @settings(max_examples=80)
    @given(bodies())
    def agrees(body: Graph) -> None:
        found = fit(body, tight)
        assert isinstance(found, Fit), found
        confirm(body, tight, cut=False)
        cut.append(any(0 < t < d for t, d in zip(found.tile, body.tensor(body.outputs[0]).dims) if type(d) is int))

    agrees()
    assert sum(cut) > len(cut) // 3


# -- symbols -------------------------------------------------------------------------------------------------------


def test_unbounded_rows_are_cut_and_clipped() -> None:
    b = Body(S=Range(1))
    x, w = b.input(1, S, 32), b.input(32)
    body = b.done(b.op("Tanh", b.op("RMSNormalization", b.op("Add", x, x), w)))
    for rows in (1, 3, 50, 333):
        confirm(body, env={"S": rows}, cut=rows > 50)


def test_the_whole_of_an_unbounded_dim_is_refused() -> None:
    b = Body(S=Range(1))
    x = b.input(4, S)
    found = fit(b.done(b.op("Softmax", b.op("Add", x, x), axis=-1)), SMALL)
    assert found == Misfit("symbol", "needs the whole of S, which has no upper bound")


def test_an_upper_bound_is_used() -> None:
    b = Body(S=Range(1, 200))
    x = b.input(40, S)
    body = b.done(b.op("Softmax", b.op("Add", x, x), axis=-1))
    found = confirm(body, env={"S": 200})
    assert found.tile == (3, 0) and confirm(body, env={"S": 7}, cut=False) == found


@pytest.mark.parametrize("most", [None, 64, 120])
def test_rows_of_several_sequences_are_not_cut_across_their_borders(most: int | None) -> None:
    """Joined dims: a tile of rows may hold the end of one sequence and the beginning of the next."""
    b = Body(S=Range(1, most))
    x = b.input(3, S, 8)
    joined = b.graph.add_const(DimVec(DType.INT64, (2,), (3 * S, 8)))
    found = fit(b.done(b.op("Neg", b.op("Reshape", b.op("Exp", x), joined))), SMALL)
    assert isinstance(found, Fit if most else Misfit), found
    for rows in (1, 5, 40, 63, 64) if most else ():
        confirm(b.graph, env={"S": rows}, cut=False)


def test_one_sequence_of_rows_is_cut() -> None:
    b = Body(S=Range(1))
    x = b.input(1, S, 8)
    flat = b.graph.add_const(DimVec(DType.INT64, (2,), (S, 8)))
    body = b.done(b.op("Neg", b.op("Reshape", b.op("Exp", x), flat)))
    for rows in (1, 40, 333):
        confirm(body, env={"S": rows}, cut=rows > 100)


def test_a_constant_that_no_operand_tells_is_refused() -> None:
    b = Body(S=Range(1))
    x = b.input(1, 8)
    shape = b.graph.add_const(DimVec(DType.INT64, (2,), (S, 8)))
    found = fit(b.done(b.op("Expand", x, shape)), SMALL)
    assert found == Misfit("symbol", "a constant of the body needs S, which none of its operands tells")


def test_results_of_several_ranks_are_not_cut() -> None:
    found = fit(two_ranks(), replace(SMALL, ub=1024))
    assert isinstance(found, Misfit) and found.reason.endswith("results of several ranks cannot be cut")


# -- refusals, with their numbers ----------------------------------------------------------------------------------


def test_refusals_name_the_constraint_and_its_numbers() -> None:
    b = Body()
    wide = fit(b.done(b.op("Softmax", b.op("Exp", b.input(2, 5000)), axis=-1)), SMALL)
    assert wide == Misfit("UB", "needs 39.1 KiB of UB, has 8.0 KiB and may take 70%")
    b = Body()
    x, w, v = b.input(32, 16, dtype=F16), b.input(16, 4096, dtype=F16), b.input(4096, 16, dtype=F16)
    deep = fit(b.done(b.op("MatMul", b.op("MatMul", x, w), v)), SMALL)
    assert isinstance(deep, Misfit) and deep.constraint in ("L1", "L0C") and "KiB of" in deep.reason
    b = Body()
    [top, _] = b.ops("TopK", b.input(4, 9), b.const([2]), outputs=2)
    assert fit(b.done(b.op("Exp", top)), SMALL) == Misfit("rule", "TopK cannot be made in tiles")


def test_a_body_is_looked_at_again_when_anything_differs() -> None:
    def body(rows: int, axis: int) -> Graph:
        b = Body()
        return b.done(b.op("Softmax", b.op("Exp", b.input(rows, 64)), axis=axis))

    assert fit(body(64, 1), SMALL) == fit(body(64, 1), SMALL)
    assert fit(body(64, 1), SMALL) != fit(body(64, 0), SMALL)
    assert fit(body(64, 1), SMALL) != fit(body(64, 1), P3)


def test_products_are_cut_into_blocks_of_the_cube() -> None:
    b = Body()
    x, w = b.input(4096, 4096, dtype=F16), b.input(4096, 4096, dtype=F16)
    found = fit(b.done(b.op("Relu", b.op("MatMul", x, w))), P3)
    assert isinstance(found, Fit) and found.tile == (208, 208)
    assert all(t % 16 == 0 for t in found.tile) and found.buffers["L0C"] == 4 * 208 * 208


# -- attributes from a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attrs",
    [
        {"tile": (8,)},
        {"tile": (8, 0), "inner": (64,)},
        {"tile": (-1, 0)},
        {"inner": (-4, 64, 64)},
        {"inner": (1 << 40, 64, 64)},
        {"inner_in": ("UB", "DDR", "UB")},
        {"inner_in": ("UB",)},
    ],
)
def test_attributes_that_contradict_the_body(attrs: dict[str, Any]) -> None:
    body = chain()
    found = fit(body, SMALL)
    assert isinstance(found, Fit)
    for tiles in (False, True):
        with pytest.raises(InferError):
            fused(body, feeds(body, {}), {**found.attrs(), **attrs}, tiles)


def test_results_that_lie_apart() -> None:
    """Outputs with strides, as those of a part of a larger tensor."""
    body = diamond()
    found = fit(body, SMALL)
    assert isinstance(found, Fit)
    arrays = feeds(body, {})
    want = plain(body, arrays)
    for tiles in (False, True):
        outs = [np.empty((y.shape[0], y.shape[1] + 3), y.dtype)[:, :-3] for y in want]
        close(fused(body, arrays, found.attrs(), tiles, outs), want)


def _fit_of(graph: Graph, target: Target) -> Fit:
    found = fit(graph, target)
    assert isinstance(found, Fit), found
    return found


@pytest.mark.parametrize("after", [(), ("Relu",), ("Relu", "Add")])
def test_what_an_operator_makes_whole_is_not_made_for_each_part(after: tuple[str, ...]) -> None:
    b = Body()
    v = b.op("Conv", b.input(1, 64, 32, 32, dtype=F16), b.input(64, 64, 3, 3, dtype=F16), pads=(1, 1, 1, 1))
    v = b.op("InstanceNormalization", v, b.input(64, dtype=F16), b.input(64, dtype=F16))
    for op in after:
        v = b.op(op, v, b.input(1, 64, 32, 32, dtype=F16)) if op == "Add" else b.op(op, v)
    tile = _fit_of(b.done(v), P3).tile
    assert tile[2:] == (0, 0) and 0 < tile[1] < 64


@pytest.mark.parametrize("stride", [1, 2])
def test_a_result_that_windows_read_beyond_its_tile_is_cut(stride: int) -> None:
    b = Body()
    v = b.op("Relu", b.input(1, 32, 64, 64, dtype=F16))
    y = b.op("Conv", v, b.input(32, 32, 3, 3, dtype=F16), pads=(1, 1, 1, 1), strides=(stride, stride))
    graph = b.done(v, y)
    found = _fit_of(graph, replace(P3, ub=P3.ub // 4))
    rows, columns = (n or 64 for n in found.tile[2:])
    assert rows * columns < 64 * 64
    # The tile is what is stored; what the windows read of it has a row and a column more on the sides where they reach.
    reach = 2 if stride == 1 else 1
    held = min(64, rows + reach) * min(64, columns + reach) * 32 * 2
    assert found.inner[0] == held


@pytest.mark.parametrize(("size", "block"), [((64, 64), 8), ((57, 128), 8), ((30, 41), 4)])
def test_tiles_of_results_of_other_lengths_lie_beside_each_other(size: tuple[int, int], block: int) -> None:
    """Blocks of a tile of the map are those of the tile: none needs pixels of the next one."""
    b = Body()
    x = b.op("Conv", b.input(1, 8, *size, dtype=F16), b.input(32, 8, 1, 1, dtype=F16))
    moments = b.ops("BlockMoments", x, outputs=2, block=(block, block))
    found = _fit_of(b.done(x, *moments), SMALL)
    cut = [n for n in found.tile[2:] if n]
    assert cut and all(n % block == 0 for n in cut)
    assert found.inner[0] == prod(n or d for n, d in zip(found.tile, (1, 32, *size), strict=True)) * 2
