"""What authors of operators of their own import: declarations, and loading the modules that hold them.

    # softcap.py
    from atc_py.custom import Array, Attr, Call, Infer, Tensor, declare

    soft_cap = declare("acme::SoftCap", inputs="X", outputs="Y", attrs={"cap": Attr("float", 30.0)})

    @soft_cap.infer                                  # shapes and dtypes; without it the rank is known at run time
    def _(n: Infer) -> Tensor:
        return n.tensor(0)

    @soft_cap.kernel                                 # numpy arrays in, numpy arrays out
    def _(call: Call, x: Array) -> Array:
        cap = x.dtype.type(call.attrs["cap"])
        return cap * np.tanh(x / cap)

    # elsewhere
    atc_py.custom.load("softcap.py")                 # or --custom-ops softcap.py, or an entry point of `atc_py.ops`

docs/custom_operators.md is the guide. These names are stable; the modules that they come from are not.
"""

from __future__ import annotations

from atc_py.ir.dims import Dim
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Engine, Infer, Product, Result, elements
from atc_py.ops.custom import Flags, declare
from atc_py.ops.plugins import load
from atc_py.ops.shape_values import constant_array
from atc_py.ops.shapes import broadcast

__all__ = [
    "Array",
    "Attr",
    "Call",
    "Cost",
    "DType",
    "Dim",
    "Engine",
    "Flags",
    "Infer",
    "Product",
    "Result",
    "Tensor",
    "broadcast",
    "constant_array",
    "declare",
    "elements",
    "load",
]
