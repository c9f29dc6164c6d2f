"""What came of a conversion: the figures of `atc_py.emit.summary` as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import cell, pairs, printable, table

_ENGINES = {"aicore": "AI Core", "aicpu": "AI CPU", "host": "host", "hccl": "collectives"}


def stage_line(name: str, elapsed: float) -> Text:
    """One line of progress: a stage and how long it took."""
    line = Text("  ")
    line.append(f"{name:<10}", style="bold")
    line.append(f"{n.seconds(elapsed):>9}", style="dim")
    return line


def conversion(
    figures: Mapping[str, Any], reference_nodes: Sequence[str] = (), verbose: bool = False
) -> RenderableType:
    """The figures of a conversion; `reference_nodes` are ONNX nodes that run with onnx's reference implementation.

    `verbose` adds which operators compute in which dtype.
    """
    memory = figures["memory"]
    before_after = table(
        ["", ">before", ">after"],
        [
            ["nodes", n.count(figures["nodes"]["before"]), n.count(figures["nodes"]["after"])],
            ["tensors", n.count(figures["tensors"]["before"]), n.count(figures["tensors"]["after"])],
            ["bytes of tensors", *sizes_text(memory["sum_before"], memory["sum_after"])],
            *_predicted(figures.get("predicted_latency_us")),
        ],
    )
    rows: list[tuple[str, object]] = [
        ("target", f"{figures['soc_version']}, {figures['opt_level']}, precision {figures['precision_mode']}"),
        ("tasks", tasks_text(figures)),
        ("conversions", formats_text(figures.get("trans_data"))),
        ("engines", engines_text(figures["engines"])),
        ("computes in", precision_text(figures["precision"])),
        ("arena", arena_text(memory)),
        ("weights", n.nbytes(memory["weights"])),
        ("workspace", n.nbytes(memory["workspace"])),
        ("gears", gears_text(figures)),
        ("hint", hint_text(None if figures.get("gears") else figures["hint"])),
        ("symbols", symbols_text(figures["symbols"])),
        ("requires", ", ".join(figures["requirements"])),
        ("needs onnx", ", ".join(reference_nodes) if reference_nodes else ""),
        ("custom ops", custom_text(figures["custom_ops"])),
        *ports_rows("input", figures["inputs"]),
        *ports_rows("output", figures["outputs"]),
    ]
    parts: list[RenderableType] = [before_after, Text(), pairs(rows)]
    if figures.get("gears"):
        parts += [Text(), gear_table(figures["gears"])]
    if verbose:
        parts += [Text(), precision_table(figures["precision"])]
    return Group(*parts)


def precision_text(precision: Mapping[str, Any] | None) -> str:
    """`float16 53 nodes, float32 2; 3 Casts put in`."""
    if precision is None:
        return ""
    found = sorted(precision["dtypes"].items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{dtype} {n.plural(count, 'node') if i == 0 else n.count(count)}"
                     for i, (dtype, count) in enumerate(found))  # fmt: skip
    casts = precision["casts"]
    return f"{text}; {n.plural(casts, 'Cast')} put in" if casts else text


def precision_table(precision: Mapping[str, Any]) -> RenderableType:
    """Operators and how many of their nodes compute in each dtype."""
    dtypes = list(precision["dtypes"])
    body = [[op, *(n.count(found[d]) if d in found else "" for d in dtypes)]
            for op, found in precision["operators"].items()]  # fmt: skip
    return table(["operator", *(f">{d}" for d in dtypes)], body)


def _predicted(latency: Mapping[str, float] | None) -> list[list[object]]:
    if latency is None:
        return []
    return [["predicted time: node by node, as planned", *_times(latency)]]


def latency_text(latency: Mapping[str, float] | None) -> str:
    """`43.4 µs node by node → 21.7 µs as planned`; nothing where the file does not say."""
    if latency is None:
        return ""
    before, after = _times(latency)
    return f"{before} node by node → {after} as planned"


def _times(latency: Mapping[str, float]) -> tuple[str, str]:
    return _apart(latency["before"], latency["after"], lambda us: n.seconds(us / 1e6), lambda us: f"{us:,.1f} µs")


def sizes_text(first: int, second: int) -> tuple[str, str]:
    """Two sizes that are told beside each other: in bytes where they differ and would look the same."""
    return _apart(first, second, n.nbytes, lambda size: f"{size:,} B")


def _apart(first: float, second: float, short: Callable[[Any], str], exact: Callable[[Any], str]) -> tuple[str, str]:
    shown = short(first), short(second)
    return (exact(first), exact(second)) if shown[0] == shown[1] and first != second else shown


def stages(rows: Sequence[tuple[str, Mapping[str, int]]], figures: Mapping[str, Any]) -> RenderableType:
    """Which operators there are after each stage, and what the plan comes to."""
    told = [[stage, n.count(sum(found.values())), _operators(found)] for stage, found in rows]
    plan = (
        f"{tasks_text(figures)}; {engines_text(figures['engines'])}; arena {arena_text(figures['memory'])}; "
        f"weights {n.nbytes(figures['memory']['weights'])}"
    )
    told.append(["schedule", n.count(figures["tasks"]), plan])
    return table(["after", ">nodes", "operators"], told)


def _operators(found: Mapping[str, int]) -> str:
    return ", ".join(f"{op} {count}" for op, count in sorted(found.items(), key=lambda item: (-item[1], item[0])))


def passes(rows: Sequence[Mapping[str, Any]], declined: bool) -> RenderableType:
    """What each pass did; with `declined`, also what it left alone and why."""
    body = [
        [r["pass"], n.count(r["nodes"]["before"]), n.count(r["nodes"]["after"]), n.count(r["changed"]),
         n.count(len(r["declined"]))]
        for r in rows
    ]  # fmt: skip
    parts: list[RenderableType] = [table(["pass", ">nodes before", ">after", ">changed", ">declined"], body)]
    reasons = [[d["node"], d["rule"], d["reason"]] for r in rows for d in r["declined"]] if declined else []
    if reasons:
        parts += [Text(), table(["node", "rule", "left alone because"], reasons)]
    return Group(*parts)


def tasks_text(figures: Mapping[str, Any]) -> str:
    """`45 on 3 streams, 4 events`, and the labels where there are some."""
    on = n.plural(figures["streams"], "stream")
    labels = f", {n.plural(figures['labels'], 'label')}" if figures.get("labels") else ""
    return f"{n.count(figures['tasks'])} on {on}, {n.plural(figures['events'], 'event')}{labels}"


def gear_table(gears: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The gears: the inputs' shapes, as --input-shape takes them, and what each needs."""
    rows = [
        [
            ";".join(f"{name}:{','.join(map(str, shape))}" for name, shape in g["inputs"].items()),
            n.count(g["tasks"]),
            n.nbytes(g["arena"]),
            "" if g["predicted_latency_us"] is None else f"{g['predicted_latency_us']:,.1f} µs",
        ]
        for g in gears
    ]
    return table(["gear", ">tasks", ">arena", ">predicted time"], rows)


