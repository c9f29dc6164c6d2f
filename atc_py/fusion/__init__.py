"""Fusion: rules as data, and the engine that applies them. `RULES` is the ordered list."""

from atc_py.fusion.bodies import fused_task
from atc_py.fusion.chains import CHAIN
from atc_py.fusion.engine import fuse
from atc_py.fusion.epilogue import CONV_EPILOGUE, CONV_NORM, CONV_POOL, CONV_STATISTICS
from atc_py.fusion.flash import FLASH
from atc_py.fusion.plugins import installed, load, load_all
from atc_py.fusion.products import HORIZONTAL, PROLOGUE, ROTARY
from atc_py.fusion.rule import Constraint, Group, Join, Match, Refusal, Result, Rule, saved_us
from atc_py.fusion.vector import EMBEDDING, POOLING, RESIDUAL_NORM, VECTOR

RULES: tuple[Rule, ...] = (
    HORIZONTAL,
    CHAIN,
    CONV_EPILOGUE,
    CONV_NORM,
    CONV_STATISTICS,
    CONV_POOL,
    ROTARY,
    PROLOGUE,
    FLASH,
    EMBEDDING,
    RESIDUAL_NORM,
    POOLING,
    VECTOR,
)
"""All rules, in the order in which they are applied."""

__all__ = [
    "CHAIN", "CONV_EPILOGUE", "CONV_NORM", "CONV_POOL", "CONV_STATISTICS", "EMBEDDING", "FLASH", "HORIZONTAL",
    "POOLING", "PROLOGUE", "RESIDUAL_NORM", "ROTARY", "RULES", "VECTOR", "Constraint", "Group", "Join", "Match",
    "Refusal", "Result", "Rule", "fuse", "fused_task", "installed", "load", "load_all", "saved_us",
]  # fmt: skip
