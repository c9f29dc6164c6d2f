"""Element types that onnx's schemas allow: what would otherwise fail somewhere inside an operator is said here.

Add(float32, int64)       inputs 0 (A) and 1 (B) must have one type, but are float32 and int64
Gather(x, float32)        input 1 (indices) must be int32 or int64, but is float32
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
    """A formal input: its type variable, the types that it allows, and whether it may come any number of times."""

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
            p.name,
            p.type_str,
            frozenset(p.types),
            p.option == variadic,
            p.type_str in variables and p.is_homogeneous,
        )
        for p in schema.inputs
    )


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
def check(rules: tuple[Formal, ...], types: tuple[Type | None, ...]) -> None:
    """Raise `InferError` when an input has a type that the schema does not allow."""
    bound: dict[str, tuple[int, str, str]] = {}
    for i, type_ in enumerate(types):
        rule = rules[i] if i < len(rules) else rules[-1] if rules and rules[-1].variadic else None
        text = None if type_ is None or rule is None else spelled(type_)
        if rule is None or text is None:
            continue
        if text not in rule.allowed:
            raise InferError(f"input {i} ({rule.name}) must be {_listed(rule.allowed)}, but is {_ours(text)}")
        if rule.shared:
            first, name, other = bound.setdefault(rule.variable, (i, rule.name, text))
            if other != text:
                raise InferError(
                    f"inputs {first} ({name}) and {i} ({rule.name}) must have one type, but are {_ours(other)} and "
                    f"{_ours(text)}"
                )


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
