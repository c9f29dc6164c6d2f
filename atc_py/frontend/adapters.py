"""Adapters of the operators whose attributes became inputs, and of those with small changes.

Every operator of onnx whose versions differ was looked at; those not named here or in `adapters_nn` differ only in the
element types that they take, or in attributes whose new default means what the old version did.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atc_py.frontend.draft import Draft, before
from atc_py.frontend.onnx_types import NAMES
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import DType

_UNARY_1 = (
    "Abs Ceil Exp Floor Log Neg Reciprocal Relu Sigmoid Sqrt Tanh Elu HardSigmoid LeakyRelu Selu Clip PRelu Max Min "
    "Mean Sum Add Sub Mul Div BatchNormalization InstanceNormalization Dropout Reshape"
)


@before(_UNARY_1, 6)
def _consumed_inputs(d: Draft) -> None:
    """`consumed_inputs` was a hint about memory."""
    d.attrs.pop("consumed_inputs", None)


@before("Add Sub Mul Div And Or Xor Equal Greater Less Pow", 7)
def _broadcast_axis(d: Draft) -> None:
    """B was aligned with A's dims from `axis` on, where `broadcast` said so."""
    broadcast, axis = d.attrs.pop("broadcast", 0), d.attrs.pop("axis", None)
    if not broadcast or axis is None:
        return
    a, b = d.tensor(0).rank, d.tensor(1).rank
    if a is None or b is None:
        d.fail("ranks must be known to place the second input by 'axis'")
    trailing = a - (axis + a if axis < 0 else axis) - b
    if trailing < 0:
        d.fail(f"axis {axis} does not place a tensor of rank {b} inside one of rank {a}")
    if trailing:
        d.inputs[1] = d.emit("Unsqueeze", [d.inputs[1], d.ints(range(b, b + trailing))])[0]


def _attribute_to_input(ops: str, bound: int, name: str, index: int, required: bool = False) -> None:
    """An integer attribute became input `index`; an empty list means what its absence means."""

    @before(ops, bound)
    def _(d: Draft) -> None:
        values = d.attrs.pop(name, None)
        if values:
            d.set_input(index, d.ints(values))
        elif required:
            d.fail(f"attribute '{name}' is missing")


_attribute_to_input("Squeeze", 13, "axes", 1)
_attribute_to_input("Unsqueeze", 13, "axes", 1, required=True)
_attribute_to_input("ReduceSum", 13, "axes", 1)
_attribute_to_input(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare",
    18,
    "axes",
    1,
)
_attribute_to_input("Split", 13, "split", 1)


@before("Split", 18)
def _split_parts(d: Draft) -> None:
    """Without sizes the input is cut into as many equal parts as there are outputs."""
    if not d.has(1):
        d.attrs["num_outputs"] = d.outputs


@before("Concat", 4)
def _concat_axis(d: Draft) -> None:
    d.attrs.setdefault("axis", 1)


@before("Reshape", 5)
def _reshape(d: Draft) -> None:
    d.set_input(1, d.ints(d.attrs.pop("shape", ())))


@before("Slice", 10)
def _slice(d: Draft) -> None:
    starts, ends = d.attrs.pop("starts", ()), d.attrs.pop("ends", ())
    axes = d.attrs.pop("axes", None)
    d.inputs = [d.inputs[0], d.ints(starts), d.ints(ends), d.ints(range(len(starts)) if axes is None else axes)]


@before("Pad", 2)
def _paddings(d: Draft) -> None:
    d.attrs["pads"] = d.attrs.pop("paddings", ())


@before("Pad", 11)
def _pad(d: Draft) -> None:
    pads, value = d.attrs.pop("pads", ()), d.attrs.pop("value", 0.0)
    d.inputs = [d.inputs[0], d.ints(pads)]
    if value:
        d.inputs.append(d.const(value, d.tensor(0).dtype))


@before("Clip", 11)
def _clip(d: Draft) -> None:
    """Bounds were attributes, the widest float32 by default: those bind nothing and are dropped."""
    limit, dtype = float(np.finfo(np.float32).max), d.tensor(0).dtype
    for index, name, sign in ((1, "min", -1.0), (2, "max", 1.0)):
        bound = d.attrs.pop(name, None)
        if bound is not None and bound * sign < limit:
            d.set_input(index, d.const(bound, dtype))


