"""`Target`: the numbers of a system on chip that compilation depends on, and `load`, which reads them.

    load("ascend310p3").l1            →  1048576 bytes
    load("Ascend310P")                →  AtcError: there is no target 'Ascend310P'; did you mean Ascend310P3, …?
    load("my_npu.toml")               →  a target of one's own, in the form of the files in `atc_py/target/data`

Every key is required, of the table `toolkit` where there is one; none may be unknown; all faults of a file are reported
at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from atc_py.errors import Problems, error
from atc_py.ir.types import DType, Format

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class CubeShape:
    """What the cube unit multiplies in one cycle: [m, k] × [k, n]."""

    m: int
    k: int
    n: int


@dataclass(frozen=True)
class Rates:
    """What a task costs beyond the data sheet's rates; see `atc_py.target.cost`.

    `cube`, `vector` and `ddr` are the shares of the nominal rates that kernels reach, `l1` and `ub` those of L2's rate
    on the way to L1 and to and from the unified buffer. `exposed` is the share of
    the less busy side's time that is not hidden behind the busier one. `piece_bytes` is how many bytes could have
    been moved in the time that each separate piece of data costs. `task_us` is what launching a task costs on the
    device, `model_us` what launching a model costs. `host_task_us` is a task that the host launches by itself,
    `aicpu_task_us` one on AI CPU, `aicpu_per_us` how many element operations AI CPU does in a microsecond.
    """

    cube: float
    vector: float
    ddr: float
    l1: float
    ub: float
    exposed: float
    piece_bytes: float
    task_us: float
    model_us: float
    host_task_us: float
    aicpu_task_us: float
    aicpu_per_us: float


@dataclass(frozen=True)
class Toolkit:
    """The vendor's toolkit with which the chip's latencies were measured: what predictions of time have to leave out.

    `lacks` are passes and fusion rules of ours that it has not; `streams` is on how many streams it puts a model.
    """

    lacks: tuple[str, ...]
    streams: int


@dataclass(frozen=True, eq=False)
class Target:
    """One system on chip. Sizes are bytes (of one core's buffer where it is a core's), rates bytes a cycle of one core.

    `cube` has an entry for each dtype that the cube unit multiplies without emulation. `prefers` is the format in
    which the units take four-dimensional activations. `toolkit` is None where nothing is known of it.
    """

    name: str
    description: str
    aicores: int
    vector_cores: int
    frequency_mhz: int
    l0a: int
    l0b: int
    l0c: int
    l1: int
    ub: int
    l2: int
    memory: int
    ddr_bytes_per_cycle: int
    l2_read_bytes_per_cycle: int
    l2_write_bytes_per_cycle: int
    cube: Mapping[DType, CubeShape]
    prefers: Format
    rates: Rates
    toolkit: Toolkit | None = None

    @property
    def vector_units(self) -> int:
        """How many cores the vector work of a task spreads over: vector cores where the cube cores have none."""
        return max(self.aicores, self.vector_cores)

    def has_cube(self, dtype: DType) -> bool:
        """Whether the cube unit multiplies this dtype itself."""
        return dtype in self.cube

    def key(self) -> tuple[Any, ...]:
        """Every field, hashable: equal targets have equal keys."""
        values = [getattr(self, f.name) for f in fields(self)]
        return tuple(tuple(v.items()) if isinstance(v, Mapping) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Target) and self.key() == other.key())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.key())


_KIB = 1 << 10
_RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "cores": {"aicores": (1, 1024), "vector_cores": (0, 1024), "frequency_mhz": (1, 100_000)},
    "buffers": {
        "l0a": (512, 1 << 30),
        "l0b": (512, 1 << 30),
        "l0c": (1024, 1 << 30),
        "l1": (4 * _KIB, 1 << 34),
        "ub": (4 * _KIB, 1 << 34),
        "l2": (0, 1 << 40),
    },
    "memory": {
        "memory": (1 << 20, 1 << 50),
        "ddr_bytes_per_cycle": (1, 1 << 20),
        "l2_read_bytes_per_cycle": (1, 1 << 20),
        "l2_write_bytes_per_cycle": (1, 1 << 20),
    },
}
"""Tables of whole numbers: key → (smallest, largest)."""

_RATES: dict[str, tuple[float, float]] = {
    "cube": (0.01, 1.0),
    "vector": (0.01, 1.0),
    "ddr": (0.01, 2.0),
    "l1": (0.01, 1.0),
    "ub": (0.01, 1.0),
    "exposed": (0.0, 1.0),
    "piece_bytes": (0.0, 1e6),
    "task_us": (0.0, 1e6),
    "model_us": (0.0, 1e6),
    "host_task_us": (0.0, 1e6),
    "aicpu_task_us": (0.0, 1e6),
    "aicpu_per_us": (1.0, 1e9),
}
"""The table of rates: key → (smallest, largest)."""

_TABLES = ("target", *_RANGES, "rates", "cube", "toolkit")
"""All tables; `toolkit` may be left out."""
_FORMATS = {"NC1HWC0": Format.NC1HWC0, "NHWC": Format.NHWC}


@cache
def names() -> tuple[str, ...]:
    """The targets that come with the package, in order."""
    folder = files("atc_py.target") / "data"
    return tuple(sorted(item.name[: -len(".toml")] for item in folder.iterdir() if item.name.endswith(".toml")))


def load(name_or_path: str | os.PathLike[str]) -> Target:
    """A target by name (letter case does not matter) or from a `.toml` file.

    Raises `AtcError` E20010 for an unknown name or a file that cannot be read, E20011 for each fault in a file.
    """
    text = os.fspath(name_or_path)
    if text.endswith(".toml"):
        return _from_file(Path(text))
    by_name = {name.lower(): name for name in names()}
    found = by_name.get(text.lower())
    if found is None:
        near = [by_name[n] for n in get_close_matches(text.lower(), list(by_name), 3)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"the targets are {', '.join(names())}"
        hint += " (a path to a .toml file works too)"
        raise error("E20010", "--soc-version", f"there is no target '{text}'", hint)
    return _packaged(found)


@cache
def _packaged(name: str) -> Target:
    source = files("atc_py.target") / "data" / f"{name}.toml"
    return parse(source.read_text(encoding="utf-8"), f"{name}.toml")


def _from_file(path: Path) -> Target:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise error("E20010", str(path), f"the target file cannot be read: {problem}", "check the path") from problem
    return parse(text, str(path))


def parse(text: str, place: str) -> Target:
    """The target that a TOML text describes; `place` names it in errors."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error("E20011", place, f"this is not TOML: {problem}", "correct it there") from problem
    return _Reader(tables, place).target()


