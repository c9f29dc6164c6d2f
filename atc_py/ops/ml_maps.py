"""ai.onnx.ml's operators on dictionaries, on the host: CastMap, DictVectorizer, ZipMap.

    ZipMap([[0.2, 0.8]], ["no", "yes"])                  →  [{"no": 0.2, "yes": 0.8}]
    DictVectorizer({"b": 2.0}, vocabulary ["a", "b"])    →  [[0.0, 2.0]]
    CastMap({3: 1.5, 1: -2.0}, TO_FLOAT, DENSE)          →  [[-2.0, 1.5]]        # in the order of the keys

A map is a Python dict in a host slot; its values are Python's own numbers and strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.types import DType, Map, Sequence, Tensor
from atc_py.ops.base import Array, Attr, Call, Engine, Infer, InferError, Result, declare
from atc_py.ops.shapes import show

HOST = Engine.HOST


def _map(n: Infer) -> tuple[DType, DType]:
    """The key and value types of input 0."""
    t = n.types[0] if n.types else None
    if not isinstance(t, Map) or not isinstance(t.value, Tensor):
        raise InferError(f"input 0 must be a map of tensors, but is {'absent' if t is None else type(t).__name__}")
    return t.key, t.value.dtype


def _item(value: Any) -> Any:
    """A map's value as a plain number or string; it may be an array of one element."""
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) else value


# -- ZipMap ------------------------------------------------------------------------------------------------

zip_map = declare(
    "ai.onnx.ml::ZipMap",
    inputs="X",
    outputs="Z",
    attrs={"classlabels_int64s": Attr("ints", None), "classlabels_strings": Attr("strs", None)},
    engine=HOST,
)


@zip_map.infer
def _(n: Infer) -> Result:
    ints, strings = n.attrs["classlabels_int64s"], n.attrs["classlabels_strings"]
    if bool(ints) == bool(strings):
        n.fail("exactly one of 'classlabels_int64s' and 'classlabels_strings' must be given")
    shape = n.shape(0)
    if shape is not None and len(shape) not in (1, 2):
        n.fail(f"the input has shape {show(shape)}; expected [rows, classes] or [classes]")
    count = len(ints or strings)
    if shape and type(shape[-1]) is int and shape[-1] != count:
        n.fail(f"the input has {shape[-1]} columns, but there are {count} class labels")
    return Sequence(Map(DType.INT64 if ints else DType.STRING, Tensor(DType.FLOAT32, ())))


@zip_map.kernel
def _(call: Call, x: Array) -> list[dict[Any, float]]:
    labels = call.attrs["classlabels_int64s"] or call.attrs["classlabels_strings"]
    if x.shape[-1] != len(labels):
        raise InferError(f"ZipMap: the input has {x.shape[-1]} columns, but there are {len(labels)} class labels")
    return [dict(zip(labels, row)) for row in x.reshape(-1, len(labels)).tolist()]


# -- DictVectorizer ----------------------------------------------------------------------------------------

vectorizer = declare(
    "ai.onnx.ml::DictVectorizer",
    inputs="X",
    outputs="Y",
    attrs={"int64_vocabulary": Attr("ints", None), "string_vocabulary": Attr("strs", None)},
    engine=HOST,
)


@vectorizer.infer
def _(n: Infer) -> Result:
    key, value = _map(n)
    name = "string_vocabulary" if key is DType.STRING else "int64_vocabulary"
    if not n.attrs[name]:
        n.fail(f"attribute '{name}' is missing, which a map with keys of {key.value} needs")
    return Tensor(value, (1, len(n.attrs[name])))


@vectorizer.kernel
def _(call: Call, x: dict[Any, Any]) -> Array:
    # A key that the vocabulary lacks is left out; one that the map lacks counts as zero.
    vocabulary = call.attrs["string_vocabulary"] or call.attrs["int64_vocabulary"]
    t = call.out_types[0] if call.out_types else None
    text = isinstance(t, Tensor) and t.dtype is DType.STRING
    y = np.full((1, len(vocabulary)), "" if text else 0, t.dtype.numpy if isinstance(t, Tensor) else np.float32)
    for i, key in enumerate(vocabulary):
        if key in x:
            y[0, i] = _item(x[key])
    return y


# -- CastMap -----------------------------------------------------------------------------------------------

_TARGETS = {"TO_FLOAT": DType.FLOAT32, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}

cast_map = declare(
    "ai.onnx.ml::CastMap",
    inputs="X",
    outputs="Y",
    attrs={"cast_to": Attr("str", "TO_FLOAT"), "map_form": Attr("str", "DENSE"), "max_map": Attr("int", 1)},
    engine=HOST,
)


@cast_map.infer
def _(n: Infer) -> Result:
    key, _ = _map(n)
    if key is not DType.INT64:
        n.fail(f"the keys must be int64, but are {key.value}")
    if n.attrs["cast_to"] not in _TARGETS:
        n.fail(f"attribute 'cast_to' is '{n.attrs['cast_to']}'; expected {', '.join(_TARGETS)}")
    if n.attrs["map_form"] not in ("DENSE", "SPARSE"):
        n.fail(f"attribute 'map_form' is '{n.attrs['map_form']}'; expected DENSE or SPARSE")
    count = n.attrs["max_map"] if n.attrs["map_form"] == "SPARSE" else n.fresh("entries")
    if type(count) is int and count < 1:
        n.fail(f"attribute 'max_map' is {count}; a sparse map needs at least 1")
    return Tensor(_TARGETS[n.attrs["cast_to"]], (1, count))


def _cast(value: Any, to: DType) -> Any:
    """One value, as C's conversions do it: six decimals to text, towards zero to int64."""
    item = _item(value)
    number = item if isinstance(item, str) else float(np.float32(item))
    if to is DType.STRING:
        return number if isinstance(number, str) else f"{number:f}"
    return float(number) if to is DType.FLOAT32 else int(float(number))


@cast_map.kernel
def _(call: Call, x: dict[int, Any]) -> Array:
    to = _TARGETS[call.attrs["cast_to"]]
    if call.attrs["map_form"] == "DENSE":
        keys, width = sorted(x), len(x)
        places = range(width)
    else:
        width = call.attrs["max_map"]
        keys = [k for k in sorted(x) if 0 <= k < width]
        places = keys  # type: ignore[assignment]
    # onnxruntime's text for an absent entry
    y = np.full((1, width), "0.f" if to is DType.STRING else 0, to.numpy)
    for place, key in zip(places, keys, strict=True):
        y[0, place] = _cast(x[key], to)
    return y
