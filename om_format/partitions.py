"""Partitions, the tables that list them, and the byte map of a whole file.

A file is [header 256 B], then for each model [table][partition][partition]..., back to back without gaps. A
table of two partitions, in its 64-bit form (8 + 2 x 24 = 56 bytes), offsets counted from the table's end:

    count 2, 0 | type 1 (WEIGHTS_DATA), 0, offset 0, size 100 | type 0 (MODEL_DEF), 0, offset 100, size 40

With the header in front, the weights are the file's bytes 312 to 411, the graph is 412 to 451.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from .errors import corrupt, truncated
from .header import HEADER_BYTES

MAX_PARTITIONS: Final = 32
"""More than there are types: a count above it is no table."""

_WIDE_HEAD: Final = struct.Struct("<I4x")
_WIDE_ENTRY: Final = struct.Struct("<I4xQQ")
_NARROW_HEAD: Final = struct.Struct("<I")
_NARROW_ENTRY: Final = struct.Struct("<III")


class Partition(IntEnum):
    """Partition types under GE's names.

    The last four are this project's uses of types that foreign readers skip: the packed plan, the canonical
    graph's text, anything a tool wants to keep (optional), and the digests.
    """

    MODEL_DEF = 0
    WEIGHTS_DATA = 1
    TASK_INFO = 2
    TBE_KERNELS = 3
    CUST_AICPU_KERNELS = 4
    SO_BINS = 5
    FLOW_MODEL = 6
    FLOW_SUBMODEL = 7
    MODEL_INOUT_INFO = 8
    STATIC_TASK_DESC = 9
    DYNAMIC_TASK_DESC = 10
    TASK_PARAM = 11
    TILING_DATA = 12
    PRE_MODEL_DESC = 20
    PRE_MODEL_SQE = 21
    PRE_KERNEL_ARGS = 22
    PRE_MODEL_DESC_EXTEND = 23
    BUNDLE_MODEL_INFO = 24
    BUNDLE_MODEL_VAR_INFO = 25
    CUSTOM_OPS = 26

    PLAN_TABLE = 12
    CANONICAL_GRAPH = 20
    INFO = 22
    INTEGRITY = 23


def partition_name(kind: int) -> str:
    """GE's name of a type, or its number."""
    try:
        return Partition(kind).name
    except ValueError:
        return f"partition type {kind}"


def own_name(kind: int) -> str:
    """The name of a type in a file of ours, where four types have uses of their own."""
    return _OWN_NAMES.get(kind) or partition_name(kind)


_OWN_NAMES: Final = {
    int(Partition.PLAN_TABLE): "PLAN_TABLE",
    int(Partition.CANONICAL_GRAPH): "CANONICAL_GRAPH",
    int(Partition.INFO): "INFO",
    int(Partition.INTEGRITY): "INTEGRITY",
}


@dataclass(frozen=True)
class Section:
    """A stretch of the file: `[offset, offset + size)` in bytes. `kind` is None for the header and for
    tables.
    """

    kind: int | None
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.size

    @property
    def name(self) -> str:
        """What it is, for messages."""
        if self.kind is not None:
            return partition_name(self.kind)
        return "header" if self.offset == 0 else "partition table"


@dataclass(frozen=True)
class ModelLayout:
    """Where one model's table and partitions lie in the file."""

    table: Section
    partitions: tuple[Section, ...]

    @property
    def end(self) -> int:
        """Where the next model's table, or the file's end, is."""
        return self.partitions[-1].end


def table_bytes(count: int) -> int:
    """Size of the 64-bit table of `count` partitions."""
    return _WIDE_HEAD.size + count * _WIDE_ENTRY.size


def lay_out(start: int, sizes: Sequence[tuple[int, int]]) -> ModelLayout:
    """The layout of a model whose 64-bit table is at byte `start` and whose partitions are (type, size), in
    this order.
    """
    table = Section(None, start, table_bytes(len(sizes)))
    position = table.end
    sections = []
    for kind, size in sizes:
        sections.append(Section(kind, position, size))
        position += size
    return ModelLayout(table, tuple(sections))


def pack_table(layout: ModelLayout) -> bytes:
    """A layout's 64-bit table."""
    parts = [_WIDE_HEAD.pack(len(layout.partitions))]
    for section in layout.partitions:
        parts.append(_WIDE_ENTRY.pack(section.kind, section.offset - layout.table.end, section.size))
    return b"".join(parts)


def parse_table(data: memoryview, start: int, *, wide: bool) -> ModelLayout:
    """Read and check the table at byte `start` of a whole file.

    `wide` tells 64-bit tables from legacy 32-bit ones. Checked before any use: that count and table fit the
    file, types are unique, and partitions follow one another without gap or overlap inside the file. Raises
    TRUNCATED or CORRUPT.
    """
    head, entry = (_WIDE_HEAD, _WIDE_ENTRY) if wide else (_NARROW_HEAD, _NARROW_ENTRY)
    if start + head.size > len(data):
        raise truncated("the file ends where a partition table should start", start)
    (count,) = head.unpack_from(data, start)
    if not 1 <= count <= MAX_PARTITIONS:
        raise corrupt(f"a partition table of {count} entries, 1 to {MAX_PARTITIONS} are possible", start)
    table = Section(None, start, head.size + count * entry.size)
    if table.end > len(data):
        raise truncated(f"the file ends inside a partition table of {count} entries", start)
    sections: list[Section] = []
    position = table.end
    for index in range(count):
        place = start + head.size + index * entry.size
        kind, offset, size = entry.unpack_from(data, place)
        section = Section(kind, table.end + offset, size)
        _check_entry(section, sections, position, len(data), place)
        sections.append(section)
        position = section.end
    return ModelLayout(table, tuple(sections))


def _check_entry(section: Section, before: list[Section], position: int, file_bytes: int, place: int) -> None:
    if any(section.kind == other.kind for other in before):
        raise corrupt(f"{section.name} is listed twice in one table", place)
    if section.offset != position:
        what = "leaves a gap after" if section.offset > position else "overlaps"
        cause = f"{section.name} starts at byte {section.offset} and {what} what ends at byte {position}"
        raise corrupt(cause, place)
    if section.size > file_bytes - position:
        cause = f"{section.name} takes {section.size} bytes from byte {position} of a file of {file_bytes}"
        raise corrupt(cause, place)


def all_sections(layouts: Sequence[ModelLayout]) -> list[Section]:
    """Header, tables and partitions of a file in file order; together they are every byte of it."""
    sections = [Section(None, 0, HEADER_BYTES)]
    for layout in layouts:
        sections.append(layout.table)
        sections.extend(layout.partitions)
    return sections
