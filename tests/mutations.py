"""Dishonest OM files: one number, word or byte changed, all digests right again; and what is done with them.

    python -m tests.mutations FOLDER FIRST COUNT      tries the mutations FIRST … of each OM in FOLDER, one line each

A mutation is a number: the same number changes the same thing. Each line is `om seed kind` before the attempt and the
outcome after it, so that the parent knows which one has killed the process.
"""

from __future__ import annotations

import io
import json
import random
import re
import resource
import signal
import struct
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import AtcError
from atc_py.plan import partition
from atc_py.plan import records as r
from atc_py.plan.table import Table
from atc_py.plan.types import Loop, Plan, walk
from om_format import OmFile, OmHeader, Partition, write_om

INTERESTING = (0, 1, 2, 3, 4, 7, 8, 63, 64, 255, 512, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40)
WORDS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "-1",
        "7",
        "64",
        "1000000",
        "4294967296",
        "true",
        "false",
        "none",
        "inf",
        "nan",
        "-inf",
        "1.5",
    ),
    *('""', '"x"', "(1, 2)", "()", "N"),
)
_NAMES = (
    "Add Relu Conv MatMul Gemm Softmax Reshape Transpose Concat Split Slice Gather Cast Pad Resize LSTM GRU Where TopK "
    "If Loop Scan NonZero Fused TensorMove Shape Constant MaxPool AveragePool Einsum ScatterND Identity SequenceAt "
    "StringNormalizer RandomNormal LayerNormalization DequantizeLinear NonMaxSuppression GridSample Attention Nope"
)
OPERATORS = _NAMES.split()
SECONDS, MEMORY = 20, 3 << 30
LOOPING = 5
"""Seconds for a run of a plan with a Loop: one that never ends is a program like any other, and no hole."""


class Hang(BaseException):
    """A case took longer than SECONDS."""


class Endless(BaseException):
    """A run took longer than LOOPING."""


# -- mutations -----------------------------------------------------------------------------------------------------


def parts_of(data: bytes) -> tuple[dict[int, bytes], OmHeader]:
    """Partitions by kind, and a header for them."""
    with OmFile.from_bytes(data) as om:
        parts = {p.kind: bytes(p.data) for p in om.models[0].partitions if p.kind != Partition.INTEGRITY}
        return parts, OmHeader(name=om.header.name)


def joined(parts: dict[int, bytes], header: OmHeader) -> bytes:
    """The file with digests of its own."""
    sink = io.BytesIO()
    write_om(sink, header, parts)  # type: ignore[arg-type]
    return sink.getvalue()


def mutated(data: bytes, seed: int) -> tuple[str, bytes]:
    """What was changed, and the file."""
    rng = random.Random(seed)
    parts, header = parts_of(data)
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    return kind, joined(KINDS[kind][1](parts, rng), header)


def _flip(raw: bytes, rng: random.Random) -> bytes:
    found = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 4])):
        found[rng.randrange(len(found))] = rng.choice([0, 1, 255, rng.randrange(256)])
    return bytes(found)


