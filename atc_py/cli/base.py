"""What every verb shares: options in both spellings, `--json` and `--debug`, and errors without tracebacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from atc_py.cli.usage import Usage, as_usage

_F = TypeVar("_F", bound=Callable[..., Any])


class Command(click.Command):
    """A verb. `--soc_version=X` and `--soc-version X` are the same; an `AtcError` becomes a block and exit code 1."""

    instead: Mapping[str, str] = {}
    """Options that users of another tool look for here: their names, and what to do instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Normalise the spelling, then parse."""
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, self.normalised(ctx, args))
        except click.NoSuchOption as problem:
            hint = self.instead.get(problem.option_name.lstrip("-").replace("_", "-"))
            if hint is None:
                raise as_usage(problem, as_json) from None
            cause = f"ATC's option '{problem.option_name}' is not supported"
            raise Usage("E10001", "command line", cause, hint, ctx=ctx, as_json=as_json) from None
        except click.UsageError as problem:
            raise as_usage(problem, as_json) from None

    def normalised(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments with underscores in the names of known options as hyphens."""
        known = {o for p in self.get_params(ctx) if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
        found: list[str] = []
        for position, arg in enumerate(args):
            if arg == "--":
                return found + args[position:]
            name, equals, value = arg.partition("=")
            hyphened = "--" + name[2:].replace("_", "-")
            if name.startswith("--") and "_" in name and name not in known and hyphened in known:
                arg = hyphened + equals + value
            found.append(arg)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Load the modules of `--custom-ops`, then run the verb."""
        try:
            sources = ctx.params.pop("custom_ops", ())
            if sources:
                from atc_py.runtime.custom import load_custom

                load_custom(sources)
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as failure:
            from atc_py.cli.failure import exit_code

            ctx.exit(exit_code(failure, bool(ctx.params.get("json")), bool(ctx.params.get("debug"))))


class AnyCase(click.Choice[str]):
    """A choice in any letter case; errors list the values as they are written."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value as it is among the choices."""
        found = next((c for c in self.choices if c.lower() == str(value).lower()), None)
        if found is None:
            self.fail(f"'{value}' is not one of {', '.join(self.choices)}", param, ctx)
        return found


def common(verb: _F) -> _F:
    """The options that every verb has."""
    verb = click.option("--debug", is_flag=True, help="Show the traceback of an error.")(verb)
    return click.option("--json", is_flag=True, help="Print one JSON object instead of text.")(verb)


def custom_option(verb: _F) -> _F:
    """`--custom-ops` of verbs that need the declarations of a model's operators."""
    text = "A Python file, a package's folder or a module that declares operators; may be given several times."
    return click.option("--custom-ops", multiple=True, metavar="MODULE", help=text)(verb)


class _Tolerance(click.FloatRange):
    """A number of at least 0; nan, which every comparison fails, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail("nan is no tolerance", param, ctx)
        return number


def check_options(verb: _F) -> _F:
    """The options of comparisons."""
    kind = _Tolerance(0)
    verb = click.option("--atol", type=kind, help="Absolute tolerance, relative to each output's scale.")(verb)
    return click.option("--rtol", type=kind, help="Relative tolerance of an element. Default: by dtype.")(verb)


def shape_option(verb: _F) -> _F:
    """`--input-shape` of verbs that run a model."""
    text = 'Sizes of symbolic inputs that are drawn or read raw, e.g. "x:1,3,224,224;mask:1,16".'
    return click.option("--input-shape", default="", metavar="TEXT", help=text)(verb)


def input_option(verb: _F) -> _F:
    """`--input` of verbs that run a model."""
    text = "An input: name=file, a file (.npy, .npz, .bin) or a folder of files; may be given several times."
    return click.option("--input", "-i", "inputs", multiple=True, metavar="FILE", help=text)(verb)


def seed_option(verb: _F) -> _F:
    """`--seed` of verbs that draw inputs."""
    text = "Seed of inputs that are not given."
    return click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help=text)(verb)


def command(name: str, help: str, examples: str = "") -> Callable[[Callable[..., Any]], Command]:
    """Declare a verb; `examples` are shown as they are at the end of its help."""
    epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()) if examples else None
    return click.command(name, cls=Command, help=help, epilog=epilog)
