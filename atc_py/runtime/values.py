"""What a caller gives for an input, as the device takes it; and what is handed back.

taken(Tensor(float32, (N, 4)), x, "input 'x'", problems)     x as a contiguous array of native float32
taken(Sequence(Tensor(float32, None)), [a, b], …)            a new list of such arrays
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc_py.errors import Problems
from atc_py.ir.types import DType, Map, Optional, Sequence, Tensor, Type
from atc_py.plan.ports import show


def told(type_: Type) -> str:
    """A type for people: `float32[N, 4]`, `a sequence of string`."""
    if isinstance(type_, Tensor):
        return type_.dtype.value + ("" if type_.shape is None else show(type_.shape))
    if isinstance(type_, Sequence):
        return f"a sequence of {told(type_.element)}"
    if isinstance(type_, Optional):
        return f"{told(type_.element)} or None"
    return f"a map from {type_.key.value} to {told(type_.value)}"


def taken(type_: Type, value: Any, place: str, problems: Problems) -> Any:
    """`value` as the device takes it; what is wrong with it is added to `problems` (E30008, inside lists E30001).

    Types nest as deep as the file allows, which is not deep.
    """
    if isinstance(type_, Tensor):
        return (
            _strings(value, place, problems) if type_.dtype is DType.STRING else _array(type_, value, place, problems)
        )
    if isinstance(type_, Optional):
        return None if value is None else taken(type_.element, value, place, problems)
    if isinstance(type_, Map):
        return _map(type_, value, place, problems)
    if not isinstance(value, (list, tuple)):
        return _wrong(place, f"is a {type(value).__name__}, expected {told(type_)}", "give a list", problems)
    items = [taken(type_.element, v, f"{place}[{i}]", problems) for i, v in enumerate(value)]
    if isinstance(type_.element, Tensor):
        for i, item in enumerate(items):
            _check_shape(type_.element, item, f"{place}[{i}]", problems)
    return items


def as_it_lies(dtype: np.dtype[Any], value: Any) -> Any:
    """A read-only view of an array that the device takes as it is, None for every other value (see `taken`)."""
    if type(value) is not np.ndarray or value.dtype != dtype or dtype.hasobject:
        return None
    flags = value.flags
    return _read_only(value.view()) if flags.c_contiguous and flags.aligned else None


def _read_only(view: Any) -> Any:
    """No plan may write into the caller's arrays, not even a damaged one."""
    view.setflags(write=False)
    return view


def _wrong(place: str, cause: str, hint: str, problems: Problems) -> Any:
    problems.add("E30008", place, cause, hint)


def _array(type_: Tensor, value: Any, place: str, problems: Problems) -> Any:
    meant = type_.dtype.numpy
    hint = f"give a numpy array of {type_.dtype.value}"
    try:
        array = np.asarray(value)
    except Exception as e:  # whatever the object's own conversion raises
        return _wrong(place, f"is no array, expected {told(type_)}: {type(e).__name__}: {e}", hint, problems)
    if array.dtype == object:
        return _wrong(place, f"is a {type(value).__name__}, expected {told(type_)}", hint, problems)
    if array.dtype != meant and array.dtype.newbyteorder("=") != meant:
        cast = f"convert it: x.astype('{type_.dtype.value}')"
        return _wrong(place, f"has dtype {array.dtype}, expected {type_.dtype.value}", cast, problems)
    # Copies only what is not in native byte order, C order and aligned.
    return _read_only(np.require(array, meant, ["C", "A"]).reshape(array.shape).view())


def _strings(value: Any, place: str, problems: Problems) -> Any:
    hint = "give an array of str, e.g. np.array(['a', 'b'], dtype=object)"
    try:
        array = np.array(value, dtype=object)
    except Exception as e:  # whatever the object's own conversion raises
        return _wrong(place, f"is no array of strings: {type(e).__name__}: {e}", hint, problems)
    for i, item in enumerate(array.flat):
        if isinstance(item, bytes):
            try:
                array.flat[i] = item.decode()
            except UnicodeDecodeError as e:
                return _wrong(place, f"element {i} is no UTF-8: {e.reason} at byte {e.start}", hint, problems)
        elif not isinstance(item, str):
            return _wrong(place, f"element {i} is a {type(item).__name__}, expected a string", hint, problems)
    return array


def _map(type_: Map, value: Any, place: str, problems: Problems) -> Any:
    if not isinstance(value, Mapping):
        return _wrong(place, f"is a {type(value).__name__}, expected {told(type_)}", "give a dict", problems)
    right = str if type_.key is DType.STRING else (int, np.integer)
    for key in value:
        if not isinstance(key, right) or isinstance(key, bool):
            return _wrong(place, f"has the key {key!r}, expected {type_.key.value}", "give other keys", problems)
    return {k: taken(type_.value, _number(type_.value, v), f"{place}[{k!r}]", problems) for k, v in value.items()}


def _number(type_: Type, value: Any) -> Any:
    """A Python number as an array of the element type, which it does not have itself; all else as it is."""
    if not isinstance(type_, Tensor) or isinstance(value, (bool, np.generic)) or not isinstance(value, (int, float)):
        return value
    fits = type_.dtype.is_float or (type_.dtype.is_int and isinstance(value, int))
    return np.asarray(value, type_.dtype.numpy) if fits else value


def _check_shape(type_: Tensor, item: Any, place: str, problems: Problems) -> None:
    """The sizes of an element that are plain numbers must be those of the type."""
    if type_.shape is None or not isinstance(item, np.ndarray):
        return
    fits = len(type_.shape) == item.ndim and all(
        not isinstance(d, int) or d == n for d, n in zip(type_.shape, item.shape, strict=True)
    )
    if not fits:
        problems.add("E30001", place, f"has shape {show(item.shape)}", f"the model takes {show(type_.shape)}")


def handed_back(value: Any) -> Any:
    """A host value as the caller's own: nothing in it is shared with a constant, an input or another output."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return [handed_back(v) for v in value]
    if isinstance(value, Mapping):
        return {k: handed_back(v) for k, v in value.items()}
    return value
