"""What docs/architecture.md says about the rooms, and what holds for every file in them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*ROOT.glob("atc_py/**/*.py"), *ROOT.glob("om_format/**/*.py")])
OWN = [f for f in FILES if not f.name.endswith("_pb2.py")]
MAX_FILE, MAX_FUNCTION = 600, 70

WITH = {"error_catalogue": "report", "__main__": "cli"}
"""Modules that the table does not name, and the rooms with which they stand."""

THIRD_PARTY = {
    "onnx": {"frontend", "backend", "cli"},
    "onnxruntime": {"cli"},
    "click": {"cli"},
    "rich": {"cli", "report"},
    "threadpoolctl": {"cli"},
}
"""Packages that only these rooms may import."""

LAZY = {
    ("atc_py/ops/reference.py", "onnx"): "binding an AI CPU task that onnx's reference implementation serves",
}
"""Exceptions, for imports inside functions only."""


@dataclass(frozen=True)
class Import:
    """`file` imports `module`; `lazy`: inside a function."""

    file: Path
    module: str
    line: int
    lazy: bool

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT).as_posix()}:{self.line}"


def _module(file: Path) -> list[str]:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[Import]:
    """All imports of a file, those inside functions and for type checkers included."""
    package = _module(file) if file.name == "__init__.py" else _module(file)[:-1]
    inside = {id(n) for f in functions(file) for n in ast.walk(f)}
    for node in ast.walk(tree(file)):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            yield from (Import(file, a.name, node.lineno, lazy) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for a in node.names:  # `from atc_py import frontend` imports a room, `__version__` is none
                whole = base == "atc_py" and not a.name.startswith("__")
                yield Import(file, f"{base}.{a.name}" if whole else base, node.lineno, lazy)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield Import(file, str(argument.value), node.lineno, lazy)


def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree(file)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


@cache
def ranks() -> dict[str, int]:
    """Room → its row in the page's table; rooms of one row may import each other."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Rooms") :]
    found: dict[str, int] = {}
    for row, line in enumerate(re.findall(r"^\| (`.*?) \|", table, re.M)):
        for path in re.findall(r"`(.+?)`", line):
            found[Path(path).stem if path.endswith(".py") else path.rstrip("/").rpartition("/")[2]] = row
    for room, like in WITH.items():
        found[room] = found[like]
    return found


def room(module: str) -> str | None:
    """The room of a module of ours; None for others' modules and for the package's front page."""
    first, _, rest = module.partition(".")
    if first == "om_format":
        return first
    return (rest.partition(".")[0] or None) if first == "atc_py" else None


def test_the_table_names_every_room() -> None:
    there = {room(".".join(_module(f))) for f in FILES} - {None}
    assert there == set(ranks()), "docs/architecture.md and the folders differ"


