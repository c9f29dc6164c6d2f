"""FlashAttentionScore: the online softmax in buffers of exactly its tile, and the tile that a target has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py.fusion.tiles import SHARE, Misfit, attention
from atc_py.ir.dims import symbol
from atc_py.ir.graph import Range
from atc_py.ir.types import DType
from atc_py.ops import flash, get
from atc_py.ops.base import Call, InferError
from atc_py.target import load
from tests.fusion.test_tiles import Body, close
from tests.ops.test_tiles_rules import attentions

P3 = load("Ascend310P3")
F32, F16 = DType.FLOAT32, DType.FLOAT16
S = symbol("S")


def attend(name: str, attrs: Mapping[str, Any], arrays: Sequence[Any], outputs: int, tiles: bool = False) -> list[Any]:
    op = get(name)
    assert op is not None and op.kernel_fn is not None
    call = Call(op.attributes(attrs), (None,) * outputs, [None] * outputs, {}, tiles=tiles)
    with np.errstate(all="ignore"):
        result = op.kernel_fn(call, *arrays)
    return list(result) if isinstance(result, tuple) else [result]


def test_flash_attention_agrees_with_attention() -> None:
    @settings(max_examples=150)
    @given(st.data())
    def agree(source: Any) -> None:
        w = source.draw(attentions("FlashAttentionScore"))
        tile = {"tile_queries": source.draw(st.integers(1, 5)), "tile_keys": source.draw(st.integers(1, 5))}
        want = attend("Attention", w.attrs, w.inputs, w.outputs)
        for tiles in (False, True):
            got = attend("FlashAttentionScore", {**w.attrs, **tile}, w.inputs, w.outputs, tiles)
            for g, y in zip(got, want, strict=True):
                np.testing.assert_allclose(g, y, rtol=2e-5, atol=2e-5)

    agree()


def test_flash_attention_works_in_exactly_its_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers one block smaller than the tile's parts cannot hold them; and none is as long as the keys."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 8)).astype(np.float32) for n in (40, 300, 300))
    tile = {"tile_queries": 16, "tile_keys": 32}
    want = attend("Attention", {}, (q, k, v), 1)
    close(attend("FlashAttentionScore", tile, (q, k, v), 1, True), want)
    sizes = flash.buffers(16, 32, 8, 8, 4)
    assert sum(sizes.values()) < q.nbytes + k.nbytes and sizes["L0C"] == 4 * (16 * 32 + 16 * 8)
    for name in ("L1", "L0C", "UB"):
        less = {**sizes, name: sizes[name] - 32}
        monkeypatch.setattr(flash, "buffers", lambda *_, less=less: less)
        with pytest.raises((TypeError, ValueError), match="buffer"):
            attend("FlashAttentionScore", tile, (q, k, v), 1, True)


@pytest.mark.parametrize("size", [40, 64, 128])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_the_tile_of_attention_fits_the_target(size: int, dtype: DType) -> None:
    b = Body(S=Range(1))
    q, k, v = (b.input(1, 8, S, size, dtype=dtype) for _ in range(3))
    body = b.done(b.op("Attention", q, k, v, is_causal=1))
    for target in (P3, load("Ascend910B1"), load("Ascend310")):
        attrs = attention(body, body.producer(body.outputs[0]), target)
        assert not isinstance(attrs, Misfit)
        rows, keys = attrs["tile_queries"], attrs["tile_keys"]
        used = flash.buffers(rows, keys, size, size, dtype.itemsize)
        room = {"L1": target.l1, "L0C": target.l0c, "UB": target.ub}
        assert rows % 16 == keys % 16 == 0 and all(used[n] <= SHARE * room[n] for n in room)


def test_attention_without_a_tile() -> None:
    b = Body()
    q = b.input(1, 2, 8, 16384)
    body = b.done(b.op("Attention", q, q, q))
    found = attention(body, body.producer(body.outputs[0]), P3)
    assert isinstance(found, Misfit) and "MiB of" in found.reason and "may take 70%" in found.reason
    b = Body()
    q = b.input(1, 2, 8, 16)
    body = b.done(b.ops("Attention", q, q, q, outputs=4)[0])
    assert attention(body, body.producer(body.outputs[0]), P3) == Misfit(
        "scores", "its output of scores has to be stored"
    )


def test_a_tile_of_attention_from_a_file_is_checked() -> None:
    q = np.zeros((1, 1, 2, 4), np.float32)
    for tile in ({"tile_queries": 0}, {"tile_keys": -3}, {"tile_keys": 1 << 40}):
        with pytest.raises(InferError, match="a tile of"):
            attend("FlashAttentionScore", tile, (q, q, q), 1, True)
