"""Read OM files with Netron's own reader, the judge of "Netron opens every file".

    model = read_with_netron("m.om")
    model["graphs"][0]["nodes"][0] == {
        "name": "conv1", "type": "Conv2D", "attributes": {...}, "outputs": [...],
        "inputs": [{"name": "x", "values": [{
            "name": "data:0", "initializer": None,
            "type": {"dtype": "float32", "shape": [1, 3], "layout": "ND"},
        }]}],
    }

A constant is an input's `initializer`: its type, `nbytes`, and `values` as nested lists (None where there are
more than 4096, or where Netron cannot show the dtype). Large integers and non-finite numbers are strings,
complex numbers are pairs.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).with_name("reader.mjs")


class NetronError(Exception):
    """Netron could not open a file; the message is its own."""


def missing() -> str:
    """Why Netron's reader cannot be run here; "" when it can."""
    if shutil.which("node") is None:
        return "needs Node.js"
    try:
        importlib.metadata.distribution("netron")
    except importlib.metadata.PackageNotFoundError:
        return "needs the package netron"
    return ""


needs_netron = pytest.mark.skipif(bool(missing()), reason=missing() or "Netron is there")
"""Marks tests that are skipped, with the reason, where Node.js or netron is absent."""


def read_many_with_netron(paths: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """What Netron shows of each file, in one Node.js process; `{"error": message}` for those it cannot open.

    Skips the calling test where `missing()`.
    """
    if missing():
        pytest.skip(missing())
    command = ["node", str(_SCRIPT), _modules().name]
    names = json.dumps([os.fspath(path) for path in paths])
    done = subprocess.run(command, input=names, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise NetronError(f"Node.js failed: {done.stderr.strip()}")
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def read_with_netron(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What Netron shows of one file. Raises `NetronError`."""
    (result,) = read_many_with_netron([path])
    if "error" in result:
        raise NetronError(result["error"])
    return result


@cache
def _modules() -> tempfile.TemporaryDirectory[str]:
    """Netron's modules, copied to a place that tells Node.js that they are ECMAScript modules."""
    # By distribution, not by import: a test folder called `netron` must not be taken for the package.
    installed = Path(str(importlib.metadata.distribution("netron").locate_file("netron")))
    folder = tempfile.TemporaryDirectory(prefix="netron-modules-")
    for pattern in ("*.js", "om-metadata.json"):
        for file in installed.glob(pattern):
            shutil.copy(file, folder.name)
    Path(folder.name, "package.json").write_text('{"type": "module"}', encoding="utf-8")
    return folder
