"""Rewrites of graphs: `optimize` makes the canonical graph, `lower` the target's."""

from atc_py.passes.base import Decline, LowerOptions, Observer, OptimizeOptions, Outcome, Pass, PassContext
from atc_py.passes.pipeline import LOWER, OPTIMIZE, check_options, lower, optimize, pass_names
from atc_py.passes.report import Report, Row

__all__ = [
    "LOWER",
    "OPTIMIZE",
    "Decline",
    "LowerOptions",
    "Observer",
    "OptimizeOptions",
    "Outcome",
    "Pass",
    "PassContext",
    "Report",
    "Row",
    "check_options",
    "lower",
    "optimize",
    "pass_names",
]
