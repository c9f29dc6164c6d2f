"""onnxruntime's attention operators, translated into canonical ones, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.one_node import Limits, agree, feeds, model, ours, same

RNG = np.random.default_rng(13)
MS = "com.microsoft::"
BATCH, STEPS, HEADS, SIZE = 2, 4, 3, 4
WIDTH = HEADS * SIZE
LIMITS: Limits = {"rtol": 1e-4, "atol": 1e-5}


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def mask(form: str, keys: int) -> Any:
    """Masks that leave each query a key."""
    if form == "ends":
        return np.array([keys, keys - 1], np.int32)
    if form == "both":
        return np.array([keys, keys - 1, 1, 0], np.int32)
    shape = (BATCH, keys) if form == "keys" else (BATCH, STEPS, keys)
    given = RNG.integers(0, 2, shape).astype(np.int32)
    given[..., 0] = 1
    return given


@pytest.mark.parametrize("form", ["", "ends", "both", "keys", "all"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
def test_attention(form: str, causal: int, past: int) -> None:
    given = [
        real(BATCH, STEPS, 5), real(5, 3 * WIDTH), real(3 * WIDTH), mask(form, STEPS + past) if form else None,
        real(2, BATCH, HEADS, past, SIZE) if past else None,
    ]  # fmt: skip
    attrs: dict[str, Any] = {"num_heads": HEADS, "unidirectional": causal}
    agree(f"{MS}Attention", given, 2, **attrs, **LIMITS)
    agree(f"{MS}Attention", given, 2, symbolic=form != "both", scale=0.3, mask_filter_value=-5.0, **attrs, **LIMITS)


def test_attention_with_wider_values_and_a_bias() -> None:
    given = [real(BATCH, STEPS, 5), real(5, 2 * WIDTH + 6), real(2 * WIDTH + 6), mask("keys", STEPS), None,
             real(1, HEADS, STEPS, STEPS)]  # fmt: skip
    agree(f"{MS}Attention", given, 1, num_heads=HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 6], **LIMITS)


def test_attention_without_a_bias() -> None:
    agree(f"{MS}Attention", [real(BATCH, STEPS, 5), real(5, 3 * WIDTH)], 1, num_heads=HEADS, **LIMITS)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("past", [0, 2])
def test_quantised_attention(columns: bool, past: int) -> None:
    x = RNG.integers(0, 256, (BATCH, STEPS, 8)).astype(np.uint8)
    weight = RNG.integers(-128, 128, (8, 3 * WIDTH)).astype(np.int8)
    scale = np.abs(real(3 * WIDTH)) * 0.01 + 0.001 if columns else np.array(0.01, np.float32)
    zero = np.zeros(3 * WIDTH, np.int8) if columns else np.array(0, np.int8)
    given = [x, weight, real(3 * WIDTH), np.array(0.02, np.float32), scale, mask("keys", STEPS + past),
             np.array(120, np.uint8), zero, real(2, BATCH, HEADS, past, SIZE) if past else None]  # fmt: skip
    agree(f"{MS}QAttention", given, 2, num_heads=HEADS, **LIMITS)


@pytest.mark.parametrize("form", ["", "ends", "keys", "all"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head(form: str, causal: int, past: int, bias: bool) -> None:
    keys = STEPS + past
    given = [
        *(real(BATCH, STEPS, WIDTH) for _ in range(3)), real(3 * WIDTH) if bias else None,
        mask(form, keys) if form else None, real(1, HEADS, STEPS, keys) if bias else None,
        *([real(BATCH, HEADS, past, SIZE)] * 2 if past else []),
    ]  # fmt: skip
    attrs: dict[str, Any] = {"num_heads": HEADS, "unidirectional": causal}
    agree(f"{MS}MultiHeadAttention", given, 3, **attrs, **LIMITS)
    # onnxruntime reads a past only where the present is asked for.
    agree(f"{MS}MultiHeadAttention", given, 3 if past else 1, symbolic=True, scale=0.3, **attrs, **LIMITS)


def test_cross_attention_with_longer_keys_and_wider_values() -> None:
    given = [real(BATCH, STEPS, WIDTH), real(BATCH, 6, WIDTH), real(BATCH, 6, 2 * WIDTH), real(4 * WIDTH)]
    agree(f"{MS}MultiHeadAttention", given, 1, num_heads=HEADS, **LIMITS)


def test_cross_attention_with_cached_keys() -> None:
    given = [real(BATCH, STEPS, WIDTH), real(BATCH, HEADS, 6, SIZE), real(BATCH, HEADS, 6, SIZE), real(3 * WIDTH)]
    agree(f"{MS}MultiHeadAttention", given, 1, num_heads=HEADS, **LIMITS)


def test_packed_inputs() -> None:
    """onnxruntime has no CPU kernel for them: packed is what unpacked is."""
    q, k, v = (real(BATCH, STEPS, HEADS, SIZE) for _ in range(3))
    attrs, flat = {"num_heads": HEADS}, (BATCH, STEPS, WIDTH)
    [want] = ours(model(f"{MS}MultiHeadAttention", plain := [x.reshape(flat) for x in (q, k, v)], attrs), feeds(plain))
    for given in ([np.stack([q, k, v], 3)], [q.reshape(flat), np.stack([k, v], 3)]):
        same(ours(model(f"{MS}MultiHeadAttention", given, attrs), feeds(given)), [want])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("form", ["flat", "heads"])
def test_rotary_embedding(interleaved: int, single: bool, form: str) -> None:
    x = real(BATCH, STEPS, WIDTH) if form == "flat" else real(BATCH, HEADS, STEPS, SIZE)
    places = np.array([2]) if single else RNG.integers(0, 9, (BATCH, STEPS))
    given = [x, places, real(9, SIZE // 2), real(9, SIZE // 2)]
    agree(f"{MS}RotaryEmbedding", given, interleaved=interleaved, symbolic=form == "heads")


def test_partial_rotary_embedding() -> None:
    given = [real(BATCH, STEPS, HEADS * 8), np.array([0]), real(9, 2), real(9, 2)]
    agree(f"{MS}RotaryEmbedding", given, num_heads=HEADS, rotary_embedding_dim=4)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_linear_attention(rule: str, past: bool, wide: bool) -> None:
    """`wide`: a decay for each dim of a key."""
    key = real(BATCH, STEPS, 2 * SIZE) * 0.3
    given = [
        real(BATCH, STEPS, 4 * SIZE), key, real(BATCH, STEPS, 2 * 6), real(BATCH, 2, SIZE, 6) if past else None,
        -np.abs(real(BATCH, STEPS, 2 * SIZE if wide else 2)) if "gated" in rule else None,
        np.abs(real(BATCH, STEPS, 2)) if "delta" in rule else None,
    ]  # fmt: skip
    attrs: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    agree(f"{MS}LinearAttention", given, 2, symbolic=True, **attrs, **LIMITS)
