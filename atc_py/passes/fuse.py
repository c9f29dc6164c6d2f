"""The fusion engine as a pass: groups become one task each, and the reasons against it are noted.

    Conv ─ Add(residual) ─ Relu        →        Fused { Conv ─ Add ─ Relu }

The rules are in `atc_py.fusion`; those of the user come after ours.
"""

from __future__ import annotations

from atc_py.fusion import RULES, fuse, installed
from atc_py.ir.graph import Graph
from atc_py.passes.base import LowerOptions, PassContext


def fuse_tasks(graph: Graph, ctx: PassContext) -> int:
    """Fuse by all rules that are not disabled; returns how many tasks were made."""
    assert ctx.target is not None
    given = ctx.options.rules if isinstance(ctx.options, LowerOptions) else ()
    rules = [rule for rule in (*RULES, *installed(), *given) if rule.name not in ctx.options.disabled]
    result = fuse(graph, rules, ctx.target, ctx.input_hint)
    for refusal in result.refused:
        ctx.decline(refusal.node, refusal.rule, refusal.text)
    return result.made
