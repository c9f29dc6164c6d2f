"""Which operators may compute in a narrower float: three lists, and the files that change them.

    Conv       fp16_safe, on the cube      white    computes in the narrow type
    Relu       fp16_safe                   gray     computes in what the values that it reads were computed in
    Exp        not fp16_safe               black    stays float32

    --modify-mixlist     {"black-list": {"to-add": ["Gelu"]}, "white-list": {"to-add": ["Exp"]}}
    --keep-dtype         a node's name a line, or OpType::LayerNormalization

The lists follow from the flags of the operators' declarations (`kind_of`) and are nowhere written down; the table in
docs/precision.md is made of them. The forms of both files are those of Ascend's ATC.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from atc_py.errors import Problems
from atc_py.ir.graph import Graph, Node
from atc_py.ops import get, plugins
from atc_py.ops.base import Op

MIXLIST, KEEP = "--modify-mixlist", "--keep-dtype"
_FORM = 'the form is {"black-list": {"to-add": ["Gelu"], "to-remove": ["Exp"]}}'
_TYPE = "OpType::"


class Kind(enum.Enum):
    """The list that an operator is on."""

    WHITE = "white"
    GRAY = "gray"
    BLACK = "black"

    def __repr__(self) -> str:
        return self.value


def kind_of(op: Op) -> Kind:
    """The list that an operator is on by its declaration."""
    if not op.flags.fp16_safe:
        return Kind.BLACK
    return Kind.WHITE if op.flags.cube else Kind.GRAY


@dataclass(frozen=True)
class PrecisionLists:
    """What the two files say: operators on another list, and nodes and operators that keep their dtypes."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    keep_nodes: frozenset[str] = frozenset()
    keep_types: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where a file names each of the nodes."""

    @property
    def keeps(self) -> bool:
        """Whether nodes or operators keep their dtypes."""
        return bool(self.keep_nodes or self.keep_types)

    def kind(self, op: Op) -> Kind:
        """The list that an operator is on."""
        found = self.kinds.get(op.name)
        return kind_of(op) if found is None else found

    def kept(self, node: Node) -> bool:
        """Whether the node stands for one that keeps its dtypes."""
        if not self.keeps:
            return False
        return node.op in self.keep_types or node.name in self.keep_nodes or not self.keep_nodes.isdisjoint(node.origin)

    def to_json(self) -> dict[str, Any]:
        """The lists as a JSON object, which `from_json` reads."""
        kinds = {name: kind.value for name, kind in sorted(self.kinds.items())}
        return {"kinds": kinds, "keep_nodes": sorted(self.keep_nodes), "keep_types": sorted(self.keep_types)}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> PrecisionLists:
        """The lists that `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        kinds = {str(name): Kind(kind) for name, kind in said["kinds"].items()}
        return PrecisionLists(kinds, frozenset(said["keep_nodes"]), frozenset(said["keep_types"]))


NO_LISTS = PrecisionLists()


def read_lists(mixlist: str | Path | None = None, keep_dtype: str | Path | None = None) -> PrecisionLists:
    """The lists of both files, each of which may be missing; raises `AtcError` with all that is wrong (E20041, E20042).

    Whether the nodes exist is known when the model has been read: see `check_nodes`.
    """
    problems = Problems()
    kinds: dict[str, Kind] = {}
    types: frozenset[str] = frozenset()
    places: dict[str, str] = {}
    text = None if mixlist is None else _read(mixlist, "E20041", problems)
    if mixlist is not None and text is not None:
        kinds = _kinds(text, str(mixlist), problems)
    text = None if keep_dtype is None else _read(keep_dtype, "E20042", problems)
    if keep_dtype is not None and text is not None:
        places, types = _kept(text, str(keep_dtype), problems)
    problems.raise_any()
    return PrecisionLists(kinds, frozenset(places), types, places)


def check_nodes(lists: PrecisionLists, graph: Graph) -> None:
    """Raise `AtcError` E20042 with each name that no node of the model has; `graph` is the imported one."""
    if not lists.keep_nodes:
        return
    names = {n for g in graph.walk() for node in g.nodes.values() for n in (node.name, *node.origin) if n}
    problems = Problems()
    for name in sorted(lists.keep_nodes - names):
        near = get_close_matches(name, sorted(names), 1)
        hint = f"did you mean '{near[0]}'?" if near else "'atc inspect MODEL.onnx' lists the nodes"
        problems.add("E20042", lists.places.get(name, KEEP), f"no node that computes anything is called '{name}'", hint)
    problems.raise_any()


def _read(path: str | Path, code: str, problems: Problems) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no UTF-8 text"
        problems.add(code, str(path), f"the file cannot be read: {why}", "check the path")
        return None


def _kinds(text: str, place: str, problems: Problems) -> dict[str, Kind]:
    """The operators that a mixed-precision list puts on another list."""
    try:
        said = json.loads(text)
    except ValueError as e:
        problems.add("E20041", place, f"it is no JSON: {e}", _FORM)
        return {}
    if not isinstance(said, dict):
        problems.add("E20041", place, "it holds no JSON object", _FORM)
        return {}
    added: dict[str, list[Kind]] = {}
    removed: dict[str, list[Kind]] = {}
    for key, part in said.items():
        kind = next((k for k in Kind if f"{k.value}-list" == key), None)
        if kind is None or not isinstance(part, dict):
            cause = "expected black-list, white-list or gray-list, an object"
            problems.add("E20041", f"{place}, '{key}'", cause, _FORM)
            continue
        for change, names in part.items():
            where = {"to-add": added, "to-remove": removed}.get(change)
            if where is None or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                cause = "expected to-add or to-remove, a list of operators' names"
                problems.add("E20041", f"{place}, '{key}' '{change}'", cause, _FORM)
                continue
            for name in _known_types(names, "E20041", f"{place}, '{key}' '{change}'", problems):
                where.setdefault(name, []).append(kind)
    return _moved(added, removed, place, problems)


def _moved(
    added: Mapping[str, list[Kind]], removed: Mapping[str, list[Kind]], place: str, problems: Problems
) -> dict[str, Kind]:
    """Where operators end that lists gain and lose; one that leaves its list and comes to no other one is gray."""
    kinds: dict[str, Kind] = {}
    for name, off in removed.items():
        op = _find(name)
        if op is not None and kind_of(op) in off:
            kinds[name] = Kind.GRAY
    for name, on in added.items():
        if len(set(on)) > 1 or on[0] in removed.get(name, ()):
            cause = f"'{name}' is added to more than one list, or added to the list that it is removed from"
            problems.add("E20041", place, cause, "name the one list that it is to be on")
        kinds[name] = on[0]
    return kinds


def _kept(text: str, place: str, problems: Problems) -> tuple[dict[str, str], frozenset[str]]:
    """(names of nodes with their lines, operators) of a file of nodes that keep their dtypes."""
    nodes: dict[str, str] = {}
    types: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if entry.startswith(_TYPE):
            types += _known_types([entry[len(_TYPE) :].strip()], "E20042", f"{place}, line {number}", problems)
        elif entry:
            nodes.setdefault(entry, f"{place}, line {number}")
    return nodes, frozenset(types)


def _known_types(names: Iterable[str], code: str, place: str, problems: Problems) -> list[str]:
    """Those of the names that are operators; the others are problems."""
    known: list[str] = []
    for name in names:
        if _find(name) is not None:
            known.append(name)
            continue
        from atc_py.ops.index import INDEX

        near = get_close_matches(name, list(INDEX), 1)
        hint = f"did you mean '{near[0]}'?" if near else "docs/precision.md lists the operators"
        problems.add(code, place, f"there is no operator '{name}'", hint)
    return known


def _find(name: str) -> Op | None:
    return get(name) or plugins.find(name)
