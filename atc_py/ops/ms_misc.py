"""com.microsoft's Inverse and Tokenizer.

    Inverse([[2, 0], [0, 4]])                             →  [[0.5, 0], [0, 0.25]]
    Tokenizer(["a b", "c"], separators [" "], pad "#")    →  [["a", "b"], ["c", "#"]]

Regular expressions are RE2's in the model and Python's here; they agree on what tokenizers use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Flags, Infer, InferError, Result, declare
from atc_py.ops.elementwise_base import FLOATS, check_dtype
from atc_py.ops.linear_impl import compute_dtype
from atc_py.ops.shapes import show, total
from atc_py.ops.string_ops import text

inverse = declare("com.microsoft::Inverse", inputs="X", outputs="Y", flags=Flags(recomputable=True))


@inverse.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, FLOATS)
    shape = n.shape(0)
    if shape is not None:
        if len(shape) < 2:
            n.fail(f"the input has shape {show(shape)}; expected square matrices in the last two axes")
        if type(shape[-1]) is int and type(shape[-2]) is int and shape[-1] != shape[-2]:
            n.fail(f"the input has shape {show(shape)}, whose matrices are not square")
    return n.types[0]


@inverse.cost
def _(n: Infer) -> Cost:
    shape = n.shape(0)
    return Cost() if not shape else Cost(vector=total(shape) * shape[-1])


@inverse.kernel
def _(call: Call, x: Array) -> Array:
    y = call.into(0, x.shape, x.dtype)
    try:
        np.copyto(y, np.linalg.inv(x.astype(compute_dtype(x.dtype), copy=False)), casting="unsafe")
    except np.linalg.LinAlgError as problem:
        raise InferError(f"Inverse: {problem}") from problem
    return y


# -- Tokenizer ---------------------------------------------------------------------------------------------

tokenizer = declare(
    "com.microsoft::Tokenizer",
    inputs="X",
    outputs="Y",
    attrs={
        "mark": Attr("int"),
        "mincharnum": Attr("int"),
        "pad_value": Attr("str"),
        "separators": Attr("strs", None),
        "tokenexp": Attr("str", None),
    },
    engine=Engine.HOST,
)
START, END = "\x02", "\x03"


@dataclass(frozen=True)
class Rule:
    """How strings are cut: into characters, at separators (one after the other), or by what tokens look like."""

    characters: bool
    separators: tuple[re.Pattern[str], ...] = ()
    token: re.Pattern[str] | None = None

    def cut(self, word: str) -> list[str]:
        """The tokens of a string, short ones included."""
        if self.characters:
            return list(word)
        if self.token is not None:
            return _longest_matches(self.token, word)
        pieces = [word]
        for separator in self.separators:
            pieces = [part for piece in pieces for part in separator.split(piece)]
        return [p for p in pieces if p]


def _longest_matches(pattern: re.Pattern[str], word: str) -> list[str]:
    """The leftmost matches, each as long as can be (Python's own alternatives take the first that fits)."""
    found, at = [], 0
    while at < len(word):
        match = pattern.search(word, at)
        if match is None:
            break
        start, end = match.span()
        end = next((e for e in range(len(word), end, -1) if pattern.fullmatch(word, start, e)), end)
        if end > start:
            found.append(word[start:end])
        at = max(end, start + 1)
    return found


def _rule(attrs: Mapping[str, Any]) -> Rule:
    separators, token = attrs["separators"], attrs["tokenexp"]
    if bool(separators) == bool(token):
        raise InferError("exactly one of 'separators' and 'tokenexp' must be given")
    try:
        if token:
            return Rule(token == ".", (), re.compile(token))
        # Groups of a separator are no tokens.
        return Rule(tuple(separators) == ("",), tuple(re.compile(re.sub(r"\((?!\?)", "(?:", s)) for s in separators))
    except re.error as problem:
        raise InferError(f"'{token or separators}' is no regular expression: {problem}") from problem


@tokenizer.infer
def _(n: Infer) -> Result:
    t = n.tensor(0)
    if t.dtype is not DType.STRING:
        n.fail(f"the input must be strings, but is {t.dtype.value}")
    if n.attrs["mincharnum"] < 1:
        n.fail(f"attribute 'mincharnum' is {n.attrs['mincharnum']}; expected at least 1")
    _rule(n.attrs)
    if t.shape is None:
        return t
    if len(t.shape) not in (1, 2):
        n.fail(f"the input has shape {show(t.shape)}; expected [C] or [N, C]")
    if any(type(d) is int and d == 0 for d in t.shape):
        return t
    return Tensor(DType.STRING, (*t.shape, n.fresh("tokens")))


@tokenizer.prepare
def _(call: Call) -> Rule:
    return _rule(call.attrs)


@tokenizer.kernel
def _(call: Call, x: Array) -> Array:
    if not x.size:
        # Where the type says so, nothing in is nothing out, without an axis of tokens.
        t = call.out_types[0] if call.out_types else None
        keep = isinstance(t, Tensor) and t.rank == x.ndim
        return np.empty(x.shape if keep else (*x.shape, 0), object)
    attrs, rule = call.attrs, call.state or _rule(call.attrs)
    rows = [[t for t in rule.cut(text(w)) if len(t) >= attrs["mincharnum"]] for w in x.reshape(-1)]
    if attrs["mark"] and any(rows):
        rows = [[START, *row, END] for row in rows]
    width = max(map(len, rows))
    out = np.full((len(rows), width), attrs["pad_value"], object)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out.reshape(*x.shape, width)
