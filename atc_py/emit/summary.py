"""The figures of a conversion: one JSON object, the same from `atc convert --json` and `atc inspect --json`.

nodes, tensors    before: the imported graph (its shape arithmetic already folded), after: the lowered graph;
                  Data, Const and NetOutput are not counted, the nodes of subgraphs are, a fused task is one node
symbols           what the sizes of a template may be; requirements: what they must satisfy besides
precision         how many nodes compute in which dtype, in all and by operator, and the Casts put in (`emit.precision`)
streams, events, labels     as TASK_INFO counts them: with the events that join streams where regions end
trans_data        how many tasks convert between formats
gears             of an OM with gears: each of them; the other figures are those of the largest, but for the arena,
                  which is that of the gear that needs most, and the weights, which all share
custom_ops        the operators that other modules declare, each with the module's name
memory            bytes; sums are one buffer a tensor, sizes rounded up to the arena's 512 bytes
predicted_latency_us    by the target's cost model; before: the imported graph's operators one by one on one stream,
                  after: the plan
sink              how the model is handed to the device, and how often the host launches something and waits for the
                  device in one execution
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atc_py.emit.bound import bound_formula
from atc_py.emit.precision import lists_json, precision_figures
from atc_py.emit.task_info import TaskList, weights_space
from atc_py.ir.dims import Dim, evaluate
from atc_py.ir.graph import STRUCTURAL, Graph, Node
from atc_py.ir.types import Tensor, Type, on_host
from atc_py.memory import Binding, bind
from atc_py.memory.bind import aligned
from atc_py.ops.formats import TRANS_DATA
from atc_py.plan.gears import gear_shapes, gear_values, gears_of, in_gear
from atc_py.plan.operations import custom_modules
from atc_py.plan.types import Plan, Port
from atc_py.target import Target
from atc_py.target.cost import microseconds_of

if TYPE_CHECKING:
    from atc_py.schedule.clock import Prices

FORMAT_VERSION = 1


def work_nodes(graph: Graph) -> Iterable[Node]:
    """The nodes that stand for work, those of subgraphs included, the inside of fused tasks not."""
    stack = [graph]
    while stack:
        current = stack.pop()
        for node in current.nodes.values():
            if node.op in STRUCTURAL:
                continue
            yield node
            if node.subgraphs and node.op != "Fused":
                stack.extend(node.subgraphs.values())


def counts(graph: Graph) -> tuple[int, int]:
    """Number of nodes that stand for work, and of values that they make."""
    made = [len(n.outputs) for n in work_nodes(graph)]
    return len(made), sum(made)


def sum_bytes(graph: Graph, env: Mapping[str, int]) -> int:
    """Bytes of one buffer a tensor, under `env`; tensors whose size is known only at run time count nothing."""
    total = 0
    sizes: dict[int, int] = {}  # by the types' identity: they are the graph's
    stack = [graph]
    while stack:
        current = stack.pop()
        for node in current.nodes.values():
            if node.op in STRUCTURAL:
                continue
            for v in node.outputs:
                type_ = current.values[v].type
                size = sizes.get(id(type_))
                if size is None:
                    size = sizes[id(type_)] = _nbytes(type_, env)
                total += size
            if node.subgraphs and node.op != "Fused":
                stack.extend(node.subgraphs.values())
    return total


def _nbytes(type_: Type, env: Mapping[str, int]) -> int:
    if not isinstance(type_, Tensor) or type_.shape is None or on_host(type_):
        return 0
    try:
        return aligned(evaluate(type_.nbytes, env))
    except KeyError:
        return 0


def port_json(port: Port) -> dict[str, Any]:
    """An input or output: name, dtype, shape (symbolic dims as text; None when the rank is unknown)."""
    t = port.type
    if not isinstance(t, Tensor):
        return {"name": port.name, "dtype": type(t).__name__.lower(), "shape": None}
    shape = None if t.shape is None else [str(d) if isinstance(d, Dim) else d for d in t.shape]
    return {"name": port.name, "dtype": t.dtype.value, "shape": shape}


def symbols_json(plan: Plan) -> dict[str, dict[str, int | None]]:
    """Name → lowest and highest value (None: no bound) of each symbol that the inputs' shapes give."""
    return {name: {"low": r.lo, "high": r.hi} for name, r in plan.symbols.items() if not r.runtime}


