"""ONNX models with one thing changed that makes no sense, or makes another: and what the compiler does with them.

python -m tests.onnx_mutations FOLDER FIRST COUNT     as `tests.mutations` does it, with the models in FOLDER
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, TypeProto, helper

from atc_py.errors import AtcError
from tests.mutations import OPERATORS, try_each

LARGE = 1 << 25
NUMBERS = (0, 1, 2, 3, -1, -2, 7, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
KINDS = (
    AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING, AttributeProto.TENSOR, AttributeProto.GRAPH,
    AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS,
)  # fmt: skip


def _graphs(graph: GraphProto) -> list[GraphProto]:
    found = [graph]
    for inner in found:
        found += [a.g for n in inner.node for a in n.attribute if a.HasField("g")]
    return found


def _operator(graph: GraphProto, rng: random.Random) -> None:
    if graph.node:
        rng.choice(graph.node).op_type = rng.choice(OPERATORS)


def _input(graph: GraphProto, rng: random.Random) -> None:
    nodes = [n for n in graph.node if n.input]
    if not nodes:
        return
    node = rng.choice(nodes)
    names = [v for n in graph.node for v in (*n.input, *n.output)] + [i.name for i in graph.initializer] + [""]
    action = rng.random()
    if action < 0.6:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif action < 0.8:
        del node.input[rng.randrange(len(node.input))]
    else:
        node.input.append(rng.choice(names))


def _output(graph: GraphProto, rng: random.Random) -> None:
    nodes = [n for n in graph.node if n.output]
    if nodes:
        node = rng.choice(nodes)
        names = [v for n in graph.node for v in n.output] + ["", "new"]
        if rng.random() < 0.6:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        else:
            node.output.append(rng.choice(names))


def _attribute(graph: GraphProto, rng: random.Random) -> None:
    found = [(n, a) for n in graph.node for a in n.attribute]
    if not found:
        return
    node, a = rng.choice(found)
    action = rng.random()
    if action < 0.15:
        node.attribute.remove(a)
    elif action < 0.25:
        a.name = rng.choice([b.name for _, b in found])
    elif action < 0.35:
        a.type = rng.choice(KINDS)
    elif a.ints:
        k = rng.randrange(len(a.ints))
        a.ints[k] = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            a.ints.append(rng.choice(NUMBERS))
    elif a.HasField("s"):
        a.s = rng.choice([b"", b"x", b"\xff", b"NOTSET", b"SAME_UPPER", b"linear", b"reflect"])
    elif a.HasField("f"):
        a.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38])
    else:
        a.i = rng.choice(NUMBERS)


def _initializer(graph: GraphProto, rng: random.Random) -> None:
    if not graph.initializer:
        return
    t: TensorProto = rng.choice(graph.initializer)
    action = rng.random()
    if action < 0.4 and t.dims:
        t.dims[rng.randrange(len(t.dims))] = rng.choice(NUMBERS)
    elif action < 0.6:
        t.data_type = rng.randrange(-1, 30)
    elif action < 0.8 and t.raw_data:
        t.raw_data = t.raw_data[: rng.randrange(len(t.raw_data))]
    elif t.raw_data:
        raw = bytearray(t.raw_data)
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        t.raw_data = bytes(raw)
    elif t.dims:
        del t.dims[:]


def _declared(graph: GraphProto, rng: random.Random) -> None:
    infos = [*graph.input, *graph.output, *graph.value_info]
    if not infos:
        return
    info = rng.choice(infos)
    tensor: TypeProto.Tensor = info.type.tensor_type
    action = rng.random()
    if action < 0.3:
        tensor.elem_type = rng.randrange(-1, 30)
    elif action < 0.7 and tensor.shape.dim:
        dim = rng.choice(tensor.shape.dim)
        if rng.random() < 0.5:
            dim.dim_value = rng.choice(NUMBERS)
        else:
            dim.dim_param = rng.choice(["N", "M", "", "N+1", "batch"])
    elif action < 0.8:
        info.type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2])))
    elif action < 0.9:
        info.name = rng.choice([i.name for i in infos])
    else:
        tensor.shape.dim.add(dim_value=rng.choice(NUMBERS))


def _order(graph: GraphProto, rng: random.Random) -> None:
    nodes = list(graph.node)
    action = rng.random()
    if action < 0.4:
        rng.shuffle(nodes)
    elif nodes and action < 0.7:
        del nodes[rng.randrange(len(nodes))]
    elif nodes:
        nodes.append(rng.choice(nodes))
    copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


CHANGES: tuple[Callable[[GraphProto, random.Random], None], ...] = (
    _operator, _input, _output, _attribute, _attribute, _initializer, _declared, _order,
)  # fmt: skip


def mutated(data: bytes, seed: int) -> tuple[str, bytes]:
    """What was changed, and the model's bytes."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        raw = bytearray(data)
        for _ in range(rng.choice([1, 2, 4])):
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 255, rng.randrange(256)])
        return "bytes", bytes(raw)
    model = ModelProto.FromString(data)
    kind = ""
    for _ in range(rng.choice([1, 1, 2])):
        change = rng.choice(CHANGES)
        kind += change.__name__
        with suppress(ValueError, TypeError):  # protobuf refuses some values
            change(rng.choice(_graphs(model.graph)), rng)
    if rng.random() < 0.05:
        model.opset_import[0].version = rng.choice([0, 1, 6, 7, 12, 13, 99, -1])
    return kind, model.SerializeToString()


def everything(data: bytes) -> str:
    """Convert, load and run; the stages that worked. Raises whatever is no AtcError."""
    import onnx
    from google.protobuf.message import DecodeError

    from atc_py import Options, Session, compile_model
    from atc_py.emit import om_bytes
    from atc_py.runtime.feeds import random_feeds

    try:
        proto = onnx.load_from_string(data)
    except DecodeError:
        return "no model"
    done: list[str] = []
    for level in (0, 2):
        try:
            om = compile_model(proto, Options(opt_level=level))
            session: Any = Session(om_bytes(om))
            done.append("convert")
            if _small(om):
                session.run(None, random_feeds(session.plan.inputs, dict(session.plan.hint or {})))
                done.append("run")
        except AtcError as e:
            done.append(e.code)
    return ", ".join(done)


def _small(om: Any) -> bool:
    """Whether a run takes no time: a larger size that makes sense is a larger model, not a fault."""
    sizes = [[d if isinstance(d, int) else 16 for d in p["shape"] or ()] for p in om.summary["inputs"]]
    return om.summary["memory"]["sum_after"] < LARGE and sum(math.prod(s) for s in sizes) < LARGE >> 5


if __name__ == "__main__":
    try_each(Path(sys.argv[1]), "*.onnx", int(sys.argv[2]), int(sys.argv[3]), mutated, everything)
