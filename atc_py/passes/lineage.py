"""Who stands for whom, while a pass takes nodes away.

    a ─ Identity ─ Identity ─ … ─ b        one pass removes them all; a comes to stand for each of them, at once

Merging `origin` tuples one removal at a time would be quadratic along a chain. A `Lineage` keeps one growing list a
node instead, hands a dead node's list on as it is, and writes the tuples when the pass ends.
"""

from __future__ import annotations

from atc_py.ir.constants import Constant
from atc_py.ir.graph import Graph, Node


class Lineage:
    """Rewrites of one graph whose origins are merged at the end (`commit`, or the end of a `with` block)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._origins: dict[int, list[str]] = {}

    def __enter__(self) -> Lineage:
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()

    def _of(self, node: Node) -> list[str]:
        found = self._origins.get(node.id)
        if found is None:
            found = self._origins[node.id] = list(node.origin)
        return found

    def inherit(self, heir: Node, dead: Node) -> None:
        """`heir` reads what `dead` read: it stands for `dead` too. `dead` must be removed by the caller."""
        if dead.op == "Data":
            return
        own = self._of(heir)
        before = self._origins.pop(dead.id, None) or list(dead.origin)
        longer, shorter = (own, before) if len(own) > len(before) else (before, own)
        longer.extend(shorter)
        self._origins[heir.id] = longer

    def adopt(self, node: Node, gone: Node) -> None:
        """`node`, whose result is read in place of that of `gone`, stands for `gone` too."""
        if not (gone.origin or gone.id in self._origins):
            return
        self._of(node).extend(self._origins.pop(gone.id, gone.origin))

    def bypass(self, node: Node, source: int) -> None:
        """Readers of the node's first output read `source` instead, and the node goes.

        What it stood for is handed to the producer of `source`, or to its first reader where that is a graph input.
        """
        graph = self.graph
        old = graph.values[node.outputs[0]]
        producer = graph.producer(source)
        if old.name and not graph.values[source].name:
            graph.values[source].name = old.name
        reader = next((graph.nodes[n] for n, _ in old.uses), None)
        if producer.op != "Data":
            self.adopt(producer, node)
        elif reader is not None and reader.op != "NetOutput":
            self.inherit(reader, node)
        graph.replace_uses(old.id, source)
        graph.remove(node)

    def make_const(self, node: Node, constants: list[Constant]) -> None:
        """Constants take the place of the node's outputs, and the node goes, with constants that only it read."""
        graph = self.graph
        heirs: list[Node] = []
        for value, constant in zip(list(node.outputs), constants, strict=True):
            if not graph.values[value].uses:
                continue
            name, graph.values[value].name = graph.values[value].name, ""
            new = graph.add_const(constant, name)
            graph.replace_uses(value, new)
            heirs.append(graph.producer(new))
        sources = [graph.producer(v) for v in dict.fromkeys(node.inputs) if v >= 0]
        for heir in heirs[1:]:
            self._of(heir).extend(node.origin)
        if heirs:
            self.inherit(heirs[0], node)
        graph.remove(node)
        for source in sources:
            if self.drop(source) and heirs:
                self.inherit(heirs[0], source)

    def drop(self, node: Node) -> bool:
        """Remove a node that nobody reads (never a graph input); whether it went. Its origins can still be taken."""
        if node.op in ("Data", "NetOutput"):
            return False
        values = self.graph.values
        for value in node.outputs:
            if values[value].uses:
                return False
        self.graph.remove(node)
        return True

    def commit(self) -> None:
        """Write the merged origins."""
        for number, origins in self._origins.items():
            node = self.graph.nodes.get(number)
            if node is not None:
                node.origin = tuple(dict.fromkeys(origins))
        self._origins.clear()
