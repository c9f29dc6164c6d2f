"""Inputs for a model: from files, or drawn from a seed.

read_feeds(["x=image.npy", "rest.npz"], plan.inputs, {"N": 1})   →   {"x": …, "mask": …}
random_feeds(plan.inputs, {"N": 1}, seed=0)                       →   floats standard normal, ints 0 to 3, bools true
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atc_py.errors import Problems, error
from atc_py.ir import types
from atc_py.ir.dims import UnboundSymbol, evaluate
from atc_py.ir.types import DType, Tensor, Type
from atc_py.plan.ports import show, solve
from atc_py.plan.types import Plan, Port
from atc_py.runtime.arrays import SUFFIXES, Array, as_meant, file_name, read_bin, read_npy, read_npz

INT_LIMIT = 4
"""Drawn integers are 0 to 3: valid as ids of any vocabulary."""
TEXT = "Monday"
"""What string inputs are filled with."""


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """`"x:1,3,224,224;mask:1,16"` as a mapping of sizes. Raises `AtcError` E10002."""
    found: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, colon, dims = part.rpartition(":")
        sizes = [d.strip() for d in dims.strip().strip("[]").split(",")] if dims.strip() else []
        if not colon or not name or not all(s.isdecimal() and s.isascii() for s in sizes):
            raise error("E10002", f"'{part}'", "expected name:size,size,… with plain sizes", 'e.g. "x:1,3,224,224"')
        if name.strip() in found:
            raise error("E10002", f"input '{name.strip()}'", "its shape is given twice", "leave one of them out")
        found[name.strip()] = tuple(int(s) for s in sizes)
    return found


def symbol_values(plan: Plan, shapes: Mapping[str, Sequence[int]] | None = None) -> dict[str, int]:
    """A value for each symbol: what the given input shapes determine, else the plan's hint.

    Raises `AtcError` E30005 for a name that is no input, E30001 for a shape that does not fit.
    """
    shapes = shapes or {}
    problems = Problems()
    known = [p.name for p in plan.inputs]
    for name in shapes:
        if name not in known:
            problems.add(
                "E30005", f"input '{name}'", "the model has no such input", f"it has {', '.join(known) or 'none'}"
            )
    problems.raise_any()
    given = [tuple(shapes[p.name]) if p.name in shapes else None for p in plan.inputs]
    return {**(plan.hint or {}), **solve(plan.inputs, given, plan.symbols)}


def concrete_shape(
    port: Port, env: Mapping[str, int], shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[int, ...]:
    """The shape of a tensor input under `env`. Raises `AtcError` E30016 when it is not determined."""
    if shapes and port.name in shapes:
        return tuple(shapes[port.name])
    return _shape(port.name, port.type, env)


def _shape(name: str, type_: Type, env: Mapping[str, int]) -> tuple[int, ...]:
    if isinstance(type_, Tensor) and type_.shape is not None:
        try:
            shape = tuple(evaluate(d, env) for d in type_.shape)
        except UnboundSymbol as e:
            raise _undetermined(name, f"dim '{e.name}' has no value") from e
        except ZeroDivisionError:
            raise _undetermined(name, f"{show(type_.shape)} divides by 0") from None
        if any(d < 0 for d in shape):
            raise _undetermined(name, f"{show(type_.shape)} is {show(shape)} for {dict(env)}")
        return shape
    raise _undetermined(name, "its rank is unknown")


def _undetermined(name: str, cause: str) -> Exception:
    return error("E30016", f"input '{name}'", f"its shape is not determined: {cause}", "give --input-shape")


def random_feeds(
    ports: Sequence[Port],
    env: Mapping[str, int],
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    bounds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Seeded inputs, drawn in the order of the ports; integers stay below `bounds`, too (see `index_bounds`).

    Raises `AtcError` E30016 for shapes that are not determined.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for port in ports:
        type_ = port.type
        try:
            if isinstance(type_, Tensor):
                top = (bounds or {}).get(port.name, INT_LIMIT)
                feeds[port.name] = _draw(type_.dtype, concrete_shape(port, env, shapes), rng, top)
            else:
                feeds[port.name] = _compound(port.name, type_, env, rng)
        except MemoryError as e:
            raise error("E30004", f"input '{port.name}'", f"cannot be made: {e}", "use smaller shapes") from e
    return feeds


def _compound(name: str, type_: Type, env: Mapping[str, int], rng: np.random.Generator) -> Any:
    """A sequence of one element, or an optional that is there."""
    listed: list[bool] = []
    while isinstance(type_, (types.Sequence, types.Optional)):
        listed.append(isinstance(type_, types.Sequence))
        type_ = type_.element
    if not isinstance(type_, Tensor):
        raise error("E30016", f"input '{name}'", "maps cannot be drawn at random", "give the input in Python")
    value: Any = _draw(type_.dtype, _shape(name, type_, env), rng)
    for is_list in reversed(listed):
        value = [value] if is_list else value
    return value


def _draw(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, limit: int = INT_LIMIT) -> Array:
    if dtype is DType.STRING:
        return np.full(shape, TEXT, dtype=object)
    if dtype is DType.BOOL:
        return np.ones(shape, np.bool_)
    if dtype.is_int:
        top = min(limit, 2 if dtype in (DType.INT2, DType.UINT2) else INT_LIMIT)
        return np.asarray(rng.integers(0, top, shape)).astype(dtype.numpy)
    drawn = np.asarray(rng.standard_normal(shape))
    if dtype.is_complex:
        drawn = drawn + 1j * np.asarray(rng.standard_normal(shape))
    return np.abs(drawn).astype(dtype.numpy) if dtype is DType.FLOAT8_E8M0 else drawn.astype(dtype.numpy)


@dataclass
class Feeds:
    """Inputs by name, and for each where it came from."""

    arrays: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def read_feeds(
    specs: Sequence[str],
    ports: Sequence[Port],
    env: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Feeds:
    """Inputs from files: each spec is `name=file`, a file, or a folder of files.

    A file without a name belongs to the input that it is named after, else to the next input that has none. `.npz`
    files hold inputs by name. Raises `AtcError` E13000, E30005, E30013, E30014 or E30015.
    """
    reader = _Reader(ports, env, shapes)
    unnamed: list[Path] = []
    for spec in specs:
        for part in _parts(spec, reader.ports):
            name, equals, file = part.partition("=")
            if equals and name in reader.ports:
                reader.read(name, Path(file))
            elif equals and not Path(part).exists():
                hint = f"it has {', '.join(reader.ports) or 'none'}"
                raise error("E30005", f"input '{name}'", "the model has no such input", hint)
            else:
                unnamed += reader.named_by_file(Path(part))
    for path in unnamed:
        free = [n for n in reader.ports if n not in reader.feeds.arrays]
        if not free:
            hint = "name them: --input name=file"
            raise error("E30015", str(path), f"there are more files than the model's {len(ports)} inputs", hint)
        reader.read(free[0], path)
    return reader.feeds


def _parts(spec: str, ports: Mapping[str, Port]) -> list[str]:
    """A spec's files: a list with commas is taken apart unless it is the name of one file."""
    if "," not in spec or Path(spec).exists():
        return [spec]
    name, equals, path = spec.partition("=")
    if equals and name in ports and Path(path).exists():
        return [spec]
    return [p for p in spec.split(",") if p]


