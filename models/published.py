"""The latencies of `models/latency`: measured rows, and where their graphs are.

rows = published.rows()
rows[0].model, rows[0].batch, rows[0].milliseconds          ("resnext50_32x4d", 1, 0.6711)
published.graph(rows[0])                                    None: this graph is not among the ten
published.predict(rows[0], "Ascend310P3", folder).latency   757.1: microseconds, as `atc profile` predicts them
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atc_py.schedule.profile import Profile

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


def predict(row: Row, soc_version: str, folder: Path | None = None) -> Profile:
    """The row's profile by `atc profile GRAPH --precision-mode fp16 --input-shape …`; its graph has to be there."""
    from atc_py import compiler
    from atc_py.frontend import model_file
    from atc_py.schedule.profile import profile
    from atc_py.target import load

    path = graph(row, folder)
    assert path is not None
    given = compiler.Options(soc_version=soc_version, precision_mode="fp16", input_shapes=dict(row.shapes))
    om = compiler.compile_structure(model_file.load(path).proto, compiler.as_toolkit(given))
    return profile(om.plan, load(soc_version))
