"""Element types that onnx's schemas allow: what would otherwise fail somewhere inside an operator is said here.

Add(float32, int64)       inputs 0 (A) and 1 (B) must have one type, but are float32 and int64
Gather(x, float32)        input 1 (indices) must be int32 or int64, but is float32
Min-8(int64, int64)       allowed, with a warning: Min-12 is the same operator for int64 too, and exporters write that
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import onnx.defs

from atc_py.ir.types import DType, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops.base import InferError

_SPELLED = {
    DType.FLOAT32: "float", DType.FLOAT64: "double", DType.FLOAT8_E4M3FN: "float8e4m3fn",
    DType.FLOAT8_E4M3FNUZ: "float8e4m3fnuz", DType.FLOAT8_E5M2: "float8e5m2", DType.FLOAT8_E5M2FNUZ: "float8e5m2fnuz",
    DType.FLOAT8_E8M0: "float8e8m0", DType.FLOAT4_E2M1: "float4e2m1",
    DType.FLOAT6_E2M3: "float6e2m3", DType.FLOAT6_E3M2: "float6e3m2",
}  # fmt: skip
"""Element types whose name in onnx's schemas is not ours."""
_OURS = {text: dtype.value for dtype, text in _SPELLED.items()}


@dataclass(frozen=True)
class Formal:
    """A formal input: its type variable, the types that it allows, and whether it may come any number of times.

    `schema`: domain, operator and version, and `place` the input's.
    """

    schema: tuple[str, str, int]
    place: int
    name: str
    variable: str
    allowed: frozenset[str]
    variadic: bool
    shared: bool


@cache
def formals(domain: str, op: str, version: int) -> tuple[Formal, ...]:
    """The formal inputs of an operator's schema."""
    schema: Any = onnx.defs.get_schema(op, version, domain)
    variables = {c.type_param_str for c in schema.type_constraints}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return tuple(
        Formal(
            (domain, op, version),
            i,
            p.name,
            p.type_str,
            frozenset(p.types),
            p.option == variadic,
            p.type_str in variables and p.is_homogeneous,
        )
        for i, p in enumerate(schema.inputs)
    )


@cache
def _versions() -> dict[tuple[str, str], list[Any]]:
    """All versions of each operator's schema, oldest first."""
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _allowed_since(rule: Formal, text: str) -> int | None:
    """The first later version of the operator that takes the type at the same input; None where none does."""
    domain, op, version = rule.schema
    for schema in _versions().get((domain, op), ()):
        if schema.since_version > version and rule.place < len(schema.inputs):
            formal = schema.inputs[rule.place]
            if formal.name == rule.name and text in formal.types:
                return int(schema.since_version)
    return None


def spelled(type_: Type) -> str | None:
    """The type as onnx's schemas write it; None for maps, whose spelling varies."""
    if isinstance(type_, Tensor):
        return f"tensor({_SPELLED.get(type_.dtype, type_.dtype.value)})"
    if isinstance(type_, (SequenceType, Optional)):
        inner = spelled(type_.element)
        kind = "seq" if isinstance(type_, SequenceType) else "optional"
        return None if inner is None else f"{kind}({inner})"
    return None


@lru_cache(maxsize=1 << 12)
def check(rules: tuple[Formal, ...], types: tuple[Type | None, ...]) -> tuple[str, ...]:
    """What is to be warned of. Raises `InferError` when an input has a type that no version of the schema allows.

    Exporters mix versions: a type that a later version allows at the same input means there what it would mean here.
    """
    warnings = []
    bound: dict[str, tuple[int, str, str]] = {}
    for i, type_ in enumerate(types):
        rule = rules[i] if i < len(rules) else rules[-1] if rules and rules[-1].variadic else None
        text = None if type_ is None or rule is None else spelled(type_)
        if rule is None or text is None:
            continue
        if text not in rule.allowed:
            warnings.append(_excused(rule, i, text))
        if rule.shared:
            first, name, other = bound.setdefault(rule.variable, (i, rule.name, text))
            if other != text:
                raise InferError(
                    f"inputs {first} ({name}) and {i} ({rule.name}) must have one type, but are {_ours(other)} and "
                    f"{_ours(text)}"
                )
    return tuple(warnings)


def _excused(rule: Formal, i: int, text: str) -> str:
    """The warning of a type that only a later version allows. Raises `InferError` where none does."""
    since = _allowed_since(rule, text)
    if since is None:
        raise InferError(f"input {i} ({rule.name}) must be {_listed(rule.allowed)}, but is {_ours(text)}")
    _, op, version = rule.schema
    return f"{op}-{version} takes no {_ours(text)} for input {i} ({rule.name}); it is computed as {op}-{since} does"


def _ours(text: str) -> str:
    """`tensor(float)` as `float32`."""
    if text.startswith("tensor("):
        inner = text[7:-1]
        return _OURS.get(inner, inner)
    return text


def _listed(allowed: frozenset[str]) -> str:
    names = sorted(_ours(t) for t in allowed)
    if len(names) > 8:
        names = [*names[:7], f"one of {len(names) - 7} more"]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
