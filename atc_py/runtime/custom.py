"""Custom operators at run time: their modules are given, or found through entry points; an OM holds no code.

plan: task 0 MatMul, task 1 acme::SoftCap {_custom = "softcap.py"}   and nothing declares acme::SoftCap   →   E40005
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atc_py.ops import MARK
from atc_py.plan.operations import operations
from atc_py.plan.types import Plan


def load_custom(sources: Sequence[str | Path]) -> None:
    """Load the modules. Raises `AtcError` E20020 or E20021."""
    if sources:
        from atc_py.ops import plugins

        for source in sources:
            plugins.load(source)


def require_custom(plan: Plan) -> None:
    """Find the plan's custom operators. Raises `AtcError` E40005 with all that nothing declares."""
    found = [(name, attrs) for name, attrs in operations(plan) if MARK in attrs]
    if found:
        from atc_py.ops import plugins

        plugins.require(found)
