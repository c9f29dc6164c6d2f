"""Constants: bytes by reference, one repeated scalar, a vector of dims, or a recipe over other constants.

    Blob      3×3 float32, 36 bytes that lie in the model's file (mapped, never copied)
    Splat     1000×1000 float32 of 0.0: one scalar, no megabytes
    DimVec    int64 [N, 3, H//2]: a shape that is known up to symbols; evaluated at bind
    Derived   Cast(Blob, to=float16): evaluated when the plan is bound, and kept by content

`evaluate` of a Derived needs kernels and lives in `atc_py.ops`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np

from atc_py.ir.dims import Size, evaluate
from atc_py.ir.types import DType

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def packed_nbytes(dtype: DType, count: int) -> int:
    """Bytes of `count` elements as a Blob stores them: types below eight bits are packed, first element lowest."""
    return -(-count * dtype.bits // 8)


SAMPLES, SAMPLE = 16, 16
"""How many pieces of how many bytes stand for a constant's content until it is compared with another one."""


class Content:
    """The content of a large blob as a key of a dict: equal for equal dtype, shape and bytes.

    Gigabytes are looked at in a few places only, unless another blob has the same dtype, shape and bytes there.
    """

    __slots__ = ("_digest", "_hash", "_told")

    def __init__(self, dtype: DType, shape: tuple[int, ...], data: memoryview) -> None:
        last = data.nbytes - SAMPLE
        samples = b"".join([data[at : at + SAMPLE] for at in [last * i // (SAMPLES - 1) for i in range(SAMPLES)]])
        self._told = (dtype, shape, data)
        self._hash = hash((dtype, shape, data.nbytes, samples))
        self._digest = b""

    @property
    def digest(self) -> bytes:
        """SHA-256 over dtype, shape and bytes."""
        if not self._digest:
            self._digest = _sha256(*self._told)
        return self._digest

    def __hash__(self) -> int:
        """Of dtype, shape and samples of the bytes."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether the contents are equal: by their digests, where samples do not tell them apart."""
        if not isinstance(other, Content):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.digest == other.digest)


def _sha256(dtype: DType, shape: tuple[int, ...], data: memoryview) -> bytes:
    h = hashlib.sha256(f"{dtype.value}{list(shape)}".encode())
    h.update(data)
    return h.digest()


@dataclass(eq=False, slots=True)  # not frozen: models have many, and nobody changes one
class Blob:
    """A constant whose bytes are `data`: little-endian, C order, packed below eight bits; strings as `pack_strings`."""

    dtype: DType
    shape: tuple[int, ...]
    data: memoryview = field(repr=False)
    _key: Hashable = field(default=None, init=False, repr=False)
    _number: tuple[float | int | bool | None, ...] = field(default=(), init=False, repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 over dtype, shape and bytes: equal constants have equal digests."""
        key = self.key
        return key.digest if isinstance(key, Content) else _sha256(self.dtype, self.shape, self.data)

    @property
    def key(self) -> Hashable:
        """Equal for equal constants, and cheaper than the digest where nothing is equal."""
        if self._key is None:
            dtype, shape, data = self.dtype, self.shape, self.data
            small = data.nbytes <= SAMPLES * SAMPLE
            self._key = (dtype, shape, bytes(data)) if small else Content(dtype, shape, data)
        return self._key

    @property
    def number(self) -> float | int | bool | None:
        """The one element of a constant that has no other, None where there are more, or it is text."""
        if not self._number:
            one = self.dtype is not DType.STRING and prod(self.shape) == 1
            self._number = (blob_array(self).reshape(-1)[0].item() if one else None,)
        return self._number[0]

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.data.nbytes


@dataclass(frozen=True, eq=False)
class Splat:
    """`shape` filled with one `value` (a numpy scalar of the dtype, or str)."""

    dtype: DType
    shape: tuple[Size, ...]
    value: Any

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over dtype, shape and value."""
        raw = self.value.encode() if isinstance(self.value, str) else np.asarray(self.value, self.dtype.numpy).tobytes()
        return hashlib.sha256(f"splat{self.dtype.value}{[str(d) for d in self.shape]}".encode() + raw).digest()

    @property
    def key(self) -> Hashable:
        """Equal for equal constants."""
        return self.digest

    nbytes = 0


@dataclass(frozen=True, eq=False)
class DimVec:
    """An integer tensor of dims, flat in C order: symbolic until the symbols are bound."""

    dtype: DType
    shape: tuple[int, ...]
    elements: tuple[Size, ...]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over dtype, shape and the dims' text."""
        return hashlib.sha256(
            f"dims{self.dtype.value}{list(self.shape)}{[str(e) for e in self.elements]}".encode()
        ).digest()

    @property
    def key(self) -> Hashable:
        """Equal for equal constants."""
        return self.digest

    nbytes = 0

    def bind(self, env: Mapping[str, int]) -> Array:
        """The tensor's elements under `env`."""
        flat = [evaluate(e, env) for e in self.elements]
        return np.array(flat, dtype=self.dtype.numpy).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Derived:
    """The value of operator `op` with `attrs` over `inputs`: deterministic, evaluated at bind and cached by digest."""

    dtype: DType
    shape: tuple[int, ...]
    op: str
    inputs: tuple[Constant, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the recipe."""
        attrs = [(name, _told(value)) for name, value in sorted(self.attrs.items())]
        h = hashlib.sha256(f"derived{self.dtype.value}{list(self.shape)}{self.op}{attrs}".encode())
        for source in self.inputs:
            h.update(source.digest)
        return h.digest()

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal constants; does not hash what the inputs hold."""
        attrs = tuple([(name, _told(value)) for name, value in sorted(self.attrs.items())])
        return ("derived", self.dtype, self.shape, self.op, attrs, *[source.key for source in self.inputs])

    nbytes = 0


Constant: TypeAlias = Blob | Splat | DimVec | Derived


def _told(value: Any) -> str:
    """An attribute value as text that tells contents apart; the representation of a Blob leaves its bytes out."""
    if isinstance(value, (Blob, Splat, DimVec, Derived)):
        return value.digest.hex()
    return f"({', '.join(map(_told, value))})" if isinstance(value, tuple) else repr(value)


def pack_strings(strings: Array) -> bytes:
    """Strings as bytes: for each element its UTF-8 length as little-endian u32 and the bytes (C order)."""
    parts: list[bytes] = []
    for item in strings.reshape(-1):
        raw = item if isinstance(item, bytes) else str(item).encode()
        parts += (len(raw).to_bytes(4, "little"), raw)
    return b"".join(parts)


def unpack_strings(data: memoryview, shape: tuple[int, ...]) -> Array:
    """The inverse of `pack_strings`; raises `ValueError` when the bytes do not fit the shape."""
    out = np.empty(prod(shape), dtype=object)
    at = 0
    for i in range(out.size):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > data.nbytes or end > data.nbytes:
            raise ValueError("string constant is shorter than its shape says")
        out[i] = bytes(data[at + 4 : end]).decode(errors="replace")
        at = end
    return out.reshape(shape)


def blob(array: Array) -> Blob:
    """A Blob with the array's content (contiguous arrays are referenced, not copied)."""
    dtype = DType.of(array.dtype)
    if dtype is DType.STRING:
        return Blob(dtype, array.shape, memoryview(pack_strings(array)))
    if dtype.bits < 8:
        return Blob(dtype, array.shape, memoryview(pack_bits(array, dtype.bits)))
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Blob(dtype, array.shape, flat.data)


def pack_bits(array: Array, bits: int) -> bytes:
    """Elements of 2, 4 or 6 bits packed into bytes, the first element in the lowest bits (as ONNX packs them)."""
    codes: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    if 8 % bits:
        stream = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
        return np.packbits(stream.reshape(-1), bitorder="little").tobytes()
    per = 8 // bits
    codes = np.concatenate([codes, np.zeros(-codes.size % per, np.uint8)]).reshape(-1, per)
    shifts = np.arange(per, dtype=np.uint8) * bits
    packed: Array = np.bitwise_or.reduce(codes << shifts, axis=1).astype(np.uint8)
    return packed.tobytes()


def unpack_bits(data: memoryview, dtype: DType, count: int) -> Array:
    """The inverse of `pack_bits`: `count` elements, one a byte, as the dtype's numpy type."""
    bits, per = dtype.bits, 8 // dtype.bits
    if 8 % bits:
        stream = np.unpackbits(np.frombuffer(data, np.uint8), count=count * bits, bitorder="little")
        return np.packbits(stream.reshape(count, bits), axis=1, bitorder="little").reshape(-1).view(dtype.numpy)
    raw = np.frombuffer(data, np.uint8)[:, None] >> (np.arange(per, dtype=np.uint8) * bits)
    codes = (raw.reshape(-1)[:count] & ((1 << bits) - 1)).astype(np.uint8)
    if dtype in (DType.INT4, DType.INT2):
        sign = np.uint8(1 << (bits - 1))
        return ((codes ^ sign).astype(np.int8) - np.int8(sign)).astype(dtype.numpy)
    if dtype in (DType.UINT4, DType.UINT2):
        return codes.astype(dtype.numpy)
    return codes.view(dtype.numpy)


def blob_array(constant: Blob) -> Array:
    """The Blob's content as a read-only array (a view of its bytes where the dtype is not packed)."""
    if constant.dtype is DType.STRING:
        array = unpack_strings(constant.data, constant.shape)
    elif constant.dtype.bits < 8:
        array = unpack_bits(constant.data, constant.dtype, prod(constant.shape)).reshape(constant.shape)
    else:
        array = np.frombuffer(constant.data, constant.dtype.numpy).reshape(constant.shape)
    array.setflags(write=False)
    return array


def splat_array(constant: Splat, env: Mapping[str, int] | None = None) -> Array:
    """The Splat as an array of stride 0 (no bytes beyond one element); symbolic dims are looked up in `env`."""
    shape = tuple(evaluate(d, env or {}) for d in constant.shape)
    return np.broadcast_to(np.asarray(constant.value, dtype=constant.dtype.numpy), shape)
