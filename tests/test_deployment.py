"""What an OM needs to run: neither onnx nor the compiler, and little time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atc_py import Options, compile_model
from atc_py.emit import write_file
from tests.making import FLOAT, model, node

ROOT = Path(__file__).resolve().parent.parent
BARRED = (
    *("onnx", "onnxruntime", "click", "rich", "threadpoolctl", "google.protobuf.json_format"),
    *(f"atc_py.{room}" for room in ("frontend", "passes", "fusion", "schedule", "emit", "compiler", "backend")),
    *("atc_py.cli", "atc_py.report", "atc_py.target", "atc_py.plan.verify", "atc_py.plan.flow"),
)
SUPPORT = {"base", "build", "evaluate", "index"}
"""Modules of `ops` that hold no family."""


def python(code: str, *arguments: object) -> Any:
    """Run a program in a fresh process; it prints one line of JSON last."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


RUN = """
import json, sys
import numpy as np
from atc_py import Session
session = Session(sys.argv[1])
shapes = json.loads(sys.argv[2])
for shape in shapes:
    results = session.run(None, {session.get_inputs()[0].name: np.ones(shape, np.float32)})
print(json.dumps([sorted(sys.modules), [list(r.shape) for r in results]]))
"""


def loaded_modules(om: Path, *shapes: Sequence[int]) -> tuple[list[str], list[list[int]]]:
    modules, results = python(RUN, om, json.dumps(shapes))
    return modules, results


def barred(modules: Sequence[str]) -> list[str]:
    return [m for m in modules if any(m == b or m.startswith(f"{b}.") for b in BARRED)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The small CNN, with a fixed shape and with a symbolic batch."""
    folder = tmp_path_factory.mktemp("small")
    paths = folder / "static.om", folder / "template.om"
    source = ROOT / "models/small_cnn.onnx"
    write_file(compile_model(source, Options(input_shapes={"x": (1, 3, 32, 32)})), paths[0])
    write_file(compile_model(source), paths[1])
    return paths


def families(modules: Sequence[str]) -> set[str]:
    """The families of `ops` whose operators are known."""
    from atc_py.ops.index import INDEX

    own = {m.removeprefix("atc_py.ops.") for m in modules if m.startswith("atc_py.ops.")}
    return own & set(INDEX.values())


def test_a_static_plan_runs_without_onnx_and_compiler(small: tuple[Path, Path]) -> None:
    modules, results = loaded_modules(small[0], (1, 3, 32, 32))
    assert results == [[1, 10]]
    assert barred(modules) == []


def test_new_shapes_are_bound_without_onnx_and_compiler(small: tuple[Path, Path]) -> None:
    modules, results = loaded_modules(small[1], (2, 3, 32, 32), (5, 3, 32, 32), (2, 3, 32, 32))
    assert results == [[2, 10]]
    assert barred(modules) == []


def test_only_the_families_that_a_plan_uses_are_imported(tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["a"]), node("Softmax", ["a"], ["y"])], {"x": (FLOAT, ["N", 4])}, ["y"])
    write_file(compile_model(proto, Options(opt_level=0)), tmp_path / "m.om")
    modules, _ = loaded_modules(tmp_path / "m.om", (3, 4))
    from atc_py.ops.index import INDEX

    direct = {INDEX["Relu"], INDEX["Softmax"]}
    assert direct <= families(modules)
    unneeded = {INDEX[op] for op in ("Conv", "LSTM", "Resize", "NonMaxSuppression", "StringSplit", "Attention", "If")}
    assert not families(modules) & (unneeded - direct)


def test_a_plan_with_control_flow_needs_no_compiler(tmp_path: Path) -> None:
    write_file(compile_model(ROOT / "models/corpus/scan_rnn.onnx"), tmp_path / "m.om")
    code = """
import json, sys
import numpy as np
from atc_py import Session
session = Session(sys.argv[1])
feeds = {i.name: np.ones([d if isinstance(d, int) else 2 for d in i.shape], np.float32) for i in session.get_inputs()}
session.run(None, feeds)
print(json.dumps(sorted(sys.modules)))
"""
    assert barred(python(code, tmp_path / "m.om")) == []


def test_weights_below_eight_bits_need_ml_dtypes_and_others_do_not(small: tuple[Path, Path]) -> None:
    modules, _ = loaded_modules(small[0], (1, 3, 32, 32))
    assert "ml_dtypes" not in modules


def test_the_command_line_runs_an_om_without_onnx(small: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3, 32, 32), np.float32))
    code = """
import json, sys
from atc_py.cli import main
sys.argv = ["atc", "run", sys.argv[1], "--input", sys.argv[2], "--json"]
try:
    main()
except SystemExit as e:
    assert not e.code, e.code
print()
print(json.dumps(sorted(sys.modules)))
"""
    modules = python(code, small[0], tmp_path / "x.npy")
    wanted = ("onnx", "onnxruntime", "atc_py.frontend", "atc_py.passes", "atc_py.fusion", "atc_py.schedule")
    assert [m for m in modules if any(m == b or m.startswith(f"{b}.") for b in (*wanted, "atc_py.compiler"))] == []


TIMES = """
import json, sys, time
import numpy
start = time.perf_counter()
import atc_py
imported = time.perf_counter()
from atc_py import Session
session_class = time.perf_counter()
Session(sys.argv[1])
loaded = time.perf_counter()
print(json.dumps([imported - start, session_class - imported, loaded - session_class]))
"""


@pytest.mark.slow  # a busy machine would make it fail
def test_the_import_takes_no_time(small: tuple[Path, Path]) -> None:
    rows = [python(TIMES, small[0]) for _ in range(5)]
    imported, session_class, loaded = (min(column) * 1e3 for column in zip(*rows, strict=True))
    print(f"import atc_py {imported:.1f} ms, Session {session_class:.1f} ms, loading a small OM {loaded:.1f} ms")
    assert imported < 150
    assert session_class < 300, "the runtime has become heavy: see python -X importtime"
