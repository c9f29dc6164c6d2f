"""Operators over constants are computed now, with the kernels of the run time.

    Const w: [3, 2] ─ Transpose ─ t ─ MatMul                    Const w': [2, 3] ─ MatMul
    Const [N, 4] ─ ConstantOfShape(0.0) ─ Add            →      Splat 0.0: [N, 4] ─ Add
    Splat 0.0: [N, 4] ─ Exp ─ Mul                               Splat 1.0: [N, 4] ─ Mul

What repeats one number stays a Splat of any size, symbolic sizes included, and costs no bytes. Everything else may add
`fold_limit` bytes a node, net of the constants that only this node reads. Random operators, side effects and control
flow are never folded. A kernel that fails leaves its node alone: the model fails at run time, not here. The
DequantizeLinear of a constant stays too: folded, the model would no longer say that this weight is quantised.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, Derived, DimVec, Splat, blob, packed_nbytes
from atc_py.ir.dims import Dim, Size
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Op
from atc_py.ops.evaluate import evaluate, run
from atc_py.passes.base import PassContext
from atc_py.passes.known import bare_symbol, known_at_start, uniform
from atc_py.passes.lineage import Lineage

RULE = "fold_constants"

MOVES = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split"}
    | {"DepthToSpace", "SpaceToDepth", "ReverseSequence"}
)
"""Operators each of whose results is an element of input 0."""

KEPT = frozenset({"DequantizeLinear"})
"""Operators that mean more than the constant which they compute."""


def fold_constants(graph: Graph, ctx: PassContext) -> int:
    """Replace nodes over constants by constants; returns how many."""
    changed = 0
    learnt: dict[str, Size] = {}
    with Lineage(graph) as lineage:
        for node in graph.order():
            if node.op in STRUCTURAL or node.op in KEPT or not _eligible(graph, ctx, node):
                continue
            constants = _folded(graph, ctx, node)
            if constants is not None:
                _learn(graph, node, constants, learnt)
                lineage.make_const(node, constants)
                changed += 1
    if learnt:
        ctx.bind_symbols(learnt)
    return changed


def _eligible(graph: Graph, ctx: PassContext, node: Node) -> bool:
    values, nodes = graph.values, graph.nodes
    for value in node.inputs:
        if value != ABSENT and nodes[values[value].producer].const is None:
            return False
    flags = ctx.op(node).flags
    if flags.random or flags.side_effects or flags.control or not flags.deterministic or node.subgraphs:
        return False
    return all(isinstance(values[v].type, Tensor) for v in node.outputs)


def _folded(graph: Graph, ctx: PassContext, node: Node) -> list[Constant] | None:
    """The node's results as constants, or None with the reason noted."""
    op = ctx.op(node)
    repeated = _repeated(graph, op, node)
    if repeated is not None:
        return repeated
    sources = [None if v == ABSENT else graph.const(v) for v in node.inputs]
    if any(_symbolic(c) for c in sources):
        return None
    size = _expected_bytes(graph, node)
    freed = _freed_bytes(graph, node)
    if size - freed > ctx.fold_limit:
        ctx.decline(node, RULE, _too_large(size, freed, ctx.fold_limit))
        return None
    try:
        inputs = [None if c is None else evaluate(c) for c in sources]
        arrays = _compute(graph, op, node, inputs)
    except Exception as problem:  # a kernel is any code, a user's own included; here it may only be left alone
        ctx.decline(node, RULE, f"the kernel fails on these constants: {_first_line(problem)}")
        return None
    if arrays is None or not _as_typed(graph, node, arrays):
        ctx.decline(node, RULE, "the kernel's results are not of the inferred types")
        return None
    constants = [_constant(a, inputs) for a in arrays]
    added = sum(c.nbytes for c in constants) - freed
    if added > ctx.fold_limit:
        ctx.decline(node, RULE, _too_large(added + freed, freed, ctx.fold_limit))
        return None
    return constants


def _too_large(size: int, freed: int, limit: int) -> str:
    return f"the result takes {size} bytes and frees {freed}; the limit of the growth is {limit}"


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _symbolic(constant: Constant | None) -> bool:
    if isinstance(constant, Splat):
        return any(isinstance(d, Dim) for d in constant.shape)
    return isinstance(constant, DimVec) or (isinstance(constant, Derived) and any(map(_symbolic, constant.inputs)))


