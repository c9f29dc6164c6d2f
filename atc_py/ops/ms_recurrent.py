"""com.microsoft's DynamicQuantizeLSTM: an LSTM whose weights are bytes and whose inputs become bytes as it runs.

The input of all steps is quantised at once, the state anew before each step, both to uint8 over the range that they
have (as DynamicQuantizeLinear does); products are exact sums of bytes, scaled back to float32:

    x·W  ≈  (q(x) - zero) @ (W - W_zero)  ·  x_scale · W_scale

A state on the border between two bytes falls to either side by its last bit, and all later steps follow. The operator
is onnxruntime's own, so the order of sums is onnxruntime's, and so are sigmoid and tanh: quotients of polynomials, each
step a fused multiply-add (which a float64 product and sum, rounded to float32, stands in for).

W is [directions, input, 4·hidden], R [directions, hidden, 4·hidden]: the transpose of LSTM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.dims import Size
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Call, Cost, Infer, Result, declare
from atc_py.ops.elementwise_base import check_dtype
from atc_py.ops.recurrent import LSTM_ATTRS, recurrent_cost, recurrent_infer, recurrent_workspace, run_recurrent
from atc_py.ops.recurrent_impl import ACTIVATIONS, Weights

lstm = declare(
    "com.microsoft::DynamicQuantizeLSTM",
    inputs="X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
    outputs="Y? Y_h? Y_c?",
    attrs={k: v for k, v in LSTM_ATTRS.items() if k != "layout"},
)
_BYTES = frozenset({DType.INT8, DType.UINT8})


Coefficients = tuple[tuple[float, ...], tuple[float, ...]]
"""Of a numerator in odd powers of x and a denominator in even ones, the highest first."""
_TANH: Coefficients = (
    (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
     6.37261928875436e-04, 4.89352455891786e-03),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip
_SIGMOID: Coefficients = (
    (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
    (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
     9.93151921023180e-01),
)  # fmt: skip


def _columns(both: Coefficients) -> Array:
    """Numerator and denominator side by side, so that both are evaluated at once: [powers, 2, 1, 1]."""
    length = max(map(len, both))
    padded = [(0.0,) * (length - len(c)) + c for c in both]
    return np.array(padded, np.float32).T.astype(np.float64).reshape(length, 2, 1, 1)


def _quotient(x: Array, columns: Array) -> Array:
    """The quotient of the polynomials at `x` [rows, columns], in float32 with fused multiply-adds."""
    square = np.square(x).astype(np.float64)
    value = np.zeros((2, *x.shape), np.float32)
    wide = np.empty(value.shape, np.float64)
    value += columns[0].astype(np.float32)
    for c in columns[1:]:
        np.multiply(value, square, out=wide)
        np.add(wide, c, out=wide)
        np.copyto(value, wide, casting="same_kind")
    return np.asarray(value[0] * x / value[1])


_TANH_COLUMNS, _SIGMOID_COLUMNS = _columns(_TANH), _columns(_SIGMOID)


def _tanh(x: Array) -> None:
    np.clip(x, -9, 9, out=x)
    np.copyto(x, _quotient(x, _TANH_COLUMNS))


def _sigmoid(x: Array) -> None:
    np.clip(x, -18, 18, out=x)
    np.copyto(x, np.clip(_quotient(x, _SIGMOID_COLUMNS) + np.float32(0.5), 0, 1))


_TABLE = {**ACTIVATIONS, "sigmoid": (_sigmoid, ()), "tanh": (_tanh, ())}


@dataclass
class QuantizedWeights(Weights):
    """`w` and `r` hold the centred bytes as float32; their scales are one number or one a column."""

    w_scale: Any = 1.0
    r_scale: Any = 1.0

    def project(self, x: Array, out: Array) -> None:
        """The input's share."""
        _product(x, self.w, self.w_scale, out)

    def recur(self, h: Array, out: Array, ran: Array | None = None) -> None:
        """The state's share; the states of sequences that have ended no longer widen the range."""
        _product(h if ran is None else np.where(ran, h, np.float32(0)), self.r, self.r_scale, out)


