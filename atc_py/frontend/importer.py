"""Walks a model's nodes and builds the graph.

A node whose inputs are poisoned (their producer was wrong) is skipped, so that each mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from atc_py.errors import AtcError, Problem, Problems, error
from atc_py.frontend import codes, control, custom_ops, type_rules
from atc_py.frontend.attributes import Attributes, coerce, decode, old_defaults, resolve
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
from atc_py.ops.base import InferError
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
        place = f"node '{frame.prefix}{node.label}' ({node.spelled})"
        try:
            self._count += 1
            if self._count > MAX_NODES:
                raise error(codes.NESTING, place, f"the model's functions expand to more than {MAX_NODES} nodes")
            outputs = self._import(frame, node, leading)
            for name, value in zip(node.outputs, outputs):
                if name and value >= 0:
                    self.refiner.refine(frame, name, value, place)
        except InferError as problem:
            code = codes.ATTRIBUTE if problem.cause.startswith(("attribute ", "attributes ")) else codes.NODE
            hint = problem.hint or f"compare the node with what ONNX says of {node.op}, or export the model again"
            self.problems.add(code, place, problem.cause, hint)
        except AtcError as problem:
            self.problems.extend(problem.problems)
        except Exception as problem:
            cause = f"{type(problem).__name__}: {problem}"
            self.problems.add(codes.INNER, place, cause, "please report this with the model")
        for i, name in enumerate(node.outputs):
            if name:
                frame.names[name] = outputs[i] if i < len(outputs) else POISONED

    def _import(self, frame: Frame, node: NodeInfo, leading: int) -> Sequence[int]:
        inputs = [self.value(frame, name) for name in node.inputs]
        opset = node.version or frame.opsets.get(node.domain, 1)
        function = self.functions.get((node.domain, node.op, node.overload))
        known = function is not None or (node.op == "Constant" and not node.domain)
        found = Meaning(node.op, opset) if known else self.meaning(node.domain, node.op, opset)
        if not known and found.unknown:
            self._unknown.setdefault((node.domain, node.op, opset), []).append(f"'{frame.prefix}{node.label}'")
        if POISONED in inputs or any(self.value(frame, n) == POISONED for n in node.implicit):
            self.scan(frame, node)
            return ()
        if not known and found.unknown:
            self.scan(frame, node)
            return ()
        given = resolve(node.attributes, frame.env)
        label = self.label(frame, node)
        if function is not None:
            return self._call(frame, node, function, inputs, {**function.defaults, **given}, label)
        if known:
            constant = constant_node(given, self.files)
            name = frame.prefix + node.outputs[0] if node.outputs else label
            return [frame.scope.graph.add_const(constant, name, (label,))]
        site = Site(frame, node, found, inputs, given, leading, label)
        types = [None if v == ABSENT else frame.scope.graph.type(v) for v in inputs]
        if found.schema is not None:
            type_rules.check(type_rules.formals(node.domain, node.op, found.version), tuple(types))
        if found.extension is not None:
            return self._extension(site, found.extension)
        if isinstance(found.declared, CustomOp):
            return custom_ops.emit(site, found.declared, self.files)
        if found.declared is not None:
            return self._declared(site)
        if found.expandable:
            body = expansion(node, found, types, given)
            if body is not None:
                return self._call(frame, node, body, inputs, {**body.defaults, **given}, label)
        return self._reference(site)

    def _declared(self, site: Site) -> list[int]:
        """A declared operator: its attributes read, brought to the newest form, typed and added."""
        op, node = site.meaning.declared, site.node
        assert op is not None
        strange = [n for n in node.bodies if n not in op.bodies]
        if strange:
            raise InferError(f"attribute '{strange[0]}' is a graph, which {site.meaning.name} does not take")
        attrs = self._attributes(site)
        if op.bodies:
            return control.emit(self, site, attrs)
        draft = site.draft(attrs)
        results = adapt(draft)
        if results is not None:
            return results
        op = op if draft.op == site.meaning.name else lookup(draft.op, {})
        outputs = draft.outputs
        while outputs > site.leading and (outputs > len(op.outputs) or op.outputs[outputs - 1].endswith("?")):
            if op.outputs[-1:] and op.outputs[-1].endswith("*"):
                break
            outputs -= 1
        draft.outputs = outputs
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
        if site.meaning.schema is not None:
            for name, default in old_defaults(site.node.domain, site.node.op, site.meaning.version):
                attrs.setdefault(name, default)
        return attrs

    def _reference(self, site: Site) -> list[int]:
        """An operator that onnx's reference implementation runs, as the model writes it if no adapter knows better."""
        found = site.meaning
        if not found.reference:
            raise InferError("onnx defines no body for inputs of these types", "fix the shapes with --input-shape")
        unknown = [n for n in site.given if found.schema is not None and n not in found.schema.attributes]
        if unknown:
            raise InferError(f"attribute '{unknown[0]}' is none that {found.name} has")
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
