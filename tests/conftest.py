"""What every room's tests share: catalogued models, onnxruntime as an oracle, repeatable randomness."""

from __future__ import annotations

import os

# Workers share the cores: a BLAS with threads of its own would only wait for itself. Before numpy loads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import onnx
import pytest

from models import catalog
from models.randomize import source

# The tally of onnx's backend tests at the end of a run. Named here, because the process that starts xdist's workers
# loads no conftest of a folder below.
pytest_plugins = ("tests.backend.tally",)

# The same examples in every run: a failure in CI is the failure that one gets at home.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@dataclass(frozen=True)
class CorpusModel:
    """A model that lies on this machine."""

    entry: catalog.Entry
    path: Path

    @property
    def source(self) -> Path | onnx.ModelProto:
        """What to convert: the file, or the model with seeded weights where its own say nothing."""
        return source(self.entry, self.path)

    def inputs(self, alt: bool = False, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """Valid inputs; with `alt`, of the second size of the dynamic axes."""
        return catalog.make_inputs(self.entry, self.path, alt=alt, seed=seed)


@pytest.fixture(scope="session")
def corpus_model() -> Callable[[str], CorpusModel]:
    """`corpus_model(id)`: a model of models/manifest.toml; skips the test, saying why, where it is absent.

    Models of kind `repo` are never absent: that one is damaged is a failure.
    """

    def get(model_id: str) -> CorpusModel:
        entry = catalog.get(model_id)
        path, reason = catalog.find(model_id)
        if path is None:
            (pytest.fail if entry.kind == "repo" else pytest.skip)(reason)
        return CorpusModel(entry, path)

    return get


@pytest.fixture(scope="session")
def run_onnxruntime() -> Callable[..., dict[str, Any]]:
    """`run_onnxruntime(model, feeds, optimize=True)`: outputs by name; model: path, bytes or ModelProto."""
    import onnxruntime

    def run(model: Any, feeds: Mapping[str, Any], optimize: bool = True) -> dict[str, Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # errors only
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
        source = str(source) if isinstance(source, Path) else source
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run
