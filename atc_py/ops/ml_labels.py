"""ai.onnx.ml's tables: LabelEncoder, CategoryMapper, OneHotEncoder.

    keys [10, 20, 30], values ["a", "b", "c"]      [20, 99]  →  sorted search  →  ["b", default]

All elements are looked up at once: the keys are sorted when the table is made, the first of equal keys counts, and a
NaN key matches NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Flags, Infer, InferError, Op, Result, declare
from atc_py.ops.ml_scores import NUMERIC
from atc_py.ops.shape_values import constant_array

_KEYS = {DType.STRING: "strings", DType.INT64: "int64s", DType.FLOAT32: "floats"}
_DEFAULTS = {"strings": "default_string", "int64s": "default_int64", "floats": "default_float"}
_DTYPES: Mapping[str, Any] = {"strings": object, "int64s": np.int64, "floats": np.float32}


def words(x: Array) -> Array:
    """Strings as numpy's own text type, which sorts and compares at once."""
    return np.array([w.decode("utf-8", "replace") if isinstance(w, bytes) else str(w) for w in x.reshape(-1)], np.str_)


@dataclass(frozen=True)
class Table:
    """Sorted keys without repetition, and for each its place in the list that was given; `nan` is that of NaN."""

    keys: Array
    places: Array
    nan: int = -1

    def find(self, x: Array) -> Array:
        """The place of each element of `x` in the list of keys, -1 where it has none."""
        if self.keys.dtype.kind == "U":
            flat = words(x)
        else:
            flat = x.reshape(-1)
            if flat.dtype != self.keys.dtype:
                flat = flat.astype(self.keys.dtype)
        found = np.full(flat.shape, -1, np.int64)
        if self.keys.size:
            at = np.minimum(np.searchsorted(self.keys, flat), self.keys.size - 1)
            found = np.where(self.keys[at] == flat, self.places[at], -1)
        if self.nan >= 0:
            found[np.isnan(flat)] = self.nan
        return found.reshape(x.shape)


def table(keys: Array) -> Table:
    """The table of a list of keys; of equal keys the first counts."""
    flat = words(keys) if keys.dtype == object else keys.reshape(-1)
    places = np.arange(flat.size)
    nan = -1
    if flat.dtype.kind == "f" and np.isnan(flat).any():
        nan = int(np.argmax(np.isnan(flat)))
        places = places[~np.isnan(flat)]
    unique, first = np.unique(flat[places], return_index=True)
    return Table(unique, places[first], nan)


# -- LabelEncoder ------------------------------------------------------------------------------------------

label_encoder = declare(
    "ai.onnx.ml::LabelEncoder",
    inputs="X",
    outputs="Y",
    attrs={
        **{f"{side}_{kind}s": Attr(f"{what}s", None)
           for side in ("keys", "values") for kind, what in (("string", "str"), ("int64", "int"), ("float", "float"))},
        "keys_tensor": Attr("tensor", None),
        "values_tensor": Attr("tensor", None),
        "default_string": Attr("str", "_Unused"),
        "default_int64": Attr("int", -1),
        "default_float": Attr("float", -0.0),
        "default_tensor": Attr("tensor", None),
    },
    flags=Flags(recomputable=True),
    engine=Engine.AICPU,
)  # fmt: skip


def _side(attrs: Mapping[str, Any], side: str) -> tuple[str, Array]:
    """("int64s", the keys or values) of a LabelEncoder."""
    given = [kind for kind in (*_DTYPES, "tensor") if attrs[f"{side}_{kind}"] is not None]
    if len(given) != 1:
        raise InferError(f"attributes '{side}_…': {len(given)} lists are given; expected one")
    value = attrs[f"{side}_{given[0]}"]
    array = constant_array(value).reshape(-1) if given[0] == "tensor" else _listed(value, _DTYPES[given[0]])
    return given[0], array


def _listed(values: Any, dtype: Any) -> Array:
    """A list attribute; strings become an array of objects whatever their length."""
    return np.array([*values, ""], object)[:-1] if dtype is object else np.array(values, dtype)


def _default(attrs: Mapping[str, Any], kind: str, values: Array) -> Any:
    if kind != "tensor":
        return attrs[_DEFAULTS[kind]]
    if attrs["default_tensor"] is not None:
        return constant_array(attrs["default_tensor"]).reshape(-1)[0]
    # Without a default tensor the defaults of the list attributes hold, for the same kind of value.
    if values.dtype == object:
        return attrs["default_string"]
    return attrs["default_float"] if values.dtype.kind == "f" else attrs["default_int64"]


