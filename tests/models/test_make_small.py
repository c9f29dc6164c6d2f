"""Our own models: the committed files are what the script makes."""

from __future__ import annotations

import onnx
import pytest

from models import catalog, make_small


@pytest.mark.parametrize("name", sorted(make_small.make_all()))
def test_committed_file_is_what_the_script_makes(name: str) -> None:
    made = make_small.make_all()[name]
    assert made == (catalog.MODELS_DIR / name).read_bytes(), "run python models/make_small.py"
    onnx.checker.check_model(onnx.load_from_string(made), full_check=True)
