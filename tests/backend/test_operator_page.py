"""docs/operators.md says what the declarations say."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from atc_py.ir.types import DType
from tests.backend.operator_errors import spacing
from tests.backend.operator_page import Row, dtype_text, error_text, rows

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _page() -> dict[str, list[str]]:
    """Operator → the page's cells."""
    lines = (DOCS / "operators.md").read_text().splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {c[0].strip("`"): c for c in cells}


def test_the_page_is_current() -> None:
    page, expected = _page(), {row.name: row for row in rows()}
    same_onnx = f"of onnx {onnx.__version__} " in (DOCS / "operators.md").read_text()
    assert not same_onnx or list(page) == list(expected), "run scripts/operators-page"
    for name, row in expected.items():
        if name in page:
            assert page[name][3:6] == [row.engine, row.kernel, row.flags], f"{name}: run scripts/operators-page"
            if same_onnx:  # versions and dtypes are the installed onnx's
                assert page[name][1:3] == [row.versions, row.dtypes], f"{name}: run scripts/operators-page"


def test_the_errors_are_those_that_were_stored() -> None:
    page, errors = _page(), json.loads((DOCS / "operators_ulp.json").read_text())
    assert set(errors) <= set(page)
    for name, cells in page.items():
        assert cells[6] == error_text(errors.get(name)), f"{name}: run scripts/operators-page"


def test_every_operator_of_onnx_is_taken() -> None:
    """Whatever onnx defines can be run, except for Gradient, which is about training a graph."""
    named = {row.name for row in rows()}
    defined = {f"{s.domain}::{s.name}" if s.domain else s.name for s in onnx.defs.get_all_schemas() if not s.deprecated}
    assert defined - named <= {"ai.onnx.preview.training::Gradient"}


def test_rows_tell_versions_kernels_and_flags() -> None:
    found = {row.name: row for row in rows()}
    relu = found["Relu"]
    assert isinstance(relu, Row) and relu.kernel == "own" and "elementwise" in relu.flags
    assert relu.versions.split(", ")[:3] == ["1", "6", "13"]
    assert found["Upsample"].kernel == "own → Resize"


@pytest.mark.parametrize(
    ("dtypes", "text"),
    [
        ({DType.FLOAT32, DType.BOOL}, "float32, bool"),
        ({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT4}, "floats, int4"),
        (set(DType), "all"),
        (set(DType) - {DType.STRING}, "all but string"),
    ],
)
def test_dtypes_are_grouped(dtypes: set[DType], text: str) -> None:
    assert set(dtype_text(dtypes).split(", ")) == set(text.split(", "))


def test_spacing_is_that_of_the_dtype() -> None:
    values = np.array([1.0, 1.5, 2.0, 1000.0])
    np.testing.assert_array_equal(spacing(values, np.dtype(np.float32)), np.spacing(values.astype(np.float32)))
    assert spacing(np.array([1.0]), np.dtype(ml_dtypes.bfloat16))[0] == 2**-7
    assert spacing(np.array([0.0]), np.dtype(np.float16))[0] == 2**-24
