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
from atc_py.errors import Problem, Problems
from atc_py.ir.clone import clone
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph
from atc_py.memory import bind
from atc_py.ops import plugins
from atc_py.passes import LowerOptions, OptimizeOptions, Report, check_options, lower, optimize
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
    symbols at which figures are evaluated, `out_nodes` other outputs, `custom_ops` modules that declare operators (see
    `atc_py.custom.load`).
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
    custom_ops: Sequence[str | Path] = ()

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
    target = _prepared(options)
    stage = _Stages(progress)
    reading = frontend.ReadOptions(options.input_shapes, tuple(options.out_nodes))
    imported = stage("read", lambda: frontend.import_model(model, reading))
    graph = imported.graph
    before = stage("survey", lambda: clone(graph))
    report = stage("optimize", lambda: optimize(graph, options.optimize_options()))
    om = _back_end(graph, before, report, options, target, stage)
    om.warnings = (*imported.warnings, *om.warnings)
    return om


def recompile(
    canonical: Graph,
    options: Options,
    progress: Progress | None = None,
    *,
    recorded: Mapping[str, Any] | None = None,
) -> Om:
    """Compile a canonical graph, as an OM holds it, for the target, precision and layout of `options`.

    `recorded` are the options that the OM records of its own conversion: a higher level optimizes the graph further.
    Raises `AtcError` E20004 for each option that only the ONNX model can meet.
    """
    level = options.opt_level if recorded is None else int(str(recorded["opt_level"])[1:])
    _check_recompilation(options, level)
    target = _prepared(options)
    stage = _Stages(progress)
    graph, report = clone(canonical), Report()
    if options.opt_level > level:
        report = stage("optimize", lambda: optimize(graph, options.optimize_options()))
    return _back_end(graph, clone(canonical), report, options, target, stage)


def _prepared(options: Options) -> Target:
    """Everything about the options that can be wrong is wrong before any work is done; returns the target."""
    check_options(options.optimize_options(), options.lower_options())
    for source in options.custom_ops:
        plugins.load(source)
    return load(options.soc_version)


def _check_recompilation(options: Options, level: int) -> None:
    problems = Problems()
    hint = "convert the ONNX model with this option"
    if options.opt_level < level:
        cause = f"the graph in the OM was optimized at O{level}, which O{options.opt_level} cannot undo"
        problems.add("E20004", "--opt-level", cause, hint)
    if options.input_shapes:
        problems.add("E20004", "--input-shape", "the graph in the OM was made for the shapes that it has", hint)
    if options.out_nodes:
        problems.add("E20004", "--out-nodes", "the graph in the OM holds only what its own outputs need", hint)
    problems.raise_any()


def _back_end(graph: Graph, before: Graph, report: Report, options: Options, target: Target, stage: _Stages) -> Om:
    lowered = clone(graph)
    lowering = stage("lower", lambda: lower(lowered, target, options.lower_options()))
    how = ScheduleOptions(target.name, options.input_hint, {"precision_mode": options.precision_mode}, target)
    plan = stage("schedule", lambda: schedule(lowered, how))
    stage("verify", lambda: prove(plan))
    text = options_text(options, target)
    om = Om(graph.name, graph, lowered, [plan], before, report.then(lowering), text, target=target)
    om.warnings = _fits(om, target)
    return om


def _fits(om: Om, target: Target) -> tuple[Problem, ...]:
    """A warning when the model needs more memory than the target has."""
    memory = om.memory
    needed = memory["arena"] + memory["weights"]
    if needed <= target.memory:
        return ()
    cause = f"arena and weights take {needed:,} bytes, {target.name} has {target.memory:,}"
    return (Problem("W20001", "memory", cause, "use smaller shapes, or a target with more memory"),)


def prove(plan: Plan, env: Mapping[str, int] | None = None) -> None:
    """Bind the plan (under `env`, or its hint) and prove it; raises `AtcError` with each violation.

    A branch that is dead under the hint is proved under other values for which it is alive, if such can be found.
    """
    for values in (plan.hint or {}, *live_hints(plan)) if env is None else (env,):
        binding = bind(plan, values)
        verify(plan, binding.offsets, binding.sizes, binding.env)


def options_text(options: Options, target: Target) -> dict[str, str]:
    """The options that the OM records; a target by its name, for the path of its file is this machine's."""
    return {
        "soc_version": target.name,
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
