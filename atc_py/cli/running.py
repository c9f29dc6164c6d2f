"""What the verbs that run an OM share: opening it, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import AtcError, Problems
from atc_py.plan.gears import in_gear
from atc_py.runtime import Session
from atc_py.runtime.feeds import Feeds, parse_shapes, random_feeds, read_feeds, symbol_values
from atc_py.runtime.index_bounds import index_bounds
from atc_py.runtime.loader import Loaded, load


def opened(path: str) -> Loaded:
    """An OM; the error for an ONNX model in its place says what to do."""
    try:
        return load(path)
    except AtcError as e:
        if Path(path).suffix.lower() != ".onnx" or {p.code for p in e.problems} != {"E30020"}:
            raise
        hint = f"convert it first: atc convert {path} -o {Path(path).with_suffix('.om')}"
        raise AtcError(*(replace(p, hint=hint) for p in e.problems)) from e


def open_checked(path: str) -> Loaded:
    """An OM whose weights have been read and compared with their checksums."""
    loaded = opened(path)
    loaded.check_weights()
    return loaded


def make_feeds(session: Session, inputs: Sequence[str], input_shape: str, seed: int) -> Feeds:
    """Inputs from files; without any, seeded random ones. Shapes come from `--input-shape`, else from the hint."""
    plan = session.plan
    shapes = parse_shapes(input_shape)
    env = symbol_values(plan, shapes)
    if inputs:
        feeds = read_feeds(inputs, plan.inputs, env, shapes)
        _agree(feeds, shapes)
        return feeds
    arrays = random_feeds(plan.inputs, env, seed, shapes, index_bounds(in_gear(plan, env), env))
    return Feeds(arrays, dict.fromkeys(arrays, f"random, seed {seed}"))


def _agree(feeds: Feeds, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise `AtcError` E30001 where a file holds another shape than `--input-shape` says."""
    problems = Problems()
    for name, shape in shapes.items():
        value = feeds.arrays.get(name)
        if isinstance(value, np.ndarray) and list(value.shape) != list(shape):
            cause = f"{feeds.sources[name]} has shape {list(value.shape)}, --input-shape says {list(shape)}"
            problems.add("E30001", f"input '{name}'", cause, "leave one of them out")
    problems.raise_any()


_OF_INPUTS = frozenset({"E30030", "E40001"})
"""What values or shapes of inputs may be the cause of."""


@contextmanager
def running_on(session: Session, feeds: Feeds, inputs: Sequence[str]) -> Iterator[None]:
    """Failures of a run inside: where its inputs were drawn, for want of `--input`, the hint says so."""
    try:
        yield
    except AtcError as e:
        if inputs:
            raise
        hint = _about_drawn(session, feeds)
        raise AtcError(*(replace(p, hint=hint) if p.code in _OF_INPUTS else p for p in e.problems)) from e


def _about_drawn(session: Session, feeds: Feeds) -> str:
    shapes = {name: list(value.shape) for name, value in feeds.arrays.items() if isinstance(value, np.ndarray)}
    drawn = ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
    hint = f"the inputs were drawn ({drawn}); give real ones with --input"
    symbolic = [p for p in session.get_inputs() if any(isinstance(d, str) for d in p.shape or ())]
    if not symbolic:
        return hint
    wanted = ";".join(f"{p.name}:{','.join(str(d) for d in p.shape or ())}" for p in symbolic)
    return f'{hint}, or sizes for which the model is made with --input-shape "{wanted}"'


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
