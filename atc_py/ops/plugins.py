"""Finding and loading modules that declare operators of their own.

    load("ops/softcap.py")  load("acme_ops")     a file, a folder with __init__.py, or a module that can be imported
    find("acme::SoftCap")                        entry points of the group `atc_py.ops`, those named `acme` first

Entry points are looked at only when an operator is not known otherwise. What a file of ours says about modules is shown
in messages and never loaded: code comes from the command line, the program, or an installed distribution.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from atc_py.errors import AtcError, Problem, Problems, error
from atc_py.ops import MARK
from atc_py.ops.base import REGISTRY, Op
from atc_py.ops.custom import DOCS, CustomOp, clash, custom, loading

GROUP = "atc_py.ops"
"""The group of entry points; an entry point's name is the domain of its operators, its value the module."""

PREFIX = "atc_custom_"
"""What the names of modules that were loaded by their path begin with."""

_lock = threading.RLock()
_tried: dict[tuple[str, str], str] = {}
"""Entry points (name, value) that were loaded, with the reason where that failed."""


def load(source: str | os.PathLike[str]) -> tuple[str, ...]:
    """Load a module that declares operators; returns their names. Loading it again changes nothing.

    `source` is the path of a Python file or of a package's folder, or a module's dotted name. Raises `AtcError` E20020
    when it cannot be loaded or declares nothing, E20021 when a declaration is wrong or clashes.
    """
    text = os.fspath(source)
    with _lock:
        if isinstance(source, os.PathLike) or _is_path(text):
            path = Path(text)
            module = _transaction(text, path.resolve().name, lambda: _from_path(path))
        elif all(part.isidentifier() for part in text.split(".")):
            module = _transaction(text, text, lambda: import_module(text))
        else:
            raise _unusable(text, "is neither a Python file nor a module's name")
    found = tuple(name for name, op in list(REGISTRY.items()) if isinstance(op, CustomOp) and _of(op, module))
    if not found:
        if module.__name__.startswith(PREFIX):  # corrected, it is to be loaded again
            del sys.modules[module.__name__]
        raise _unusable(text, "declares no operator", f"it has to call atc_py.custom.declare; {DOCS}")
    return found


def find(name: str) -> CustomOp | None:
    """The operator, loaded through an entry point if need be; None when no entry point declares it.

    Entry points that cannot be loaded are passed over; `failures` tells of them.
    """
    op = custom(name)
    if op is not None:
        return op
    from importlib.metadata import entry_points

    domain = name.rpartition("::")[0]
    with _lock:
        points = sorted(entry_points(group=GROUP), key=lambda p: (p.name != domain, p.name, p.value))
        for point in points:
            key = (point.name, point.value)
            if key in _tried:
                continue
            _tried[key] = ""
            try:
                _transaction(point.value, point.module, point.load)
            except AtcError as e:
                _tried[key] = "; ".join(f"{p.place}: {p.cause}" for p in e.problems)
            op = custom(name)
            if op is not None:
                return op
    return custom(name)


def failures() -> str:
    """What is to be said of entry points that could not be loaded; empty when there are none."""
    return "; ".join(f"entry point '{name}' failed: {reason}" for (name, _), reason in _tried.items() if reason)


def missing(name: str, module: object) -> Problem:
    """The problem of an operator that a file uses and nothing declares here; `module` is what the file says."""
    told = str(module)[:100]
    cause = f"it is a custom operator, declared by {told} when the model was converted; nothing declares it here"
    importable = all(part.isidentifier() for part in told.split(".")) and not told.endswith(".py")
    again = f"--custom-ops {told}" if importable else f"--custom-ops with the path of {told}"
    hint = f"give {again} (in Python: Session(..., custom_ops=[...])), or install the package that offers it"
    reasons = failures()
    return Problem("E40005", f"operator '{name}'", cause, f"{hint}; {reasons}" if reasons else hint)


