"""RNN, GRU, LSTM: node tests, random options against onnxruntime, layouts, dtypes, symbolic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.ir.dims import symbol
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import check, infer, onnxruntime_run, run

RNG = np.random.default_rng(13)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
BOUNDED = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign")
WITH_ALPHA, WITH_BETA = ("LeakyRelu", "ScaledTanh", "HardSigmoid", "Elu"), ("ScaledTanh", "HardSigmoid")


@pytest.mark.parametrize("test", node_models.node_tests(*GATES), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@st.composite
def layers(draw: Any) -> tuple[str, dict[str, Any], list[Any]]:
    op = draw(st.sampled_from(sorted(GATES)))
    steps, batch, width, hidden = (draw(st.integers(1, 5)) for _ in range(4))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}

    def maybe(value: Any) -> Any:
        return value if draw(st.booleans()) else None

    lengths = np.array([draw(st.integers(1, steps)) for _ in range(batch)], np.int32)
    gates = GATES[op] * hidden
    inputs = [normal(steps, batch, width), normal(d, gates, width), normal(d, gates, hidden)]
    inputs += [maybe(normal(d, 2 * gates)), maybe(lengths), maybe(normal(d, batch, hidden))]
    if draw(st.booleans()):
        attrs["clip"] = 0.7
    if op == "LSTM":
        inputs += [maybe(normal(d, batch, hidden)), maybe(normal(d, 3 * hidden))]
        attrs["input_forget"] = draw(st.integers(0, 1))
    if op == "GRU":
        attrs["linear_before_reset"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op] * d
        names = [draw(st.sampled_from(BOUNDED)) for _ in range(count)]
        alpha = [round(draw(st.floats(0.1, 0.9)), 2) for n in names if n in WITH_ALPHA]
        beta = [round(draw(st.floats(0.1, 0.9)), 2) for n in names if n in WITH_BETA]
        attrs |= {"activations": names}
        attrs |= {k: v for k, v in (("activation_alpha", alpha), ("activation_beta", beta)) if v}
    return op, attrs, inputs


@settings(max_examples=60, deadline=None, derandomize=True)
@given(layers())
def test_against_onnxruntime(case: tuple[str, dict[str, Any], list[Any]]) -> None:
    op, attrs, inputs = case
    outputs = 1 + STATES[op]
    wanted = onnxruntime_run(op, attrs, inputs, outputs)
    assert wanted is not None
    shapes = [None if v is None else v.shape for v in inputs]
    assert infer(op, attrs, shapes, outputs=outputs) == tuple(w.shape for w in wanted)
    given = tuple(i for i in (1, 2, 3, 7) if i < len(inputs) and inputs[i] is not None)
    for consts in ((), given):
        for got, want in zip(run(op, attrs, inputs, outputs, consts), wanted, strict=True):
            np.testing.assert_allclose(got, want, 2e-3, 2e-4)


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_batch_first(op: str, direction: str) -> None:
    """layout=1 swaps batch and time everywhere and changes no number."""
    d, gates = (2 if direction == "bidirectional" else 1), GATES[op] * 4
    lengths = np.array([5, 2, 3], np.int32)
    inputs = [normal(5, 3, 2), normal(d, gates, 2), normal(d, gates, 4), None, lengths, normal(d, 3, 4)]
    attrs, outputs = {"hidden_size": 4, "direction": direction}, 1 + STATES[op]
    y, *states = run(op, attrs, inputs, outputs)
    turned = [inputs[0].swapaxes(0, 1), *inputs[1:5], inputs[5].swapaxes(0, 1)]
    assert infer(op, {**attrs, "layout": 1}, [None if v is None else v.shape for v in turned])[0] == (3, 5, d, 4)
    z, *others = run(op, {**attrs, "layout": 1}, turned, outputs)
    np.testing.assert_allclose(z, y.transpose(2, 0, 1, 3), 1e-6)
    for a, b in zip(others, states, strict=True):
        np.testing.assert_allclose(a, b.swapaxes(0, 1), 1e-6)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_lengths_that_no_sequence_has_are_refused(wrong: int) -> None:
    x, w, r = normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5)
    with pytest.raises(InferError, match=f"length of {wrong}, expected 0 to 4"):
        run("GRU", {"hidden_size": 5}, [x, w, r, None, np.array([2, wrong], np.int32)], 2)


def test_ended_sequences() -> None:
    """What lies behind a sequence's end gives zeros and changes nothing; a length of 0 keeps the initial state."""
    x, h = normal(4, 2, 3), normal(1, 2, 5)
    w, r = normal(1, 15, 3), normal(1, 15, 5)
    y, last = run("GRU", {"hidden_size": 5}, [x, w, r, None, np.array([2, 0], np.int32), h], 2)
    x[2:, 0] = x[:, 1] = np.nan
    again, same = run("GRU", {"hidden_size": 5}, [x, w, r, None, np.array([2, 0], np.int32), h], 2)
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(last, same)
    assert not y[2:, 0, 0].any() and not y[:, 0, 1].any()
    np.testing.assert_array_equal(last[0, 1], h[0, 1])
    np.testing.assert_array_equal(last[0, 0], y[1, 0, 0])


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_dtypes_views_and_empty(op: str, dtype: Any) -> None:
    gates = GATES[op] * 4
    x, w, r = normal(3, 5, 2).swapaxes(0, 1), normal(1, gates, 2), normal(1, gates, 4)
    narrow = [v.astype(dtype) for v in (x, w, r)]
    want = run(op, {}, [v.astype(np.float64) for v in narrow])[0]
    outer = np.zeros((5, 1, 3, 8), dtype)
    got = run(op, {}, narrow, outs=[outer[..., ::2]])[0]
    assert got.dtype == dtype and not outer[..., 1::2].any()
    np.testing.assert_allclose(got, want, 2e-3, 2e-3)
    assert run(op, {}, [narrow[0][:0], *narrow[1:]], 2)[0].shape == (0, 1, 3, 4)
    assert not run(op, {}, [narrow[0][:0], *narrow[1:]], 2)[1].any()


def test_symbolic_shapes_and_errors() -> None:
    t, n = symbol("T"), symbol("N")
    shapes = [(t, n, 8), (2, 16, 8), (2, 16, 4)]
    attrs = {"direction": "bidirectional"}
    assert infer("LSTM", attrs, shapes, outputs=3) == ((t, 2, n, 4), (2, n, 4), (2, n, 4))
    with pytest.raises(InferError, match="direction"):
        infer("LSTM", {"direction": "up"}, shapes)
    with pytest.raises(InferError, match="expected 1"):
        infer("LSTM", {}, shapes)
    with pytest.raises(InferError, match="unknown"):
        infer("RNN", {"activations": ["Swish"]}, [(t, n, 8), (1, 4, 8), (1, 4, 4)])
    with pytest.raises(InferError, match="7 features"):
        infer("RNN", {}, [(t, n, 7), (1, 4, 8), (1, 4, 4)])
