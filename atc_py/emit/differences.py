"""Two graphs or two plans, compared node by node: what only one of them has, and what both have in other forms.

    a                                     b
    fc: MatMul(x, w) → float32[8]         fc: MatMul(x, w) → float16[8]       ~ fc   type  float32[8] → float16[8]
    act: Relu(fc)                                                            − act  Relu
                                          cast_1: Cast(fc)                    + cast_1  Cast

Nodes are matched by name (in the text form: the node's name, else its first result's), tasks by their
names; operands are compared by the names of what makes them, so that a change is told where it is and not at
everything that follows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atc_py.emit.attrs import type_text
from atc_py.emit.stages import described_task
from atc_py.errors import error
from atc_py.ir.types import Tensor
from atc_py.plan.types import Plan, Space


@dataclass(frozen=True)
class Item:
    """A node or task: its label, its operator, and what else may differ, by the names of these facts."""

    label: str
    op: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """`kind` is `only in a`, `only in b` or `changed`; `changes` are (fact, in a, in b)."""

    kind: str
    label: str
    op: str
    changes: tuple[tuple[str, str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object."""
        changes = [{"fact": f, "a": a, "b": b} for f, a, b in self.changes]
        return {"kind": self.kind, "label": self.label, "operator": self.op, "changes": changes}


def differences(a: Sequence[Item], b: Sequence[Item]) -> list[Difference]:
    """What differs, in the order of `a`, then what only `b` has in its order."""
    left, right = _numbered(a), _numbered(b)
    found: list[Difference] = []
    for key, item in left.items():
        other = right.get(key)
        if other is None:
            found.append(Difference("only in a", item.label, item.op))
        elif changes := _changes(item, other):
            found.append(Difference("changed", item.label, other.op, changes))
    found += [Difference("only in b", i.label, i.op) for key, i in right.items() if key not in left]
    return found


def _numbered(items: Iterable[Item]) -> dict[tuple[str, int], Item]:
    """Items by label, those of one label by their order."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Item] = {}
    for item in items:
        found[item.label, seen[item.label]] = item
        seen[item.label] += 1
    return found


def _changes(a: Item, b: Item) -> tuple[tuple[str, str, str], ...]:
    found = [] if a.op == b.op else [("operator", a.op, b.op)]
    for name in dict.fromkeys((*a.facts, *b.facts)):
        one, other = a.facts.get(name, ""), b.facts.get(name, "")
        if one != other:
            found.append((name, one, other))
    return tuple(found)


def operators(a: Sequence[Item], b: Sequence[Item]) -> list[tuple[str, int, int]]:
    """(operator, how often in a, in b) where the numbers differ, by name."""
    one, other = Counter(i.op for i in a), Counter(i.op for i in b)
    return [(op, one[op], other[op]) for op in sorted(one | other) if one[op] != other[op]]


_LINE = re.compile(r"^(?P<pad> *)#\d+ (?:(?P<outs>%.*?) = )?(?P<op>[\w:.]+)\((?P<args>[^()]*)\)?(?P<rest>.*)$")
_OUT = re.compile(r"%(\d+)(?: \"((?:[^\"\\]|\\.)*)\")?: ")
_NAME = re.compile(r" name \"((?:[^\"\\]|\\.)*)\"")
_ATTRS = re.compile(r"\{.*\}\s*$")


def items_of_text(text: str, place: str) -> list[Item]:
    """The nodes of a graph in the text form, as `atc inspect --graph` and dumps have it.

    Raises `AtcError` EI101 for what is no such text.
    """
    if not text.lstrip().startswith(("graph ", "//")):
        raise error(
            "EI101", place, "is neither an OM nor a graph's text form", "give OM files or ge_readable_*.txt dumps"
        )
    found: list[Item] = []
    names: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        depth = len(match["pad"]) // 4
        del names[depth + 1 :]
        while len(names) <= depth:
            names.append({})
        outs = [(number, name) for number, name in _OUT.findall(match["outs"] or "")]
        said = _NAME.search(match["rest"])
        label = said[1] if said else next((n for _, n in outs if n), "") or match["op"]
        names[depth].update({f"%{number}": f"{label}:{i}" for i, (number, _) in enumerate(outs)})
        if match["op"] not in ("Const", "Data", "NetOutput") or depth == 0:
            found.append(_item(match, label, names[depth]))
    return found


def _item(match: re.Match[str], label: str, names: Mapping[str, str]) -> Item:
    operands = re.sub(r"%\d+", lambda m: names.get(m[0], m[0]), match["args"])
    rest = match["rest"]
    attrs = _ATTRS.search(rest)
    engine = re.search(r" @(\w+)", rest)
    precision = re.search(r' precision "(\w+)"', rest)
    facts = {
        "types": re.sub(r"%\d+(?: \"(?:[^\"\\]|\\.)*\")?: ", "", match["outs"] or ""),
        "operands": operands,
        "attributes": attrs[0].strip() if attrs else "",
        "engine": engine[1] if engine else "",
        "precision": precision[1] if precision else "",
    }
    return Item(label, match["op"], facts)


def items_of_plan(plan: Plan, memory: bool = False) -> list[Item]:
    """The tasks of a plan; with `memory` their results' addresses too."""
    labels: dict[int, str] = {p.value: p.name for p in plan.inputs}
    found: list[Item] = []
    for task in plan.tasks():
        label = task.name or ", ".join(task.origin)
        for i, out in enumerate(task.outputs):
            labels[out.value] = f"{label}:{i}"
        facts = {
            "types": ", ".join(_told(o.type) for o in task.outputs),
            "operands": ", ".join("–" if o is None else labels.get(o.value, "constant") for o in task.inputs),
            "engine": task.engine,
            "stream": str(task.stream),
            "cycles": str(task.cost),
        }
        if memory:
            facts["addresses"] = ", ".join(_address(plan, o.buffer) for o in task.outputs)
        found.append(Item(label, described_task(task), facts))
    return found


def _told(type_: Any) -> str:
    text = type_text(type_)
    if isinstance(type_, Tensor) and type_.shape is not None and type_.storage_format is not type_.format:
        text += f" as {type_.storage_format.value}"
    return text


def _address(plan: Plan, buffer: int) -> str:
    found = plan.buffers[buffer]
    where = "bound later" if found.offset is None else str(found.offset)
    return where if found.space is Space.ARENA else f"{found.space.value} {where}"
