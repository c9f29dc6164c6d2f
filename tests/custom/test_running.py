"""Custom operators through the whole path: what passes do, what is told when they misbehave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from atc_py import Options, Session, compile_model
from atc_py.compiler import recompile
from atc_py.custom import load
from atc_py.emit import Om, om_bytes
from atc_py.errors import AtcError
from atc_py.runtime.loader import load as load_om
from tests.cli.helpers import atc, codes, save, valid
from tests.custom.helpers import clean, write  # noqa: F401
from tests.making import DOUBLE, FLOAT, INT64, STRING, graph, model, node

pytestmark = pytest.mark.usefixtures("clean")

PLAIN = """
op = declare("acme::Op", inputs="X Z?", outputs="Y", attrs={"k": Attr("float", 2.0), "name": Attr("str", None)}%s)

@op.infer
def _(n):
    return n.tensor(0)

@op.kernel
def _(call, x, z=None):
    y = x * x.dtype.type(call.attrs["k"])
    return y if z is None else y + z
"""
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def acme(name: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return node(name, inputs, outputs, domain="acme", **attrs)


def module(path: Path, text: str) -> Path:
    file = write(path / "ops.py", text)
    load(file)
    return file


def one(op: Any, dtype: int = FLOAT, shape: Any = (2, 3), **rest: Any) -> Any:
    return model([op], {"x": (dtype, list(shape))}, list(op.output), **rest)


def run(proto: Any, feeds: dict[str, Any], **options: Any) -> list[Any]:
    return Session(om_bytes(compile_model(proto, Options(**options)))).run(None, feeds)


def kernels(om: Om) -> list[str]:
    return [t.kernel for t in om.plan.tasks()]


def failure(proto: Any, feeds: dict[str, Any] | None = None) -> str:
    with pytest.raises(AtcError) as caught:
        run(proto, {"x": X} if feeds is None else feeds)
    return str(caught.value)


# -- what it computes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_attributes_defaults_and_optional_inputs(tmp_path: Path, level: int) -> None:
    module(tmp_path, PLAIN % "")
    nodes = [acme("Op", ["x"], ["a"], k=3.0), acme("Op", ["a", ""], ["b"]), acme("Op", ["b", "x"], ["y"])]
    [y] = run(model(nodes, {"x": (FLOAT, ["N", 3])}, ["y"]), {"x": X}, opt_level=level)
    np.testing.assert_allclose(y, X * 12 + X)


def test_several_outputs_strings_and_any_domain(tmp_path: Path) -> None:
    module(
        tmp_path,
        """
        op = declare("com.example.text::Count", inputs="T*", outputs="N L?")

        @op.infer
        def _(n):
            return [Tensor(DType.INT64, n.shape(0)), n.tensor(0)]

        @op.kernel
        def _(call, *texts):
            return np.array([len(t) for t in texts[0]], np.int64), texts[0]
        """,
    )
    op = node("Count", ["x", "x"], ["n", "l"], domain="com.example.text")
    n, told = run(one(op, STRING, (2,)), {"x": np.array(["ab", "c"], object)})
    assert n.tolist() == [2, 1] and told.tolist() == ["ab", "c"]
    [n] = run(one(node("Count", ["x"], ["n"], domain="com.example.text"), STRING, (2,)), {"x": np.array(["", "c"])})
    assert n.tolist() == [0, 1]


def test_a_bare_name_in_the_default_domain(tmp_path: Path) -> None:
    module(tmp_path, PLAIN.replace("acme::Op", "MyOwn") % "")
    [y] = run(one(node("MyOwn", ["x"], ["y"])), {"x": X})
    np.testing.assert_array_equal(y, 2 * X)


NO_RULE = """
op = declare("acme::Odd", inputs="X", outputs="Y Z?")

@op.kernel
def _(call, x):
    return x.reshape(-1)[1::2].astype(np.float64), x.shape[0]
