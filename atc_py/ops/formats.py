"""Storage formats: packing arrays, `TransData` between formats, and `Relayout`, the recipe of a packed constant.

    x: float16 [1, 20, 5, 5] ─ TransData ─ y: float16 [1, 20, 5, 5] as NC1HWC0      stored as [1, 2, 5, 5, 16]
    w: float32 [768, 3072], Relayout(w) to FRACTAL_NZ                               stored as [192, 48, 16, 16]

Kernels see what tensors mean, so to a kernel TransData is a copy (with a cast, or with a transposition, where one was
merged into it); the simulator packs its result. Relayout is different: it makes the stored array of a constant, which
is how a packed weight is derived from the bytes in the file. The formulas are GE's (`pack`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ir.constants import Constant, Derived
from atc_py.ir.types import BLOCKED, CUBE_ROWS, DType, Format, Tensor, lanes, storage_shape
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, declare
from atc_py.ops.cast import cast
from atc_py.ops.move_costs import transposed

RELAYOUT = "Relayout"
"""The operator of a packed constant's recipe."""
TRANS_DATA = "TransData"

# -- arrays ------------------------------------------------------------------------------------------------------


def stored_shape(array: Array, fmt: Format) -> tuple[int, ...]:
    """The shape in which the array is stored; raises `ValueError` for a rank that the format does not have."""
    return tuple(d for d in storage_shape(array.shape, DType.of(array.dtype), fmt) if type(d) is int)


