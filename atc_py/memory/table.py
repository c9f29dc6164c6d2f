"""Tables of buffers: MiniMalloc's CSV form, read and written.

    id,lower,upper,size            id,lower,upper,size,offset
    a,0,2,512                 →    a,0,2,512,1024
    b,1,3,1024                     b,1,3,1024,0

A buffer lives in the half-open interval [lower, upper). Columns may come in any order, others are carried along, and
an `offset` that is there already is replaced. MiniMalloc's column `alignment` is honoured (empty: any offset); its
`gaps`, times at which a buffer need not be kept, are not used: a plan without them holds with them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

from atc_py.errors import Problem, Problems, error
from atc_py.memory.problem import Block

COLUMNS = ("id", "lower", "upper", "size")
OFFSET, ALIGNMENT = "offset", "alignment"
LARGEST = {"size": 1 << 46, "lower": 1 << 62, "upper": 1 << 62, ALIGNMENT: 1 << 30}
"""Numbers up to these are taken; sizes are in bytes."""
LEAST = {"size": 0, "lower": -(1 << 62), "upper": -(1 << 62), ALIGNMENT: 1}

MOST_BYTES = 64 << 20
"""A file larger than this is refused."""

MOST_PROBLEMS = 50
"""So many wrong lines are named one by one."""

_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
_DIGITS = 20
"""More than any number has that is taken."""


@dataclass(frozen=True)
class Table:
    """The buffers of a file: the header, the rows as they were, and the blocks in the rows' order.

    `alignments`: of what each offset is to be a multiple.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    blocks: tuple[Block, ...]
    alignments: tuple[int, ...]


def read_table(path: Path) -> Table:
    """Read a CSV file. Raises `AtcError` E20060 naming each line that is wrong, E13000 if it is not there."""
    try:
        if not path.is_file() and path.exists():
            raise error("E13000", str(path), "cannot be read: it is no file", "name a CSV file")
        if path.stat().st_size > MOST_BYTES:
            raise error("E20060", str(path), f"has more than {MOST_BYTES:,} bytes", "split the table")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise error("E13000", str(path), f"cannot be read: {e.strerror or e}", "check the path") from e
    except UnicodeDecodeError as e:
        raise error("E20060", str(path), f"is not UTF-8 text: byte {e.start}", "save it as CSV in UTF-8") from e
    return parse_table(text, str(path))


def parse_table(text: str, name: str) -> Table:
    """The table in a text; `name` is how errors call it."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: tuple[str, ...] | None = None
    rows: list[tuple[str, ...]] = []
    blocks: list[Block] = []
    found: list[Problem] = []
    seen: dict[str, int] = {}
    alignments: list[int] = []
    try:
        for fields in reader:
            place = f"{name}:{reader.line_num}"
            if not any(f.strip() for f in fields):
                continue
            if header is None:
                header = _header(fields, place)
                continue
            read = _block(header, fields, place, seen, reader.line_num, found)
            if read is not None:
                rows.append(tuple(fields))
                blocks.append(read[0])
                alignments.append(read[1])
    except csv.Error as e:
        raise error("E20060", f"{name}:{reader.line_num}", f"is not CSV: {e}", "save the table as CSV") from e
    if header is None:
        raise error("E20060", name, "is empty", f"the first line names the columns: {','.join(COLUMNS)}")
    _raise(found, name)
    if lcm(*alignments) > LARGEST[ALIGNMENT]:
        cause = f"the alignments have no common multiple up to {LARGEST[ALIGNMENT]:,}"
        raise error("E20060", name, cause, "use powers of two")
    return Table(header, tuple(rows), tuple(blocks), tuple(alignments))


def _header(fields: Sequence[str], place: str) -> tuple[str, ...]:
    """The names of the columns; E20060 when one is missing or comes twice."""
    names = tuple(f.strip().lower() for f in fields)
    problems = Problems()
    for column in COLUMNS:
        if column not in names:
            problems.add("E20060", place, f"there is no column '{column}'", f"columns: {','.join(COLUMNS)}")
    for column in (*COLUMNS, OFFSET, ALIGNMENT):
        if names.count(column) > 1:
            problems.add("E20060", place, f"the column '{column}' comes {names.count(column)} times", "leave one")
    problems.raise_any()
    return names


def _block(
    header: Sequence[str],
    fields: Sequence[str],
    place: str,
    seen: dict[str, int],
    line: int,
    found: list[Problem],
) -> tuple[Block, int] | None:
    """The block of one line and its alignment; what is wrong with it goes to `found`."""

    def wrong(cause: str, hint: str) -> None:
        found.append(Problem("E20060", place, cause, hint))

    if len(fields) != len(header):
        wrong(f"has {len(fields)} fields where the header has {len(header)}", "give each column a field")
        return None
    row = dict(zip(header, fields, strict=True))
    before = len(found)
    key = row["id"].strip()
    if not key:
        wrong("the id is empty", "give each buffer an id")
    elif key in seen:
        wrong(f"the id '{key[:40]}' is that of line {seen[key]} too", "give each buffer an id of its own")
    seen.setdefault(key, line)
    values = {c: _number(row[c], c, wrong) for c in COLUMNS[1:]}
    alignment = _number(row[ALIGNMENT], ALIGNMENT, wrong) if row.get(ALIGNMENT, "").strip() else 1
    lower, upper, size = values["lower"], values["upper"], values["size"]
    if lower is not None and upper is not None and upper <= lower:
        wrong(f"upper {upper} is not above lower {lower}", "a buffer lives from lower on and no longer at upper")
    if len(found) > before or lower is None or upper is None or size is None or alignment is None:
        return None
    return Block(lower, upper, size), alignment


def _number(text: str, column: str, wrong: object) -> int | None:
    """The integer in a field; None when it is none, which is then said."""
    assert callable(wrong)
    text = text.strip()
    shown = text if len(text) <= 40 else text[:40] + "…"
    if not _INTEGER.fullmatch(text):
        wrong(f"{column} is {shown!r}, which is no whole number", "write digits only")
        return None
    digits = text.lstrip("-0")[: _DIGITS + 1]  # of a longer one these are already too many
    value = int(f"{'-' * text.startswith('-')}{digits or '0'}")
    if not LEAST[column] <= value <= LARGEST[column]:
        wrong(f"{column} is {shown}, outside {LEAST[column]} to {LARGEST[column]}", "correct the number")
        return None
    return value


def _raise(found: Sequence[Problem], name: str) -> None:
    problems = Problems()
    for p in found[:MOST_PROBLEMS]:
        problems.add(p.code, p.place, p.cause, p.hint)
    if len(found) > MOST_PROBLEMS:
        problems.add("E20060", name, f"{len(found) - MOST_PROBLEMS:,} more lines are wrong", "correct these first")
    problems.raise_any()


def with_offsets(table: Table, offsets: Sequence[int]) -> str:
    """The table as CSV, with the column `offset`."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    at = table.header.index(OFFSET) if OFFSET in table.header else len(table.header)
    header = list(table.header)
    header[at : at + 1] = [OFFSET]
    writer.writerow(header)
    for row, offset in zip(table.rows, offsets, strict=True):
        fields = list(row)
        fields[at : at + 1] = [str(offset)]
        writer.writerow(fields)
    return out.getvalue()


def facts(table: Table) -> Mapping[str, int]:
    """How large the table is, for a summary."""
    return {"buffers": len(table.blocks), "bytes": sum(b.size for b in table.blocks)}
