from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from atc_py.errors import AtcError
from atc_py.runtime.golden import Golden, read

VALUES: dict[str, Any] = {
    "float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float16),
    "strings": np.array([["a", "bcd"], ["", "é"]], object),
    "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
    "float8": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "int4": np.array([-8, 7], ml_dtypes.int4),
    "complex": np.array([1 + 2j], np.complex64),
    "sequence": [np.zeros(2, np.float32), np.ones((1, 1), np.int8)],
    "absent": None,
    "map": [{"cat": np.float32(0.25), "dog": np.float32(0.75)}, {3: np.float32(1)}],
}


def same(a: Any, b: Any) -> bool:
    if isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in b)
    if b is None:
        return a is None
    return a.dtype == np.asarray(b).dtype and a.shape == np.shape(b) and bool((a == b).all())


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_value_comes_back(kind: str, tmp_path: Path) -> None:
    Golden({"x": VALUES[kind]}, {"y": VALUES[kind]}, "0" * 64, 3, {"numpy": "2"}).save(tmp_path / "g.npz")
    found = read(tmp_path / "g.npz")
    assert same(found.inputs["x"], VALUES[kind]) and same(found.outputs["y"], VALUES[kind])
    assert (found.digest, found.seed, found.versions) == ("0" * 64, 3, {"numpy": "2"})


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "inputs": {"x": {"kind": "tensor", "array": 7, "dtype": "int8"}}}',
    ],
)
def test_a_wrong_table_is_an_error(meta: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", meta=np.array(meta))
    with pytest.raises(AtcError) as caught:
        read(tmp_path / "g.npz")
    assert caught.value.code == "E30031"
