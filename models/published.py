"""The latencies of `models/latency`: measured rows, and where their graphs are.

rows = published.rows()
rows[0].model, rows[0].batch, rows[0].milliseconds          ("resnext50_32x4d", 1, 0.6711)
published.graph(rows[0])                                    None: this graph is not among the ten
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

NOT_THERE = frozenset({"conv_chain", "horizontal", "prologue", "rotary"})
"""Fusion rules of ours that the toolkit had not with which the rows were measured (CANN 5.1 to 6.3 on this chip).

It fused what follows a convolution or product elementwise, chains of the vector unit, norms and pooling; it stored the
map between two convolutions, ran each product by itself, and made a product's operand in a task of its own.
"""

FOLDER = Path(__file__).resolve().parent / "latency"


@dataclass(frozen=True)
class Row:
    """One measurement: `shapes` are those to give to the inputs of the graph file for this batch."""

    model: str
    batch: int
    milliseconds: float
    graph: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    aipp: bool
    source: str


def rows() -> list[Row]:
    """All rows, in the file's order."""
    with (FOLDER / "published_310p3.csv").open(encoding="utf-8", newline="") as file:
        return [
            Row(
                line["model"],
                int(line["batch"]),
                float(line["latency_ms"]),
                line["graph"],
                _shapes(line["input_shape"]),
                line["aipp"] == "yes",
                line["source"],
            )
            for line in csv.DictReader(file)
        ]


def _shapes(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`"x:1,3,224,224;ids:1,128"` as pairs of name and sizes."""
    pairs = (part.rpartition(":") for part in text.split(";") if part)
    return tuple((name, tuple(int(d) for d in dims.split(","))) for name, _, dims in pairs)


def graph(row: Row, folder: Path | None = None) -> Path | None:
    """The row's graph file in `folder`, or among the ten here; None where it is absent."""
    for place in (folder, FOLDER / "graphs"):
        if place is not None and (place / row.graph).is_file():
            return place / row.graph
    return None
