"""Reading an ONNX file: bytes → ModelProto, versions checked, external data found but not loaded.

load("m.onnx")   →   Model(proto, place="m.onnx", opsets={"": 17, "com.microsoft": 1}, files=…)
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.defs
from google.protobuf.message import DecodeError

from atc_py.errors import AtcError, Problem, error
from atc_py.frontend import codes
from atc_py.frontend.external import ExternalFiles
from atc_py.frontend.onnx_types import text

MIN_IR = 3
MIN_OPSET = 7


@dataclass
class Model:
    """A parsed model. `place` names it in messages; `opsets` is domain → version with '' for ai.onnx."""

    proto: onnx.ModelProto
    place: str
    files: ExternalFiles
    opsets: dict[str, int] = field(default_factory=dict)
    warnings: list[Problem] = field(default_factory=list)


def load(source: str | os.PathLike[str] | bytes | onnx.ModelProto, folder: Path | None = None) -> Model:
    """Parse and check versions. `folder` is where external data of a model given in memory lies.

    Raises `AtcError` when it is no ONNX model, is truncated, or has a version that cannot be read.
    """
    if isinstance(source, onnx.ModelProto):
        model = Model(source, "the model", ExternalFiles(folder))
    elif isinstance(source, bytes):
        model = Model(_parse(memoryview(source), "the model"), "the model", ExternalFiles(folder))
    else:
        path = Path(source)
        model = Model(_read(path), str(path), ExternalFiles(folder or path.parent))
    _check_versions(model)
    return model


def _read(path: Path) -> onnx.ModelProto:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise error(codes.NOT_ONNX, str(path), "the file is empty", "export or download the model again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                return _parse(view, str(path))
    except FileNotFoundError:
        raise error(codes.ONNX_FILE, str(path), "the file does not exist", "check the path") from None
    except IsADirectoryError:
        raise error(codes.ONNX_FILE, str(path), "this is a folder, not a file", "name the .onnx file in it") from None
    except (OSError, ValueError) as problem:
        raise error(codes.ONNX_FILE, str(path), f"the file cannot be read: {problem}") from None


def _parse(data: memoryview, place: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)  # type: ignore[arg-type]  # the stub knows bytes only
    except (DecodeError, ValueError, RuntimeError, RecursionError, MemoryError) as problem:
        raise _unreadable(data, place, problem) from None
    if not proto.HasField("ir_version") and not proto.HasField("graph"):
        raise error(codes.NOT_ONNX, place, "the content is no ONNX model", "check that the right file was given")
    return proto


def _unreadable(data: memoryview, place: str, problem: BaseException) -> AtcError:
    if data.nbytes >= 1 << 31:
        return error(
            codes.NOT_ONNX,
            place,
            f"the file has {data.nbytes} bytes, but protobuf reads less than {1 << 31}",
            "save the model with external data: onnx.save(model, path, save_as_external_data=True)",
        )
    fields, at, end = _walk(data)
    if fields and end > data.nbytes:
        return error(
            codes.TRUNCATED,
            place,
            f"the file ends at byte {data.nbytes}, but the field that begins at byte {at} goes on to byte {end}",
            "the download or copy was cut off: get the file again",
        )
    start = bytes(data[:64]).lstrip().lower()
    for begins, what, hint in _OTHERS:
        if start.startswith(begins):
            return error(codes.NOT_ONNX, place, f"this is no ONNX model, but {what}", hint)
    hint = "the file is damaged: get it again" if fields else "check that the right file was given"
    return error(codes.NOT_ONNX, place, f"the content is no ONNX model ({problem})", hint)


_OTHERS = (
    (b"imod", "an OM", "it has been converted already: 'atc inspect' shows it, 'atc run' runs it"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file that it stands for: git lfs pull"),
    (b"<", "a web page or another text in angle brackets", "download the file itself, not the page about it"),
    (b"pk\x03\x04", "a ZIP archive", "unpack it; a PyTorch file has to be exported: torch.onnx.export(...)"),
    (b"\x80", "a Python pickle", "a PyTorch file has to be exported first: torch.onnx.export(...)"),
    (b"\x93numpy", "a numpy array", "give the .onnx file first, and arrays with --input"),
)
"""What may lie in the place of a model: how it begins (in lower case), what it is, what to do."""


_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""ModelProto's field numbers and their wire types."""


def _walk(data: memoryview) -> tuple[int, int, int]:
    """Step through the top-level fields: (how many looked right, where the last began, where it says it ends)."""
    at, fields = 0, 0
    while at < data.nbytes:
        tag, body = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if _MODEL_FIELDS.get(number) != wire:
            return 0, at, at
        value, end = _varint(data, body)
        if wire == 2:
            end += value
        if end > data.nbytes:
            return fields + 1, at, end
        at, fields = end, fields + 1
    return fields, at, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A base-128 number and the offset behind it (beyond the data when it is cut off)."""
    value = shift = 0
    while at < data.nbytes and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    return value, data.nbytes + 1


def normal_domain(domain: str) -> str:
    """'' for both spellings of the standard domain."""
    return "" if domain == "ai.onnx" else domain


def newest_opsets() -> dict[str, int]:
    """Domain → newest version that the installed onnx package defines."""
    return {normal_domain(d): high for d, (_, high) in onnx.defs.C.schema_version_map().items()}


def _check_versions(model: Model) -> None:
    proto, place = model.proto, model.place
    if not proto.HasField("graph"):
        raise error(codes.NO_GRAPH, place, "the model holds no graph", "export it again")
    if proto.ir_version < MIN_IR:
        raise error(
            codes.IR_VERSION,
            place,
            f"the model has IR version {proto.ir_version}, but version {MIN_IR} or newer is needed",
            "export the model again with a current exporter",
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise error(
            codes.IR_VERSION,
            place,
            f"the model has IR version {proto.ir_version}, but onnx {onnx.__version__} reads versions up to "
            f"{onnx.IR_VERSION}",
            "run: pip install --upgrade onnx",
        )
    model.opsets = imports(proto.opset_import, place)
    if 0 < model.opsets.get("", MIN_OPSET) < MIN_OPSET:
        cause = f"opset {model.opsets['']} is older than {MIN_OPSET}; its operators are converted where that is exact"
        model.warnings.append(Problem(codes.LEGACY_OPSET, place, cause))


def imports(entries: object, place: str) -> dict[str, int]:
    """Domain → version of opset_import entries; raises `AtcError` on contradictions and versions that are too new."""
    newest, problems = newest_opsets(), []
    found: dict[str, int] = {}
    for entry in entries:  # type: ignore[attr-defined]
        domain, version = normal_domain(text(entry.domain)), int(entry.version)
        spelled = domain or "ai.onnx"
        if found.setdefault(domain, version) != version:
            cause = f"domain '{spelled}' is imported in versions {found[domain]} and {version}"
            problems.append(Problem(codes.DOMAIN_TWICE, place, cause, "keep one entry of opset_import"))
        if domain in newest and not 1 <= version <= newest[domain]:
            cause = (
                f"the model uses opset {version} of '{spelled}', but onnx {onnx.__version__} knows versions 1 to "
                f"{newest[domain]}"
            )
            hint = f"run: pip install --upgrade onnx, or export with opset {newest[domain]} or older"
            problems.append(Problem(codes.OPSET, place, cause, hint))
    if problems:
        raise AtcError(*problems)
    return found
