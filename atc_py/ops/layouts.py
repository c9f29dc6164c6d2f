"""Rules of layout that operators share: which operands lie in blocks of channels, and when.

    Conv(x: [1, 64, 56, 56], w, b)                Layout(maps=(0,), needs=True, weights={1: FRACTAL_Z})
    Add(x: [1, 64, 56, 56], [64, 1, 1])           Layout(maps=(0,)): the constant stays as it is
    Mul(x: [1, 64, 56, 56], g: [1, 64, 1, 1])     Layout(maps=(0, 1))
    Concat of 64 and 24 channels                  Layout(maps=(0, 1)); of 24 and 64: None, for 24 ends inside a block
    MatMul(x: [128, 768], w: [768, 3072])         Layout(weights={1: FRACTAL_NZ})

A feature map has rank 4, a known number of channels and elements of one to four bytes. An operator says what it takes
beside its declaration: `conv.layout(feature_maps(0, needs=True))`; for elementwise ones that are layout-agnostic by
their flags it follows from broadcasting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atc_py.ir.types import DType, Format, Tensor, Type, lanes
from atc_py.ops.base import Array, Infer, Layout, LayoutFn, Op

CHANNELS = 1
"""The axis of the channels."""


_ELEMENTS = frozenset(d for d in DType if d.bits in (8, 16, 32) and not d.is_complex)


def is_map(type_: Type | None) -> bool:
    """Whether a value may lie in blocks of channels."""
    if not isinstance(type_, Tensor) or type_.shape is None or len(type_.shape) != 4:
        return False
    width = type_.shape[CHANNELS]
    return type(width) is int and width > 0 and type_.dtype in _ELEMENTS


def layout_of(
    op: Op,
    attrs: Mapping[str, Any],
    types: Sequence[Type | None],
    outs: Sequence[Type],
    values: Sequence[Array | None],
) -> Layout | None:
    """What one call of the operator takes; None: every operand as it is meant. `values` as far as they are known."""
    if op.layout_fn is not None:
        return op.layout_fn(Infer(tuple(types), op.attributes(attrs), len(outs), values), outs)
    flags = op.flags
    follows = flags.elementwise and flags.layout_agnostic and not (flags.alias or flags.random)
    return elementwise(types, outs) if follows else None


def elementwise(types: Sequence[Type | None], outs: Sequence[Type]) -> Layout | None:
    """Operands with the result's channels lie as it does; what repeats along the channels stays plain."""
    if not outs or not is_map(outs[0]):
        return None
    width = _channels(outs[0])
    if len(outs) > 1 and not all(is_map(t) and _channels(t) == width for t in outs):
        return None
    maps = tuple([i for i, t in enumerate(types) if is_map(t) and _channels(t) == width])
    return Layout(maps) if maps else None


def feature_maps(
    *maps: int, needs: bool = False, weights: Mapping[int, Format] | None = None, groups: str = "", outputs: int = 0
) -> LayoutFn:
    """The rule of operators over feature maps: inputs `maps` and all outputs.

    `outputs`: with more of them than so many (0: any number) there are only plain ones. `groups` names an attribute:
    the weights' formats hold where it is 1 (GE packs grouped weights in a sub-format).
    """
    given = dict(weights or {})

    def rule(n: Infer, outs: Sequence[Type]) -> Layout | None:
        if not _all_maps(n, maps, outs) or (outputs and len(outs) > outputs):
            return None
        return Layout(maps, needs, {} if groups and n.attrs[groups] != 1 else given)

    return rule


def right_operand(position: int) -> LayoutFn:
    """The rule of matrix products: a constant right operand in fractals, activations plain."""
    layout = Layout(weights={position: Format.FRACTAL_NZ})
    return lambda n, outs: layout


def joins(first: int = 0, step: int = 1) -> LayoutFn:
    """Concat of every `step`-th input from `first`: along the channels each part but the last one fills its blocks."""

    def rule(n: Infer, outs: Sequence[Type]) -> Layout | None:
        maps = tuple(range(first, len(n.types), step))
        if not _all_maps(n, maps, outs):
            return None
        whole = all(_fills(n.types[i]) for i in maps[:-1])
        return Layout(maps) if whole or _axis(n) != CHANNELS else None

    return rule


def splits(n: Infer, outs: Sequence[Type]) -> Layout | None:
    """Split: along the channels each part but the last one fills its blocks."""
    if not _all_maps(n, (0,), outs):
        return None
    return None if _axis(n) == CHANNELS and not all(map(_fills, outs[:-1])) else Layout((0,))


def slices(n: Infer, outs: Sequence[Type]) -> Layout | None:
    """Slice: along the channels from the beginning of a block, in steps of one."""
    if not _all_maps(n, (0,), outs):
        return None
    starts = n.ints(1)
    axes, steps = n.ints(3) if n.has(3) else range(4), n.ints(4) if n.has(4) else [1] * 4
    if starts is None or axes is None or steps is None:
        return None
    cut = [(s, step) for s, a, step in zip(starts, axes, steps) if a % 4 == CHANNELS]
    if _channels(n.types[0]) != _channels(outs[0]) and any(
        step != 1 or type(s) is not int or s % lanes(n.dtype(0)) for s, step in cut
    ):
        return None
    return None if any(step != 1 for _, step in cut) else Layout((0,))


def pads(n: Infer, outs: Sequence[Type]) -> Layout | None:
    """Pad: along the channels only where whole blocks are put before whole blocks."""
    if not _all_maps(n, (0,), outs):
        return None
    if _channels(n.types[0]) == _channels(outs[0]):
        return Layout((0,))
    axes, amounts = n.ints(3) if n.has(3) else [0, 1, 2, 3], n.ints(1)
    if axes is None or amounts is None or not _fills(n.types[0]):
        return None
    before = dict(zip((a % 4 for a in axes), amounts)).get(CHANNELS, 0)
    return Layout((0,)) if type(before) is int and before % lanes(n.dtype(0)) == 0 else None


def reduces(n: Infer, outs: Sequence[Type]) -> Layout | None:
    """Reductions: along the channels only where no lane is padding; over all pixels also into [N, C]."""
    axes = n.ints(1) if n.has(1) else None
    if not n.types or not is_map(n.types[0]) or (n.has(1) and axes is None):
        return None
    over = {a % 4 for a in axes} if axes else set() if n.attrs.get("noop_with_empty_axes") else {0, 1, 2, 3}
    if not all(map(is_map, outs)):
        return Layout((0,), makes_maps=False) if over == {2, 3} else None
    return None if CHANNELS in over and not _fills(n.types[0]) else Layout((0,))


def _all_maps(n: Infer, maps: Sequence[int], outs: Sequence[Type]) -> bool:
    return all(i < len(n.types) and is_map(n.types[i]) for i in maps) and all(map(is_map, outs))


def _channels(type_: Type | None) -> int:
    assert isinstance(type_, Tensor) and type_.shape is not None
    found = type_.shape[CHANNELS]
    return found if type(found) is int else -1


def _fills(type_: Type | None) -> bool:
    """Whether the map's channels fill whole blocks."""
    dtype = type_.dtype if isinstance(type_, Tensor) else DType.FLOAT16
    return _channels(type_) % lanes(dtype) == 0


def _axis(n: Infer) -> int:
    return int(n.attrs["axis"]) % 4
