"""atc-py: an offline model compiler for NPUs, with a simulator that one can look into.

from atc_py import Session
[y] = Session("model.om").run(None, {"x": x})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atc_py.compiler import Options, compile_model
    from atc_py.errors import AtcError, Problem
    from atc_py.runtime import Session

__version__ = "0.1.0"
__all__ = ["AtcError", "Options", "Problem", "Session", "__version__", "compile_model"]

_HOME = {
    "AtcError": "atc_py.errors",
    "Problem": "atc_py.errors",
    "Session": "atc_py.runtime",
    "Options": "atc_py.compiler",
    "compile_model": "atc_py.compiler",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that running a model does not load the compiler."""
    if name not in _HOME:
        raise AttributeError(f"module 'atc_py' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
