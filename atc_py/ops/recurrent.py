"""RNN, GRU and LSTM: all directions, lengths, layouts, activations and initial states; see `recurrent_impl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc_py.ir.dims import Size
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, Op, Product, Result, Shape, declare
from atc_py.ops.recurrent_impl import (
    ACTIVATIONS,
    Activation,
    Table,
    Weights,
    activations,
    gru,
    lstm,
    rnn,
    sequences,
)
from atc_py.ops.shapes import assume, show

_ATTRS: Mapping[str, Attr] = {
    "activation_alpha": Attr("floats", None),
    "activation_beta": Attr("floats", None),
    "activations": Attr("strs", None),
    "clip": Attr("float", None),
    "direction": Attr("str", "forward"),
    "hidden_size": Attr("int", None),
    "layout": Attr("int", 0),
}
LSTM_ATTRS: Mapping[str, Attr] = {**_ATTRS, "input_forget": Attr("int", 0)}
_DIRECTIONS: Mapping[str, tuple[bool, ...]] = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Direction → whether each of its parts runs in reverse."""
_FLAGS = Flags(fp16_safe=True, cube=(0, 1, 2))

rnn_op = declare("RNN", inputs="X W R B? sequence_lens? initial_h?", outputs="Y? Y_h?", attrs=_ATTRS, flags=_FLAGS)
gru_op = declare(
    "GRU",
    inputs="X W R B? sequence_lens? initial_h?",
    outputs="Y? Y_h?",
    attrs={**_ATTRS, "linear_before_reset": Attr("int", 0)},
    flags=_FLAGS,
)
lstm_op = declare(
    "LSTM",
    inputs="X W R B? sequence_lens? initial_h? initial_c? P?",
    outputs="Y? Y_h? Y_c?",
    attrs=LSTM_ATTRS,
    flags=_FLAGS,
)

BLOCK = 16
"""Rows of a block of the cube: gates are worked on as they come from it."""
OPERATIONS = 9
"""Vector operations in float32 on an element of a gate: its bias, 4 of a Sigmoid or 9 of a Tanh, its share of the state
(GE's kernel of LSTM has 38 for four gates)."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


def _activations(attrs: Mapping[str, Any], kind: str, table: Table = ACTIVATIONS) -> list[list[Activation]]:
    """The activations of each direction."""
    directions, defaults = len(_DIRECTIONS[attrs["direction"]]), _DEFAULTS[kind]
    names = list(attrs["activations"] or ()) or list(defaults) * directions
    each = len(defaults)
    # RNN's declared default names two activations, whatever the direction.
    every = activations(names[: each * directions], attrs["activation_alpha"], attrs["activation_beta"], table)
    return [every[d * each : (d + 1) * each] for d in range(directions)]


def _sizes(n: Infer, kind: str) -> tuple[Size, Size, Size, Size] | None:
    """(steps, batch, input, hidden), None when the input's rank is unknown."""
    attrs, x, w, r = n.attrs, n.shape(0), n.shape(1), n.shape(2)
    if attrs["direction"] not in _DIRECTIONS:
        n.fail(f"direction is '{attrs['direction']}'; expected forward, reverse or bidirectional")
    directions = len(_DIRECTIONS[attrs["direction"]])
    for name, shape in (("X", x), ("W", w), ("R", r)):
        if shape is not None and len(shape) != 3:
            n.fail(f"{name} has shape {show(shape)}; expected rank 3")
    for name, shape in (("W", w), ("R", r)):
        if shape is not None and type(shape[0]) is int and shape[0] != directions:
            n.fail(f"{name} has shape {show(shape)}; expected {directions} as the first size ({attrs['direction']})")
    names = attrs["activations"]
    if names and len(names) < len(_DEFAULTS[kind]) * directions:
        n.fail(f"{len(names)} activations are given; expected {len(_DEFAULTS[kind]) * directions}")
    _activations(attrs, kind)
    hidden: Size | None = r[2] if r is not None else attrs["hidden_size"]
    if hidden is None:
        hidden = n.fresh(f"{kind} hidden_size")
    if r is not None and attrs["hidden_size"] and type(hidden) is int and hidden != attrs["hidden_size"]:
        n.fail(f"hidden_size is {attrs['hidden_size']}, but R has shape {show(r)}")
    if x is None:
        return None
    if w is not None and type(w[2]) is int and type(x[2]) is int and w[2] != x[2]:
        n.fail(f"X has {x[2]} features; W has shape {show(w)}")
    steps, batch = (x[1], x[0]) if attrs["layout"] else (x[0], x[1])
    return steps, batch, x[2], hidden


def recurrent_infer(n: Infer, kind: str) -> Result:
    """The types of RNN, GRU or LSTM's outputs."""
    found = _sizes(n, kind)
    dtype = n.dtype(0)
    if found is None:
        return [Tensor(dtype, None)] * max(1, n.outputs)
    steps, batch, _, hidden = found
    directions = len(_DIRECTIONS[n.attrs["direction"]])
    y: Shape = (steps, directions, batch, hidden)
    state: Shape = (directions, batch, hidden)
    if n.attrs["layout"]:
        y, state = (batch, steps, directions, hidden), (batch, directions, hidden)
    for i in (5, 6) if kind == "LSTM" else (5,):
        if n.has(i):
            _check_state(n, i, state)
    return [Tensor(dtype, y), Tensor(dtype, state), Tensor(dtype, state)][: max(1, n.outputs)]


