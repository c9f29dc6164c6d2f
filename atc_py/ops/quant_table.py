"""LookupTable: what a function of one byte gives for each byte, as a table of 256 results.

    Dequantize ─ HardSwish ─ Quantize, uint8        table[i] = quantize(hardswish(dequantize(i)))        y = table[x]

The table is indexed by the byte's bit pattern: an int8 of -1 reads entry 255.
"""

from __future__ import annotations

import numpy as np

from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Flags, Infer, Result, declare
from atc_py.ops.elementwise_base import check_dtype, fitting, vector_cost

BYTES = frozenset({DType.INT8, DType.UINT8})

lookup_table = declare(
    "LookupTable",
    inputs="X",
    outputs="Y",
    attrs={"table": Attr("ints"), "to": Attr("dtype")},
    flags=Flags(elementwise=True, fusible=True, recomputable=True, layout_agnostic=True),
)
lookup_table.cost(vector_cost(1))


@lookup_table.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, BYTES)
    to, table = n.attrs["to"], n.attrs["table"]
    if to not in BYTES:
        n.fail(f"`to` is {to.value}; expected int8 or uint8")
    limits = np.iinfo(to.numpy)
    if len(table) != 256 or not all(limits.min <= i <= limits.max for i in table):
        n.fail(f"the table has {len(table)} entries; expected 256 of {to.value}, one a byte")
    t = n.tensor(0)
    return Tensor(to, t.shape, t.format, t.storage)


@lookup_table.prepare
def _(call: Call) -> Array:
    return np.array(call.attrs["table"], call.attrs["to"].numpy)


@lookup_table.kernel
def _(call: Call, x: Array) -> Array:
    table = call.state if isinstance(call.state, np.ndarray) else np.array(call.attrs["table"], call.attrs["to"].numpy)
    y = fitting(call, 0, x.shape, table.dtype)
    index = np.ascontiguousarray(x).view(np.uint8)
    if y.flags.c_contiguous:
        np.take(table, index, out=y, mode="clip")
    else:
        np.copyto(y, table[index])
    return y
