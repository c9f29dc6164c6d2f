"""Tile rules of attention and of rotary embeddings: query rows and heads as wanted, all keys and values.

    Q [1, 8, 64, 16], K, V [1, 2, 64, 16], wanted y[:, 4:8, 32:48, :]   →   Q[:, 4:8, 32:48, :], K, V[:, 1:2, :, :]

Masks by position need to know where the rows stand: `first_query` of `all_queries`.
"""

from __future__ import annotations

from dataclasses import replace

from atc_py.ops.tiles import Need, Region, Untileable, Wanted, blocks, blocks_nbytes, broadcast_region


def _heads(span: tuple[int, int], repeat: int, heads: int, anywhere: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """(query heads made, key heads needed): heads of one group, or whole groups."""
    first = span[0] // repeat
    if span[0] + span[1] <= (first + 1) * repeat and not (anywhere and repeat % span[1]):
        return span, (first, 1)
    made = blocks(span, repeat, heads, anywhere)
    return made, (made[0] // repeat, made[1] // repeat)


def whole_scores(w: Wanted) -> Need:
    """Attention: the scores of one head, of all keys for the wanted rows, stand in L0C and in the unified buffer."""
    need = attention(w)
    queries, keys = need.inputs[0], need.inputs[1]
    assert queries is not None and keys is not None
    past = need.inputs[4] if len(need.inputs) > 4 else None
    count = keys[-2][1] + (0 if past is None else past[2][1])
    scores = blocks_nbytes(queries[-2][1] if len(queries) == 4 else queries[1][1], count)
    return replace(need, workspace={"L0C": scores, "UB": scores})


def attention(w: Wanted) -> Need:
    """FlashAttentionScore, which asks for its buffers itself."""
    if len(w.outs) > 3:
        raise Untileable("the output of scores")
    q, k = w.shapes[0], w.shapes[1]
    assert q is not None and k is not None
    flat = len(q) == 3
    heads = w.attrs["q_num_heads"] if flat else q[1]
    groups = w.attrs["kv_num_heads"] if len(k) == 3 else k[1]
    value_size = w.out_shapes[0][2] // heads if flat else w.out_shapes[0][3]
    batch = w.out[0]
    rows = w.out[1] if flat else w.out[2]
    span = w.out[1]
    if flat:
        part = blocks(w.out[2], max(1, value_size), w.out_shapes[0][2], w.anywhere)
        span = (part[0] // max(1, value_size), part[1] // max(1, value_size))
    if any(r is not None for r in w.outs[1:]):
        span = (0, heads)
    mine, theirs = _heads(span, heads // groups, heads, w.anywhere)
    inputs = _operands(w, batch, rows, mine, theirs, heads, groups)
    made: Region = (batch, mine, rows, (0, value_size))
    if flat:
        made = (batch, rows, (mine[0] * value_size, mine[1] * value_size))
    presents = [(batch, theirs, (0, s[2]), (0, s[3])) for s in w.out_shapes[1:]]
    queries = q[1] if flat else q[2]
    before = w.attrs.get("first_query") or 0
    attrs = {"first_query": before + rows[0], "all_queries": w.attrs.get("all_queries") or queries}
    counts = {"q_num_heads": mine[1], "kv_num_heads": theirs[1]}
    return Need(inputs, (made, *presents), attrs | (counts if flat or len(k) == 3 else {}), streamed=(1, 2, 4, 5))


def _operands(
    w: Wanted, batch: tuple[int, int], rows: tuple[int, int], mine: tuple[int, int], theirs: tuple[int, int],
    heads: int, groups: int,
) -> tuple[Region | None, ...]:  # fmt: skip
    inputs: list[Region | None] = [None] * len(w.shapes)
    for i, s in enumerate(w.shapes):
        if s is None:
            continue
        some, count = (mine, heads) if i == 0 else (theirs, groups)
        if i == 3:
            full = (w.out_shapes[0][0], heads, w.shapes[0][1 if len(w.shapes[0]) == 3 else 2], s[-1])  # type: ignore
            inputs[i] = broadcast_region((batch, mine, rows, (0, s[-1])), s, full)
        elif i == 6:
            inputs[i] = (batch,)
        elif len(s) == 3:
            size = s[2] // count
            inputs[i] = (batch, rows if i == 0 else (0, s[1]), (some[0] * size, some[1] * size))
        else:
            inputs[i] = (batch, some, rows if i == 0 else (0, s[2]), (0, s[3]))
    return tuple(inputs)


def rotary(w: Wanted) -> Need:
    """RotaryEmbedding: whole heads; the caches by position, or their rows."""
    out, shape = w.out, w.out_shapes[0]
    batch = out[0]
    attrs: dict[str, int] = {}
    if len(shape) == 3:
        rows = out[1]
        size = shape[2] // w.attrs["num_heads"]
        span = blocks(out[2], max(1, size), shape[2], w.anywhere)
        made: Region = (batch, rows, span)
        attrs = {"num_heads": span[1] // max(1, size)}
    else:
        rows = out[2]
        made = (*out[:3], (0, shape[3]))
    caches: list[Region | None] = []
    by_index = len(w.shapes) > 3 and w.shapes[3] is not None
    for i in (1, 2):
        s = w.shapes[i]
        assert s is not None
        caches.append(w.all(i) if by_index else (batch if s[0] == shape[0] else (0, s[0]), rows, (0, s[2])))
    positions = w.shapes[3] if by_index else None
    if positions is not None:
        caches.append((batch if positions[0] == shape[0] else (0, positions[0]), rows))
    tail = [None] * (len(w.shapes) - 1 - len(caches))
    return Need((made, *caches, *tail), (made,), attrs, streamed=(1, 2) if by_index else ())
