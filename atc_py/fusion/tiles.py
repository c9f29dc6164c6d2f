"""How large a tile of a body may be, and what it then takes of the core's buffers.

    Add ─ Relu ─ Exp, float16 [4096, 4096]            tile [10, 0]: 168 KiB of UB, the operand's tile included
    MatMul ─ Gelu, float16 [4096, 4096]               tile [208, 208]: 169 KiB of L0C
    Softmax over S, S without an upper bound          Misfit: needs the whole of S, which has no upper bound

The tile is the largest found that keeps every buffer at most 70% full; what the rules of `ops.tiles` need of whole dims
stays whole.

For the body's author: operators that read small constants on the host (shapes, axes, starts) must find them in the
body, as `Const` nodes, for rules need their values; other constants may be captured.

`attention` gives the tile of a FlashAttentionScore in the place of an Attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atc_py.fusion.keys import frozen
from atc_py.fusion.tile_search import UNBOUNDED, Search
from atc_py.fusion.tile_use import SHARE, Fit, Misfit, show_bytes
from atc_py.ir.constants import DimVec, Splat
from atc_py.ir.dims import symbols_of
from atc_py.ir.graph import Graph, Node
from atc_py.ir.types import DType, Tensor
from atc_py.ops.build import known_value
from atc_py.ops.fused_run import told_by
from atc_py.ops.tile_program import program
from atc_py.ops.tiles import Untileable, tileable
from atc_py.target import Target

__all__ = ["SHARE", "UNBOUNDED", "Fit", "Misfit", "attention", "fit", "show_bytes"]

_KEPT = 4096
"""How many results are kept."""


def fit(body: Graph, target: Target) -> Fit | Misfit:
    """The largest tile of a body that `target` has room for. Bodies that are alike are looked at once."""
    found = _CACHE.get(key := _key(body, target))
    if found is None:
        if len(_CACHE) >= _KEPT:
            _CACHE.clear()
        found = _CACHE[key] = _fit(body, target)
    return found


_CACHE: dict[Any, Fit | Misfit] = {}


def _key(body: Graph, target: Target) -> Any:
    """What the result depends on: operators, attributes, types, edges, constants, and the ranges of symbols."""
    number: dict[int, int] = {-1: -1}
    entries: list[Any] = []
    names: dict[str, None] = {}
    values = body.values
    for node in body.order():
        for v in node.outputs:
            number[v] = len(number)
            t = values[v].type
            if isinstance(t, Tensor):
                entries += (t.dtype._value_, t.shape)
                for d in t.shape or ():
                    if type(d) is not int:
                        names.update(dict.fromkeys(symbols_of(d)))
        entries += (node.op, tuple([number[v] for v in node.inputs]))
        if node.attrs:
            entries.append(frozen(node.attrs))
        if node.const is not None:
            value = known_value(node.const)
            entries.append(None if value is None else tuple(value.reshape(-1).tolist()))
    ranges = tuple([(s, body.symbols[s]) for s in names if s in body.symbols])
    return tuple(entries), ranges, target


# -- one body --------------------------------------------------------------------------------------------------------


def _fit(body: Graph, target: Target) -> Fit | Misfit:
    p = program(body)
    if not p.steps or not p.outputs:
        return Misfit("body", "it has no operator or no result")
    for step in p.steps:
        if not tileable(step.op):
            return Misfit("rule", f"{step.op.name} cannot be made in tiles")
    unknown = _unknown_symbol(body)
    if unknown is not None:
        return Misfit("symbol", f"a constant of the body needs {unknown}, which none of its operands tells")
    try:
        return Search(body, p, target).run()
    except Untileable as e:
        return Misfit("rule", str(e))


def _unknown_symbol(body: Graph) -> str | None:
    """A symbol that a constant of the body needs and that does not follow from the operands' shapes."""
    needed: dict[str, None] = {}
    for node in body.nodes.values():
        if isinstance(node.const, DimVec):
            needed |= dict.fromkeys(s for d in node.const.elements for s in symbols_of(d))
        elif isinstance(node.const, Splat):
            needed |= dict.fromkeys(s for d in node.const.shape for s in symbols_of(d))
    return next((s for s in needed if s not in told_by(body)), None)


# -- attention -------------------------------------------------------------------------------------------------------


def attention(graph: Graph, node: Node, target: Target) -> Mapping[str, Any] | Misfit:
    """The attributes of a FlashAttentionScore in the place of an Attention `node`, with the tile for `target`.

    The tile has as many query rows as there is room for beside 64 keys (keys and values are fetched again for each
    tile of rows), then as many keys, in multiples of 16 and at most 70% of each buffer. A task of its own may have
    outputs of keys and values; what has an output of scores has no tile.
    """
    from atc_py.ops.flash import buffers, flash

    q, v = graph.type(node.inputs[0]), graph.type(node.inputs[2])
    if len(node.outputs) > 3:
        return Misfit("scores", "its output of scores has to be stored")
    if not (isinstance(q, Tensor) and isinstance(v, Tensor) and q.shape and v.shape):
        return Misfit("shape", "the shapes of queries and values are not known")
    if q.dtype not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32):
        return Misfit("dtype", f"no tile program of attention for {q.dtype.value}")
    size = q.shape[3] if len(q.shape) == 4 else q.shape[2] // (node.attrs["q_num_heads"] or 1)
    width = v.shape[3] if len(v.shape) == 4 else v.shape[2] // (node.attrs["kv_num_heads"] or 1)
    if not (type(size) is int and type(width) is int):
        return Misfit("shape", f"the sizes of the heads, {size} and {width}, are not known")
    room = {"UB": target.ub * SHARE, "L1": target.l1 * SHARE, "L0C": target.l0c * SHARE}

    def fits(rows: int, keys: int) -> bool:
        return all(n <= room[name] for name, n in buffers(rows, keys, size, width, q.dtype.itemsize).items())

    some = [(rows, keys) for keys in (64, 32, 16) for rows in (256, 192, 128, 96, 64, 48, 32, 16) if fits(rows, keys)]
    if not some:
        used = buffers(16, 16, size, width, q.dtype.itemsize)
        name = max(used, key=lambda n: used[n] / room[n])
        has = {"UB": target.ub, "L1": target.l1, "L0C": target.l0c}[name]
        return Misfit(name, f"needs {show_bytes(used[name])} of {name}, has {show_bytes(has)} and may take {SHARE:.0%}")
    rows, keys = some[0]
    while keys < 512 and fits(rows, keys + 16):
        keys += 16
    return flash.attributes({**node.attrs, "tile_queries": rows, "tile_keys": keys})
