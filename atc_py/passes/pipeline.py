"""The passes, in order; and `optimize` and `lower`, which run them until nothing changes.

    report = optimize(graph)                  # target-independent: the canonical graph
    report = lower(graph, load("Ascend310P3"))    # now it is this NPU's graph

A pass is run again only when something has changed since it last found nothing to do, so a graph at rest costs one
look of each pass. Running a pipeline on its own result changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from atc_py.errors import AtcError, Problem, error
from atc_py.fusion import RULES, Rule, installed
from atc_py.ir.graph import Graph
from atc_py.ir.symbols import node_symbols
from atc_py.ir.validate import validate
from atc_py.passes.activations import recognise_activations
from atc_py.passes.arithmetic import simplify_arithmetic
from atc_py.passes.asked import ask_again, asked_of
from atc_py.passes.attention import recognise_attention
from atc_py.passes.axes import merge_axes
from atc_py.passes.base import LowerOptions, Observer, OptimizeOptions, Outcome, Pass, PassContext, work_nodes
from atc_py.passes.borders import insert_borders
from atc_py.passes.broadcasts import delay_broadcasts
from atc_py.passes.casts import merge_casts
from atc_py.passes.collectives import order_collectives
from atc_py.passes.cse import merge_common
from atc_py.passes.dead_code import remove_dead_code
from atc_py.passes.engines import assign_engines
from atc_py.passes.fold_affine import fold_affine
from atc_py.passes.fold_constants import fold_constants
from atc_py.passes.fuse import fuse_tasks
from atc_py.passes.gates import recognise_gates
from atc_py.passes.heads import join_heads
from atc_py.passes.identity import remove_identities
from atc_py.passes.inline_if import inline_ifs
from atc_py.passes.layouts import assign_layouts
from atc_py.passes.loops import simplify_loops
from atc_py.passes.moments import take_moments
from atc_py.passes.norms import recognise_norms
from atc_py.passes.parts import merge_parts
from atc_py.passes.picks import pick_first
from atc_py.passes.pixels import recognise_pixel_shuffles
from atc_py.passes.precision import check_mode, mark_precision
from atc_py.passes.quantized import fold_quantized
from atc_py.passes.report import Report, Row
from atc_py.passes.reshapes import merge_reshapes
from atc_py.passes.rotary import recognise_rotary
from atc_py.passes.rows import unfold_rows
from atc_py.passes.sink_transposes import sink_transposes
from atc_py.passes.split import split_large
from atc_py.passes.transposes import merge_transposes
from atc_py.target import Target

OPTIMIZE: tuple[Pass, ...] = (
    Pass("collectives", order_collectives, 0, "collectives come one after the other"),
    Pass("dead_code", remove_dead_code, 0, "what reaches no output goes"),
    Pass("inline_if", inline_ifs, 1, "an If with a constant condition becomes its branch"),
    Pass("loops", simplify_loops, 1, "loops that count have no condition; loops that never run go"),
    Pass("identity", remove_identities, 1, "nodes that change nothing go"),
    Pass("fold_constants", fold_constants, 1, "operators over constants are computed now"),
    Pass("casts", merge_casts, 1, "chains of casts that lose nothing become one"),
    Pass("transposes", merge_transposes, 1, "consecutive transposes become one, or none"),
    Pass("reshapes", merge_reshapes, 1, "chains of Reshape, Squeeze, Unsqueeze and Flatten become one Reshape"),
    Pass("axes", merge_axes, 1, "a Transpose between two Reshapes moves the axes that it means"),
    Pass("pixels", recognise_pixel_shuffles, 1, "Reshape, Transpose, Reshape that shuffle pixels become one operator"),
    Pass("parts", merge_parts, 1, "chains of Slice, Split, Concat and Pad become one, or none"),
    Pass("picks", pick_first, 2, "what takes few elements of a table takes them before the table is computed"),
    Pass("broadcasts", delay_broadcasts, 2, "Expands and Reshapes wait until after elementwise operators"),
    Pass("arithmetic", simplify_arithmetic, 1, "arithmetic with constants takes one form"),
    Pass("cse", merge_common, 1, "nodes that compute the same thing become one"),
    Pass("norms", recognise_norms, 2, "normalizations written in pieces become one operator"),
    Pass("rotary", recognise_rotary, 2, "rotary position embeddings written in pieces become one operator"),
    Pass("attention", recognise_attention, 2, "attention written in pieces becomes one operator"),
    Pass("heads", join_heads, 2, "attention reads its heads side by side, without a Transpose"),
    Pass("rows", unfold_rows, 2, "matrix products of rows need no Reshape around them"),
    Pass("sink_transposes", sink_transposes, 2, "transposes move down to where they meet their inverse"),
    Pass("activations", recognise_activations, 2, "activations written in pieces become one operator"),
    Pass("gates", recognise_gates, 2, "sigmoids, rectifiers and softmax written in pieces become one operator"),
    Pass("fold_affine", fold_affine, 2, "BatchNorm and per-channel constants go into the weights before them"),
)

LOWER: tuple[Pass, ...] = (
    Pass("engines", assign_engines, 0, "AI Core, AI CPU or host for each node"),
    Pass("quantized", fold_quantized, 2, "Dequantize and Quantize go into operators on bytes"),
    Pass("precision", mark_precision, 0, "the dtype in which each node computes, and the Casts that it needs"),
    Pass("split", split_large, 0, "operators that exceed the target's memory are cut into pieces"),
    Pass("moments", take_moments, 2, "statistics of large maps are taken while the maps are made"),
    Pass("fusion", fuse_tasks, 2, "chains become one task each"),
    Pass("layouts", assign_layouts, 1, "maps lie in blocks of channels, weights in fractals, where that pays"),
    Pass("borders", insert_borders, 0, "copies where a value crosses from one engine to another"),
)

TOLD = frozenset({"E20040", "E20043"})
"""Errors that a pass raises about the model, in whose words they are told."""

MAX_ROUNDS = 8
"""Rounds over a list; rewrites enable each other a few levels deep, and a graph is at rest long before this."""


def optimize(graph: Graph, options: OptimizeOptions | None = None, observe: Observer | None = None) -> Report:
    """Make the canonical graph, in place. Raises `AtcError` E20001 when a pass fails, E20002 for an unknown name."""
    options = options or OptimizeOptions()
    return _run("optimize", OPTIMIZE, PassContext(options, graph, observe=observe))


def lower(graph: Graph, target: Target, options: LowerOptions | None = None, observe: Observer | None = None) -> Report:
    """Make it the target's graph, in place: engines, precision, fused tasks. Raises `AtcError` E20001 to E20003."""
    options = options or LowerOptions()
    check_mode(options.precision_mode, options.precision_lists)
    return _run("lower", LOWER, PassContext(options, graph, target, observe))


