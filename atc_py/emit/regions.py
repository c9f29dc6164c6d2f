"""Which part of a plan each graph of MODEL_DEF is, and what its control nodes say of the regions that they are.

    root: x, c = …; y = If(c){ t = Relu(x) }{ e = Neg(x) }      values 0–4, and 0–2 of each branch
    the plan's numbers                                          0–4 as they are, then- branch 5–7, else- branch 8–10

The plan numbers the values of all graphs one after the other, each graph's before those of the graphs inside it, the
bodies in the order of the regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atc_py.emit.attrs import attrs_bytes, fields
from atc_py.emit.task_info import UNBOUND, control_numbers, place
from atc_py.ir.graph import Graph, Node
from atc_py.plan.types import (
    Gears,
    Host,
    If,
    Loop,
    Operand,
    Plan,
    Region,
    Scan,
    Static,
    Task,
    children,
    own_operands,
    walk,
)
from om_format.proto.ge_ir_pb2 import OpDef

LABELS, DECIDES = "_label_switch_list", "_switched_by"
"""Attributes of a control node: the labels that its switch jumps to, and what decides to which."""
COUNT, VALUES = "_batch_num", "_pred_value_"
"""Attributes of gears: how many there are, and the beginning of the names of their values."""


@dataclass(frozen=True)
class Control:
    """A node that is a region: the region's number, and its own operands by the values of the node's graph."""

    number: int
    region: Region
    operands: Mapping[int, Operand]


@dataclass(frozen=True)
class Part:
    """One graph in the plan: the tasks and the regions of its nodes, by the nodes' ids."""

    tasks: Mapping[int, Task]
    controls: Mapping[int, Control]


def parts_of(graph: Graph, plan: Plan) -> dict[int, Part]:
    """The parts of a lowered graph and of the bodies of its control nodes, by the graphs' identities."""
    numbers = control_numbers(plan)
    found: dict[int, Part] = {}
    base = 0
    stack = [_Body(graph, plan.regions, _writers(plan.regions), {})]
    while stack:
        body = stack.pop()
        inner, ends = body.graph, body.ends
        number = {v: ends.get(v, base + v) for v in inner.values}
        nodes = {number[n.outputs[0]]: n for n in inner.nodes.values() if n.outputs}
        controls: dict[int, Control] = {}
        bodies: list[_Body] = []
        for region in body.regions:
            node = None if isinstance(region, (Static, Host)) else _node_of(region, nodes)
            if node is None:
                continue
            own = {o.value: o for o in own_operands(region)}
            ports = {v: own[n] for v in (*node.inputs, *node.outputs) if (n := number.get(v)) in own}
            controls[node.id] = Control(numbers[id(region)], region, ports)
            bodies += _bodies(region, node, body.writers, number)
        writers = body.writers
        tasks = {n.id: writers[v] for v, n in nodes.items() if v in writers and n.id not in controls}
        found[id(inner)] = Part(tasks, controls)
        base += max(inner.values, default=-1) + 1
        stack += reversed(bodies)
    return found


@dataclass(frozen=True)
class _Body:
    """A graph, its regions, and which task writes each number; `ends` are values that are numbered elsewhere."""

    graph: Graph
    regions: Sequence[Region]
    writers: Mapping[int, Task]
    ends: Mapping[int, int]


def _writers(regions: tuple[Region, ...]) -> dict[int, Task]:
    lists = [(r.task,) if isinstance(r, Host) else r.tasks for r in walk(regions) if isinstance(r, (Static, Host))]
    return {o.value: t for tasks in lists for t in tasks for o in t.outputs}


def _node_of(region: Region, nodes: Mapping[int, Node]) -> Node | None:
    """The node that a region is, by the number of what it makes; of gears, the node that has their graphs."""
    if isinstance(region, (If, Loop, Scan)):
        return nodes[region.outputs[0].value]
    bodies = len(children(region))
    return next((n for n in nodes.values() if n.op != "Fused" and len(n.subgraphs) == bodies), None)


def _bodies(region: Region, node: Node, writers: Mapping[int, Task], number: Mapping[int, int]) -> list[_Body]:
    """The bodies of a control node in the order of the region's."""
    if not isinstance(region, Gears):
        names = sorted(node.subgraphs, reverse=True)  # the then branch comes first
        return [
            _Body(node.subgraphs[name], inner, writers, {}) for name, inner in zip(names, children(region), strict=True)
        ]
    # Gears have their ends in common: each writes the model's outputs under the numbers that these have outside.
    bodies = []
    for graph, inner in zip(node.subgraphs.values(), region.bodies, strict=True):
        pairs = (*zip(graph.inputs, node.inputs), *zip(graph.outputs, node.outputs))
        bodies.append(_Body(graph, inner, _writers(inner), {v: number[outer] for v, outer in pairs}))
    return bodies


def control_attrs(control: Control, plan: Plan, switches: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
    """What a control node says of its switch: its labels, and the values that decide, as `counter arena+512`.

    An If reads its condition. A Loop goes on while its counter is below its trips and its condition holds: the
    first iteration's is `condition`, that of the others `next_condition`. A Scan counts its slices. Gears are chosen by
    the inputs' sizes: the values of the symbols in each gear are GE's `_pred_value_N`.
    """
    region, deciding = control.region, {}
    gears: dict[str, Any] = {}
    if isinstance(region, Gears):
        gears = {COUNT: len(region.gears)}
        gears |= {f"{VALUES}{k}": list(values) for k, values in enumerate(region.gears)}
    elif isinstance(region, If):
        deciding = {"condition": region.predicate}
    elif isinstance(region, Loop):
        names = ("trips", "counter", "condition", "next_condition")
        deciding = {name: operand for name in names if (operand := getattr(region, name)) is not None}
    said = {name: place(plan, operand) for name, operand in deciding.items()}
    texts = [f"{name} {space}" + ("" if at == UNBOUND else f"+{at}") for name, (space, at) in said.items()]
    shown: dict[str, Any] = gears | ({DECIDES: texts} if texts else {})
    return shown | ({LABELS: switches[control.number]} if control.number in switches else {})


def differing(op: OpDef, said: Mapping[str, Any]) -> list[str]:
    """The attributes of a control node that are not those that `control_attrs` says, or that it has besides."""
    made = OpDef.FromString(attrs_bytes(fields(OpDef)["attr"], said))
    own = {name for name in op.attr if name in (LABELS, DECIDES, COUNT) or name.startswith(VALUES)}
    return sorted(n for n in own | set(made.attr) if n not in own or n not in made.attr or op.attr[n] != made.attr[n])


def read_first(region: Region) -> list[Operand | None]:
    """The operands of an If, a Loop or a Scan that its node's first inputs are, in their order."""
    if isinstance(region, If):
        return [region.predicate]
    initial = [c.initial for c in region.carried] if isinstance(region, (Loop, Scan)) else []
    if isinstance(region, Loop):
        return [region.trips, region.condition, *initial]
    return [*initial, *[whole for whole, _, _, _ in region.sliced]] if isinstance(region, Scan) else []
