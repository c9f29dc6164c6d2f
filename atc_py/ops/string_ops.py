"""Operators on strings, on the host: StringConcat, StringSplit, StringNormalizer, RegexFullMatch.

StringSplit(["a b", "c"])                          ->  [["a", "b"], ["c", ""]], counts [2, 1]
StringNormalizer(["Mon", "Tue"], stopwords=["Mon"]) ->  ["Tue"]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Infer, InferError, Result, declare
from atc_py.ops.shapes import broadcast, show

HOST = Engine.HOST


def text(item: Any) -> str:
    """An element as Python's string (bytes are UTF-8)."""
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _each(fn: Callable[[Any], Any], x: Array, dtype: Any = object) -> Array:
    """`fn` of every element, in the same shape."""
    out = np.empty(x.size, dtype=dtype)
    for i, item in enumerate(x.reshape(-1)):
        out[i] = fn(item)
    return out.reshape(x.shape)


def _strings(n: Infer, i: int) -> Tensor:
    t = n.tensor(i)
    if t.dtype is not DType.STRING:
        raise InferError(f"input {i} must be a tensor of strings, but has dtype {t.dtype.value}")
    return t


concat = declare("StringConcat", inputs="X Y", outputs="Z", engine=HOST)


@concat.infer
def _(n: Infer) -> Result:
    return _strings(n, 0).with_shape(broadcast(_strings(n, 0).shape, _strings(n, 1).shape))


@concat.kernel
def _(call: Call, x: Array, y: Array) -> Array:
    left, right = np.broadcast_arrays(x, y)
    out = np.empty(left.shape, dtype=object)
    flat = out.reshape(-1)
    for i, (a, b) in enumerate(zip(left.reshape(-1), right.reshape(-1))):
        flat[i] = text(a) + text(b)
    return out


split = declare(
    "StringSplit",
    inputs="X",
    outputs="Y Z",
    attrs={"delimiter": Attr("str", None), "maxsplit": Attr("int", None)},
    engine=HOST,
)


@split.infer
def _(n: Infer) -> Result:
    x = _strings(n, 0)
    pieces = None if x.shape is None else (*x.shape, n.fresh("pieces"))
    return [x.with_shape(pieces), Tensor(DType.INT64, x.shape)][: n.outputs]


@split.kernel
def _(call: Call, x: Array) -> tuple[Array, Array]:
    delimiter = call.attrs["delimiter"] or None
    most = -1 if call.attrs["maxsplit"] is None else call.attrs["maxsplit"]
    pieces = [text(item).split(delimiter, most) for item in x.reshape(-1)]
    width = max(map(len, pieces), default=0)
    out = np.full((len(pieces), width), "", dtype=object)
    for i, row in enumerate(pieces):
        out[i, : len(row)] = row
    counts = np.array([len(row) for row in pieces], dtype=np.int64)
    return out.reshape(*x.shape, width), counts.reshape(x.shape)


normalizer = declare(
    "StringNormalizer",
    inputs="X",
    outputs="Y",
    attrs={
        "case_change_action": Attr("str", "NONE"),
        "is_case_sensitive": Attr("int", 0),
        "locale": Attr("str", None),
        "stopwords": Attr("strs", None),
    },
    engine=HOST,
)
CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@normalizer.infer
def _(n: Infer) -> Result:
    x = _strings(n, 0)
    if n.attrs["case_change_action"] not in CASES:
        raise InferError(f"case_change_action is '{n.attrs['case_change_action']}', expected NONE, LOWER or UPPER")
    if x.shape is None:
        return x
    if len(x.shape) not in (1, 2) or (len(x.shape) == 2 and type(x.shape[0]) is int and x.shape[0] != 1):
        raise InferError(f"StringNormalizer takes shape [C] or [1, C], but the input has {show(x.shape)}")
    if not n.attrs["stopwords"]:
        return x
    return x.with_shape((*x.shape[:-1], n.fresh("kept")))


@normalizer.prepare
def _stopwords(call: Call) -> frozenset[str]:
    words = call.attrs["stopwords"] or ()
    return frozenset(words if call.attrs["is_case_sensitive"] else (w.lower() for w in words))


@normalizer.kernel
def _(call: Call, x: Array) -> Array:
    stop: frozenset[str] = _stopwords(call) if call.state is None else call.state
    sensitive, change = bool(call.attrs["is_case_sensitive"]), CASES[call.attrs["case_change_action"]]
    kept = [text(item) for item in x.reshape(-1).tolist()]
    if stop:
        kept = [w for w in kept if (w if sensitive else w.lower()) not in stop]
    if change is not str:
        kept = [change(w) for w in kept]
    out = np.empty(max(len(kept), 1), dtype=object)
    out[:] = kept or [""]
    return out if x.ndim == 1 else out.reshape(1, -1)


full_match = declare("RegexFullMatch", inputs="X", outputs="Y", attrs={"pattern": Attr("str", None)}, engine=HOST)


@full_match.infer
def _(n: Infer) -> Result:
    x = _strings(n, 0)
    try:
        re.compile(n.attrs["pattern"] or "")
    except re.error as problem:
        raise InferError(f"pattern '{n.attrs['pattern']}' is no regular expression: {problem}") from problem
    return Tensor(DType.BOOL, x.shape)


@full_match.prepare
def _(call: Call) -> Any:
    return re.compile(call.attrs["pattern"] or "")


@full_match.kernel
def _(call: Call, x: Array) -> Array:
    pattern: re.Pattern[str] = call.state or re.compile(call.attrs["pattern"] or "")
    return _each(lambda item: pattern.fullmatch(text(item)) is not None, x, np.bool_)
