"""How commands fail: a block of text or JSON, an exit code, never a traceback.

1   the model, a file or a result is wrong        2   the command line is wrong
70  atc-py itself failed                          130 interrupted
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from atc_py.cli.usage import print_json
from atc_py.errors import AtcError, Problem

FAILED, INNER, INTERRUPTED = 1, 70, 130
ISSUES = "report it with the model and the output of the same command with --debug"


def report(problems: Sequence[Problem], as_json: bool) -> None:
    """Print problems: JSON on standard output, text on standard error."""
    if as_json:
        print_json({"error": {"problems": [p.to_json() for p in problems]}})
        return
    from atc_py.report.problems import error_block
    from atc_py.report.screen import console

    console(stderr=True).print(error_block(problems))


def exit_code(failure: BaseException, as_json: bool, debug: bool) -> int:
    """Report what ended a command; returns the exit code."""
    if isinstance(failure, KeyboardInterrupt):
        report([Problem("E19998", "", "interrupted", "nothing was left behind")], as_json)
        return INTERRUPTED
    if isinstance(failure, BrokenPipeError):
        # The reader has gone: what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if debug:
        traceback.print_exception(failure, file=sys.stderr)
    if isinstance(failure, AtcError):
        report(failure.problems, as_json)
        return FAILED
    if isinstance(failure, MemoryError):
        report([Problem("E30004", "this machine", f"not enough memory: {failure}", "use smaller shapes")], as_json)
        return FAILED
    cause = f"internal error: {type(failure).__name__}: {failure}"
    report([Problem("E19999", _place(failure), cause, ISSUES)], as_json)
    return INNER


def _place(failure: BaseException) -> str:
    """The innermost function of ours that was running."""
    frames = traceback.extract_tb(failure.__traceback__)
    ours = [f for f in frames if "atc_py" in f.filename or "om_format" in f.filename]
    last = (ours or frames)[-1:] if frames else []
    return f"{os.path.basename(last[0].filename)}:{last[0].lineno} in {last[0].name}" if last else ""
