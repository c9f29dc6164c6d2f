"""The table of contents of the system: from a model to an OM.

    om = compile_model("model.onnx", Options(input_shapes={"x": (1, 3, 224, 224)}))
    write_file(om, "model.om")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atc_py import frontend
from atc_py.emit import Om
from atc_py.ir.clone import clone
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph
from atc_py.memory import bind
from atc_py.passes import LowerOptions, OptimizeOptions, Report, lower, optimize
from atc_py.plan.types import Plan
from atc_py.plan.verify import verify
from atc_py.schedule import ScheduleOptions, live_hints, schedule
from atc_py.target import Target, load

if TYPE_CHECKING:
    import onnx

Progress = Callable[[str, float], None]
"""Called at the end of each stage with its name and its seconds."""


@dataclass(frozen=True)
class Options:
    """What a conversion may be told; the names are those of the command line.

    `input_shapes` gives inputs other shapes (ints, -1, `"1~10"` ranges, or symbol names), `input_hint` the values of
    symbols at which figures are evaluated, `out_nodes` other outputs.
    """

    input_shapes: Mapping[str, Sequence[Size | str | None]] = field(default_factory=dict)
    input_hint: Mapping[str, int] = field(default_factory=dict)
    out_nodes: Sequence[str] = ()
    soc_version: str = "Ascend310P3"
    precision_mode: str = "origin"
    opt_level: int = 2
    disabled_passes: frozenset[str] = frozenset()
    fold_limit: int | None = None
    debug: bool = False

    def optimize_options(self) -> OptimizeOptions:
        """The part that `optimize` reads."""
        extra: dict[str, Any] = {} if self.fold_limit is None else {"fold_limit": self.fold_limit}
        return OptimizeOptions(level=self.opt_level, disabled=self.disabled_passes, debug=self.debug, **extra)

    def lower_options(self) -> LowerOptions:
        """The part that `lower` reads."""
        return LowerOptions(
            level=self.opt_level,
            disabled=self.disabled_passes,
            debug=self.debug,
            precision_mode=self.precision_mode,
        )


def compile_model(
    model: str | Path | onnx.ModelProto, options: Options | None = None, progress: Progress | None = None
) -> Om:
    """Compile an ONNX model. Raises `AtcError` with everything that is wrong with it."""
    options = options or Options()
    stage = _Stages(progress)
    reading = frontend.ReadOptions(options.input_shapes, tuple(options.out_nodes))
    imported = stage("read", lambda: frontend.import_model(model, reading))
    graph = imported.graph
    before = stage("survey", lambda: clone(graph))
    report = stage("optimize", lambda: optimize(graph, options.optimize_options()))
    om = _back_end(graph, before, report, options, stage)
    om.warnings = tuple(imported.warnings)
    return om


def recompile(canonical: Graph, options: Options, progress: Progress | None = None) -> Om:
    """Compile a canonical graph, as an OM holds it, for the target, precision and layout of `options`."""
    stage = _Stages(progress)
    return _back_end(canonical, clone(canonical), Report(), options, stage)


def _back_end(graph: Graph, before: Graph, report: Report, options: Options, stage: _Stages) -> Om:
    target: Target = load(options.soc_version)
    lowered = clone(graph)
    lowering = stage("lower", lambda: lower(lowered, target, options.lower_options()))
    how = ScheduleOptions(target.name, options.input_hint, {"precision_mode": options.precision_mode})
    plan = stage("schedule", lambda: schedule(lowered, how))
    stage("verify", lambda: prove(plan))
    return Om(graph.name, graph, lowered, [plan], before, report.then(lowering), options_text(options))


def prove(plan: Plan, env: Mapping[str, int] | None = None) -> None:
    """Bind the plan (under `env`, or its hint) and prove it; raises `AtcError` with each violation.

    A branch that is dead under the hint is proved under other values for which it is alive, if such can be found.
    """
    for values in (plan.hint or {}, *live_hints(plan)) if env is None else (env,):
        binding = bind(plan, values)
        verify(plan, binding.offsets, binding.sizes, binding.env)


def options_text(options: Options) -> dict[str, str]:
    """The options that the OM records."""
    return {
        "soc_version": options.soc_version,
        "precision_mode": options.precision_mode,
        "opt_level": f"O{options.opt_level}",
    }


class _Stages:
    """Runs stages and tells how long they took."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def __call__(self, name: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        if self._progress is not None:
            self._progress(name, time.perf_counter() - start)
        return result
