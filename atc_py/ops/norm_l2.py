"""L2Normalize, GE's operator: each vector along the axes divided by its length, but never by less than `eps`.

    x = (3, 4), eps = 0.1   →   (0.6, 0.8)            x = (0.003, 0.004), eps = 0.1   →   (0.03, 0.04)

ONNX's LpNormalization has no such bound, which the models of all exporters have.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ops import tiles_rows
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.shapes import axes as axes_of
from atc_py.ops.traits import Pattern

l2_normalize = declare(
    "L2Normalize",
    inputs="x",
    outputs="y",
    attrs={"axis": Attr("ints", REQUIRED), "eps": Attr("float", 1e-4)},
    flags=Flags(keeps_zero=True, fp16_safe=True, pattern=Pattern.ROW_NORM),
)


l2_normalize.tile(tiles_rows.by_axis)


@l2_normalize.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if not n.tensor(0).dtype.is_float:
        n.fail(f"x is {n.dtype(0)}; expected floating-point numbers")
    if x is not None:
        axes_of(n.attrs["axis"], len(x))
    return n.types[0]


@l2_normalize.cost
def _(n: Infer) -> Cost:
    x = n.shape(0)
    return Cost() if x is None else Cost(vector=prod(x) * 3)


@l2_normalize.kernel
def _(call: Call, x: Array) -> Array:
    wide = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    y, axes = call.into(0, x.shape, x.dtype), tuple(call.attrs["axis"])
    with np.errstate(all="ignore"):
        square = np.square(x, out=call.scratch(x.shape, wide), dtype=wide, casting="unsafe")
        length = np.sqrt(np.add.reduce(square, axis=axes, keepdims=True))
        np.divide(x, np.maximum(length, wide.type(call.attrs["eps"])), out=y, casting="unsafe")
    return y