"""


def test_without_a_shape_rule_the_model_tells_the_element_type_and_the_run_the_shape(tmp_path: Path) -> None:
    module(tmp_path, NO_RULE)
    nodes = [acme("Odd", ["x"], ["a"]), node("Shape", ["a"], ["n"]), node("Neg", ["a"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, ["N", 3])}, ["y", "n"])
    proto.graph.value_info.append(helper.make_tensor_value_info("a", DOUBLE, None))
    om = compile_model(proto)
    session = Session(om_bytes(om))
    for rows in (2, 4):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        y, n = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, -x.reshape(-1)[1::2].astype(np.float64))
        assert n.tolist() == [len(y)]
    again = recompile(load_om(om_bytes(om)).canonical(), Options())
    assert [t.kernel for t in again.plan.tasks()] == kernels(om)


def test_without_a_shape_rule_a_declared_shape_is_planned_and_held(tmp_path: Path) -> None:
    module(tmp_path, NO_RULE)
    for size, fits in ((3, True), (4, False)):
        proto = one(acme("Odd", ["x"], ["y"]))
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", DOUBLE, [size]))
        if fits:
            assert run(proto, {"x": X})[0].shape == (3,)
        else:
            assert "E40002" in failure(proto) and "[3]" in failure(proto)


def test_inside_branches_loops_and_functions(tmp_path: Path) -> None:
    module(tmp_path, PLAIN % "" + NO_RULE)
    then = graph([acme("Op", ["x"], ["t"], k=5.0)], {}, ["t"])
    other = graph([acme("Odd", ["x"], ["o"]), node("Cast", ["o"], ["f"], to=FLOAT)], {}, ["f"])
    other.value_info.append(helper.make_tensor_value_info("o", DOUBLE, None))
    proto = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)], {"c": (9, []), "x": (FLOAT, [2, 3])}, ["y"]
    )
    session = Session(om_bytes(compile_model(proto)))
    np.testing.assert_array_equal(session.run(None, {"c": np.array(True), "x": X})[0], 5 * X)
    np.testing.assert_array_equal(session.run(None, {"c": np.array(False), "x": X})[0], X.reshape(-1)[1::2])
    body = graph(
        [acme("Op", ["s"], ["s2"]), node("Identity", ["go"], ["on"])],
        {"i": (INT64, []), "go": (9, []), "s": (FLOAT, [2, 3])},
        ["on", "s2"],
    )
    loop = model([node("Loop", ["n", "", "x"], ["y"], body=body)], {"n": (INT64, []), "x": (FLOAT, [2, 3])}, ["y"])
    [y] = run(loop, {"n": np.array(3), "x": X})
    np.testing.assert_array_equal(y, 8 * X)
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [acme("Op", ["a"], ["h"]), acme("Op", ["h"], ["b"])],
        [helper.make_opsetid("acme", 1)],
    )  # fmt: skip
    proto = one(node("Twice", ["x"], ["y"], domain="own"))
    proto.functions.append(function)
    np.testing.assert_array_equal(run(proto, {"x": X})[0], 4 * X)


def test_a_function_of_the_model_goes_before_a_custom_operator(tmp_path: Path) -> None:
    module(tmp_path, PLAIN % "")
    proto = one(acme("Op", ["x"], ["y"]))
    opset = helper.make_opsetid("", 21)
    proto.functions.append(helper.make_function("acme", "Op", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [opset]))
    np.testing.assert_array_equal(run(proto, {"x": X})[0], -X)


# -- what passes may do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "folded", "merged", "fused"),
    [
        ("", False, False, False),
        (", flags=Flags(elementwise=True, fusible=True, inplace=(0,))", False, False, False),
        (", flags=Flags(deterministic=True), engine=Engine.AICORE", True, True, False),
        (
            ", flags=Flags(deterministic=True, elementwise=True, fusible=True, inplace=(0,)), engine=Engine.AICORE",
            *(True, True, True),
        ),
        (", flags=Flags(deterministic=True, side_effects=True)", False, False, False),
    ],
)
def test_only_what_the_flags_say_is_done(tmp_path: Path, flags: str, folded: bool, merged: bool, fused: bool) -> None:
    module(tmp_path, PLAIN % flags)
    inputs = {"x": (FLOAT, [2, 3])}
    constant = compile_model(
        model([acme("Op", ["c"], ["a"]), node("Add", ["x", "a"], ["y"])], inputs, ["y"], {"c": X}), Options(opt_level=3)
    )
    assert ("acme::Op" not in kernels(constant)) is folded
    twins = [acme("Op", ["x"], ["a"]), acme("Op", ["x"], ["b"]), node("Sub", ["a", "b"], ["y"])]
    alone = Options(opt_level=3, disabled_passes=frozenset({"fusion"}))
    assert kernels(compile_model(model(twins, inputs, ["y"]), alone)).count("acme::Op") == 2 - merged
    w = np.eye(3, dtype=np.float32)
    chain = model([node("MatMul", ["x", "w"], ["a"]), acme("Op", ["a"], ["y"])], inputs, ["y"], {"w": w})
    om = compile_model(chain, Options(opt_level=3))
    assert ("Fused" in kernels(om)) is fused
    np.testing.assert_array_equal(Session(om_bytes(om)).run(None, {"x": X})[0], 2 * X)
    dead = compile_model(model([acme("Op", ["x"], ["a"]), node("Neg", ["x"], ["y"])], inputs, ["y"]))
    assert kernels(dead) == ["Neg"]


SCALED = """
op = declare(
    "acme::Op", inputs="X", outputs="Y", engine=Engine.AICORE,
    flags=Flags(deterministic=True, elementwise=True%s),
)

