"""Conv and ConvTranspose over one, two, three or more spatial axes.

The arithmetic is in `conv_impl`; the way is chosen when shapes are bound: a 1×1 convolution of stride 1 is a matrix
product without any copy, a depthwise one multiplies and adds shifted runs, all others go through im2col blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.dims import floordiv, prod
from atc_py.ir.types import Format, Tensor
from atc_py.ops import tiles_cube
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Product, Result, Shape, declare
from atc_py.ops.conv_geometry import Geometry, geometry, transposed_geometry
from atc_py.ops.conv_impl import compute_dtype, pack, pointwise, run
from atc_py.ops.conv_windows import Windows, convolve, windows
from atc_py.ops.layouts import feature_maps
from atc_py.ops.window import WINDOW_ATTRS, Window, ints, kernel_of, positive, transposed, window

ATTRS = {**WINDOW_ATTRS, "group": Attr("int", 1), "kernel_shape": Attr("ints", None)}

conv = declare(
    "Conv",
    inputs="X W B?",
    outputs="Y",
    attrs=ATTRS,
    flags=Flags(fusible=True, splittable=(0, 1), fp16_safe=True, cube=(0, 1)),
)

conv_transpose = declare(
    "ConvTranspose",
    inputs="X W B?",
    outputs="Y",
    attrs={**ATTRS, "output_padding": Attr("ints", None), "output_shape": Attr("ints", None)},
    flags=Flags(fusible=True, splittable=(0, 1), fp16_safe=True, cube=(0, 1)),
)
conv.layout(feature_maps(0, needs=True, weights={1: Format.FRACTAL_Z}, groups="group"))
conv_transpose.layout(feature_maps(0, needs=True, weights={1: Format.FRACTAL_Z}, groups="group"))


def _checked(n: Infer) -> tuple[Shape | None, Shape | None]:
    """The shapes of X and W after the checks that both operators share."""
    x, w, group = n.shape(0), n.shape(1), n.attrs["group"]
    if group < 1:
        n.fail(f"group is {group}; expected at least 1")
    if x is not None and len(x) < 3:
        n.fail(f"X has rank {len(x)}; expected batch, channels and at least one spatial axis")
    if w is not None and len(w) < 3:
        n.fail(f"W has rank {len(w)}; expected at least 3")
    if n.dtype(1) is not n.dtype(0):
        n.fail(f"W is {n.dtype(1)}, but X is {n.dtype(0)}")
    return x, w


def _check_bias(n: Infer, channels: Any) -> None:
    bias = n.shape(2) if n.has(2) else None
    if bias is None:
        return
    if len(bias) != 1 or (type(bias[0]) is int and type(channels) is int and bias[0] != channels):
        n.fail(f"B has shape {[str(d) for d in bias]}; expected [{channels}]")


def _output(n: Infer, turned: bool) -> tuple[Shape, Window] | None:
    x, w = _checked(n)
    if x is None:
        return None
    group, channels = n.attrs["group"], None
    if w is not None:
        inner, outer = (w[0], w[1] * group) if turned else (w[1] * group, w[0])
        if type(x[1]) is int and type(inner) is int and x[1] != inner:
            expected = f"{inner}" if turned else f"{w[1]} in each of {group} groups"
            n.fail(f"X has {x[1]} channels; W expects {expected}", "check `group` and W's shape")
        if type(w[0]) is int and w[0] % group:
            n.fail(f"W has {w[0]} {'in' if turned else 'out'}put channels, which {group} groups do not divide")
        channels = outer
    if channels is None:
        channels = n.fresh(f"Conv{'Transpose' if turned else ''} output channels")
    _check_bias(n, channels)
    kernel = kernel_of(n.attrs, w, len(x) - 2)
    win = transposed(n.attrs, x[2:], kernel) if turned else window(n.attrs, x[2:], kernel)
    return (x[0], channels, *win.out), win


def conv_shape(n: Infer) -> tuple[Shape, Window] | None:
    """Output shape and window of a Conv, None when the input's rank is unknown."""
    return _output(n, turned=False)


conv.tile(tiles_cube.convolution)


@conv.infer
def _(n: Infer) -> Result:
    found = conv_shape(n)
    return Tensor(n.dtype(0), None if found is None else found[0])


