"""Operators of onnxruntime's own that are a canonical one under another name, and the oldest ones of ai.onnx.

com.microsoft::ExpandDims(x, axis)     →   Unsqueeze(x, [axis])
com.microsoft::Unique(x)               →   Unique(x) {sorted: 0}, outputs 0, 2, 3
ImageScaler(x) {bias, scale}           →   x · scale + bias by channel       # left ai.onnx in 2018, lives in old files
"""

from __future__ import annotations

import numpy as np

from atc_py.frontend.adapters_microsoft import MS, activated, given, number, one, outputs, permuted, tensor, total
from atc_py.frontend.draft import Draft
from atc_py.frontend.extensions import extension
from atc_py.ir.types import DType
from atc_py.ops.base import Attr

# -- the same operator under onnxruntime's name --------------------------------------------------------------


@extension(f"{MS}SampleOp", inputs="X", outputs="Y")
def _sample(d: Draft) -> list[int]:
    return d.finish("Identity", d.inputs)


@extension(f"{MS}Trilu", inputs="X k?", outputs="Y", attrs={"upper": Attr("int", 1)})
def _trilu(d: Draft) -> list[int]:
    return d.finish("Trilu", d.inputs, d.attrs)


@extension(f"{MS}GatherND", inputs="data indices", outputs="output")
def _gather_nd(d: Draft) -> list[int]:
    indices = d.inputs[1]
    if tensor(d, indices).dtype is not DType.INT64:
        indices = one(d, "Cast", [indices], {"to": DType.INT64})
    return d.finish("GatherND", [d.inputs[0], indices])


@extension(f"{MS}Range", inputs="start limit delta?", outputs="Y")
def _range(d: Draft) -> list[int]:
    ends = [_scalar(d, v) for v in d.inputs if v >= 0]
    return d.finish("Range", ends if len(ends) == 3 else [*ends, number(d, ends[0], 1)])


def _scalar(d: Draft, value: int) -> int:
    return value if tensor(d, value).shape == () else one(d, "Reshape", [value, d.ints([])])


@extension(f"{MS}ExpandDims", inputs="X axis", outputs="Y")
def _expand_dims(d: Draft) -> list[int]:
    axis = one(d, "Reshape", [one(d, "Cast", [d.inputs[1]], {"to": DType.INT64}), d.ints([1])])
    return d.finish("Unsqueeze", [d.inputs[0], axis])


@extension(f"{MS}Pad", inputs="data pads value?", outputs="output", attrs={"mode": Attr("str", "constant")})
def _pad(d: Draft) -> list[int]:
    pads = one(d, "Reshape", [d.inputs[1], d.ints([-1])])
    value = given(d, 2)
    return d.finish("Pad", [d.inputs[0], pads, value if value < 0 else _scalar(d, value)], {"mode": d.attrs["mode"]})


@extension(f"{MS}Unique", inputs="x", outputs="y idx counts")
def _unique(d: Draft) -> list[int]:
    y, _, places, counts = d.emit("Unique", d.inputs, {"sorted": 0}, outputs=4)
    return outputs(d, y, places, counts)


@extension(
    f"{MS}GridSample",
    inputs="X Grid",
    outputs="Y",
    attrs={"mode": Attr("str", "bilinear"), "padding_mode": Attr("str", "zeros"), "align_corners": Attr("int", 0)},
)
def _grid_sample(d: Draft) -> list[int]:
    mode = d.attrs["mode"]
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return d.finish("GridSample", d.inputs, {**d.attrs, "mode": renamed})


# -- a few operators -----------------------------------------------------------------------------------------


@extension(f"{MS}CDist", inputs="A B", outputs="C", attrs={"metric": Attr("str", "sqeuclidean")})
def _distances(d: Draft) -> list[int]:
    """|a - b|² = |a|² - 2 a·b + |b|², as onnxruntime computes it."""
    metric = d.attrs["metric"]
    if metric not in ("euclidean", "sqeuclidean"):
        d.fail(f"the metric '{metric}' is not supported", "euclidean and sqeuclidean are")
    a, b = d.inputs
    left, right = (one(d, "ReduceSumSquare", [v, d.ints([1])], {"keepdims": 1}) for v in (a, b))
    dots = one(d, "Gemm", [a, b], {"transB": 1, "alpha": -2.0})
    squares = total(d, dots, left, permuted(d, right, (1, 0)))
    squares = one(d, "Max", [squares, number(d, squares, 0)])
    return [one(d, "Sqrt", [squares]) if metric == "euclidean" else squares]


