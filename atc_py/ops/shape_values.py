"""Helpers of the shape-like families: known values as arrays of ints and Dims, Reshape's target, constants.

vector([N, 3, 4])      object array [N, 3, 4]
vector([2, 3, 4])      int64 array [2, 3, 4]
inferred_target([N, S, 768], [0, -1, 12, 64])  ==  [N, S, 12, 64]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as int_prod
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Splat, blob_array, splat_array
from atc_py.ir.dims import Dim, Size, bounds, prod
from atc_py.ops.base import Array, Infer, InferError, Shape
from atc_py.ops.shapes import as_objects, show

LIMIT = 1024
"""Elements of the largest value that is propagated."""
FAR = 2**31 - 1
"""From here on (in either direction) a bound of Slice means the end of the axis."""


def vector(items: Sequence[Any], shape: tuple[int, ...] | None = None) -> Array:
    """Ints and Dims as an array: int64 when all are ints, dtype object otherwise."""
    if any(isinstance(x, Dim) for x in items):
        return as_objects(items, shape)
    out = np.array([int(x) for x in items], dtype=np.int64)
    return out if shape is None else out.reshape(shape)


def tidy(array: Array) -> Array:
    """`array`, as int64 when it is an object array without any Dim."""
    if array.dtype != object:
        return array
    return vector(list(array.reshape(-1)), array.shape)


def plain(shape: Sequence[Any] | None) -> tuple[int, ...] | None:
    """The shape as ints, None when a dim is symbolic or the rank is unknown."""
    if shape is None or any(isinstance(d, Dim) for d in shape):
        return None
    return tuple(int(d) for d in shape)


def small(shape: Sequence[Any] | None) -> tuple[int, ...] | None:
    """The shape as ints when it is known and not larger than what value propagation carries."""
    ints = plain(shape)
    return ints if ints is not None and 0 <= int_prod(ints) <= LIMIT else None


def known(n: Infer, *inputs: int) -> list[Array] | None:
    """The values of the inputs, None when one of them is unknown or too large to propagate."""
    values = [n.value(i) for i in inputs]
    if any(v is None or v.size > LIMIT for v in values):
        return None
    return [v for v in values if v is not None]


def length(n: Infer, i: int) -> int | None:
    """The number of elements of the rank-1 input `i`, None when it is unknown."""
    value = n.value(i)
    if value is not None:
        return int(value.size)
    shape = plain(n.shape(i))
    return None if shape is None else int_prod(shape)


def fresh_shape(n: Infer, rank: int | None, why: str) -> Shape | None:
    """A shape of `rank` fresh dims, None when the rank is unknown. `why` and the axis name the symbols."""
    return None if rank is None else tuple(n.fresh(f"{why}{i}") for i in range(rank))


def nonnegative(d: Any) -> bool:
    """Whether the int or Dim is known never to be negative."""
    low = bounds(d)[0] if isinstance(d, Dim) else int(d)
    return low is not None and low >= 0


def negative(d: Any) -> bool:
    """Whether the int or Dim is known to be negative always."""
    high = bounds(d)[1] if isinstance(d, Dim) else int(d)
    return high is not None and high < 0


def scalar(n: Infer, i: int) -> Any | None:
    """The known value of a one-element input: an int, float or Dim; None when it is absent or unknown."""
    value = n.value(i)
    if value is None:
        return None
    if value.size != 1:
        raise InferError(f"input {i} must have one element, but has {value.size}")
    item = value.reshape(-1)[0]
    return item.item() if isinstance(item, np.generic) else item


def same_memory(a: Array, b: Array) -> bool:
    """Whether two arrays are the same view: nothing to copy."""
    return (
        a.shape == b.shape
        and a.strides == b.strides
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def boxed(item: Any) -> Array:
    """The item as an array: indexing an object array down to one element gives the bare element."""
    if isinstance(item, np.ndarray):
        return item
    if isinstance(item, np.generic):
        return np.asarray(item)
    out = np.empty((), dtype=object)
    out[()] = item
    return out


def constant_array(constant: Any) -> Array:
    """The array of a tensor attribute (a constant of the IR, or an array already)."""
    if isinstance(constant, Blob):
        return blob_array(constant)
    if isinstance(constant, Splat):
        return splat_array(constant)
    return np.asarray(constant)


def inferred_target(shape: Shape | None, target: Sequence[Any], allowzero: bool) -> list[Any] | None:
    """The shape that Reshape makes of `shape`: 0 copies a dim (unless `allowzero`), -1 takes what is left.

    Dims that cannot be told because `shape` is unknown come back as None. Raises `InferError` when the target
    does not fit.
    """
    out: list[Any] = []
    for i, d in enumerate(target):
        if not isinstance(d, Dim) and d == 0 and not allowzero:
            if shape is not None and i >= len(shape):
                raise InferError(f"dim {i} of the target copies a dim that shape {show(shape)} does not have")
            out.append(None if shape is None else shape[i])
        else:
            out.append(d if isinstance(d, Dim) else int(d))
    free = [i for i, d in enumerate(out) if type(d) is int and d < 0]
    if len(free) > 1 or any(out[i] != -1 for i in free):
        raise InferError(f"the target shape {list(target)} may have one -1 and no other negative size")
    if shape is None:
        return [None if i in free else d for i, d in enumerate(out)]
    count = prod(shape)
    if free:
        out[free[0]] = 1
        out[free[0]] = _left_over(shape, out, show(tuple(target)))
    elif type(count) is int and plain(out) is not None and prod(tuple(out)) != count:
        raise InferError(f"shape {show(shape)} has {count} elements, the target {show(tuple(target))} has {prod(out)}")
    return out


def _left_over(shape: Shape, taken: Sequence[Size], target: str) -> Size:
    """prod(shape) / prod(taken), dims that occur in both cancelled first so that symbols divide exactly."""
    have, want = list(shape), list(taken)
    for d in list(want):
        if d in have:
            have.remove(d)
            want.remove(d)
    count, rest = prod(tuple(have)), prod(tuple(want))
    if type(rest) is int and rest == 0:
        if type(count) is int and count == 0:
            return 0
        raise InferError(f"shape {show(shape)} does not fit the target {target}")
    if type(count) is int and type(rest) is int and count % rest:
        raise InferError(f"the elements of shape {show(shape)} cannot be divided to fit the target {target}")
    return count // rest
