"""TfIdfVectorizer: counts of n-grams, all rows and all places of a row at once.

The pool's n-grams of one length are a trie of sorted (state, token) pairs; a place of the input walks it with one
search a token, and drops out where a pair is missing. For the pool [a b, b a] and the row [a b a]:

    windows   [a b], [b a]      states after one token   0, 1      after two   0, 1   →   n-grams 0 and 1, once each

With skips, a window takes every second token, every third token and so on; single tokens are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Flags, Infer, InferError, Result, declare
from atc_py.ops.ml_labels import Table, table
from atc_py.ops.shapes import show

MODES = ("TF", "IDF", "TFIDF")

vectorizer = declare(
    "TfIdfVectorizer",
    inputs="X",
    outputs="Y",
    attrs={
        "max_gram_length": Attr("int"),
        "max_skip_count": Attr("int"),
        "min_gram_length": Attr("int"),
        "mode": Attr("str"),
        "ngram_counts": Attr("ints"),
        "ngram_indexes": Attr("ints"),
        "pool_int64s": Attr("ints", None),
        "pool_strings": Attr("strs", None),
        "weights": Attr("floats", None),
    },
    flags=Flags(recomputable=True),
    engine=Engine.AICPU,
)


@dataclass(frozen=True)
class Pool:
    """The n-grams: `tokens` numbers the pool's tokens; `levels[n]` are the sorted pairs after each token of length n.

    A pair is state · tokens + token; `places[n]` is the output coordinate of each final state.
    """

    tokens: Table
    count: int
    levels: Mapping[int, list[Array]]
    places: Mapping[int, Array]
    weights: Array | None
    width: int


def _ids(tokens: Table, x: Array) -> Array:
    """Tokens as numbers from 0 on; -1 for those that the pool does not hold."""
    found = tokens.find(x)
    return np.where(found < 0, -1, np.searchsorted(np.sort(tokens.places), found))


def _pool(attrs: Mapping[str, Any]) -> Pool:
    words = attrs["pool_strings"]
    given = np.array([*words, ""], object)[:-1] if words else np.array(attrs["pool_int64s"] or (), np.int64)
    coordinates = np.array(attrs["ngram_indexes"], np.int64)
    tokens = table(given)
    ids = _ids(tokens, given)
    starts = [*attrs["ngram_counts"], len(given)]
    levels: dict[int, list[Array]] = {}
    places: dict[int, Array] = {}
    at = 0
    for n, (start, stop) in enumerate(pairwise(starts), 1):
        if stop < start or (stop - start) % n:
            raise InferError(f"attribute 'ngram_counts' does not cut the pool into {n}-grams at {start} and {stop}")
        grams = ids[start:stop].reshape(-1, n)
        mine = coordinates[at : at + len(grams)]
        at += len(grams)
        if not (attrs["min_gram_length"] <= n <= attrs["max_gram_length"]) or not len(grams):
            continue
        state = np.zeros(len(grams), np.int64)
        levels[n] = []
        for k in range(n):
            pairs = state * len(tokens.keys) + grams[:, k]
            known, state = np.unique(pairs, return_inverse=True)
            levels[n].append(known)
        places[n] = np.zeros(len(levels[n][-1]), np.int64)
        places[n][state] = mine
    if at != len(coordinates):
        raise InferError(f"the pool holds {at} n-grams, but attribute 'ngram_indexes' has {len(coordinates)} values")
    width = int(coordinates.max(initial=-1)) + 1
    weights = None
    if attrs["weights"]:
        weights = np.ones(width, np.float32)
        weights[coordinates] = np.array(attrs["weights"], np.float32)
    return Pool(tokens, len(tokens.keys), levels, places, weights, width)


@vectorizer.infer
def _(n: Infer) -> Result:
    a = n.attrs
    if bool(a["pool_strings"]) == bool(a["pool_int64s"]):
        n.fail("exactly one of 'pool_strings' and 'pool_int64s' must be given")
    if (n.dtype(0) is DType.STRING) != bool(a["pool_strings"]):
        n.fail(f"the input is {n.dtype(0).value}, which the pool's tokens are not")
    if a["mode"] not in MODES:
        n.fail(f"attribute 'mode' is '{a['mode']}'; expected {', '.join(MODES)}")
    if a["weights"] and len(a["weights"]) != len(a["ngram_indexes"]):
        n.fail(f"there are {len(a['weights'])} weights for {len(a['ngram_indexes'])} n-grams")
    width = max(a["ngram_indexes"], default=-1) + 1
    shape = n.shape(0)
    if shape is None:
        return Tensor(DType.FLOAT32, None)
    if len(shape) not in (1, 2):
        n.fail(f"the input has shape {show(shape)}; expected [C] or [N, C]")
    return Tensor(DType.FLOAT32, (*shape[:-1], width))


@vectorizer.prepare
def _(call: Call) -> Pool:
    return _pool(call.attrs)


def _count(p: Pool, ids: Array, n: int, stride: int, counts: Array) -> None:
    """Add the n-grams of one length and stride to `counts` [rows, width]; `ids` is [rows, tokens], -1 is unknown."""
    windows = ids.shape[1] - (n - 1) * stride
    if windows < 1 or n not in p.levels:
        return
    state = np.zeros((len(ids), windows), np.int64)
    alive = np.ones(state.shape, np.bool_)
    for k, known in enumerate(p.levels[n]):
        token = ids[:, k * stride : k * stride + windows]
        pair = state * p.count + token
        at = np.minimum(np.searchsorted(known, pair), len(known) - 1)
        alive &= (token >= 0) & (known[at] == pair)
        state = np.where(alive, at, 0)
    row, column = np.nonzero(alive)
    np.add.at(counts, (row, p.places[n][state[row, column]]), 1)


@vectorizer.kernel
def _(call: Call, x: Array) -> Array:
    attrs, p = call.attrs, call.state or _pool(call.attrs)
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    ids = _ids(p.tokens, rows)
    counts = np.zeros((len(rows), p.width), np.float32)
    longest = min(attrs["max_gram_length"], rows.shape[1])  # what is longer than a row occurs nowhere
    for skip in range(min(attrs["max_skip_count"], rows.shape[1]) + 1):
        for n in range(max(attrs["min_gram_length"], 1), longest + 1):
            if n > 1 or not skip:
                _count(p, ids, n, skip + 1, counts)
    if attrs["mode"] == "IDF":
        np.minimum(counts, 1, out=counts)
    if attrs["mode"] != "TF" and p.weights is not None:
        counts *= p.weights
    y = call.into(0, (*x.shape[:-1], p.width), np.float32)
    np.copyto(y, counts.reshape(y.shape))
    return y