def gears_json(plan: Plan, target: Target | None) -> list[dict[str, Any]]:
    """Each gear: the inputs' shapes, bytes of its arena, how many tasks it has, and how long it takes (us)."""
    found = []
    for values in gear_values(plan):
        gear, binding = in_gear(plan, values), bind(plan, values)
        facts = {
            "symbols": values,
            "inputs": gear_shapes(plan, values),
            "arena": binding.arena,
            "lower_bound": binding.lower_bound,
            "tasks": len(list(gear.tasks())),
            "predicted_latency_us": None,
        }
        if target is not None:
            from atc_py.schedule.costs import plan_handing

            handed = plan_handing(replace(gear, hint=values), target)
            facts["predicted_latency_us"] = round(microseconds_of(handed.cycles, target), 1)
        found.append(facts)
    return found


def requirements_json(plan: Plan) -> list[str]:
    """What symbol values must always satisfy, as text, each once."""
    return list(dict.fromkeys(str(r) for r in plan.requirements if r.branch < 0))


def memory_figures(before: Graph, lowered: Graph, plan: Plan, binding: Binding | None = None) -> dict[str, Any]:
    """What the model needs of the device's memory, in bytes; `binding` is the plan's under its hint."""
    env = dict(plan.hint or {})
    binding = binding or bind(plan, env)
    tasks = list(in_gear(plan, env).tasks())
    return {
        "arena": max(plan.arena or 0, binding.arena),
        "lower_bound": binding.lower_bound,
        "sum_before": sum_bytes(before, env),
        "sum_after": sum_bytes(lowered, env),
        "weights": weights_space(plan),
        "workspace": sum(max(0, binding.sizes[t.workspace.buffer]) for t in tasks if t.workspace),
        "simulator_scratch": None,
        "bound": None if plan.arena is not None else bound_formula(plan),
    }


def task_counts(listed: TaskList) -> dict[str, int]:
    """How many streams, events and labels TASK_INFO has."""
    return {"streams": listed.streams, "events": listed.events, "labels": listed.labels}


def _execution(
    before: Graph, plan: Plan, target: Target | None, options: Mapping[str, str], prices: Prices | None
) -> dict[str, Any]:
    """How one execution is predicted to go on the target: how the model is handed over, and how long it takes."""
    if target is None:
        return {"sink": None, "predicted_latency_us": None}
    # Here, because whoever only reads recorded figures needs no scheduler.
    from atc_py.schedule.costs import latency_us, plan_handing

    handed = plan_handing(plan, target, prices)
    sink = {"mode": plan.options.get("sink", "graph"), "launches": handed.launches}
    sink["synchronisations"] = handed.synchronisations

    mode = options["precision_mode"]
    if mode == "cube_fp16in_fp32out":  # a part of the operands only: no dtype stands for another one
        from atc_py.passes.precision import in_precision

        before = in_precision(before, target, mode, lists_json(options))
    return {"sink": sink, "predicted_latency_us": latency_us(before, plan, handed, target, mode)}


def summary(
    before: Graph,
    lowered: Graph,
    plan: Plan,
    options: Mapping[str, str],
    memory: Mapping[str, Any],
    listed: TaskList,
    target: Target | None = None,
    canonical: Graph | None = None,
    prices: Prices | None = None,
) -> dict[str, Any]:
    """The figures; see the module's page. Without a target there is no predicted latency."""
    largest = in_gear(plan, plan.hint)
    tasks = list(largest.tasks())
    engines = Counter([t.engine for t in tasks])
    (nodes, tensors), (nodes_after, tensors_after) = counts(before), counts(lowered)
    return {
        "format_version": FORMAT_VERSION,
        **{k: options[k] for k in ("soc_version", "opt_level", "precision_mode")},
        "nodes": {"before": nodes, "after": nodes_after},
        "tensors": {"before": tensors, "after": tensors_after},
        "tasks": len(tasks),
        **task_counts(listed),
        "trans_data": sum([t.kernel == TRANS_DATA for t in tasks]),
        "engines": {name: engines[name] for name in ("aicore", "aicpu", "host", *(["hccl"] * ("hccl" in engines)))},
        "memory": memory,
        "hint": None if plan.static else dict(plan.hint or {}),
        "symbols": symbols_json(plan),
        "requirements": requirements_json(plan),
        **_execution(before, largest, target, options, prices),
        **({"gears": gears_json(plan, target)} if gears_of(plan) else {}),
        "precision": precision_figures(canonical or before, lowered, lists_json(options)),
        "custom_ops": custom_modules(plan),
        "inputs": [port_json(p) for p in plan.inputs],
        "outputs": [port_json(p) for p in plan.outputs],
    }
