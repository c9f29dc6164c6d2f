"""Attention and RotaryEmbedding, as ONNX defines them since opset 23.

Attention runs in float32 (float64 for float64 inputs), softmax included: softmax_precision may ask for less. One
attribute is ours: with `nan_rows` a query that no key is allowed for gives NaN, as the Softmax of -∞ alone does, where
ONNX's definition gives zeros. Attention that is recognised in pieces needs it where nothing guards these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, prod
from atc_py.ir.types import Tensor
from atc_py.ops import tiles_attention
from atc_py.ops.attention_impl import attend, masks
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Product, Result, Shape, declare
from atc_py.ops.shapes import show
from atc_py.ops.traits import Pattern

attention = declare(
    "Attention",
    inputs="Q K V attn_mask? past_key? past_value? nonpad_kv_seqlen?",
    outputs="Y present_key? present_value? qk_matmul_output?",
    attrs={
        "is_causal": Attr("int", 0),
        "kv_num_heads": Attr("int", None),
        "left_window_size": Attr("int", -1),
        "nan_rows": Attr("int", 0),
        "q_num_heads": Attr("int", None),
        "qk_matmul_output_mode": Attr("int", 0),
        "right_window_size": Attr("int", -1),
        "scale": Attr("float", None),
        "softcap": Attr("float", 0.0),
        "softmax_precision": Attr("dtype", None),
    },
    flags=Flags(fp16_safe=True, splittable=(0,), cube=(0, 1, 2)),
)

rotary = declare(
    "RotaryEmbedding",
    inputs="X cos_cache sin_cache position_ids?",
    outputs="Y",
    attrs={
        "interleaved": Attr("int", 0),
        "num_heads": Attr("int", None),
        "rotary_embedding_dim": Attr("int", 0),
    },
    flags=Flags(splittable=(0,), fp16_safe=True, wide_inputs=(1, 2), pattern=Pattern.ROTATION),
)


def _heads(n: Infer, i: int, name: str, attr: str) -> Shape | None:
    """Input `i` as [batch, heads, positions, size]."""
    shape = n.shape(i)
    if shape is None:
        return None
    if len(shape) == 4:
        return shape
    count = n.attrs[attr]
    if len(shape) != 3:
        n.fail(f"{name} has shape {show(shape)}; expected rank 3 or 4")
    if not count:
        n.fail(f"{name} has rank 3, which needs the attribute {attr}")
    if type(shape[2]) is int and shape[2] % count:
        n.fail(f"{name} has {shape[2]} features, which {count} heads do not divide")
    return (shape[0], count, shape[1], shape[2] // count)


def _sizes(n: Infer) -> tuple[Shape, Shape, Shape, Size] | None:
    """Q, K and V as [batch, heads, positions, size], and the number of keys with the past; None: a rank is unknown."""
    q, k = _heads(n, 0, "Q", "q_num_heads"), _heads(n, 1, "K", "kv_num_heads")
    v = _heads(n, 2, "V", "kv_num_heads")
    if n.has(4) != n.has(5):
        n.fail("past_key and past_value must be given together")
    if n.has(4) and n.has(6):
        n.fail("nonpad_kv_seqlen cannot be given together with past_key and past_value")
    if q is None or k is None or v is None:
        return None
    for what, a, b in (("head sizes of Q and K", q[3], k[3]), ("key and value positions", k[2], v[2])):
        if type(a) is int and type(b) is int and a != b:
            n.fail(f"the {what} differ: {a} and {b}")
    if type(q[1]) is int and type(k[1]) is int and (k[1] == 0 or q[1] % k[1]):
        n.fail(f"{q[1]} query heads are no multiple of {k[1]} key heads")
    past = n.shape(4) if n.has(4) else (0, 0, 0, 0)
    keys = k[2] + past[2] if past is not None else n.fresh("Attention keys")
    return q, k, v, keys


attention.tile(tiles_attention.whole_scores)


@attention.infer
def _(n: Infer) -> Result:
    dtype, found = n.dtype(0), _sizes(n)
    kinds = (dtype, n.dtype(4) if n.has(4) else n.dtype(1), n.dtype(5) if n.has(5) else n.dtype(2), dtype)
    if found is None:
        return [Tensor(kind, None) for kind in kinds][: max(1, n.outputs)]
    q, k, v, keys = found
    y: Shape = (q[0], q[1], q[2], v[3])
    if len(n.tensor(0).dims) == 3:
        y = (q[0], q[2], q[1] * v[3])
    shapes: tuple[Shape, ...] = (y, (k[0], k[1], keys, k[3]), (v[0], v[1], keys, v[3]), (q[0], q[1], q[2], keys))
    return [Tensor(kind, shape) for kind, shape in zip(kinds, shapes)][: max(1, n.outputs)]


@attention.cost
def _(n: Infer) -> Cost:
    found = _sizes(n)
    if found is None:
        return Cost()
    q, _, v, keys = found
    return attention_work(q[0] * q[1], q[2], keys, q[3], v[3])


def attention_work(heads: Size, queries: Size, keys: Size, size: Size, value_size: Size) -> Cost:
    """The work of `heads` attentions: two products, the scores' scale and mask, and their softmax in float32."""
    scores = heads * queries * keys
    products = (Product(queries, size, keys, heads), Product(queries, keys, value_size, heads))
    return Cost(products=products, vector=scores * 2, wide=scores * 8)


