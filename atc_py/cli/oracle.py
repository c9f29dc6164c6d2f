"""Others that run ONNX models: onnxruntime, and onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from atc_py.cli.onnx_facts import operators
from atc_py.cli.oracle_casts import casting
from atc_py.cli.oracle_child import Child, Died
from atc_py.errors import AtcError, error
from atc_py.frontend import model_file
from atc_py.ir.types import DType
from atc_py.ops.custom import CustomOp, custom
from atc_py.runtime.compare import Difference, compare_values, spread, tolerance

NAMES = ("onnxruntime", "reference")

SPREADS = 3
"""How many times its own spread an oracle is trusted to be off."""
MOST_SPREAD = 0.05
"""An oracle whose own results lie farther apart, relative to their scale, is no measure: nothing more is tolerated."""


def _listed(ops: Sequence[CustomOp]) -> str:
    return ", ".join(f"{op.name} (of {op.module})" for op in ops)


@dataclass(frozen=True)
class Judged:
    """One compared tensor (sequences and maps: their elements), and the oracle's own spread where it counted."""

    differences: list[Difference]
    spread: float | None = None

    @property
    def passed(self) -> bool:
        """Whether all parts agree."""
        return all(d.passed for d in self.differences)


class Oracle:
    """Runs one ONNX model; any tensor of its main graph can be asked for."""

    def __init__(self, path: str, kind: str) -> None:
        self.path, self.kind = Path(path), kind
        self.proto = model_file.load(path).proto
        self._sessions: dict[tuple[tuple[str, ...], bool], Any] = {}
        # onnxruntime aborts on some models and inputs.
        self._call = Child(self._run) if kind == "onnxruntime" else self._run

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""
        return [o.name for o in self.proto.graph.output]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs that have to be given."""
        constants = {t.name for t in self.proto.graph.initializer}
        return [i.name for i in self.proto.graph.input if i.name not in constants]

    @property
    def tensors(self) -> frozenset[str]:
        """The names of all tensors of the main graph."""
        graph = self.proto.graph
        made = (name for node in graph.node for name in node.output if name)
        return frozenset((*(i.name for i in graph.input), *(t.name for t in graph.initializer), *made))

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], optimized: bool = True) -> list[Any]:
        """The values of the named tensors; `optimized` says whether onnxruntime may rewrite the graph.

        Raises `AtcError` E50001 when the oracle cannot run the model, E50002 when it ends its process.
        """
        try:
            return list(self._call(list(names), self._fed(feeds), optimized))
        except AtcError:
            raise
        except Died as e:
            other = next(n for n in NAMES if n != self.kind)
            cause = f"{self.kind} ended with {e} on this model and these inputs"
            raise error("E50002", str(self.path), cause, f"try --oracle {other}, or other inputs") from e
        except Exception as e:  # what an oracle raises is its own affair
            raise self._failed(e) from e

    def _run(self, names: list[str], feeds: dict[str, Any], optimized: bool) -> Any:
        inner = tuple(n for n in dict.fromkeys(names) if n not in self.outputs)
        if (inner, optimized) not in self._sessions:
            kept = {key: s for key, s in self._sessions.items() if key[0] == inner}
            self._sessions = {**kept, (inner, optimized): self._session(inner, optimized)}
        return self._sessions[inner, optimized].run(names, feeds)

    def compare(
        self,
        names: Sequence[str],
        got: Sequence[Any],
        feeds: Mapping[str, Any],
        rtol: float | None = None,
        atol: float | None = None,
    ) -> list[Judged]:
        """Compare results with the oracle's, one entry a name.

        Where onnxruntime itself gives another result when it does not rewrite the graph, three times that spread is
        tolerated, unless a tolerance is given or the spread is beyond `MOST_SPREAD`.
        """
        want = self.run(names, feeds)
        found = [Judged(compare_values([n], [g], [w], rtol=rtol, atol=atol)) for n, g, w in zip(names, got, want)]
        if all(j.passed for j in found) or self.kind != "onnxruntime" or (rtol, atol) != (None, None):
            return found
        plain = self.run(names, feeds, optimized=False)
        for i, (name, g, w) in enumerate(zip(names, got, want, strict=True)):
            own = 0.0 if found[i].passed else spread(w, plain[i])
            if own > MOST_SPREAD:
                found[i] = Judged(found[i].differences, own)
            elif own > 0.0:
                widened = max(SPREADS * own, tolerance(DType.of(w.dtype)).atol)
                found[i] = Judged(compare_values([name], [g], [w], atol=widened), own)
        return found

    def _fed(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds that the ONNX model has, too."""
        known = {i.name for i in self.proto.graph.input}
        return {name: value for name, value in feeds.items() if name in known}

    def _session(self, inner: Sequence[str], optimized: bool) -> Any:
        return self._onnxruntime(inner, optimized) if self.kind == "onnxruntime" else self._reference(inner)

    def _with_outputs(self, inner: Sequence[str]) -> onnx.ModelProto:
        """The model with inner tensors as further outputs."""
        if not inner:
            return self.proto
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        return proto

    def _onnxruntime(self, inner: Sequence[str], optimized: bool) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Some of its kernels (DynamicQuantizeLSTM) give other results on other numbers of threads.
        options.intra_op_num_threads = 1

        def made(source: Any) -> Any:
            if isinstance(source, onnx.ModelProto):
                source = source.SerializeToString()
                folder = "session.model_external_initializers_file_folder_path"
                options.add_session_config_entry(folder, str(self.path.parent.absolute()))
            return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

        proto = self._with_outputs(inner)
        return casting(made(proto if inner else str(self.path)), proto, made)

    def _reference(self, inner: Sequence[str]) -> Any:
        from onnx.external_data_helper import load_external_data_for_model
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto()
        proto.CopyFrom(self._with_outputs(inner))
        load_external_data_for_model(proto, str(self.path.parent))
        return ReferenceEvaluator(proto)

    def _failed(self, problem: Exception) -> AtcError:
        own = [op for name in operators(self.proto) if (op := custom(name)) is not None]
        if own:
            cause = f"{self.kind} cannot run the model: only atc-py knows its custom operators {_listed(own)}"
            hint = (
                "no oracle can; keep results that you trust with 'atc golden record' and compare later ones with 'atc "
                "golden verify', or define the operator as a local function of the model, which oracles can run too"
            )
            return error("E50001", str(self.path), cause, hint)
        other = next(n for n in NAMES if n != self.kind)
        cause = f"{self.kind} cannot run the model: {type(problem).__name__}: {str(problem).strip()[:2000]}"
        return error("E50001", str(self.path), cause, f"try --oracle {other}")
