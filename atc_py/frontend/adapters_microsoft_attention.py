"""onnxruntime's attention operators as the canonical Attention and RotaryEmbedding.

    Attention(x, weights, bias, mask)   →   q, k, v = Split(x · weights + bias);   Attention(q, k, v, additive mask)

A mask of onnxruntime is added: 0 where a key counts and `mask_filter_value` where it does not, whatever its form:

    [batch]           the keys of each sequence that count, from the front        3         0 0 0 -10000
    [2·batch]         ends, then starts                                           3, 1      -10000 0 0 -10000
    [batch, keys], [batch, queries, keys]     1 where a key counts                1 1 0 1   0 0 -10000 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.frontend.adapters_microsoft import MS, asked, given, number, one, outputs, rank, tensor, total
from atc_py.frontend.adapters_microsoft_quant import scaled_product
from atc_py.frontend.draft import Draft
from atc_py.frontend.extensions import extension
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType
from atc_py.ops.base import Attr
from atc_py.ops.linear_attention import ATTRS as LINEAR_ATTRS


def _length(d: Draft, value: int, axis: int) -> int:
    """One size of a value as an int64 scalar."""
    return one(d, "Gather", [one(d, "Shape", [value]), d.const(np.int64(axis))], {"axis": 0})


def _filtered(d: Draft, counts: int, like: int, axes: Sequence[int]) -> int:
    """0 where `counts` holds and mask_filter_value elsewhere, with new axes to broadcast over heads and queries."""
    value = d.attrs["mask_filter_value"]
    bias = one(d, "Where", [counts, number(d, like, 0), number(d, like, value)])
    return one(d, "Unsqueeze", [bias, d.ints(axes)])


def additive_mask(d: Draft, mask: int, like: int, keys: int, batch: Any) -> int:
    """A mask in any form as a bias that broadcasts to [batch, heads, queries, keys]; `keys` is their number."""
    n = rank(d, mask)
    if n in (2, 3):
        counts = one(d, "Greater", [mask, number(d, mask, 0)])
        return _filtered(d, counts, like, (1, 2) if n == 2 else (1,))
    if n != 1:
        d.fail(f"a mask of rank {n} is not supported", "ranks 1 to 3 are")
    size = tensor(d, mask).dims[0]
    ends, starts = mask, ABSENT
    if size != batch:
        known = type(size) is int and type(batch) is int
        paired = size == batch * 2 if known else True
        ends, *rest = _parts(d, mask, [batch] * (2 if paired else 1), 0, whole=paired)
        starts = rest[0] if rest else ABSENT
    place = one(d, "Range", [d.const(np.int64(0)), keys, d.const(np.int64(1))])
    column = one(d, "Unsqueeze", [one(d, "Cast", [ends], {"to": DType.INT64}), d.ints([1])])
    counts = one(d, "Less", [place, column])
    if starts != ABSENT:
        column = one(d, "Unsqueeze", [one(d, "Cast", [starts], {"to": DType.INT64}), d.ints([1])])
        counts = one(d, "And", [counts, one(d, "GreaterOrEqual", [place, column])])
    return _filtered(d, counts, like, (1, 2))


def _parts(d: Draft, x: int, sizes: Sequence[Any], axis: int, whole: bool = True) -> list[int]:
    """Consecutive pieces of the given sizes along an axis; not `whole`: something may follow them."""
    if whole:
        return d.emit("Split", [x, d.ints(sizes)], {"axis": axis}, outputs=len(sizes))
    return [one(d, "Slice", [x, d.ints([0]), d.ints(sizes[:1]), d.ints([axis])])]


@dataclass
class Heads:
    """What all forms of attention come down to: rank 3 with `count` heads side by side, or rank 4 (keys, values)."""

    q: int
    k: int
    v: int
    count: int
    mask: int = ABSENT
    bias: int = ABSENT
    past_key: int = ABSENT
    past_value: int = ABSENT


def _attend(d: Draft, h: Heads, made: int) -> list[int]:
    """The canonical Attention with `made` outputs; attributes `scale` and `unidirectional` are the node's."""
    batch = tensor(d, h.q).dims[0]
    bias = h.bias
    if h.mask != ABSENT:
        keys = _length(d, h.k, 1 if rank(d, h.k) == 3 else 2)
        if h.past_key != ABSENT:
            keys = total(d, keys, _length(d, h.past_key, 2))
        bias = total(d, additive_mask(d, h.mask, h.q, keys, batch), bias)
    attrs = {
        "q_num_heads": h.count,
        "kv_num_heads": h.count,
        "is_causal": int(bool(d.attrs["unidirectional"])),
        "scale": d.attrs["scale"] or None,
    }
    return d.emit("Attention", [h.q, h.k, h.v, bias, h.past_key, h.past_value], attrs, outputs=made)


