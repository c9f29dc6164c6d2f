"""Small convolutions: all windows of the padded input as one strided view, one copy, one matrix product.

The other way (`conv_impl`) makes long copies, and so many numpy calls that they are all that a small convolution costs.
Here each tap of each window is one element of a view with overlapping strides. A row of 5, kernel 3, stride 2, pad 1:

    padded    0 a b c d e 0
    windows   0 b d  |  a c e  |  b d 0      tap × position, without a copy; then columns = windows, y = w @ columns
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from atc_py.ops.base import Array, Call
from atc_py.ops.conv_geometry import Ints
from atc_py.ops.window import Window, ints

SMALL = 1 << 19
"""Elements of the columns up to which this way is the faster one: 2 MiB of float32, which stay in the caches."""


@dataclass(frozen=True)
class Windows:
    """A convolution of bound shapes: what is padded, and where the windows' elements lie in it.

    `padded` is [batch, channels, spatial...] as far as windows reach; `inner` is where the input lies in it, `read` the
    part of the input that is read (both None where the input serves as it is). `shape` is [batch, group, tap..., in,
    position...], and `steps` tells its tap and position strides as multiples of the padded array's spatial ones.
    """

    padded: Ints
    inner: tuple[slice, ...] | None
    read: tuple[slice, ...]
    shape: Ints
    tap_steps: Ints
    position_steps: Ints
    columns: Ints
    full: bool

    def view(self, x: Array) -> Array:
        """The windows of `x`, which is `padded` or, where nothing is padded, the input."""
        sample, channel, *axes = x.strides
        width = self.shape[2 + len(axes)]
        taps = [s * a for s, a in zip(self.tap_steps, axes)]
        places = [s * a for s, a in zip(self.position_steps, axes)]
        strides = (sample, width * channel, *taps, channel, *places)
        return np.lib.stride_tricks.as_strided(x, self.shape, strides)


def windows(x: Ints, w: Window, group: int) -> Windows | None:
    """The way for an input of shape `x`; None where it is not worth it. All sizes must be bound."""
    kernel, out, before = ints(w.kernel), ints(w.out), ints(w.before)
    width = x[1] // group
    taps, places = prod(kernel), prod(out)
    count = x[0] * x[1] * taps * places
    if not 0 < count <= SMALL or any(b < 0 for b in before):
        return None
    reach = tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, w.strides, kernel, w.dilations))
    spans = [(b, max(b, min(r, b + n))) for r, b, n in zip(reach, before, x[2:])]
    fits = not any(before) and all(r <= n for r, n in zip(reach, x[2:]))
    whole = (slice(None), slice(None))
    return Windows(
        (*x[:2], *reach),
        None if fits else (*whole, *(slice(a, b) for a, b in spans)),
        (*whole, *(slice(0, b - a) for a, b in spans)),
        (x[0], group, *kernel, width, *out),
        w.dilations,
        w.strides,
        (x[0], group, taps * width, places),
        all(b - a == r for (a, b), r in zip(spans, reach)),
    )


def convolve(call: Call, win: Windows, x: Array, weights: Array, bias: Array | None, y: Array) -> None:
    """Convolve `x` into `y`, both [batch, channels, spatial...]; `weights` [group, out, tap·in] of the sums' type."""
    dtype: np.dtype[Any] = weights.dtype
    used = 0
    if win.inner is not None or x.dtype != dtype:
        padded = call.scratch(win.padded, dtype)
        used = -(-padded.nbytes // 64) * 64
        if win.inner is None:
            np.copyto(padded, x[win.read], casting="unsafe")
        else:
            if not win.full:
                padded.fill(0)
            np.copyto(padded[win.inner], x[win.read], casting="unsafe")
        x = padded
    columns = call.scratch(win.columns, dtype, used)
    np.copyto(columns.reshape(win.shape), win.view(x))
    outs = (win.columns[0], win.columns[1], weights.shape[1], win.columns[3])
    direct = y.dtype == dtype and y.flags.c_contiguous
    target = y.reshape(outs) if direct else np.empty(outs, dtype)
    np.matmul(weights, columns, out=target)
    if bias is not None:
        np.add(target, bias.reshape(outs[1], outs[2], 1), out=target, casting="unsafe")
    if not direct:
        np.copyto(y, target.reshape(y.shape), casting="unsafe")