def plan_bytes(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    return {**parts, Partition.PLAN_TABLE: _flip(parts[Partition.PLAN_TABLE], rng)}


def plan_numbers(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """Fields of the packed tables, which stay tables."""
    raw = bytearray(parts[Partition.PLAN_TABLE])
    plan = partition.unpack(memoryview(raw), len(parts.get(Partition.WEIGHTS_DATA, b""))).plans[0]
    table = Table(plan)
    start = len(raw) - plan.nbytes - (-plan.nbytes % 8)  # one plan, at the end
    start = bytes(raw).index(bytes(plan[:64]), 0) if bytes(plan[:64]) in bytes(raw) else start
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        names = [name for name, dtype in r.SECTIONS if name != "text" and len(table.rows[name])]
        name = rng.choice(names)
        dtype = dict(r.SECTIONS)[name]
        rows = np.frombuffer(raw, dtype, len(table.rows[name]), start + table.offsets[name])
        row = rng.randrange(len(rows))
        column = rows[rng.choice(dtype.names)] if dtype.names else rows
        old, other = int(column[row]), int(column[rng.randrange(len(rows))])
        known = rng.choice(INTERESTING)
        new = rng.choice([other, old + 1, old - 1, -1, -old, old * 2, known, -known])
        bounds = np.iinfo(column.dtype)
        column[row] = min(max(new, bounds.min), bounds.max)
    return {**parts, Partition.PLAN_TABLE: bytes(raw)}


def _reword(text: str, rng: random.Random) -> str:
    """The text with one number, name or operator changed, or a piece of it lost or doubled."""
    spots = list(re.finditer(r"-?\b\d+\b|\b[A-Za-z_]\w*\b|\"[^\"]*\"", text))
    if not spots:
        return text + rng.choice(WORDS)
    spot = rng.choice(spots)
    word = spot.group()
    if word.lstrip("-").isdigit() and rng.random() < 0.8:
        new = str(rng.choice([int(word) + 1, int(word) - 1, -int(word), 0, *map(int, (rng.choice(INTERESTING),))]))
    elif word[0].isupper() and rng.random() < 0.7:
        new = rng.choice(OPERATORS)
    else:
        new = rng.choice([rng.choice(WORDS), rng.choice(spots).group(), ""])
    return text[: spot.start()] + new + text[spot.end() :]


def plan_words(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """Strings of the plan: operators, attributes, expressions, constants, bodies."""
    raw = parts[Partition.PLAN_TABLE]
    weights = memoryview(parts.get(Partition.WEIGHTS_DATA, b""))
    found = partition.unpack(memoryview(raw), weights.nbytes)
    plan = found.plans[0]
    table = Table(plan)
    lengths = table.rows["strings"].tolist()
    text = table.rows["text"].tobytes()
    strings, at = [], 0
    for n in lengths:
        strings.append(text[at : at + n].decode())
        at += n
    for _ in range(rng.choice([1, 1, 2])):
        k = rng.randrange(len(strings))
        strings[k] = _reword(strings[k], rng)
    return {**parts, Partition.PLAN_TABLE: partition.pack(found.base, found.blobs, [_retold(table, strings)])}


def _retold(table: Table, strings: list[str]) -> bytes:
    """The packed table with other strings."""
    raw = [s.encode(errors="replace") for s in strings]
    start = r.HEAD.itemsize + r.ENTRY.itemsize * len(r.SECTIONS)
    entries, body = [], []
    for name, dtype in r.SECTIONS:
        if name == "text":
            data = b"".join(raw)
        elif name == "strings":
            data = np.array([len(s) for s in raw], dtype).tobytes()
        else:
            data = table.rows[name].tobytes()
        entries.append((dtype.itemsize, 0, len(data) // dtype.itemsize, start))
        data += bytes(-len(data) % r.ALIGNMENT)
        body.append(data)
        start += len(data)
    head = np.array([(r.MAGIC, r.VERSION, len(r.SECTIONS), start)], r.HEAD)
    return b"".join([head.tobytes(), np.array(entries, r.ENTRY).tobytes(), *body])


def blob_places(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """Where the plan's weights and blobs lie."""
    raw = bytearray(parts[Partition.PLAN_TABLE])
    count = struct.unpack_from("<I", raw, 8)[0]
    at = rng.choice([16, *range(24, 24 + 16 * count, 8)])
    old = struct.unpack_from("<Q", raw, at)[0]
    new = rng.choice([old + 1, max(old - 1, 0), old + 64, 0, 1 << 40, (1 << 64) - 1, rng.choice(INTERESTING)])
    struct.pack_into("<Q", raw, at, new % (1 << 64))
    return {**parts, Partition.PLAN_TABLE: bytes(raw)}


def graph_words(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """The canonical graph's text."""
    raw = parts[Partition.CANONICAL_GRAPH]
    text = zlib.decompress(raw[16:]).decode()
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2])):
        k = rng.randrange(len(lines))
        action = rng.random()
        if action < 0.8:
            lines[k] = _reword(lines[k], rng)
        elif action < 0.9:
            del lines[k]
        else:
            lines.insert(rng.randrange(len(lines)), lines[k])
        lines = lines or [""]
    packed = "\n".join(lines).encode(errors="replace")
    return {**parts, Partition.CANONICAL_GRAPH: raw[:8] + struct.pack("<Q", len(packed)) + zlib.compress(packed)}


def graph_bytes(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    return {**parts, Partition.CANONICAL_GRAPH: _flip(parts[Partition.CANONICAL_GRAPH], rng)}


def others(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """MODEL_DEF, TASK_INFO, MODEL_INOUT_INFO, INFO, weights."""
    kind = rng.choice([k for k in parts if k not in (Partition.PLAN_TABLE, Partition.CANONICAL_GRAPH)])
    return {**parts, kind: _flip(parts[kind], rng)}


def lost(parts: dict[int, bytes], rng: random.Random) -> dict[int, bytes]:
    """A partition that is not there, or shorter."""
    kind = rng.choice([k for k in parts if k != Partition.MODEL_DEF])
    if rng.random() < 0.5:
        return {k: v for k, v in parts.items() if k != kind}
    return {**parts, kind: parts[kind][: 1 + rng.randrange(len(parts[kind]))]}


KINDS: dict[str, tuple[int, Any]] = {
    "plan bytes": (2, plan_bytes),
    "plan numbers": (10, plan_numbers),
    "plan words": (6, plan_words),
    "blob places": (1, blob_places),
    "graph words": (6, graph_words),
    "graph bytes": (1, graph_bytes),
    "others": (1, others),
    "lost": (1, lost),
}


# -- what is done with them ----------------------------------------------------------------------------------------


def everything(data: bytes) -> str:
    """Load, run, verify, recompile; the stages that worked. Raises whatever is no AtcError."""
    from atc_py import Options, Session
    from atc_py.compiler import prove, recompile
    from atc_py.emit import om_bytes
    from atc_py.runtime.feeds import random_feeds
    from atc_py.runtime.loader import load

    done = []
    try:
        loaded = load(data)
    except AtcError as e:
        return f"load: {e.code}"
    done.append("load")

    def attempt(stage: str, call: Any) -> Any:
        try:
            result = call()
        except AtcError as e:
            done.append(f"{stage}: {e.code}")
            return None
        done.append(stage)
        return result

    attempt("info", lambda: loaded.info)
    attempt("weights", loaded.check_weights)
    attempt("verify", lambda: prove(loaded.plan))
    session = attempt("session", lambda: Session(loaded))
    if session is not None:
        attempt("ports", lambda: (session.get_inputs(), session.get_outputs()))
        feeds = attempt("feeds", lambda: random_feeds(session.plan.inputs, dict(session.plan.hint or {})))
        try:
            with _a_while(session.plan):
                if feeds is not None and attempt("run", lambda: session.run(None, feeds)) is not None:
                    attempt("again", lambda: session.run(None, feeds))
        except Endless:
            done.append("run: endless")
    graph = attempt("graph", loaded.canonical)
    if graph is not None:
        om = attempt("recompile", lambda: recompile(graph, Options()))
        if om is not None:
            attempt("write", lambda: om_bytes(om))
    return ", ".join(done)


@contextmanager
def _a_while(plan: Plan) -> Iterator[None]:
    """Raise `Endless` after a while where the plan has a Loop; the alarm that was set goes on then."""
    if not any(isinstance(region, Loop) for region in walk(plan.regions)):
        yield
        return

    def stop(*_: object) -> None:
        raise Endless

    before, left = signal.signal(signal.SIGALRM, stop), signal.alarm(LOOPING)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        signal.alarm(left)


def try_each(
    folder: Path,
    pattern: str,
    first: int,
    count: int,
    mutate: Callable[[bytes, int], tuple[str, bytes]],
    use: Callable[[bytes], str],
) -> None:
    """Try mutations `first` … of each file and print what came of them."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _alarm)
    for path in sorted(folder.glob(pattern)):
        data = path.read_bytes()
        for seed in range(first, first + count):
            print(json.dumps([path.name, seed]), flush=True)
            kind, changed = mutate(data, seed)
            signal.alarm(SECONDS)
            try:
                print(json.dumps(["ok", kind, use(changed)]), flush=True)
            except BaseException as e:
                signal.alarm(0)
                text = "".join(traceback.format_exception(e)[-9:])
                print(json.dumps(["hole", kind, f"{type(e).__name__}: {e}", text]), flush=True)
            signal.alarm(0)


def _alarm(*_: object) -> None:
    raise Hang(f"more than {SECONDS} s")


if __name__ == "__main__":
    try_each(Path(sys.argv[1]), "*.om", int(sys.argv[2]), int(sys.argv[3]), mutated, everything)
