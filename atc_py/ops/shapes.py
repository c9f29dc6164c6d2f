"""Shape rules that many operators share, on ints and Dims alike.

broadcast((N, 1, 5), (4, 1))   == (N, 4, 5)
broadcast((N,), (M,))          == (max(N, M),)       # equal, or one of them is 1: the kernel checks
axis(-1, rank=3)               == 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, dmax, prod
from atc_py.ops.base import Infer, InferError, Shape


@dataclass(frozen=True)
class Assumption:
    """What a shape rule takes for granted because it can neither prove nor refute it.

    `relation` of `left` to `right`: `==`, `>=`, or `~` (they broadcast: equal, or one of them 1). `why` says it for
    people where sizes alone would not.
    """

    left: Size
    right: Size
    relation: str
    why: str


_ASSUMED: ContextVar[list[Assumption] | None] = ContextVar("assumed", default=None)


def assume(left: Size, right: Size, relation: str = "==", why: str = "") -> None:
    """Take something for granted. Whoever asks for a node's assumptions (`assumptions`) hears of it."""
    found = _ASSUMED.get()
    if found is not None and (isinstance(left, Dim) or isinstance(right, Dim)) and left != right:
        found.append(Assumption(left, right, relation, why))


@contextmanager
def assumptions() -> Iterator[list[Assumption]]:
    """Collect what the shape rules called inside take for granted."""
    found: list[Assumption] = []
    token = _ASSUMED.set(found)
    try:
        yield found
    finally:
        _ASSUMED.reset(token)


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The multidirectional broadcast of the shapes (ONNX, Broadcasting.md); None when a rank is unknown."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    longest = max(known, key=len, default=())
    if all(s == longest or not s for s in known):  # so it is mostly; a scalar has no dims
        return longest
    rank = len(longest)
    padded = [(1,) * (rank - len(s)) + s for s in known]
    return tuple([_broadcast_dim(dims, known) for dims in zip(*padded)])


def _broadcast_dim(dims: Sequence[Size], shapes: Sequence[Shape]) -> Size:
    if all(type(d) is int for d in dims) and len(set(dims)) == 1:
        return dims[0]
    fixed = {d for d in dims if type(d) is int and d != 1}
    if len(fixed) > 1:
        raise InferError(f"shapes {' and '.join(show(s) for s in shapes)} do not broadcast")
    symbolic = list(dict.fromkeys(d for d in dims if isinstance(d, Dim)))
    if fixed:
        size = fixed.pop()
        for d in symbolic:
            assume(d, size, "~")
        return size
    for d in symbolic[1:]:
        assume(symbolic[0], d, "~")
    return dmax(*symbolic) if symbolic else 1


def show(shape: Shape | None) -> str:
    """A shape as people write it: `[1, 3, H, W]`."""
    return "[?]" if shape is None else "[" + ", ".join(str(d) for d in shape) + "]"


def axis(value: int, rank: int, what: str = "axis") -> int:
    """`value` counted from the front; raises `InferError` when it is outside [-rank, rank)."""
    if not -rank <= value < rank:
        raise InferError(f"{what} {value} is outside [{-rank}, {rank - 1}] for a tensor of rank {rank}")
    return value % rank if rank else 0


def axes(values: Iterable[int], rank: int) -> list[int]:
    """Several axes counted from the front; raises `InferError` on repetition."""
    result = [axis(int(v), rank) for v in values]
    if len(set(result)) != len(result):
        raise InferError(f"axes {result} name one dim twice")
    return result


def concrete(n: Infer, i: int) -> list[int] | None:
    """The known value of input `i` as plain ints, None when it is absent, unknown or symbolic."""
    values = n.ints(i)
    if values is None or any(isinstance(v, Dim) for v in values):
        return None
    return [int(v) for v in values]


def reduced(shape: Shape, over: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing the axes `over` (counted from the front)."""
    if keepdims:
        return tuple(1 if i in over else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in over)


def total(shape: Shape) -> Size:
    """Number of elements."""
    return prod(shape)


def as_objects(values: Sequence[Any], shape: tuple[int, ...] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
    """An array of dtype object holding ints and Dims (numpy would otherwise try to interpret them)."""
    out = np.empty(len(values), dtype=object)
    for i, v in enumerate(values):
        out[i] = v
    return out if shape is None else out.reshape(shape)