def check_options(optimizing: OptimizeOptions, lowering: LowerOptions) -> None:
    """Raise E20002 or E20003 for levels, pass names and modes that do not exist."""
    check_mode(lowering.precision_mode, lowering.precision_lists)
    _selected(OPTIMIZE, optimizing.level, optimizing.disabled, optimizing.rules)


def pass_names(rules: Sequence[Rule] = ()) -> tuple[str, ...]:
    """All names that may be disabled: passes in order, then fusion rules, those of users (also `rules`) last."""
    found = [p.name for p in (*OPTIMIZE, *LOWER)]
    return tuple(dict.fromkeys(found + [r.name for r in (*RULES, *installed(), *rules)]))


def _selected(passes: Sequence[Pass], level: int, disabled: frozenset[str], rules: Sequence[Rule] = ()) -> list[Pass]:
    if level not in (0, 1, 2, 3):
        raise error("E20002", "--opt-level", f"there is no level {level}", "the levels are O0, O1, O2 and O3")
    names = pass_names(rules)
    for name in sorted(disabled - set(names)):
        near = get_close_matches(name, names, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"the passes are {', '.join(names)}"
        raise error("E20002", "--disable-pass", f"there is no pass '{name}'", hint)
    return [p for p in passes if p.level <= level and p.name not in disabled]


class _Progress:
    """What one pass has done so far. `clean_at`: the number of changes after which it last found nothing to do."""

    def __init__(self, nodes: int) -> None:
        self.before = nodes
        self.changed = self.removed = 0
        self.clean_at = -1
        self.outcome = Outcome()

    def row(self, stage: str, name: str) -> Row:
        """The report's row."""
        declined = tuple(dict.fromkeys(d for _, d in self.outcome.declined))
        return Row(stage, name, self.before, self.before - self.removed, self.changed, declined)


def _run(stage: str, passes: Sequence[Pass], ctx: PassContext) -> Report:
    selected = _selected(passes, ctx.options.level, ctx.options.disabled, ctx.options.rules)
    progress: dict[str, _Progress] = {}
    ran: list[str] = []
    nodes = work_nodes(ctx.root)
    changes, settled = 0, False
    asked = asked_of(ctx.root)
    for _ in range(MAX_ROUNDS):
        at_start = changes
        for p in selected:
            done = progress.setdefault(p.name, _Progress(nodes))
            if done.clean_at == changes:
                continue
            done.outcome = _guarded(p, ctx, ran)
            ran.append(p.name)
            if done.outcome.changed:
                changes += 1
                before, nodes = nodes, work_nodes(ctx.root)
                done.changed += done.outcome.changed
                done.removed += before - nodes
                if ctx.observe is not None:
                    ctx.observe(f"{stage}/{p.name}", ctx.root)
            else:
                done.clean_at = changes
        settled = changes == at_start
        if settled:
            break
    for done in progress.values():
        for node, decline in done.outcome.declined:
            node.note(f"{decline.rule}: {decline.reason}")
    ask_again(ctx.root, asked)
    _forget_symbols(ctx.root)
    rows = tuple(progress[p.name].row(stage, p.name) for p in selected)
    return Report(rows, settled, tuple(ctx.warnings))


def _guarded(p: Pass, ctx: PassContext, ran: Sequence[str]) -> Outcome:
    """Run a pass; its errors, and under `debug` those of the graph that it leaves, name the passes that ran before."""
    before = ", ".join(dict.fromkeys(ran)) or "none"
    try:
        outcome = p.run(ctx)
        if ctx.options.debug:
            validate(ctx.root)
    except AtcError as e:
        if all(q.code in TOLD for q in e.problems):
            raise
        hint = f"passes that had run: {before}"
        problems = [Problem(q.code, q.place, f"in pass '{p.name}': {q.cause}", hint) for q in e.problems]
        raise AtcError(*problems) from e
    except Exception as e:
        cause = f"{type(e).__name__}: {e}; passes that had run: {before}"
        raise error("E20001", f"pass '{p.name}'", cause, f"--disable-pass {p.name} leaves it out") from e
    return outcome


def _forget_symbols(root: Graph) -> None:
    """Forget run-time symbols that nothing speaks of any more."""
    runtime = [name for name, r in root.symbols.items() if r.runtime]
    if not runtime:
        return
    used = {s for graph in root.walk() for node in graph.nodes.values() for s in node_symbols(graph, node)}
    for name in runtime:
        if name not in used:
            del root.symbols[name]
