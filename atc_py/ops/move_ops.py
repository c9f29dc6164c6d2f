"""`TensorMove`: an explicit copy (GE's name), where two values must not share bytes, or where engines meet.

    a: aicpu ─ TensorMove(to="aicore") ─ b: aicore        what AI CPU has made, copied to where AI Core reads it

The movers of AI Core make the copy, whichever engines it lies between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Result, declare

tensor_move = declare(
    "TensorMove",
    inputs="X",
    outputs="Y",
    attrs={"to": Attr("str", "")},
    flags=Flags(elementwise=True, layout_agnostic=True, fp16_safe=True, keeps_zero=True, moves=True),
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
