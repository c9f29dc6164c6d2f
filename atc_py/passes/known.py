"""Small questions that several passes ask of a graph.

    ints(graph, node, 1)  →  [0, 3, 1, 2]      the constant input 1 as plain ints, None where it is not known

Each answers None where the graph does not say.
"""

from __future__ import annotations

from math import prod

from atc_py.ir.constants import Blob, Constant, Splat, blob_array
from atc_py.ir.dims import Dim, Size, symbol, symbols_of
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import DType, Tensor

SMALL = 4096
"""Elements of the largest constant that is looked into."""


def given(node: Node, index: int) -> bool:
    """Whether the node has input `index`."""
    return index < len(node.inputs) and node.inputs[index] != ABSENT


def ints(graph: Graph, node: Node, index: int) -> list[int] | None:
    """A constant integer (or bool) input as a flat list of ints; None when it is absent, computed or symbolic."""
    constant = graph.const(node.inputs[index]) if index < len(node.inputs) else None
    if constant is None or not (constant.dtype.is_int or constant.dtype is DType.BOOL):
        return None
    if isinstance(constant, Blob) and prod(constant.shape) <= SMALL:
        return [int(x) for x in blob_array(constant).reshape(-1).tolist()]
    if isinstance(constant, Splat) and all(type(d) is int for d in constant.shape):
        count = prod(d for d in constant.shape if type(d) is int)
        return [int(constant.value)] * count if count <= SMALL else None
    return None


def uniform(constant: Constant | None) -> float | int | bool | None:
    """The one number that a constant repeats (a scalar, or a Splat of anything but strings), else None."""
    if isinstance(constant, Blob):
        return constant.number
    if isinstance(constant, Splat) and constant.dtype is not DType.STRING:
        number: float | int | bool = constant.dtype.numpy.type(constant.value).item()
        return number
    return None


def dims_of(graph: Graph, value: int) -> tuple[Size, ...] | None:
    """The shape of a tensor of known rank, else None."""
    type_ = graph.type(value)
    return type_.shape if isinstance(type_, Tensor) else None


def known_at_start(graph: Graph, dims: tuple[Size, ...]) -> bool:
    """Whether every dim is known before anything runs: it mentions no symbol that a node binds."""
    named = [d for d in dims if type(d) is not int]
    return all(s in graph.symbols and not graph.symbols[s].runtime for d in named for s in symbols_of(d))


def bare_symbol(size: Size) -> str | None:
    """The name of a size that is one symbol and nothing else."""
    if not isinstance(size, Dim):
        return None
    names = symbols_of(size)
    return names[0] if len(names) == 1 and size == symbol(names[0]) else None


def same_types(graph: Graph, a: int, b: int) -> bool:
    """Whether two values have one type, and tensors among them a known rank."""
    mine, theirs = graph.type(a), graph.type(b)
    return mine is theirs or mine == theirs
