"""Running operators on arrays: constant folding, `Derived` constants, and the check all come here.

evaluate(Derived(float16, (2,), "Cast", (Blob float32 [1, 2],), {"to": float16}))  →  array([1, 2], float16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.constants import Blob, Constant, DimVec, Splat, blob_array, splat_array
from atc_py.ir.dims import evaluate as evaluate_size
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.base import Array, Call, Infer, Op
from atc_py.ops.build import KNOWN_LIMIT, lookup

Body = Callable[[Sequence[Any]], "list[Any]"]


def tensor_type(value: Any) -> Type | None:
    """The type of an array; None for values that are no tensors."""
    if not isinstance(value, np.ndarray):
        return None
    return Tensor(DType.of(value.dtype), value.shape)


def workspace_nbytes(
    op: Op, attrs: Mapping[str, Any], types: Sequence[Type | None], values: Mapping[int, Any], outputs: int = 1
) -> int | None:
    """Bytes of workspace for inputs of concrete types, some of them known arrays; None where these do not tell."""
    if op.workspace_fn is None:
        return 0
    known = [values.get(i) for i in range(len(types))]
    small = [v if isinstance(v, np.ndarray) and v.size <= KNOWN_LIMIT else None for v in known]
    nbytes = op.workspace_nbytes(Infer(tuple(types), op.attributes(attrs), outputs, small))
    return nbytes if nbytes is None else evaluate_size(nbytes, {})


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
    if op.workspace_fn is not None:
        nbytes = workspace_nbytes(op, attrs, call.in_types, consts, max(1, len(out_types)))
        call.workspace = None if nbytes is None else np.empty(nbytes, np.uint8)
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
