"""Attributes as keys: what is equal has one key, and what differs never shares one.

{"axis": 1, "perm": [0, 2, 1]}        (("axis", 1), ("perm", (0, 2, 1)))
an array of 2,000 float32             (dtype, shape, its 8,000 bytes)      as text, numpy leaves the middle out
an object that is no key              known by its identity; the key keeps it, so nobody else gets that identity
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

_PLAIN = frozenset({int, float, str, bool, bytes, type(None)})


def frozen(value: Any) -> Hashable:
    """An attribute's value, or the mapping of all attributes, as something that can be a key."""
    kind = type(value)
    if kind in _PLAIN:
        plain: Hashable = value
        return plain
    if isinstance(value, dict):
        return tuple([(k, v if type(v) in _PLAIN else frozen(v)) for k, v in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([v if type(v) in _PLAIN else frozen(v) for v in value])
    if isinstance(value, np.ndarray):
        content = tuple(value.reshape(-1).tolist()) if value.dtype.hasobject else value.tobytes()
        return value.dtype, value.shape, content
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    found: Hashable = value
    return found


class _Same:
    """Equal only to the key of the very same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
