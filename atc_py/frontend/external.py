"""External data: weights that lie in files beside the model, mapped once a file and never copied.

location "m.data", offset 4096, length 36   →   a view of 36 bytes of the mapped file
"""

from __future__ import annotations

import mmap
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from atc_py.errors import AtcError, error
from atc_py.frontend import codes
from atc_py.frontend.onnx_types import text


class ExternalFiles:
    """The data files of one model; `folder` is the model's folder, None when the model came without one."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._root = None if folder is None else folder.resolve()
        self._maps: dict[str, memoryview | AtcError] = {}

    def view(self, tensor: onnx.TensorProto, nbytes: int) -> memoryview:
        """The tensor's bytes; raises `AtcError` when the file is missing, elsewhere, or too short for `nbytes`."""
        entries = {text(e.key): text(e.value) for e in tensor.external_data}
        place = f"tensor '{tensor.name}'"
        location = entries.get("location", "")
        if not location:
            raise error(codes.EXTERNAL_PATH, place, "its external data names no file", "write the model again")
        mapped = self._file(location)
        offset, length = (_count(entries, key, place) for key in ("offset", "length"))
        begin = offset or 0
        if length is not None and length != nbytes:
            raise error(
                codes.EXTERNAL_BOUNDS, place, f"its type and dims need {nbytes} bytes, but the model gives it {length}"
            )
        if begin + nbytes > mapped.nbytes:
            raise error(
                codes.EXTERNAL_BOUNDS,
                place,
                f"bytes {begin} to {begin + nbytes} of '{location}' are needed, but the file has {mapped.nbytes} bytes",
                "the data file is truncated or belongs to another model: get it again",
            )
        return mapped[begin : begin + nbytes]

    def _file(self, location: str) -> memoryview:
        if location not in self._maps:
            try:
                self._maps[location] = self._open(location)
            except AtcError as problem:
                self._maps[location] = problem
        found = self._maps[location]
        if isinstance(found, AtcError):
            # The same problem for every tensor of the file, so that it is reported once.
            raise AtcError(*found.problems)
        return found

    def _open(self, location: str) -> memoryview:
        place = f"external data '{location}'"
        if self._root is None:
            raise error(
                codes.EXTERNAL_MISSING, place, "the model was given without a folder", "give the model by its path"
            )
        path = self._inside(location, place)
        try:
            size = path.stat().st_size
            if not path.is_file():
                raise error(codes.EXTERNAL_MISSING, place, "it is no regular file")
            if size == 0:
                return memoryview(b"")
            with path.open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            cause = f"the file is missing in {self.folder}"
            raise error(codes.EXTERNAL_MISSING, place, cause, "put the file beside the model") from None
        except (OSError, ValueError) as problem:
            raise error(codes.EXTERNAL_MISSING, place, f"the file cannot be read: {problem}") from None

    def _inside(self, location: str, place: str) -> Path:
        assert self._root is not None
        windows = PureWindowsPath(location)
        parts = (*PurePosixPath(location).parts, *windows.parts)
        hint = "external data must lie in the model's folder: copy it there and save the model with that path"
        if PurePosixPath(location).is_absolute() or windows.drive or windows.root or ".." in parts or "\0" in location:
            raise error(codes.EXTERNAL_PATH, place, "the path leads out of the model's folder", hint)
        try:
            path = (self._root / location).resolve()
        except (OSError, RuntimeError) as problem:
            raise error(codes.EXTERNAL_PATH, place, f"the path cannot be followed: {problem}", hint) from None
        if not path.is_relative_to(self._root):
            raise error(codes.EXTERNAL_PATH, place, "a symbolic link leads out of the model's folder", hint)
        return path


def _count(entries: dict[str, str], key: str, place: str) -> int | None:
    count = entries.get(key)
    if count is None:
        return None
    if not (count.isascii() and count.isdigit()) or len(count) > 19:
        raise error(codes.EXTERNAL_BOUNDS, place, f"its external {key} '{count[:40]}' is no byte count")
    return int(count)
