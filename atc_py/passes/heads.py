"""Attention takes its heads as they come out of the projections, without a Transpose.

    [B, S, 64] ─ Reshape [B, S, 4, 16] ─ Transpose(0, 2, 1, 3) ─ Attention ─ Transpose(0, 2, 1, 3) ─ Reshape [B, S, 64]
                                                   →    [B, S, 64] ─ Attention(q_num_heads = 4, kv_num_heads = 4)

Law: ONNX's Attention and RotaryEmbedding of rank 3 are those of rank 4 on the last axis split into heads and
transposed. Where one product computes query, key and value side by side ([B, S, 3·64]), each is a Slice of its last
axis. A RotaryEmbedding between the Transpose and the Attention is turned around first. It is done where more
Transposes go than have to be made: the result's readers may want the heads apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atc_py.ir.constants import blob
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of, ints, known_at_start, uniform
from atc_py.passes.lineage import Lineage
from atc_py.passes.rewriting import become, emit, shaped, sweep
from atc_py.passes.transposes import perm_of

PASS = "heads"
APART = (0, 2, 1, 3)
"""[batch, positions, heads, size] to [batch, heads, positions, size], and back."""


def join_heads(graph: Graph, ctx: PassContext) -> int:
    """Let Attention and RotaryEmbedding read heads side by side; returns how many nodes changed."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op == "RotaryEmbedding"]:
            changed += _turn_rotary(graph, lineage, node)
        for node in [n for n in graph.nodes.values() if n.op == "Attention"]:
            changed += _join(graph, ctx, lineage, node)
    return changed


def _source(graph: Graph, value: int) -> int | None:
    """The [batch, positions, heads, size] tensor of which the value is the transpose, else None."""
    node = graph.producer(value)
    dims = dims_of(graph, value)
    if node.op != "Transpose" or dims is None or len(dims) != 4 or perm_of(graph, node) != APART:
        return None
    if type(dims[1]) is not int or not dims[1] or not known_at_start(graph, dims):
        return None
    return node.inputs[0]


@dataclass(frozen=True)
class _Source:
    """Heads side by side: [batch, positions, heads · size] out of `value`, whose last axis is cut at `start`.

    `gone` are nodes that are not needed any more.
    """

    value: int
    heads: int
    shape: tuple[Size, ...]
    start: int | None = None
    gone: tuple[Node, ...] = ()

    def frees(self, graph: Graph, value: int) -> bool:
        """Whether a Transpose goes when this takes the place of `value`."""
        return self.start is not None or len(graph.values[value].uses) == 1

    def build(self, graph: Graph, heir: Node) -> int:
        """The value of rank 3."""
        if self.start is None:
            return shaped(graph, self.value, self.shape, heir)
        size = self.shape[2]
        assert type(size) is int
        numbers = [np.array([n], np.int64) for n in (self.start, self.start + size, 2)]
        return emit(
            graph, "Slice", [self.value, *(graph.add_const(blob(n), "", heir.origin) for n in numbers)], {}, heir
        )


def _flat_source(graph: Graph, value: int) -> _Source | None:
    """Where [batch, heads, positions, size] comes from, as heads side by side."""
    apart = _source(graph, value)
    if apart is not None:
        dims = dims_of(graph, apart)
        assert dims is not None and type(dims[2]) is int
        return _Source(apart, dims[2], _flat(dims))
    return _packed(graph, value)


def _packed(graph: Graph, value: int) -> _Source | None:
    """One of several tensors that one product computes: [batch, positions, parts, heads, size], the parts first.

    The part is taken by a Slice of one and a Reshape, or by a Gather, or a Split, of Transpose(2, 0, 3, 1, 4).
    """
    node, dims, gone = graph.producer(value), dims_of(graph, value), []
    if node.op == "Reshape":
        gone.append(node)
        value = node.inputs[0]
        node = graph.producer(value)
    at = uniform(graph.const(node.inputs[1])) if node.op in ("Slice", "Gather") else None
    if node.op == "Split" and all((dims_of(graph, v) or (0,))[0] == 1 for v in node.outputs):
        at = graph.values[value].index
    if at is None or dims is None or len(dims) != 4:
        return None
    axes = ints(graph, node, 3) if node.op == "Slice" else [int(node.attrs.get("axis", 0))]
    transpose = graph.producer(node.inputs[0])
    if axes != [0] or transpose.op != "Transpose" or perm_of(graph, transpose) != (2, 0, 3, 1, 4):
        return None
    reshape, five = graph.producer(transpose.inputs[0]), dims_of(graph, transpose.inputs[0])
    if reshape.op != "Reshape" or five is None or (five[0], five[3], five[1], five[4]) != dims:
        return None
    flat, whole = five[3] * five[4], dims_of(graph, reshape.inputs[0])
    parts, heads = five[2], five[3]
    if type(flat) is not int or type(parts) is not int or type(heads) is not int or whole != (*five[:2], parts * flat):
        return None
    return _Source(
        reshape.inputs[0], heads, (*five[:2], flat), int(at) % parts * flat, (*gone, node, transpose, reshape)
    )


