"""GroupQueryAttention, Tokenizer and Inverse against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.errors import AtcError
from tests.ops.one_node import Limits, agree, expected, feeds, model, ours, same

RNG = np.random.default_rng(17)
MS = "com.microsoft::"
HEADS, KV, SIZE = 4, 2, 16
LIMITS: Limits = {"rtol": 1e-4, "atol": 1e-5}


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def inputs(
    steps: int, past: int, lengths: tuple[int, ...] = (), packed: bool = False, rotary: bool = False
) -> list[Any]:
    """`lengths` are the total lengths of the sequences. onnxruntime takes several new steps of one sequence only."""
    total = steps + past
    lengths = lengths or (total,) * (1 if steps > 1 and past else 2)
    batch = len(lengths)
    if packed:
        first = [real(batch, steps, (HEADS + 2 * KV) * SIZE), None, None]
    else:
        first = [real(batch, steps, HEADS * SIZE), *(real(batch, steps, KV * SIZE) for _ in range(2))]
    cache = [real(batch, KV, past, SIZE) for _ in range(2)]
    counts = [np.array([n - 1 for n in lengths], np.int32), np.array(total, np.int32)]
    angles = RNG.uniform(0, 6, (40, SIZE // 2))
    turns = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)] if rotary else []
    return [*first, *cache, *counts, *turns]


ATTRS: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": KV}
OP = f"{MS}GroupQueryAttention"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 6), (3, 4)])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_group_query_attention(packed: bool, rotary: int, steps: int, past: int, interleaved: int) -> None:
    given = inputs(steps, past, packed=packed, rotary=bool(rotary))
    attrs = ATTRS | {"do_rotary": rotary, "rotary_interleaved": interleaved}
    agree(OP, given, 3, symbolic=True, **attrs, **LIMITS)


@pytest.mark.parametrize(
    "attrs",
    [{"local_window_size": 2}, {"softcap": 3.0}, {"scale": 0.7}, {"smooth_softmax": 1}, {"softcap": 2.0, "scale": 2.0}],
)
@pytest.mark.parametrize(("steps", "past"), [(5, 0), (1, 6)])
def test_options(attrs: dict[str, Any], steps: int, past: int) -> None:
    agree(OP, inputs(steps, past), 3, **ATTRS, **attrs, **LIMITS)


def test_sequences_of_different_lengths() -> None:
    """One new step each, behind pasts of 6 and 3."""
    given = inputs(1, 6, (7, 4), rotary=True)
    proto = model(OP, given, ATTRS | {"do_rotary": 1}, 3)
    want, got = expected(proto, feeds(given)), ours(proto, feeds(given))
    same(got[:1], want[:1], **LIMITS)
    for b, n in enumerate((7, 4)):
        same([p[b, :, :n] for p in got[1:]], [p[b, :, :n] for p in want[1:]], **LIMITS)


def test_a_prompt_with_padding_behind_it() -> None:
    given = inputs(5, 0, (5, 3), rotary=True)
    proto = model(OP, given, ATTRS | {"do_rotary": 1}, 3)
    want, got = expected(proto, feeds(given)), ours(proto, feeds(given))
    for b, n in enumerate((5, 3)):
        same([got[0][b, :n]], [want[0][b, :n]], **LIMITS)


def test_a_buffer_longer_than_what_is_in_it() -> None:
    given = inputs(1, 9)
    given[5], given[6] = np.array([4, 4], np.int32), np.array(5, np.int32)
    proto = model(OP, given, ATTRS, 3)
    want, got = expected(proto, feeds(given)), ours(proto, feeds(given))
    same(got[:1], want[:1], **LIMITS)
    same([p[:, :, :5] for p in got[1:]], [p[:, :, :5] for p in want[1:]], **LIMITS)
    assert got[1].shape == want[1].shape


def test_bias_and_sinks() -> None:
    given = [*inputs(3, 4), None, None, None, real(1, HEADS, 3, 7), real(HEADS)]
    agree(OP, given, 3, **ATTRS, **LIMITS)


def test_what_is_not_supported_is_said() -> None:
    given = inputs(1, 4)
    with pytest.raises(AtcError, match="sliding_window_cache"):
        ours(model(OP, given, ATTRS | {"sliding_window_cache": 1, "local_window_size": 2}, 3), feeds(given))


# -- Tokenizer and Inverse ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attrs",
    [
        {"separators": [" "]}, {"separators": [" ", ","]}, {"separators": ["[ ,]+"]}, {"separators": [""]},
        {"tokenexp": "[a-z]+"}, {"tokenexp": "."}, {"tokenexp": "a|ab|[0-9]"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("least", [1, 2])
def test_tokenizer(attrs: dict[str, Any], mark: int, least: int) -> None:
    if least > 1 and attrs in ({"separators": [""]}, {"tokenexp": "."}):
        least = 1  # onnxruntime refuses more of single characters
    x = np.array(["Hello World", "a, b  c,d", "ab12ab", "x"], object)
    for shaped in (x, x.reshape(2, 2)):
        agree(f"{MS}Tokenizer", [shaped], mark=mark, mincharnum=least, pad_value="#", **attrs)


def test_tokenizer_of_nothing() -> None:
    for mark in (0, 1):
        blanks = np.array(["  ", " "], object)
        agree(f"{MS}Tokenizer", [blanks], mark=mark, mincharnum=1, pad_value="#", separators=[" "])


def test_inverse() -> None:
    x = real(2, 3, 4, 4) + 3 * np.eye(4, dtype=np.float32)
    agree(f"{MS}Inverse", [x], symbolic=True, rtol=1e-3, atol=1e-4)
    agree(f"{MS}Inverse", [x.astype(np.float64)])
    with pytest.raises(AtcError, match="not square"):
        ours(model(f"{MS}Inverse", [real(2, 3)], {}), {"x0": real(2, 3)})
