"""Arrays in files: `.npy`, `.npz` and raw bytes, never pickles, and files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from zipfile import BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.types import DType

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
SUFFIXES = (".npy", ".npz", ".bin")
"""Files that can be inputs."""

_UNREADABLE = (ValueError, EOFError, KeyError, MemoryError, NotImplementedError, BadZipFile, ZlibError, SyntaxError)


def _cannot_read(path: Path, problem: OSError) -> AtcError:
    return error("E13000", str(path), f"cannot be read: {problem.strerror or problem}", "check the path")


def _unusable(path: Path, cause: object) -> AtcError:
    hint = "write it with numpy.save or numpy.savez, without pickled objects"
    return error("E30013", str(path), f"is no array file that can be used: {cause}", hint)


def read_npy(path: Path) -> Array:
    """The array of an `.npy` file. Raises `AtcError` E13000 or E30013."""
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as e:
        raise _cannot_read(path, e) from e
    except _UNREADABLE as e:
        raise _unusable(path, e) from e
    if not isinstance(found, np.ndarray):
        found.close()
        raise _unusable(path, "it is an archive of arrays; give it the suffix .npz")
    return found


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an `.npz` file by name. Raises `AtcError` E13000 or E30013."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise _unusable(path, "it is a single array; give it the suffix .npy")
        with found:
            return {name: found[name] for name in found.files}
    except OSError as e:
        raise _cannot_read(path, e) from e
    except _UNREADABLE as e:
        raise _unusable(path, e) from e


def read_bin(path: Path, dtype: DType, shape: Sequence[int]) -> Array:
    """Raw little-endian bytes of a known dtype and shape. Raises `AtcError` E13000, E30013 or E30014."""
    if dtype is DType.STRING:
        raise _unusable(path, "raw bytes cannot hold strings")
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as e:
        raise _cannot_read(path, e) from e
    count = int(np.prod(shape, dtype=object))
    expected = count * dtype.numpy.itemsize
    if raw.nbytes != expected:
        shown = f"{dtype.value}[{', '.join(str(d) for d in shape)}]"
        raise error(
            "E30014",
            str(path),
            f"has {raw.nbytes} bytes, expected {expected} for {shown}",
            "write the array in the model's dtype and shape, e.g. x.astype(dtype).tofile(path)",
        )
    return raw.view(dtype.numpy).reshape(tuple(shape))


def as_stored(array: Array) -> Array:
    """The array as numpy's files keep it: native bytes of types that numpy does not know, strings as unicode."""
    if array.dtype == object:
        return array.astype(np.str_)
    if array.dtype.kind == "V" or DType.of(array.dtype).numpy.isbuiltin != 1:
        return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
    return array


def as_meant(array: Array, dtype: DType) -> Array:
    """The inverse of `as_stored`: an array that has the dtype's bytes under a stand-in type gets the dtype."""
    if dtype is DType.STRING:
        return array.astype(object)
    meant = dtype.numpy
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    stand_in = array.dtype.kind == "V" or (array.dtype.kind == "u" and meant.isbuiltin != 1)
    if array.dtype != meant and stand_in and array.dtype.itemsize == meant.itemsize:
        return np.ascontiguousarray(array).view(meant).reshape(array.shape)
    return array


def leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    """The arrays inside a value with names of their own: `y`, `y[0]` in a sequence, `y['cat']` in a map.

    An absent optional is a leaf of None; a scalar counts as an array of rank 0.
    """
    found: list[tuple[str, Any]] = []
    stack: list[tuple[str, Any]] = [(name, value)]
    while stack:
        label, top = stack.pop()
        if isinstance(top, (list, tuple)):
            stack += reversed([(f"{label}[{i}]", item) for i, item in enumerate(top)])
        elif isinstance(top, Mapping):
            stack += reversed([(f"{label}[{key!r}]", item) for key, item in top.items()])
        elif top is None:
            found.append((label, None))
        else:
            array = np.asarray(top)
            found.append((label, array.astype(object) if array.dtype.kind in "US" else array))
    return found


def file_name(name: str) -> str:
    """A tensor's name as a file's: what is no letter, digit, `.`, `-` or `_` becomes `_`."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".")
    return safe[:120] or "_"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place only when the block ends well. Raises `AtcError` E13001."""
    beside = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        with open(beside, "xb") as sink:
            yield sink
        os.replace(beside, path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise error(
            "E13001", str(path), f"cannot be written: {e.strerror or e}", "check the folder and its space"
        ) from e
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_npy(path: Path, array: Array) -> None:
    """One array as `.npy`."""
    with replacing(path) as sink:
        np.save(sink, as_stored(array), allow_pickle=False)


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Arrays by name as `.npz`, the same bytes each time (numpy.savez cannot take every name)."""
    with replacing(path) as sink, ZipFile(sink, "w") as archive:
        for name, array in arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(as_stored(array)), allow_pickle=False)


def write_bin(path: Path, array: Array) -> None:
    """One array's bytes, in C order, little-endian. Raises `AtcError` E30013 for strings."""
    if array.dtype == object:
        raise error("E30013", str(path), "raw bytes cannot hold strings", "write NPY or TXT")
    with replacing(path) as sink:
        sink.write(np.ascontiguousarray(array).tobytes())


def write_txt(path: Path, array: Array) -> None:
    """One element a line under a line that has dtype and shape."""
    shown = "string" if array.dtype == object else str(array.dtype)
    with replacing(path) as sink:
        sink.write(f"# {shown} {list(array.shape)}\n".encode())
        for item in array.reshape(-1):
            sink.write(f"{item}\n".encode())


WRITERS: Mapping[str, Callable[[Path, Array], None]] = {"NPY": write_npy, "BIN": write_bin, "TXT": write_txt}
"""How one array becomes one file."""