def require(operations: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Find the custom operators among (name, attributes). Raises `AtcError` E40005 with all that are missing."""
    problems = Problems()
    for name, attrs in operations:
        if MARK in attrs and name not in REGISTRY and find(name) is None:
            problems.extend([missing(name, attrs[MARK])])
    problems.raise_any()


# -- loading -------------------------------------------------------------------------------------------------------


def _is_path(text: str) -> bool:
    """Whether the text means a file or folder rather than a module's dotted name."""
    path = Path(text)
    return path.suffix == ".py" or len(path.parts) > 1 or path.is_file() or (path / "__init__.py").is_file()


def _of(op: CustomOp, module: ModuleType) -> bool:
    """Whether the operator was declared by the module or one inside it, or while it was being loaded."""
    name, file = module.__name__, getattr(module, "__file__", None) or ""
    folder = os.path.dirname(file) + os.sep if os.path.basename(file) == "__init__.py" else None
    inside = op.file == file or (folder is not None and op.file.startswith(folder))
    return inside or op.name in _made.get(name, ())


_made: dict[str, tuple[str, ...]] = {}
"""Module → the operators that were declared while it was loaded."""


def _transaction(place: str, label: str, run: Callable[[], ModuleType]) -> ModuleType:
    """Load a module wholly or not at all. `label` is how a user names it again."""
    before, modules = dict(REGISTRY), set(sys.modules)
    try:
        with loading(label):
            module = run()
        _reject_others(before, label)
    except BaseException as e:
        _roll_back(before, modules)
        if isinstance(e, AtcError) or not isinstance(e, (Exception, SystemExit)):
            raise
        raise _unusable(place, f"cannot be loaded: {_told(e)}", _advice(e)) from e
    new = tuple(n for n, op in REGISTRY.items() if isinstance(op, CustomOp) and before.get(n) is not op)
    if isinstance(module, ModuleType) and new:
        _made[module.__name__] = tuple(dict.fromkeys((*_made.get(module.__name__, ()), *new)))
    return module


def _from_path(path: Path) -> ModuleType:
    file = path.resolve()
    package = file.is_dir()
    if package:
        file = file / "__init__.py"
    if not file.is_file():
        cause = "is a folder without __init__.py" if package else "there is no such file"
        raise _unusable(str(path), cause, "check the path, which counts from the working folder")
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(file):
            return module
    stem = "".join(c if c.isalnum() else "_" for c in (file.parent.name if package else file.stem))
    name = f"{PREFIX}{stem}_{crc32(str(file).encode()):08x}"
    folders = [str(file.parent)] if package else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise _unusable(str(path), "is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _reject_others(before: Mapping[str, Op], label: str) -> None:
    """Operators that were declared past `atc_py.custom`, which neither checks nor guards them."""
    from atc_py.ops.index import INDEX

    for name, op in REGISTRY.items():
        if name in before or isinstance(op, CustomOp):
            continue
        family = INDEX.get(name)
        if family is None:
            cause = f"{label} declares it with the inner atc_py.ops.base.declare"
            raise error("E20021", f"operator '{name}'", cause, f"use atc_py.custom.declare; {DOCS}")
        if f"atc_py.ops.{family}" not in sys.modules:
            raise clash(name, label)


def _roll_back(before: Mapping[str, Op], modules: set[str]) -> None:
    """Forget operators and the modules that declared them, so that another attempt declares them again."""
    files: dict[str, None] = {}
    for name, op in list(REGISTRY.items()):
        if before.get(name) is op or _ours(name, op):
            continue
        del REGISTRY[name]
        if name in before:
            REGISTRY[name] = before[name]
        if isinstance(op, CustomOp):
            files[op.file] = None
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name not in modules and (name.startswith(PREFIX) or (file and file in files)):
            del sys.modules[name]


def _ours(name: str, op: Op) -> bool:
    """Whether a family of ours, imported on the way, has declared the operator."""
    from atc_py.ops.index import INDEX

    return not isinstance(op, CustomOp) and f"atc_py.ops.{INDEX.get(name)}" in sys.modules


def _told(e: BaseException) -> str:
    if isinstance(e, SyntaxError) and e.lineno is not None:
        return f"line {e.lineno}: {e.msg}"
    return f"{type(e).__name__}: {e}"


def _advice(e: BaseException) -> str:
    if isinstance(e, ModuleNotFoundError):
        return "install what is missing, or give the path of a .py file or of a package's folder"
    return f"correct the module; {DOCS}"


def _unusable(place: str, cause: str, hint: str = DOCS) -> AtcError:
    return error("E20020", place, cause, hint)