# -- projected inside --------------------------------------------------------------------------------------

_ATTENTION = {
    "do_rotary": Attr("int", 0),
    "mask_filter_value": Attr("float", -10000.0),
    "num_heads": Attr("int"),
    "past_present_share_buffer": Attr("int", 0),
    "scale": Attr("float", 0.0),
    "unidirectional": Attr("int", 0),
}


def _projected(d: Draft, qkv: int, sizes: Sequence[Any], mask: int, past: int, bias: int) -> list[int]:
    """Attention of one tensor that holds queries, keys and values side by side; outputs 0 and 1 of the node."""
    if d.attrs["do_rotary"] or d.attrs["past_present_share_buffer"]:
        d.fail("do_rotary and past_present_share_buffer are not supported here")
    q, k, v = _parts(d, qkv, sizes, 2)
    h = Heads(q, k, v, d.attrs["num_heads"], mask, bias)
    if past != ABSENT:
        halves = d.emit("Split", [past], {"axis": 0, "num_outputs": 2}, outputs=2)
        h.past_key, h.past_value = (one(d, "Squeeze", [p, d.ints([0])]) for p in halves)
    if not asked(d, 1):
        return outputs(d, *_attend(d, h, 1))
    y, key, value = _attend(d, h, 3)
    both = [one(d, "Unsqueeze", [p, d.ints([0])]) for p in (key, value)]
    return outputs(d, y, one(d, "Concat", both, {"axis": 0}))