class _Reader:
    def __init__(
        self, ports: Sequence[Port], env: Mapping[str, int], shapes: Mapping[str, Sequence[int]] | None
    ) -> None:
        self.ports = {p.name: p for p in ports}
        self.stems = {file_name(p.name): p.name for p in ports}
        self.env, self.shapes = env, shapes
        self.feeds = Feeds()

    def named_by_file(self, path: Path) -> list[Path]:
        """Read what tells its input's name; returns the files that do not."""
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
            if not files:
                raise error("E30013", str(path), f"the folder has no {', '.join(SUFFIXES)} file", "check the path")
            return [left for file in files for left in self.named_by_file(file)]
        if path.suffix.lower() == ".npz":
            self._read_archive(path)
            return []
        name = self.stems.get(path.stem)
        if name is None or name in self.feeds.arrays:
            return [path]
        self.read(name, path)
        return []

    def _read_archive(self, path: Path) -> None:
        arrays = read_npz(path)
        by_position = all(n.startswith("arr_") and n not in self.ports for n in arrays)
        if by_position and len(arrays) > len(self.ports):
            raise error("E30015", str(path), f"has {len(arrays)} arrays for {len(self.ports)} inputs", "name them")
        names = dict(zip(arrays, self.ports)) if by_position else {n: n for n in arrays}
        for key, array in arrays.items():
            self._put(names[key], array, f"{path}:{key}")

    def read(self, name: str, path: Path) -> None:
        """Read the file of one input."""
        port = self.ports[name]
        if not isinstance(port.type, Tensor):
            raise error("E30013", f"input '{name}'", "only tensors can be read from files", "use the Python API")
        suffix = path.suffix.lower()
        if suffix == ".npy":
            array = read_npy(path)
        elif suffix == ".npz":
            arrays = read_npz(path)
            if name not in arrays:
                raise error("E30013", str(path), f"has no array '{name}', but {', '.join(arrays)}", "name the array so")
            array = arrays[name]
        elif suffix == ".bin":
            array = read_bin(path, port.type.dtype, concrete_shape(port, self.env, self.shapes))
        else:
            hint = f"use one of {', '.join(SUFFIXES)}"
            raise error("E30013", str(path), f"the suffix '{path.suffix}' is none of an input file", hint)
        self._put(name, array, str(path))

    def _put(self, name: str, array: Array, source: str) -> None:
        port = self.ports.get(name)
        if port is None:
            hint = f"it has {', '.join(self.ports) or 'none'}"
            raise error("E30005", f"input '{name}' of {source}", "the model has no such input", hint)
        if name in self.feeds.arrays:
            earlier = self.feeds.sources[name]
            raise error("E30015", f"input '{name}'", f"is given twice: by {earlier} and by {source}", "give it once")
        self.feeds.arrays[name] = as_meant(array, port.type.dtype) if isinstance(port.type, Tensor) else array
        self.feeds.sources[name] = source
