"""Pixel shuffles written as Reshape, Transpose and Reshape become one operator again.

    [N, C·r², H, W] ─ [N, C, r, r, H, W] ─ Transpose(0, 1, 4, 2, 5, 3) ─ [N, C, H·r, W·r]    DepthToSpace, mode CRD
    [N, r²·C, H, W] ─ [N, r, r, C, H, W] ─ Transpose(0, 3, 4, 1, 5, 2) ─ [N, C, H·r, W·r]    DepthToSpace, mode DCR
    [N, C, H·r, W·r] ─ [N, C, H, r, W, r] ─ Transpose(0, 3, 5, 1, 2, 4) ─ [N, r²·C, H, W]    SpaceToDepth, mode DCR
    [N, C, H·r, W·r] ─ [N, C, H, r, W, r] ─ Transpose(0, 1, 3, 5, 2, 4) ─ [N, C·r², H, W]    SpaceToDepth, mode CRD

Law: this is how ONNX defines the two operators.
"""

from __future__ import annotations

from typing import Any

from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph
from atc_py.passes.base import PassContext
from atc_py.passes.known import dims_of
from atc_py.passes.lineage import Lineage
from atc_py.passes.rewriting import become, sweep
from atc_py.passes.transposes import perm_of

PASS = "pixels"

Dims = tuple[Size, ...]


def recognise_pixel_shuffles(graph: Graph, ctx: PassContext) -> int:
    """Recognise DepthToSpace and SpaceToDepth; returns how many."""
    changed = 0
    with Lineage(graph) as lineage:
        for node in [n for n in graph.nodes.values() if n.op == "Reshape"]:
            transpose = graph.producer(node.inputs[0])
            first = graph.producer(transpose.inputs[0]) if transpose.op == "Transpose" else node
            if first.op != "Reshape" or first is node:
                continue
            if any(len(graph.values[n.outputs[0]].uses) != 1 for n in (transpose, first)):
                continue
            x, six = dims_of(graph, first.inputs[0]), dims_of(graph, first.outputs[0])
            out, perm = dims_of(graph, node.outputs[0]), perm_of(graph, transpose)
            if x is None or six is None or out is None or perm is None or (len(x), len(six), len(out)) != (4, 6, 4):
                continue
            found = _meaning(x, six, perm, out)
            if found is not None:
                become(graph, node, found[0], [first.inputs[0]], found[1])
                sweep(graph, lineage, node, [transpose, first])
                changed += 1
    return changed


def _meaning(x: Dims, six: Dims, perm: tuple[int, ...], out: Dims) -> tuple[str, dict[str, Any]] | None:
    if perm == (0, 1, 4, 2, 5, 3):
        _, c, r, s, h, w = six
        mode = "CRD"
    elif perm == (0, 3, 4, 1, 5, 2):
        _, r, s, c, h, w = six
        mode = "DCR"
    elif perm in ((0, 3, 5, 1, 2, 4), (0, 1, 3, 5, 2, 4)):
        _, c, h, r, w, s = six
        square = type(r) is int and r == s and x == (six[0], c, h * r, w * r) and out == (six[0], r * r * c, h, w)
        return ("SpaceToDepth", {"blocksize": r, "mode": "DCR" if perm[1] == 3 else "CRD"}) if square else None
    else:
        return None
    square = type(r) is int and r == s and x == (six[0], r * r * c, h, w) and out == (six[0], c, h * r, w * r)
    return ("DepthToSpace", {"blocksize": r, "mode": mode}) if square else None
