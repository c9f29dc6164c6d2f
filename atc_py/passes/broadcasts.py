"""What only repeats, or only renames axes, waits until after elementwise operators.

    x: [N, 1] ─ Expand [N, 8] ─ Add(y: [N, 8])                 →    x ─ Add(y)
    x: [N, 1] ─ Expand [N, 8] ─ Exp                            →    x ─ Exp ─ Expand [N, 8]
    Conv: [N, 8, 1, L] ─ Reshape [N, 8, L] ─ Add([1, 8, 1]) ─ Relu
                                                               →    Conv ─ Add([1, 8, 1, 1]) ─ Relu ─ Reshape [N, 8, L]

Laws: an elementwise operator broadcasts its operands itself, as long as its result keeps its shape;
f(Expand(x)) = Expand(f(x));  f(Reshape(x), c) = Reshape(f(x, c')) for a constant that changes along whole axes of x.
A Reshape moves only past what follows a convolution or a matrix product, which then takes the operators in.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.constants import Blob, Constant, Splat, blob
from atc_py.ir.dims import DimOverflow, Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ops.base import InferError
from atc_py.ops.evaluate import evaluate
from atc_py.ops.shapes import broadcast
from atc_py.passes.axes import refine
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, known_at_start, uniform
from atc_py.passes.lineage import Lineage

PASS = "broadcasts"
ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where"}
    | {"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}
    | {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
)
"""Operators of which each operand may be the one that is broadcast."""

MOST_FOLLOWERS = 8
"""Elementwise operators that are looked at between a product and a Reshape."""

Dims = tuple[Size, ...]


def delay_broadcasts(graph: Graph, ctx: PassContext) -> int:
    """Move Expands and Reshapes behind elementwise operators; returns how many operators they have passed."""
    changed = 0
    with Lineage(graph) as lineage:
        for view in [n for n in graph.nodes.values() if n.op in ("Expand", "Reshape")]:
            for node in graph.consumers(view.outputs[0]) if view.op == "Expand" else ():
                if _may_pass(ctx, node):
                    changed += _drop_expands(graph, lineage, node)
                elif node.op == "Attention":
                    changed += _drop_from_mask(graph, lineage, view, node)
            moved: Node | None = view if view.id in graph.nodes else None
            while moved is not None:
                reader = graph.consumers(moved.outputs[0])[:1]
                moved = _pass(graph, ctx, lineage, reader[0]) if reader and _may_pass(ctx, reader[0]) else None
                changed += moved is not None
    return changed


def _may_pass(ctx: PassContext, node: Node) -> bool:
    return node.op not in STRUCTURAL and len(node.outputs) == 1 and _is_elementwise(ctx, node)


def _is_elementwise(ctx: PassContext, node: Node) -> bool:
    flags = ctx.op(node).flags
    return flags.elementwise and not flags.random and node.op != "BitCast"  # which may change the last axis


def _is_anchored(graph: Graph, ctx: PassContext, value: int) -> bool:
    """Whether the value is what a convolution or a matrix product gives, behind elementwise operators at most."""
    for _ in range(MOST_FOLLOWERS):
        node = graph.producer(value)
        if node.op in ANCHORS:
            return True
        operands = [v for v in node.inputs if v != ABSENT and graph.const(v) is None]
        if len(operands) != 1 or node.op in STRUCTURAL or not _is_elementwise(ctx, node):
            return False
        value = operands[0]
    return False


# -- Expand ------------------------------------------------------------------------------------------------------


def _drop_expands(graph: Graph, lineage: Lineage, node: Node) -> int:
    """Operands are read as they were before their Expand, where the result's shape stays."""
    count = 0
    if node.op not in BROADCASTING:
        return 0
    out = dims_of(graph, node.outputs[0])
    for i, value in enumerate(node.inputs):
        expand = graph.producer(value) if value != ABSENT else node
        if expand.op != "Expand" or out is None or len([v for v in node.inputs if v != ABSENT]) < 2:
            continue
        shapes = [dims_of(graph, v) for j, v in enumerate(node.inputs) if v != ABSENT and j != i]
        narrow = dims_of(graph, expand.inputs[0])
        try:
            same = narrow is not None and broadcast(narrow, *shapes) == out
        except (InferError, DimOverflow):
            same = False
        if same:
            graph.set_input(node, i, expand.inputs[0])
            if lineage.drop(expand):
                lineage.inherit(node, expand)
            count += 1
    return count


