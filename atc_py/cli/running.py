"""What the verbs that run an OM share: opening it, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atc_py.runtime import Session
from atc_py.runtime.feeds import Feeds, parse_shapes, random_feeds, read_feeds, symbol_values
from atc_py.runtime.loader import Loaded, load


def open_checked(path: str) -> Loaded:
    """An OM whose weights have been read and compared with their checksums."""
    loaded = load(path)
    loaded.check_weights()
    return loaded


def make_feeds(session: Session, inputs: Sequence[str], input_shape: str, seed: int) -> Feeds:
    """Inputs from files; without any, seeded random ones. Shapes come from `--input-shape`, else from the hint."""
    plan = session.plan
    shapes = parse_shapes(input_shape)
    env = symbol_values(plan, shapes)
    if inputs:
        return read_feeds(inputs, plan.inputs, env, shapes)
    arrays = random_feeds(plan.inputs, env, seed, shapes)
    return Feeds(arrays, dict.fromkeys(arrays, f"random, seed {seed}"))


@contextmanager
def threads(limit: int | None) -> Iterator[None]:
    """At most so many threads in numpy's libraries."""
    if limit is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limit):
        yield


@dataclass(frozen=True)
class Written:
    """A file of results."""

    path: Path
    name: str


def write_outputs(folder: Path, form: str, named: dict[str, Any]) -> list[Written]:
    """Write results into a folder, which is made: one file a tensor, or one archive. Raises `AtcError` E13001."""
    from atc_py.cli.files import cannot_write
    from atc_py.runtime.arrays import WRITERS, file_name, leaves, write_npz

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise cannot_write(folder, e) from e
    parts = [
        (label, array) for name, value in named.items() for label, array in leaves(name, value) if array is not None
    ]
    if form == "NPZ":
        path = folder / "outputs.npz"
        write_npz(path, dict(parts))
        return [Written(path, label) for label, _ in parts]
    found: list[Written] = []
    taken: set[str] = set()
    for label, array in parts:
        stem, number = file_name(label), 1
        while stem.lower() in taken:
            number += 1
            stem = f"{file_name(label)}_{number}"
        taken.add(stem.lower())
        path = folder / f"{stem}.{form.lower()}"
        WRITERS[form](path, array)
        found.append(Written(path, label))
    return found
