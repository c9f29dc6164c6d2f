"""com.microsoft's GroupQueryAttention: attention with a cache of keys and values that the operator extends itself.

Each sequence of the batch has its own length, `seqlens_k + 1` with the new steps. For a past of 5 and 1 new step,

    past_key [batch, kv heads, 5, size]  +  key [batch, 1, kv heads · size]  →  present_key [batch, kv heads, 6, size]

new keys lie behind the sequence's own past, so a shorter sequence overwrites what is behind it. A first prompt is told
by its length, which is the total length: its past is empty whatever the buffer holds. Positions for the rotary
embedding, the causal order and the window count from the sequence's own past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, dmax, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.attention import attention_work
from atc_py.ops.attention_impl import Masks, attend
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, declare
from atc_py.ops.elementwise_base import HALVES, check_dtype
from atc_py.ops.shapes import show

attention = declare(
    "com.microsoft::GroupQueryAttention",
    inputs="query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? "
    "position_ids? attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?",
    outputs="output present_key? present_value? output_qk?",
    attrs={
        "causal": Attr("int", 1),
        "do_rotary": Attr("int", 0),
        "k_norm_epsilon": Attr("float", None),
        "k_quant_type": Attr("str", "NONE"),
        "kv_cache_bit_width": Attr("int", 0),
        "kv_num_heads": Attr("int"),
        "local_window_size": Attr("int", -1),
        "num_heads": Attr("int"),
        "q_norm_epsilon": Attr("float", None),
        "qk_norm_epsilon": Attr("float", 1e-6),
        "qk_output": Attr("int", 0),
        "rotary_interleaved": Attr("int", 0),
        "scale": Attr("float", 0.0),
        "sliding_window_cache": Attr("int", 0),
        "smooth_softmax": Attr("int", -1),
        "softcap": Attr("float", 0.0),
        "v_quant_type": Attr("str", "NONE"),
    },
    flags=Flags(fp16_safe=True, splittable=(0,), cube=(0, 1, 2)),
    host_inputs=(6,),
)


def _refuse(n: Infer) -> None:
    """Say what is not supported: quantised caches, windowed caches, norms of queries and keys, the scores' output."""
    a = n.attrs
    if a["k_quant_type"] != "NONE" or a["v_quant_type"] != "NONE" or n.has(12) or n.has(13):
        n.fail("quantised caches are not supported")
    if a["sliding_window_cache"] or n.has(16):
        n.fail("sliding_window_cache and query_seqlens are not supported")
    if n.has(14) or n.has(15):
        n.fail("q_norm_weight and k_norm_weight are not supported")
    if a["qk_output"] or n.outputs > 3:
        n.fail("the output of scores (qk_output) is not supported")
    if a["do_rotary"] and not (n.has(7) and n.has(8)):
        n.fail("do_rotary needs cos_cache and sin_cache")


def _head_size(n: Infer) -> Any:
    """The size of a head; None when it is unknown."""
    query, heads, kv = n.shape(0), n.attrs["num_heads"], n.attrs["kv_num_heads"]
    if kv < 1 or heads % kv:
        n.fail(f"{heads} query heads are no multiple of {kv} key heads")
    if query is None:
        return None
    if len(query) != 3:
        n.fail(f"the query has shape {show(query)}; expected [batch, steps, features]")
    count = heads if n.has(1) else heads + 2 * kv
    if type(query[2]) is int and query[2] % count:
        n.fail(f"the query has {query[2]} features, which {count} heads do not divide")
    return query[2] // count


def _total(n: Infer) -> Any:
    """The length of the present: the buffer's, or the total length where that is greater."""
    ints = n.ints(6)
    length = ints[0] if ints else n.fresh("total")
    past = n.shape(3) if n.has(3) else None
    if past is None:
        return length
    if type(length) is int or isinstance(length, Dim):
        return dmax(past[2], length)
    return n.fresh("total")


@attention.infer
def _(n: Infer) -> Result:
    _refuse(n)
    check_dtype(n, 0, HALVES | {DType.FLOAT32})
    dtype, query, size = n.dtype(0), n.shape(0), _head_size(n)
    if query is None:
        return [Tensor(dtype, None)] * max(1, n.outputs)
    y = Tensor(dtype, (query[0], query[1], size * n.attrs["num_heads"]))
    present = Tensor(dtype, (query[0], n.attrs["kv_num_heads"], _total(n) if n.outputs > 1 else 1, size))
    return [y, present, present][: max(1, n.outputs)]


@attention.cost
def _(n: Infer) -> Cost:
    query, past = n.shape(0), n.shape(3) if n.has(3) else None
    if query is None:
        return Cost()
    keys = query[1] if past is None else past[2] + query[1]
    heads, size = query[0] * n.attrs["num_heads"], _head_size(n)
    work = attention_work(heads, query[1], keys, size, size)
    return replace(work, vector=work.vector + prod(query))