@label_encoder.infer
def _(n: Infer) -> Result:
    _, keys = _side(n.attrs, "keys")
    _, values = _side(n.attrs, "values")
    if keys.size != values.size:
        n.fail(f"there are {keys.size} keys, but {values.size} values")
    if DType.of(keys.dtype) is not n.dtype(0):
        n.fail(f"the input is {n.dtype(0).value}, but the keys are {DType.of(keys.dtype).value}")
    return Tensor(DType.of(values.dtype), n.shape(0))


@label_encoder.prepare
def _(call: Call) -> tuple[Table, Array]:
    return _encoder(call)


def _encoder(call: Call) -> tuple[Table, Array]:
    """The table, and the values with the default behind them, where place -1 finds it."""
    kind, values = _side(call.attrs, "values")
    default = np.empty(1, values.dtype)
    default[0] = _default(call.attrs, kind, values)
    return table(_side(call.attrs, "keys")[1]), np.concatenate([values, default])


@label_encoder.kernel
def _(call: Call, x: Array) -> Array:
    found, values = call.state or _encoder(call)
    y = call.into(0, x.shape, values.dtype)
    np.copyto(y, values[found.find(x)])
    return y


# -- CategoryMapper ----------------------------------------------------------------------------------------

mapper = declare(
    "ai.onnx.ml::CategoryMapper",
    inputs="X",
    outputs="Y",
    attrs={
        "cats_int64s": Attr("ints", None),
        "cats_strings": Attr("strs", None),
        "default_int64": Attr("int", -1),
        "default_string": Attr("str", "_Unused"),
    },
    flags=Flags(recomputable=True),
    engine=Engine.HOST,
)


@mapper.infer
def _(n: Infer) -> Result:
    ints, strings = n.attrs["cats_int64s"] or (), n.attrs["cats_strings"] or ()
    if len(ints) != len(strings):
        n.fail(f"there are {len(ints)} int64s, but {len(strings)} strings")
    if n.dtype(0) not in (DType.STRING, DType.INT64):
        n.fail(f"the input must be string or int64, but is {n.dtype(0).value}")
    return Tensor(DType.INT64 if n.dtype(0) is DType.STRING else DType.STRING, n.shape(0))


@mapper.kernel
def _(call: Call, x: Array) -> Array:
    attrs = call.attrs
    ints = np.array(attrs["cats_int64s"] or (), np.int64)
    strings = _listed(attrs["cats_strings"] or (), object)
    if x.dtype == object:
        return np.append(ints, np.int64(attrs["default_int64"]))[table(strings).find(x)]
    return np.append(strings, np.array([attrs["default_string"]], object))[table(ints).find(x)]


# -- OneHotEncoder -----------------------------------------------------------------------------------------

one_hot: Op = declare(
    "ai.onnx.ml::OneHotEncoder",
    inputs="X",
    outputs="Y",
    attrs={"cats_int64s": Attr("ints", None), "cats_strings": Attr("strs", None), "zeros": Attr("int", 1)},
    flags=Flags(recomputable=True),
    engine=Engine.AICPU,
)


def _categories(attrs: Mapping[str, Any], text: bool) -> Array:
    name = "cats_strings" if text else "cats_int64s"
    if not attrs[name]:
        raise InferError(f"attribute '{name}' is missing, which an input of {'strings' if text else 'numbers'} needs")
    return _listed(attrs[name], object if text else np.int64)


@one_hot.infer
def _(n: Infer) -> Result:
    text = n.dtype(0) is DType.STRING
    if not text and n.dtype(0) not in NUMERIC:
        n.fail(f"the input must be strings, integers or floats, but is {n.dtype(0).value}")
    count = len(_categories(n.attrs, text))
    shape = n.shape(0)
    return Tensor(DType.FLOAT32, None if shape is None else (*shape, count))


@one_hot.kernel
def _(call: Call, x: Array) -> Array:
    categories = _categories(call.attrs, x.dtype == object)
    with np.errstate(all="ignore"):
        found = table(categories).find(x)
    if not call.attrs["zeros"] and (found < 0).any():
        raise InferError("OneHotEncoder: an element is no category, and zeros = 0 forbids that")
    y = call.into(0, (*x.shape, categories.size), np.float32)
    np.equal(found[..., None], np.arange(categories.size), out=y, casting="unsafe")
    return y
