"""Integrity: how a damaged file is noticed, and where.

Every byte outside WEIGHTS_DATA is under a SHA-256 that each load checks, one digest a section, so that an
error names the section. Weights are under a CRC-32 for each MiB of a WEIGHTS_DATA partition, checked on
demand: reading gigabytes at each start would cost more than running the model. This finds damage, not
malice: whoever forges a file can forge the digests too.

The INTEGRITY partition is the last of the file:

    "ATCINTEG", u32 version, u32 CRC block size, u32 digest count D, u32 CRC count C
    D x 32 B SHA-256: header, every table, every partition but WEIGHTS_DATA and INTEGRITY, in file order
    C x u32 CRC-32 of the blocks of all WEIGHTS_DATA partitions, in file order; each last one may be shorter
    32 B SHA-256 of the bytes before it (in every later version too)

A file with a 3.5 MiB WEIGHTS_DATA, MODEL_DEF and PLAN_TABLE has D = 4 (header, table, graph, plan), C = 4.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .errors import OmError, OmErrorCode, corrupt
from .partitions import Partition, Section, own_name

OWNER_MARK: Final = b"ATC-PY"
"""Starts the header's `userdefineinfo` where there is an INTEGRITY partition, whose loss is then noticed."""

CRC_BLOCK: Final = 1 << 20
VERSION: Final = 1

_MAGIC: Final = b"ATCINTEG"
_HEAD: Final = struct.Struct("<8sIIII")
_SHA_BYTES: Final = 32
_CRC_BYTES: Final = 4
_HINT: Final = "the file was damaged after it was written; fetch it again or convert the model again"


def covered(sections: Sequence[Section]) -> list[Section]:
    """The sections under a SHA-256 in a file whose last section is INTEGRITY."""
    return [section for section in sections[:-1] if section.kind != Partition.WEIGHTS_DATA]


def weight_blocks(sections: Sequence[Section]) -> Iterator[Section]:
    """The stretches under one CRC-32 each, in file order."""
    for section in sections:
        if section.kind == Partition.WEIGHTS_DATA:
            for start in range(section.offset, section.end, CRC_BLOCK):
                yield Section(section.kind, start, min(CRC_BLOCK, section.end - start))


def integrity_bytes(digests: int, weight_sizes: Sequence[int]) -> int:
    """Size of the partition for a number of digests and the sizes of the WEIGHTS_DATA partitions."""
    crcs = sum(-(-size // CRC_BLOCK) for size in weight_sizes)
    return _HEAD.size + digests * _SHA_BYTES + crcs * _CRC_BYTES + _SHA_BYTES


class BlockCrc:
    """CRC-32 of each MiB of a partition that arrives in chunks of any size."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._crc = 0
        self._filled = 0

    def update(self, chunk: memoryview) -> None:
        """Take the next bytes."""
        position = 0
        while position < len(chunk):
            step = min(len(chunk) - position, CRC_BLOCK - self._filled)
            self._crc = zlib.crc32(chunk[position : position + step], self._crc)
            self._filled += step
            position += step
            if self._filled == CRC_BLOCK:
                self._close()

    def finish(self) -> list[int]:
        """The CRCs, the last of a shorter block where one is left."""
        if self._filled:
            self._close()
        return self._done

    def _close(self) -> None:
        self._done.append(self._crc)
        self._crc = self._filled = 0


def pack_integrity(digests: Sequence[bytes], crcs: Sequence[int]) -> bytes:
    """The partition's bytes."""
    body = b"".join(
        [
            _HEAD.pack(_MAGIC, VERSION, CRC_BLOCK, len(digests), len(crcs)),
            *digests,
            struct.pack(f"<{len(crcs)}I", *crcs),
        ]
    )
    return body + hashlib.sha256(body).digest()


def is_integrity(data: memoryview) -> bool:
    """Whether a partition of the type is ours; the type also has a meaning in foreign files."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


@dataclass(frozen=True)
class Integrity:
    """A parsed INTEGRITY partition whose own seal holds."""

    digests: tuple[bytes, ...]
    crcs: memoryview
    """C x u32, little-endian."""

    @classmethod
    def parse(cls, data: memoryview, offset: int, sections: Sequence[Section]) -> Integrity:
        """Read the partition at file byte `offset` of a file made of `sections`. Raises CORRUPT or NEWER."""
        if len(data) < _HEAD.size + _SHA_BYTES or not is_integrity(data):
            raise corrupt("the INTEGRITY partition is damaged", offset, _HINT)
        if hashlib.sha256(data[:-_SHA_BYTES]).digest() != bytes(data[-_SHA_BYTES:]):
            raise corrupt("the INTEGRITY partition contradicts its own digest", offset, _HINT)
        _, version, block, digest_count, crc_count = _HEAD.unpack_from(data)
        if version > VERSION:
            raise OmError(
                OmErrorCode.NEWER,
                f"the file's layout is version {version}, this release reads up to {VERSION}",
                offset=offset + 8,
                hint="read it with a newer release, or convert the model again",
            )
        weight_sizes = [section.size for section in sections if section.kind == Partition.WEIGHTS_DATA]
        expected = len(covered(sections))
        if (
            version != VERSION
            or block != CRC_BLOCK
            or digest_count != expected
            or len(data) != integrity_bytes(expected, weight_sizes)
            or len(data) != _HEAD.size + (digest_count + 1) * _SHA_BYTES + crc_count * _CRC_BYTES
        ):
            raise corrupt("the INTEGRITY partition does not fit the file's partitions", offset)
        crc_start = _HEAD.size + expected * _SHA_BYTES
        digests = tuple(bytes(data[at : at + _SHA_BYTES]) for at in range(_HEAD.size, crc_start, _SHA_BYTES))
        return cls(digests, data[crc_start:-_SHA_BYTES])

    def check_sections(self, data: memoryview, sections: Sequence[Section]) -> None:
        """Compare every SHA-256 with a whole file. Raises CORRUPT, naming the section."""
        for section, digest in zip(covered(sections), self.digests):
            if hashlib.sha256(data[section.offset : section.end]).digest() != digest:
                name = own_name(section.kind) if section.kind is not None else section.name
                cause = f"the {name} ({section.size} bytes) does not match its digest"
                raise corrupt(cause, section.offset, _HINT)

    def check_weights(self, data: memoryview, sections: Sequence[Section]) -> None:
        """Compare every CRC-32 with a whole file. Raises CORRUPT at the first block that differs."""
        for block, (crc,) in zip(weight_blocks(sections), struct.iter_unpack("<I", self.crcs)):
            if zlib.crc32(data[block.offset : block.end]) != crc:
                cause = f"these {block.size} bytes of weights do not match their CRC-32"
                raise corrupt(cause, block.offset, _HINT)
