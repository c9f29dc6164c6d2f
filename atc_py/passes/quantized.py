"""Quantised models compute on bytes: Dequantize and Quantize are folded into the operators between them.

    Q ─ DQ ─ Conv(·, DQ(w), DQ(b)) ─ Relu ─ Q ─ DQ ─ MaxPool ─ Q ─ DQ ─ Add(·, DQ) ─ Q
    Q ─ QLinearConv ──────────────────────── MaxPool ─────────── QLinearAdd                      all of it int8

From each QuantizeLinear the pass looks up, through moves and activations (`quantized_chain.py`), to what makes the
numbers: a product (`quantized_products.py`), a sum, a concatenation, an average, or a DequantizeLinear, in which case
all that lies between is moves and one table of 256 entries. A DequantizeLinear whose QuantizeLinear has the same
parameters vanishes with it. Products whose result is not quantised give float32; so do those of models that quantise as
they run (`quantized_dynamic.py`).

Results are those of the float operators or one step beside them; integer sums are exact. What keeps an operator with a
dequantised operand from it is told with its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.passes.base import PassContext
from atc_py.passes.lineage import Lineage
from atc_py.passes.quantized_chain import Chain, chain_to, clamped, finish, on_bytes, table_of
from atc_py.passes.quantized_dynamic import find_dynamic
from atc_py.passes.quantized_params import BYTES, Scaled, dequantized, quantizing
from atc_py.passes.quantized_products import (
    PRODUCTS,
    Product,
    product_of,
    real_convolution,
    real_product,
    rounded_bias,
    whole_product,
)
from atc_py.passes.quantized_sums import Replacement, replacement_of
from atc_py.passes.rewriting import sweep

RULE = "quantized"
_MARKS = frozenset({"DequantizeLinear", "MatMulInteger"})


def fold_quantized(graph: Graph, ctx: PassContext) -> int:
    """Fold what can be folded; returns how many operators came to work on bytes."""
    if not any(node.op in _MARKS for node in graph.nodes.values()):
        return 0
    with Lineage(graph) as lineage:
        folder = _Folder(graph, ctx, lineage)
        for node in graph.order():
            if node.id in graph.nodes and node.op == "QuantizeLinear":
                folder.quantize(node)
        for node in graph.order():
            if node.id not in graph.nodes:
                continue
            if node.op in PRODUCTS:
                folder.product(node)
            elif node.op == "MatMulInteger":
                folder.dynamic(node)
    return folder.changed


class _Folder:
    """Rewrites one graph."""

    def __init__(self, graph: Graph, ctx: PassContext, lineage: Lineage) -> None:
        assert ctx.target is not None
        self.graph, self.ctx, self.lineage, self.target = graph, ctx, lineage, ctx.target
        self.changed = 0

    def quantize(self, node: Node) -> None:
        """Fold what ends in a QuantizeLinear."""
        q = quantizing(self.graph, node)
        if q is None:
            return
        chain = chain_to(self.graph, node)
        core = self.graph.producer(chain.value)
        source = dequantized(self.graph, chain.value)
        reason = self._operator(core, chain, q) if source is None else self._between(source, chain, q)
        if reason and core.op not in PRODUCTS:  # products are asked again, and speak for themselves
            self.ctx.decline(core, RULE, reason)

    def product(self, node: Node) -> None:
        """A product of dequantised operands whose result stays float32."""
        add = self.graph.sole_consumer(node.outputs[0])
        for last in [add, node] if add is not None and add.op == "Add" else [node]:
            found = product_of(self.graph, last.outputs[0], self.target)
            if isinstance(found, Product) and found.node is node:
                break
        else:
            if isinstance(found, str):
                self.ctx.decline(node, RULE, found)
            return
        make = real_convolution if node.op == "Conv" else real_product
        self._put(last, make(self.graph, found, last), last.outputs[0])

    def dynamic(self, node: Node) -> None:
        """A product of operands that are quantised as the model runs."""
        found = find_dynamic(self.graph, node, self.target)
        if isinstance(found, str):
            self.ctx.decline(node, RULE, found)
        elif found is not None:
            self._put(found.root, found.replacement, found.root.outputs[0])

    def _between(self, source: Scaled, chain: Chain, q: Scaled) -> str | None:
        """Moves on bytes and one table take the place of all that lies between a DQ and a Q."""
        if source.axis is not None or source.dtype not in BYTES:
            scales = f"{source.scales.size} scales of {source.dtype.value}"
            return f"scale: {scales} are dequantised; expected one, of int8 or uint8" if chain.nodes else None
        if chain.pooled_late:
            return "order: MaxPool comes after a function that may not be monotone"
        value = on_bytes(self.graph, source.value, chain.moves, q.node)
        if chain.functions or not source.same(q):  # else each byte becomes itself: (k · s) / s is within 1/2 of k
            table = table_of(self.graph, source, chain.functions, q.node)
            attrs = {"table": tuple(table.tolist()), "to": q.dtype}
            made = self.graph.add("LookupTable", [value], [self.graph.type(q.value)], attrs, origin=q.node.origin)
            made.engine, value = q.node.engine, made.outputs[0]
        self._take(q.node, value, [*chain.nodes, source.node])
        return None

    def _operator(self, core: Node, chain: Chain, q: Scaled) -> str | None:
        """An operator between dequantised operands and a Q computes on bytes."""
        graph = self.graph
        found = product_of(graph, chain.value, self.target) or replacement_of(graph, core, q)
        if found is None or isinstance(found, str):
            return found
        bounds = clamped(graph, chain, q)
        if bounds is None:
            names = " ─ ".join(n.op for n, _ in chain.functions)
            return f"activation: {names} lies between {core.op} and the quantisation; expected Relu or Clip"
        if len(graph.values[chain.value].uses) != 1:
            return f"readers: the result of {core.op} is read by {len(graph.values[chain.value].uses)} nodes"
        rounded = rounded_bias(graph, found, q) if isinstance(found, Product) else None
        if rounded is not None:  # the product is made with a float32 result when its turn comes
            self.ctx.decline(core, RULE, rounded)
            return None
        chosen = whole_product(graph, found, q, q.node) if isinstance(found, Product) else found
        type_ = replace(graph.tensor(chain.value), dtype=q.dtype)
        made = graph.add(chosen.op, chosen.inputs, [type_], chosen.attrs, name=core.name, origin=core.origin)
        made.engine = q.node.engine
        self._take(q.node, finish(graph, made.outputs[0], chain.moves, q, bounds), [*chain.nodes, *chosen.gone])
        return None

    def _put(self, root: Node, chosen: Replacement, value: int) -> None:
        """One node in the place of `root`, whose result keeps its type."""
        made = self.graph.add(
            chosen.op, chosen.inputs, [self.graph.type(value)], chosen.attrs, name=root.name, origin=root.origin
        )
        made.engine = root.engine
        self._take(root, made.outputs[0], chosen.gone)

    def _take(self, root: Node, value: int, gone: Sequence[Node]) -> None:
        """`value` takes the place of the root's result; what is read no more goes, constants included."""
        graph = self.graph
        inputs = [v for n in (root, *gone) for v in n.inputs if v != ABSENT]
        constants = [v for v in inputs if graph.const(v) is not None]
        heir = graph.producer(value)
        if heir.op in ("Data", "Const"):
            heir = next((n for n in graph.consumers(root.outputs[0]) if n.op != "NetOutput"), heir)
        self.lineage.bypass(root, value)
        sweep(graph, self.lineage, heir, [n for n in gone if n is not root], constants)
        self.changed += 1
