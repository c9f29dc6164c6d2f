"""What lies between an operator and the QuantizeLinear that ends it: moves, activations, functions of one number.

    DQ ─ HardSwish ─ Transpose ─ Q        functions [HardSwish], moves [Transpose], source DQ
    Conv ─ Relu ─ Reshape ─ Q             clamps [Relu], moves [Reshape], source Conv

On bytes, moves are what they are on floats. A function of one number followed by a quantisation is a table of 256
entries, filled by the same kernels that would have run. Relu and Clip after an operator clamp its integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from atc_py.ir.constants import Derived
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.types import Tensor
from atc_py.ops.base import Array
from atc_py.ops.build import lookup
from atc_py.ops.evaluate import run
from atc_py.passes.known import given
from atc_py.passes.quantized_params import Scaled, array_of, constant, dequantized

ORDERED = frozenset({"MaxPool"})
"""Operators that choose elements by comparing them: bytes compare as the numbers that they stand for."""
FILLS = frozenset({"Pad"})
"""Operators that move elements, and put zeros between them that are other bytes."""
CLAMPS = frozenset({"Relu", "Clip"})


@dataclass
class Chain:
    """The nodes from a source to a QuantizeLinear, the nearest to the source first; `value` is what they start from."""

    value: int
    moves: list[Node] = field(default_factory=list)
    functions: list[tuple[Node, int]] = field(default_factory=list)
    """Functions of one number, with the position of the input that varies."""
    pooled_late: bool = False
    """Whether a MaxPool comes after a function: then the order matters."""

    @property
    def nodes(self) -> list[Node]:
        """All nodes between."""
        return [*self.moves, *(n for n, _ in self.functions)]


def chain_to(graph: Graph, quantize: Node) -> Chain:
    """What lies above a QuantizeLinear, up to the first value that something else has to make."""
    chain = Chain(quantize.inputs[0])
    pooled = False
    while dequantized(graph, chain.value) is None:
        node = graph.producer(chain.value)
        if len(node.outputs) != 1 or graph.sole_consumer(chain.value) is None:
            break
        if moves_one(graph, node):
            chain.moves.insert(0, node)
            pooled = pooled or node.op == "MaxPool"
            chain.value = node.inputs[0]
            continue
        at = varying(graph, node)
        if at is None or _is_bias(graph, node, at):
            break
        chain.functions.insert(0, (node, at))
        chain.pooled_late = chain.pooled_late or pooled
        chain.value = node.inputs[at]
    return chain


def operand(graph: Graph, value: int) -> Scaled | None:
    """The quantised numbers behind an operand, through moves that nobody else reads.

    Scales along an axis go with a Transpose, and with nothing else.
    """
    moves: list[Node] = []
    while dequantized(graph, value) is None:
        node = None if value == ABSENT else graph.producer(value)
        if node is None or not moves_one(graph, node) or graph.sole_consumer(value) is None:
            return None
        moves.insert(0, node)
        value = node.inputs[0]
    found = dequantized(graph, value)
    assert found is not None
    axis = found.axis
    for node in moves if axis is not None else ():
        perm = node.attrs.get("perm")
        if node.op != "Transpose" or perm is None:
            return None
        axis = list(perm).index(axis)
    return replace(found, axis=axis, moves=tuple(moves))


def moved_bytes(graph: Graph, side: Scaled, heir: Node) -> int:
    """The bytes of an operand after its moves; those of constants are made at conversion."""
    value, source = side.value, graph.const(side.value)
    for i, node in enumerate(side.moves):
        others = [graph.const(v) for v in node.inputs[1:]]
        known = [c for c in others if c is not None]
        if source is None or len(known) < len(others) or not graph.tensor(node.outputs[0]).static:
            start = graph.add_const(source, "", heir.origin) if source is not None and i else value
            return on_bytes(graph, start, side.moves[i:], heir)
        dims = tuple(d for d in graph.tensor(node.outputs[0]).dims if type(d) is int)
        source = Derived(source.dtype, dims, node.op, (source, *known), node.attrs)
    return value if source is None or not side.moves else graph.add_const(source, "", heir.origin)


def moves_one(graph: Graph, node: Node) -> bool:
    """Whether each element of the node's only result is an element of input 0."""
    if node.op in ("Data", "Const", "NetOutput") or len(node.outputs) != 1:
        return False
    if node.op in ORDERED:
        return True
    if not lookup(node.op, node.attrs).flags.moves or node.op in FILLS:
        return False
    types = [graph.type(v) for v in node.inputs[1:] if v != ABSENT]
    return all(isinstance(t, Tensor) and t.dtype.is_int for t in types)


