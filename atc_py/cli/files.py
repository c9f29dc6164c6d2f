"""Files that a verb writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atc_py.errors import AtcError, error
from om_format import OmError


def writable(path: Path) -> None:
    """Raise `AtcError` E13001 before any work is done when a file cannot be put there."""
    folder = path.parent
    if path.is_dir():
        raise error("E13001", str(path), "cannot be written: it is a folder", "name a file")
    if not folder.is_dir():
        raise error("E13001", str(path), f"cannot be written: there is no folder '{folder}'", "make it first")
    if not os.access(folder, os.W_OK):
        raise error("E13001", str(path), f"cannot be written: no permission in '{folder}'", "choose another place")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of writing inside name the path."""
    from atc_py.runtime.loader import as_atc_error

    try:
        yield
    except OmError as e:
        raise as_atc_error(e) from e
    except OSError as e:
        raise cannot_write(path, e) from e


def cannot_write(path: Path, problem: OSError) -> AtcError:
    """The error for a file that could not be written."""
    return error(
        "E13001", str(path), f"cannot be written: {problem.strerror or problem}", "check the folder and its space"
    )
