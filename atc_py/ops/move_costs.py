"""Costs of operators that only move data: no arithmetic, but pieces of a certain length.

Transpose [8, 128, 12, 64] by (0, 2, 1, 3)      runs of 64 elements
Transpose [128, 768] by (1, 0)                  runs of 1
Concat of [N, 32, H, W] and [N, 16, H, W] on 1  runs of 16·H·W, the shorter of the two
Slice [1, 128, 768] to [1, 1, 768]              reads 768 elements, which lie together
"""

from __future__ import annotations

from collections.abc import Sequence

from atc_py.ir.dims import Size, dmin, prod
from atc_py.ops.base import Cost, Shape


def transposed(shape: Shape, perm: Sequence[int]) -> Cost:
    """The cost of a transposition: what lies together is the trailing axes that stay."""
    kept = len(perm)
    while kept and perm[kept - 1] == kept - 1:
        kept -= 1
    moved = [a for a in perm[:kept] if shape[a] != 1]
    if moved == sorted(moved):  # only axes of one element change places
        return Cost()
    return Cost(run=prod(shape[kept:]))


def joined_along(shapes: Sequence[Shape], axis: int) -> Cost:
    """The cost of laying tensors one after the other along an axis, or of cutting one into them."""
    if not shapes or all(d == 1 for d in shapes[0][:axis]):
        return Cost()
    runs = [prod(s[axis:]) for s in shapes]
    return Cost(run=runs[0] if len(runs) == 1 else dmin(*runs))


def cut_out(shape: Shape, part: Shape) -> Cost:
    """The cost of reading a part of a tensor, or of writing it: trailing axes that are whole lie together."""
    kept = len(shape)
    while kept and shape[kept - 1] == part[kept - 1]:
        kept -= 1
    run: Size = prod(part[max(0, kept - 1) :])
    return Cost(run=run if any(d != 1 for d in part[: max(0, kept - 1)]) else 0, reads={0: prod(part)})


def picked(count: Size, run: Size) -> Cost:
    """The cost of reading `count` pieces of `run` elements each from input 0."""
    return Cost(run=run, reads={0: count * run})
