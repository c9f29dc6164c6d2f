"""A packed table's sections, and the checks of their columns.

operands.buffer   [0, 2, 7, 1]  of 5 buffers    →   E30010 plan table +0x5a8: operands 2: buffer 7 is not in [0, 5)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from atc_py.errors import AtcError
from atc_py.plan import records as r

Rows: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Table:
    """The sections of a table, checked to lie in it."""

    def __init__(self, data: memoryview) -> None:
        self.rows: dict[str, Rows] = {}
        self.offsets: dict[str, int] = {}
        start = r.HEAD.itemsize + r.ENTRY.itemsize * len(r.SECTIONS)
        if data.nbytes < start:
            raise r.broken(0, f"a table takes at least {start} bytes, this one has {data.nbytes}")
        head = np.frombuffer(data, r.HEAD, 1)[0]
        if bytes(data[:8]) != r.MAGIC:
            raise r.broken(0, "does not begin with the mark of a plan table")
        if head["version"] != r.VERSION:
            raise r.broken(8, f"version {head['version']} is not known; this program reads {r.VERSION}")
        if head["sections"] != len(r.SECTIONS):
            raise r.broken(12, f"has {head['sections']} sections, expected {len(r.SECTIONS)}")
        entries = np.frombuffer(data, r.ENTRY, len(r.SECTIONS), r.HEAD.itemsize).tolist()
        for k, ((name, dtype), (itemsize, zero, rows, offset)) in enumerate(zip(r.SECTIONS, entries)):
            at = r.HEAD.itemsize + r.ENTRY.itemsize * k
            if itemsize != dtype.itemsize or zero:
                raise r.broken(at, f"section '{name}' has rows of {itemsize} bytes, expected {dtype.itemsize}")
            if offset != start or rows * itemsize > data.nbytes - start:
                raise r.broken(at, f"section '{name}' of {rows} rows at {offset} does not fit in {data.nbytes} bytes")
            self.rows[name] = np.frombuffer(data, dtype, rows, offset)
            self.offsets[name] = offset
            start += -(-rows * itemsize // r.ALIGNMENT) * r.ALIGNMENT
        if head["nbytes"] != start or start > data.nbytes:
            raise r.broken(16, f"announces {head['nbytes']} bytes, its sections take {start} of {data.nbytes}")

    def wrong(self, section: str, row: int, cause: str) -> AtcError:
        """The error of one row."""
        offset = self.offsets[section] + row * self.rows[section].dtype.itemsize
        return r.broken(offset, f"{section} {row}: {cause}")

    def column(self, section: str, field: str = "") -> Rows:
        """One field of all rows."""
        return self.rows[section][field] if field else self.rows[section]

    def check(self, section: str, good: Rows, cause: Callable[[int], str]) -> None:
        """Raise for the first row that is not good."""
        if not good.all():
            row = int(np.argmin(good))
            raise self.wrong(section, row, cause(row))

    def numbers(self, section: str, field: str, low: int, high: int) -> list[int]:
        """A field whose values must be in [low, high)."""
        column = self.column(section, field)
        if len(column) and (int(column.min()) < low or int(column.max()) >= high):
            good = (column >= low) & (column < high)
            self.check(section, good, lambda i: f"{field or 'number'} {column[i]} is not in [{low}, {high})")
        return column.tolist()  # type: ignore[no-any-return]

    def entries(self, section: str, field: str, of: str) -> list[int]:
        """Where the entries of each row begin in section `of`, and the end; a negative count means none."""
        counts = np.maximum(self.column(section, field).astype(np.int64), 0)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total != len(self.rows[of]):
            raise r.broken(self.offsets[of], f"section '{of}' has {len(self.rows[of])} entries, {section} take {total}")
        return [0, *ends.tolist()]