def _centred(d: Draft, value: int, zero: int) -> int:
    wide = one(d, "Cast", [value], {"to": DType.INT32})
    return wide if zero < 0 else one(d, "Sub", [wide, one(d, "Cast", [zero], {"to": DType.INT32})])


@extension(f"{MS}MulInteger", inputs="A A_zero_point? B B_zero_point?", outputs="C")
def _mul_integer(d: Draft) -> list[int]:
    a, a_zero, b = d.inputs[:3]
    return d.finish("Mul", [_centred(d, a, a_zero), _centred(d, b, given(d, 3))])


@extension(
    f"{MS}ReduceSumInteger", inputs="data", outputs="reduced", attrs={"axes": Attr("ints"), "keepdims": Attr("int")}
)
def _reduce_sum_integer(d: Draft) -> list[int]:
    unsigned = tensor(d, d.inputs[0]).dtype is DType.UINT8
    wide = one(d, "Cast", [d.inputs[0]], {"to": DType.UINT32 if unsigned else DType.INT32})
    return d.finish("ReduceSum", [wide, d.ints(d.attrs["axes"])], {"keepdims": d.attrs["keepdims"]})


@extension(
    f"{MS}CausalConvWithState",
    inputs="input weight bias? past_state?",
    outputs="output present_state state_update?",
    attrs={
        "activation": Attr("str", "none"),
        "channels_last": Attr("int", 0),
        "dilation": Attr("int", 1),
        "input_channel_offset": Attr("int", 0),
        "input_channels": Attr("int", 0),
        "ndim": Attr("int", 1),
        "state_channels_last": Attr("int", -1),
        "state_length": Attr("int", 0),
        "state_update_capacity": Attr("int", 0),
        "state_window": Attr("int", 0),
    },
)
def _causal_conv(d: Draft) -> list[int]:
    """A depthwise convolution behind what came before; the last positions are the next call's past."""
    a = d.attrs
    unusual = ("input_channels", "input_channel_offset", "state_length", "state_update_capacity", "state_window")
    if a["ndim"] != 1 or a["channels_last"] or any(a[n] for n in unusual):
        d.fail("only one axis, channels first, and a state of the kernel's reach are supported")
    x, weight = d.inputs[:2]
    channels, _, taps = tensor(d, weight).dims
    if type(channels) is not int or type(taps) is not int:
        d.fail("the weight's shape must be known")
    reach = (taps - 1) * a["dilation"]
    if d.has(3):
        whole = one(d, "Concat", [d.inputs[3], x], {"axis": 2})
    else:
        whole = one(d, "Pad", [x, d.ints([0, 0, reach, 0, 0, 0])])
    attrs = {"group": channels, "dilations": (a["dilation"],), "kernel_shape": (taps,)}
    y = one(d, "Conv", [whole, weight, given(d, 2)], attrs)
    if a["activation"] in ("silu", "swish"):
        y = one(d, "Swish", [y], {"alpha": 1.0})
    elif a["activation"] != "none":
        d.fail(f"the activation '{a['activation']}' is unknown", "silu, swish and none are known")
    length = one(d, "Gather", [one(d, "Shape", [whole]), d.ints([2])], {"axis": 0})
    start = one(d, "Sub", [length, d.ints([reach])])
    return outputs(d, y, one(d, "Slice", [whole, start, length, d.ints([2])]))


