"""The table of contents of the system: from a model to an OM.

om = compile_model("model.onnx", Options(input_shapes={"x": (1, 3, 224, 224)}))
write_file(om, "model.om")
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atc_py import collector, frontend
from atc_py.emit import Om
from atc_py.errors import AtcError, Problem, Problems, error
from atc_py.frontend import model_file
from atc_py.frontend.codes import NODE
from atc_py.frontend.gears import Gearing, given_gears, option_text, read_gears
from atc_py.frontend.inputs import whole
from atc_py.fusion import Rule, load_all
from atc_py.fusion.switches import Switches, read_switches
from atc_py.ir.clone import clone
from atc_py.ir.dims import Size
from atc_py.ir.graph import Graph
from atc_py.ir.types import Type
from atc_py.memory import EFFORTS, Binding, Effort, bind
from atc_py.ops import plugins
from atc_py.passes import (
    LOWER,
    OPTIMIZE,
    LowerOptions,
    Observer,
    OptimizeOptions,
    Report,
    check_options,
    lower,
    optimize,
    pass_names,
)
from atc_py.passes.mixlist import NO_LISTS, PrecisionLists, check_nodes
from atc_py.plan.gears import GEAR_LISTS, gear_list, gear_values, list_text
from atc_py.plan.live import violated
from atc_py.plan.types import Plan, Requirement
from atc_py.plan.verify import verify
from atc_py.schedule import (
    MOST_STREAMS,
    SINKS,
    STREAMS,
    ScheduleOptions,
    graph_hint,
    live_hints,
    schedule_priced,
)
from atc_py.schedule.gears import GearSizes, joined, merged
from atc_py.target import Target, load

if TYPE_CHECKING:
    import onnx

Progress = Callable[[str, float], None]
"""Called at the end of each stage with its name and its seconds."""
Watch = Callable[[str, Graph, Plan | None], None]
"""Shown the graph as it comes from each stage (`import`, `optimize`, `lower`, `schedule`, this one with the plan), and
from each pass that changes it (`optimize/cse`). It must not change the graph."""


@dataclass(frozen=True)
class Options:
    """What a conversion may be told; the names are those of the command line.

    `input_shapes` gives inputs other shapes (ints, -1, `"1~10"` ranges, or symbol names), `input_hint` the values of
    symbols at which figures are evaluated, `out_nodes` other outputs, `custom_ops` modules that declare operators (see
    `atc_py.custom.load`), `precision_lists` operators and nodes that the precision mode treats in another way (see
    `atc_py.passes.mixlist.read_lists`). `stream_num` is how many streams there may be, `sink` how the model is handed
    to the device (`graph`, `subgraph`, `op`: see `atc_py.schedule.sink`), `memory_effort` how far the allocator goes
    for a static plan (`fast`, `default`, `max`: see `atc_py.memory`). `fusion_rules` are modules with rules of the
    user's own (see `atc_py.fusion.plugins`), `fusion_switch_file` ATC's list of passes that are off (see
    `atc_py.fusion.switches`); an `Options` reads both once, a conversion reads them anew.

    One of `dynamic_batch_size`, `dynamic_image_size` (height, width) and `dynamic_dims` (a value for each dim that
    varies) lists the sizes that the model is compiled for, each by itself: see `atc_py.frontend.gears`.
    """

    input_shapes: Mapping[str, Sequence[Size | str | None]] = field(default_factory=dict)
    input_hint: Mapping[str, int] = field(default_factory=dict)
    out_nodes: Sequence[str] = ()
    soc_version: str = "Ascend310P3"
    precision_mode: str = "origin"
    precision_lists: PrecisionLists = NO_LISTS
    opt_level: int = 2
    disabled_passes: frozenset[str] = frozenset()
    fold_limit: int | None = None
    debug: bool = False
    stream_num: int = STREAMS
    single_stream: bool = False
    sink: str = "graph"
    memory_effort: Effort = "default"
    custom_ops: Sequence[str | Path] = ()
    fusion_rules: Sequence[str | Path] = ()
    fusion_switch_file: str | Path | None = None
    dynamic_batch_size: Sequence[int] = ()
    dynamic_image_size: Sequence[Sequence[int]] = ()
    dynamic_dims: Sequence[Sequence[int]] = ()

    def gears(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The lists of sizes that are given, by the option's name: tuples of one size, of two, of any number.

        Raises `AtcError` E10001 for what is none.
        """
        return given_gears({name: getattr(self, name) for name in GEAR_LISTS})

    def optimize_options(self) -> OptimizeOptions:
        """The part that `optimize` reads."""
        extra: dict[str, Any] = {} if self.fold_limit is None else {"fold_limit": self.fold_limit}
        rules, off = self.rules(), self.switches().off | self.disabled_passes
        return OptimizeOptions(level=self.opt_level, disabled=off, debug=self.debug, rules=rules, **extra)

    def rules(self) -> tuple[Rule, ...]:
        """The fusion rules of the modules that are given. Raises `AtcError` E20050."""
        return self._rules

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        return load_all(self.fusion_rules, pass_names()) if self.fusion_rules else ()

    def switches(self) -> Switches:
        """What the fusion switch file turns off. Raises `AtcError` E20051."""
        return self._switches

    @cached_property
    def _switches(self) -> Switches:
        if self.fusion_switch_file is None:
            return Switches()
        optional = [p.name for p in (*OPTIMIZE, *LOWER) if p.level > 0]
        rules = [name for name in pass_names(self.rules()) if name not in {p.name for p in (*OPTIMIZE, *LOWER)}]
        return read_switches(self.fusion_switch_file, optional, rules)

    def lower_options(self, hint: Mapping[str, int] | None = None) -> LowerOptions:
        """The part that `lower` reads; it counts with the sizes of `hint` where they are known."""
        return LowerOptions(
            level=self.opt_level,
            disabled=self.switches().off | self.disabled_passes,
            debug=self.debug,
            rules=self.rules(),
            precision_mode=self.precision_mode,
            precision_lists=self.precision_lists,
            input_hint=self.input_hint if hint is None else hint,
        )

    def schedule_options(self, target: Target) -> ScheduleOptions:
        """The part that `schedule` reads."""
        return ScheduleOptions(
            target.name,
            self.input_hint,
            {"precision_mode": self.precision_mode, "sink": self.sink, "memory_effort": self.memory_effort},
            target,
            stream_num=self.stream_num,
            single_stream=self.single_stream,
            joins=self.opt_level > 0,
            memory_effort=self.memory_effort,
        )


