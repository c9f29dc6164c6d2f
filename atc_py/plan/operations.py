"""The operators that a plan runs, those inside fused tasks included.

task 0 Fused {MatMul, acme::SoftCap {_custom = "softcap.py"}}   →   Fused, MatMul, acme::SoftCap
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atc_py.errors import AtcError
from atc_py.ir.graph import STRUCTURAL
from atc_py.ops import MARK
from atc_py.ops.base import Op
from atc_py.ops.build import lookup
from atc_py.plan.types import Plan


def operations(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(operator, attributes) of each task, and of each node in the body of a fused one."""
    for task in plan.tasks():
        yield task.kernel, task.attrs
        if task.body is not None:
            yield from ((n.op, n.attrs) for n in task.body.nodes.values() if n.op not in STRUCTURAL)


def declared(kernel: str, attrs: Mapping[str, Any]) -> Op | None:
    """The declaration of an operator; None where it is a custom one that nobody declares here."""
    try:
        return lookup(kernel, attrs)
    except AtcError:
        return None


def custom_modules(plan: Plan) -> dict[str, str]:
    """The plan's custom operators, sorted, each with the module that declared it at conversion."""
    return dict(sorted({name: str(attrs[MARK]) for name, attrs in operations(plan) if MARK in attrs}.items()))
