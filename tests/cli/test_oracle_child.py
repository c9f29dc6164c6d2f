"""Calls in a process of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from atc_py.cli.oracle import Oracle
from atc_py.cli.oracle_child import Child, Died
from atc_py.errors import AtcError, error
from tests.cli.helpers import FLOAT, model, save

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


def test_results_and_memory_stay_with_the_child() -> None:
    seen: list[int] = []

    def count(x: np.ndarray) -> tuple[int, np.ndarray]:
        seen.append(os.getpid())
        return len(seen), x + 1

    child = Child(count)
    assert child(np.zeros(2))[0] == 1
    number, value = child(np.ones(3))
    assert number == 2 and value.tolist() == [2, 2, 2] and not seen


def test_what_the_function_raises_comes_back() -> None:
    def fail(kind: str) -> None:
        if kind == "atc":
            raise error("E30001", "here", "why", "next")
        raise ValueError(kind)

    child = Child(fail)
    with pytest.raises(ValueError, match="wrong"):
        child("wrong")
    with pytest.raises(AtcError) as caught:
        child("atc")
    assert caught.value.problems[0].hint == "next"


def test_the_end_of_the_child_is_told_and_the_next_call_has_a_new_one() -> None:
    def act(number: int) -> int:
        if number:
            os.kill(os.getpid(), number)
        return os.getpid()

    child = Child(act)
    with pytest.raises(Died, match=r"signal 9 \(SIGKILL\)"):
        child(int(signal.SIGKILL))
    assert child(0) != os.getpid()
    with pytest.raises(Died, match="exit code 3"):
        Child(os._exit)(3)


def test_an_oracle_that_ends_its_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"]), tmp_path / "m.onnx")
    monkeypatch.setattr(Oracle, "_session", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(AtcError) as caught:
        Oracle(str(path), "onnxruntime").run(["y"], {"x": np.zeros(2, np.float32)})
    (problem,) = caught.value.problems
    assert problem.code == "E50002" and "SIGKILL" in problem.cause and "--oracle reference" in problem.hint
