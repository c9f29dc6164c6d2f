"""In which dtype each node computes: `--precision-mode` carried out, and what each node does then written on it.

    --precision-mode origin, Ascend310P3     Conv, float32    (cube: float16, int8)     precision "emulated"
                                             Relu, float32    (vector unit)             precision "float32"
    --precision-mode fp16                    Conv, float16                              precision "float16"

"emulated" says that the cube takes several passes of a narrower type to give the exact result: the numbers stay those
of the model's dtype, the clock charges for the passes. The modes are those of ATC; "origin" changes no dtype. What they
mean is in docs/precision.md, the decision in `precision_choice`, the Casts in `precision_casts`. A graph whose nodes
have a precision has been decided: nodes that come later are marked by their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from atc_py.errors import error
from atc_py.ir.clone import clone
from atc_py.ir.constants import Constant
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.passes.base import LowerOptions, PassContext, program_graphs
from atc_py.passes.engines import assign_engines
from atc_py.passes.mixlist import NO_LISTS, PrecisionLists
from atc_py.passes.precision_captures import hoist
from atc_py.passes.precision_casts import Caster, apply
from atc_py.passes.precision_choice import Mode, choose
from atc_py.passes.precision_weights import losses
from atc_py.target import Target

EMULATED = "emulated"
BUILT: Mapping[str, Mode | None] = {
    "origin": None,
    "fp16": Mode(DType.FLOAT16),
    "mixed_float16": Mode(DType.FLOAT16, mixed=True),
    "mixed_bfloat16": Mode(DType.BFLOAT16, mixed=True),
    "cube_fp16in_fp32out": Mode(DType.FLOAT16, cube_only=True),
    "fp32": Mode(DType.FLOAT32, (DType.FLOAT16, DType.BFLOAT16), widens=True),
}
MODES = tuple(BUILT)
"""The precision modes, named as ATC's --precision_mode_v2 names them; "fp32" is force_fp32 there."""


def check_mode(mode: str, lists: PrecisionLists = NO_LISTS) -> None:
    """Raise `AtcError` E20003 unless there is such a mode, and the lists have a meaning in it."""
    if mode not in BUILT:
        near = get_close_matches(mode, MODES, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"the modes are {', '.join(MODES)}"
        raise error("E20003", "--precision-mode", f"there is no precision mode '{mode}'", hint)
    how = BUILT[mode]
    if lists.kinds and (how is None or not how.mixed):
        cause = f"the precision mode '{mode}' has no lists of operators"
        raise error("E20003", "--modify-mixlist", cause, "use mixed_float16 or mixed_bfloat16, or leave the list out")
    if lists.keeps and how is None:
        cause = "under 'origin' all nodes keep their dtypes"
        raise error("E20003", "--keep-dtype", cause, "choose another --precision-mode, or leave the file out")


def mark_precision(graph: Graph, ctx: PassContext) -> int:
    """Carry out the mode on a graph that has not been decided yet, and set `precision` of every node.

    Returns how many nodes changed and Casts came in.
    """
    assert isinstance(ctx.options, LowerOptions) and ctx.target is not None
    mode, made = BUILT[ctx.options.precision_mode], 0
    if mode is not None:
        warned: dict[int, None] = {}

        def converted(constant: Constant, dtype: DType, name: str) -> None:
            if id(constant) not in warned:
                warned[id(constant)] = None
                ctx.warn(losses(constant, dtype, name))

        if any(node.precision for node in graph.nodes.values()):
            caster = Caster(graph, converted)
            made = hoist(graph, mode.target, caster)
            caster.finish()
        else:
            changes = choose(graph, mode, ctx.options.precision_lists)
            made = len(changes) + (apply(graph, changes, mode, converted) if changes else 0)
    return made + _mark(graph, ctx)


def in_precision(graph: Graph, target: Target, mode: str, lists: Mapping[str, Any] | None) -> Graph:
    """A copy of the graph in which the mode is carried out and nothing else is; `lists` as `PrecisionLists.to_json`."""
    copy = clone(graph)
    chosen = NO_LISTS if lists is None else PrecisionLists.from_json(lists)
    ctx = PassContext(LowerOptions(precision_mode=mode, precision_lists=chosen), copy, target)
    for inner in list(program_graphs(copy)):
        assign_engines(inner, ctx)
        mark_precision(inner, ctx)
    return copy


def _mark(graph: Graph, ctx: PassContext) -> int:
    changed = 0
    for node in graph.nodes.values():
        if node.op in STRUCTURAL or node.op == "Fused":
            continue
        precision = _precision(graph, ctx, node)
        changed += node.precision != precision
        node.precision = precision
    return changed


def _precision(graph: Graph, ctx: PassContext, node: Node) -> str:
    """The dtype of what the cube multiplies; else the first float of what comes out and goes in."""
    dtype = _first_float(graph, node)
    if dtype is None:
        return ""
    cube = ctx.op(node).flags.cube if node.engine == "aicore" else ()
    if not cube:
        return _NAMES[id(dtype)]
    operand = graph.type(node.inputs[cube[0]])
    if isinstance(operand, Tensor) and operand.dtype.is_float:
        dtype = operand.dtype
    assert ctx.target is not None
    return dtype.value if not dtype.is_float or ctx.target.has_cube(dtype) else EMULATED


_NAMES = {id(d): d.value for d in DType}
_FLOATS = {id(d) for d in DType if d.is_float}
"""By identity: an enum's own hash and properties take longer than the rest of the look."""


def _first_float(graph: Graph, node: Node) -> DType | None:
    """The first floating-point dtype of outputs and inputs, else the first dtype; None without tensors."""
    values, first = graph.values, None
    for edges in (node.outputs, node.inputs):
        for value in edges:
            if value != ABSENT:
                type_ = values[value].type
                if isinstance(type_, Tensor):
                    if id(type_.dtype) in _FLOATS:
                        return type_.dtype
                    first = first or type_.dtype
    return first
