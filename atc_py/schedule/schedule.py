"""`schedule`: order, places, tasks and regions, and for a static graph the addresses.

Input: a lowered graph (each node has an engine). Output: a Plan that `atc_py.plan.verify` can prove and
`atc_py.npu` can run. One stream; the order is the graph's canonical one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atc_py.ir.graph import Graph
from atc_py.memory import bind
from atc_py.plan.types import Plan, Space
from atc_py.schedule.costs import with_costs
from atc_py.schedule.frames import insert_copies, lay_out
from atc_py.schedule.hint import default_hint, plan_hint
from atc_py.schedule.places import place
from atc_py.schedule.pool import Pool
from atc_py.schedule.regions import regions
from atc_py.schedule.requirements import requirements
from atc_py.target import Target


@dataclass(frozen=True)
class ScheduleOptions:
    """`target` is the SoC's name; `hint` gives symbols the values at which figures are evaluated.

    With `soc`, the target itself, each task gets its cost.
    """

    target: str = "Ascend310P3"
    hint: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    soc: Target | None = None


def schedule(graph: Graph, options: ScheduleOptions | None = None) -> Plan:
    """Make the plan of a lowered graph; the graph gets copies where two outputs would share bytes."""
    options = options or ScheduleOptions()
    insert_copies(graph)
    frame, _ = lay_out(graph)
    places = place(frame)
    pool = Pool(places, graph.symbols)
    body = regions(pool, frame)
    inputs = pool.ports(graph.inputs, [graph.values[v].name for v in graph.inputs])
    outputs = pool.ports(graph.outputs, graph.output_names)
    weights_nbytes = pool.place_weights()
    static = all(r.runtime for r in graph.symbols.values())
    needs = requirements(frame)
    hint = plan_hint(default_hint(graph, options.hint), needs, graph.symbols, tuple(options.hint))
    plan = Plan(
        target=options.target,
        symbols=dict(graph.symbols),
        buffers=tuple(pool.buffers),
        constants=tuple(pool.constants),
        inputs=inputs,
        outputs=outputs,
        regions=body,
        weights_nbytes=weights_nbytes,
        options=dict(options.options),
        hint=None if static else hint,
        aliases=tuple(a for a in places.aliases if pool.has_buffer(a.value)),
        initial=pool.initial(),
        requirements=needs,
    )
    if options.soc is not None:
        plan = with_costs(plan, options.soc)
    return _bound(plan) if static else plan


def _bound(plan: Plan) -> Plan:
    binding = bind(plan)
    buffers = tuple(replace(b, offset=binding.offsets[b.id]) if b.space is Space.ARENA else b for b in plan.buffers)
    return replace(plan, buffers=buffers, arena=binding.arena)
