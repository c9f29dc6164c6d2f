"""`atc check`: the same inputs through an oracle and through convert, file, load and run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atc_py.cli.base import (
    AnyCase,
    check_options,
    command,
    common,
    custom_option,
    input_option,
    seed_option,
    shape_option,
)
from atc_py.cli.usage import Usage, print_json

if TYPE_CHECKING:
    from atc_py.cli.oracle import Oracle
    from atc_py.compiler import Options
    from atc_py.runtime import Session
    from atc_py.runtime.compare import Difference

EXAMPLES = """
atc check model.onnx
atc check model.onnx model.om --input x=image.npy
atc check model.onnx --input-shape "x:1,3,224,224" --oracle reference
atc check model.onnx --rtol 1e-4 --atol 1e-5
"""


@command(
    "check", "Compare the results of the ONNX model, and of the OM made from it, with those of an oracle.", EXAMPLES
)
@click.argument("files", nargs=-1, type=click.Path(), metavar="MODEL.onnx [MODEL.om]")
@click.option(
    "--oracle",
    type=click.Choice(["onnxruntime", "reference"]),
    default="onnxruntime",
    show_default=True,
    help="Who says what is right.",
)
@input_option
@shape_option
@seed_option
@check_options
@click.option("--soc-version", help="The NPU to convert for, when no OM is given.")
@click.option(
    "--opt-level",
    type=AnyCase(["O0", "O1", "O2", "O3"]),
    metavar="[O0|O1|O2|O3]",
    help="As for convert.",
)
@custom_option
@common
@click.pass_context
def verb(ctx: click.Context, /, files: tuple[str, ...], **given: Any) -> None:
    """Run both, compare, and look for the first difference when they disagree."""
    model, om = _files(ctx, files, given)
    from atc_py.cli.oracle import Oracle
    from atc_py.cli.running import make_feeds, running_on

    oracle = Oracle(model, given["oracle"])
    options = _options(given)
    session, options = _converted(model, options) if om is None else _loaded(om, options)
    # What was converted here has the shapes of --input-shape already.
    feeds = make_feeds(session, given["inputs"], given["input_shape"] if om else "", given["seed"])
    names = [o.name for o in session.get_outputs()]
    if om is not None:
        _same_model(oracle, om, names, list(feeds.arrays))
    with running_on(session, feeds, given["inputs"]):
        got = session.run(None, feeds.arrays)
    given = {**given, **_allowed(options.precision_mode, given)}
    judged = oracle.compare(names, got, feeds.arrays, given["rtol"], given["atol"])
    differences = [d for j in judged for d in j.differences]
    spreads = {name: j.spread for name, j in zip(names, judged, strict=True) if j.spread is not None}
    passed = all(d.passed for d in differences)
    facts = {
        "format_version": 1,
        "model": model,
        "om": om,
        "oracle": given["oracle"],
        "passed": passed,
        "outputs": [d.to_json() for d in differences],
        "oracle_spread": spreads,
        "first_divergence": None if passed else _search(oracle, options, session, feeds.arrays, given),
    }
    if given["json"]:
        print_json(facts)
    else:
        _show(facts, differences)
    if not passed:
        ctx.exit(1)


def _files(ctx: click.Context, files: Sequence[str], given: Mapping[str, Any]) -> tuple[str, str | None]:
    """The ONNX model and the OM, in whatever order they were given."""
    oms = [f for f in files if f.lower().endswith(".om")]
    models = [f for f in files if f not in oms]
    if len(models) != 1 or len(oms) > 1:
        cause = f"expected one ONNX model and at most one .om file, got {len(models)} and {len(oms)}"
        raise Usage("E10001", "files", cause, "atc check model.onnx model.om", ctx=ctx, as_json=given["json"])
    if oms and (given["soc_version"] or given["opt_level"]):
        cause = "an OM is given, which has been converted already"
        hint = "leave the OM out, or leave out --soc-version and --opt-level"
        raise Usage("E10001", oms[0], cause, hint, ctx=ctx, as_json=given["json"])
    return models[0], oms[0] if oms else None


def _same_model(oracle: Oracle, om: str, outputs: Sequence[str], inputs: Sequence[str]) -> None:
    """Raise `AtcError` when the OM cannot have been made of the ONNX model: the names of tensors are other ones."""
    from atc_py.errors import Problems

    problems, hint = Problems(), "give the OM that was made of this model"
    for name in outputs:
        if name not in oracle.tensors:
            problems.add("E30006", f"output '{name}' of {om}", f"'{oracle.path}' has no such tensor", hint)
    for name in oracle.inputs:
        if name not in inputs:
            problems.add("E30005", f"input '{name}' of {oracle.path}", f"'{om}' has no such input", hint)
    problems.raise_any()


def _allowed(mode: str, given: Mapping[str, Any]) -> dict[str, float]:
    """The tolerances of the dtype that a precision mode computes in, as far as none are given."""
    from atc_py.passes.precision import BUILT
    from atc_py.runtime.compare import TOLERANCES

    how = BUILT.get(mode)
    if how is None or how.widens:
        return {}
    base = TOLERANCES[how.target]
    return {key: getattr(base, key) for key in ("rtol", "atol") if given[key] is None}


def _options(given: Mapping[str, Any]) -> Options:
    from atc_py.compiler import Options
    from atc_py.frontend import parse_input_shapes

    chosen: dict[str, Any] = {}
    if given["soc_version"]:
        chosen["soc_version"] = given["soc_version"]
    if given["opt_level"]:
        chosen["opt_level"] = int(given["opt_level"][1])
    return Options(input_shapes=parse_input_shapes(given["input_shape"]), **chosen)


def _converted(model: str, options: Options) -> tuple[Session, Options]:
    """Convert to a file and load that."""
    from atc_py.cli.running import open_checked
    from atc_py.compiler import compile_model
    from atc_py.emit import write_file
    from atc_py.runtime import Session

    with tempfile.TemporaryDirectory(prefix="atc-check-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.om"
        write_file(compile_model(model, options), path)
        # The mapping of the file outlives its name.
        return Session(open_checked(str(path))), options


def _loaded(om: str, options: Options) -> tuple[Session, Options]:
    """Load the OM; the options are those that it was converted with, as far as it records them."""
    from dataclasses import replace

    from atc_py.cli.om_facts import recorded, recorded_lists
    from atc_py.cli.running import open_checked
    from atc_py.runtime import Session

    loaded = open_checked(om)
    figures = recorded(loaded)
    used = replace(
        options,
        soc_version=figures["soc_version"],
        precision_mode=figures["precision_mode"],
        precision_lists=recorded_lists(figures),
        opt_level=int(figures["opt_level"][1]),
    )
    return Session(loaded), used


def _search(
    oracle: Any, options: Options, session: Session, feeds: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The first tensor that differs, with the shapes of the inputs that were compared."""
    from dataclasses import replace

    from atc_py.cli.divergence import Search
    from atc_py.ir.types import Tensor

    fixed = {p.name: feeds[p.name].shape for p in session.plan.inputs if isinstance(p.type, Tensor)}
    shapes = fixed if session.plan.arena is not None else options.input_shapes
    return Search(oracle, replace(options, input_shapes=shapes), feeds, given["rtol"], given["atol"]).first()


def _show(facts: Mapping[str, Any], differences: Sequence[Difference]) -> None:
    from rich.text import Text

    from atc_py.cli.oracle import MOST_SPREAD
    from atc_py.report import results
    from atc_py.report.screen import console, indented

    screen = console()
    screen.print(results.comparison(facts["outputs"]))
    for name, own in facts["oracle_spread"].items():
        text = results.spread(name, own, facts["oracle"], MOST_SPREAD)
        screen.print(indented(Text(text, style="yellow")))
    screen.print()
    if facts["passed"]:
        count = len(differences)
        screen.print(
            Text(
                f"all {count} outputs agree with {facts['oracle']}"
                if count != 1
                else f"the output agrees with {facts['oracle']}",
                style="bold green",
            )
        )
        return
    screen.print(results.divergence(facts["first_divergence"]))
    failed = sum(not d.passed for d in differences)
    screen.print(Text(f"{failed} of {len(differences)} outputs differ from {facts['oracle']}", style="bold red"))
