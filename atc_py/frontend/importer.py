"""Walks a model's nodes and builds the graph.

A node whose inputs are poisoned (their producer was wrong) is skipped, so that each mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from atc_py.errors import AtcError, Problem, Problems, error
from atc_py.frontend import asked, codes, control, custom_ops, type_rules
from atc_py.frontend.attributes import Attributes, coerce, decode, resolve
from atc_py.frontend.constants import constant_node
from atc_py.frontend.declared import Refiner
from atc_py.frontend.draft import ADAPTERS, adapt
from atc_py.frontend.extensions import Extension
from atc_py.frontend.frame import POISONED, Frame, Site
from atc_py.frontend.meaning import Meaning, expansion, meaning, newest_version, report
from atc_py.frontend.model_file import Model, normal_domain
from atc_py.frontend.onnx_types import text
from atc_py.frontend.tensors import any_constant
from atc_py.frontend.topology import MAX_NESTING, FunctionInfo, NodeInfo, function_of, live, undefined
from atc_py.ir.graph import ABSENT
from atc_py.ir.types import Type
from atc_py.ops.base import InferError, Op
from atc_py.ops.build import Scope, lookup
from atc_py.ops.custom import CustomOp

MAX_NODES = 2_000_000
"""Nodes that functions may be written out to."""


class Importer:
    """Imports one model; `problems` collects everything that is wrong."""

    def __init__(self, model: Model, problems: Problems) -> None:
        self.files = model.files
        self.problems = problems
        self.warnings: list[Problem] = list(model.warnings)
        self.functions: dict[tuple[str, str, str], FunctionInfo | None] = {}
        self.refiner = Refiner(self.problems, self.warnings)
        self._labels: set[str] = set()
        self._unknown: dict[tuple[str, str, int], list[str]] = {}
        self._meanings: dict[tuple[str, str, int], Meaning] = {}
        self._allowed: set[tuple[str, str, int, tuple[Type | None, ...]]] = set()
        self._count = 0
        for proto in model.proto.functions:
            self._function(proto)

    def _function(self, proto: onnx.FunctionProto) -> None:
        key = (normal_domain(text(proto.domain)), text(proto.name), text(proto.overload))
        name = "::".join(filter(None, key))
        place = f"function '{name}'"
        if key in self.functions:
            self.problems.add(codes.FUNCTION, place, "the model defines it twice")
            return
        self.functions[key] = None
        try:
            info = self.functions[key] = function_of(proto, self.problems, place)
            undefined(info.graph, self.problems)
        except AtcError as problem:
            self.problems.extend(problem.problems)

    def meaning(self, domain: str, op: str, opset: int) -> Meaning:
        """What the operator means, looked up once."""
        key = (domain, op, opset)
        found = self._meanings.get(key)
        if found is None:
            found = self._meanings[key] = meaning(*key)
        return found

    # -- names -------------------------------------------------------------------------------------------------

    def values(self, frame: Frame, names: Sequence[str]) -> list[int]:
        """The values of tensor names in a frame; see `value`."""
        known = frame.names
        return [known[n] if n in known else self.value(frame, n) for n in names]

    def value(self, frame: Frame, name: str) -> int:
        """The value of a tensor name in a frame: ABSENT for the empty name, POISONED when its producer is wrong."""
        if not name:
            return ABSENT
        found = frame.names.get(name)
        if found is None:
            found = frame.names[name] = self._initializer(frame, name)
        return found

    def _initializer(self, frame: Frame, name: str) -> int:
        proto = frame.info.initializers.get(name)
        if proto is None:
            return POISONED
        try:
            return frame.scope.graph.add_const(any_constant(proto, self.files), frame.prefix + name)
        except AtcError as problem:
            self.problems.extend(problem.problems)
            return POISONED

    def label(self, frame: Frame, node: NodeInfo) -> str:
        """A name for the node that no other node has."""
        name, i = frame.prefix + node.label, 1
        while name in self._labels:
            i += 1
            name = f"{frame.prefix}{node.label}_{i}"
        self._labels.add(name)
        return name

    # -- nodes -------------------------------------------------------------------------------------------------

    def nodes(self, frame: Frame, wanted: Sequence[str]) -> int:
        """Import what `wanted` depends on; returns how many nodes."""
        if frame.depth > MAX_NESTING:
            raise error(codes.NESTING, frame.prefix, f"functions and subgraphs nest more than {MAX_NESTING} deep")
        count = 0
        for node, leading in live(frame.info, wanted):
            self._node(frame, node, leading)
            count += 1
        return count

    def _node(self, frame: Frame, node: NodeInfo, leading: int) -> None:
        outputs: Sequence[int] = ()
        declared = frame.info.declared
        try:
            self._count += 1
            if self._count > MAX_NODES:
                cause = f"the model's functions expand to more than {MAX_NODES} nodes"
                raise error(codes.NESTING, frame.place(node), cause)
            outputs = self._asked(frame, node, leading) if node.asked else self._import(frame, node, leading)
            for name, value in zip(node.outputs, outputs):
                if name in declared and name and value >= 0:
                    self.refiner.refine(frame, node, name, value)
        except InferError as problem:
            code = codes.ATTRIBUTE if problem.cause.startswith(("attribute ", "attributes ")) else codes.NODE
            hint = problem.hint or f"compare the node with what ONNX says of {node.op}, or export the model again"
            self.problems.add(code, frame.place(node), problem.cause, hint)
        except AtcError as problem:
            self.problems.extend(problem.problems)
        except Exception as problem:
            cause = f"{type(problem).__name__}: {problem}"
            self.problems.add(codes.INNER, frame.place(node), cause, "please report this with the model")
        for i, name in enumerate(node.outputs):
            if name:
                frame.names[name] = outputs[i] if i < len(outputs) else POISONED

    def _asked(self, frame: Frame, node: NodeInfo, leading: int) -> Sequence[int]:
        """Import a node whose metadata ask something of the schedule, which goes to all that it becomes."""
        assert node.asked is not None
        node.asked.check(frame.place(node))
        graph = frame.scope.graph
        last = next(reversed(graph.nodes), -1)
        outputs = self._import(frame, node, leading)
        node.asked.give(graph, last)
        return outputs

    def _import(self, frame: Frame, node: NodeInfo, leading: int) -> Sequence[int]:
        inputs = self.values(frame, node.inputs)
        opset = node.version or frame.opsets.get(node.domain, 1)
        function = self.functions.get((node.domain, node.op, node.overload)) if self.functions else None
        found: Meaning | None = None
        if function is None and (node.op != "Constant" or node.domain):
            found = self.meaning(node.domain, node.op, opset)
            if found.unknown:
                self._unknown.setdefault((node.domain, node.op, opset), []).append(f"'{frame.prefix}{node.label}'")
        wrong = POISONED in inputs or (node.implicit and POISONED in self.values(frame, node.implicit))
        if wrong or (found is not None and found.unknown):
            self.scan(frame, node)
            return ()
        given = resolve(node.attributes, frame.env)
        label = self.label(frame, node)
        if function is not None:
            return self._call(frame, node, function, inputs, {**function.defaults, **given}, label)
        if found is None:
            constant = constant_node(given, self.files)
            name = frame.prefix + node.outputs[0] if node.outputs else label
            return [frame.scope.graph.add_const(constant, name, (label,))]
        return self._operator(Site(frame, node, found, inputs, given, leading, label))

    def _operator(self, site: Site) -> Sequence[int]:
        """A node of an operator that is neither a function of the model nor a constant."""
        frame, node, found, inputs, given = site.frame, site.node, site.meaning, site.inputs, site.given
        values = frame.scope.graph.values
        types = tuple([None if v == ABSENT else values[v].type for v in inputs])
        if found.schema is not None:
            key = (node.domain, node.op, found.version, types)
            if key not in self._allowed:
                causes = type_rules.check(found.formals, types)
                self.warnings += [Problem(codes.LATER_TYPE, frame.place(node), cause) for cause in causes[:1]]
                self._allowed.add(key)
        if found.extension is not None:
            return self._extension(site, found.extension)
        if isinstance(found.declared, CustomOp):
            return custom_ops.emit(site, found.declared, self.files)
        if found.declared is not None:
            return self._declared(site)
        if found.expandable:
            body = expansion(node, found, types, given)
            if body is not None:
                return self._call(frame, node, body, inputs, {**body.defaults, **given}, site.label)
        return self._reference(site)

    def _declared(self, site: Site) -> list[int]:
        """A declared operator: its attributes read, brought to the newest form, typed and added."""
        op, node = site.meaning.declared, site.node
        assert op is not None
        strange = next((n for n in node.bodies if n not in op.bodies), None) if node.bodies else None
        if strange is not None:
            raise InferError(f"attribute '{strange}' is a graph, which {site.meaning.name} does not take")
        attrs = self._attributes(site)
        if op.bodies:
            return control.emit(self, site, attrs)
        if not site.meaning.adapted:
            attrs, outputs = coerce(op, attrs, site.meaning.schema), _asked_for(op, len(node.outputs), site.leading)
            return site.finish(site.meaning.name, site.inputs, attrs, outputs)
        draft = site.draft(attrs)
        results = adapt(draft)
        if results is not None:
            return results
        op = op if draft.op == site.meaning.name else lookup(draft.op, {})
        draft.outputs = _asked_for(op, draft.outputs, site.leading)
        return draft.finish(draft.op, draft.inputs, coerce(op, draft.attrs, site.meaning.schema))

    def _extension(self, site: Site, found: Extension) -> list[int]:
        """An operator that onnx does not know: translated into canonical ones."""
        op, graph = found.signature, site.frame.scope.graph
        Scope.check_arity(op, len(site.inputs))
        given = coerce(op, {n: decode(a, self.files) for n, a in site.given.items()}, None)
        results = found.translate(site.draft(op.attributes(given)))
        for value, name in zip(results, site.names):
            if value >= 0 and name and value not in site.inputs:
                graph.values[value].name = name
        return results

    def _attributes(self, site: Site) -> dict[str, Any]:
        """The node's attributes, and defaults of its version where the newest version has others."""
        attrs = {n: decode(a, self.files) for n, a in site.given.items() if n not in site.node.bodies}
        for name, default in site.meaning.defaults:
            attrs.setdefault(name, default)
        return attrs

    def _reference(self, site: Site) -> list[int]:
        """An operator that onnx's reference implementation runs, as the model writes it if no adapter knows better."""
        found = site.meaning
        if not found.reference:
            raise InferError("onnx defines no body for inputs of these types", "fix the shapes with --input-shape")
        unknown = [n for n in site.given if found.schema is not None and n not in found.schema.attributes]
        if unknown:
            raise InferError(f"attribute '{unknown[0]}' is none that {found.name} has", asked.hint(unknown[0]))
        version = found.version
        draft = site.draft({n: decode(a, self.files) for n, a in site.given.items()})
        if any(version < bound for bound, _ in ADAPTERS.get(found.name, ())):
            draft.attrs = self._attributes(site)
            version = newest_version(site.node.domain, site.node.op)
            results = adapt(draft)
            if results is not None:
                return results
        marks = {"_domain": site.node.domain, "_op_type": site.node.op, "_opset": version}
        return draft.finish(found.name, draft.inputs, draft.attrs | marks)

    # -- functions ---------------------------------------------------------------------------------------------

    def _call(
        self, frame: Frame, node: NodeInfo, function: FunctionInfo, inputs: list[int], env: Attributes, label: str
    ) -> list[int]:
        """Write a function's nodes out in the caller's graph."""
        if function.key in frame.calls:
            chain = " → ".join((*frame.calls, function.key))
            raise error(codes.NESTING, node.place, f"the function calls itself: {chain}")
        graph = function.graph
        if len(inputs) > len(graph.inputs):
            raise InferError(f"{function.key} takes {len(graph.inputs)} inputs, but has {len(inputs)}")
        inputs += [ABSENT] * (len(graph.inputs) - len(inputs))
        opsets = {"": frame.opsets.get("", 1), **function.opsets}
        names = dict(zip(graph.inputs, inputs, strict=True))
        # An operator's body that onnx writes out may hold a graph of the caller, which reads the caller's tensors.
        names |= {n: self.value(frame, n) for n in graph.free if n in node.implicit}
        inner = Frame(
            frame.scope, graph, opsets, names, env, f"{label}/", frame.depth + 1, (*frame.calls, function.key)
        )
        self.nodes(inner, graph.outputs[: len(node.outputs)])
        results = [self.value(inner, name) for name in graph.outputs[: len(node.outputs)]]
        if len(results) < len(node.outputs):
            raise InferError(f"{function.key} has {len(results)} outputs, but {len(node.outputs)} are read")
        for value, name in zip(results, node.outputs):
            if value >= 0 and name and value not in inputs:
                frame.scope.graph.values[value].name = frame.prefix + name
        return results

    # -- what is not known -------------------------------------------------------------------------------------

    def scan(self, frame: Frame, node: NodeInfo) -> None:
        """Look for unknown operators in the bodies of a node that is not imported."""
        for body in node.bodies.values():
            for inner in body.nodes:
                opset = frame.opsets.get(inner.domain, 1)
                key = (inner.domain, inner.op, inner.overload)
                defined = (inner.op, inner.domain) == ("Constant", "") or self.functions.get(key) is not None
                if not defined and self.meaning(inner.domain, inner.op, opset).unknown:
                    users = self._unknown.setdefault((inner.domain, inner.op, opset), [])
                    users.append(f"'{frame.prefix}{node.label}/{inner.label}'")
                self.scan(frame, inner)

    def report_unknown(self) -> None:
        """Add the unknown operators to the problems."""
        report(self._unknown, codes.UNKNOWN_OP, self.problems)


def _asked_for(op: Op, outputs: int, leading: int) -> int:
    """How many of a node's outputs are made: optional ones, and ones that the newest form lacks, only when read."""
    while outputs > leading and (outputs > len(op.outputs) or op.outputs[outputs - 1].endswith("?")):
        if op.outputs[-1:] and op.outputs[-1].endswith("*"):
            break
        outputs -= 1
    return outputs
