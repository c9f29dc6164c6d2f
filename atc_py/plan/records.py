"""The packed plan's records: which sections a table has, and what a row of each looks like (little-endian).

    0x00  "ATCPLAN\\n" | u32 version | u32 sections | u64 bytes in all
    0x18  sections × { u32 bytes of a row | u32 0 | u64 rows | u64 offset }
    …     the sections, in this order, each aligned to 8 bytes

Lists have no offsets: a row says how many entries of another section are its own, and they follow one another. A task
with `inputs` 2 owns the next two rows of section `inputs`. So no row can claim more than the file holds.

A size is one i64: a number between -2**62 and 2**62 is itself, -2**63 + k is expression k.
"""

from __future__ import annotations

import enum
from typing import TypeVar

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.types import DType, Format
from atc_py.plan.types import Access, Space

MAGIC = b"ATCPLAN\n"
VERSION = 1
HEAD = np.dtype([("magic", "S8"), ("version", "<u4"), ("sections", "<u4"), ("nbytes", "<u8")])
ENTRY = np.dtype([("itemsize", "<u4"), ("zero", "<u4"), ("rows", "<u8"), ("offset", "<u8")])
ALIGNMENT = 8

SMALLEST_EXPRESSION = -(1 << 63)
NUMBER_LIMIT = 1 << 62
NO_ARENA = -1
MAX_NESTING = 64
"""Regions inside each other, and types inside each other."""
MAX_RANK = 64

E = TypeVar("E", bound=enum.Enum)

RELATIONS = ("==", ">=", "~")
SPACES = (
    Space.WEIGHTS,
    Space.ARENA,
    Space.INPUT,
    Space.OUTPUT,
    Space.WORKSPACE,
    Space.HOST,
    Space.DYNAMIC,
    Space.VARIABLE,
)
ACCESSES = (Access.READ, Access.WRITE, Access.UPDATE)
FORMATS = (Format.ND, Format.NCHW, Format.NHWC, Format.NC1HWC0, Format.FRACTAL_Z, Format.FRACTAL_NZ)
DTYPES = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT64,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.UINT8,
    DType.UINT16,
    DType.UINT32,
    DType.UINT64,
    DType.BOOL,
    DType.STRING,
    DType.COMPLEX64,
    DType.COMPLEX128,
    DType.FLOAT8_E4M3FN,
    DType.FLOAT8_E4M3FNUZ,
    DType.FLOAT8_E5M2,
    DType.FLOAT8_E5M2FNUZ,
    DType.FLOAT8_E8M0,
    DType.FLOAT4_E2M1,
    DType.INT4,
    DType.UINT4,
    DType.INT2,
    DType.UINT2,
    DType.FLOAT6_E2M3,
    DType.FLOAT6_E3M2,
)
"""Enumerations as small numbers: the place in these tables, to which entries are only ever added at the end."""

NONE = 255
"""The number of an enumeration's entry that is not there."""
TENSOR, SEQUENCE, OPTIONAL, MAP = range(4)
STATIC, HOST, IF, LOOP, SCAN, GEARS = range(6)
HAS_HI, RUNTIME = 1, 2

TASK_LISTS = ("inputs", "outputs", "host_values", "waits", "records", "origins", "binds")
"""The lists of a task: a count in its row, the entries in the section of the same name."""

SECTIONS: tuple[tuple[str, np.dtype[np.void] | np.dtype[np.generic]], ...] = (
    (
        "plan",
        np.dtype(
            [
                ("target", "<u4"),
                ("inputs", "<u4"),  # ports that are inputs; the others are outputs
                ("weights_nbytes", "<i8"),
                ("arena", "<i8"),
                ("streams", "<i8"),
                ("events", "<i8"),
                ("hinted", "<u1"),
            ]
        ),
    ),
    ("text", np.dtype("<u1")),
    ("strings", np.dtype("<u4")),  # bytes of each in `text`
    ("expressions", np.dtype("<u4")),
    ("dims", np.dtype("<i8")),
    (
        "types",
        np.dtype(
            [
                ("kind", "<u1"),
                ("dtype", "<u1"),
                ("format", "<u1"),
                ("storage", "<u1"),
                ("rank", "<i4"),  # -1: not known; else entries of `dims`
                ("element", "<i4"),  # an earlier type
            ]
        ),
    ),
    ("symbols", np.dtype([("name", "<u4"), ("flags", "<u4"), ("lo", "<i8"), ("hi", "<i8")])),
    ("constants", np.dtype("<u4")),
    (
        "buffers",
        np.dtype(
            [
                ("space", "<u4"),
                ("index", "<i4"),
                ("nbytes", "<i8"),
                ("offset", "<i8"),  # -1: not planned
                ("first", "<i4"),
                ("last", "<i4"),
            ]
        ),
    ),
    ("strides", np.dtype("<i8")),
    (
        "operands",
        np.dtype(
            [
                ("value", "<i4"),
                ("access", "<u4"),
                ("buffer", "<u4"),
                ("type", "<u4"),
                ("delta", "<i8"),
                ("strides", "<i4"),  # -1: C order; else entries of `strides`
            ]
        ),
    ),
    ("inputs", np.dtype("<i4")),  # an operand; -1: absent
    ("outputs", np.dtype("<i4")),
    ("host_values", np.dtype([("input", "<i4"), ("constant", "<i4")])),
    ("waits", np.dtype("<i4")),
    ("records", np.dtype("<i4")),
    ("origins", np.dtype("<i4")),
    ("binds", np.dtype([("symbol", "<i4"), ("output", "<i4"), ("axis", "<i4")])),
    (
        "tasks",
        np.dtype(
            [
                ("id", "<i8"),
                ("cost", "<i8"),
                ("priority", "<i4"),
                ("stream", "<i4"),
                ("kernel", "<u4"),
                ("name", "<u4"),
                ("engine", "<u4"),
                ("attrs", "<u4"),
                ("body", "<i4"),  # -1: none
                ("workspace", "<i4"),  # -1: none
                *((name, "<u4") for name in TASK_LISTS),
            ]
        ),
    ),
    ("regions", np.dtype("<i8")),  # words; see `packed`
    ("ports", np.dtype([("name", "<u4"), ("type", "<u4"), ("buffer", "<u4"), ("value", "<i4")])),
    ("view_strides", np.dtype("<i8")),
    ("aliases", np.dtype([("value", "<i4"), ("source", "<i4"), ("delta", "<i8"), ("strides", "<i4")])),
    (
        "requirements",
        np.dtype(
            [
                ("left", "<i8"),
                ("right", "<i8"),
                ("place", "<u4"),
                ("relation", "<u4"),
                ("branch", "<i8"),
                ("why", "<u4"),
                ("zero", "<u4"),
            ]
        ),
    ),
    ("initial", np.dtype([("value", "<i4"), ("buffer", "<u4")])),
    ("hint", np.dtype([("name", "<u4"), ("zero", "<u4"), ("value", "<i8")])),
    ("options", np.dtype([("name", "<u4"), ("value", "<u4")])),
)
"""All sections in their order, with the dtype of a row."""


def broken(offset: int, cause: str) -> AtcError:
    """The error of a table that is damaged at `offset` (bytes from its beginning)."""
    hint = "the file is damaged, or was written by another version of atc-py; convert the model again"
    return error("E30010", f"plan table +0x{offset:x}", cause, hint)
