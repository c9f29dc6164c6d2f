"""Workspace: memory that a task's kernel takes beside its operands, planned as a tensor is.

    LSTM, X float32[12, N, 40], 64 hidden units     gates of all steps, 12·N rows of 4·64 float32
    workspace                                       uint8[12288*N] in the arena, kept while the task runs

The operator's declaration says how many bytes (`Op.workspace`). Where only the run time knows them, they lie in dynamic
memory and are made for each execution.
"""

from __future__ import annotations

from collections.abc import Callable

from atc_py.errors import error
from atc_py.ir.constants import Constant
from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Infer, InferError, Op
from atc_py.ops.build import Values, known_value
from atc_py.plan.types import Space


def workspace_of(
    graph: Graph, node: Node, op: Op, constant: Callable[[int], Constant | None]
) -> tuple[Space, Tensor] | None:
    """Where a node's workspace lies and its bytes as a tensor; None where the node takes none.

    `constant` says what is known of the graph's values. Raises `AtcError` E16113 where the operator's rule fails.
    """
    if op.workspace_fn is None:
        return None
    types = tuple([None if v == ABSENT else graph.type(v) for v in node.inputs])
    values = Values(known_value, [None if v == ABSENT else constant(v) for v in node.inputs])
    try:
        nbytes = op.workspace_nbytes(Infer(types, op.attributes(node.attrs), len(node.outputs), values))
    except InferError as e:
        name = node.origin[0] if node.origin else node.name or node.op
        raise error("E16113", f"node '{name}'", e.cause, e.hint) from e
    if nbytes is None:
        return Space.DYNAMIC, Tensor(DType.UINT8, None)
    late = any(graph.symbols[s].runtime for s in symbols_of(nbytes) if s in graph.symbols)
    return (Space.DYNAMIC if late else Space.ARENA, Tensor(DType.UINT8, (nbytes,))) if nbytes != 0 else None