def _flat(dims: tuple[Size, ...]) -> tuple[Size, ...]:
    """[batch, positions, heads, size] as [batch, positions, heads · size]"""
    return (*dims[:2], dims[2] * dims[3])


def _turn_rotary(graph: Graph, lineage: Lineage, node: Node) -> int:
    """rotary(Transpose(Reshape(x))) = Transpose(Reshape(rotary(x; num_heads)))"""
    source = _source(graph, node.inputs[0])
    if source is None or len(node.inputs) > 3 or len(graph.values[node.inputs[0]].uses) != 1:
        return 0
    if graph.producer(source).op != "Reshape" or not _feeds_attention(graph, node.outputs[0]):
        return 0
    dims = dims_of(graph, source)
    assert dims is not None
    transpose = graph.producer(node.inputs[0])
    flat = shaped(graph, source, _flat(dims), node)
    made = emit(graph, "RotaryEmbedding", [flat, *node.inputs[1:]], {**node.attrs, "num_heads": dims[2]}, node)
    apart = shaped(graph, made, dims, node)
    become(graph, node, "Transpose", [apart], {"perm": APART})
    sweep(graph, lineage, graph.producer(made), [transpose])
    return 1


def _feeds_attention(graph: Graph, value: int) -> bool:
    """Whether the only reader is an Attention whose other operands can be joined."""
    reader = graph.sole_consumer(value)
    if reader is None or reader.op != "Attention" or len(reader.inputs) > 4:
        return False
    for operand in reader.inputs[:3]:
        node = graph.producer(operand)
        inner = node.inputs[0] if node.op == "RotaryEmbedding" else operand
        if _source(graph, inner) is None:
            return False
    return True


def _join(graph: Graph, ctx: PassContext, lineage: Lineage, node: Node) -> int:
    dims = [dims_of(graph, v) for v in node.inputs[:3]]
    if any(d is None or len(d) != 4 for d in dims) or len(node.inputs) > 4 or len(node.outputs) > 1:
        return 0
    found = [_flat_source(graph, v) for v in node.inputs[:3]]
    sources = [f for f in found if f is not None]
    if len(sources) < 3:
        return 0
    readers = graph.consumers(node.outputs[0])
    turned = [n for n in readers if n.op == "Transpose" and _of_positions(graph, n) is not None]
    saved = sum(s.frees(graph, v) for s, v in zip(sources, node.inputs)) + len(turned)
    if saved <= (len(turned) < len(readers)):
        ctx.decline(node, PASS, f"joining the heads would save {saved} Transposes and make one")
        return 0
    _rewrite(graph, lineage, node, sources, turned)
    return 1


def _of_positions(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """A Transpose of [batch, heads, positions, size] as one of [batch, positions, heads · size]; None: it is none."""
    perm = perm_of(graph, node)
    if perm is None or len(perm) != 4:
        return None
    order = tuple(APART[p] for p in perm)
    return (*order[:2], 2) if order[2:] == (2, 3) else None


def _rewrite(graph: Graph, lineage: Lineage, node: Node, sources: list[_Source], turned: list[Node]) -> None:
    out = dims_of(graph, node.outputs[0])
    assert out is not None
    together = [s.build(graph, node) for s in sources]
    attrs = {**node.attrs, "q_num_heads": sources[0].heads, "kv_num_heads": sources[1].heads}
    made = emit(graph, "Attention", [*together, *node.inputs[3:]], attrs, node)
    heir = graph.producer(made)
    heir.name = node.name
    for reader in turned:
        perm = _of_positions(graph, reader)
        assert perm is not None
        moved = made if perm == (0, 1, 2) else emit(graph, "Transpose", [made], {"perm": perm}, reader)
        dims = dims_of(graph, reader.outputs[0])
        assert dims is not None
        graph.replace_uses(reader.outputs[0], shaped(graph, moved, dims, reader))
    old = [graph.producer(v) for v in node.inputs[:3]]
    if any(n not in turned for n in graph.consumers(node.outputs[0])):
        apart = shaped(graph, made, (out[0], out[2], out[1], out[3]), node)
        graph.replace_uses(node.outputs[0], emit(graph, "Transpose", [apart], {"perm": APART}, node))
    sweep(graph, lineage, heir, [*turned, node, *old, *(n for s in sources for n in s.gone)])
