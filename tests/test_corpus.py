"""Real models through the whole path against onnxruntime: those of the catalogue that are at hand and not large.

What is compared, and within what, is said by `scripts/corpus`, whose function this is.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from models import catalog

LIMIT = 20 << 20
"""Bytes of a model's file above which it runs with --all only."""


def _script() -> Any:
    path = Path(__file__).parent.parent / "scripts" / "corpus"
    loader = importlib.machinery.SourceFileLoader("scripts_corpus", str(path))
    spec = importlib.util.spec_from_loader("scripts_corpus", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripts_corpus"] = module
    loader.exec_module(module)
    return module


CORPUS = _script()
LARGE = [pytest.mark.slow]


@pytest.mark.needs_models
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=LARGE if entry.bytes > LIMIT else []) for name, entry in catalog.load_manifest().items()],
)
def test_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    path, reason = catalog.find(name)
    if path is None:
        assert catalog.get(name).kind != "repo", reason
        pytest.skip(reason)
    row = CORPUS.compare(name, tmp_path)
    assert row.verdict == "agrees", row
