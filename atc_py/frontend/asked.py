"""What a file asks of the schedule for one node: entries of the node's `metadata_props`, which ONNX leaves to tools.

    metadata_props { key: "priority"      value: "3" }        among the tasks that are ready, higher ones come first
    metadata_props { key: "stream_label"  value: "left" }     tasks of one label share a stream and fuse with no others

Attributes would be the other place, but ONNX allows an operator none that its schema does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx

from atc_py.errors import error
from atc_py.frontend import codes
from atc_py.frontend.onnx_types import text
from atc_py.ir.graph import STRUCTURAL, Graph

PRIORITY, LABEL = "priority", "stream_label"
HIGHEST = 999_999_999
"""Priorities lie between -HIGHEST and HIGHEST."""


@dataclass(frozen=True)
class Asked:
    """A node's priority and stream label; `wrong`: what is wrong with them, and what to do."""

    priority: int = 0
    label: str = ""
    wrong: tuple[str, str] | None = None

    def check(self, place: str) -> None:
        """Raise `AtcError` E16112 if something is wrong."""
        if self.wrong is not None:
            raise error(codes.ATTRIBUTE, place, *self.wrong)

    def give(self, graph: Graph, last: int) -> None:
        """Ask it of the nodes made after node `last` of which nothing has been asked."""
        for number in reversed(graph.nodes):
            if number <= last:
                return
            node = graph.nodes[number]
            if node.op not in STRUCTURAL:
                node.priority = node.priority or self.priority
                node.stream = node.stream or self.label


def asked(entries: Iterable[onnx.StringStringEntryProto]) -> Asked | None:
    """What a node's metadata ask of the schedule; entries of other tools mean nothing here."""
    given: dict[str, str] = {}
    for entry in entries:
        key = text(entry.key)
        if key in (PRIORITY, LABEL):
            if key in given:
                return Asked(wrong=(f"its metadata have the key '{key}' twice", "remove one of the two"))
            given[key] = text(entry.value)
    if not given:
        return None
    number, label = given.get(PRIORITY, "0").strip(), given.get(LABEL, "")
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits.lstrip("0")) <= len(str(HIGHEST))):
        cause = f"the '{PRIORITY}' in its metadata is '{number[:40]}'"
        return Asked(wrong=(cause, f"it is a whole number between -{HIGHEST} and {HIGHEST}; higher runs first"))
    if LABEL in given and not (label and label.isprintable()):
        return Asked(wrong=(f"the '{LABEL}' in its metadata is {label[:40]!r}", "it is a name of printable characters"))
    return Asked(int(number), label)


def hint(attribute: str) -> str:
    """What to do about an attribute that says what belongs into the metadata ("" for any other)."""
    key = attribute.removeprefix("_")
    return f"give it as the entry '{key}' of the node's metadata_props" if key in (PRIORITY, LABEL) else ""
