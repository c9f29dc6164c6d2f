"""Modules of custom operators for tests, loaded into a registry that is as before afterwards."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from atc_py.ops import plugins
from atc_py.ops.base import REGISTRY
from atc_py.ops.custom import CustomOp

HEADER = """
import numpy as np
from atc_py.custom import *
"""


@pytest.fixture
def clean() -> Iterator[None]:
    """Custom operators, their modules and what is known of entry points are forgotten."""
    modules = set(sys.modules)
    _forget(modules)
    yield
    _forget(modules)


def _forget(modules: set[str]) -> None:
    files = {op.file for op in REGISTRY.values() if isinstance(op, CustomOp)}
    for name in [n for n, op in REGISTRY.items() if isinstance(op, CustomOp)]:
        del REGISTRY[name]
    plugins._tried.clear()
    plugins._made.clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("atc_custom_") or (name not in modules and getattr(module, "__file__", None) in files):
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    """A module: the usual imports, then the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + dedent(text))
    return path


def install(site: Path, name: str, points: Mapping[str, Mapping[str, str]], package: Path | None = None) -> Path:
    """What an installer leaves behind: the package, and a dist-info folder with its entry points."""
    if package is not None:
        shutil.copytree(package, site / package.name)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return site
