"""Geometry of sliding windows, on ints and Dims alike: what convolutions and poolings share.

A 3×3 window of stride 2 over a 7×7 image padded by one pixel on each side:

    w = window(attrs, spatial=(7, 7), kernel=(3, 3))     # strides (2, 2), pads (1, 1, 1, 1)
    w.out     == (4, 4)                                  # (7 + 1 + 1 - 3) // 2 + 1
    w.before  == (1, 1)

`auto_pad` follows ONNX: VALID pads nothing; SAME_UPPER and SAME_LOWER give ceil(input / stride) positions and put the
odd pixel of padding at the end or at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atc_py.ir.dims import Dim, Size, ceildiv, dmax, dmin
from atc_py.ops.base import Attr, InferError, Shape
from atc_py.ops.shapes import assume

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

WINDOW_ATTRS: Mapping[str, Attr] = {
    "auto_pad": Attr("str", "NOTSET"),
    "dilations": Attr("ints", None),
    "pads": Attr("ints", None),
    "strides": Attr("ints", None),
}
"""The attributes that every windowed operator has (beside its kernel_shape)."""


@dataclass(frozen=True)
class Window:
    """A resolved window: everything has one entry a spatial axis. `before` and `after` are the pads in elements."""

    spatial: Shape
    kernel: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: Shape
    after: Shape
    out: Shape

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.spatial)


def per_axis(attrs: Mapping[str, Any], name: str, count: int, default: int) -> tuple[int, ...]:
    """Attribute `name` as `count` ints, `default` where it is absent; raises `InferError` when the count differs."""
    given = attrs.get(name)
    if given is None or len(given) == 0:
        return (default,) * count
    if len(given) != count:
        raise InferError(f"attribute '{name}' has {len(given)} entries; expected {count}")
    return tuple(int(v) for v in given)


def positive(attrs: Mapping[str, Any], name: str, count: int) -> tuple[int, ...]:
    """Like `per_axis` with default 1; every entry must be at least 1."""
    values = per_axis(attrs, name, count, 1)
    if any(v < 1 for v in values):
        raise InferError(f"attribute '{name}' is {list(values)}; every entry must be at least 1")
    return values


def kernel_of(attrs: Mapping[str, Any], weight: Shape | None, rank: int) -> Shape:
    """The spatial kernel size: from the weight's shape, checked against `kernel_shape` where both are known."""
    given = attrs.get("kernel_shape")
    if weight is None:
        if not given:
            raise InferError("the kernel size is unknown: neither kernel_shape nor the weight's shape is given")
        weight = (0, 0, *given)
    kernel = weight[2:]
    if given and len(given) != len(kernel):
        raise InferError(f"kernel_shape has {len(given)} entries; the weight has {len(kernel)} spatial axes")
    if len(kernel) != rank:
        raise InferError(f"the kernel has {len(kernel)} spatial axes; the input has {rank}")
    if given and any(type(k) is int and k != g for k, g in zip(kernel, given)):
        raise InferError(f"kernel_shape is {list(given)}, but the weight's is {[str(k) for k in kernel]}")
    return tuple(given) if given else kernel


