"""ai.onnx.ml's operators on feature matrices [rows, features].

Scaler(x, offset=[1], scale=[2])                   (x - 1) · 2
Imputer(x, imputed=[9], replaced=NaN)              NaN → 9
Binarizer(x, threshold=0.5)                        [0.2, 0.7] → [0, 1]
Normalizer(x, "L2")                                each row by its length
FeatureVectorizer([a, b], c; dimensions=[2, 1])    [a, b, c] of each row
ArrayFeatureExtractor(x, [2, 0])                   columns 2 and 0 of each row
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, InferError, Result, declare
from atc_py.ops.elementwise_base import vector_cost
from atc_py.ops.ml_scores import check_numeric, numbers
from atc_py.ops.shapes import show, total

FLOAT_OUT = Flags(recomputable=True)


def _float_like(n: Infer) -> Result:
    check_numeric(n)
    return Tensor(DType.FLOAT32, n.shape(0))


def _last(n: Infer) -> Any:
    shape = n.shape(0)
    return shape[-1] if shape else None


def _check_count(n: Infer, name: str, count: int) -> None:
    last = _last(n)
    if count > 1 and type(last) is int and last != count:
        n.fail(f"attribute '{name}' has {count} values, but the input has {last} features")


# -- Scaler ------------------------------------------------------------------------------------------------

scaler = declare(
    "ai.onnx.ml::Scaler",
    inputs="X",
    outputs="Y",
    attrs={"offset": Attr("floats", None), "scale": Attr("floats", None)},
    flags=Flags(recomputable=True, inplace=(0,)),
)
scaler.cost(vector_cost(2))


@scaler.infer
def _(n: Infer) -> Result:
    for name in ("offset", "scale"):
        _check_count(n, name, len(n.attrs[name] or ()))
    return _float_like(n)


@scaler.kernel
def _(call: Call, x: Array) -> Array:
    offset, scale = numbers(call.attrs["offset"]), numbers(call.attrs["scale"])
    y = call.into(0, x.shape, np.float32)
    # Integers and float64 are computed in float64: the result is rounded to float32 once.
    wide: Any = np.float32 if x.dtype == np.float32 else np.float64
    with np.errstate(all="ignore"):
        value: Array = x if offset is None else np.subtract(x, offset, dtype=wide)
        np.multiply(value, 1 if scale is None else scale, out=y, dtype=wide, casting="unsafe")
    return y


# -- Binarizer ---------------------------------------------------------------------------------------------

binarizer = declare(
    "ai.onnx.ml::Binarizer",
    inputs="X",
    outputs="Y",
    attrs={"threshold": Attr("float", 0.0)},
    flags=Flags(elementwise=True, fusible=True, recomputable=True, inplace=(0,), layout_agnostic=True),
)
binarizer.cost(vector_cost(1))


@binarizer.infer
def _(n: Infer) -> Result:
    check_numeric(n)
    return n.types[0]


@binarizer.kernel
def _(call: Call, x: Array) -> Array:
    y = call.into(0, x.shape, x.dtype)
    limit = call.attrs["threshold"]
    np.copyto(y, np.greater(x, x.dtype.type(limit) if x.dtype.kind == "f" else limit), casting="unsafe")
    return y


# -- Imputer -----------------------------------------------------------------------------------------------

imputer = declare(
    "ai.onnx.ml::Imputer",
    inputs="X",
    outputs="Y",
    attrs={
        "imputed_value_floats": Attr("floats", None),
        "imputed_value_int64s": Attr("ints", None),
        "replaced_value_float": Attr("float", 0.0),
        "replaced_value_int64": Attr("int", 0),
    },
    flags=Flags(recomputable=True, inplace=(0,)),
)
imputer.cost(vector_cost(2))


@imputer.infer
def _(n: Infer) -> Result:
    check_numeric(n)
    name = "imputed_value_floats" if n.dtype(0).is_float else "imputed_value_int64s"
    if not n.attrs[name]:
        n.fail(f"attribute '{name}' is missing, which an input of {n.dtype(0).value} needs")
    _check_count(n, name, len(n.attrs[name]))
    return n.types[0]


@imputer.kernel
def _(call: Call, x: Array) -> Array:
    real = x.dtype.kind == "f"
    # Attributes are float32 or int64; they count in the input's own type.
    values = np.array(call.attrs["imputed_value_floats" if real else "imputed_value_int64s"]).astype(x.dtype)
    replaced = np.asarray(call.attrs["replaced_value_float" if real else "replaced_value_int64"])
    missing = np.isnan(x) if real and np.isnan(replaced) else np.equal(x, replaced.astype(x.dtype))
    y = call.into(0, x.shape, x.dtype)
    if y is not x:
        np.copyto(y, x)
    np.copyto(y, np.broadcast_to(values, x.shape), where=missing)
    return y


# -- Normalizer --------------------------------------------------------------------------------------------

normalizer = declare(
    "ai.onnx.ml::Normalizer",
    inputs="X",
    outputs="Y",
    attrs={"norm": Attr("str", "MAX")},
    flags=FLOAT_OUT,
)
normalizer.cost(vector_cost(3))


@normalizer.infer
def _(n: Infer) -> Result:
    if n.attrs["norm"] not in ("MAX", "L1", "L2"):
        n.fail(f"attribute 'norm' is '{n.attrs['norm']}'; expected MAX, L1 or L2")
    return _float_like(n)


@normalizer.kernel
def _(call: Call, x: Array) -> Array:
    norm = call.attrs["norm"]
    wide: Array = x.astype(np.float32 if x.dtype == np.float32 else np.float64, copy=False)
    y = call.into(0, x.shape, np.float32)
    if not x.size:
        return y
    with np.errstate(all="ignore"):
        if norm == "MAX":
            size = wide.max(axis=-1, keepdims=True)
        elif norm == "L1":
            size = np.abs(wide).sum(axis=-1, keepdims=True)
        else:
            size = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        # A row without a length keeps its values.
        np.divide(wide, np.where(size == 0, 1, size), out=y, casting="unsafe")
    return y


# -- FeatureVectorizer -------------------------------------------------------------------------------------

vectorizer = declare(
    "ai.onnx.ml::FeatureVectorizer",
    inputs="X*",
    outputs="Y",
    attrs={"inputdimensions": Attr("ints", None)},
    flags=FLOAT_OUT,
)


@vectorizer.infer
def _(n: Infer) -> Result:
    widths = n.attrs["inputdimensions"]
    batch: Any = None
    found: list[Any] = []
    for i in range(len(n.types)):
        check_numeric(n, i)
        shape = n.shape(i)
        if shape is not None:
            batch = batch if type(batch) is int else (shape[0] if len(shape) > 1 else 1)
            found.append(total(shape[1:]) if len(shape) > 1 else shape[0] if shape else 1)
    if widths is not None and len(widths) != len(n.types):
        n.fail(f"attribute 'inputdimensions' has {len(widths)} values for {len(n.types)} inputs")
    if widths is None and len(found) < len(n.types):
        return Tensor(DType.FLOAT32, (n.fresh("rows") if batch is None else batch, n.fresh("features")))
    columns = sum(found[1:], found[0]) if widths is None else sum(widths)
    return Tensor(DType.FLOAT32, (n.fresh("rows") if batch is None else batch, columns))


@vectorizer.kernel
def _(call: Call, *inputs: Array) -> Array:
    parts = [x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(1, -1) for x in inputs]
    widths = call.attrs["inputdimensions"] or [p.shape[1] for p in parts]
    y = call.into(0, (parts[0].shape[0], sum(widths)), np.float32)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        used = min(width, part.shape[1])
        np.copyto(y[:, at : at + used], part[:, :used], casting="unsafe")
        y[:, at + used : at + width] = 0
        at += width
    return y


# -- ArrayFeatureExtractor ---------------------------------------------------------------------------------

extractor = declare("ai.onnx.ml::ArrayFeatureExtractor", inputs="X Y", outputs="Z", flags=Flags(recomputable=True))


@extractor.infer
def _(n: Infer) -> Result:
    if n.dtype(1) is not DType.INT64:
        n.fail(f"the indices must be int64, but are {n.dtype(1).value}")
    x, y = n.shape(0), n.shape(1)
    if x is None:
        return Tensor(n.dtype(0), None)
    if not x:
        n.fail("X is a scalar; expected at least one axis")
    count = n.fresh("indices") if y is None else total(y)
    known = n.ints(1)
    if known is not None and type(x[-1]) is int and any(type(k) is int and not 0 <= k < x[-1] for k in known):
        n.fail(f"the indices {known[:8]} must lie in [0, {x[-1]}), as X has shape {show(x)}")
    return Tensor(n.dtype(0), (*x[:-1], count) if len(x) > 1 else (1, count))


@extractor.kernel
def _(call: Call, x: Array, indices: Array) -> Array:
    columns = indices.reshape(-1)
    if columns.size and not (columns.min() >= 0 and columns.max() < x.shape[-1]):
        raise InferError(f"ArrayFeatureExtractor: an index is outside [0, {x.shape[-1]})")
    shape = (*x.shape[:-1], columns.size) if x.ndim > 1 else (1, columns.size)
    result = np.take(x, columns, axis=-1).reshape(shape)
    y = call.out(0)
    if y is None:
        return result
    np.copyto(y, result)
    return y