def test_no_room_imports_one_below_it() -> None:
    order = ranks()
    wrong = []
    for file in FILES:
        own = room(".".join(_module(file)))
        if own is None:
            continue
        for found in imports(file):
            other = room(found.module)
            if other is not None and (order.get(other, 99) > order[own] or (own == "om_format" != other)):
                wrong.append(f"{found.where}: {own} imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_third_party_packages_stay_in_their_rooms() -> None:
    wrong, used = [], set()
    for file in FILES:
        own = room(".".join(_module(file)))
        for found in imports(file):
            package = found.module.partition(".")[0]
            exception = (file.relative_to(ROOT).as_posix(), package)
            if package not in THIRD_PARTY or own in THIRD_PARTY[package] or _for_types_only(found):
                continue
            if exception in LAZY and found.lazy:
                used.add(exception)
            else:
                wrong.append(f"{found.where} imports {found.module}")
    assert not wrong, "\n".join(wrong)
    assert used == set(LAZY), "an exception that nothing needs any more"


def test_the_front_page_imports_nothing_at_once() -> None:
    eager = [
        i.where
        for i in imports(ROOT / "atc_py/__init__.py")
        if not i.lazy and i.module.partition(".")[0] == "atc_py" and not _for_types_only(i)
    ]
    assert not eager


def _for_types_only(found: Import) -> bool:
    guards = [
        n for n in ast.walk(tree(found.file)) if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"
    ]
    return any(g.lineno <= found.line <= (g.end_lineno or 0) for g in guards)


def test_the_operator_index_is_current() -> None:
    # In a process of its own: it watches the families being imported.
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts/ops-index"), "--print"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "atc_py/ops/index.py").read_text(encoding="utf-8") == made.stdout, "run scripts/ops-index"


def test_files_and_functions_have_a_readable_size() -> None:
    long = [
        f"{f.relative_to(ROOT)}: {n} lines" for f in OWN if (n := f.read_text(encoding="utf-8").count("\n")) > MAX_FILE
    ]
    for file in OWN:
        for f in functions(file):
            lines = (f.end_lineno or f.lineno) - f.lineno + 1
            if lines > MAX_FUNCTION:
                long.append(f"{file.relative_to(ROOT)}:{f.lineno} {f.name}: {lines} lines")
    assert not long, "\n".join(long)


# -- the order of sets ---------------------------------------------------------------------------------------------

ORDERLESS = frozenset({"sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len", "isdisjoint"})
"""Calls whose result does not depend on the order of what they read."""


class Sets(ast.NodeVisitor):
    """Finds loops over sets in one scope: their order changes with the hash seed."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = set(names)
        self.found: list[int] = []
        self._fine: set[int] = set()

    def is_set(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, ast.Call):
            return getattr(node.func, "id", "") in ("set", "frozenset")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
            return self.is_set(node.left) or self.is_set(node.right)
        return isinstance(node, ast.Name) and node.id in self.names

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                (self.names.add if self.is_set(node.value) else self.names.discard)(target.id)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and ast.unparse(node.annotation).startswith(("set[", "frozenset[")):
            self.names.add(node.target.id)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        inner = Sets(frozenset(self.names))
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is not None and ast.unparse(argument.annotation).startswith(("set[", "frozenset[")):
                inner.names.add(argument.arg)
            else:
                inner.names.discard(argument.arg)
        for statement in node.body:
            inner.visit(statement)
        self.found += inner.found

    def visit_For(self, node: ast.For) -> None:
        if self.is_set(node.iter):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ORDERLESS or name in ("update", "difference_update", "union"):
            self._fine |= {id(a) for a in node.args}
        elif name in ("list", "tuple", "join", "enumerate", "fromkeys", "dict", "zip", "extend", "next", "iter"):
            self.found += [node.lineno for a in node.args if self.is_set(a)]
        self.generic_visit(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if id(node) not in self._fine and any(self.is_set(g.iter) for g in node.generators):
            self.found.append(node.lineno)
        self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp = visit_DictComp = _comprehension


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("for x in {1, 2}: pass", True),
        ("s = set(a)\nfor x in s: pass", True),
        ("def f(s: set[int]):\n  return [x for x in s]", True),
        ("s: set[int] = set()\nt = tuple(s | {1})", True),
        ("s = {1}\nfor x in sorted(s): pass", False),
        ("s = {1}\nany(x in b for x in s)", False),
        ("s = {1}\nt = {x + 1 for x in s}", False),
        ("s = {1}\ns = [1]\nfor x in s: pass", False),
    ],
)
def test_the_finder_of_set_loops(code: str, wrong: bool) -> None:
    finder = Sets(frozenset())
    finder.visit(ast.parse(code))
    assert bool(finder.found) is wrong


def test_no_result_depends_on_the_order_of_a_set() -> None:
    wrong = []
    for file in OWN:
        finder = Sets(frozenset())
        finder.visit(tree(file))
        wrong += [f"{file.relative_to(ROOT)}:{line}" for line in finder.found]
    assert not wrong, "\n".join(wrong)
