"""The graph's inputs: declared shapes, and what `--input-shape` says about them.

declared  x: [N, 3, ?, ?], ids: [N, seq]       --input-shape "x:1,3,-1,224"
x: [1, 3, x.2, 224]   ids: [1, seq]            # a size for N counts wherever N stands
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from operator import index

import onnx

from atc_py.errors import Problem, Problems, error
from atc_py.frontend import codes
from atc_py.frontend.onnx_types import Dims, UnusableType, declared_dims, to_type
from atc_py.ir.dim_poly import MAX_NAME
from atc_py.ir.dims import Dim, Size, symbol
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor, Type

Item = Size | str | None
Shapes = Mapping[str, Sequence[Item]]
"""A size, a symbol's name, a range `"1~10"`, or -1 or None for what the model declares."""

LARGEST = (1 << 63) - 1
"""The largest size that ONNX, and an OM, can hold."""
_SIZES = f"sizes are 0 to {LARGEST}; -1 keeps what the model has"
_SIZE, _INTEGER = re.compile("[0-9]{1,20}"), re.compile("-?[0-9]{1,20}")
"""Numbers as they are written; with more digits none is a size."""


def parse_input_shapes(text: str) -> dict[str, tuple[Item, ...]]:
    """`"x:1,3,224,224;ids:-1,1~512;flag:"` as a mapping; raises `AtcError` (E10002)."""
    found: dict[str, tuple[Item, ...]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, colon, dims = part.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise error(codes.INPUT_SHAPE, f"'{part}'", "expected name:size,size,…", 'e.g. "x:1,3,224,224;mask:1,-1"')
        if name in found:
            raise error(codes.INPUT_SHAPE, f"input '{name}'", "its shape is given twice", "leave one of them out")
        found[name] = tuple(_item(d.strip()) for d in dims.split(",")) if dims.strip() else ()
    return found


def _item(text: str) -> Item:
    return int(text) if _INTEGER.fullmatch(text) else text


@dataclass
class _Wish:
    """What is asked of one dim: a size, or a name and a range."""

    size: int | None = None
    name: str | None = None
    low: int = 0
    high: int | None = None


def _wish(item: Item, place: str) -> _Wish:
    """One item read; raises `AtcError`."""
    if isinstance(item, Dim):
        return _Wish(name=str(item))
    if isinstance(item, str):
        text = item.strip()
        low, tilde, high = (s.strip() for s in text.partition("~"))
        if text in ("", "?", "-1"):
            return _Wish()
        if tilde:
            if _SIZE.fullmatch(low) and (_SIZE.fullmatch(high) or high in ("", "-1")):
                top = int(high) if _SIZE.fullmatch(high) else None
                _check_size(max(int(low), top or 0), place)
                if top is None or int(low) <= top:
                    return _Wish(size=top) if top == int(low) else _Wish(low=int(low), high=top)
            raise error(codes.INPUT_SHAPE, place, f"'{text[:80]}' is no range", "write it as low~high, e.g. 1~16")
        if not text.lstrip("-").isdecimal():
            return _Wish(name=text)
        if not _INTEGER.fullmatch(text):
            raise error(codes.INPUT_SHAPE, place, f"'{text[:80]}' is no size", _SIZES)
        item = int(text)
    if item is None:
        return _Wish()
    size = whole(item)
    if size is None:
        hint = 'give integers, symbol names, or ranges as "1~16"'
        raise error(codes.INPUT_SHAPE, place, f"{type(item).__name__} {item!r} is no size", hint)
    if size == -1:
        return _Wish()
    _check_size(size, place)
    return _Wish(size=size)


def whole(given: object) -> int | None:
    """An integer of Python, NumPy or whatever else counts; None for what is none. A bool is none."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        return None
    try:
        return index(given)
    except TypeError:  # an array of several
        return None


def _check_size(size: int, place: str) -> None:
    if not 0 <= size <= LARGEST:
        shown = size if size.bit_length() <= 128 else f"an integer of {size.bit_length()} bits"
        raise error(codes.INPUT_SHAPE, place, f"{shown} is no size", _SIZES)


@dataclass
class Inputs:
    """Inputs by name with their types, the symbols' ranges, and the sizes that were given to declared symbols."""

    types: dict[str, Type] = field(default_factory=dict)
    symbols: dict[str, Range] = field(default_factory=dict)
    bound: dict[str, Size] = field(default_factory=dict)
    changed: bool = False
    warnings: list[Problem] = field(default_factory=list)


def resolve(declared: Mapping[str, onnx.TypeProto], shapes: Shapes, problems: Problems) -> Inputs:
    """Types of all inputs; everything wrong with them or with `shapes` is added to `problems`."""
    result = Inputs()
    dims = {n: declared_dims(p.tensor_type) for n, p in declared.items() if p.HasField("tensor_type")}
    _check_names(dims, shapes, problems)
    wishes: dict[str, list[_Wish]] = {}
    for name, items in shapes.items():
        if name in dims:
            found = _wishes(name, dims[name], items, problems)
            if found is not None:
                wishes[name] = found
                _bind(result, name, dims[name] or (None,) * len(found), found, problems)
    for name, proto in declared.items():
        try:
            type_ = to_type(proto, lambda d, name=name: _shape(result, name, d, wishes.get(name)))  # type: ignore[misc]
        except UnusableType as problem:
            problems.add(codes.INPUT_TYPE, f"input '{name}'", str(problem))
            continue
        if isinstance(type_, Tensor) and type_.shape is None and name in wishes:
            type_ = type_.with_shape(_shape(result, name, (None,) * len(wishes[name]), wishes[name]))
        result.types[name] = type_
    return result


def _check_names(dims: Mapping[str, Dims | None], shapes: Shapes, problems: Problems) -> None:
    for name in shapes:
        if name not in dims:
            near = get_close_matches(name, list(dims), 1)
            listed = "; ".join(f"{n}: {_shown(d)}" for n, d in dims.items())
            hint = (f"did you mean '{near[0]}'? " if near else "") + f"the model's inputs are {listed or 'none'}"
            problems.add(codes.INPUT_SHAPE, f"input '{name}'", "the model has no tensor input of this name", hint)


def _shown(dims: Dims | None) -> str:
    return "[?]" if dims is None else "[" + ", ".join("-1" if d is None else str(d) for d in dims) + "]"


def _wishes(name: str, dims: Dims | None, items: Sequence[Item], problems: Problems) -> list[_Wish] | None:
    """The items of one input, checked against its declared shape; None when they are wrong."""
    place = f"input '{name}'"
    if dims is not None and len(dims) != len(items):
        cause = f"the shape given has {len(items)} dims, but the model declares {_shown(dims)} with {len(dims)}"
        problems.add(codes.SHAPE_RANK, place, cause, "give one size for each dim; -1 keeps what the model has")
        return None
    found = []
    for axis, item in enumerate(items):
        wish = _wish(item, f"{place}, dim {axis}")
        fixed = dims[axis] if dims is not None else None
        if type(fixed) is int and wish.size not in (None, fixed):
            cause = f"dim {axis} is {wish.size} in the shape given, but the model fixes it to {fixed}: {_shown(dims)}"
            problems.add(codes.INPUT_SHAPE, place, cause, "give the model's size, or export it with a dynamic axis")
            return None
        found.append(wish)
    return found


def _bind(result: Inputs, name: str, dims: Dims, wishes: Sequence[_Wish], problems: Problems) -> None:
    """Note what is asked of declared symbols, which counts for all inputs that mention them."""
    for axis, (declared, wish) in enumerate(zip(dims, wishes)):
        place = f"input '{name}'"
        if type(declared) is int:
            if wish.name is not None or wish.high is not None or wish.low:
                low, high = wish.low, wish.high
                if declared < low or (high is not None and declared > high):
                    cause = f"dim {axis} is fixed to {declared} in the model, which is outside {low}~{high or ''}"
                    problems.add(codes.INPUT_SHAPE, place, cause)
                else:
                    cause = f"dim {axis} is fixed to {declared} in the model and stays so"
                    result.warnings.append(Problem(codes.FIXED_DIM, place, cause))
            continue
        key = declared if isinstance(declared, str) else f"{name}.{axis}"
        size: Size | None = wish.size if wish.name is None else _symbol(result, wish.name)
        if wish.high is not None or wish.low:
            _narrow(result, key, wish.low, wish.high, place, problems)
        if size is None:
            continue
        result.changed = True
        if result.bound.setdefault(key, size) != size:
            cause = f"dim '{key}' is {size} here, but {result.bound[key]} in another input"
            problems.add(codes.INPUT_SHAPE, place, cause, "dims of one name have one size")


def _narrow(result: Inputs, key: str, low: int, high: int | None, place: str, problems: Problems) -> None:
    _symbol(result, key)
    old = result.symbols[_short(key)]
    low = max(low, old.lo)
    tops = [h for h in (high, old.hi) if h is not None]
    top = min(tops) if tops else None
    if top is not None and low > top:
        problems.add(codes.INPUT_SHAPE, place, f"the ranges given for dim '{key}' have nothing in common")
        return
    result.symbols[_short(key)] = Range(low, top)


def _short(name: str) -> str:
    """The name as a symbol may have it."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 33]}~{sha256(name.encode()).hexdigest()[:32]}"


def _symbol(result: Inputs, name: str) -> Dim:
    name = _short(name)
    result.symbols.setdefault(name, Range(0, None))
    return symbol(name)


def _shape(result: Inputs, name: str, dims: Dims, wishes: Sequence[_Wish] | None) -> tuple[Size, ...]:
    """The shape of one input, declared symbols replaced by what was asked of them."""
    found: list[Size] = []
    for axis, declared in enumerate(dims):
        if type(declared) is int:
            found.append(declared)
            continue
        key = declared if isinstance(declared, str) else f"{name}.{axis}"
        size = result.bound.get(key)
        found.append(_symbol(result, key) if size is None else size)
    return tuple(found)
