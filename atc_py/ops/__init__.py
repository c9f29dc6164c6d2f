"""The table of operators. `get` finds an operator by its name and imports its family only then."""

from __future__ import annotations

from importlib import import_module

from atc_py.ops.base import REGISTRY, Op

MARK = "_custom"
"""The attribute of a custom operator's node that says which module declared the operator at conversion."""


def get(name: str) -> Op | None:
    """The operator called `name` (ONNX's name; other domains as `domain::Name`), or None when it is not declared."""
    op = REGISTRY.get(name)
    if op is None:
        from atc_py.ops.index import INDEX

        module = INDEX.get(name)
        if module is None:
            return None
        import_module(f"atc_py.ops.{module}")
        op = REGISTRY[name]
    return op
