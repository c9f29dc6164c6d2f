"""Fusion: rules as data, and the engine that applies them. `RULES` is the ordered list."""

from atc_py.fusion.engine import Constraint, Link, Match, Refusal, Result, Rule, fuse
from atc_py.fusion.epilogue import CONV_EPILOGUE

RULES: tuple[Rule, ...] = (CONV_EPILOGUE,)
"""All rules, in the order in which an anchor is offered to them."""

__all__ = ["CONV_EPILOGUE", "RULES", "Constraint", "Link", "Match", "Refusal", "Result", "Rule", "fuse"]