def _repeated(graph: Graph, op: Op, node: Node) -> list[Constant] | None:
    """The results of a node that only repeats one number: Splats, whatever their size."""
    types = [graph.tensor(v) for v in node.outputs]
    if any(t.shape is None or not known_at_start(graph, t.shape) or t.dtype is DType.STRING for t in types):
        return None
    number: Any
    if op.name == "ConstantOfShape":
        number = _filler(node)
    elif op.name in MOVES:
        number = _number(graph.const(node.inputs[0]))
    elif op.flags.elementwise:
        number = _one_element(graph, op, node, types[0])
    elif op.name == "Concat":
        number = _common(graph, node)
    else:
        return None
    if number is None or all(t.static and t.elements == 1 for t in types):
        return None
    return [Splat(t.dtype, t.dims, t.dtype.numpy.type(number)) for t in types]


def _number(constant: Constant | None) -> Any:
    """What a Splat or a scalar repeats."""
    return None if uniform(constant) is None else _scalar(constant)


def _scalar(constant: Constant | None) -> Any:
    if isinstance(constant, Splat):
        return constant.dtype.numpy.type(constant.value)
    assert isinstance(constant, Blob)
    return evaluate(constant).reshape(-1)[0]


def _filler(node: Node) -> Any:
    value = node.attrs.get("value")
    return np.float32(0) if value is None else evaluate(value).reshape(-1)[0]


def _one_element(graph: Graph, op: Op, node: Node, type_: Tensor) -> Any:
    """An elementwise operator over numbers that are repeated, computed once."""
    inputs: list[Any] = []
    for value in node.inputs:
        constant = graph.const(value)
        if value != ABSENT and _number(constant) is None:
            return None
        inputs.append(None if value == ABSENT else np.asarray(_number(constant)).reshape(()))
    if len(node.outputs) != 1:
        return None
    try:
        result = run(op, op.attributes(node.attrs), inputs, [Tensor(type_.dtype, ())])[0]
    except Exception:  # the whole node is tried next, and its failure noted
        return None
    array = np.asarray(result)
    return array.reshape(-1)[0] if array.size == 1 and array.dtype == type_.dtype.numpy else None


def _common(graph: Graph, node: Node) -> Any:
    """The number that all inputs of a Concat repeat."""
    numbers = [_number(graph.const(v)) for v in node.inputs]
    first = numbers[0]
    if first is None or any(n is None or n.tobytes() != first.tobytes() for n in numbers):
        return None
    return first


def _compute(graph: Graph, op: Op, node: Node, inputs: list[Array | None]) -> list[Array] | None:
    types = [t if (t := graph.tensor(v)).static else None for v in node.outputs]
    results = run(op, op.attributes(node.attrs), inputs, types)[: len(node.outputs)]
    if len(results) < len(node.outputs) or any(r is None for r in results):
        return None
    return [np.asarray(r) for r in results]


def _as_typed(graph: Graph, node: Node, arrays: list[Array]) -> bool:
    """Whether dtypes and sizes are those that the graph was typed with; sizes known at run time only may be any."""
    for value, array in zip(node.outputs, arrays, strict=True):
        type_ = graph.tensor(value)
        if array.dtype != type_.dtype.numpy or (type_.shape is not None and len(type_.shape) != array.ndim):
            return False
        for want, have in zip(type_.shape or (), array.shape):
            name = bare_symbol(want)
            if want != have and (name is None or not graph.symbols[name].runtime):
                return False
    return True


def _learn(graph: Graph, node: Node, constants: list[Constant], learnt: dict[str, Size]) -> None:
    """Sizes that were thought to be known only at run time."""
    for value, constant in zip(node.outputs, constants, strict=True):
        for want, have in zip(graph.tensor(value).shape or (), constant.shape):
            name = bare_symbol(want)
            if name is not None and want != have:
                learnt[name] = have


def _constant(array: Array, inputs: list[Array | None]) -> Constant:
    """The array as a constant: a Splat where it is one element seen many times; a view of an input is not copied."""
    if array.size > 1 and array.dtype != object and not any(array.strides):
        return Splat(DType.of(array.dtype), array.shape, array.reshape(-1)[0])
    if array.flags.c_contiguous and (array.flags.owndata or any(_within(array, x) for x in inputs)):
        return blob(array)
    return blob(np.array(array, order="C"))


def _within(array: Array, source: Array | None) -> bool:
    return source is not None and source.flags.c_contiguous and np.may_share_memory(array, source)


def _expected_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the results as far as the types tell."""
    total = 0
    for value in node.outputs:
        type_ = graph.tensor(value)
        if type_.static and graph.values[value].uses:
            total += packed_nbytes(type_.dtype, prod(d for d in type_.dims if type(d) is int))
    return total


def _freed_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the constants that nobody but this node reads."""
    freed = 0
    for value in dict.fromkeys(node.inputs):
        if value != ABSENT and graph.sole_consumer(value) is node:
            constant = graph.const(value)
            freed += 0 if constant is None else constant.nbytes
    return freed