@before("Cast", 6)
def _cast(d: Draft) -> None:
    name = d.attrs.get("to", "")
    if name not in NAMES:
        d.fail(f"'to' is '{name}', which is no element type")
    d.attrs["to"] = NAMES[name]


@before("Tile", 6)
def _tile(d: Draft) -> None:
    """One axis was tiled: inputs were the count and the axis."""
    times, axis, rank = d.known(1), d.known(2), d.tensor(0).rank
    if times is None or axis is None or rank is None:
        d.fail("count, axis and rank must be known")
    repeats: list[Any] = [1] * rank
    at = int(axis.reshape(-1)[0])
    if not -rank <= at < rank:
        d.fail(f"axis {at} is outside the tensor of rank {rank}")
    repeats[at] = times.reshape(-1)[0]
    d.inputs = [d.inputs[0], d.ints(repeats)]


@before("TopK", 10)
def _top_k(d: Draft) -> None:
    if "k" not in d.attrs:
        d.fail("attribute 'k' is missing")
    d.set_input(1, d.ints([d.attrs.pop("k")]))


@before("Scatter", 12)
def _scatter(d: Draft) -> None:
    d.op = "ScatterElements"


@before("DFT", 20)
def _dft(d: Draft) -> None:
    d.set_input(2, d.const(np.int64(d.attrs.pop("axis", 1))))


@before("Softmax LogSoftmax Hardmax", 13)
def _softmax(d: Draft) -> list[int] | None:
    """The input was seen as a matrix: dims before `axis` are rows, all others one row's elements."""
    shape, axis = d.tensor(0).shape, d.attrs.pop("axis", 1)
    if shape is not None:
        rank = len(shape)
        at = axis + rank if axis < 0 else axis
        if not 0 <= at <= rank or (at == rank and rank > 1):
            d.fail(f"axis {axis} is outside a tensor of rank {rank}")
        if rank and all(type(n) is int and n == 1 for n in shape[at + 1 :]):
            d.attrs["axis"] = min(at, rank - 1)
            return None
    [matrix] = d.emit("Flatten", [d.inputs[0]], {"axis": axis})
    [rows] = d.emit(d.op, [matrix], {"axis": -1})
    return d.finish("Reshape", [rows, *d.emit("Shape", [d.inputs[0]])], {"allowzero": 1})


@before("Dropout", 12)
def _dropout(d: Draft) -> list[int] | None:
    """Inference: the data as it is. The mask had the data's type before opset 10."""
    d.attrs.pop("is_test", None)
    d.attrs.pop("ratio", None)
    if d.wanted < 2 or d.version >= 10:
        return None
    outputs = d.emit("Dropout", d.inputs[:1], outputs=2)
    return [outputs[0], *d.emit("Cast", [outputs[1]], {"to": d.tensor(0).dtype})]


@before("ai.onnx.ml::LabelEncoder", 2)
def _label_encoder(d: Draft) -> None:
    """One list of classes was mapped to its positions, or positions to classes, by the input's type."""
    classes = d.attrs.pop("classes_strings", ())
    positions = tuple(range(len(classes)))
    text = d.tensor(0).dtype is DType.STRING
    d.attrs["keys_strings" if text else "keys_int64s"] = classes if text else positions
    d.attrs["values_int64s" if text else "values_strings"] = positions if text else classes


@before("GlobalLpPool LpPool", 2)
def _lp_order(d: Draft) -> None:
    order = d.attrs.get("p", 2.0)
    if order != int(order):
        d.fail(f"the norm of order {order} is not supported")
    d.attrs["p"] = int(order)


@before("RNN GRU LSTM", 7)
def _recurrent(d: Draft) -> None:
    """`output_sequence` said whether Y is given; now an output without a name is left out."""
    d.attrs.pop("output_sequence", None)
    if d.attrs.get("direction") == "foward":  # spelled so in the default of GRU-1
        d.attrs["direction"] = "forward"


@before("Gemm", 7)
def _gemm(d: Draft) -> None:
    d.attrs.pop("broadcast", None)


def absent_if_empty(d: Draft, first: int) -> None:
    """Inputs from `first` on that hold no element count as absent."""
    for i in range(first, len(d.inputs)):
        if d.has(i) and d.tensor(i).shape is not None and any(n == 0 for n in d.tensor(i).dims if type(n) is int):
            d.inputs[i] = ABSENT
