"""`Fused`: one task that runs a chain of operators without storing what lies between them.

    body:  Data x, Data w, Data b ─ Conv ─ Relu ─ NetOutput

The first operator of the body is the anchor; it writes into the task's output, and each follower, being elementwise,
works on that output in place. No inner value ever exists at full size beside the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, dmax, dmin
from atc_py.ir.graph import ABSENT, STRUCTURAL, Graph
from atc_py.ir.types import Tensor, Type
from atc_py.ops.base import Array, Call, Cost, Flags, Infer, Op, Product, Result, declare
from atc_py.ops.build import known_value, lookup

fused = declare(
    "Fused",
    inputs="X*",
    outputs="Y",
    flags=Flags(fp16_safe=False),
    bodies=("body",),
)


@fused.infer
def _infer(n: Infer) -> Result:
    if n.infer_body is None:
        return None
    return list(n.infer_body("body", n.types, n.values))


@dataclass
class _Stage:
    """One operator of the body: where its inputs come from (-1: the running value, -2: absent) and its call."""

    op: Op
    sources: tuple[int, ...]
    call: Call


@fused.prepare
def _prepare(call: Call) -> list[_Stage]:
    assert call.body is not None
    return _stages(call.body, call)


def _stages(body: Graph, call: Call) -> list[_Stage]:
    place = {v: i for i, v in enumerate(body.inputs)}
    types: dict[int, Type | None] = {v: call.in_types[i] for v, i in place.items() if i < len(call.in_types)}
    stages: list[_Stage] = []
    running = ABSENT
    for node in body.order():
        if node.op in STRUCTURAL:
            continue
        op = lookup(node.op, node.attrs)
        sources = tuple(_source(v, running, place) for v in node.inputs)
        consts = {k: call.consts[s] for k, s in enumerate(sources) if s in call.consts}
        in_types = tuple(None if v == ABSENT else types[v] for v in node.inputs)
        out_type = _concrete_output(op, node.attrs, in_types, call)
        inner = Call(node.attrs, (out_type,), [None], consts, in_types)
        if op.prepare_fn is not None:
            inner.state = op.prepare_fn(inner)
        stages.append(_Stage(op, sources, inner))
        running = node.outputs[0]
        types[running] = out_type
    return stages


def _source(value: int, running: int, place: dict[int, int]) -> int:
    if value == ABSENT:
        return -2
    return -1 if value == running else place[value]


def _concrete_output(op: Op, attrs: Any, in_types: tuple[Type | None, ...], call: Call) -> Type | None:
    """Followers keep the anchor's type up to the dtype; the task's output type is the last one."""
    out = call.out_types[0] if call.out_types else None
    if op.infer_fn is None or not isinstance(out, Tensor):
        return out
    result = op.infer_fn(Infer(in_types, op.attributes(attrs)))
    inferred = result[0] if isinstance(result, (list, tuple)) else result
    return inferred if isinstance(inferred, Tensor) and inferred.shape is not None else out


@fused.kernel
def _kernel(call: Call, *inputs: Array | None) -> Any:
    stages: list[_Stage] = call.state if call.state is not None else _prepare(call)
    out = call.out(0)
    value: Any = None
    for stage in stages:
        arguments = [value if s == -1 else None if s == -2 else inputs[s] for s in stage.sources]
        result = stage.op.kernel_fn(stage.call.at(out), *arguments)  # type: ignore[misc]
        result = result[0] if isinstance(result, tuple) else result
        if out is not None and result is not out and result.shape == out.shape and result.dtype == out.dtype:
            np.copyto(out, result)
            result = out
        value = result
    return value


@fused.cost
def _cost(n: Infer) -> Cost:
    """The sum over the body; what moves in pieces or is read in part is told by the operators that read the inputs."""
    body = n.bodies.get("body")
    if body is None:
        return Cost()
    place = {v: i for i, v in enumerate(body.inputs)}
    vector: Size = 0
    wide: Size = 0
    products: list[Product] = []
    reads: dict[int, Size] = {}
    runs: list[Size] = []
    rows: list[Size] = []
    for node in body.order():
        if node.op in STRUCTURAL:
            continue
        op = lookup(node.op, node.attrs)
        types = tuple(None if v == ABSENT else body.type(v) for v in node.inputs)
        values = tuple(None if v == ABSENT else known_value(body.const(v)) for v in node.inputs)
        inner = Infer(types, op.attributes(node.attrs), len(node.outputs), values, n.new_symbol, bodies=node.subgraphs)
        work = op.work(inner, [body.type(v) for v in node.outputs])
        vector, wide = vector + work.vector, wide + work.wide
        products += work.products or ([Product(1, work.macs, 1)] if type(work.macs) is not int or work.macs else [])
        reads.update({place[node.inputs[i]]: s for i, s in work.reads.items() if node.inputs[i] in place})
        runs += [work.run] if type(work.run) is not int or work.run else []
        rows += [work.row] if type(work.row) is not int or work.row else []
    return Cost(
        vector=vector, wide=wide, products=tuple(products), reads=reads,
        run=dmin(*runs) if runs else 0, row=dmax(*rows) if rows else 0,
    )  # fmt: skip