def split_heads(x: Array, heads: int | None) -> Array:
    """[batch, positions, heads·size] as [batch, heads, positions, size] (a view); rank 4 as it is."""
    if x.ndim == 4:
        return x
    count = heads or 1
    return x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3)


def presents(call: Call, i: int, past: Array | None, now: Array) -> Array:
    """The cache with the new positions appended, in output `i` where it is asked for."""
    asked = max(len(call.outs), len(call.out_types)) > i
    if past is None and not asked:
        return now
    before = 0 if past is None else past.shape[2]
    shape = (now.shape[0], now.shape[1], before + now.shape[2], now.shape[3])
    y = call.into(i, shape, now.dtype) if asked else np.empty(shape, now.dtype)
    if past is not None:
        y[:, :, :before] = past
    y[:, :, before:] = now
    return y


@attention.kernel
def _(
    call: Call, q: Array, k: Array, v: Array, mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, lengths: Array | None = None,
) -> Any:  # fmt: skip
    attrs = call.attrs
    outputs = max(1, len(call.outs), len(call.out_types))
    queries = split_heads(q, attrs["q_num_heads"])
    keys = presents(call, 1, past_key, split_heads(k, attrs["kv_num_heads"]))
    values = presents(call, 2, past_value, split_heads(v, attrs["kv_num_heads"]))
    batch, heads, rows, size = queries.shape
    flat = (batch, rows, heads * values.shape[3])
    y = call.into(0, flat if q.ndim == 3 else (batch, heads, rows, values.shape[3]), q.dtype)
    scale = attrs["scale"] if attrs["scale"] is not None else 1 / sqrt(size) if size else 1.0
    kept = call.into(3, (batch, heads, rows, keys.shape[2]), q.dtype) if outputs > 3 else None
    wide = np.dtype(np.float64) if q.dtype == np.float64 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        past = 0 if past_key is None else past_key.shape[2]
        m = masks(attrs, rows, keys.shape[2], past, mask, lengths, wide)
        attend(call, queries, keys, values, split_heads(y, heads), scale, m, kept)
    results = (y, keys, values, kept)
    return y if outputs == 1 else results[:outputs]


rotary.tile(tiles_attention.rotary)


@rotary.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if x is not None:
        if len(x) not in (3, 4):
            n.fail(f"X has shape {show(x)}; expected rank 3 or 4")
        if len(x) == 3 and not n.attrs["num_heads"]:
            n.fail("X has rank 3, which needs the attribute num_heads")
    return n.types[0]


@rotary.cost
def _(n: Infer) -> Cost:
    x = n.shape(0)
    return Cost() if x is None else Cost(vector=prod(x) * 3)


def _angles(cache: Array, positions: Array | None, dtype: np.dtype[Any]) -> Array:
    """The cosines or sines as [batch, 1, positions, half]."""
    chosen = cache if positions is None else cache[positions]
    return chosen.astype(dtype, copy=False)[:, None]


def _rotated(attrs: Mapping[str, Any], size: int) -> int:
    return int(attrs["rotary_embedding_dim"]) or size


@rotary.kernel
def _(call: Call, x: Array, cosines: Array, sines: Array, positions: Array | None = None) -> Array:
    attrs = call.attrs
    y = call.into(0, x.shape, x.dtype)
    source, target = split_heads(x, attrs["num_heads"]), split_heads(y, attrs["num_heads"])
    dtype = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    rotated = _rotated(attrs, source.shape[3])
    half = rotated // 2
    if attrs["interleaved"]:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    else:
        first, second = slice(0, half), slice(half, rotated)
    with np.errstate(all="ignore"):
        cos, sin = _angles(cosines, positions, dtype), _angles(sines, positions, dtype)
        a: Array = source[..., first].astype(dtype, copy=False)
        b: Array = source[..., second].astype(dtype, copy=False)
        np.copyto(target[..., first], a * cos - b * sin, casting="unsafe")
        np.copyto(target[..., second], a * sin + b * cos, casting="unsafe")
    if rotated < source.shape[3]:
        target[..., rotated:] = source[..., rotated:]
    return y
