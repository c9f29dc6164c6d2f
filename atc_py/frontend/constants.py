"""The value of a Constant node, whichever of its attributes holds it."""

from __future__ import annotations

import numpy as np

from atc_py.frontend.attributes import Attributes, decode
from atc_py.frontend.external import ExternalFiles
from atc_py.ir.constants import Blob, Constant, Splat, blob
from atc_py.ops.base import InferError

_PLAIN = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    "value_string": object, "value_strings": object,
}  # fmt: skip
_NAMES = ("value", "sparse_value", *_PLAIN)


def constant_node(given: Attributes, files: ExternalFiles) -> Constant:
    """The constant; raises `InferError` unless exactly one attribute holds it."""
    names = [n for n in given if n in _NAMES]
    strange = [n for n in given if n not in _NAMES]
    if len(names) != 1 or strange:
        listed = ", ".join(f"'{n}'" for n in given) or "none"
        raise InferError(f"attributes of Constant must be one of {', '.join(_NAMES)}, but are {listed}")
    name = names[0]
    value = decode(given[name], files)
    if name not in _PLAIN:
        if not isinstance(value, (Blob, Splat)):
            raise InferError(f"attribute '{name}' must be a tensor")
        return value
    kinds = {"float": (float, int), "int": (int,), "string": (str,)}[name.removeprefix("value_").rstrip("s")]
    items = value if name.endswith("s") else (value,)
    if not isinstance(items, tuple) or not all(isinstance(item, kinds) for item in items):
        raise InferError(f"attribute '{name}' is of another type than its name says")
    array = np.empty(len(items), _PLAIN[name])
    array[:] = items
    return blob(array if name.endswith("s") else array.reshape(()))
