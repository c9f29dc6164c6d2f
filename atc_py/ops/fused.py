"""`Fused`: one task that runs a small graph of operators without storing what lies between them.

    body:  Data x, Data w, Data r ─ MatMul ─ Add(·, r) ─ Relu ─ NetOutput           tile [128, 0], inner 64 KiB each

On the device the task is a tile program (`ops.tile_program`): for each tile of the first output, the inner values exist
as tiles in the unified buffer or L1. The attributes are the program's: `tile` (a length for each dim of the first
output, 0 for all of it), and for each value that the body's operators make, in body order, its bytes (`inner`) and its
buffer (`inner_in`); `buffers` are the bytes used of UB, L1 and L0C, the tiles of operands included; `again`
is the share of each operator's work that cores or tiles repeat, for its price. Without a tile all
is one tile.

There are two implementations. The default one runs whole operators one after the other, inner values in the outputs'
own bytes where they can lie there (`ops.fused_run`); the reference runs tile by tile, inner values in buffers of
exactly the bytes that the attributes tell (`ops.tile_run`).
"""

from __future__ import annotations

from typing import Any

from atc_py.ir.dims import Size, dmax, dmin
from atc_py.ir.graph import ABSENT, STRUCTURAL
from atc_py.ops import fused_run, tile_run
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Product, Result, declare
from atc_py.ops.build import known_value, lookup
from atc_py.ops.chains import Chains, more

fused = declare(
    "Fused",
    inputs="X*",
    outputs="Y*",
    attrs={
        "tile": Attr("ints", ()),
        "inner": Attr("ints", ()),
        "inner_in": Attr("strs", ()),
        "buffers": Attr("ints", ()),
        "again": Attr("floats", ()),
    },
    flags=Flags(fp16_safe=False),
    bodies=("body",),
)


@fused.infer
def _infer(n: Infer) -> Result:
    if n.infer_body is None:
        return None
    return list(n.infer_body("body", n.types, n.values))


@fused.prepare
def _prepare(call: Call) -> fused_run.Bound:
    return fused_run.bound(call)


@fused.kernel
def _kernel(call: Call, *inputs: Array | None) -> Any:
    state = call.state if call.state is not None else fused_run.bound(call, inputs)
    results = tile_run.run(state, call, inputs) if call.tiles else fused_run.run(state, call, inputs)
    return results[0] if len(results) == 1 else tuple(results)


@fused.cost
def _cost(n: Infer) -> Cost:
    """The sum over the body; what moves in pieces or is read in part is told by the operators that read the inputs.

    Inner values cost no bytes: only the task's own operands move.
    """
    body = n.bodies.get("body")
    if body is None:
        return Cost()
    place = {v: i for i, v in enumerate(body.inputs)}
    vector: Size = 0
    wide: Size = 0
    chains, again = Chains(), n.attrs["again"]
    reads: dict[int, Size | None] = {}
    runs: list[Size] = []
    rows: list[Size] = []
    for number, node in enumerate(x for x in body.order() if x.op not in STRUCTURAL):
        op = lookup(node.op, node.attrs)
        types = tuple(None if v == ABSENT else body.type(v) for v in node.inputs)
        values = tuple(None if v == ABSENT else known_value(body.const(v)) for v in node.inputs)
        inner = Infer(types, op.attributes(node.attrs), len(node.outputs), values, n.new_symbol, bodies=node.subgraphs)
        work = op.work(inner, [body.type(v) for v in node.outputs])
        repeated = again[number] if number < len(again) else 0.0
        vector, wide = vector + more(work.vector, repeated), wide + more(work.wide, repeated)
        known_macs = type(work.macs) is not int or work.macs
        products = work.products or ((Product(1, work.macs, 1),) if known_macs else ())
        chains.add(node.inputs, node.outputs, products, repeated)
        outer = [(i, place[v]) for i, v in enumerate(node.inputs) if v in place]
        for i, k in outer:
            # An operand that two operators read is fetched for the one that reads more of it.
            size = work.reads.get(i)
            known = reads.get(k, 0)
            reads[k] = None if size is None or known is None else size if known == 0 else dmax(known, size)
        if outer or any(v in body.outputs for v in node.outputs):
            runs += [work.run] if type(work.run) is not int or work.run else []
        rows += [work.row] if type(work.row) is not int or work.row else []
    return Cost(
        vector=vector, wide=wide, products=chains.products(), reads={k: s for k, s in reads.items() if s is not None},
        run=dmin(*runs) if runs else 0, row=dmax(*rows) if rows else 0,
    )  # fmt: skip
