"""Rules of users: modules that are given, and those that installed distributions offer.

    load("rules/scaled_softmax.py")     ("scaled_softmax",)      a file, a folder with __init__.py, or a module's name
    installed()                         those of entry points of the group `atc_py.fusion`

A module offers its rules as `RULES`, a sequence of `atc_py.fusion.Rule`. They come after ours, so that they meet what
is left, or enlarge what ours have made. A name must be new. What a file of ours says never leads to an import: code
comes from the command line, the program, or an installed distribution.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

from atc_py.errors import AtcError, error
from atc_py.fusion.rule import Rule

GROUP = "atc_py.fusion"
"""The group of entry points; an entry point's value is the module, or its sequence of rules."""
DOCS = "see docs/custom_fusion.md"


def load(source: str | os.PathLike[str], taken: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules of a module, given by its path or dotted name. Raises `AtcError` E20050 when it has none to use."""
    text = os.fspath(source)
    try:
        module = _from_path(Path(text)) if _is_path(source, text) else import_module(text)
    except AtcError:
        raise
    except (Exception, SystemExit) as e:
        raise _unusable(text, f"it cannot be loaded: {_told(e)}") from e
    return checked(text, getattr(module, "RULES", None), taken)


def load_all(sources: Sequence[str | os.PathLike[str]], taken: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules of several modules; no two may have one name."""
    found: list[Rule] = []
    for source in sources:
        found += load(source, [*taken, *(r.name for r in found)])
    return tuple(found)


@cache
def installed() -> tuple[Rule, ...]:
    """The rules of installed distributions, by the entry points' names. Raises `AtcError` E20050."""
    from importlib.metadata import entry_points

    found: list[Rule] = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        try:
            offered = point.load()
        except (Exception, SystemExit) as e:
            raise _unusable(f"entry point '{point.name}'", f"it cannot be loaded: {_told(e)}") from e
        rules = getattr(offered, "RULES", None) if isinstance(offered, ModuleType) else offered
        found += checked(f"entry point '{point.name}'", rules, [r.name for r in found])
    return tuple(found)


def checked(place: str, rules: object, taken: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that a module offers; raises `AtcError` E20050 for what is no rule and for names that are taken."""
    if not isinstance(rules, (list, tuple)) or not rules:
        raise _unusable(place, "it offers no RULES, a sequence of atc_py.fusion.Rule")
    names = set(taken)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise _unusable(place, f"RULES holds {rule!r}, which is no atc_py.fusion.Rule")
        if rule.name in names:
            raise _unusable(place, f"there is a rule or pass '{rule.name}' already", "give the rule a name of its own")
        if not rule.name.isidentifier():
            raise _unusable(place, f"'{rule.name}' is no name for a rule", "use letters, digits and _")
        names.add(rule.name)
    return tuple(rules)


def _is_path(source: object, text: str) -> bool:
    path = Path(text)
    return isinstance(source, os.PathLike) or path.suffix == ".py" or len(path.parts) > 1 or path.exists()


def _from_path(path: Path) -> ModuleType:
    file = path.resolve()
    file = file / "__init__.py" if file.is_dir() else file
    if not file.is_file():
        raise _unusable(str(path), "there is no such file", "check the path, which counts from the working folder")
    name = f"atc_rules_{crc32(str(file).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise _unusable(str(path), "it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _told(e: BaseException) -> str:
    if isinstance(e, SyntaxError) and e.lineno is not None:
        return f"line {e.lineno}: {e.msg}"
    return f"{type(e).__name__}: {e}"


def _unusable(place: str, cause: str, hint: str = DOCS) -> AtcError:
    return error("E20050", place, cause, hint)
