"""Regions: which part of each input an operator needs for a part of its output.

    Add(x [8, 64], b [64]),  wanted y[2:4, 16:32]      →   x[2:4, 16:32], b[16:32]
    Conv 3×3, pads 1, wanted y[:, :, 0:4, :] of 16     →   x[:, :, 0:5, :], and the pads become 1 above, 0 below
    Softmax over the last axis, wanted y[2:4, 16:32]   →   x[2:4, :]; the kernel then makes y[2:4, :]

A rule (`Op.tile`) answers for static shapes. Elementwise operators need none: it follows from broadcasting. An operator
that has neither cannot be part of a tile program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from atc_py.ops.base import Array, Op

Region: TypeAlias = "tuple[tuple[int, int], ...]"
"""A box in a tensor: for each dim (start, length)."""
Dims: TypeAlias = "tuple[int, ...]"


class Untileable(Exception):
    """Raised by a rule that has no answer for these attributes or shapes; the text says why."""


@dataclass(slots=True)
class Wanted:
    """What a rule may look at.

    `shapes` of the inputs (None: absent), `attrs` with defaults, `values` of the inputs that are known, `outs` the
    wanted region of each output (None: nobody wants it), `out_shapes` the outputs' whole shapes, `itemsizes` the bytes
    of an element of each input (0: absent). With `anywhere` lengths are asked for: the answer is to be enough for a
    region of the same lengths at every multiple of them, and regions may reach over the borders of tensors.
    """

    shapes: tuple[Dims | None, ...]
    attrs: Mapping[str, Any]
    values: tuple[Array | None, ...]
    outs: tuple[Region | None, ...]
    out_shapes: tuple[Dims, ...]
    itemsizes: tuple[int, ...] = ()
    anywhere: bool = False

    @property
    def out(self) -> Region:
        """The wanted region of output 0, of all of it where only other outputs are wanted."""
        found = self.outs[0]
        return whole(self.out_shapes[0]) if found is None else found

    def all(self, i: int) -> Region | None:
        """The whole of input `i`; None where it is absent."""
        shape = self.shapes[i] if i < len(self.shapes) else None
        return None if shape is None else whole(shape)

    def ints(self, i: int) -> list[int] | None:
        """The known value of input `i` as a list of ints; None where it is absent. Raises `Untileable`: not known."""
        if i >= len(self.shapes) or self.shapes[i] is None:
            return None
        value = self.values[i]
        if value is None:
            raise Untileable(f"the value of input {i} is not known when the task is made")
        return [int(v) for v in value.reshape(-1)]


@dataclass(slots=True)
class Need:
    """What a rule answers.

    `inputs`: the region of each input (None: absent, or nothing of it). `outputs`: what the kernel makes of them, at
    least what was wanted; None: just that. `attrs` and `values` are what the kernel is to be given in place of
    attributes and of inputs. `cube` are the inputs that the cube unit reads, by way of L1. `streamed` are those that
    are read piece by piece, or by index, where they lie in device memory. `workspace` is what the kernel takes of each
    buffer besides, in bytes.
    """

    inputs: tuple[Region | None, ...]
    outputs: tuple[Region | None, ...] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, Array] = field(default_factory=dict)
    cube: tuple[int, ...] = ()
    streamed: tuple[int, ...] = ()
    workspace: Mapping[str, int] = field(default_factory=dict)


def whole(shape: Sequence[int]) -> Region:
    """The region that is all of a tensor."""
    return tuple([(0, d) for d in shape])


def lengths(region: Region) -> Dims:
    """The shape of a region."""
    return tuple([n for _, n in region])


def elements(region: Region | None) -> int:
    """How many elements a region has."""
    if region is None:
        return 0
    count = 1
    for _, n in region:
        count *= n
    return count


def hull(a: Region | None, b: Region) -> Region:
    """The smallest region that holds both."""
    if a is None or a == b:
        return b
    found = []
    for (s, n), (t, m) in zip(a, b, strict=True):
        start = min(s, t)
        found.append((start, max(s + n, t + m) - start))
    return tuple(found)


def holds(outer: Region, inner: Region) -> bool:
    """Whether `inner` lies in `outer`."""
    return all(s <= t and t + m <= s + n for (s, n), (t, m) in zip(outer, inner, strict=True))


def cut(region: Region, origin: Region | None = None) -> tuple[Any, ...]:
    """The index of a region, counted from the start of `origin`; it gives a view, of no dims too."""
    if origin is None:
        return (..., *[slice(s, s + n) for s, n in region])
    return (..., *[slice(s - o, s - o + n) for (s, n), (o, _) in zip(region, origin, strict=True)])


def broadcast_region(out: Region, shape: Dims, out_shape: Dims) -> Region:
    """The part of an operand of `shape` that broadcasts into `out`, a region of a result of `out_shape`."""
    if shape == out_shape:
        return out
    skip = len(out) - len(shape)
    if skip < 0:
        return whole(shape)
    return tuple([r if d == o else (0, d) for d, o, r in zip(shape, out_shape[skip:], out[skip:])])


def elementwise(w: Wanted) -> Need:
    """The rule of operators that map element to element, with broadcasting."""
    first = next(r for r in w.outs if r is not None)
    shape = w.out_shapes[0]
    inputs = tuple(
        [None if s is None else first if s == shape else broadcast_region(first, s, shape) for s in w.shapes]
    )
    return Need(inputs, tuple([first] * len(w.outs)) if len(w.outs) > 1 else None)


def tileable(op: Op) -> bool:
    """Whether the operator can be part of a tile program at all."""
    ruled = op.tile_fn is not None or op.flags.elementwise
    return ruled and not op.flags.random and op.kernel_fn is not None and op.workspace_fn is None


def needed(op: Op, w: Wanted) -> Need:
    """What `op` needs for the wanted regions. Raises `Untileable`."""
    if op.tile_fn is not None:
        return op.tile_fn(w)
    if op.flags.elementwise:
        return elementwise(w)
    raise Untileable(f"{op.name} has no rule for a part of its result")


# -- parts of rules ------------------------------------------------------------------------------------------------


def widened(out: Region, shape: Dims, axes: Sequence[int]) -> Region:
    """The region with all of each of `axes` (counted from the front)."""
    return tuple([(0, shape[i]) if i in axes else r for i, r in enumerate(out)])


def blocks(span: tuple[int, int], size: int, most: int, anywhere: bool = False) -> tuple[int, int]:
    """The smallest span of whole blocks of `size` elements that holds a span, `most` at the end.

    With `anywhere`, a span as long as is needed for any at a multiple of its length.
    """
    start, length = span
    if anywhere and length and size % length and length % size:
        return 0, min(most, (-(-(length - 1) // size) + 1) * size)
    first = start // size * size
    return first, min(most, -(-(start + length) // size) * size) - first


def blocks_nbytes(*dims: int) -> int:
    """The bytes of sums, four each, with the last two of `dims` in blocks of 16: what a product takes of L0C."""
    count = 4
    for i, d in enumerate(dims):
        count *= d if i < len(dims) - 2 else -(-d // 16) * 16
    return count


def along(w: Wanted, axes: Sequence[int]) -> Need:
    """Input and output of one shape, with all of `axes`; further inputs in whole."""
    region = widened(w.out, w.out_shapes[0], axes)
    return Need((region, *(w.all(i) for i in range(1, len(w.shapes)))), (region, *w.outs[1:]))
