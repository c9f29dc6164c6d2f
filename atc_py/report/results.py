"""Results of runs and comparisons: `atc run`, `atc check`, `atc verify`, `atc golden`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from atc_py.report import numbers as n
from atc_py.report.screen import indented, pairs, printable, table


def run(facts: Mapping[str, Any]) -> RenderableType:
    """Inputs, outputs with statistics, and the time that the simulation took."""
    inputs = [[v["name"], v["dtype"], n.shape(v["shape"]), v["source"]] for v in facts["inputs"]]
    outputs = [
        [
            v["name"],
            v["dtype"],
            n.shape(v["shape"]),
            *(n.real(v[k]) for k in ("min", "max", "mean", "std")),
            n.count(v["nan"]),
        ]
        for v in facts["outputs"]
    ]
    parts = [
        *([table(["input", "dtype", "shape", "from"], inputs), Text()] if inputs else []),
        table(["output", "dtype", "shape", ">min", ">max", ">mean", ">std", ">NaN"], outputs),
        Text(),
        pairs([("simulation time", simulation_time(facts["simulation_time_s"])), ("arena", n.nbytes(facts["arena"]))]),
    ]
    return Group(*parts)


def simulation_time(time: Mapping[str, Any]) -> str:
    """How long the simulation took on this machine; it says nothing about a device."""
    if time["runs"] == 1:
        return f"{n.seconds(time['median'])} (wall clock of this machine, not of an NPU)"
    return (
        f"median {n.seconds(time['median'])}, min {n.seconds(time['min'])}, p90 {n.seconds(time['p90'])} over "
        f"{time['runs']} runs (wall clock of this machine, not of an NPU)"
    )


def comparison(outputs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row an output, and below it where each failed one is worst."""
    rows = [
        [
            verdict(o["passed"]),
            o["name"],
            o["dtype"],
            n.shape(o["shape"]),
            n.real(o["max_abs"]),
            n.real(o["max_rel"]),
            n.real(o["cosine"]) if o["cosine"] is None else f"{o['cosine']:.7f}",
            f"{n.count(o['mismatches'])} / {n.count(o['elements'])}",
        ]
        for o in outputs
    ]
    columns = ["", "output", "dtype", "shape", ">max abs", ">max rel", ">cosine", ">mismatches"]
    parts: list[RenderableType] = [table(columns, rows)]
    parts += [indented(Text(printable(failure(o)))) for o in outputs if not o["passed"]]
    return Group(*parts)


def verdict(passed: bool) -> Text:
    """`ok` or `FAIL`."""
    return Text("ok", style="green") if passed else Text("FAIL", style="bold red")


def failure(output: Mapping[str, Any]) -> str:
    """Which output failed, how far, and where it is worst."""
    text = f"output '{output['name']}': {output['reason']}"
    worst = output["worst"]
    if worst is not None:
        text += f"; worst at {n.shape(worst['index'])}: got {_element(worst['got'])}, want {_element(worst['want'])}"
    return text


def spread(name: str, own: float, oracle: str, most: float) -> str:
    """Why more than the usual tolerance was granted, or could not be."""
    said = f"output '{printable(name)}': {oracle}'s own results spread by {own:.2g} of its scale"
    if own > most:
        return f"{said}: more than {most:g}, so they say nothing about others (does the model draw random numbers?)"
    return f"{said}; 3 × that is tolerated"


def _element(value: Any) -> str:
    """One element: nine digits tell all float32 values apart."""
    return f"{value:.9g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)


def divergence(found: Mapping[str, Any] | None) -> RenderableType:
    """The first tensor of the ONNX model that differs."""
    if found is None:
        return Text("no inner tensor differs when it is made an output: the difference arises where nodes are fused")
    return pairs(
        [
            ("first difference", f"tensor '{found['tensor']}'"),
            ("made by", f"{found['op_type']} '{found['node']}'"),
            ("how far", found["reason"]),
            ("greatest", "" if found["max_abs"] is None else f"{n.real(found['max_abs'])} apart"),
            ("note", found["note"]),
        ]
    )


def checks(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The steps of `atc verify`."""
    return table(["", "check", "what was compared"], [[verdict(r["passed"]), r["name"], r["detail"]] for r in rows])