def _split(call: Call, query: Array, key: Array | None, value: Array | None) -> tuple[Array, Array, Array]:
    """Queries, keys and values as [batch, heads, steps, size] views."""
    heads, kv = call.attrs["num_heads"], call.attrs["kv_num_heads"]
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * kv)
        cut = [heads * size, (heads + kv) * size]
        query, key, value = np.split(query, cut, axis=2)
    parts = []
    for x, count in ((query, heads), (key, kv), (value, kv)):
        parts.append(x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3))
    return parts[0], parts[1], parts[2]


def _rotated(x: Array, cosines: Array, sines: Array, places: Array, interleaved: int) -> Array:
    """Rotary embedding of [batch, heads, steps, size] at `places` [batch, steps]; what the caches lack stays."""
    half = cosines.shape[1]
    wide: Array = x.astype(np.float32)
    cos, sin = (c[places].astype(np.float32)[:, None] for c in (cosines, sines))
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    a, b = wide[..., first].copy(), wide[..., second].copy()
    wide[..., first] = a * cos - b * sin
    wide[..., second] = b * cos + a * sin
    return wide.astype(x.dtype, copy=False)


def _presents(
    call: Call, news: tuple[Array, Array], pasts: tuple[Array | None, Array | None], before: Array, length: int
) -> list[Array]:
    """Each cache with the new steps behind each sequence's own past."""
    steps, asked = news[0].shape[2], max(len(call.outs), len(call.out_types))
    made = []
    for i, (new, past) in enumerate(zip(news, pasts), 1):
        shape = (*new.shape[:2], length, new.shape[3])
        y = call.into(i, shape, new.dtype) if i < asked else np.empty(shape, new.dtype)
        known = 0
        if past is not None:
            known = past.shape[2]
            y[:, :, :known] = past
        y[:, :, known:] = 0
        for b, at in enumerate(before.tolist()):
            y[b, :, at : at + steps] = new[b, :, : max(0, length - at)]
        made.append(y)
    return made


def _masks(
    attrs: Mapping[str, Any],
    steps: int,
    keys: int,
    before: Array,
    lengths: Array,
    bias: Array | None,
    sink: Array | None,
) -> Masks:
    """Which keys each query sees: its own sequence's, in causal order, within the window."""
    query = np.arange(steps)[:, None] + before.reshape(-1, 1, 1, 1)
    key = np.arange(keys)
    # Steps behind a sequence's end are padding: they see what the last real one sees, and nobody reads them.
    allowed: Array = key < np.maximum(lengths.reshape(-1, 1, 1, 1), 1)
    if attrs["causal"]:
        allowed = allowed & (key <= query)
        if attrs["local_window_size"] > 0:
            allowed = allowed & (key > query - attrs["local_window_size"])
    sinks: Array | None = None
    if sink is not None:
        sinks = sink.astype(np.float32)
    elif attrs["smooth_softmax"] == 1:
        sinks = np.zeros(attrs["num_heads"], np.float32)
    added = None
    if bias is not None:
        added = bias.astype(np.float32)
        short = keys - added.shape[-1]
        if short > 0:
            added = np.concatenate([added, np.zeros((*added.shape[:-1], short), np.float32)], axis=-1)
        added = added[..., :keys]
    return Masks(added, allowed, sinks)


@attention.kernel
def _(
    call: Call, query: Array, key: Array | None, value: Array | None, past_key: Array | None, past_value: Array | None,
    seqlens: Array, total: Array, cosines: Array | None = None, sines: Array | None = None,
    positions: Array | None = None, bias: Array | None = None, sink: Array | None = None, *_: Any,
) -> Any:  # fmt: skip
    attrs = call.attrs
    q, k, v = _split(call, query, key, value)
    batch, heads, steps, size = q.shape
    longest, lengths = int(total.reshape(-1)[0]), seqlens.reshape(-1).astype(np.int64) + 1
    before = np.zeros(batch, np.int64) if steps == longest else lengths - steps
    if (before < 0).any() or longest < steps:
        raise InferError(f"GroupQueryAttention: total lengths {lengths.tolist()} are less than the {steps} new steps")
    if attrs["do_rotary"] and cosines is not None and sines is not None:
        places = before[:, None] + np.arange(steps)
        if positions is not None and steps != longest:
            places = np.broadcast_to(positions, places.shape)
        places = np.minimum(places, len(cosines) - 1)
        q, k = (_rotated(x, cosines, sines, places, attrs["rotary_interleaved"]) for x in (q, k))
    present = max(longest, 0 if past_key is None else past_key.shape[2])
    keys, values = _presents(call, (k, v), (past_key, past_value), before, present)
    y = call.into(0, (batch, steps, heads * size), query.dtype)
    scale = attrs["scale"] or 1 / sqrt(size)
    inner = Call({"softcap": attrs["softcap"], "qk_matmul_output_mode": 0})
    with np.errstate(all="ignore"):
        m = _masks(attrs, steps, longest, before, lengths, bias, sink)
        out = y.reshape(batch, steps, heads, size).transpose(0, 2, 1, 3)
        attend(inner, q, keys[:, :, :longest], values[:, :, :longest], out, scale, m, None)
    wanted = max(1, len(call.outs), len(call.out_types))
    return y if wanted == 1 else (y, keys, values)[:wanted]
