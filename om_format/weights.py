"""Where constants lie inside WEIGHTS_DATA.

The partition comes first in the file, and its bytes are used as they are mapped, so alignment is a matter
of *file* offsets: the first constant at a multiple of 4096, each next one at a multiple of 64. The padding
belongs to the partition, because readers walk partitions by size and allow nothing between them. With a
table of 8 partitions the partition starts at byte 256 + 200 = 456:

    >>> layout = WeightsLayout(200)
    >>> layout.add(100), layout.add(10), layout.total
    (3640, 3768, 3778)

that is file bytes 4096 and 4224.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from .errors import invalid
from .header import HEADER_BYTES
from .stream import BytesLike, Stream, as_bytes_view

FIRST_ALIGNMENT: Final = 4096
ALIGNMENT: Final = 64
JOINED: Final = 1 << 16
"""Constants of fewer bytes are copied together: to write and digest each of thousands alone takes longer."""


class WeightsLayout:
    """Offsets for constants in the order they are added; equal constants are the caller's to merge.

    `table_bytes` is the size of the model's partition table (`table_bytes(count)`, the INTEGRITY partition
    counted), `table_offset` its place in the file. All offsets and sizes are bytes; offsets count from the
    partition's start, as `TensorDescriptor.data_offset` does.
    """

    def __init__(self, table_bytes: int, *, table_offset: int = HEADER_BYTES) -> None:
        self.start = table_offset + table_bytes
        """File offset at which the partition must start."""
        self._end = 0
        self._places: list[tuple[int, int]] = []

    def add(self, nbytes: int, *, align: int = ALIGNMENT) -> int:
        """Place the next constant and return its offset; `align`, in bytes, is of its place in the file."""
        if nbytes < 0 or align < 1:
            raise invalid(f"a constant of {nbytes} bytes aligned to {align}")
        if not self._places:
            align = max(align, FIRST_ALIGNMENT)
        offset = -(-(self.start + self._end) // align) * align - self.start
        self._places.append((offset, nbytes))
        self._end = offset + nbytes
        return offset

    @property
    def total(self) -> int:
        """Bytes of the partition so far; 0 when no constant was added, and the partition is then left out."""
        return self._end

    def chunks(self, constants: Iterable[BytesLike]) -> Iterator[BytesLike]:
        """Padding and constants, in the order they were added, small ones joined. INVALID when their number or
        size differs.
        """
        small: list[BytesLike] = []
        position = given = held = 0
        remaining = iter(constants)
        for (offset, nbytes), constant in zip(self._places, remaining):
            view = as_bytes_view(constant)
            if len(view) != nbytes:
                raise invalid(f"constant {given} has {len(view)} bytes, {nbytes} were announced")
            if offset > position:
                small.append(bytes(offset - position))
            large = nbytes >= JOINED
            if not large:
                small.append(view)
                held += nbytes
            if large or held >= JOINED:
                yield b"".join(small)
                small, held = [], 0
            if large:
                yield view
            position = offset + nbytes
            given += 1
        if given != len(self._places):
            raise invalid(f"{given} constants were given, {len(self._places)} announced")
        for _ in remaining:
            raise invalid(f"more constants were given than the {given} announced")
        yield b"".join(small)

    def stream(self, constants: Iterable[BytesLike]) -> Stream:
        """The partition's content for `write_om`, which refuses to write it anywhere but at `start`."""
        return Stream(self.total, self.chunks(constants), at=self.start)