def formats_text(count: int | None) -> str:
    """`2 of format (TransData)`; nothing where there are none, or the file does not say."""
    return f"{n.count(count)} of format (TransData)" if count else ""


def engines_text(engines: Mapping[str, int]) -> str:
    """`AI Core 44, AI CPU 1, host 0`."""
    return ", ".join(f"{label} {n.count(engines[key])}" for key, label in _ENGINES.items() if key in engines)


def arena_text(memory: Mapping[str, Any]) -> str:
    """The arena's peak against one buffer a tensor and against the lower bound."""
    arena, total, bound = memory["arena"], memory["sum_after"], memory["lower_bound"]
    text, least = sizes_text(arena, bound)
    if total and arena:
        text += f", {n.percent(arena, total)} of one buffer a tensor"
    if bound:
        text += ", at the lower bound" if arena == bound else f", lower bound {least}"
    return text


def custom_text(modules: Mapping[str, str]) -> str:
    """`acme::SoftCap of softcap.py`."""
    return ", ".join(f"{name} of {module}" for name, module in modules.items())


def hint_text(hint: Mapping[str, int] | None) -> str:
    """The symbol values at which the figures of a template were evaluated."""
    if hint is None:
        return ""
    values = ", ".join(f"{name} = {value}" for name, value in hint.items())
    return f"sizes evaluated at {values or 'no symbols'}"


def gears_text(figures: Mapping[str, Any]) -> str:
    """How many gears there are, if any."""
    found = figures.get("gears")
    return f"{n.count(len(found))}, figures are those of the largest" if found else ""


def symbols_text(symbols: Mapping[str, Mapping[str, int | None]]) -> str:
    """`N in 1–16`, of the symbols that are bounded."""
    return ", ".join(
        f"{name} in {r['low']}–{'∞' if r['high'] is None else r['high']}"
        for name, r in symbols.items()
        if r["low"] or r["high"] is not None
    )


def port_text(port: Mapping[str, Any]) -> str:
    """`x  float32[1, 3, 32, 32]`."""
    return f"{port['name']}  {port['dtype']}{n.shape(port['shape']) if port['shape'] is not None else '[?]'}"


def ports_rows(label: str, ports: Iterable[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """One row a port, the label on the first."""
    found = list(ports)
    first = f"{label}s" if len(found) != 1 else label
    return [(first if i == 0 else "", cell(port_text(p))) for i, p in enumerate(found)]


def file_line(path: str, size: int) -> Text:
    """The last line: what was written."""
    line = Text("wrote ")
    line.append(printable(path), style="bold green")
    line.append(f", {n.nbytes(size)}")
    return line
