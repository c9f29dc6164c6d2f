"""What the passes of one conversion did: a row a pass.

    pass              nodes before   after   changed   declined
    identity                   312     298        14          0
    fold_affine                298     245        53          1     conv_7 (fold_affine): its result has 2 readers

Rows are those of all rounds together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atc_py.errors import Problem
from atc_py.passes.base import Decline


@dataclass(frozen=True)
class Row:
    """One pass over all rounds: nodes (constants not counted, subgraphs included) before its first run, and how many
    of these are left when those are taken off that it removed.

    `changed` counts its rewrites; `declined` holds what it decided against in its last round.
    """

    stage: str
    name: str
    before: int
    after: int
    changed: int
    declined: tuple[Decline, ...] = ()


@dataclass(frozen=True)
class Report:
    """The rows in the order in which the passes first ran. `settled`: a last round changed nothing.

    `warnings` (codes W…) are what passes noticed that the user should know of.
    """

    rows: tuple[Row, ...] = ()
    settled: bool = True
    warnings: tuple[Problem, ...] = ()

    def then(self, other: Report) -> Report:
        """This report and what came after it."""
        return Report(self.rows + other.rows, self.settled and other.settled, self.warnings + other.warnings)

    @property
    def changed(self) -> int:
        """Rewrites in total."""
        return sum(row.changed for row in self.rows)

    @property
    def declined(self) -> tuple[Decline, ...]:
        """Everything that was decided against."""
        return tuple(d for row in self.rows for d in row.declined)

    def row(self, name: str) -> Row | None:
        """The row of a pass, None when it did not run."""
        return next((row for row in self.rows if row.name == name), None)

    def to_json(self) -> list[dict[str, Any]]:
        """The rows as JSON objects."""
        return [
            {
                "stage": row.stage,
                "pass": row.name,
                "nodes": {"before": row.before, "after": row.after},
                "changed": row.changed,
                "declined": [{"node": d.node, "rule": d.rule, "reason": d.reason} for d in row.declined],
            }
            for row in self.rows
        ]
