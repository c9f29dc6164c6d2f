"""What a graph computes, as a digest: the judge of tests about orders, names and ids.

structural_hash(read(a)) == structural_hash(read(b))     for files that differ in names and in the order of nodes
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from atc_py.ir.attr_text import BlobTable, attrs_text, const_text, print_type
from atc_py.ir.constants import Blob
from atc_py.ir.dims import Size, symbol
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.ir.order import _layout, _symbol_names
from atc_py.ir.symbols import rename


class _Digests(BlobTable):
    """Names blobs by their content."""

    def word(self, blob: Blob) -> str:
        return blob.digest.hex()


def structural_hash(graph: Graph) -> str:
    """32 hexadecimal digits that tell graphs apart by what they compute, not by names, ids, origins or dead nodes.

    Two graphs have the same digits when `canonicalize` makes the same of them (bar the order of captured values, which
    it settles and this does not). The graph is not changed.
    """
    layout = _layout(graph)
    names = _symbol_names(graph, layout)
    env = {old: symbol(new) for old, new in names.items() if old != new}
    digest = hashlib.blake2b(digest_size=16)
    for old, new in names.items():
        digest.update(f"{new!r} {graph.symbols[old]}\n".encode())
    types: dict[Any, str] = {}
    for inner, order in layout:
        numbers: dict[int, int] = {ABSENT: ABSENT}
        for node in order:
            for value in node.outputs:
                numbers[value] = len(numbers)
            digest.update(_described(inner, node, numbers, env, types).encode())
        digest.update(b"}\n")
    return digest.hexdigest()


def _described(
    graph: Graph, node: Node, numbers: Mapping[int, int], env: Mapping[str, Size], types: dict[Any, str]
) -> str:
    """Everything about a node that is no name."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] == ABSENT and not node.captures:
        inputs.pop()
    found = []
    for value in node.outputs:
        type_ = graph.type(value)
        if type_ not in types:
            types[type_] = print_type(rename(type_, env))
        found.append(types[type_])
    table = _Digests()
    attrs = attrs_text({k: rename(v, env) for k, v in sorted(node.attrs.items())}, table, 0)
    const = "" if node.const is None else const_text(rename(node.const, env), table, None)
    carried = (node.captures, sorted(node.subgraphs), node.engine, node.precision, node.stream, node.priority)
    return f"{node.op!r}({[numbers[v] for v in inputs]}) {found} {const} {attrs} {carried}\n"
