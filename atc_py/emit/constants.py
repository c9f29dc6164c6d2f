"""How a lowered constant is drawn in MODEL_DEF: a `Const` whose bytes exist, and the steps of its recipe.

    Blob float32        Const, bytes at data_offset of WEIGHTS_DATA (or inside the message when they are few)
    Splat 1000×1000     Const of one element ─ Fill
    Blob uint4 [64]     Const uint8 [32], the packed bytes ─ Unpack
    Derived             the Consts of its inputs ─ Cast, Transpose, …
    DimVec [N, 3]       SymbolicShape, which has no input

A reader of the file (Netron) checks that a Const's dtype, shape and bytes agree, so whatever is not plain bytes is
drawn as operations. These nodes carry `_no_task`: the device runs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat
from atc_py.ir.dims import Size
from atc_py.ir.types import DType, Tensor

_PLAIN = frozenset({d for d in DType if d.bits >= 8} | {DType.INT4, DType.INT2, DType.UINT2})
"""Types of which other readers know the bytes, packed ones included."""


@dataclass(slots=True)
class Raw:
    """A `Const` node: its type, and its bytes either in the message or at an offset of WEIGHTS_DATA."""

    name: str
    type: Tensor
    inline: bytes | None
    offset: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Step:
    """A `_no_task` node that makes `type` of the named inputs ("name:index")."""

    name: str
    op: str
    inputs: tuple[tuple[str, Tensor], ...]
    type: Tensor
    attrs: Mapping[str, Any] = field(default_factory=dict)


def draw(name: str, constant: Constant, locate: Callable[[Blob], int | None]) -> list[Raw | Step]:
    """The nodes for a constant, the last one named `name`. `locate` gives a Blob's offset in WEIGHTS_DATA or None."""
    if isinstance(constant, Blob):
        return _draw_blob(name, constant, locate(constant))
    type_ = Tensor(constant.dtype, constant.shape)
    if isinstance(constant, Splat):
        element = np.array(constant.value, constant.dtype.numpy) if constant.dtype is not DType.STRING else None
        raw = constant.value.encode() if element is None else element.tobytes()
        dtype = DType.UINT8 if element is None or constant.dtype.bits < 8 else constant.dtype
        source = Raw(f"{name}.value", Tensor(dtype, (len(raw) // dtype.itemsize,)), raw, nbytes=len(raw))
        return [source, Step(name, "Fill", ((f"{source.name}:0", source.type),), type_)]
    if isinstance(constant, DimVec):
        return [Step(name, "SymbolicShape", (), type_, {"dims": [str(e) for e in constant.elements]})]
    return _draw_derived(name, constant, locate)


def _draw_blob(name: str, blob: Blob, offset: int | None) -> list[Raw | Step]:
    type_ = _type(blob.dtype, blob.shape)
    if blob.dtype in _PLAIN or not blob.nbytes:
        return [_raw(name, type_, blob, offset)]
    source = _raw(f"{name}.bytes", Tensor(DType.UINT8, (blob.nbytes,)), blob, offset)
    op = "DecodeStrings" if blob.dtype is DType.STRING else "Unpack"
    return [source, Step(name, op, ((f"{source.name}:0", source.type),), type_)]


@lru_cache(maxsize=1 << 12)
def _type(dtype: DType, shape: tuple[Size, ...]) -> Tensor:
    """A model's constants have few types."""
    return Tensor(dtype, shape)


def _raw(name: str, type_: Tensor, blob: Blob, offset: int | None) -> Raw:
    if offset is None:
        return Raw(name, type_, bytes(blob.data), nbytes=blob.nbytes)
    return Raw(name, type_, None, offset, blob.nbytes)


def _draw_derived(name: str, constant: Derived, locate: Callable[[Blob], int | None]) -> list[Raw | Step]:
    nodes: list[Raw | Step] = []
    pending: list[tuple[str, Derived, bool]] = [(name, constant, False)]
    while pending:
        label, recipe, ready = pending.pop()
        names = [f"{label}.{i}" for i in range(len(recipe.inputs))]
        if ready:
            inputs = [(f"{n}:0", _type(c.dtype, c.shape)) for n, c in zip(names, recipe.inputs, strict=True)]
            made = _type(recipe.dtype, recipe.shape)
            nodes.append(Step(label, recipe.op, tuple(inputs), made, recipe.attrs))
            continue
        pending.append((label, recipe, True))
        for inner, source in zip(names, recipe.inputs, strict=True):
            if isinstance(source, Derived):
                pending.append((inner, source, False))
            else:
                nodes += draw(inner, source, locate)
    return nodes
