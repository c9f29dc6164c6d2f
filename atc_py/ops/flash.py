"""FlashAttentionScore: attention in tiles of query rows and of keys, without ever storing the scores.

    one tile of queries, keys 0–127, then 128–255:

    s = q·kᵀ·scale + bias      m' = max(m, max s)      p = exp(s - m')
    l = l·exp(m - m') + Σ p    y = y·exp(m - m') + p·v          m = m';   after the last keys: y / l

The running maximum m and sum l of each row make a softmax of scores that are seen a tile at a time (Dao, Fu, Ermon,
Rudra, Ré, FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).

It computes what Attention computes, except that it has no output of scores. As a tile program it works in buffers of
exactly the bytes of its tile (`buffers`): operands of the cube in L1, sums in L0C, the softmax in the unified buffer.
By default it runs as Attention itself. Where the queries of a call are a part of all, `first_query` and `all_queries`
among its attributes say where they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from atc_py.ops import tiles_attention
from atc_py.ops.attention import attention, presents, split_heads
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, declare
from atc_py.ops.tiles import Dims, Need, Wanted

TILE = 128
"""Rows of queries, and keys, of a tile where nothing else is said."""
_MOST = 1 << 12

flash = declare(
    "FlashAttentionScore",
    inputs="Q K V attn_mask? past_key? past_value? nonpad_kv_seqlen?",
    outputs="Y present_key? present_value?",
    attrs={
        **attention.attrs,
        "tile_queries": Attr("int", TILE),
        "tile_keys": Attr("int", TILE),
    },
    flags=Flags(fp16_safe=True, splittable=(0,), cube=(0, 1, 2)),
)


@flash.infer
def _(n: Infer) -> Result:
    _tile_of(n.attrs)
    assert attention.infer_fn is not None
    return attention.infer_fn(n)


@flash.cost
def _(n: Infer) -> Cost:
    assert attention.cost_fn is not None
    return attention.cost_fn(n)


def _tile_of(attrs: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, keys) of a tile. Raises `InferError` for sizes that are none: plans come from files."""
    rows, keys = attrs["tile_queries"], attrs["tile_keys"]
    if not (0 < rows <= _MOST and 0 < keys <= _MOST):
        raise InferError(f"a tile of {rows} queries and {keys} keys; each must be 1 to {_MOST}")
    return rows, keys


# -- buffers -------------------------------------------------------------------------------------------------------


def _parts(rows: int, keys: int, size: int, value_size: int, itemsize: int) -> dict[str, dict[str, tuple[Dims, int]]]:
    """By buffer, what lies in it: (shape, bytes of an element)."""
    return {
        "L1": {
            "q": ((rows, size), itemsize),
            "k": ((keys, size), itemsize),
            "v": ((keys, value_size), itemsize),
            "p": ((rows, keys), 4),
        },
        "L0C": {"scores": ((rows, keys), 4), "product": ((rows, value_size), 4)},
        "UB": {
            "s": ((rows, keys), 4),
            "y": ((rows, value_size), 4),
            "m": ((rows, 1), 4),
            "l": ((rows, 1), 4),
            "change": ((rows, 1), 4),
            "allowed": ((rows, keys), 1),
            "also": ((rows, keys), 1),
        },
    }


def buffers(rows: int, keys: int, size: int, value_size: int, itemsize: int) -> dict[str, int]:
    """The bytes of each buffer for a tile of `rows` queries and `keys` keys, of heads of the given sizes."""
    return {
        name: sum(_blocks(shape, width) for shape, width in parts.values())
        for name, parts in _parts(rows, keys, size, value_size, itemsize).items()
    }


