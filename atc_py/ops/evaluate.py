"""Running operators on arrays: constant folding, `Derived` constants, and the check all come here.

evaluate(Derived(float16, (2,), "Cast", (Blob float32 [1, 2],), {"to": float16}))  →  array([1, 2], float16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, DimVec, Splat, blob_array, splat_array
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.base import Array, Call, Op
from atc_py.ops.build import lookup

Body = Callable[[Sequence[Any]], "list[Any]"]


def tensor_type(value: Any) -> Type | None:
    """The type of an array; None for values that are no tensors."""
    if not isinstance(value, np.ndarray):
        return None
    return Tensor(DType.of(value.dtype), value.shape)


def run(
    op: Op,
    attrs: Mapping[str, Any],
    inputs: Sequence[Any],
    out_types: Sequence[Type | None] = (),
    bodies: Mapping[str, Body] | None = None,
) -> list[Any]:
    """The operator's outputs on the given inputs (None where absent); `out_types` as far as they are known."""
    consts = {i: v for i, v in enumerate(inputs) if isinstance(v, np.ndarray)}
    call = Call(
        attrs, tuple(out_types), [None] * len(out_types), consts, tuple(map(tensor_type, inputs)), bodies=bodies or {}
    )
    if op.prepare_fn is not None:
        call.state = op.prepare_fn(call)
    assert op.kernel_fn is not None, f"{op.name} has no kernel"
    with np.errstate(all="ignore"):
        result = op.kernel_fn(call, *inputs)
    return list(result) if isinstance(result, tuple) else [result]


def evaluate(constant: Constant, env: Mapping[str, int] | None = None) -> Array:
    """A constant's array (read-only, possibly with stride 0). Symbols are looked up in `env`.

    Recipes are evaluated without recursion, each shared part once.
    """
    if isinstance(constant, Blob):
        return blob_array(constant)
    done: dict[int, Array] = {}
    stack: list[Constant] = [constant]
    while stack:
        top = stack[-1]
        if isinstance(top, Blob):
            done[id(top)] = blob_array(top)
        elif isinstance(top, Splat):
            done[id(top)] = splat_array(top, env)
        elif isinstance(top, DimVec):
            done[id(top)] = top.bind(env or {})
        else:
            missing = [i for i in top.inputs if id(i) not in done]
            if missing:
                stack += missing
                continue
            op = lookup(top.op, top.attrs)
            types = [Tensor(top.dtype, top.shape)]
            done[id(top)] = np.asarray(run(op, op.attributes(top.attrs), [done[id(i)] for i in top.inputs], types)[0])
        stack.pop()
    return done[id(constant)]