def varying(graph: Graph, node: Node) -> int | None:
    """The only input of an elementwise operator that is no constant of one element; None for all other nodes."""
    if node.op in ("Data", "Const", "NetOutput", "QuantizeLinear", "DequantizeLinear", "Cast"):
        return None
    flags = lookup(node.op, node.attrs).flags
    if not flags.elementwise or not flags.deterministic or flags.random or node.subgraphs or len(node.outputs) != 1:
        return None
    found = [i for i, v in enumerate(node.inputs) if v != ABSENT and graph.const(v) is None]
    if len(found) != 1 or _shape(graph, node.inputs[found[0]]) != _shape(graph, node.outputs[0]):
        return None
    others = [array_of(graph.const(v)) for i, v in enumerate(node.inputs) if v != ABSENT and i != found[0]]
    return found[0] if all(a is not None and a.size == 1 for a in others) else None


def _is_bias(graph: Graph, node: Node, at: int) -> bool:
    """A number that is added to a matrix product belongs to the product."""
    return node.op == "Add" and graph.producer(node.inputs[at]).op == "MatMul"


def _shape(graph: Graph, value: int) -> Any:
    type_ = graph.type(value)
    return type_.shape if isinstance(type_, Tensor) else None


def table_of(graph: Graph, source: Scaled, functions: Sequence[tuple[Node, int]], quantize: Node) -> Array:
    """The 256 results of dequantising a byte, the functions, and quantising again, by the byte's bit pattern."""
    every = np.arange(256, dtype=np.uint8).view(source.dtype.numpy)
    value: Array = every
    for node, at in ((source.node, 0), *functions, (quantize, 0)):
        arguments = [None if v == ABSENT else array_of(graph.const(v)) for v in node.inputs]
        arguments[at] = value
        scalars = [a.reshape(()) if i != at and a is not None else a for i, a in enumerate(arguments)]
        value = run(lookup(node.op, node.attrs), node.attrs, scalars, [None], {})[0]
    return np.ascontiguousarray(value)


def clamped(graph: Graph, chain: Chain, q: Scaled) -> tuple[int, int] | None:
    """The range of integers that the chain's activations leave; None where one of its functions is no clamp."""
    low, high = q.limits
    for node, at in chain.functions:
        if node.op not in CLAMPS or at != 0:
            return None
        bounds = [0.0, None] if node.op == "Relu" else [_number(graph, node, 1), _number(graph, node, 2)]
        least = low if bounds[0] is None else q.quantize(bounds[0])
        most = high if bounds[1] is None else q.quantize(bounds[1])
        low, high = min(max(low, least), most), min(max(high, least), most)
    return low, high


def _number(graph: Graph, node: Node, index: int) -> float | None:
    array = array_of(graph.const(node.inputs[index])) if given(node, index) else None
    return None if array is None else float(array.reshape(-1)[0])


def on_bytes(graph: Graph, value: int, moves: Sequence[Node], heir: Node) -> int:
    """The moves, made again on bytes; returns the moved value."""
    dtype = graph.tensor(value).dtype
    for node in moves:
        type_ = replace(graph.tensor(node.outputs[0]), dtype=dtype)
        made = graph.add(node.op, [value, *node.inputs[1:]], [type_], node.attrs, name=node.name, origin=node.origin)
        made.engine = heir.engine
        value = made.outputs[0]
    return value


def finish(graph: Graph, value: int, moves: Sequence[Node], q: Scaled, bounds: tuple[int, int]) -> int:
    """Moves and clamps after an operator's integers; returns the last value."""
    value = on_bytes(graph, value, moves, q.node)
    low, high = q.limits
    if bounds == (low, high):
        return value
    ends = [constant(graph, np.array(b, q.dtype.numpy), q.node) for b in bounds]
    type_ = graph.tensor(value)
    clip = graph.add("Clip", [value, *ends], [type_], lookup("Clip", {}).attributes({}), origin=q.node.origin)
    clip.engine = q.node.engine
    return clip.outputs[0]
