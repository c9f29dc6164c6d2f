"""The 256 bytes that every OM starts with.

All numbers are little-endian. The layout, by offset:

      0 magic "IMOD"       80 is_encrypt       116 ops                   180 platform_type
      4 headsize = 256     81 is_checksum      120 userdefineinfo[32]    184 model_length (u64)
      8 version            82 modeltype        152 om_ir_version         192 need_check_os_cpu_info
     12 checksum[64]       83 genmode          156 model_num             193 is_unknow_model
     76 length             84 name[32]         160 platform_version[20]  194 reserved[62]
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final

from .errors import OmError, OmErrorCode, corrupt, invalid, truncated

MAGIC: Final = b"IMOD"
HEADER_BYTES: Final = 256
VERSION_1: Final = 0x10000000
VERSION_2: Final = 0x20000000

_LAYOUT: Final = struct.Struct("<4sII64sI4B32sI32sII20sB3xQBB62s")
assert _LAYOUT.size == HEADER_BYTES

_TEXT_BYTES: Final = {"name": 32, "platform_version": 20}
_BLOB_BYTES: Final = {"checksum": 64, "userdefineinfo": 32, "reserved": 62}
_NUMBER_BITS: Final = {
    "version": 32,
    "length": 32,
    "is_encrypt": 8,
    "is_checksum": 8,
    "modeltype": 8,
    "genmode": 8,
    "ops": 32,
    "om_ir_version": 32,
    "model_num": 32,
    "platform_type": 8,
    "model_length": 64,
    "need_check_os_cpu_info": 8,
    "is_unknow_model": 8,
}


@dataclass(frozen=True)
class OmHeader:
    """The header's fields under their names in GE, with the values that a static offline model has.

    `length` and `model_length` count the bytes after the header; a writer sets them. `model_length` 0
    announces the legacy container with 32-bit tables, whose size is `length`. `name` and `platform_version`
    are cut to 31 and 19 bytes of UTF-8; the blobs are padded with zeros.
    """

    version: int = VERSION_2
    checksum: bytes = b""
    length: int = 0
    is_encrypt: int = 0
    is_checksum: int = 1
    """0 CHECK, 1 UNCHECK: whether GE verifies `checksum`."""
    modeltype: int = 0
    """0 IR, 1 standard, 2 OM tiny, 3 flow, 4 lite, 5 bundle."""
    genmode: int = 0
    name: str = ""
    ops: int = 0
    """Thousands of operations."""
    userdefineinfo: bytes = b""
    om_ir_version: int = 0
    """ModelDef.version."""
    model_num: int = 1
    platform_version: str = ""
    platform_type: int = 0
    """0 lite, 1 mini."""
    model_length: int = 0
    need_check_os_cpu_info: int = 0
    is_unknow_model: int = 0
    """1: shapes are known only at run time."""
    reserved: bytes = b""

    @property
    def body_bytes(self) -> int:
        """Bytes that the header declares after itself."""
        return self.model_length or self.length

    @property
    def models(self) -> int:
        """How many [table][partitions] follow; always one in version 1, which does not have `model_num`."""
        return self.model_num if self.version >= VERSION_2 else 1

    def pack(self) -> bytes:
        """The 256 bytes; INVALID when a number does not fit its field or a blob is too long."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, bits in _NUMBER_BITS.items():
            if not 0 <= values[name] < 1 << bits:
                raise invalid(f"header field {name} = {values[name]} does not fit {bits} bits")
        for name, size in _BLOB_BYTES.items():
            if len(values[name]) > size:
                raise invalid(f"header field {name} has {len(values[name])} bytes, at most {size} fit")
        for name, size in _TEXT_BYTES.items():
            values[name] = _cut(values[name], size - 1)
        return _LAYOUT.pack(MAGIC, HEADER_BYTES, *values.values())

    @classmethod
    def parse(cls, data: bytes | memoryview) -> OmHeader:
        """Read a header from the first bytes of a file.

        Raises NOT_OM, TRUNCATED, NEWER or CORRUPT. Texts end at their first NUL, blobs lose their trailing
        zeros; whether `body_bytes` fits the file is the container's to check.
        """
        head = bytes(data[:HEADER_BYTES])
        _check_start(head)
        values = dict(zip((field.name for field in fields(cls)), _LAYOUT.unpack(head)[2:]))
        for name in _TEXT_BYTES:
            values[name] = values[name].split(b"\0", 1)[0].decode("utf-8", "replace")
        for name in _BLOB_BYTES:
            values[name] = values[name].rstrip(b"\0")
        return cls(**values)


def _check_start(head: bytes) -> None:
    if not head:
        raise OmError(OmErrorCode.NOT_OM, "the file is empty", offset=0)
    if not head.startswith(MAGIC[: len(head)]):
        raise OmError(OmErrorCode.NOT_OM, "the file does not start with the magic 'IMOD'", offset=0, hint=_guess(head))
    if len(head) < HEADER_BYTES:
        raise truncated(f"the file ends inside the header, after {len(head)} of 256 bytes", len(head))
    headsize, version = struct.unpack_from("<II", head, 4)
    if headsize != HEADER_BYTES:
        raise corrupt(f"the header declares its size as {headsize}, not 256", 4)
    if version >= VERSION_2 + VERSION_1:
        raise OmError(
            OmErrorCode.NEWER,
            f"the container's version is {version:#010x}, newer than {VERSION_2:#010x}",
            offset=8,
            hint="read it with a newer release, or convert the model again",
        )
    if version < VERSION_1:
        raise corrupt(f"the container's version is {version:#010x}, which never existed", 8)


def _guess(head: bytes) -> str:
    if head.startswith(b"PICO"):
        return "this is an OM of the SVP family, another format under the same suffix"
    if head.startswith(b"PK\x03\x04"):
        return "this is a ZIP archive; an OM2 package is one, and is another format"
    return ""


def _cut(text: str, size: int) -> bytes:
    # Cutting may split a character; the half is dropped.
    return text.encode("utf-8")[:size].decode("utf-8", "ignore").encode("utf-8")
