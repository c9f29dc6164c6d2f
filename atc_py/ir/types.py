"""The types of values: dtypes, formats, tensors, sequences, optionals and maps.

A tensor's `shape` and `format` are what the model means (GE: origin shape and format); `storage` is the format in
which its bytes lie, and `storage_shape` follows from the three. For an activation of 1×20×5×5 float16 stored as
NC1HWC0 (C0 = 16 lanes):

    Tensor(DType.FLOAT16, (1, 20, 5, 5), Format.NCHW, Format.NC1HWC0).storage_shape == (1, 2, 5, 5, 16)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from atc_py.ir.dims import Size, ceildiv, prod


class DType(enum.Enum):
    """Element types. The value is the name used in text forms; `bits` is the packed width of one element."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0 = "float8_e8m0fnu"
    FLOAT6_E2M3 = "float6_e2m3fn"
    FLOAT6_E3M2 = "float6_e3m2fn"
    FLOAT4_E2M1 = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"

    @cached_property
    def bits(self) -> int:
        """Width of one element in bits when packed (0 for strings, whose width is not fixed)."""
        return _BITS[self]

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element in device memory; types below eight bits take a byte each (0 for strings)."""
        return -(-self.bits // 8)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype that kernels see; imports ml_dtypes only for the types that need it."""
        if self is DType.STRING:
            return np.dtype(object)
        if self in _ML:
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.value))
        else:
            found = np.dtype(self.value)
        return found

    @cached_property
    def is_float(self) -> bool:
        """Real floating point of any width."""
        return self.value.startswith(("float", "bfloat"))

    @cached_property
    def is_int(self) -> bool:
        """Signed or unsigned integer (not bool)."""
        return self.value.startswith(("int", "uint"))

    @cached_property
    def is_signed_int(self) -> bool:
        """Signed integer."""
        return self.value.startswith("int")

    @cached_property
    def is_complex(self) -> bool:
        """Complex of either width."""
        return self.value.startswith("complex")

    @classmethod
    def of(cls, dtype: np.dtype[Any] | type) -> DType:
        """The `DType` of a numpy dtype; raises `ValueError` for one that has none."""
        return _of(dtype)

    __hash__ = object.__hash__  # there is one object for each: Enum would hash its name, in Python

    def __repr__(self) -> str:
        return self.value


@lru_cache(1 << 8)
def _of(dtype: np.dtype[Any] | type) -> DType:
    name = np.dtype(dtype).name
    if name in ("object", "str") or name.startswith("str"):
        return DType.STRING
    return DType(name)


_BITS = {d: int("".join(c for c in d.value.split("_")[0] if c.isdigit()) or 0) for d in DType} | {DType.BOOL: 8}
_ML = frozenset(
    {DType.BFLOAT16, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.FLOAT4_E2M1}
    | {d for d in DType if d.value.startswith(("float8", "float6_"))}
)


class Format(enum.Enum):
    """Memory formats, named as GE names them."""

    ND = "ND"
    NCHW = "NCHW"
    NHWC = "NHWC"
    NC1HWC0 = "NC1HWC0"
    FRACTAL_Z = "FRACTAL_Z"
    FRACTAL_NZ = "FRACTAL_NZ"

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.value


BLOCKED = frozenset({Format.NC1HWC0, Format.FRACTAL_Z, Format.FRACTAL_NZ})
CUBE_ROWS = 16
"""Rows of one block of the cube unit (GE: N0, M0)."""


def lanes(dtype: DType) -> int:
    """C0: channels of one block; 32 for 8-bit types, 16 for wider ones."""
    return 32 if dtype.itemsize == 1 else 16


def storage_shape(shape: tuple[Size, ...], dtype: DType, fmt: Format) -> tuple[Size, ...]:
    """The shape of the stored array of a tensor whose meant shape is `shape` (NCHW order where blocked by channel).

    NC1HWC0 and FRACTAL_Z take rank 4 (FRACTAL_Z: a convolution's weight, [C1·H·W, N1, N0, C0]); FRACTAL_NZ takes
    rank 2 and more: [..., W1, H1, H0, W0].
    """
    c0 = lanes(dtype)
    if fmt is Format.NC1HWC0:
        n, c, h, w = shape
        return (n, ceildiv(c, c0), h, w, c0)
    if fmt is Format.FRACTAL_Z:
        n, c, h, w = shape
        return (ceildiv(c, c0) * h * w, ceildiv(n, CUBE_ROWS), CUBE_ROWS, c0)
    if fmt is Format.FRACTAL_NZ:
        *batch, h, w = shape
        return (*batch, ceildiv(w, c0), ceildiv(h, CUBE_ROWS), CUBE_ROWS, c0)
    if fmt is Format.NHWC and len(shape) >= 3:
        n, c, *spatial = shape
        return (n, *spatial, c)
    return shape


@dataclass(frozen=True)
class Tensor:
    """A tensor type: `shape` is None when even the rank is unknown before the producer has run."""

    dtype: DType
    shape: tuple[Size, ...] | None
    format: Format = Format.ND
    storage: Format | None = None

    def __hash__(self) -> int:
        """Types are keys of many tables: computed once."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.shape, self.format, self.storage))

    @property
    def rank(self) -> int | None:
        """Number of dims, or None."""
        return None if self.shape is None else len(self.shape)

    @property
    def dims(self) -> tuple[Size, ...]:
        """The shape of a tensor whose rank is known; raises `ValueError` otherwise."""
        if self.shape is None:
            raise ValueError("the tensor's rank is unknown")
        return self.shape

    @cached_property
    def static(self) -> bool:
        """Whether every dim is a plain int."""
        return self.shape is not None and all(type(d) is int for d in self.shape)

    @property
    def storage_format(self) -> Format:
        """The format of the bytes."""
        return self.storage or self.format

    @property
    def storage_shape(self) -> tuple[Size, ...]:
        """The shape of the stored array."""
        if self.storage is None or self.storage is self.format:
            return self.dims
        return storage_shape(self.dims, self.dtype, self.storage)

    @cached_property
    def elements(self) -> Size:
        """Number of elements that the model means (padding not counted)."""
        return prod(self.dims)

    @cached_property
    def nbytes(self) -> Size:
        """Bytes of the stored array, padding lanes included; strings have none."""
        return prod(self.storage_shape) * self.dtype.itemsize

    def with_shape(self, shape: tuple[Size, ...] | None) -> Tensor:
        """The same type with another shape."""
        return replace(self, shape=shape)


@dataclass(frozen=True)
class Sequence:
    """A sequence of values of one type; lives in a host slot."""

    element: Type


@dataclass(frozen=True)
class Optional:
    """A value that may be absent; lives in a host slot."""

    element: Type


@dataclass(frozen=True)
class Map:
    """A dictionary; lives in a host slot."""

    key: DType
    value: Type


Type: TypeAlias = Tensor | Sequence | Optional | Map


def on_host(type_: Type) -> bool:
    """Whether a value of this type has no address and lives in a slot of the host space."""
    return not isinstance(type_, Tensor) or type_.dtype is DType.STRING
