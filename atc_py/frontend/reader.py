"""`read`: an ONNX model as a graph of the IR, checked, its shape arithmetic folded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import onnx

from atc_py.errors import AtcError, Problem, Problems, error
from atc_py.frontend import codes, inputs, model_file
from atc_py.frontend.fold import fold_known
from atc_py.frontend.frame import POISONED, Frame
from atc_py.frontend.importer import Importer
from atc_py.frontend.model_file import Model
from atc_py.frontend.topology import GraphInfo, graph_of, undefined
from atc_py.ir.graph import Graph
from atc_py.ir.order import canonicalize
from atc_py.ops.build import Scope


@dataclass(frozen=True)
class ReadOptions:
    """`input_shapes`: see `frontend.inputs`. `out_nodes`: tensor names or `node:index` that become the outputs instead.

    `folder` is where external data of a model given in memory lies.
    """

    input_shapes: Mapping[str, Sequence[inputs.Item]] | None = None
    out_nodes: Sequence[str] = ()
    folder: Path | None = None


@dataclass
class Imported:
    """A graph and what was noticed on the way (codes W…)."""

    graph: Graph
    warnings: list[Problem] = field(default_factory=list)


def read(source: str | os.PathLike[str] | bytes | onnx.ModelProto, options: ReadOptions | None = None) -> Graph:
    """The model's graph: canonical operators, types inferred, known shape arithmetic folded, canonical order.

    Initializers that are inputs too are constants, unless `input_shapes` names them. Raises one `AtcError` with
    everything that is wrong or not supported.
    """
    return import_model(source, options).graph


def import_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, options: ReadOptions | None = None
) -> Imported:
    """Like `read`, with the warnings."""
    try:
        return _import(source, options or ReadOptions())
    except AtcError:
        raise
    except Exception as problem:
        place = str(source) if isinstance(source, (str, os.PathLike)) else "the model"
        cause = f"{type(problem).__name__}: {problem}"
        raise error(codes.INNER, place, cause, "please report this with the model") from problem


def _import(source: str | os.PathLike[str] | bytes | onnx.ModelProto, options: ReadOptions) -> Imported:
    model = model_file.load(source, options.folder)
    problems = Problems()
    importer = Importer(model, problems)
    info = graph_of(model.proto.graph, problems, name=_plain(model.proto.graph.name))
    undefined(info, problems)
    if "" in info.inputs or "" in info.outputs:
        problems.add(codes.UNDEFINED, model.place, "an input or output of the graph has no name")
    outputs = _outputs(info, options.out_nodes, problems)
    for name in (n for n, count in Counter(outputs).items() if count > 1):
        cause = f"{Counter(outputs)[name]} outputs of the graph have this name"
        problems.add(codes.DEFINED_TWICE, f"output '{name}'", cause, "give each output a name of its own (Identity)")
    if not outputs and not len(problems):
        raise error(codes.NO_NODE, model.place, "the graph has no outputs", "export a model that returns something")
    scope = Scope(Graph(_plain(model.proto.graph.name)))
    frame = Frame(scope, info, model.opsets)
    _add_inputs(importer, frame, options.input_shapes or {})
    imported = importer.nodes(frame, outputs)
    values = [importer.value(frame, name) for name in outputs]
    importer.report_unknown()
    problems.raise_any()
    if POISONED in values:
        raise error(
            codes.INNER, f"output '{outputs[values.index(POISONED)]}'", "it was not made, and no reason is known"
        )
    scope.graph.set_outputs(values, outputs)
    if imported < len(info.nodes) and not options.out_nodes:
        cause = f"{len(info.nodes) - imported} of {len(info.nodes)} nodes reach no output and were left out"
        importer.warnings.append(Problem(codes.DEAD_NODES, model.place, cause))
    scope.graph.doc = _doc(model)
    return Imported(_finish(scope), importer.warnings)


def _finish(scope: Scope) -> Graph:
    graph = scope.graph
    fold_known(graph, scope)
    canonicalize(graph)
    return graph


def _add_inputs(importer: Importer, frame: Frame, shapes: Mapping[str, Sequence[inputs.Item]]) -> None:
    """Data nodes for the inputs that are no constants."""
    info = frame.info
    for name in [n for n in info.initializers if n in info.inputs]:
        if name in shapes:
            del info.initializers[name]
        else:
            del info.inputs[name]
    found = inputs.resolve(info.inputs, shapes, importer.problems)
    frame.scope.graph.symbols.update(found.symbols)
    importer.warnings += found.warnings
    importer.refiner.reshaped = found.changed
    for name in info.inputs:
        if name in found.types:
            frame.names[name] = frame.scope.graph.add_input(name, found.types[name])
        else:
            frame.names[name] = POISONED


def _outputs(info: GraphInfo, asked: Sequence[str], problems: Problems) -> list[str]:
    """The tensors that become the graph's outputs."""
    if not asked:
        return list(info.outputs)
    tensors = {*info.inputs, *info.initializers, *(o for n in info.nodes for o in n.outputs if o)}
    nodes = {n.label: n for n in reversed(info.nodes)}
    found: list[str] = []
    for text in asked:
        if text in tensors:
            found.append(text)
            continue
        label, _, index = text.rpartition(":")
        node = nodes.get(label)
        if node is not None and index.isdecimal() and int(index) < len(node.outputs) and node.outputs[int(index)]:
            found.append(node.outputs[int(index)])
            continue
        if node is not None:
            hint = f"node '{label}' has the outputs {', '.join(f'{label}:{i}' for i in range(len(node.outputs)))}"
        else:
            near = get_close_matches(text, sorted(tensors), 3) + get_close_matches(label or text, sorted(nodes), 2)
            near = list(dict.fromkeys(near))  # a tensor and its node often have one name
            hint = f"similar names: {', '.join(near)}" if near else "name a tensor, or a node and an output index"
        problems.add(codes.OUT_NODE, f"output '{text}'", "the model has no such tensor or node output", hint)
    return found


def _doc(model: Model) -> dict[str, str]:
    """Facts about the file that people ask for."""
    proto = model.proto
    doc = {
        "producer": " ".join(filter(None, map(_plain, (proto.producer_name, proto.producer_version)))),
        "ir_version": str(proto.ir_version),
        "opsets": ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in sorted(model.opsets.items())),
        "description": proto.doc_string,
    }
    doc |= {
        f"metadata.{key}": value
        for key, value in sorted((_plain(p.key), _plain(p.value)) for p in proto.metadata_props)
    }
    return {_plain(k): _plain(v) for k, v in doc.items() if v}


def _plain(item: str | bytes) -> str:
    """Text of the file that nothing depends on."""
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item
