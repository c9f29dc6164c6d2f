"""com.microsoft's quantised operators against onnxruntime; rounding may differ by one step where a value is a tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.one_node import agree, expected, feeds, model, ours, same

RNG = np.random.default_rng(3)
DTYPES = [np.uint8, np.int8]


def data(dtype: Any, *shape: int) -> Any:
    low = np.iinfo(dtype).min
    return RNG.integers(low, low + 256, shape).astype(dtype)


def scale(value: float) -> Any:
    return np.array(value, np.float32)


def zero(dtype: Any, value: int) -> Any:
    return np.array(value, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(
    "shapes", [((3, 5, 4), (3, 5, 4)), ((3, 5, 4), (5, 1)), ((1, 4), (3, 1)), ((7,), ()), ((), ())]
)
def test_pairs(op: str, dtype: Any, shapes: Any) -> None:
    a, b = (data(dtype, *s) for s in shapes)
    given = [a, scale(0.02), zero(dtype, 3), b, scale(0.013), zero(dtype, 7), scale(0.031), zero(dtype, 11)]
    agree(f"com.microsoft::{op}", given, steps=1)
    agree(f"com.microsoft::{op}", given, steps=1, consts=(1, 2, 4, 5, 6, 7), symbolic=True)


def test_absent_zero_points_are_zero() -> None:
    a, b, none = data(np.int8, 2, 9), data(np.int8, 2, 9), zero(np.int8, 0)
    for op in ("QLinearAdd", "QLinearMul"):
        full = [a, scale(0.02), none, b, scale(0.01), none, scale(0.03), none]
        bare: list[Any] = full[:-1]
        bare[2] = bare[5] = None
        whole, short = (ours(model(f"com.microsoft::{op}", given, {}), feeds(given)) for given in (full, bare))
        same(whole, short)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", [(0.5, 0.5, 1.0), (0.00444695, 0.00775604, 0.00328294)])
def test_every_pair_rounds_like_onnxruntime(dtype: Any, scales: tuple[float, float, float]) -> None:
    """Ties too: scales that are powers of two make half of all sums ties. Looked up, and computed."""
    every = np.arange(256, dtype=np.uint8).view(dtype)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    x, y, z = map(scale, scales)
    for op in ("QLinearAdd", "QLinearMul"):
        given = [a, x, zero(dtype, 40), b, y, zero(dtype, 52), z, zero(dtype, 21)]
        agree(f"com.microsoft::{op}", given, consts=(1, 2, 4, 5, 6, 7))
        agree(f"com.microsoft::{op}", given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "attrs"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.2})])
def test_tables(op: str, attrs: dict[str, Any], dtype: Any) -> None:
    given = [data(dtype, 4, 33), scale(0.05), zero(dtype, 100), scale(0.007), zero(dtype, 5)]
    agree(f"com.microsoft::{op}", given, steps=1, consts=(1, 2, 3, 4), symbolic=True, **attrs)
    agree(f"com.microsoft::{op}", given, steps=1, **attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(dtype: Any, axis: int) -> None:
    shape = [2, 3, 4]
    parts: list[Any] = [scale(0.02), zero(dtype, 3)]
    for k in (1, 2, 3):
        shape[axis] = k
        parts += [data(dtype, *shape), scale(0.01 * k), zero(dtype, k + 1)]
    agree("com.microsoft::QLinearConcat", parts, steps=1, axis=axis)
    agree("com.microsoft::QLinearConcat", parts, steps=1, axis=axis, consts=(0, 1, 3, 4, 6, 7, 9, 10))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_global_average_pool(dtype: Any, channels_last: int) -> None:
    given = [data(dtype, 2, 5, 6, 3), scale(0.05), zero(dtype, 9), scale(0.01), zero(dtype, 5)]
    agree("com.microsoft::QLinearGlobalAveragePool", given, steps=1, channels_last=channels_last, symbolic=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_average_pool(dtype: Any, channels_last: int, attrs: dict[str, Any]) -> None:
    given = [data(dtype, 2, 7, 6, 3), scale(0.05), zero(dtype, 9), scale(0.06), zero(dtype, 5)]
    if not channels_last:
        given[0] = np.ascontiguousarray(np.moveaxis(given[0], -1, 1))
    agree("com.microsoft::QLinearAveragePool", given, steps=1, channels_last=channels_last, **attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
def test_gemm(dtype: Any, turned: int, columns: bool, quantised: bool) -> None:
    a = data(dtype, *((20, 4) if turned else (4, 20)))
    b = data(np.int8, *((6, 20) if turned else (20, 6)))
    b_scale = RNG.uniform(0.01, 0.02, 6 if columns else ()).astype(np.float32)
    b_zero = RNG.integers(-3, 3, 6 if columns else ()).astype(np.int8)
    given = [a, scale(0.02), zero(dtype, 7), b, b_scale, b_zero, RNG.integers(-999, 999, 6).astype(np.int32)]
    given += [scale(0.4), zero(dtype, 100)] if quantised else []
    for consts in ((), (3, 4, 5, 6)):
        agree("com.microsoft::QGemm", given, steps=1, transA=turned, transB=turned, alpha=1.5, consts=consts)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_lstm(direction: str, columns: bool, extras: bool) -> None:
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, width, hidden = 6, 3, 5, 4
    x = RNG.normal(size=(steps, batch, width)).astype(np.float32)
    weights = [data(np.int8, ways, width, 4 * hidden), data(np.int8, ways, hidden, 4 * hidden)]
    shape = (ways, 4 * hidden) if columns else (ways,)
    pair = [(RNG.uniform(0.005, 0.01, shape).astype(np.float32), np.zeros(shape, np.int8)) for _ in range(2)]
    more: list[Any] = [None] * 5
    if extras:
        more = [RNG.normal(size=s).astype(np.float32) for s in
                ((ways, 8 * hidden), (ways, batch, hidden), (ways, batch, hidden), (ways, 3 * hidden))]  # fmt: skip
        more.insert(1, np.array([5, 6, 2], np.int32))
    given = [x, *weights, *more, pair[0][0], pair[0][1], pair[1][0], pair[1][1]]
    fixed = (1, 2, 8, 9, 10, 11)
    agree("com.microsoft::DynamicQuantizeLSTM", given, 3, consts=fixed, direction=direction, hidden_size=hidden)


def test_lstm_is_onnxruntimes_to_the_last_bit() -> None:
    """Else a state would fall to the other side of a border between two bytes sooner or later."""
    hidden, width = 48, 32
    x = RNG.normal(size=(40, 2, width)).astype(np.float32)
    weights = [data(np.int8, 2, width, 4 * hidden), data(np.int8, 2, hidden, 4 * hidden)]
    bias = RNG.normal(size=(2, 8 * hidden)).astype(np.float32)
    step, none = np.full(2, 0.004, np.float32), np.zeros(2, np.int8)
    given = [x, *weights, bias, None, None, None, None, step, none, step, none]
    proto = model("com.microsoft::DynamicQuantizeLSTM", given, {"direction": "bidirectional", "hidden_size": hidden}, 3)
    same(ours(proto, feeds(given)), expected(proto, feeds(given)), 0, 0)