def _check_state(n: Infer, i: int, wanted: Shape) -> None:
    """An initial state has the shape of a final one."""
    given = n.shape(i)
    if given is None:
        return
    fits = len(given) == len(wanted) and all(
        type(g) is not int or type(w) is not int or g == w for g, w in zip(given, wanted, strict=True)
    )
    if not fits:
        n.fail(f"the initial state has shape {show(given)}; expected {show(wanted)}")
    for g, w in zip(given, wanted, strict=True):
        assume(g, w)


def recurrent_cost(n: Infer, kind: str) -> Cost:
    """Their work."""
    found = _sizes(n, kind)
    if found is None:
        return Cost()
    steps, batch, width, hidden = found
    directions, gates = len(_DIRECTIONS[n.attrs["direction"]]), _GATES[kind] * hidden
    # All inputs are multiplied at once; the states come one step after the other, one direction after the other.
    inputs = Product(steps * batch, width, gates, directions)
    states = Product(batch, hidden, gates, steps * directions, serial=True)
    rows = (batch + BLOCK - 1) // BLOCK * BLOCK
    return Cost(products=(inputs, states), wide=steps * directions * rows * gates * OPERATIONS)


def recurrent_workspace(n: Infer, kind: str) -> Size | None:
    """Bytes of the input's share of the gates, for all steps of one direction: one runs after the other."""
    found = _sizes(n, kind)
    if found is None:
        return None
    steps, batch, _, hidden = found
    itemsize = DType.of(_wide(n.dtype(1).numpy)).itemsize
    return steps * batch * _GATES[kind] * hidden * itemsize


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _pack(kind: str, attrs: Mapping[str, Any], w: Array, r: Array, b: Array | None, p: Array | None) -> list[Weights]:
    """The packed weights of each direction."""
    wide = _wide(w.dtype)
    hidden = r.shape[2]
    packed = []
    for d in range(w.shape[0]):
        both = np.zeros((2, _GATES[kind] * hidden), wide) if b is None else b[d].astype(wide).reshape(2, -1)
        apart = None
        if kind == "GRU" and attrs["linear_before_reset"]:
            both, apart = both.copy(), both[1, 2 * hidden :].copy()
            both[1, 2 * hidden :] = 0
        peephole = None if p is None else p[d].astype(wide).reshape(3, hidden)
        by_input, by_state = (np.ascontiguousarray(m[d].T, dtype=wide) for m in (w, r))
        packed.append(Weights(by_input, by_state, both[0] + both[1], apart, peephole))
    return packed


def _prepare(call: Call, kind: str) -> list[Weights] | None:
    """Weights packed at bind, when all that are given are constants."""
    given = [i for i in (1, 2, 3, 7) if i < len(call.in_types) and call.in_types[i] is not None]
    if any(i not in call.consts for i in given):
        return None
    return _pack(kind, call.attrs, call.consts[1], call.consts[2], call.consts.get(3), call.consts.get(7))


def _initial(state: Array | None, d: int, shape: tuple[int, ...], layout: int, dtype: np.dtype[Any]) -> Array:
    if state is None:
        return np.zeros(shape, dtype)
    return np.array(state[:, d] if layout else state[d], dtype)


def run_recurrent(
    call: Call, kind: str, x: Array, lengths: Array | None, weights: Sequence[Weights],
    initial_h: Array | None, initial_c: Array | None, table: Table = ACTIVATIONS,
) -> tuple[Array, ...]:  # fmt: skip
    """All directions of one operator, whose weights are packed."""
    attrs = call.attrs
    layout, wide = attrs.get("layout", 0), weights[0].w.dtype
    time_first = x.transpose(1, 0, 2) if layout else x
    steps, batch = time_first.shape[:2]
    hidden = weights[0].r.shape[0]
    reverse = _DIRECTIONS[attrs["direction"]]
    every = _activations(attrs, kind, table)
    full = (batch, steps, len(reverse), hidden) if layout else (steps, len(reverse), batch, hidden)
    y = call.into(0, full, x.dtype)
    by_direction = y.transpose(2, 1, 0, 3) if layout else y.transpose(1, 0, 2, 3)
    states: list[tuple[Array, Array]] = []
    shares = call.from_workspace((steps, batch, weights[0].w.shape[1]), wide)
    for d, backwards in enumerate(reverse):
        s = sequences(time_first, shares, lengths, backwards)
        h = _initial(initial_h, d, (batch, hidden), layout, wide)
        c = _initial(initial_c, d, (batch, hidden), layout, wide)
        if kind == "LSTM":
            lstm(s, weights[d], h, c, by_direction[d], every[d], attrs["clip"], bool(attrs["input_forget"]))
        else:
            (gru if kind == "GRU" else rnn)(s, weights[d], h, by_direction[d], every[d], attrs["clip"])
        states.append((h, c))
    axis = 1 if layout else 0
    last = [np.stack([pair[k] for pair in states], axis=axis).astype(x.dtype) for k in (0, 1)]
    wanted = max(1, len(call.outs), len(call.out_types))
    return (y, *last[: 2 if kind == "LSTM" else 1])[:wanted]


def _define(op: Op) -> None:
    """Attach inference, cost, workspace, packing and kernel to one of the three operators."""
    kind = op.name
    op.infer(lambda n: recurrent_infer(n, kind))
    op.cost(lambda n: recurrent_cost(n, kind))
    op.workspace(lambda n: recurrent_workspace(n, kind))
    op.prepare(lambda call: _prepare(call, kind))

    def kernel(
        call: Call, x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
        initial_h: Array | None = None, initial_c: Array | None = None, p: Array | None = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        with np.errstate(all="ignore"):
            weights = call.state or _pack(kind, call.attrs, w, r, b, p)
            return run_recurrent(call, kind, x, sequence_lens, weights, initial_h, initial_c)

    op.kernel(kernel)


for _op in (rnn_op, gru_op, lstm_op):
    _define(_op)
