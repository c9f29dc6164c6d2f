"""Attention as one task, a tile of queries and keys at a time, without storing the scores.

    Attention(q, k, v, mask), 12 heads of 64, 512 positions        FlashAttentionScore, 256 queries × 112 keys a tile

The tile follows from the target's buffers; where not even 16 queries and keys fit, the operator stays as it is and the
reason has the numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from atc_py.fusion.constraints import ENGINE
from atc_py.fusion.rule import Constraint, Join, Match, Rule
from atc_py.fusion.tiles import Misfit, attention
from atc_py.ir.graph import ABSENT, Graph, Node
from atc_py.target import Target

_TILE = ("tile_queries", "tile_keys")
_found: dict[Hashable, Mapping[str, Any] | Misfit] = {}
_KEPT = 1024


def _tiled(graph: Graph, node: Node, target: Target) -> Mapping[str, Any] | Misfit:
    """The tile's attributes, looked for once for all layers that are alike."""
    types = tuple(None if v == ABSENT else graph.type(v) for v in (*node.inputs[:3], *node.outputs))
    key = (types, node.attrs.get("q_num_heads"), node.attrs.get("kv_num_heads"), target)
    found = _found.get(key)
    if found is None:
        if len(_found) >= _KEPT:
            _found.clear()
        attrs = attention(graph, node, target)
        found = _found[key] = attrs if isinstance(attrs, Misfit) else {name: attrs[name] for name in _TILE}
    return found


def _tile(join: Join) -> Misfit | None:
    found = _tiled(join.graph, join.node, join.target)
    return found if isinstance(found, Misfit) else None


def _in_tiles(match: Match) -> Node:
    """The same node under its other name, with the tile."""
    node = match.anchor
    tile = _tiled(match.graph, node, match.target)
    assert not isinstance(tile, Misfit)
    node.op, node.attrs = "FlashAttentionScore", {**node.attrs, **tile}
    return node


FLASH = Rule(
    name="flash_attention",
    doc="attention in tiles of queries and keys, scores never stored",
    anchors=frozenset({"Attention"}),
    admits=(ENGINE, Constraint("tile", _tile)),
    replacement=_in_tiles,
    profit=lambda match: match.price.separate,
    least=1,
    growing=False,
)
