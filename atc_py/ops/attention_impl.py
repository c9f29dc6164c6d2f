"""Scaled dot-product attention in blocks of heads and queries, with ONNX's masks.

Grouped heads need no copies: with 8 query heads over 2 key heads, the queries of 4 heads stand under each other,

    [2, 4·queries, size] @ [2, size, keys]   →   scores [2, 4·queries, keys]

A key is either forbidden (causal order, window, padding, boolean mask, float mask of -inf) or allowed with an added
bias; a query without any allowed key gives zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ops.base import Array, Call

BUDGET = 16 << 20
"""Bytes of scores that one block aims at."""


@dataclass
class Masks:
    """What is added to scores [batch, heads, queries, keys], and where keys are allowed; both broadcast, or None."""

    bias: Array | None
    allowed: Array | None
    sinks: Array | None = None
    """By query head, a score that takes part in the softmax and has no value."""


def masks(
    attrs: Mapping[str, Any], queries: int, keys: int, past: int, mask: Array | None, lengths: Array | None,
    dtype: np.dtype[Any],
) -> Masks:  # fmt: skip
    """Combine the mask input (rank 1 to 4), causal order, window, and key lengths by batch.

    The attributes `first_query` and `all_queries` tell where the queries stand, when they are a part of all.
    """
    allowed: Array | None = None
    bias: Array | None = None
    if mask is not None:
        short = keys - mask.shape[-1]
        if short > 0:
            fill = False if mask.dtype == np.bool_ else -np.inf
            mask = np.concatenate([mask, np.full((*mask.shape[:-1], short), fill, mask.dtype)], axis=-1)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        if mask.dtype == np.bool_:
            allowed = mask
        else:
            bias = mask.astype(dtype, copy=False)
            finite = ~np.isneginf(bias)
            allowed = None if finite.all() else finite
    offset = np.full((1, 1, 1, 1), past, np.int64)
    if lengths is not None:
        by_batch = lengths.astype(np.int64).reshape(-1, 1, 1, 1)
        offset = by_batch - (attrs.get("all_queries") or queries)
        allowed = _both(allowed, np.arange(keys) < by_batch)
    distance = np.arange(queries)[:, None] + ((attrs.get("first_query") or 0) + offset - np.arange(keys))
    if attrs["is_causal"]:
        allowed = _both(allowed, distance >= 0)
    if attrs["left_window_size"] >= 0:
        allowed = _both(allowed, distance <= attrs["left_window_size"])
    if attrs["right_window_size"] >= 0:
        allowed = _both(allowed, -distance <= attrs["right_window_size"])
    return Masks(bias, allowed)


def _both(a: Array | None, b: Array) -> Array:
    return b if a is None else a & b


@dataclass(frozen=True)
class _Block:
    batch: int
    heads: slice
    queries: slice


def _blocks(batch: int, heads: int, repeat: int, queries: int, keys: int, itemsize: int) -> Iterator[_Block]:
    """Key heads and queries whose scores fit the budget; all queries of a head where they do."""
    row = max(1, repeat * keys * itemsize)
    some = max(1, min(queries, BUDGET // row))
    many = max(1, BUDGET // (row * queries)) if some == queries and queries else 1
    for b in range(batch):
        for h in range(0, heads, many):
            for q in range(0, queries, some):
                yield _Block(b, slice(h, min(h + many, heads)), slice(q, min(q + some, queries)))


def _cut(a: Array | None, block: _Block, repeat: int) -> Array | None:
    """The part of a [batch, query heads, queries, keys] array (or one that broadcasts to it) for a block."""
    if a is None:
        return None
    part: Array = a[block.batch if a.shape[0] > 1 else 0]
    if part.shape[0] > 1:
        part = part[block.heads.start * repeat : block.heads.stop * repeat]
    return part[:, block.queries] if part.shape[1] > 1 else part


def attend(call: Call, q: Array, k: Array, v: Array, y: Array, scale: float, m: Masks, kept: Array | None) -> None:
    """y = softmax(q·kᵀ·scale + bias)·v over [batch, heads, positions, size] arrays.

    `kept` receives the scores at the stage that qk_matmul_output_mode names, [batch, query heads, queries, keys].
    """
    batch, heads, queries, _ = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    repeat = heads // key_heads if key_heads else 0
    dtype = np.dtype(np.float64) if q.dtype == np.float64 else np.dtype(np.float32)
    mode, softcap = call.attrs["qk_matmul_output_mode"], call.attrs["softcap"]
    if y.size == 0 or keys == 0:
        y[...] = 0
        return
    for block in _blocks(batch, key_heads, repeat, queries, keys, dtype.itemsize):
        rows, count = block.queries.stop - block.queries.start, block.heads.stop - block.heads.start
        mine = slice(block.heads.start * repeat, block.heads.stop * repeat)
        left: Array = q[block.batch, mine, block.queries].astype(dtype)
        np.multiply(left, scale, out=left)
        right = k[block.batch, block.heads].astype(dtype, copy=False).transpose(0, 2, 1)
        scores = call.scratch((count, repeat * rows, keys), dtype)
        np.matmul(left.reshape(count, repeat * rows, -1), right, out=scores)
        by_head = scores.reshape(count * repeat, rows, keys)
        target = None if kept is None else kept[block.batch, mine, block.queries]
        _keep(target, by_head, mode == 0)
        if softcap > 0:
            np.divide(by_head, dtype.type(softcap), out=by_head)
            np.tanh(by_head, out=by_head)
            np.multiply(by_head, dtype.type(softcap), out=by_head)
        _keep(target, by_head, mode == 1)
        _mask(by_head, _cut(m.bias, block, repeat), _cut(m.allowed, block, repeat))
        _keep(target, by_head, mode == 2)
        _softmax(by_head, None if m.sinks is None else m.sinks[mine], bool(call.attrs.get("nan_rows")))
        _keep(target, by_head, mode == 3)
        values = v[block.batch, block.heads].astype(dtype, copy=False)
        result = np.matmul(scores, values).reshape(count * repeat, rows, values.shape[-1])
        np.copyto(y[block.batch, mine, block.queries], result, casting="unsafe")


def _keep(target: Array | None, scores: Array, now: bool) -> None:
    if target is not None and now:
        np.copyto(target, scores, casting="unsafe")


def _mask(scores: Array, bias: Array | None, allowed: Array | None) -> None:
    if bias is not None:
        np.add(scores, bias, out=scores)
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)


def _softmax(scores: Array, sinks: Array | None = None, nan_rows: bool = False) -> None:
    """Softmax over the last axis in place; a row of -inf becomes zeros, or NaN with `nan_rows`.

    `sinks` [heads] join the sum only.
    """
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        np.maximum(largest, sinks[:, None, None], out=largest)
    if not nan_rows:
        largest[np.isneginf(largest)] = 0
    np.subtract(scores, largest, out=scores)
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks[:, None, None] - largest)
    total[total == 0] = 1
    np.divide(scores, total, out=scores)
