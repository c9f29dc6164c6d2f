"""In which dtypes a plan computes: figures of the lowered graph.

    {"dtypes": {"float16": 53, "float32": 2},  "operators": {"Conv": {"float16": 20}, "Exp": {"float32": 1}, …},
     "casts": 3,  "lists": null}

Nodes are counted one by one, those inside fused tasks and subgraphs too, Casts not; a dtype is what the units' operands
have. "casts" are those that the precision mode has put in; "lists" what --modify-mixlist and --keep-dtype said.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from atc_py.ir.graph import STRUCTURAL, Graph
from atc_py.ir.types import DType, Tensor

_NO_WORK = STRUCTURAL | {"Fused", "Cast", "TransData", "TensorMove"}


def precision_figures(canonical: Graph, lowered: Graph, lists: dict[str, Any] | None) -> dict[str, Any]:
    """The figures; see the module's page."""
    found: Counter[tuple[str, str | DType]] = Counter()
    casts = 0
    for graph in lowered.walk():
        values = graph.values
        for node in graph.nodes.values():
            if node.op == "Cast":
                casts += 1
            elif node.op not in _NO_WORK and node.outputs:
                type_ = values[node.outputs[0]].type
                dtype = node.precision or (type_.dtype if isinstance(type_, Tensor) else "")
                if dtype:
                    found[node.op, dtype] += 1
    operators: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for (op, dtype), count in found.items():
        name = dtype.value if isinstance(dtype, DType) else dtype
        operators.setdefault(op, Counter())[name] += count
        total[name] += count
    return {
        "dtypes": dict(sorted(total.items())),
        "operators": {op: dict(sorted(dtypes.items())) for op, dtypes in sorted(operators.items())},
        "casts": max(0, casts - _casts(canonical)),
        "lists": lists,
    }


def lists_json(options: Mapping[str, str]) -> dict[str, Any] | None:
    """What the lists said, of the options that an OM records."""
    said = options.get("precision_lists")
    found: dict[str, Any] | None = None if said is None else json.loads(said)
    return found


def _casts(graph: Graph) -> int:
    return sum([node.op == "Cast" for inner in graph.walk() for node in inner.nodes.values()])