@conv.cost
def _(n: Infer) -> Cost:
    found = conv_shape(n)
    if found is None:
        return Cost()
    out, win = found
    x, w = n.shape(0), n.shape(1)
    assert x is not None
    width = w[1] if w is not None else x[1] // n.attrs["group"]
    group = n.attrs["group"]
    places = out[0] * prod(out[2:])
    packs = len(win.kernel) <= 2  # GE's small channels are a matter of planes; a row is a plane to it
    product = Product(places, width, floordiv(out[1], group), group, prod(win.kernel), grouped=group > 1, packs=packs)
    return Cost(products=(product,), vector=prod(out) if n.has(2) else 0)


def transpose_shape(n: Infer) -> tuple[Shape, Window] | None:
    """Output shape and window of a ConvTranspose, None when the input's rank is unknown."""
    return _output(n, turned=True)


conv_transpose.tile(tiles_cube.convolution_transposed)


@conv_transpose.infer
def _(n: Infer) -> Result:
    found = transpose_shape(n)
    return Tensor(n.dtype(0), None if found is None else found[0])


@conv_transpose.cost
def _(n: Infer) -> Cost:
    found = transpose_shape(n)
    x = n.shape(0)
    if found is None or x is None:
        return Cost()
    out, win = found
    group = n.attrs["group"]
    # A convolution over its input with zeros between (GE: Conv2DBackpropInput); what is strided is spread out before.
    places = out[0] * prod(out[2:])
    spread = x[0] * x[1] * prod(out[2:]) if any(s != 1 for s in win.strides) else 0
    width, filters = floordiv(x[1], group), floordiv(out[1], group)
    product = Product(places, width, filters, group, prod(win.kernel), grouped=group > 1, packs=False)
    return Cost(products=(product,), vector=spread + (prod(out) if n.has(2) else 0))


@dataclass
class State:
    """What `prepare` makes for one pair of shapes: the geometry, and the packed weights when W is constant."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    geo: Geometry
    plain: bool
    small: Windows | None = None
    packed: list[Array] | None = None


def plan(attrs: Mapping[str, Any], x: tuple[int, ...], w: tuple[int, ...], *, turned: bool = False) -> State:
    """The way to compute a convolution (transposed when `turned`) of bound shapes."""
    kernel = kernel_of(attrs, w, len(x) - 2)
    win = transposed(attrs, x[2:], kernel) if turned else window(attrs, x[2:], kernel)
    channels = w[1] * attrs["group"] if turned else w[0]
    plain = all(k == 1 for k in kernel) and positive(attrs, "strides", win.rank) == (1,) * win.rank
    plain = plain and not any(win.before) and win.out == win.spatial
    geo = transposed_geometry(win) if turned else geometry(win)
    small = None if turned or plain else windows(x, win, attrs["group"])
    return State(x, w, (x[0], channels, *ints(win.out)), geo, plain, small)


def _prepare(call: Call, turned: bool) -> State | None:
    x, w = (call.in_types[i] if i < len(call.in_types) else None for i in (0, 1))
    if not (isinstance(x, Tensor) and isinstance(w, Tensor) and x.static and w.static):
        return None
    state = plan(call.attrs, ints(x.dims), ints(w.dims), turned=turned)
    if 1 in call.consts:
        state.packed = _packed(call.consts[1], call.attrs["group"], state, turned)
    return state


def _packed(w: Array, group: int, state: State, turned: bool) -> list[Array]:
    return pack(w, group, state.geo, transposed=turned, dtype=compute_dtype(w.dtype))


def _compute(call: Call, x: Array, w: Array, bias: Array | None, turned: bool) -> Array:
    state: State | None = call.state
    if state is None or state.x != x.shape or state.w != w.shape:
        state = plan(call.attrs, x.shape, w.shape, turned=turned)
    group = call.attrs["group"]
    y = call.into(0, state.out, x.dtype)
    with np.errstate(all="ignore"):
        packed = state.packed or _packed(w, group, state, turned)
        if state.plain and y.size and x.size:
            pointwise(call, x, packed[0], bias, y, group)
        elif state.small is not None and y.size:
            convolve(call, state.small, x, packed[0], bias, y)
        else:
            run(call, x, packed, bias, y, state.geo, group)
    return y


@conv.prepare
def _(call: Call) -> State | None:
    return _prepare(call, turned=False)


@conv.kernel
def _(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    return _compute(call, x, w, bias, turned=False)


@conv_transpose.prepare
def _(call: Call) -> State | None:
    return _prepare(call, turned=True)


@conv_transpose.kernel
def _(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    return _compute(call, x, w, bias, turned=True)
