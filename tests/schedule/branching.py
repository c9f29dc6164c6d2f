"""Models whose branches can run side by side, and other orders of a plan's tasks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto

from atc_py.plan.happens import predecessors, successors
from atc_py.plan.types import Plan, Static
from tests.making import FLOAT, model, node


def towers(count: int = 2, depth: int = 6, side: int = 16, channels: int = 16) -> ModelProto:
    """Towers of convolutions over one image each, joined at the end: small tasks, which are mostly launches."""
    rng = np.random.default_rng(0)
    nodes, constants, ends, inputs = [], {}, [], {}
    for t in range(count):
        value = f"x{t}"
        inputs[value] = (FLOAT, [1, channels, side, side])
        for k in range(depth):
            name = f"t{t}_{k}"
            constants[f"w{name}"] = np.float32(rng.standard_normal((channels, channels, 3, 3)) / 12)
            nodes += [
                node("Conv", [value, f"w{name}"], [f"c{name}"], pads=[1, 1, 1, 1], name=f"conv_{name}"),
                node("Relu", [f"c{name}"], [f"r{name}"], name=f"relu_{name}"),
            ]
            value = f"r{name}"
        nodes.append(node("GlobalAveragePool", [value], [f"g{t}"]))
        ends.append(f"g{t}")
    nodes += [node("Concat", ends, ["j"], axis=1), node("Sigmoid", ["j"], ["y"])]
    return model(nodes, inputs, ["y"], constants)


def feeds_of(proto: ModelProto, seed: int = 0) -> dict[str, Any]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in proto.graph.input:
        shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
        found[value.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def shuffled(plan: Plan, seed: int) -> Plan:
    """The plan with the tasks of its outermost lists in another order that streams and events allow."""
    rng = random.Random(seed)
    return replace(plan, regions=tuple(_shuffled(r, rng) if isinstance(r, Static) else r for r in plan.regions))


def _shuffled(region: Static, rng: random.Random) -> Static:
    after = successors(region.tasks)
    left = [len(before) for before in predecessors(region.tasks)]
    ready = [i for i, n in enumerate(left) if not n]
    order: list[int] = []
    while ready:
        i = ready.pop(rng.randrange(len(ready)))
        order.append(i)
        for j in after[i]:
            left[j] -= 1
            if not left[j]:
                ready.append(j)
    return Static(tuple(region.tasks[i] for i in order))