@extension(
    f"{MS}RelativePositionBias",
    inputs="bias_table query_length key_length",
    outputs="output",
    attrs={"is_bidirectional": Attr("int", 0), "max_distance": Attr("int")},
)
def _relative_position_bias(d: Draft) -> list[int]:
    """T5's buckets: near distances one each, far ones on a logarithmic scale up to max_distance, both ways or back."""
    table, a = d.inputs[0], d.attrs
    lengths = [d.known(1), d.known(2)]
    buckets = tensor(d, table).dims[0]
    if lengths[0] is None or lengths[1] is None or type(buckets) is not int:
        d.fail("the lengths of query and key must be known", "fix the shapes with --input-shape")
    queries, keys = (int(v.reshape(-1)[0]) for v in lengths if v is not None)
    apart = np.arange(queries)[:, None] - np.arange(keys)
    place = np.zeros(apart.shape, np.int64)
    if a["is_bidirectional"]:
        buckets //= 2
        place += np.where(apart < 0, buckets, 0)
        apart = np.abs(apart)
    else:
        apart = np.maximum(apart, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        scale = np.log(np.float32(apart) / exact) / np.log(np.float32(a["max_distance"] / exact)) * (buckets - exact)
    far = np.minimum(exact + np.maximum(scale, 0).astype(np.int64), buckets - 1)
    place += np.where(apart < exact, apart, far)
    bias = one(d, "Gather", [table, d.const(place)], {"axis": 0})
    return [one(d, "Unsqueeze", [permuted(d, bias, (2, 0, 1)), d.ints([0])])]


# -- what ai.onnx had before its first stable version ---------------------------------------------------------


def _affine(d: Draft, x: int, factor: float, offset: float) -> int:
    return total(d, one(d, "Mul", [x, number(d, x, factor)]), number(d, x, offset))


@extension("Affine", inputs="X", outputs="Y", attrs={"alpha": Attr("float", 1.0), "beta": Attr("float", 0.0)})
def _affine_op(d: Draft) -> list[int]:
    return [_affine(d, d.inputs[0], d.attrs["alpha"], d.attrs["beta"])]


@extension("Scale", inputs="input", outputs="output", attrs={"scale": Attr("float", 1.0)})
def _scale(d: Draft) -> list[int]:
    return [one(d, "Mul", [d.inputs[0], number(d, d.inputs[0], d.attrs["scale"])])]


@extension("ScaledTanh", inputs="input", outputs="output", attrs={"alpha": Attr("float"), "beta": Attr("float")})
def _scaled_tanh(d: Draft) -> list[int]:
    x, a = d.inputs[0], d.attrs
    inner = activated(d, one(d, "Mul", [x, number(d, x, a["beta"])]), "Tanh", ())
    return [one(d, "Mul", [inner, number(d, x, a["alpha"])])]


@extension("ParametricSoftplus", inputs="X", outputs="Y", attrs={"alpha": Attr("float"), "beta": Attr("float")})
def _parametric_softplus(d: Draft) -> list[int]:
    x, a = d.inputs[0], d.attrs
    inner = activated(d, one(d, "Mul", [x, number(d, x, a["beta"])]), "Softplus", ())
    return [one(d, "Mul", [inner, number(d, x, a["alpha"])])]


@extension(
    "ImageScaler", inputs="input", outputs="output", attrs={"bias": Attr("floats", ()), "scale": Attr("float", 1.0)}
)
def _image_scaler(d: Draft) -> list[int]:
    x, dtype = d.inputs[0], tensor(d, d.inputs[0]).dtype
    scaled = one(d, "Mul", [x, number(d, x, d.attrs["scale"])])
    bias = np.array(d.attrs["bias"]).reshape(1, -1, 1, 1)
    return [total(d, scaled, d.const(bias, dtype)) if bias.size else scaled]


@extension("Crop", inputs="input", outputs="output", attrs={"border": Attr("ints"), "scale": Attr("ints", None)})
def _crop(d: Draft) -> list[int]:
    """`border` is left, top, right, bottom; `scale` the height and width that stay instead of right and bottom."""
    left, top, right, bottom = d.attrs["border"]
    scale = d.attrs["scale"]
    shape = tensor(d, d.inputs[0]).shape
    if shape is None or len(shape) != 4:
        d.fail("its input must have rank 4")
    ends = [top + scale[0], left + scale[1]] if scale else [shape[2] - bottom, shape[3] - right]
    return d.finish("Slice", [d.inputs[0], d.ints([top, left]), d.ints(ends), d.ints([2, 3])])
