"""ATC's fusion switch files: both forms, names of ours and of ATC, and what is unknown or wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from atc_py import compile_model
from atc_py.compiler import Options
from atc_py.errors import AtcError
from atc_py.fusion import RULES
from atc_py.fusion.switches import KNOWN, read_switches
from atc_py.passes import LOWER, OPTIMIZE, pass_names
from tests.making import FLOAT, model, node

PASSES = [p.name for p in (*OPTIMIZE, *LOWER) if p.level > 0]
NAMES = [r.name for r in RULES]


def off(tmp_path: Path, content: object) -> tuple[set[str], tuple[str, ...]]:
    path = tmp_path / "switch.cfg"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    found = read_switches(path, PASSES, NAMES)
    return set(found.off), found.unknown


def test_lines(tmp_path: Path) -> None:
    text = "# ours and ATC's\nSoftmaxFusionPass:off\n\ncse : off\nTbeMatmulElemwiseFusionPass:off\nnorms:on\n"
    assert off(tmp_path, text) == ({"gates", "cse", "conv_epilogue"}, ())


def test_json_and_all(tmp_path: Path) -> None:
    tree = {"Switch": {"GraphFusion": {"cse": "on", "ALL": "off", "SoftmaxFusionPass": "on"}, "UBFusion": {}}}
    assert off(tmp_path, tree) == (set(PASSES) - {"cse", "gates"}, ())
    tree = {"Switch": {"UBFusion": {"ALL": "off", "pooling": "on"}}}
    assert off(tmp_path, tree) == (set(NAMES) - {"pooling"}, ())
    assert off(tmp_path, "ALL:off")[0] == set(PASSES) | set(NAMES)


def test_unknown_names_are_listed_and_have_no_effect(tmp_path: Path) -> None:
    assert off(tmp_path, "FooFusionPass:off\nBarPass:on\nFooFusionPass:off\n") == (set(), ("FooFusionPass", "BarPass"))


def test_every_name_of_atc_stands_for_names_of_ours() -> None:
    assert {n for names in KNOWN.values() for n in names} <= set(pass_names())


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("SoftmaxFusionPass", "expected NAME:on or NAME:off, found 'SoftmaxFusionPass'"),
        ("cse:maybe", "expected on or off, found 'maybe'"),
        ("{", "this is no JSON"),
        ({"switch": {}}, "it has no object 'Switch'"),
        ({"Switch": {"Graph": {}}}, "expected the objects GraphFusion and UBFusion"),
        ({"Switch": {"UBFusion": {"cse": 1}}}, "expected on or off, found 1"),
    ],
)
def test_wrong_files(tmp_path: Path, content: object, cause: str) -> None:
    with pytest.raises(AtcError) as caught:
        off(tmp_path, content)
    assert caught.value.problems[0].code == "E20051" and cause in caught.value.problems[0].cause


def test_a_conversion_obeys_and_warns(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [3, 4])}, ["y"], {"w": np.ones((4, 4), np.float32)})
    path = tmp_path / "switch.cfg"
    path.write_text("TbeMatmulElemwiseFusionPass:off\nvector_chain:off\nprologue:off\nFooPass:off", encoding="utf-8")
    assert "Fused" in [t.kernel for t in compile_model(proto).plan.tasks()]
    om = compile_model(proto, Options(fusion_switch_file=path))
    assert "Fused" not in [t.kernel for t in om.plan.tasks()]
    [warning] = om.warnings
    assert warning.code == "W20051" and "FooPass" in warning.cause
    with pytest.raises(AtcError, match="cannot be read"):
        compile_model(proto, Options(fusion_switch_file=tmp_path / "none"))
