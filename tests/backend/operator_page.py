"""docs/operators.md, from onnx's schemas, the declarations in atc_py/ops and the measured errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx.defs

from atc_py.frontend.meaning import RENAMED, Meaning, meaning
from atc_py.ir.types import DType
from atc_py.ops import get
from atc_py.ops.base import Flags, Op
from atc_py.ops.index import INDEX

GROUPS = {
    "floats": {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64},
    "ints": {d for d in DType if d.is_int and d.bits >= 8},
    "float8": {d for d in DType if d.value.startswith("float8")},
    "4-bit": {DType.INT4, DType.UINT4, DType.FLOAT4_E2M1},
    "float6": {DType.FLOAT6_E2M3, DType.FLOAT6_E3M2},
    "2-bit": {DType.INT2, DType.UINT2},
    "complex": {d for d in DType if d.is_complex},
}
"""Names for dtypes that come together; a group that is not whole is listed one by one."""
_ONNX = {
    "float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn", "float6e2m3": "float6_e2m3fn", "float6e3m2": "float6_e3m2fn",
}  # fmt: skip
"""onnx's names of dtypes that are not ours."""
_DTYPES = frozenset(d.value for d in DType)

HEAD = """# Operators

{count} operators of onnx {version} and of onnxruntime's domain, {own} of them with a kernel of their own. Written by
`scripts/operators-page`.

- **versions**: the opset versions of the operator's definitions that the frontend takes; an operator of one version
  also stands for the opsets up to its next one.
- **dtypes**: element types of the inputs at the newest version. *floats* are float16, bfloat16, float32 and float64;
  *ints* are all of 8 to 64 bits; *float8* the five forms; *4-bit* int4, uint4 and float4;
  *float6* both forms.
- **engine**: aicore (cube and vector units), aicpu, or host. Operators without a task of their own (views) are *alias*
  in the flags.
- **kernel**: *own*; *body*: the function body that onnx defines the operator by is written out, and the kernels are
  those of its nodes; *reference*: onnx's reference implementation as an AI CPU kernel.
- **ULP**: the largest error over onnx's node tests of this operator alone, in units in the last place, by element, and
  after the slash by the output's largest element (sums whose terms cancel are large by element only). *exact*: the
  outputs are no floats and agree. The expected values are often computed in another order or precision, and in some
  tests (AveragePool, GridSample, RoiAlign) written with a few decimals: that distance is theirs.

| operator | versions | dtypes | engine | kernel | flags | ULP |
|---|---|---|---|---|---|---|
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; `versions` and `dtypes` are those of the installed onnx."""

    name: str
    versions: str
    dtypes: str
    engine: str
    kernel: str
    flags: str


def rows() -> list[Row]:
    """All operators, by domain and name."""
    schemas: dict[tuple[str, str], list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault((schema.domain, schema.name), []).append(schema)
    found = [row for key in sorted(schemas) if (row := _of_schemas(*key, schemas[key])) is not None]
    named = {row.name for row in found}
    return found + [_of_declaration(name) for name in sorted(INDEX) if name not in named]


def _of_schemas(domain: str, op: str, schemas: Iterable[Any]) -> Row | None:
    """The row of an operator that onnx defines; None where no version can be taken."""
    known = {s.since_version: (s, meaning(domain, op, s.since_version)) for s in schemas}
    taken = {v: pair for v, pair in sorted(known.items()) if not pair[1].unknown}
    if not taken:
        return None
    newest = max((v for v in taken if not taken[v][0].deprecated), default=max(taken))
    schema, found = taken[newest]
    versions = ", ".join(str(v) for v in taken)
    engine, flags = ("", "") if found.declared is None else (found.declared.engine.value, flag_text(found.declared))
    kernel = _kernel(found)
    if (domain, op) == ("", "Constant"):
        kernel = "none: a constant"
    elif kernel == "reference":
        engine = "aicpu"
    name = f"{domain}::{op}" if domain else op
    renamed = f" → {RENAMED[name]}" if name in RENAMED else ""
    return Row(name, versions, dtype_text(_dtypes(schema)), engine, kernel + renamed, flags)


def _kernel(found: Meaning) -> str:
    if found.declared is not None:
        return "reference" if found.declared.reference else "own"
    return "body" if found.expandable else "reference"


def _of_declaration(name: str) -> Row:
    op = get(name)
    assert op is not None
    domain = name.rpartition("::")[0]
    return Row(name, "1" if domain else "atc-py's", "", op.engine.value, "own", flag_text(op))


def flag_text(op: Op) -> str:
    """The flags that are not at their defaults."""
    default = Flags()
    changed = [f.name for f in dataclasses.fields(Flags) if getattr(op.flags, f.name) != getattr(default, f.name)]
    return ", ".join("not deterministic" if name == "deterministic" else name for name in changed)


def _dtypes(schema: Any) -> set[DType]:
    found: set[DType] = set()
    for formal in schema.inputs:
        for text in formal.types:
            inner = text.replace("seq(", "").replace("optional(", "").partition("tensor(")[2].rstrip(")")
            if _ONNX.get(inner, inner) in _DTYPES:  # onnx also has types of six bits
                found.add(DType(_ONNX.get(inner, inner)))
    return found


def dtype_text(dtypes: set[DType]) -> str:
    """Dtypes, whole groups by the group's name."""
    words, others = _words(dtypes), _words(set(DType) - dtypes)
    if not others:
        return "all"
    return f"all but {', '.join(others)}" if len(others) < len(words) else ", ".join(words)


def _words(dtypes: set[DType]) -> list[str]:
    words: list[str] = []
    rest = set(dtypes)
    for name, group in GROUPS.items():
        if group <= rest:
            words.append(name)
            rest -= group
    return words + [d.value for d in DType if d in rest]


def render(errors: Mapping[str, Mapping[str, float]]) -> str:
    """The page."""
    table = rows()
    own = sum(row.kernel.startswith("own") for row in table)
    text = HEAD.format(count=len(table), version=onnx.__version__, own=own)
    for row in table:
        cells = (f"`{row.name}`", row.versions, row.dtypes, row.engine, row.kernel, row.flags)
        text += f"| {' | '.join(cells)} | {error_text(errors.get(row.name))} |\n"
    return text


def error_text(error: Mapping[str, float] | None) -> str:
    """The last column; empty where no test is of the operator alone."""
    if error is None:
        return ""
    return f"{error['element']:g} / {error['scale']:g}" if "element" in error else "exact"