def _product(x: Array, weights: Array, scale: Any, out: Array) -> None:
    high, low = np.float32(np.max(x, initial=0)), np.float32(np.min(x, initial=0))
    step = (high - low) / np.float32(255) if high != low else np.float32(1)
    zero = np.rint(np.clip(-low / step, np.float32(0), np.float32(255)))
    q = np.divide(x, step)
    np.rint(q, out=q)
    np.add(q, zero, out=q)
    np.clip(q, 0, 255, out=q)
    np.subtract(q, zero, out=q)
    np.matmul(q, weights, out=out)
    np.multiply(out, step * scale, out=out)


def _as_lstm(n: Infer) -> Infer:
    """The same node with LSTM's types, whose rules hold."""
    types: list[Any] = [*n.types[:8]]
    for i in (1, 2):
        shape = n.shape(i)
        turned = shape if shape is None or len(shape) != 3 else (shape[0], shape[2], shape[1])
        types[i] = Tensor(DType.FLOAT32, turned)
    return Infer(tuple(types), {**n.attrs, "layout": 0}, n.outputs, (), n.new_symbol)


@lstm.infer
def _(n: Infer) -> Result:
    check_dtype(n, 0, frozenset({DType.FLOAT32}))
    for i in (1, 2):
        check_dtype(n, i, _BYTES)
    return recurrent_infer(_as_lstm(n), "LSTM")


@lstm.cost
def _(n: Infer) -> Cost:
    return recurrent_cost(_as_lstm(n), "LSTM")


@lstm.workspace
def _(n: Infer) -> Size | None:
    return recurrent_workspace(_as_lstm(n), "LSTM")


def _scale(p: Array, direction: int) -> Any:
    rows = p.reshape(-1) if p.ndim < 2 else p[direction]
    if p.ndim < 2:
        return np.float32(rows[direction if rows.size > 1 else 0])
    return rows.astype(np.float32) if rows.size > 1 else np.float32(rows[0])


def _pack(w: Array, r: Array, b: Array | None, p: Array | None, *quantisation: Array) -> list[Weights]:
    w_scale, w_zero, r_scale, r_zero = quantisation
    hidden = r.shape[1]
    packed: list[Weights] = []
    for d in range(w.shape[0]):
        both = np.zeros((2, 4 * hidden), np.float32) if b is None else b[d].astype(np.float32).reshape(2, -1)
        peephole = None if p is None else p[d].astype(np.float32).reshape(3, hidden)
        by_input, by_state = (
            np.ascontiguousarray(m[d].astype(np.float32) - _scale(z, d)) for m, z in ((w, w_zero), (r, r_zero))
        )
        scales = {"w_scale": _scale(w_scale, d), "r_scale": _scale(r_scale, d)}
        none = np.zeros(4 * hidden, np.float32)
        packed.append(QuantizedWeights(by_input, by_state, none, None, peephole, both[0] + both[1], **scales))
    return packed


@lstm.prepare
def _(call: Call) -> list[Weights] | None:
    given = [i for i in (1, 2, 3, 7, 8, 9, 10, 11) if i < len(call.in_types) and call.in_types[i] is not None]
    c = call.consts
    if any(i not in c for i in given):
        return None
    return _pack(c[1], c[2], c.get(3), c.get(7), c[8], c[9], c[10], c[11])


@lstm.kernel
def _(
    call: Call, x: Array, w: Array, r: Array, b: Array | None, lengths: Array | None, h: Array | None, c: Array | None,
    p: Array | None, w_scale: Array, w_zero: Array, r_scale: Array, r_zero: Array,
) -> tuple[Array, ...]:  # fmt: skip
    with np.errstate(all="ignore"):
        weights = call.state or _pack(w, r, b, p, w_scale, w_zero, r_scale, r_zero)
        return run_recurrent(call, "LSTM", x, lengths, weights, h, c, _TABLE)