@op.infer
def _(n):
    return n.tensor(0)

@op.kernel
def _(call, x):
    return x * 2 + 1
"""


@pytest.mark.parametrize(("flags", "tasks"), [(", fusible=True", 1), ("", 3)])
@pytest.mark.parametrize("ops", [("Op", "Op", "Op"), ("Op", "Exp", "Op")])
def test_elementwise_operators_of_the_user_fuse_with_their_like(
    tmp_path: Path, flags: str, tasks: int, ops: tuple[str, ...]
) -> None:
    module(tmp_path, SCALED % flags)
    names = ["x", "a", "b", "y"]
    nodes = [(acme if op == "Op" else node)(op, [v], [r]) for op, v, r in zip(ops, names, names[1:], strict=False)]
    om = compile_model(model(nodes, {"x": (FLOAT, [2, 3])}, ["y"]), Options())
    assert len(kernels(om)) == tasks
    want = X
    for op in ops:
        want = want * 2 + 1 if op == "Op" else np.exp(want)
    np.testing.assert_allclose(Session(om_bytes(om)).run(None, {"x": X})[0], want, rtol=1e-5)


def test_each_execution_counts_without_flags(tmp_path: Path) -> None:
    module(
        tmp_path,
        """
        op = declare("acme::Next", inputs="X", outputs="Y")
        count = 0

        @op.infer
        def _(n):
            return n.tensor(0)

        @op.kernel
        def _(call, x):
            global count
            count += 1
            return np.full_like(x, count)
        """,
    )
    nodes = [acme("Next", ["c"], ["a"]), acme("Next", ["c"], ["b"]), node("Add", ["a", "b"], ["y"])]
    proto = model(nodes, {}, ["y"], {"c": np.zeros(2, np.float32)})
    session = Session(om_bytes(compile_model(proto, Options(opt_level=3))))
    assert [session.run(None, {})[0].tolist() for _ in range(2)] == [[3, 3], [7, 7]]


# -- what goes wrong -----------------------------------------------------------------------------------------------


def test_nodes_that_do_not_fit_the_declaration(tmp_path: Path) -> None:
    module(tmp_path, PLAIN % "")
    for op, code, words in (
        (acme("Op", ["x"], ["y"], kk=1.0), "E16112", "'kk'"),
        (acme("Op", ["x"], ["y"], k="one"), "E16112", "must be a float"),
        (acme("Op", ["x", "x", "x"], ["y"]), "E16113", "takes 1 to 2 inputs, but has 3"),
        (acme("Op", ["", "x"], ["y"]), "E16113", "input 0 (X) is absent"),
        (acme("Op", ["x"], ["y", "z"]), "E16113", "outputs"),
        (acme("Op", ["x"], ["y"], g=graph([], {}, [])), "E16112", "graph"),
    ):
        text = failure(one(op))
        assert text.startswith(code) and words in text and "acme::Op" in text, text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("return n.shape(0)", "expected Tensor(dtype, shape)"),
        ("return Tensor(DType.FLOAT32, (2, -1))", "size -1"),
        ("return Tensor(DType.FLOAT32, (2, 1.5))", "size 1.5"),
        ("return n.tensor(3)", "input 3"),
        ("return n.nonsense", "in line 9"),
        ("n.fail('too odd', 'be even')", "too odd"),
    ],
)
def test_a_shape_rule_that_is_wrong(tmp_path: Path, rule: str, words: str) -> None:
    module(
        tmp_path,
        f"""
        op = declare("acme::Op", inputs="X", outputs="Y")

        @op.infer
        def _(n):
            {rule}
        """,
    )
    text = failure(one(acme("Op", ["x"], ["y"])))
    assert "E16113" in text and "acme::Op" in text and words in text, text


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("return x.astype(np.float64)", "E40002", "float64[2, 3]"),
        ("return x[:1]", "E40002", "float32[1, 3]"),
        ("return None", "E40002", "None"),
        ("return ()", "E40002", "0 of 1 outputs"),
        ("raise KeyError('k')", "E40001", "line 13: KeyError: 'k'"),
        ("x[0] = 1; return x", "E40001", "read-only"),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_kernel_that_is_wrong(tmp_path: Path, body: str, code: str, words: str, symbolic: bool) -> None:
    module(
        tmp_path,
        f"""
        op = declare("acme::Op", inputs="X", outputs="Y")

        @op.infer
        def _(n):
            return n.tensor(0)

        @op.kernel
        def _(call, x):
            {body}
        """,
    )
    op = acme("Op", ["x"], ["y"])
    op.name = "here"
    text = failure(one(op, shape=("N", 3) if symbolic else (2, 3)))
    assert text.startswith(f"{code} task 'here'") and "acme::Op (ops.py)" in text and words in text, text


def test_a_rank_that_the_rule_did_not_promise(tmp_path: Path) -> None:
    module(
        tmp_path,
        """
        op = declare("acme::Op", inputs="X", outputs="Y")

        @op.infer
        def _(n):
            return Tensor(n.dtype(0), (n.fresh("rows"), 3))

        @op.kernel
        def _(call, x):
            return x.reshape(3, 2) if x[0, 0] else x
        """,
    )
    proto = one(acme("Op", ["x"], ["y"]))
    assert "E40002" in failure(proto) and "acme::Op" in failure(proto)
    np.testing.assert_array_equal(run(proto, {"x": 0 * X})[0], 0 * X)


def test_an_operator_without_a_kernel(tmp_path: Path) -> None:
    module(tmp_path, 'declare("acme::Op", inputs="X", outputs="Y")')
    assert "E40003" in failure(one(acme("Op", ["x"], ["y"])))


@pytest.mark.parametrize("name", ["CenterCropPad", "Upsample", "com.microsoft::BiasGelu"])
def test_names_that_onnx_or_the_frontend_know(tmp_path: Path, name: str) -> None:
    module(tmp_path, f'declare("{name}", inputs="X Z?", outputs="Y")')
    domain, _, bare = name.rpartition("::")
    opset = 9 if bare == "Upsample" else 21
    proto = model([node(bare, ["x", "x"], ["y"], domain=domain)], {"x": (FLOAT, [3])}, ["y"], opset=opset)
    text = failure(proto)
    assert "E20021" in text and "already" in text, text


# -- where nothing is loaded ---------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, Path]:
    """(model, OM, module), and nothing of it loaded any more."""
    from tests.custom.helpers import _forget

    source = module(tmp_path, PLAIN % ", flags=Flags(inplace=(0,))")
    nodes = [acme("Op", ["x"], ["a"]), acme("Op", ["a"], ["y"])]
    path = save(model(nodes, {"x": (FLOAT, ["N", 3])}, ["y"]), tmp_path / "m.onnx")
    om = tmp_path / "m.om"
    om.write_bytes(om_bytes(compile_model(path)))
    _forget(set())
    return path, om, source


def test_every_verb_says_what_is_missing_and_takes_it(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    path, om, source = made
    given = ("--custom-ops", source, "--json")
    assert codes(atc("convert", path, "-o", tmp_path / "n.om", "--json")) == ["E16002"]
    golden = tmp_path / "g.npz"
    for call in (("run", om), ("golden", "record", om, "-o", golden)):
        result = atc(*call, "--json")
        assert codes(result) == ["E40005"] and "ops.py" in result.stdout and "--custom-ops" in result.stdout
    failed = valid(atc("verify", om, "--json").stdout, "verify")
    assert [p["code"] for p in failed["problems"]] == ["E40005"]
    shown = valid(atc("inspect", om, "--json").stdout, "inspect")
    assert shown["custom_ops"] == {"acme::Op": "ops.py"} and not shown["needs_onnx"]
    assert valid(atc("inspect", path, "--json").stdout, "inspect")["supported"] is False
    assert valid(atc("convert", path, "-o", tmp_path / "n.om", *given).stdout, "convert")["custom_ops"]
    valid(atc("run", om, "--input-shape", "x:2,3", *given).stdout, "run")
    assert valid(atc("verify", om, *given).stdout, "verify")["passed"]
    assert atc("golden", "record", om, "-o", golden, *given).exit_code == 0
    assert valid(atc("golden", "verify", om, golden, *given).stdout, "golden-verify")["passed"]
    assert valid(atc("inspect", path, *given).stdout, "inspect")["supported"]
    assert (tmp_path / "n.om").read_bytes() == om.read_bytes(), "where the module lies is not part of the file"


def test_recompiling_needs_the_module_too(made: tuple[Path, Path, Path]) -> None:
    _, om, source = made
    loaded = load_om(om)
    with pytest.raises(AtcError) as caught:
        loaded.canonical()
    assert caught.value.code == "E40005"
    session = Session(om, custom_ops=[source])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 4 * X)
    again = Session(om_bytes(recompile(loaded.canonical(), Options())))
    np.testing.assert_array_equal(again.run(None, {"x": X})[0], 4 * X)


@pytest.mark.parametrize("oracle", ["onnxruntime", "reference"])
def test_check_says_that_no_oracle_knows_the_operator(made: tuple[Path, Path, Path], oracle: str) -> None:
    path, om, source = made
    for files in ((path,), (path, om)):
        result = atc("check", *files, "--oracle", oracle, "--custom-ops", source, "--json")
        assert codes(result) == ["E50001"]
        [problem] = json.loads(result.stdout)["error"]["problems"]
        assert oracle in problem["cause"] and "acme::Op" in problem["cause"] and "golden" in problem["hint"]


def test_what_an_om_says_of_modules_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.custom.helpers import _forget

    trap = write(tmp_path / "trap.py", 'declare("acme::Op", inputs="X", outputs="Y").infer(lambda n: n.tensor(0))')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    load("trap")
    om = om_bytes(compile_model(one(acme("Op", ["x"], ["y"]))))
    _forget(set())
    trap.write_text("raise SystemExit('imported')")
    with pytest.raises(AtcError) as caught:
        Session(om)
    assert caught.value.code == "E40005" and "--custom-ops trap" in str(caught.value)
