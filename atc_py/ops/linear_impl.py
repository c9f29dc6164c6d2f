"""Matrix products of any dtype into a given view.

float16 and bfloat16 are multiplied as float32 and rounded once; integers wrap as in C. A batch of matrices times one
matrix is a single product of [batch·rows, inner] where the left side lies in one piece:

    [8, 128, 512] @ [512, 64]   →   [1024, 512] @ [512, 64]
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from atc_py.ops.base import Array, Call


def narrow_float(dtype: np.dtype[Any]) -> bool:
    """Whether sums over this type must be taken in float32: float16, bfloat16 and narrower floats."""
    if dtype.isbuiltin == 1:
        return dtype.char == "e"
    return bool(dtype == np.float16) or (dtype.kind == "V" and dtype.itemsize <= 2) or dtype.name == "bfloat16"


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which products of `dtype` are summed: float32 for narrow floats, else the type itself."""
    return np.dtype(np.float32) if narrow_float(dtype) else dtype


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of numpy's matmul of two bound shapes."""
    left, right = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    return (*batch, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))


def matmul(call: Call, a: Array, b: Array) -> Array:
    """a @ b (numpy's rules for ranks and broadcasting) in the output's view."""
    dtype = a.dtype
    wide = compute_dtype(dtype)
    y = call.into(0, matmul_shape(a.shape, b.shape), dtype)
    if y.size == 0:
        return y
    if a.dtype != wide:
        a = a.astype(wide)
    if b.dtype != wide:
        b = b.astype(wide)
    if wide.kind in "iu":
        a, b = _exact(a, b)
    target = y if y.dtype == a.dtype and y.flags.c_contiguous else np.empty(y.shape, a.dtype)
    if a.ndim == 1 and b.ndim == 1:
        target[...] = np.dot(a, b)
    elif b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        np.matmul(a.reshape(prod(a.shape[:-1]), a.shape[-1]), b, out=target.reshape(-1, b.shape[1]))
    else:
        np.matmul(a, b, out=target)
    if target is not y:
        np.copyto(y, target, casting="unsafe")
    return y


def _exact(a: Array, b: Array) -> tuple[Array, Array]:
    """Integer operands as float64 where no partial sum can reach 2**53: numpy has fast products for floats only."""
    if a.size == 0 or b.size == 0 or a.shape[-1] * b.shape[-1] < 64:
        return a, b
    largest = max(abs(int(a.max())), abs(int(a.min()))) * max(abs(int(b.max())), abs(int(b.min())))
    if largest * a.shape[-1] >= min(1 << 53, np.iinfo(a.dtype).max):
        return a, b
    return a.astype(np.float64), b.astype(np.float64)


def add_scaled(y: Array, c: Array, beta: float) -> None:
    """y += beta · c, c broadcast to y; nothing for beta 0."""
    if beta == 1:
        np.add(y, c, out=y, casting="unsafe")
    elif beta:
        np.add(y, c * y.dtype.type(beta), out=y, casting="unsafe")