def _drop_from_mask(graph: Graph, lineage: Lineage, expand: Node, node: Node) -> int:
    """Attention broadcasts its mask itself, along all axes but the keys."""
    narrow, wide = dims_of(graph, expand.inputs[0]), dims_of(graph, expand.outputs[0])
    if node.inputs[3:4] != [expand.outputs[0]] or not narrow or not wide or narrow[-1] != wide[-1]:
        return 0
    graph.set_input(node, 3, expand.inputs[0])
    if lineage.drop(expand):
        lineage.inherit(node, expand)
    return 1


# -- moving behind -----------------------------------------------------------------------------------------------


def _pass(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node) -> Node | None:
    """f(view(x), constants) = view(f(x, constants')): the new view, None when it stays before f"""
    operands = [(i, v) for i, v in enumerate(node.inputs) if v != ABSENT]
    moving = [(i, graph.producer(v)) for i, v in operands if graph.const(v) is None]
    if len({n.id for _, n in moving}) != 1 or moving[0][1].op not in ("Expand", "Reshape"):
        return None
    view = moving[0][1]
    x, after = view.inputs[0], dims_of(graph, node.outputs[0])
    before, shape = dims_of(graph, x), dims_of(graph, view.outputs[0])
    readers = {n for n, _ in graph.values[view.outputs[0]].uses}
    if before is None or shape is None or after != shape or readers != {node.id}:
        return None
    if graph.const(view.inputs[1]) is None or not known_at_start(graph, (*before, *shape)):
        return None
    if view.op == "Reshape" and not (len(graph.values[x].uses) == 1 and _is_anchored(graph, ctx, x)):
        return None
    constants = _constants(graph, node, [i for i, _ in moving], before, shape, view.op)
    if constants is None:
        return None
    return _swap(graph, lineage, node, view, [i for i, _ in moving], constants)


def _constants(
    graph: Graph, node: Node, moving: list[int], before: Dims, after: Dims, view: str
) -> dict[int, Constant] | None:
    """The other operands for x as it was before the view; None where one cannot be put so."""
    found: dict[int, Constant] = {}
    for i, value in enumerate(node.inputs):
        constant = graph.const(value)
        if i in moving or constant is None:
            continue
        if uniform(constant) is not None and all(d == 1 for d in constant.shape):
            if len(constant.shape) > len(before):
                return None
            continue
        if view == "Expand":
            return None
        made = _reshaped(constant, before, after)
        if made is None:
            return None
        found[i] = made
    return found


def _reshaped(constant: Constant, before: Dims, after: Dims) -> Constant | None:
    """A constant that broadcasts to `after` as one that broadcasts to `before`."""
    if not isinstance(constant, (Blob, Splat)) or len(constant.shape) > len(after):
        return None
    shape = (1,) * (len(after) - len(constant.shape)) + tuple(constant.shape)
    try:
        atoms = refine([d for d in before if d != 1], [d for d in after if d != 1])
    except DimOverflow:
        return None
    if atoms is None:
        return None
    _, by_before, by_after = atoms
    owner = {atom: k for k, group in enumerate(by_before) for atom in group}
    proper = [i for i, d in enumerate(before) if d != 1]
    covered: set[int] = set()
    for group, i in zip(by_after, [i for i, d in enumerate(after) if d != 1]):
        if shape[i] == 1:
            continue
        axes = sorted({owner[atom] for atom in group})
        if shape[i] != after[i] or any(not set(by_before[k]) <= set(group) for k in axes):
            return None
        covered.update(proper[k] for k in axes)
    if any(shape[i] != 1 for i, d in enumerate(after) if d == 1):
        return None
    dims = tuple([d if i in covered else 1 for i, d in enumerate(before)])
    if isinstance(constant, Splat):
        return Splat(constant.dtype, dims, constant.value)
    whole = [d for d in dims if type(d) is int]
    return blob(np.asarray(evaluate(constant)).reshape(whole)) if len(whole) == len(dims) else None


def _swap(
    graph: Graph, lineage: Lineage, node: Node, view: Node, moving: list[int], constants: dict[int, Constant]
) -> Node:
    x, result = view.inputs[0], graph.values[node.outputs[0]]
    after, before = result.tensor, dims_of(graph, x)
    stale = []
    for i, constant in constants.items():
        old = graph.producer(node.inputs[i])
        stale.append(old)
        graph.set_input(node, i, graph.add_const(constant, old.name, old.origin))
    for i in moving:
        graph.set_input(node, i, x)
    name, result.name = result.name, ""
    result.type = after.with_shape(before)
    made = graph.add(view.op, [], [after], view.attrs, name=view.name, origin=view.origin, names=[name])
    graph.replace_uses(result.id, made.outputs[0])
    graph.set_inputs(made, [result.id, view.inputs[1]])
    if lineage.drop(view):
        lineage.adopt(made, view)
    for old in stale:
        lineage.drop(old)
    return made