class _Reader:
    """Checks the tables of one file and collects every fault."""

    def __init__(self, tables: Mapping[str, Any], place: str) -> None:
        self.tables, self.place = tables, place
        self.problems = Problems()

    def target(self) -> Target:
        """The target; raises `AtcError` with all faults."""
        self._known("", self.tables, _TABLES)
        head = self._table("target")
        self._known("target.", head, ("name", "description", "prefers"))
        numbers: dict[str, Any] = {}
        for table, ranges in _RANGES.items():
            given = self._table(table)
            self._known(f"{table}.", given, tuple(ranges))
            for key, (low, high) in ranges.items():
                numbers[key] = self._whole(f"{table}.{key}", given.get(key), low, high)
        name = self._text("target.name", head.get("name"))
        description = self._text("target.description", head.get("description"))
        prefers = head.get("prefers")
        if prefers not in _FORMATS:
            self._fault("target.prefers", f"expected one of {', '.join(_FORMATS)}, found {prefers!r}")
        rates = self._rates()
        cube, toolkit = self._cube(), self._toolkit()
        self.problems.raise_any()
        prefers = _FORMATS[str(prefers)]
        return Target(
            name=name, description=description, cube=cube, prefers=prefers, rates=rates, toolkit=toolkit, **numbers
        )

    def _fault(self, key: str, cause: str, hint: str = "") -> None:
        hint = hint or "compare it with the targets that come with atc-py, in atc_py/target/data"
        self.problems.add("E20011", f"{self.place}: {key}", cause, hint)

    def _table(self, name: str) -> Mapping[str, Any]:
        table = self.tables.get(name)
        if isinstance(table, dict):
            return table
        self._fault(name, "the table is missing" if table is None else f"expected a table, found {table!r}")
        return {}

    def _known(self, prefix: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                near = get_close_matches(key, keys, 1)
                hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
                self._fault(f"{prefix}{key}", "this key is not known", hint)

    def _whole(self, key: str, value: Any, low: int, high: int) -> int:
        if type(value) is not int:
            self._fault(key, "the key is missing" if value is None else f"expected a whole number, found {value!r}")
        elif not low <= value <= high:
            self._fault(key, f"{value} is outside {low} to {high}", "use a value in this range")
        else:
            return value
        return low

    def _rates(self) -> Rates:
        given = self._table("rates")
        self._known("rates.", given, tuple(_RATES))
        found = {key: self._number(f"rates.{key}", given.get(key), *ends) for key, ends in _RATES.items()}
        return Rates(**found)

    def _toolkit(self) -> Toolkit | None:
        if "toolkit" not in self.tables:
            return None
        given = self._table("toolkit")
        self._known("toolkit.", given, ("lacks", "streams"))
        lacks = given.get("lacks")
        if not (isinstance(lacks, list) and all(isinstance(name, str) for name in lacks)):
            self._fault("toolkit.lacks", f"expected a list of names of passes, found {lacks!r}")
            lacks = []
        return Toolkit(tuple(lacks), self._whole("toolkit.streams", given.get("streams"), 1, 1024))

    def _number(self, key: str, value: Any, low: float, high: float) -> float:
        if type(value) not in (int, float):
            self._fault(key, "the key is missing" if value is None else f"expected a number, found {value!r}")
        elif not low <= value <= high:
            self._fault(key, f"{value} is outside {low:g} to {high:g}", "use a value in this range")
        else:
            return float(value)
        return low

    def _text(self, key: str, value: Any) -> str:
        if isinstance(value, str) and value.strip():
            return value
        self._fault(key, "the key is missing" if value is None else f"expected a text, found {value!r}")
        return ""

    def _cube(self) -> Mapping[DType, CubeShape]:
        cube: dict[DType, CubeShape] = {}
        dtypes = {d.value: d for d in DType if d is not DType.STRING}
        given = self._table("cube")
        self._known("cube.", given, tuple(dtypes))
        if not given and "cube" in self.tables:
            self._fault("cube", "the cube unit multiplies no dtype", "add a table such as [cube.float16]")
        for name, shape in given.items():
            if name not in dtypes:
                continue
            if not isinstance(shape, dict):
                self._fault(f"cube.{name}", f"expected a table with m, k and n, found {shape!r}")
                continue
            self._known(f"cube.{name}.", shape, ("m", "k", "n"))
            m, k, n = (self._whole(f"cube.{name}.{x}", shape.get(x), 1, 4096) for x in "mkn")
            cube[dtypes[name]] = CubeShape(m, k, n)
        return MappingProxyType(cube)
