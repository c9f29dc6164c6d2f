"""One direction of an RNN, a GRU or an LSTM over a whole sequence.

The input's share of all gates is one matrix product for all steps, which lies in the task's workspace; a step then adds
the state's share and works in place on preallocated buffers. For a sequence of 3, batch 2, input 4 and hidden size 5
(LSTM, four gates):

    projected   [3·2, 4] @ [4, 20] + bias   →  [3, 2, 20]
    step t      gates = projected[t] + h @ [5, 20];  c = f·c + i·g;  h = o·tanh(c)

Sequences that have ended keep their state and give zeros; a reverse direction runs over each sequence's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from atc_py.ops.base import Array, InferError

Activation = Callable[[Array], None]
"""Works in place."""


def _sigmoid(x: Array) -> None:
    np.multiply(x, -1, out=x)  # numpy 2.4's negative is wrong in place on a column of a matrix
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.reciprocal(x, out=x)


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)


def _affine(x: Array, alpha: float, beta: float) -> None:
    np.multiply(x, alpha, out=x)
    np.add(x, beta, out=x)


def _leaky_relu(x: Array, alpha: float) -> None:
    np.multiply(x, alpha, out=x, where=x < 0)


def _thresholded_relu(x: Array, alpha: float) -> None:
    x[x < alpha] = 0


def _scaled_tanh(x: Array, alpha: float, beta: float) -> None:
    np.multiply(x, beta, out=x)
    np.tanh(x, out=x)
    np.multiply(x, alpha, out=x)


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> None:
    _affine(x, alpha, beta)
    np.clip(x, 0, 1, out=x)


def _elu(x: Array, alpha: float) -> None:
    low = x < 0
    x[low] = alpha * np.expm1(x[low])


def _softsign(x: Array) -> None:
    np.divide(x, 1 + np.abs(x), out=x)


def _softplus(x: Array) -> None:
    np.logaddexp(x, 0, out=x)


Table = Mapping[str, tuple[Callable[..., None], tuple[float, ...]]]

ACTIVATIONS: Table = {
    "affine": (_affine, (1.0, 0.0)),
    "elu": (_elu, (1.0,)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (_leaky_relu, (0.01,)),
    "relu": (_relu, ()),
    "scaledtanh": (_scaled_tanh, (1.0, 1.0)),
    "sigmoid": (_sigmoid, ()),
    "softplus": (_softplus, ()),
    "softsign": (_softsign, ()),
    "tanh": (_tanh, ()),
    "thresholdedrelu": (_thresholded_relu, (1.0,)),
}
"""Name in lower case → (function, defaults of alpha and beta as far as it takes them)."""


def activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None, table: Table = ACTIVATIONS
) -> list[Activation]:
    """The activations in order; each takes the next alpha and beta if it has such a parameter, else its default."""
    alpha, beta = list(alphas or ()), list(betas or ())
    found: list[Activation] = []
    for name in names:
        if name.lower() not in table:
            raise InferError(f"the activation '{name}' is unknown", "ONNX's RNN, GRU and LSTM list the names")
        function, defaults = table[name.lower()]
        values = [source.pop(0) if source else default for source, default in zip((alpha, beta), defaults)]
        found.append(partial(function, **dict(zip(("alpha", "beta"), values))))
    return found


@dataclass
class Weights:
    """Packed weights of one direction: `w` [input, gates·hidden], `r` [hidden, gates·hidden], bias [gates·hidden].

    `apart` is a bias that stays with the state's share (GRU with linear_before_reset), `late` one that is added to the
    sum of both shares (LSTM); `peephole` is [3, hidden].
    """

    w: Array
    r: Array
    bias: Array
    apart: Array | None = None
    peephole: Array | None = None
    late: Array | None = None

    def project(self, x: Array, out: Array) -> None:
        """The input's share of the gates, bias not counted: `out` [rows, gates·hidden] = `x` [rows, input] · W."""
        np.matmul(x, self.w, out=out)

    def recur(self, h: Array, out: Array, ran: Array | None = None) -> None:
        """The state's share of the gates, h·R; `ran` [batch, 1] tells which sequences the last step was part of."""
        np.matmul(h, self.r, out=out)


@dataclass
class Sequences:
    """The input of one direction and its lengths.

    `x` is [steps, batch, input] in running order; `shares` [steps, batch, gates·hidden] is memory for the input's share
    of the gates, whatever it holds; `mask` [steps, batch, 1] tells which sequences still run (None when all do to the
    end); `order` [steps, batch] is the time that each step of each sequence stands for (None: forward).
    """

    x: Array
    shares: Array
    mask: Array | None
    order: Array | None


def sequences(x: Array, shares: Array, lengths: Array | None, reverse: bool) -> Sequences:
    """Arrange `x` [steps, batch, input] for one direction; `shares` as in `Sequences`.

    Raises `InferError` for a length below 0 or above the number of steps.
    """
    steps, batch = x.shape[:2]
    full = np.full(batch, steps, np.int64) if lengths is None else lengths.astype(np.int64)
    wrong = next((int(n) for n in full if not 0 <= n <= steps), None)
    if wrong is not None:
        raise InferError(f"a sequence has a length of {wrong}, expected 0 to {steps}", "correct sequence_lens")
    times = np.arange(steps)[:, None]
    mask = None if np.all(full == steps) else (times < full)[:, :, None]
    if not reverse:
        return Sequences(x, shares, mask, None)
    order = np.where(times < full, full - 1 - times, times)
    return Sequences(x[order, np.arange(batch)], shares, mask, order)