def window(attrs: Mapping[str, Any], spatial: Shape, kernel: Shape, *, ceil: bool = False) -> Window:
    """Resolve strides, dilations and padding over an input of the given spatial shape.

    `ceil`: round the number of positions up (pooling's ceil_mode): the last window, which may be the only one, may
    reach beyond the input and its padding; one that would start beyond the input and its padding at the beginning is
    dropped. Raises `InferError` on inconsistent attributes.
    """
    rank = len(spatial)
    if len(kernel) != rank:
        raise InferError(f"kernel_shape has {len(kernel)} entries; the input has {rank} spatial axes")
    strides, dilations = positive(attrs, "strides", rank), positive(attrs, "dilations", rank)
    auto = attrs.get("auto_pad") or "NOTSET"
    if auto not in AUTO_PADS:
        raise InferError(f"auto_pad is '{auto}'; expected one of {', '.join(AUTO_PADS)}")
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations))
    before: Shape
    after: Shape
    out: Shape
    if auto.startswith("SAME"):
        out = tuple(ceildiv(x, s) for x, s in zip(spatial, strides))
        total = [dmax((o - 1) * s + r - x, 0) for o, s, r, x in zip(out, strides, reach, spatial)]
        small = tuple(t // 2 for t in total)
        large = tuple(t - t // 2 for t in total)
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    else:
        pads = per_axis(attrs, "pads", 2 * rank, 0) if auto == "NOTSET" else (0,) * (2 * rank)
        before, after = pads[:rank], pads[rank:]
        least = tuple([r - s + 1 if ceil else r for r, s in zip(reach, strides)])
        for size, first, last, taken, enough in zip(spatial, before, after, reach, least):
            # One element is enough for some windows, and none gives no position of them, as floor has it.
            if ceil or type(taken) is not int or type(first + last) is not int or first + last + 1 < taken:
                what = f"the window of {taken}" if enough == taken else f"{enough} of the window's {taken} elements"
                assume(size + first + last, enough, ">=", f"{what} to fit into {size + first + last}")
        positions = _ceil_positions if ceil else _floor_positions
        out = tuple(positions(*axis) for axis in zip(spatial, before, after, reach, strides))
        _require_fit(spatial, reach, before, after, least)
    return Window(tuple(spatial), tuple(kernel), strides, dilations, tuple(before), tuple(after), out)


def _require_fit(spatial: Shape, reach: Shape, before: Shape, after: Shape, least: Shape) -> None:
    """Raise `InferError` where a padded input has less than a window needs; one without elements may give none."""
    for axis, (size, taken, first, last, enough) in enumerate(zip(spatial, reach, before, after, least)):
        padded = size + first + last
        if type(padded) is int and type(enough) is int and padded < (enough if size else enough - 1):
            raise InferError(
                f"the window reaches over {taken} elements of spatial axis {axis}, whose padded size is {padded}"
            )


def _floor_positions(size: Size, before: Size, after: Size, reach: Size, stride: int) -> Size:
    return (size + before + after - reach) // stride + 1


def _ceil_positions(size: Size, before: Size, after: Size, reach: Size, stride: int) -> Size:
    return dmin(ceildiv(size + before + after - reach, stride) + 1, ceildiv(size + before, stride))


def transposed(attrs: Mapping[str, Any], spatial: Shape, kernel: Shape) -> Window:
    """The window of a transposed convolution; `out` is its output size.

    out = (input - 1) * stride + output_padding + reach - pads. With `output_shape` or SAME padding the pads follow from
    the output size (input * stride for SAME, less where that takes negative pads), the odd one at the end for
    SAME_UPPER and at the beginning otherwise.
    """
    rank = len(spatial)
    strides, dilations = positive(attrs, "strides", rank), positive(attrs, "dilations", rank)
    extra = per_axis(attrs, "output_padding", rank, 0)
    auto = attrs.get("auto_pad") or "NOTSET"
    if auto not in AUTO_PADS:
        raise InferError(f"auto_pad is '{auto}'; expected one of {', '.join(AUTO_PADS)}")
    full = tuple((x - 1) * s + e + (k - 1) * d + 1 for x, s, e, k, d in zip(spatial, strides, extra, kernel, dilations))
    before: Shape
    after: Shape
    out: Shape
    wanted: Sequence[Size] | None = attrs.get("output_shape") or None
    if wanted is not None and len(wanted) not in (rank, rank + 2):
        raise InferError(f"output_shape has {len(wanted)} entries; expected {rank}")
    if wanted is not None or auto.startswith("SAME"):
        target = wanted[-rank:] if wanted is not None else tuple(x * s for x, s in zip(spatial, strides))
        total = [dmax(f - t, 0) for f, t in zip(full, target)]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        out = tuple(target) if wanted is not None else tuple(f - t for f, t in zip(full, total))
    else:
        pads = per_axis(attrs, "pads", 2 * rank, 0) if auto == "NOTSET" else (0,) * (2 * rank)
        before, after = pads[:rank], pads[rank:]
        out = tuple(f - b - a for f, b, a in zip(full, before, after))
    for axis, size in enumerate(out):
        if type(size) is int and size < 0:
            raise InferError(f"the pads take more than the {full[axis]} elements of spatial axis {axis}")
    return Window(tuple(spatial), tuple(kernel), strides, dilations, before, after, out)


def ints(shape: Sequence[Size]) -> tuple[int, ...]:
    """The sizes as plain ints; raises `ValueError` where one is symbolic."""
    if any(isinstance(d, Dim) for d in shape):
        raise ValueError(f"the sizes {[str(d) for d in shape]} are not bound")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]