@collector.paused()
def compile_model(
    model: str | Path | onnx.ModelProto,
    options: Options | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Om:
    """Compile an ONNX model. Raises `AtcError` with everything that is wrong with it."""
    options = replace(options or Options())  # files that it names are read anew for each conversion, once
    target, stage = _prepared(options), _Stages(progress, watch)
    return _with_gears(model, options, target, stage) if options.gears() else _compiled(model, options, target, stage)


def _compiled(model: str | Path | onnx.ModelProto, options: Options, target: Target, stage: _Stages) -> Om:
    """The OM of a model for the sizes of `options.input_shapes`."""
    graph, before, report, warnings = _canonical(model, options, stage)
    om = _back_end(graph, before, report, options, target, stage)
    om.warnings = (*warnings, *om.warnings)
    return om


def _canonical(
    model: str | Path | onnx.ModelProto, options: Options, stage: _Stages
) -> tuple[Graph, Graph, Report, Sequence[Problem]]:
    """The canonical graph, the imported one, and what the importer and the passes have to say."""
    reading = frontend.ReadOptions(options.input_shapes, tuple(options.out_nodes))
    imported = stage("read", lambda: frontend.import_model(model, reading))
    graph = imported.graph
    check_nodes(options.precision_lists, graph)
    before = stage("survey", lambda: clone(graph))
    stage.show("import", graph)
    return graph, before, stage.optimize(graph, options), imported.warnings


def _with_gears(model: str | Path | onnx.ModelProto, options: Options, target: Target, stage: _Stages) -> Om:
    """The OM of a model for each set of sizes that `options` lists: one plan with gears, each compiled by itself.

    The figures are those of the largest gear. What is wrong is told for all gears at once. The canonical graph has
    the sizes that vary as symbols, so that the OM can be compiled again for others.
    """
    gearing = read_gears(model_file.load(model).proto, options.input_shapes, options.gears())
    hinted = [s for s in options.input_hint if s in gearing.symbols]
    if hinted:
        cause = (
            f"{', '.join(hinted)} has its sizes from {option_text(gearing.option)}, at which all figures are evaluated"
        )
        raise error("E10001", "--input-hint-shape", cause, "leave it out")
    plain = replace(options, dynamic_batch_size=(), dynamic_image_size=(), dynamic_dims=())
    oms = _each_gear(model, plain, gearing, target, stage)
    any_size, warnings = stage("any size", lambda: _any_size(model, plain, stage.silent()))
    sizes = GearSizes(gearing.symbols, gearing.gears, gearing.names, gearing.types, _output_types(any_size))
    graphs = [om.lowered for om in oms]
    plan = _listed(merged([om.plan for om in oms], graphs, sizes, {gearing.option: ""}))
    om = oms[next(k for k, gear in enumerate(gear_values(plan)) if gear == plan.hint)]
    made = Om(om.name, any_size or om.canonical, om.lowered, [plan], om.before, om.report, om.options, target=target)
    made.binding = stage("verify", lambda: prove(plan))
    made.drawn = joined(graphs, plan)
    made.embed_canonical = any_size is not None
    made.warnings = tuple(dict.fromkeys([w for o in oms for w in o.warnings])) + warnings
    return made


def _listed(plan: Plan) -> Plan:
    """The plan with its gears among its options, in the order of its inputs."""
    found = gear_list(plan)
    assert found is not None
    return replace(plan, options={**plan.options, found[0]: list_text(*found)})


def _each_gear(
    model: str | Path | onnx.ModelProto, options: Options, gearing: Gearing, target: Target, stage: _Stages
) -> list[Om]:
    """The OM of each gear by itself."""
    wrong, oms = dict[str, Sequence[Problem]](), list[Om]()
    for name, shapes in zip(gearing.names, gearing.shapes, strict=True):
        fixed = replace(options, input_shapes={**options.input_shapes, **shapes})
        try:
            oms.append(stage(name, partial(_compiled, model, fixed, target, stage.silent())))
        except AtcError as e:
            wrong[name] = e.problems
    if wrong:
        raise AtcError(*_of_gears(wrong, gearing, _needed(model, options, target, stage.silent())))
    return oms


def _of_gears(
    wrong: Mapping[str, Sequence[Problem]], gearing: Gearing, needed: Sequence[Requirement] | None
) -> list[Problem]:
    """The problems of all gears under their names.

    `needed` is what the model asks of its sizes, None where it cannot be compiled for any size. A node that other sizes
    go through is right: what is wrong with it in a gear is the gear's sizes.
    """
    failing = [{p.place for p in problems if p.code == NODE} for problems in wrong.values()]
    in_all = set.intersection(*failing) if needed is None and len(wrong) == len(gearing.gears) else set()
    told = []
    for name, gear in [(n, g) for n, g in zip(gearing.names, gearing.gears) if n in wrong]:
        asked = next(iter(violated(needed or (), dict(zip(gearing.symbols, gear)))), None)
        why = "" if asked is None else f": node '{asked.place}' needs {asked}"
        hint = f"the sizes of this gear do not go through the model{why}; leave this gear out"
        for p in wrong[name]:
            place = f"{name}: {p.place}" if p.place else name
            told.append(replace(p, place=place, hint=hint if p.code == NODE and p.place not in in_all else p.hint))
    return told


def _needed(
    model: str | Path | onnx.ModelProto, options: Options, target: Target, stage: _Stages
) -> Sequence[Requirement] | None:
    """What a model asks of its sizes in every run; None where it cannot be compiled for any size."""
    try:
        plan = _compiled(model, options, target, stage).plan
    except AtcError:
        return None
    return [r for r in plan.requirements if r.branch < 0]


def _any_size(
    model: str | Path | onnx.ModelProto, options: Options, stage: _Stages
) -> tuple[Graph | None, tuple[Problem, ...]]:
    """The canonical graph of a model whose sizes are open; a warning says why there is none."""
    try:
        return _canonical(model, options, stage)[0], ()
    except AtcError as e:
        cause = f"the OM cannot be compiled again: without fixed sizes, {e.problems[0].place}: {e.problems[0].cause}"
        return None, (Problem("W20003", "canonical graph", cause, "convert the model again for other gears"),)


def _output_types(graph: Graph | None) -> dict[str, Type]:
    return {} if graph is None else {n: graph.type(v) for n, v in zip(graph.output_names, graph.outputs)}


def as_toolkit(options: Options) -> Options:
    """The options under which the plan is, as far as we know, the one that the target's own toolkit makes."""
    toolkit = load(options.soc_version).toolkit
    if toolkit is None:
        return options
    lacks = options.disabled_passes | frozenset(toolkit.lacks)
    return replace(options, disabled_passes=lacks, stream_num=min(options.stream_num, toolkit.streams))


def compile_structure(model: onnx.ModelProto, options: Options) -> Om:
    """Compile a model of which only the structure counts, for predictions of time: its weights need not be there.

    Whole shapes in `options.input_shapes` may differ from what the file fixes (see `atc_py.frontend.skeleton`). Raises
    `AtcError` as `compile_model` does.
    """
    from atc_py.frontend.skeleton import skeleton

    fixed = {name: whole for name, shape in options.input_shapes.items() if (whole := _whole(shape)) is not None}
    others = {name: shape for name, shape in options.input_shapes.items() if name not in fixed}
    return compile_model(skeleton(model, fixed), replace(options, input_shapes=others))


def _whole(shape: Sequence[Size | str | None]) -> list[int] | None:
    """A shape of sizes only; None where a dim is anything else."""
    sizes = [size for d in shape if (size := whole(d)) is not None and size >= 0]
    return sizes if len(sizes) == len(shape) else None


@collector.paused()
def compile_graph(
    graph: Graph, options: Options | None = None, progress: Progress | None = None, watch: Watch | None = None
) -> Om:
    """Compile a graph of the IR, as `atc_py.graph.Builder` makes it; the graph itself is left as it is.

    Of the options, those that speak of an ONNX model (`input_shapes`, `out_nodes`, gears) do not apply. Raises
    `AtcError`.
    """
    options = replace(options or Options())  # files that it names are read anew for each conversion, once
    target = _prepared(options)
    stage = _Stages(progress, watch)
    check_nodes(options.precision_lists, graph)
    made = clone(graph)
    stage.show("import", made)
    report = stage.optimize(made, options)
    return _back_end(made, clone(graph), report, options, target, stage)


@collector.paused()
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
    options = replace(options)
    level = options.opt_level if recorded is None else int(str(recorded["opt_level"])[1:])
    _check_recompilation(options, level)
    target = _prepared(options)
    stage = _Stages(progress)
    graph, report = clone(canonical), Report()
    if options.opt_level > level:
        report = stage.optimize(graph, options)
    return _back_end(graph, clone(canonical), report, options, target, stage)


def _prepared(options: Options) -> Target:
    """Everything about the options that can be wrong is wrong before any work is done; returns the target."""
    _check_kinds(options)
    check_options(options.optimize_options(), options.lower_options())
    _check_schedule(options)
    for source in options.custom_ops:
        plugins.load(source)
    return load(options.soc_version)


def _check_kinds(options: Options) -> None:
    """What the command line gives in the right types, and Python need not."""
    problems = Problems()
    if whole(options.opt_level) is None:
        cause = f"{options.opt_level!r} is no integer"
        problems.add("E20002", "opt_level", cause, "the levels are the integers 0, 1, 2 and 3, e.g. opt_level=2")
    shapes: object = options.input_shapes
    if isinstance(shapes, Mapping):
        for name in [n for n, s in shapes.items() if isinstance(s, (str, bytes)) or not isinstance(s, Iterable)]:
            cause = f"its shape is {shapes[name]!r}, which is no sequence of sizes"
            problems.add("E10002", f"input '{name}'", cause, 'give a tuple, e.g. input_shapes={"x": (1, 3, 224, 224)}')
    else:
        cause = f"{shapes!r} is no mapping"
        problems.add("E10002", "input_shapes", cause, 'give a dict, e.g. input_shapes={"x": (1, 3, 224, 224)}')
    problems.raise_any()


def _check_schedule(options: Options) -> None:
    problems = Problems()
    if options.sink not in SINKS:
        problems.add("E10001", "--sink", f"'{options.sink}' is none of {', '.join(SINKS)}", "")
    if options.memory_effort not in EFFORTS:
        problems.add("E10001", "--memory-effort", f"'{options.memory_effort}' is none of {', '.join(EFFORTS)}", "")
    if not 1 <= options.stream_num <= MOST_STREAMS:
        cause = f"{options.stream_num} is outside 1 to {MOST_STREAMS}"
        problems.add("E10001", "--stream-num", cause, "leave it out: streams are taken only where they help")
    problems.raise_any()


def _check_recompilation(options: Options, level: int) -> None:
    problems = Problems()
    hint = "convert the ONNX model with this option"
    if options.opt_level < level:
        cause = f"the graph in the OM was optimized at O{level}, which O{options.opt_level} cannot undo"
        problems.add("E20004", "--opt-level", cause, hint)
    if options.input_shapes:
        problems.add("E20004", "--input-shape", "the graph in the OM was made for the shapes that it has", hint)
    for name in options.gears():
        cause = "the graph in the OM is compiled for the sizes that come, not for a list of them"
        problems.add("E20004", option_text(name), cause, hint)
    if options.out_nodes:
        problems.add("E20004", "--out-nodes", "the graph in the OM holds only what its own outputs need", hint)
    problems.raise_any()


def _back_end(graph: Graph, before: Graph, report: Report, options: Options, target: Target, stage: _Stages) -> Om:
    lowered = clone(graph)
    lowering = stage.lower(lowered, target, options)
    how = options.schedule_options(target)
    scheduled = stage("schedule", lambda: schedule_priced(lowered, how))
    plan = scheduled.plan
    stage.show("schedule", lowered, plan)
    binding = stage("verify", lambda: prove(plan, least=scheduled.least))
    text = options_text(options, target)
    om = Om(graph.name, graph, lowered, [plan], before, report.then(lowering), text, target=target)
    om.binding, om.prices = binding, scheduled.prices
    switched = options.switches().warnings(str(options.fusion_switch_file))
    om.warnings = (*switched, *lowering.warnings, *_fits(om, target))
    return om


def _fits(om: Om, target: Target) -> tuple[Problem, ...]:
    """A warning when the model needs more memory than the target has."""
    memory = om.memory
    needed = memory["arena"] + memory["weights"]
    if needed <= target.memory:
        return ()
    cause = f"arena and weights take {needed:,} bytes, {target.name} has {target.memory:,}"
    return (Problem("W20001", "memory", cause, "use smaller shapes, or a target with more memory"),)


def prove(plan: Plan, env: Mapping[str, int] | None = None, least: int = 0) -> Binding:
    """Bind the plan (under `env`, or its hint) and prove it; raises `AtcError` with each violation.

    Gears are proved one by one. A branch that is dead under the hint is proved under other values for which it is
    alive, if such can be found. Returns the first binding; `least` is a lower bound of the arena under its values, as
    `bind` takes it.
    """
    first: Binding | None = None
    for values in _proved_at(plan) if env is None else (env,):
        binding = bind(plan, values, least=least if first is None else 0)
        verify(plan, binding.offsets, binding.sizes, binding.env)
        first = first or binding
    assert first is not None
    return first


def _proved_at(plan: Plan) -> list[Mapping[str, int]]:
    hint = plan.hint or {}
    others = [values for values in gear_values(plan) if values != hint]
    return [hint, *(others or live_hints(plan))]


def options_text(options: Options, target: Target) -> dict[str, str]:
    """The options that the OM records; a target by its name, for the path of its file is this machine's."""
    lists = options.precision_lists
    said = {} if lists == NO_LISTS else {"precision_lists": json.dumps(lists.to_json(), sort_keys=True)}
    return {
        "soc_version": target.name,
        "precision_mode": options.precision_mode,
        "opt_level": f"O{options.opt_level}",
        **said,
    }


class _Stages:
    """Runs stages, tells how long they took, and shows what came of them."""

    def __init__(self, progress: Progress | None, watch: Watch | None = None) -> None:
        self._progress, self._watch = progress, watch

    def silent(self) -> _Stages:
        """For the stages of a part: they are shown, but how long each took is not told."""
        return _Stages(None, self._watch)

    def optimize(self, graph: Graph, options: Options) -> Report:
        """The target-independent passes, in place."""
        report: Report = self("optimize", lambda: optimize(graph, options.optimize_options(), self._observer()))
        self.show("optimize", graph)
        return report

    def lower(self, graph: Graph, target: Target, options: Options) -> Report:
        """The target's passes, in place; they count with the sizes at which figures are evaluated."""
        how = options.lower_options(graph_hint(graph, options.input_hint))
        report: Report = self("lower", lambda: lower(graph, target, how, self._observer()))
        self.show("lower", graph)
        return report

    def show(self, stage: str, graph: Graph, plan: Plan | None = None) -> None:
        """Show a graph to whoever watches."""
        if self._watch is not None:
            self._watch(stage, graph, plan)

    def _observer(self) -> Observer | None:
        watch = self._watch
        return None if watch is None else lambda stage, graph: watch(stage, graph, None)

    def __call__(self, name: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = run()
        if self._progress is not None:
            self._progress(name, time.perf_counter() - start)
        return result