def store(s: Sequences, step: int, h: Array, y: Array) -> None:
    """Put the state after `step` into `y` [steps, batch, hidden], zeros for sequences that have ended."""
    value = h if s.mask is None else np.where(s.mask[step], h, 0)
    if s.order is None:
        np.copyto(y[step], value, casting="unsafe")
    else:
        y[s.order[step], np.arange(h.shape[0])] = value


def _keep(s: Sequences, step: int, old: Array, new: Array) -> None:
    """Ended sequences keep their old state: old becomes new elsewhere."""
    if s.mask is None:
        np.copyto(old, new)
    else:
        np.copyto(old, new, where=s.mask[step])


def _projected(s: Sequences, w: Weights) -> Array:
    steps, batch, width = s.x.shape
    flat = np.ascontiguousarray(s.x, dtype=w.w.dtype).reshape(steps * batch, width)
    rows = s.shares.reshape(steps * batch, w.w.shape[1])
    w.project(flat, rows)
    np.add(rows, w.bias, out=rows)
    return s.shares


def _clip(x: Array, limit: float | None) -> None:
    if limit is not None:
        np.clip(x, -limit, limit, out=x)


def rnn(s: Sequences, w: Weights, h: Array, y: Array, acts: Sequence[Activation], clip: float | None) -> None:
    """h' = f(x·W + h·R + bias); `h` is updated in place, `y` gets every state."""
    projected = _projected(s, w)
    new = np.empty_like(h)
    for step in range(len(projected)):
        np.matmul(h, w.r, out=new)
        np.add(new, projected[step], out=new)
        _clip(new, clip)
        acts[0](new)
        _keep(s, step, h, new)
        store(s, step, h, y)


def gru(s: Sequences, w: Weights, h: Array, y: Array, acts: Sequence[Activation], clip: float | None) -> None:
    """z, r = f(...); n = g(x·Wn + state share gated by r); h' = n + z·(h - n). See ONNX's GRU for both variants."""
    projected = _projected(s, w)
    hidden = h.shape[1]
    gates, candidate, gated = np.empty((len(h), 2 * hidden), h.dtype), np.empty_like(h), np.empty_like(h)
    gate_r = np.ascontiguousarray(w.r[:, : 2 * hidden])
    candidate_r = np.ascontiguousarray(w.r[:, 2 * hidden :])
    for step in range(len(projected)):
        np.matmul(h, gate_r, out=gates)
        np.add(gates, projected[step, :, : 2 * hidden], out=gates)
        _clip(gates, clip)
        acts[0](gates)
        z, r = gates[:, :hidden], gates[:, hidden:]
        if w.apart is not None:
            np.matmul(h, candidate_r, out=candidate)
            np.add(candidate, w.apart, out=candidate)
            np.multiply(candidate, r, out=candidate)
        else:
            np.multiply(r, h, out=gated)
            np.matmul(gated, candidate_r, out=candidate)
        np.add(candidate, projected[step, :, 2 * hidden :], out=candidate)
        _clip(candidate, clip)
        acts[1](candidate)
        np.subtract(h, candidate, out=gated)
        np.multiply(gated, z, out=gated)
        np.add(candidate, gated, out=candidate)
        _keep(s, step, h, candidate)
        store(s, step, h, y)


def lstm(
    s: Sequences, w: Weights, h: Array, c: Array, y: Array, acts: Sequence[Activation], clip: float | None, couple: bool
) -> None:
    """ONNX's LSTM, gates in the order i, o, f, g; `couple` (input_forget) takes 1 - i for f."""
    projected = _projected(s, w)
    n = h.shape[1]
    gates = np.empty((len(h), 4 * n), h.dtype)
    i, o, f, g = (gates[:, k * n : (k + 1) * n] for k in range(4))
    cell, new = np.empty_like(c), np.empty_like(h)
    for step in range(len(projected)):
        w.recur(h, gates, None if s.mask is None or not step else s.mask[step - 1])
        np.add(gates, projected[step], out=gates)
        if w.late is not None:
            np.add(gates, w.late, out=gates)
        if w.peephole is None:
            _clip(gates, clip)
            acts[0](gates[:, : 3 * n])
        else:
            i += w.peephole[0] * c
            f += w.peephole[2] * c
            for part in (i, f, g):
                _clip(part, clip)
            acts[0](i)
            acts[0](f)
        acts[1](g)
        if couple:
            np.subtract(1, i, out=f)
        np.multiply(f, c, out=cell)
        np.multiply(i, g, out=g)
        np.add(cell, g, out=cell)
        if w.peephole is not None:
            o += w.peephole[1] * cell
            _clip(o, clip)
            acts[0](o)
        np.copyto(new, cell)
        acts[2](new)
        np.multiply(new, o, out=new)
        _keep(s, step, c, cell)
        _keep(s, step, h, new)
        store(s, step, h, y)
