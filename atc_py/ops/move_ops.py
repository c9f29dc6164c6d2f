"""`TensorMove`: an explicit copy (GE's name), where two values must not share bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ops.base import Array, Call, Flags, Infer, Result, declare

tensor_move = declare(
    "TensorMove",
    inputs="X",
    outputs="Y",
    flags=Flags(elementwise=True, layout_agnostic=True, fp16_safe=True, keeps_zero=True),
)


@tensor_move.infer
def _infer(n: Infer) -> Result:
    return n.types[0]


@tensor_move.kernel
def _kernel(call: Call, x: Array | Any) -> Any:
    out = call.out(0)
    if out is None:
        return x.copy() if isinstance(x, np.ndarray) else x
    np.copyto(out, x)
    return out
