"""Attention and RotaryEmbedding: node tests, blocks, masks, caches, dtypes, symbolic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc_py.ir.dims import symbol
from atc_py.ops import attention_impl
from atc_py.ops.base import InferError
from tests.ops import node_models
from tests.ops.compute_cases import check, infer, run

RNG = np.random.default_rng(23)


@pytest.mark.parametrize("test", node_models.node_tests("Attention", "RotaryEmbedding"), ids=lambda t: t.name)
def test_node(test: node_models.NodeTest) -> None:
    check(test)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def definition(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """softmax(q·kᵀ / √size + bias)·v in float64, key heads repeated."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat(repeat, 1), v.repeat(repeat, 1)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("budget", [64, 2000, 1 << 24])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("mask", [None, (7,), (5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 1, 7)])
def test_blocks(budget: int, heads: tuple[int, int], mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However heads and queries are cut, grouped heads and masks of every rank give the definition's numbers."""
    monkeypatch.setattr(attention_impl, "BUDGET", budget)
    q, k, v = normal(2, heads[0], 5, 8), normal(2, heads[1], 7, 8), normal(2, heads[1], 7, 6)
    bias = np.zeros((1,), np.float32) if mask is None else normal(*mask)
    want = definition(q, k, v, bias)
    inputs = [q, k, v, None if mask is None else bias]
    outer = np.zeros((2, heads[0], 5, 9), np.float32)
    np.testing.assert_allclose(run("Attention", {}, inputs, outs=[outer[..., :6]])[0], want, 1e-4, 1e-5)
    assert not outer[..., 6:].any()
    flat = [a.transpose(0, 2, 1, 3).reshape(2, a.shape[2], -1) for a in (q, k, v)]
    attrs = {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    got = run("Attention", attrs, [*flat, inputs[3]])[0]
    np.testing.assert_allclose(got, want.transpose(0, 2, 1, 3).reshape(2, 5, -1), 1e-4, 1e-5)


def test_cache_equals_whole_sequence() -> None:
    """Causal attention in two steps through the cache is causal attention at once."""
    q, k, v = normal(1, 2, 6, 4), normal(1, 2, 6, 4), normal(1, 2, 6, 4)
    whole = run("Attention", {"is_causal": 1}, [q, k, v])[0]
    first, keys, values = run("Attention", {"is_causal": 1}, [q[:, :, :4], k[:, :, :4], v[:, :, :4]], 3)
    second, keys, values = run(
        "Attention", {"is_causal": 1}, [q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], None, keys, values], 3
    )
    np.testing.assert_allclose(np.concatenate([first, second], 2), whole, 1e-5, 1e-5)
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_array_equal(values, v)


def test_forbidden_keys_have_no_influence() -> None:
    """Values of forbidden keys change nothing, and a query without keys gives zeros."""
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 3, 4), normal(1, 1, 3, 4)
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    want = run("Attention", {}, [q, k, v, mask])[0]
    assert not want[0, 0, 1].any() and np.isfinite(want).all()
    other = k.copy()
    other[0, 0, 1] = np.inf
    np.testing.assert_array_equal(run("Attention", {}, [q, other, v, mask])[0][0, 0, :2], want[0, 0, :2])


def test_half() -> None:
    q, k, v = (normal(1, 2, 9, 64).astype(np.float16) * 20 for _ in range(3))
    got = run("Attention", {}, [q, k, v])[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, definition(q, k, v, 0), 2e-3, 2e-3)


def test_shapes_and_errors() -> None:
    n, s, p = symbol("N"), symbol("S"), symbol("P")
    shapes = [(n, 8, s, 64), (n, 2, s, 64), (n, 2, s, 32), None, (n, 2, p, 64), (n, 2, p, 32)]
    found = infer("Attention", {}, shapes, outputs=4)
    assert found == ((n, 8, s, 32), (n, 2, s + p, 64), (n, 2, s + p, 32), (n, 8, s, s + p))
    attrs = {"q_num_heads": 8, "kv_num_heads": 2}
    assert infer("Attention", attrs, [(n, s, 512), (n, s, 128), (n, s, 64)])[0] == (n, s, 256)
    with pytest.raises(InferError, match="q_num_heads"):
        infer("Attention", {}, [(n, s, 512), (n, s, 128), (n, s, 64)])
    with pytest.raises(InferError, match="no multiple"):
        infer("Attention", {}, [(1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)])
    with pytest.raises(InferError, match="together"):
        infer("Attention", {}, [(1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), None, (1, 2, 4, 8)])


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_keeps_lengths_and_relative_positions(interleaved: int) -> None:
    """A rotation keeps norms, and products of rotated vectors depend on the distance of positions only."""
    angles = np.arange(16)[:, None] * 10.0 ** -np.arange(4)
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    x = np.broadcast_to(normal(1, 1, 1, 8), (1, 1, 16, 8))
    got = run("RotaryEmbedding", {"interleaved": interleaved}, [x, *caches, np.arange(16)[None]])[0]
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), 1e-5)
    products = got[0, 0] @ got[0, 0].T
    for shift in range(1, 8):
        np.testing.assert_allclose(np.diagonal(products, shift), products[0, shift], 1e-4, 1e-4)
    part = run(
        "RotaryEmbedding", {"rotary_embedding_dim": 4}, [x, caches[0][:, :2], caches[1][:, :2], np.arange(16)[None]]
    )
    np.testing.assert_array_equal(part[0][..., 4:], x[..., 4:])
