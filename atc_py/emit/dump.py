"""Dumps: the graph after each stage of a conversion, as files that people and Netron read.

    00000000_PreRunBegin                          the imported graph
    00000001_optimize_fold_constants              after a pass that changed something   (level "all")
    00000002_PreRunAfterOptimizeOriginalGraph     the canonical graph
    00000003_PreRunAfterOptimizeSubgraph          the target's graph
    00000004_Build                                the graph with its plan

Each comes in up to three forms: `ge_proto_*.txt`, GE's ModelDef as protobuf text; `ge_onnx_*.pbtxt`, an ONNX model as
text, for Netron; `ge_readable_*.txt`, the text form of the IR, which `atc diff` compares. Names of files and stages are
GE's, where GE has such a stage. The files of a conversion that fails stay: they are what one wants to look at then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from atc_py.emit.model_def import model_def
from atc_py.emit.onnx_text import onnx_text
from atc_py.emit.task_info import task_list
from atc_py.errors import error
from atc_py.ir.attr_text import BlobTable
from atc_py.ir.constants import Blob
from atc_py.ir.graph import Graph
from atc_py.ir.text import print_graph
from atc_py.plan.types import Plan
from om_format.proto.ge_ir_pb2 import ModelDef

STAGES = {
    "import": "PreRunBegin",
    "optimize": "PreRunAfterOptimizeOriginalGraph",
    "lower": "PreRunAfterOptimizeSubgraph",
    "schedule": "Build",
}
"""Our stages → GE's names of them."""
FORMATS = ("ge_proto", "ge_onnx", "readable")
CONTENTS = {"1": "full", "2": "no weights", "3": "topology"}


@dataclass
class Dumper:
    """Writes what it is shown. `stages`: `all` (each pass too), `stages`, `first`, `last`, or names joined by `|`.

    `content`: `full`, `no weights`, or `topology` (no attributes either). Raises `AtcError` E13001 for a folder that
    cannot be written to.
    """

    folder: Path
    content: str = "no weights"
    stages: str = "stages"
    formats: tuple[str, ...] = FORMATS
    written: list[Path] = field(default_factory=list)
    _number: int = 0

    def __call__(self, stage: str, graph: Graph, plan: Plan | None = None) -> None:
        """Write a graph; `stage` is one of `STAGES`, or a stage and a pass (`optimize/cse`)."""
        name = STAGES.get(stage, stage)
        if not self._wanted(stage, name):
            return
        label = f"{self._number:08d}_graph_1_{re.sub('[^A-Za-z0-9_]', '_', name)}"
        self._number += 1
        if self.stages == "last":
            self._forget()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for form in self.formats:
                self._write(form, label, graph, plan)
        except OSError as e:
            cause = e.strerror or str(e)
            raise error("E13001", str(self.folder), cause, "give --dump-graph a folder that can be written to") from e

    def _wanted(self, stage: str, name: str) -> bool:
        if self.stages == "all":
            return True
        if self.stages == "first":
            return not self._number
        if self.stages in ("stages", "last"):
            return stage in STAGES
        return name in self.stages.split("|") or stage in self.stages.split("|")

    def _forget(self) -> None:
        for path in self.written:
            path.unlink(missing_ok=True)
        self.written.clear()

    def _write(self, form: str, label: str, graph: Graph, plan: Plan | None) -> None:
        weights, attributes = self.content == "full", self.content != "topology"
        if form == "ge_onnx":
            path, text = f"ge_onnx_{label}.pbtxt", onnx_text(graph, weights, attributes)
        elif form == "readable":
            path, text = f"ge_readable_{label}.txt", readable(graph, weights)
        else:
            path, text = f"ge_proto_{label}.txt", _proto(graph, plan, weights, attributes)
        target = self.folder / path
        target.write_text(text, encoding="utf-8")
        self.written.append(target)


class _Digests(BlobTable):
    """Names blobs by their content, so that texts of two graphs can be compared."""

    def word(self, blob: Blob) -> str:
        """The first digits of the digest."""
        return blob.digest.hex()[:12]


def readable(graph: Graph, weights: bool = True) -> str:
    """The graph's text form; with `weights`, a constant's bytes are told by their digest."""
    return print_graph(graph, _Digests() if weights else None)


def _proto(graph: Graph, plan: Plan | None, weights: bool, attributes: bool) -> str:
    switches = None if plan is None else task_list(plan).switches
    drawn = model_def(graph.name or "graph", graph, plan, lambda blob: None if weights else 0, {}, switches)
    message = ModelDef.FromString(drawn)
    if not attributes:
        for shown in message.graph:
            for op in shown.op:
                op.attr.clear()
    return text_format.MessageToString(message)


def from_environment(environ: Mapping[str, str]) -> Dumper | None:
    """What GE's variables ask for: DUMP_GE_GRAPH (1 full, 2 without weights, 3 topology), DUMP_GRAPH_LEVEL
    (1 all, 2 the stages, 3 the last, 4 the first, or names), DUMP_GRAPH_PATH, DUMP_GRAPH_FORMAT."""
    content = CONTENTS.get(environ.get("DUMP_GE_GRAPH", ""))
    if content is None:
        return None
    level = environ.get("DUMP_GRAPH_LEVEL", "2")
    stages = {"1": "all", "2": "stages", "3": "last", "4": "first"}.get(level, level)
    asked = environ.get("DUMP_GRAPH_FORMAT", "ge_proto|ge_onnx").split("|")
    formats = tuple(f for f in FORMATS if f in asked) or FORMATS[:2]
    folder = environ.get("DUMP_GRAPH_PATH") or environ.get("ASCEND_WORK_PATH") or "."
    return Dumper(Path(folder), content, stages, formats)
