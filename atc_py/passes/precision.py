"""In which dtype each node computes, and where the target has no unit for it.

    Conv, float32, on Ascend310P3   (cube: float16, int8)          precision "emulated"
    Conv, float16, on Ascend310P3                                  precision "float16"
    Conv, float32, on Generic       (cube: float32, float16, …)    precision "float32"
    Relu, float32                   (vector unit)                  precision "float32"

"emulated" says that the cube takes several passes of a narrower type to give the exact result: the numbers stay those
of the model's dtype, the clock charges for the passes. `--precision-mode origin` changes no dtype.
"""

from __future__ import annotations

from difflib import get_close_matches

from atc_py.errors import error
from atc_py.ir.dims import Dim
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import Infer, InferError, Op
from atc_py.passes.base import LowerOptions, PassContext

EMULATED = "emulated"
MODES = ("origin", "fp16", "mixed_float16", "mixed_bfloat16", "cube_fp16in_fp32out", "fp32")
"""The precision modes of ATC that this compiler names; it makes plans for "origin"."""


def check_mode(mode: str) -> None:
    """Raise `AtcError` E20003 unless the mode is one that is built."""
    if mode == "origin":
        return
    if mode in MODES:
        cause = f"precision mode '{mode}' is not built yet: nothing is lowered to another dtype"
        raise error("E20003", "--precision-mode", cause, "use origin, or convert the model's dtypes")
    near = get_close_matches(mode, MODES, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"the modes are {', '.join(MODES)}"
    raise error("E20003", "--precision-mode", f"there is no precision mode '{mode}'", hint)


def mark_precision(graph: Graph, ctx: PassContext) -> int:
    """Set `precision` of every node; returns how many changed."""
    assert isinstance(ctx.options, LowerOptions) and ctx.target is not None
    changed = 0
    cube: dict[str, bool] = {}
    for node in graph.nodes.values():
        if node.op in STRUCTURAL or node.op == "Fused":
            continue
        precision = _precision(graph, ctx, node, cube)
        changed += node.precision != precision
        node.precision = precision
    return changed


def _precision(graph: Graph, ctx: PassContext, node: Node, cube: dict[str, bool]) -> str:
    types = [graph.type(v) for v in node.outputs] + [graph.type(v) for v in node.inputs if v != ABSENT]
    tensors = [t for t in types if isinstance(t, Tensor)]
    if not tensors:
        return ""
    dtype = next((t.dtype for t in tensors if t.dtype.is_float), tensors[0].dtype)
    if node.engine != "aicore" or not dtype.is_float or not _uses_cube(graph, ctx.op(node), node, cube):
        return dtype.value
    assert ctx.target is not None
    return dtype.value if ctx.target.has_cube(dtype) else EMULATED


def _uses_cube(graph: Graph, op: Op, node: Node, known: dict[str, bool]) -> bool:
    """Whether the operator multiplies and accumulates on the cube unit: its declared cost says so."""
    if node.op in known:
        return known[node.op]
    types = tuple(None if v == ABSENT else graph.type(v) for v in node.inputs)
    if op.cost_fn is None:
        known[node.op] = False
        return False
    try:
        values = tuple(None for _ in types)
        cost = op.work(Infer(types, op.attributes(node.attrs), len(node.outputs), values), ())
    except InferError:
        return False
    multiplies = isinstance(cost.macs, Dim) or cost.macs > 0
    if multiplies or isinstance(cost.vector, Dim) or cost.vector > 0:  # an empty tensor tells nothing
        known[node.op] = multiplies
    return multiplies
