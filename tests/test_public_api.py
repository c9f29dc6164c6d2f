"""What `from atc_py import …` offers, and that the README's lines work."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import atc_py
from tests.making import FLOAT, model, node

ROOT = Path(__file__).resolve().parent.parent


def test_every_public_name_is_there_and_documented() -> None:
    for name in atc_py.__all__:
        found = getattr(atc_py, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), name
    assert sorted(atc_py.__all__) == sorted(set(atc_py.__all__))
    assert atc_py.Session is __import__("atc_py.runtime", fromlist=["Session"]).Session


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="nothing_like_that"):
        atc_py.nothing_like_that  # noqa: B018


def test_the_version_is_the_package_s() -> None:
    from importlib import metadata

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{atc_py.__version__}"' in text
    with suppress(metadata.PackageNotFoundError):  # a checkout that is not installed
        assert metadata.version("atc-py") == atc_py.__version__


def test_the_package_is_typed() -> None:
    assert (ROOT / "atc_py/py.typed").exists() and (ROOT / "om_format/py.typed").exists()


def test_compile_write_and_run(tmp_path: Path) -> None:
    from atc_py import Options, Session, compile_model
    from atc_py.emit import write_file

    proto = model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["N", 3])}, ["y"])
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    stages: list[str] = []
    om = compile_model(
        tmp_path / "m.onnx", Options(input_shapes={"x": (2, 3)}), lambda name, seconds: stages.append(name)
    )
    assert stages == ["read", "survey", "optimize", "lower", "schedule", "verify"]
    size = write_file(om, tmp_path / "m.om")
    assert size == (tmp_path / "m.om").stat().st_size
    [y] = Session(tmp_path / "m.om").run(None, {"x": np.array([[-1, 0, 1]] * 2, np.float32)})
    assert y.tolist() == [[0, 0, 1]] * 2


def test_errors_carry_their_problems() -> None:
    from atc_py import AtcError, Problem, compile_model

    with pytest.raises(AtcError) as caught:
        compile_model(model([node("Nope", ["x"], ["a"]), node("Gone", ["a"], ["y"])], {"x": (FLOAT, [1])}, ["y"]))
    assert len(caught.value.problems) == 2, "all that is wrong is said at once"
    for problem in caught.value.problems:
        assert isinstance(problem, Problem) and problem.code and problem.place and problem.cause and problem.hint
        assert set(problem.to_json()) == {"code", "place", "cause", "hint"}
    assert caught.value.code == caught.value.problems[0].code
    for name in ("Nope", "Gone"):
        assert name in str(caught.value)


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import atc_py.emit.bundle as bundle
    from atc_py import compile_model

    om = compile_model(model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [3])}, ["y"]))
    (tmp_path / "old.om").write_bytes(b"old")

    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(bundle, "task_list", broken)
    for name in ("new.om", "old.om"):
        with pytest.raises(MemoryError):
            bundle.write_file(om, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["old.om"]
    assert (tmp_path / "old.om").read_bytes() == b"old"
