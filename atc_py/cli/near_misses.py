"""What `atc explain model.onnx` tells: a row a pass, what was left alone and why, and the way of one node."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from atc_py.cli.compiling import dumper_of, options_of
from atc_py.errors import error
from atc_py.fusion import RULES, installed
from atc_py.ops.build import lookup
from atc_py.passes import LOWER

if TYPE_CHECKING:
    from atc_py.compiler import Options
    from atc_py.emit import Om
    from atc_py.emit.stages import Journey
    from atc_py.fusion import Rule
    from atc_py.ir.graph import Graph, Node
    from atc_py.plan.types import Plan, Task


def explained(source: str, given: dict[str, Any]) -> dict[str, Any]:
    """Compile `source` and say what happened, as `docs/schema/explain.schema.json` has it."""
    from atc_py import compiler
    from atc_py.emit.stages import Figures, Journey
    from atc_py.passes import pass_names
    from atc_py.schedule.costs import priced_as
    from atc_py.target import load

    options = options_of(source, given)
    rules = pass_names(options.rules())
    if given["rule"] and given["rule"] not in rules:
        near = get_close_matches(given["rule"], rules, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"they are {', '.join(rules)}"
        raise error("E10001", "--rule", f"there is no pass or rule '{given['rule']}'", hint)
    figures = Figures(load(options.soc_version), options.input_hint or None, priced_as(options.precision_mode))
    journey = Journey(given["node"]) if given["node"] else None
    dumper = dumper_of(given)
    names: list[str] = []

    def watch(stage: str, graph: Graph, plan: Plan | None) -> None:
        if stage == "import":
            names.extend(dict.fromkeys(o for g in graph.walk() for n in g.nodes.values() for o in n.origin))
        for watcher in (figures, journey, dumper):
            if watcher is not None:
                watcher(stage, graph, plan)

    om = compiler.compile_model(source, options, watch=watch)
    facts: dict[str, Any] = {
        "format_version": 1,
        "model": source,
        "soc_version": options.soc_version,
        "opt_level": f"O{options.opt_level}",
        "precision_mode": options.precision_mode,
        "predicted_latency_us": om.summary["predicted_latency_us"],
        "stages": [row.to_json() for row in figures.rows],
        "left_alone": [d for d in left_alone(om) if given["rule"] in (None, d["rule"], d["pass"])],
    }
    if journey is not None:
        facts["node"] = _node(om, journey, names, options)
    return facts


def left_alone(om: Om) -> list[dict[str, Any]]:
    """Every rewrite that was considered and not made: the pass, the rule, the node and the reason, each once."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in om.report.to_json():
        for d in row["declined"]:
            entry = {"pass": row["pass"], **d}
            found.setdefault(tuple(map(str, entry.values())), entry)
    return list(found.values())


def _node(om: Om, journey: Journey, names: list[str], options: Options) -> dict[str, Any]:
    """What became of a node. Raises `AtcError` E20031 for a name that the model does not have."""
    from atc_py.emit.stages import standing_for

    nodes = standing_for(om.lowered, journey.name)
    if not any(found for _, found in journey.steps) and not nodes and journey.name not in names:
        near = get_close_matches(journey.name, names, 3, 0.5)
        hint = f"near: {', '.join(near)}" if near else "'atc inspect --tasks' of the OM shows the nodes' names"
        raise error("E20031", f"--node {journey.name}", "no node of the model has this name", hint)
    return {
        "name": journey.name,
        "steps": [{"stage": stage, "as": list(found)} for stage, found in journey.steps],
        "tasks": [{**_task(om, node), "left_alone": _told(om, node, journey, options)} for node in nodes],
    }


def _told(om: Om, node: Node, journey: Journey, options: Options) -> list[str]:
    """Why the node's task is no larger: what it was told, what others were told of it, or that no rule looked at it."""
    stages = [p.name for p in LOWER]
    later = {f"lower/{name}" for name in stages[stages.index("fusion") :]} | {"lower", "schedule"}
    before = [found for stage, found in journey.steps if stage not in later]
    told, name = list(node.notes), f"'{journey.name}' is not fused: "
    if node.op != "Fused" and not (before and node.op in before[-1]):
        return told  # fusion itself or a later pass has made it
    for d in left_alone(om):
        if name in d["reason"] and f"{d['rule']}: {d['reason']}" not in told:
            told.append(f"{d['rule']} at {d['node']}: {d['reason']}")
    rules = [r for r in (*RULES, *installed(), *options.rules()) if r.name not in options.lower_options().disabled]
    if node.op == "Fused" or any(t.startswith((f"{r.name}: ", f"{r.name} at ")) for t in told for r in rules):
        return told
    return told + _unconsidered(node, options, rules)


def _unconsidered(node: Node, options: Options, rules: list[Rule]) -> list[str]:
    """That no fusion rule had anything to say of the node, with those that know its operator."""
    if options.opt_level < next(p.level for p in LOWER if p.name == "fusion"):
        return [f"fusion does not run at O{options.opt_level}"]
    if "fusion" in options.lower_options().disabled:
        return ["fusion is turned off"]
    op = lookup(node.op, node.attrs)
    known = [f"{r.name} (takes it as {' or '.join(roles)}: {r.doc})" for r in rules if (roles := r.roles(op))]
    why = f"no neighbour may join it by those there are: {'; '.join(known)}" if known else "none knows the operator"
    return [f"no fusion rule considers {node.op} here: {why}"]


def _task(om: Om, node: Node) -> dict[str, Any]:
    """A node of the lowered graph that stands for the one in question, with the task that it became."""
    from atc_py.emit.attrs import type_text
    from atc_py.emit.stages import described
    from atc_py.ir.types import Tensor
    from atc_py.target.cost import microseconds_of

    task: Task | None = None
    if om.plans and node.outputs:
        task = next((t for t in om.plans[0].tasks() for o in t.outputs if o.value == node.outputs[0]), None)
    results = []
    for value in node.outputs:
        type_ = om.lowered.type(value) if value in om.lowered.values else None
        if type_ is not None:
            form = type_.storage_format.value if isinstance(type_, Tensor) and type_.shape is not None else "–"
            results.append({"type": type_text(type_), "format": form})
    cost = None if task is None or om.target is None else round(microseconds_of(task.cost, om.target), 2)
    return {
        "operators": described(node),
        "engine": node.engine,
        "precision": node.precision,
        "task": None if task is None else task.id,
        "stream": None if task is None else task.stream,
        "predicted_us": cost,
        "results": results,
        "stands_for": list(node.origin),
    }