@extension(
    f"{MS}Attention",
    inputs="input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    outputs="output present?",
    attrs={**_ATTENTION, "qkv_hidden_sizes": Attr("ints", None), "rotary_embedding_dim": Attr("int", 0)},
)
def _attention(d: Draft) -> list[int]:
    width = tensor(d, d.inputs[1]).dims[1]
    sizes = d.attrs["qkv_hidden_sizes"] or [width // 3] * 3
    qkv = total(d, one(d, "MatMul", d.inputs[:2]), given(d, 2))
    return _projected(d, qkv, sizes, given(d, 3), given(d, 4), given(d, 5))


@extension(
    f"{MS}QAttention",
    inputs="input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
    outputs="output present?",
    attrs=_ATTENTION,
)
def _quantised_attention(d: Draft) -> list[int]:
    x, weight, bias, *scales = d.inputs[:5]
    qkv = scaled_product(d, x, weight, (given(d, 6), given(d, 7)), (scales[0], scales[1]), bias)
    return _projected(d, qkv, [tensor(d, weight).dims[1] // 3] * 3, given(d, 5), given(d, 8), ABSENT)


# -- projected before --------------------------------------------------------------------------------------


def _unpacked(d: Draft, x: int, count: int) -> list[int]:
    """[batch, steps, heads, count, size] as `count` tensors [batch, steps, heads·size]."""
    shape = tensor(d, x).dims
    width = d.ints([0, 0, shape[2] * shape[4]])
    return [one(d, "Reshape", [one(d, "Gather", [x, d.const(np.int64(i))], {"axis": 3}), width]) for i in range(count)]


def _queries_keys_values(d: Draft) -> tuple[int, int, int]:
    """The three inputs of MultiHeadAttention in any of their forms."""
    query, key, value = d.inputs[0], given(d, 1), given(d, 2)
    if rank(d, query) == 5:
        q, k, v = _unpacked(d, query, 3)
    elif key != ABSENT and rank(d, key) == 5:
        q, (k, v) = query, _unpacked(d, key, 2)
    elif ABSENT in (key, value):
        d.fail("key and value are missing")
    else:
        q, k, v = query, key, value
    return q, k, v


@extension(
    f"{MS}MultiHeadAttention",
    inputs="query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?",
    outputs="output present_key? present_value? qk?",
    attrs={
        "mask_filter_value": Attr("float", -10000.0),
        "num_heads": Attr("int"),
        "scale": Attr("float", 0.0),
        "unidirectional": Attr("int", 0),
    },
)
def _multi_head(d: Draft) -> list[int]:
    if d.has(8) or d.has(9) or asked(d, 3):
        d.fail("past_sequence_length, cache_indirection and the output qk are not supported")
    q, k, v = _queries_keys_values(d)
    if d.has(3):
        # Keys and values of rank 4 come from a cache, where their bias is in already.
        apart = rank(d, k) == 4
        width = tensor(d, q).dims[2]
        last = width if apart else tensor(d, v).dims[2]
        pieces = _parts(d, d.inputs[3], [width, width, last], 0, whole=not apart)
        q, *rest = (total(d, x, b) for x, b in zip((q, k, v), pieces))
        k, v = rest or (k, v)
    h = Heads(q, k, v, d.attrs["num_heads"], given(d, 4), given(d, 5), given(d, 6), given(d, 7))
    return outputs(d, *_attend(d, h, 3 if asked(d, 1) or asked(d, 2) else 1))


# -- rotary embedding --------------------------------------------------------------------------------------


@extension(
    f"{MS}RotaryEmbedding",
    inputs="input position_ids cos_cache sin_cache",
    outputs="output",
    attrs={
        "interleaved": Attr("int", 0),
        "is_packed_batching": Attr("int", 0),
        "num_heads": Attr("int", 0),
        "rotary_embedding_dim": Attr("int", 0),
        "scale": Attr("float", 1.0),
    },
)
def _rotary(d: Draft) -> list[int]:
    """One position stands for the first of each sequence; without num_heads a head is as wide as the cache says."""
    a = d.attrs
    if a["is_packed_batching"] or a["scale"] not in (0.0, 1.0):
        d.fail("is_packed_batching and scale are not supported")
    x, places, cosines, sines = d.inputs
    flat = rank(d, x) == 3
    heads = a["num_heads"]
    if flat and not heads:
        heads, width = None, tensor(d, cosines).dims[1]
        if type(width) is int:
            heads = tensor(d, x).dims[2] // (2 * width)
        if type(heads) is not int:
            d.fail("the number of heads must be known", "give the attribute num_heads")
    if rank(d, places) == 1:
        steps = _length(d, x, 1 if flat else 2)
        row = total(d, one(d, "Range", [d.const(np.int64(0)), steps, d.const(np.int64(1))]), places)
        size = one(d, "Unsqueeze", [_length(d, x, 0), d.ints([0])])
        shape = one(d, "Concat", [size, one(d, "Shape", [row])], {"axis": 0})
        places = one(d, "Expand", [row, shape])
    attrs = {
        "interleaved": a["interleaved"],
        "num_heads": heads or None,
        "rotary_embedding_dim": a["rotary_embedding_dim"],
    }
    return d.finish("RotaryEmbedding", [x, cosines, sines, places], attrs)


@extension(
    f"{MS}LinearAttention",
    inputs="query key value past_state? decay? beta?",
    outputs="output present_state",
    attrs={**LINEAR_ATTRS, "state_window": Attr("int", 0)},
)
def _linear_attention(d: Draft) -> list[int]:
    a = d.attrs
    if a["state_window"] or a["kv_num_heads"] > a["q_num_heads"]:
        d.fail("state_window and more key heads than query heads are not supported")
    return d.finish("LinearAttention", d.inputs, {n: a[n] for n in LINEAR_ATTRS})
