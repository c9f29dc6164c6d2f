"""LinearAttention (opset 27): attention whose state is one matrix a head, updated token by token.

    gated_delta:   S = exp(g)·S;   S += k ⊗ (β·(v - Sᵀk));   o = scale · Sᵀq          S: [d_k, d_v]

All batches and heads take a step together; query heads that share a key head are rows of one product. The arithmetic
is float32; the state is rounded to its own type once, at the end.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from atc_py.ir.dims import prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Result, declare
from atc_py.ops.elementwise_base import HALVES, check_dtype
from atc_py.ops.shapes import show

RULES = ("linear", "gated", "delta", "gated_delta")

ATTRS = {
    "chunk_size": Attr("int", 64),
    "kv_num_heads": Attr("int"),
    "q_num_heads": Attr("int"),
    "scale": Attr("float", 0.0),
    "update_rule": Attr("str", "gated_delta"),
}

attention = declare(
    "LinearAttention",
    inputs="query key value past_state? decay? beta?",
    outputs="output present_state?",
    attrs=ATTRS,
    flags=Flags(splittable=(0,), cube=(0, 1, 2)),
)


def _check(n: Infer) -> None:
    heads, kv, rule = n.attrs["q_num_heads"], n.attrs["kv_num_heads"], n.attrs["update_rule"]
    if rule not in RULES:
        n.fail(f"attribute 'update_rule' is '{rule}'; expected one of {', '.join(RULES)}")
    if kv < 1 or heads % kv:
        n.fail(f"{heads} query heads are no multiple of {kv} key heads")
    if rule.startswith("gated") and not n.has(4):
        n.fail(f"the rule '{rule}' needs the input decay")
    if rule.endswith("delta") and not n.has(5):
        n.fail(f"the rule '{rule}' needs the input beta")
    for i, name, count in ((0, "query", heads), (1, "key", kv), (2, "value", kv)):
        check_dtype(n, i, HALVES | {DType.FLOAT32})
        shape = n.shape(i)
        if shape is None:
            continue
        if len(shape) != 3:
            n.fail(f"{name} has shape {show(shape)}; expected [batch, steps, heads · size]")
        if type(shape[2]) is int and shape[2] % count:
            n.fail(f"{name} has {shape[2]} features, which {count} heads do not divide")


@attention.infer
def _(n: Infer) -> Result:
    _check(n)
    heads, kv, dtype = n.attrs["q_num_heads"], n.attrs["kv_num_heads"], n.dtype(0)
    q, k, v = n.shape(0), n.shape(1), n.shape(2)
    state = n.dtype(3) if n.has(3) else dtype
    if q is None or k is None or v is None:
        return [Tensor(dtype, None), Tensor(state, None)][: max(1, n.outputs)]
    size = v[2] // kv
    y = Tensor(dtype, (q[0], q[1], size * heads))
    return [y, Tensor(state, (q[0], kv, k[2] // kv, size))][: max(1, n.outputs)]


@attention.cost
def _(n: Infer) -> Cost:
    q, k, v = n.shape(0), n.shape(1), n.shape(2)
    if q is None or k is None or v is None:
        return Cost()
    kv = n.attrs["kv_num_heads"]
    state = q[0] * q[1] * k[2] * (v[2] // kv)
    return Cost(macs=state * (2 + n.attrs["q_num_heads"] // kv), vector=state * 3 + prod(q))


def _steps(x: Array, heads: int) -> Array:
    """[batch, steps, heads·size] as float32 [steps, batch, heads, size]."""
    split = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    return np.ascontiguousarray(split.transpose(1, 0, 2, 3), dtype=np.float32)


@attention.kernel
def _(
    call: Call, query: Array, key: Array, value: Array, past: Array | None = None, decay: Array | None = None,
    beta: Array | None = None,
) -> Any:  # fmt: skip
    attrs = call.attrs
    heads, kv, rule = attrs["q_num_heads"], attrs["kv_num_heads"], attrs["update_rule"]
    k, v = _steps(key, kv), _steps(value, kv)
    steps, batch, _, size = k.shape
    scale = np.float32(attrs["scale"] or 1 / sqrt(size))
    q = (_steps(query, heads) * scale).reshape(steps, batch, kv, heads // kv, size)
    state = np.zeros((batch, kv, size, v.shape[3]), np.float32)
    if past is not None:
        np.copyto(state, past, casting="unsafe")
    y = call.into(0, (batch, steps, heads * v.shape[3]), query.dtype)
    out = y.reshape(batch, steps, kv, heads // kv, v.shape[3])
    with np.errstate(all="ignore"):
        # One factor a head, or one for each of its key dims.
        gate = np.exp(_steps(decay, kv)) if decay is not None and rule.startswith("gated") else None
        rate = None
        if beta is not None and rule.endswith("delta"):
            rate = np.broadcast_to(beta.astype(np.float32), (batch, steps, kv)).transpose(1, 0, 2)
        for t in range(steps):
            if gate is not None:
                np.multiply(state, gate[t][..., None], out=state)
            new = v[t]
            if rate is not None:
                seen = np.matmul(k[t][:, :, None], state)[:, :, 0]
                new = (new - seen) * rate[t][..., None]
            np.add(state, k[t][..., None] * new[:, :, None], out=state)
            np.copyto(out[:, t], np.matmul(q[t], state), casting="unsafe")
    if max(len(call.outs), len(call.out_types)) < 2:
        return y
    present = call.into(1, state.shape, query.dtype if past is None else past.dtype)
    np.copyto(present, state, casting="unsafe")
    return y, present
