"""`--stream-num`, `--single-stream` and `--sink` on the command line, and what the JSON says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from tests.schedule.branching import towers

from .helpers import atc, valid


def converted(tmp_path: Path, *options: str) -> Any:
    """The JSON of a conversion of two towers, which `atc inspect` repeats."""
    source, target = tmp_path / "m.onnx", tmp_path / "m.om"
    onnx.save(towers(), source)
    result = atc("convert", source, "-o", target, "--json", *options)
    assert result.exit_code == 0, result.output
    figures = valid(result.stdout, "convert")
    seen = valid(atc("inspect", target, "--json").stdout, "inspect")
    assert all(seen[k] == figures[k] for k in ("streams", "events", "sink", "predicted_latency_us"))
    return figures


def test_streams(tmp_path: Path) -> None:
    several = converted(tmp_path)
    assert several["streams"] == 2 and several["events"] >= 1
    for options in (("--single-stream",), ("--stream-num", "1")):
        single = converted(tmp_path, *options)
        assert (single["streams"], single["events"]) == (1, 0)
        assert single["predicted_latency_us"]["after"] > several["predicted_latency_us"]["after"]


def test_sinks(tmp_path: Path) -> None:
    figures = {sink: converted(tmp_path, "--sink", sink) for sink in ("graph", "subgraph", "op")}
    assert figures["graph"]["sink"] == {"mode": "graph", "launches": 1, "synchronisations": 1}
    assert figures["op"]["sink"]["launches"] == figures["op"]["tasks"] >= 8


def test_what_is_wrong_is_said() -> None:
    for options in (("--stream-num", "0"), ("--stream-num", "many"), ("--sink", "whole")):
        result = atc("convert", "m.onnx", "-o", "m.om", *options)
        assert result.exit_code != 0 and options[0] in result.output
    hint = atc("--model=m.onnx", "--output=m", "--framework=5", "--enable_single_stream=true")
    assert hint.exit_code != 0 and "--single-stream" in hint.output
