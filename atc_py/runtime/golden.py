"""Golden files: the inputs and outputs of one run, to be compared with later ones.

golden.npz   meta      a JSON text: format, seed, versions, the OM's SHA-256, and how the values are built
             value_0…  the arrays, inputs first; never a pickle

record("m.om", Session("m.om"), feeds, seed=0).save("golden.npz")
verify(Session("m.om"), read("golden.npz"))    →   one Difference an output
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from atc_py import __version__
from atc_py.errors import AtcError, error
from atc_py.ir.types import DType
from atc_py.runtime.arrays import Array, as_meant, read_npz, write_npz
from atc_py.runtime.compare import Difference, compare_values
from atc_py.runtime.session import Session

FORMAT = 1
_MAX_DEPTH = 16


@dataclass(frozen=True)
class Golden:
    """Inputs and outputs by name, and where they came from. `digest` is the SHA-256 of the OM that made them."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    digest: str
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the file. Raises `AtcError` E13001."""
        arrays: list[Array] = []
        meta = {
            "format": FORMAT,
            "digest": self.digest,
            "seed": self.seed,
            "versions": dict(self.versions),
            "inputs": {name: _pack(value, arrays) for name, value in self.inputs.items()},
            "outputs": {name: _pack(value, arrays) for name, value in self.outputs.items()},
        }
        named = {f"value_{i}": array for i, array in enumerate(arrays)}
        write_npz(Path(path), {"meta": np.array(json.dumps(meta)), **named})


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    h = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                h.update(chunk)
    except OSError as e:
        raise error("E13000", str(path), f"cannot be read: {e.strerror or e}", "check the path") from e
    return h.hexdigest()


def versions() -> dict[str, str]:
    """What results may depend on."""
    return {"atc-py": __version__, "numpy": np.__version__, "python": platform.python_version()}


def record(model: str | Path, session: Session, feeds: Mapping[str, Any], seed: int | None = None) -> Golden:
    """Run once and keep everything. `model` is the file that the session runs."""
    outputs = session.run(None, feeds)
    named = dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))
    return Golden(dict(feeds), named, file_digest(model), seed, versions())


def read(path: str | Path) -> Golden:
    """Read a golden file. Raises `AtcError` E13000, E30013 or E30031."""
    arrays = read_npz(Path(path))
    try:
        meta = json.loads(str(arrays["meta"]))
        if meta["format"] != FORMAT:
            raise _broken(path, f"has format {meta['format']}, this release reads {FORMAT}")
        inputs = {str(name): _unpack(spec, arrays, 0) for name, spec in meta["inputs"].items()}
        outputs = {str(name): _unpack(spec, arrays, 0) for name, spec in meta["outputs"].items()}
        seed = meta["seed"]
        return Golden(inputs, outputs, str(meta["digest"]), None if seed is None else int(seed), dict(meta["versions"]))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise _broken(path, f"is no golden file: {type(e).__name__}: {e}") from e


def _broken(path: str | Path, cause: str) -> AtcError:
    return error("E30031", str(path), cause, "record it again: atc golden record model.om -o golden.npz")


def _pack(value: Any, arrays: list[Array]) -> dict[str, Any]:
    """How a value is built of arrays, which are appended to `arrays`."""
    if value is None:
        return {"kind": "none"}
    if isinstance(value, (list, tuple)):
        return {"kind": "sequence", "items": [_pack(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        keys = np.array(list(value), dtype=object if any(isinstance(k, str) for k in value) else None)
        return {"kind": "map", "keys": _pack(keys, arrays), "items": [_pack(v, arrays) for v in value.values()]}
    array = np.asarray(value)
    array = array.astype(object) if array.dtype.kind in "US" else array
    arrays.append(array)
    return {"kind": "tensor", "array": len(arrays) - 1, "dtype": DType.of(array.dtype).value}


def _unpack(spec: Mapping[str, Any], arrays: Mapping[str, Array], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("its values are nested too deep")
    if spec["kind"] == "none":
        return None
    if spec["kind"] == "sequence":
        return [_unpack(item, arrays, depth + 1) for item in spec["items"]]
    if spec["kind"] == "map":
        keys = _unpack(spec["keys"], arrays, depth + 1).tolist()
        return dict(zip(keys, (_unpack(item, arrays, depth + 1) for item in spec["items"]), strict=True))
    return as_meant(arrays[f"value_{spec['array']}"], DType(spec["dtype"]))


def verify(
    session: Session,
    golden: Golden,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    cosine: float | None = None,
) -> list[Difference]:
    """Run the golden inputs again and compare each output. Raises `AtcError` when the model has other outputs."""
    names = list(golden.outputs)
    got = session.run(names, golden.inputs)
    return compare_values(names, got, list(golden.outputs.values()), rtol=rtol, atol=atol, cosine=cosine)


def junit(differences: Sequence[Difference], suite: str, elapsed: float) -> bytes:
    """The comparison as a JUnit report: one test case an output. `elapsed` is in seconds."""
    failed = sum(not d.passed for d in differences)
    counts = {"tests": str(len(differences)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {**counts, "time": f"{elapsed:.3f}"})
    group = ElementTree.SubElement(root, "testsuite", {"name": _xml(suite), **counts, "time": f"{elapsed:.3f}"})
    for d in differences:
        case = ElementTree.SubElement(
            group, "testcase", {"classname": _xml(suite), "name": _xml(d.name), "time": "0.000"}
        )
        if not d.passed:
            failure = ElementTree.SubElement(case, "failure", {"message": _xml(d.reason), "type": "mismatch"})
            failure.text = _xml(json.dumps(d.to_json(), indent=2))
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _xml(text: str) -> str:
    """The text without the characters that XML 1.0 cannot hold."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