def _blocks(shape: Dims, width: int) -> int:
    return -(-shape[0] * shape[1] * width // 32) * 32


@dataclass
class _Buffers:
    """The buffers of a tile, allocated in exactly their planned sizes, and what lies in them."""

    space: dict[str, Array]
    at: dict[str, tuple[str, int]]

    def view(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """What is called `name`, clipped to `shape` where a tile is clipped."""
        buffer, offset = self.at[name]
        found: Array = np.ndarray(shape, dtype, self.space[buffer], offset)
        return found


def _allocate(rows: int, keys: int, size: int, value_size: int, itemsize: int) -> _Buffers:
    space: dict[str, Array] = {}
    at: dict[str, tuple[str, int]] = {}
    planned = buffers(rows, keys, size, value_size, itemsize)
    for name, parts in _parts(rows, keys, size, value_size, itemsize).items():
        space[name] = np.full(planned[name], 0xA5, np.uint8)
        offset = 0
        for part, (shape, width) in parts.items():
            at[part] = (name, offset)
            offset += _blocks(shape, width)
    return _Buffers(space, at)


# -- the tile program ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Keys:
    """Keys or values of one head of one sequence: those of the past, then the new ones."""

    parts: tuple[Array, ...]

    def copy(self, first: int, to: Array) -> None:
        """Fetch positions from `first` on, as many as `to` has."""
        begin = 0
        for part in self.parts:
            low, high = max(first, begin), min(first + len(to), begin + len(part))
            if low < high:
                to[low - first : high - first] = part[low - begin : high - begin]
            begin += len(part)


@dataclass
class _Scene:
    """What holds for all tiles of one execution."""

    attrs: Mapping[str, Any]
    scale: float
    keys: int
    offset: list[int]
    """By sequence: how many positions its first query has before it."""
    lengths: list[int] | None
    mask: Array | None
    """[batch, heads, queries, keys], each or 1."""


def run(call: Call, operands: Sequence[Array | None]) -> Any:
    """Attention tile by tile; the same results as Attention's own kernel, up to rounding."""
    q, k, v = operands[0], operands[1], operands[2]
    mask, past_key, past_value, lengths = (*operands[3:], None, None, None, None)[:4]
    assert q is not None and k is not None and v is not None
    if q.dtype.itemsize > 4:
        raise InferError(f"a tile program of attention computes in float32, but the queries are {q.dtype}")
    queries = split_heads(q, call.attrs["q_num_heads"])
    keys, values = (split_heads(x, call.attrs["kv_num_heads"]) for x in (k, v))
    outputs = max(1, len(call.outs), len(call.out_types))
    kept = [
        presents(call, i, past, x) if outputs > i else None
        for i, past, x in _caches(past_key, past_value, keys, values)
    ]
    batch, heads, rows, size = queries.shape
    width = values.shape[3]
    y = call.into(0, (batch, rows, heads * width) if q.ndim == 3 else (batch, heads, rows, width), q.dtype)
    result = split_heads(y, heads)
    scene = _scene(call.attrs, queries.shape, keys.shape[2], past_key, mask, lengths)
    tile, tile_keys = _tile_of(call.attrs)
    memory = _allocate(tile, tile_keys, size, width, q.dtype.itemsize)
    repeat = heads // keys.shape[1] if keys.shape[1] else 1
    for b in range(batch):
        for h in range(heads):
            k_head, v_head = (
                _Keys(tuple(x[b, h // repeat] for x in (past, now) if x is not None))
                for past, now in ((past_key, keys), (past_value, values))
            )
            for first in range(0, rows, tile):
                part = slice(first, min(first + tile, rows))
                _rows(scene, memory, (b, h, first), queries[b, h, part], k_head, v_head, result[b, h, part], tile_keys)
    return (y, *kept)[:outputs] if outputs > 1 else y


def _caches(*given: Array | None) -> Iterator[tuple[int, Array | None, Array]]:
    for i in (1, 2):
        now = given[i + 1]
        assert now is not None
        yield i, given[i - 1], now


def _scene(
    attrs: Mapping[str, Any], shape: Dims, keys: int, past: Array | None, mask: Array | None, lengths: Array | None
) -> _Scene:
    batch, _, rows, size = shape
    before = 0 if past is None else past.shape[2]
    first = attrs.get("first_query") or 0
    counts = None if lengths is None else [int(n) for n in lengths.reshape(-1)]
    every = attrs.get("all_queries") or rows
    offset = [before + first] * batch if counts is None else [n - every + first for n in counts]
    scale = attrs["scale"] if attrs["scale"] is not None else 1 / sqrt(size) if size else 1.0
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return _Scene(attrs, scale, keys + before, offset, counts, mask)


def _rows(
    scene: _Scene, memory: _Buffers, place: tuple[int, int, int], queries: Array, keys: _Keys, values: _Keys, y: Array,
    tile_keys: int,
) -> None:  # fmt: skip
    """One tile of query rows [rows, size] of one head against all keys, a tile of keys at a time."""
    rows, single = len(queries), np.float32
    q = memory.view("q", queries.shape, queries.dtype)
    q[...] = queries
    total = memory.view("y", y.shape, single)
    m, l, change = (memory.view(name, (rows, 1), single) for name in ("m", "l", "change"))  # noqa: E741
    total[...], m[...], l[...] = 0, -np.inf, 0
    left = q.astype(single) * single(scene.scale)
    for first in range(0, scene.keys, tile_keys):
        count = min(tile_keys, scene.keys - first)
        k = memory.view("k", (count, queries.shape[1]), queries.dtype)
        keys.copy(first, k)
        scores = memory.view("scores", (rows, count), single)
        np.matmul(left, k.astype(single, copy=False).T, out=scores)
        s = memory.view("s", (rows, count), single)
        s[...] = scores
        _softcap(s, scene.attrs["softcap"])
        _mask(scene, memory, place, s, first)
        change[...] = m
        np.maximum(m, s.max(axis=1, keepdims=True), out=m)
        base = np.where(np.isneginf(m), single(0), m)
        np.exp(np.subtract(change, base, out=change), out=change)
        np.exp(np.subtract(s, base, out=s), out=s)
        np.multiply(l, change, out=l)
        np.add(l, s.sum(axis=1, keepdims=True), out=l)
        p = memory.view("p", s.shape, single)
        p[...] = s
        v = memory.view("v", (count, y.shape[1]), y.dtype)
        values.copy(first, v)
        product = memory.view("product", y.shape, single)
        np.matmul(p, v.astype(single, copy=False), out=product)
        np.multiply(total, change, out=total)
        np.add(total, product, out=total)
    if scene.attrs["nan_rows"]:
        np.copyto(total, np.nan, where=np.isneginf(m))
    l[l == 0] = 1
    np.divide(total, l, out=total)
    np.copyto(y, total, casting="unsafe")


def _softcap(s: Array, cap: float) -> None:
    if cap > 0:
        np.divide(s, np.float32(cap), out=s)
        np.tanh(s, out=s)
        np.multiply(s, np.float32(cap), out=s)


def _mask(scene: _Scene, memory: _Buffers, place: tuple[int, int, int], s: Array, first: int) -> None:
    """Add the bias to a tile of scores, and put -inf where a key is not allowed."""
    b, h, row = place
    rows, count = s.shape
    allowed, also = (memory.view(name, s.shape, np.bool_) for name in ("allowed", "also"))
    allowed[...] = True
    if scene.mask is not None:
        _given_mask(scene.mask, (b, h, row), first, s, allowed, also)
    where = (np.arange(row, row + rows) + scene.offset[b])[:, None]
    key = np.arange(first, first + count)[None, :]
    if scene.lengths is not None:
        np.logical_and(allowed, key < scene.lengths[b], out=allowed)
    attrs = scene.attrs
    if attrs["is_causal"]:
        np.logical_and(allowed, np.less_equal(key, where, out=also), out=allowed)
    if attrs["left_window_size"] >= 0:
        least = where - attrs["left_window_size"]
        np.logical_and(allowed, np.greater_equal(key, least, out=also), out=allowed)
    if attrs["right_window_size"] >= 0:
        most = where + attrs["right_window_size"]
        np.logical_and(allowed, np.less_equal(key, most, out=also), out=allowed)
    np.copyto(s, -np.inf, where=np.logical_not(allowed, out=allowed))


def _given_mask(mask: Array, place: tuple[int, int, int], first: int, s: Array, allowed: Array, also: Array) -> None:
    """The part of the mask input for a tile; keys behind its end are not allowed."""
    b, h, row = (i if d > 1 else 0 for i, d in zip(place, mask.shape))
    rows = slice(row, row + len(s)) if mask.shape[2] > 1 else slice(0, 1)
    part = mask[b, h, rows, first : first + s.shape[1]]
    count = part.shape[1]
    allowed[:, count:] = False
    if mask.dtype == np.bool_:
        np.logical_and(allowed[:, :count], part, out=allowed[:, :count])
        return
    np.add(s[:, :count], part, out=s[:, :count], casting="unsafe")
    np.logical_and(
        allowed[:, :count], np.not_equal(part, -np.inf, out=also[: len(part), :count]), out=allowed[:, :count]
    )


@flash.kernel
def _(call: Call, *operands: Array | None) -> Any:
    if call.tiles:
        return run(call, operands)
    assert attention.kernel_fn is not None
    return attention.kernel_fn(call, *operands)


@flash.tile
def _(w: Wanted) -> Need:
    need = tiles_attention.attention(w)
    q, v = w.shapes[0], w.shapes[2]
    assert q is not None and v is not None
    size = q[3] if len(q) == 4 else q[2] // w.attrs["q_num_heads"]
    value_size = v[3] if len(v) == 4 else v[2] // w.attrs["kv_num_heads"]
    rows, keys = _tile_of(w.attrs)
    return replace(need, workspace=buffers(rows, keys, size, value_size, w.itemsizes[0]))
