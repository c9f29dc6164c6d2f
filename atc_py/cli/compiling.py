"""The options of verbs that compile a model, and `compiler.Options` made of them.

@command("convert", …)
@compile_options                       # --soc-version, --precision-mode, --opt-level, --disable-pass, …
def verb(model, **given):
    om = compile_model(model, options_of(model, given))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from atc_py.cli.atc_options import PRECISION_MODES
from atc_py.cli.base import AnyCase

if TYPE_CHECKING:
    from atc_py import compiler
    from atc_py.emit.dump import Dumper

_F = TypeVar("_F", bound=Callable[..., Any])

LEVELS = ("O0", "O1", "O2", "O3")

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--input-shape", default="", metavar="TEXT", help='Input shapes, "x:1,3,224,224;y:-1,1~16".'),
    click.option("--input-hint-shape", default="", metavar="TEXT", help="Shapes at which figures are evaluated."),
    click.option("--input-format", type=AnyCase(["ND", "NCHW", "NCDHW"]), hidden=True),
    click.option("--soc-version", default="Ascend310P3", show_default=True, help="The NPU to compile for."),
    click.option(
        "--precision-mode",
        "--precision-mode-v2",
        default="origin",
        show_default=True,
        metavar="MODE",
        help="origin: dtypes stay as in the model; fp16, mixed_float16, mixed_bfloat16, cube_fp16in_fp32out, fp32.",
    ),
    click.option(
        "--modify-mixlist", metavar="FILE", type=click.Path(), help="Operators on other lists of a mixed mode, JSON."
    ),
    click.option(
        "--keep-dtype", metavar="FILE", type=click.Path(), help="Nodes, or OpType::NAME, that keep their dtypes."
    ),
    click.option(
        "--opt-level",
        "--oo-level",
        type=AnyCase(LEVELS),
        default="O2",
        show_default=True,
        metavar="[O0|O1|O2|O3]",
        help="How much is optimized.",
    ),
    click.option("--out-nodes", default="", metavar="TEXT", help='Other outputs: tensors or nodes, "a;conv_3:0".'),
    click.option("--disable-pass", multiple=True, metavar="NAME", help="Leave a pass out; may be given several times."),
    click.option(
        "--fusion-rules",
        multiple=True,
        metavar="MODULE",
        help="A module with fusion rules of your own: a .py file, a package's folder, or a name; may be repeated.",
    ),
    click.option(
        "--fusion-switch-file", metavar="FILE", type=click.Path(), help="Passes that are off, in ATC's two forms."
    ),
    click.option(
        "--stream-num",
        type=click.IntRange(1, 64),
        default=4,
        show_default=True,
        metavar="N",
        help="The most streams; one more is used only where it makes the model faster.",
    ),
    click.option("--single-stream", is_flag=True, help="All tasks on one stream."),
    click.option(
        "--sink",
        type=click.Choice(["graph", "subgraph", "op"]),
        default="graph",
        show_default=True,
        help="What the host launches at once: all that can run without it, each part between branches, or each task.",
    ),
    click.option(
        "--memory-effort",
        type=click.Choice(["fast", "default", "max"]),
        default="default",
        show_default=True,
        help="How long the allocator may search for a lower peak: not at all, about 2 s, or about a minute.",
    ),
    click.option(
        "--dump-graph",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Write the graph after each stage and pass into a folder; see also DUMP_GE_GRAPH.",
    ),
)


def compile_options(verb: _F) -> _F:
    """The options themselves, in the order of the help."""
    for option in reversed(_OPTIONS):
        verb = option(verb)
    return verb


def compile_only(ctx: click.Context, serving: Sequence[str]) -> list[str]:
    """The options of compiling that the command line gives; those named in `serving` have another use too."""

    @compile_options
    def probe() -> None: ...

    names = {p.name for p in probe.__click_params__} - set(serving)  # type: ignore[attr-defined]
    default = click.core.ParameterSource.DEFAULT
    return [
        p.opts[0]
        for p in ctx.command.params
        if p.name is not None and p.name in names and ctx.get_parameter_source(p.name) is not default
    ]


def options_of(source: str, given: dict[str, Any]) -> compiler.Options:
    """`compiler.Options` of what was given; raises `AtcError` for what is wrong with it."""
    from atc_py import compiler
    from atc_py.cli.hints import hint_values
    from atc_py.frontend import parse_input_shapes
    from atc_py.passes.mixlist import read_lists

    shapes = parse_input_shapes(given["input_shape"])
    return compiler.Options(
        input_shapes=shapes,
        input_hint=hint_values(source, shapes, given["input_hint_shape"]) if given["input_hint_shape"] else {},
        out_nodes=[name.strip() for name in given["out_nodes"].split(";") if name.strip()],
        soc_version=given["soc_version"],
        precision_mode=PRECISION_MODES.get(given["precision_mode"], given["precision_mode"]),
        precision_lists=read_lists(given["modify_mixlist"], given["keep_dtype"]),
        opt_level=LEVELS.index(given["opt_level"].upper()),
        disabled_passes=frozenset(given["disable_pass"]),
        debug=given["debug"],
        fusion_rules=given["fusion_rules"],
        fusion_switch_file=given["fusion_switch_file"],
        stream_num=given["stream_num"],
        single_stream=given["single_stream"],
        sink=given["sink"],
        memory_effort=given["memory_effort"],
    )


def dumper_of(given: dict[str, Any]) -> Dumper | None:
    """What writes dumps: `--dump-graph DIR`, or GE's environment variables; None without either."""
    import os

    from atc_py.emit.dump import Dumper, from_environment

    if given["dump_graph"]:
        return Dumper(Path(given["dump_graph"]), stages="all")
    return from_environment(os.environ)
