"""An OM or ONNX file for people: header, ports, figures, histogram, partitions, tasks, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from atc_py.report import conversion as c
from atc_py.report import numbers as n
from atc_py.report.screen import pairs, table


def overview(facts: Mapping[str, Any]) -> RenderableType:
    """An OM of ours: everything that fits one screen."""
    memory = facts["memory"]
    head = pairs(
        [
            ("model", facts["name"]),
            ("file", f"{facts['file']['path']}, {n.nbytes(facts['file']['bytes'])}"),
            ("target", f"{facts['soc_version']}, {facts['opt_level']}, precision {facts['precision_mode']}"),
            ("shapes", shapes(facts)),
            ("symbols", c.symbols_text(facts["symbols"])),
            ("requires", ", ".join(facts["requirements"])),
            *c.ports_rows("input", facts["inputs"]),
            *c.ports_rows("output", facts["outputs"]),
            ("nodes", f"{n.count(facts['nodes']['before'])} → {n.count(facts['nodes']['after'])}"),
            ("predicted time", c.latency_text(facts["predicted_latency_us"])),
            ("tasks", c.tasks_text(facts)),
            ("conversions", c.formats_text(facts["trans_data"])),
            ("engines", c.engines_text(facts["engines"])),
            ("arena", c.arena_text(memory)),
            ("weights", n.nbytes(memory["weights"])),
            ("workspace", n.nbytes(memory["workspace"]) if memory["workspace"] else ""),
            ("recompiles", "yes" if facts["canonical"] else "no, it was written with --canonical=off"),
            ("needs onnx", needs_onnx(facts["needs_onnx"])),
            ("custom ops", c.custom_text(facts["custom_ops"])),
        ]
    )
    gears = [Text(), c.gear_table(facts["gears"])] if facts.get("gears") else []
    parts = [head, *gears, Text(), histogram(facts["op_histogram"]), Text(), partitions(facts["partitions"])]
    if len(facts["subgraphs"]) > 1:
        parts += [Text(), subgraphs(facts["subgraphs"])]
    return Group(*parts)


def shapes(facts: Mapping[str, Any]) -> str:
    """Whether there is one set of sizes, several of them, or any."""
    if facts["hint"] is None:
        return "static"
    if facts.get("gears"):
        return f"gears: {c.gears_text(facts)}"
    return f"symbolic; {c.hint_text(facts['hint'])}"


def subgraphs(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The tasks of each engine between borders, and what copies bring to them and take from them."""
    rows = [[g["phase"], g["engine"], g["tasks"], n.nbytes(g["bytes_in"]), n.nbytes(g["bytes_out"])] for g in found]
    return table([">phase", "engine", ">tasks", ">comes in", ">goes out"], rows, "subgraphs")


def needs_onnx(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Tasks that run with onnx's reference implementation, so that running the file imports onnx."""
    return ", ".join(f"task {t['id']} {t['kernel']} '{t['name']}'" for t in tasks)


def foreign(facts: Mapping[str, Any]) -> RenderableType:
    """An OM of another compiler: what the container and MODEL_DEF tell."""
    head = pairs(
        [
            ("model", facts["name"]),
            ("file", f"{facts['file']['path']}, {n.nbytes(facts['file']['bytes'])}"),
            ("origin", "another compiler; it holds no plan of atc-py, so it can be inspected but not run here"),
            *((key, value) for key, value in facts["attributes"].items()),
        ]
    )
    parts: list[RenderableType] = [head, Text()]
    if facts["op_histogram"]:
        parts += [histogram(facts["op_histogram"]), Text()]
    return Group(*parts, partitions(facts["partitions"]))


def onnx_overview(facts: Mapping[str, Any]) -> RenderableType:
    """An ONNX model."""
    tensors = n.plural(facts["initializers"] + facts["constants"], "tensor")
    head = pairs(
        [
            ("model", facts["name"]),
            ("file", f"{facts['file']['path']}, {n.nbytes(facts['file']['bytes'])}"),
            *((key.replace("_", " "), value) for key, value in facts["properties"].items()),
            *c.ports_rows("input", facts["inputs"]),
            *c.ports_rows("output", facts["outputs"]),
            ("symbols", c.symbols_text(facts["symbols"])),
            ("nodes", n.count(sum(facts["op_histogram"].values()) - facts["constants"])),
            ("weights", f"{tensors}, {n.nbytes(facts['weights'])}"),
            ("unsupported", _unsupported(facts)),
        ]
    )
    return Group(head, Text(), histogram(facts["op_histogram"]))


def _unsupported(facts: Mapping[str, Any]) -> str:
    if facts["supported"]:
        return "none"
    unknown = len(facts["unsupported"])
    return f"{n.plural(unknown, 'operator')}; see below" if unknown else "the model cannot be converted; see below"


def histogram(counts: Mapping[str, int]) -> RenderableType:
    """Operators and how often they occur, the most frequent first."""
    most = max(counts.values(), default=1)
    rows = [[name, n.count(k), "█" * max(1, round(24 * k / most))] for name, k in counts.items()]
    return table(["operator", ">count", ""], rows)


def partitions(parts: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The file's partitions in file order."""
    rows = [[p["name"], n.hexadecimal(p["offset"]), n.nbytes(p["bytes"])] for p in parts]
    return table(["partition", ">offset", ">size"], rows)


def task_table(tasks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The plan's tasks: where each runs, what it reads and writes, and which ONNX nodes it stands for."""
    rows = [
        [
            t["id"],
            t["kernel"] + _tile(t["tile"]),
            t["engine"],
            t["stream"],
            "\n".join(_operand(o) for o in t["inputs"]),
            "\n".join([*map(_operand, t["outputs"]), *_workspace(t["workspace"])]),
            n.nbytes(t["bytes"]),
            ", ".join(t["origin"]),
        ]
        for t in tasks
    ]
    return table([">id", "kernel", "engine", ">stream", "reads", "writes", ">bytes", "ONNX nodes"], rows, "tasks")


def _tile(tile: Mapping[str, Any] | None) -> str:
    """Under a fused task's operators: its tile, `·` for a whole dim, and what it takes of the buffers."""
    if tile is None:
        return ""
    used = [f"{name} {n.nbytes(size)}" for name, size in tile["buffers"].items() if size]
    return "\n".join(["", "tile " + "×".join(str(d) if d else "·" for d in tile["lengths"]), *used])


def _workspace(operand: Mapping[str, Any] | None) -> list[str]:
    return [] if operand is None else [f"{_operand(operand)}, workspace"]


_BLOCKED = ("NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ")
"""Formats that are told: the others lie as the shape says."""


def _operand(operand: Mapping[str, Any] | None) -> str:
    if operand is None:
        return "–"
    if operand["space"] == "host value":
        return f"host {operand['text']}"
    where = operand["space"] + ("" if operand["port"] is None else str(operand["port"]))
    if operand["address"] is not None:
        where += f"+0x{operand['address']:x}"
    form = f" {operand['format']}" if operand.get("format") in _BLOCKED else ""
    return f"{where} {operand['text'].replace(', ', ',')}{form}"


def weight_table(weights: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The constants of the weights space."""
    rows = [
        [w["name"], w["kind"], w["dtype"], n.shape(w["shape"]), n.nbytes(w["bytes"]), n.hexadecimal(w["offset"])]
        for w in weights
    ]
    return table(["constant", "kind", "dtype", "shape", ">size", ">offset"], rows, "weights")
