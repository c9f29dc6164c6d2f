"""Adapters of normalisation, pooling, activation and resampling operators."""

from __future__ import annotations

import numpy as np

from atc_py.frontend.adapters import absent_if_empty
from atc_py.frontend.draft import ALWAYS, Draft, before
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType


@before("BatchNormalization", 14)
def _batch_norm(d: Draft) -> list[int] | None:
    """Outputs beyond Y meant training; statistics per element were `spatial=0`."""
    if d.wanted > 1:
        d.fail("its training outputs are read", "export the model in inference mode")
    d.attrs.pop("is_test", None)
    d.outputs = 1
    if d.attrs.pop("spatial", 1):
        return None
    epsilon = d.const(d.attrs.get("epsilon", 1e-5), d.tensor(0).dtype)
    x, scale, bias, mean, var = d.inputs
    [deviation] = d.emit("Sqrt", d.emit("Add", [var, epsilon]))
    [centred] = d.emit("Sub", [x, mean])
    [scaled] = d.emit("Mul", [*d.emit("Div", [centred, deviation]), scale])
    return d.finish("Add", [scaled, bias])


@before("GroupNormalization", 21)
def _group_norm(d: Draft) -> None:
    """Scale and bias were given per group, now per channel."""
    groups, shape = d.attrs.get("num_groups", 0), d.tensor(0).shape
    if shape is None or len(shape) < 2 or type(groups) is not int or groups < 1:
        d.fail("the number of channels and of groups must be known")
    width = shape[1] // groups
    for i in (1, 2):
        [column] = d.emit("Unsqueeze", [d.inputs[i], d.ints([1])])
        [wide] = d.emit("Expand", [column, d.ints([groups, width])])
        d.inputs[i] = d.emit("Reshape", [wide, d.ints([-1])])[0]


@before("PRelu", 7)
def _prelu(d: Draft) -> None:
    """A slope of rank 1 belonged to the channels."""
    rank, slope = d.tensor(0).rank, d.tensor(1)
    if rank is None or slope.rank is None:
        d.fail("ranks must be known")
    if slope.rank == 1 and rank > 2 and slope.dims[0] != 1:
        d.inputs[1] = d.emit("Unsqueeze", [d.inputs[1], d.ints(range(1, rank - 1))])[0]


@before("GridSample", 20)
def _grid_sample(d: Draft) -> None:
    mode = d.attrs.get("mode", "bilinear")
    d.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


@before("RoiAlign", 16)
def _roi_align(d: Draft) -> None:
    d.attrs["coordinate_transformation_mode"] = "output_half_pixel"


@before("Upsample", 7)
def _upsample_1(d: Draft) -> None:
    d.attrs["scales"] = (1.0, 1.0, d.attrs.pop("height_scale", 1.0), d.attrs.pop("width_scale", 1.0))


@before("Upsample", 9)
def _upsample_7(d: Draft) -> None:
    d.set_input(1, d.const(d.attrs.pop("scales", ()), DType.FLOAT32))


@before("Upsample", 11)
def _upsample(d: Draft) -> list[int] | None:
    return _resize_10(d)


@before("Resize", 11)
def _resize_10(d: Draft) -> list[int] | None:
    """Coordinates were `asymmetric`; nearest took the floor where an axis grows and the ceiling where it shrinks."""
    d.op = "Resize"
    mode = d.attrs.get("mode", "nearest")
    d.attrs["mode"] = {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode)
    d.attrs["coordinate_transformation_mode"] = "asymmetric"
    x, scales = d.inputs[0], d.inputs[1] if d.has(1) else d.fail("scales are missing")
    d.inputs = [x, ABSENT, scales]
    known = d.scope.known(scales)
    if d.attrs["mode"] != "nearest" or known is None or not (known < 1).any():
        d.attrs["nearest_mode"] = "floor"
        return None
    if not (known > 1).any():
        d.attrs["nearest_mode"] = "ceil"
        return None
    growing = dict(d.attrs, nearest_mode="floor")
    [grown] = d.emit("Resize", [x, ABSENT, d.const(np.maximum(known, 1))], growing)
    d.inputs = [grown, ABSENT, d.const(np.minimum(known, 1))]
    d.attrs["nearest_mode"] = "ceil"
    return None


@before("Resize", ALWAYS)
def _resize(d: Draft) -> None:
    """Empty roi, scales or sizes count as not given; roi is read in one mode only."""
    absent_if_empty(d, 1)
    if d.has(1) and d.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        d.inputs[1] = ABSENT