def pack(x: Array, fmt: Format, out: Array | None = None) -> Array:
    """The stored array of what `x` means, padding lanes zero; written to `out`, which may have another float dtype.

    NC1HWC0: [N, C1, H, W, C0]. FRACTAL_Z of a weight [N, C, H, W]: [C1·H·W, N1, N0, C0]. FRACTAL_NZ of [..., H, W]:
    [..., W1, H1, H0, W0]. NHWC: [N, H, W, C]. Any other format is the array itself.
    """
    to = np.empty(stored_shape(x, fmt), x.dtype) if out is None else out
    if fmt is Format.NC1HWC0:
        _pack_channels(x, to)
    elif fmt is Format.FRACTAL_Z:
        _, c, h, w = x.shape
        blocks, c0 = to.shape[1], to.shape[3]
        c1 = -(-c // c0)
        padded = _padded(x, (blocks * CUBE_ROWS, c1 * c0, h, w))
        split = padded.reshape(blocks, CUBE_ROWS, c1, c0, h, w).transpose(2, 4, 5, 0, 1, 3)
        to.reshape(split.shape)[...] = split
    elif fmt is Format.FRACTAL_NZ:
        *batch, w1, h1, rows, c0 = to.shape
        padded = _padded(x, (*batch, h1 * rows, w1 * c0))
        to[...] = np.moveaxis(padded.reshape(*batch, h1, rows, w1, c0), -2, -4)
    else:
        np.copyto(to, np.moveaxis(x, 1, -1) if fmt is Format.NHWC else x, casting="unsafe")
    return to


def _pack_channels(x: Array, to: Array) -> None:
    n, c, h, w = x.shape
    c0 = to.shape[4]
    full, rest = divmod(c, c0)
    whole = x[:, : full * c0].reshape(n, full, c0, h, w)
    np.copyto(to[:, :full], whole.transpose(0, 1, 3, 4, 2), casting="unsafe")
    if rest:
        np.copyto(to[:, full, :, :, :rest], x[:, full * c0 :].transpose(0, 2, 3, 1), casting="unsafe")
        to[:, full, :, :, rest:] = 0


def _padded(x: Array, shape: tuple[int, ...]) -> Array:
    if x.shape == shape:
        return x
    wide = np.zeros(shape, x.dtype)
    wide[tuple(slice(d) for d in x.shape)] = x
    return wide


def unpack(stored: Array, fmt: Format, shape: tuple[int, ...], out: Array | None = None) -> Array:
    """The inverse of `pack`: what the stored array means, in `shape`; written to `out` where that is given."""
    to = np.empty(shape, stored.dtype) if out is None else out
    if fmt is Format.NC1HWC0:
        _unpack_channels(stored, to)
    elif fmt is Format.FRACTAL_Z:
        (n, c, h, w), c0 = shape, stored.shape[3]
        c1, n1 = -(-c // c0), stored.shape[1]
        split = stored.reshape(c1, h, w, n1, CUBE_ROWS, c0).transpose(3, 4, 0, 5, 1, 2)
        to[...] = split.reshape(n1 * CUBE_ROWS, c1 * c0, h, w)[:n, :c]
    elif fmt is Format.FRACTAL_NZ:
        *batch, w1, h1, rows, c0 = stored.shape
        split = np.moveaxis(stored, -4, -2)
        to[...] = split.reshape(*batch, h1 * rows, w1 * c0)[..., : shape[-2], : shape[-1]]
    else:
        np.copyto(to, np.moveaxis(stored, -1, 1) if fmt is Format.NHWC else stored, casting="unsafe")
    return to


def _unpack_channels(stored: Array, to: Array) -> None:
    c = to.shape[1]
    full, rest = divmod(c, stored.shape[4])
    source = stored[:, :full].transpose(0, 1, 4, 2, 3)
    whole = to[:, : c - rest]
    if whole.flags.c_contiguous or not rest:
        np.copyto(whole.reshape(source.shape), source, casting="unsafe")
    else:
        whole[...] = source.reshape(whole.shape)
    if rest:
        np.copyto(to[:, c - rest :], stored[:, full, :, :, :rest].transpose(0, 3, 1, 2), casting="unsafe")


def clear_padding(stored: Array, fmt: Format, shape: tuple[int, ...]) -> None:
    """Put zeros into the padding lanes of an NC1HWC0 array that means a tensor of `shape`."""
    rest = shape[1] % stored.shape[-1] if fmt is Format.NC1HWC0 else 0
    if rest:
        stored[:, -1, :, :, rest:] = 0


# -- constants ---------------------------------------------------------------------------------------------------


def packed(constant: Constant, fmt: Format) -> Derived:
    """The recipe of a constant stored in a format; its shape is that of the stored array."""
    shape = storage_shape(constant.shape, constant.dtype, fmt)
    return Derived(
        constant.dtype, tuple(d for d in shape if type(d) is int), RELAYOUT, (constant,), {"format": fmt.value}
    )


def meant(constant: Constant) -> Constant:
    """What a constant means: where it is the re-layout of another one, that one."""
    return constant.inputs[0] if isinstance(constant, Derived) and constant.op == RELAYOUT else constant


# -- operators ---------------------------------------------------------------------------------------------------

relayout = declare(RELAYOUT, inputs="X", outputs="Y", attrs={"format": Attr("str")}, flags=Flags(fp16_safe=True))


@relayout.infer
def _(n: Infer) -> Result:
    t, fmt = n.tensor(0), _format(n.attrs["format"])
    try:
        return Tensor(t.dtype, storage_shape(t.dims, t.dtype, fmt))
    except ValueError as e:
        raise InferError(f"a tensor of rank {t.rank} cannot be stored as {fmt.value}") from e


@relayout.kernel
def _(call: Call, x: Array) -> Array:
    return pack(x, _format(call.attrs["format"]), call.out(0))


trans_data = declare(
    TRANS_DATA,
    inputs="X",
    outputs="Y",
    attrs={
        "src_format": Attr("str"),
        "dst_format": Attr("str"),
        "to": Attr("dtype", None),
        "perm": Attr("ints", None),
        "saturate": Attr("int", 1),
        "round_mode": Attr("str", "up"),
    },
    flags=Flags(fp16_safe=True),
)


def _format(name: str) -> Format:
    try:
        return Format(name)
    except ValueError:
        known = ", ".join(f.value for f in Format)
        raise InferError(f"there is no format '{name}'", f"the formats are {known}") from None


@trans_data.infer
def _(n: Infer) -> Result:
    t, perm = n.tensor(0), n.attrs["perm"]
    dtype, fmt = n.attrs["to"] or t.dtype, _format(n.attrs["dst_format"])
    storage = fmt if fmt in BLOCKED else None
    shape = t.shape
    if shape is not None and perm is not None:
        if sorted(perm) != list(range(len(shape))):
            raise InferError(f"perm {list(perm)} does not order {len(shape)} axes")
        shape = tuple(shape[i] for i in perm)
    return Tensor(dtype, shape, Format.NCHW if storage is Format.NC1HWC0 else Format.ND, storage)


@trans_data.cost
def _(n: Infer) -> Cost:
    """Every element passes the vector unit; what lies together is a block of channels."""
    t = n.tensor(0)
    if t.shape is None:
        return Cost()
    blocked = {n.attrs["src_format"], n.attrs["dst_format"]} & {f.value for f in BLOCKED}
    if not blocked:
        return transposed(t.shape, n.attrs["perm"] or tuple(range(len(t.shape))))
    return Cost(vector=t.elements, run=lanes(n.attrs["to"] or t.dtype))


@trans_data.kernel
def _(call: Call, x: Array) -> Any:
    perm, to = call.attrs["perm"], call.attrs["to"]
    turned = x if perm is None else x.transpose(perm)
    if to is not None and to.numpy != x.dtype:
        assert cast.kernel_fn is not None
        return cast.kernel_fn(call, turned)
    out = call.into(0, turned.shape, x.dtype)
    np.copyto(out, turned)
    return out
