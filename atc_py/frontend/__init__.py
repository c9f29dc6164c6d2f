"""ONNX models as graphs of the IR: `read(source, ReadOptions(...))`."""

from __future__ import annotations

from atc_py.frontend.inputs import parse_input_shapes
from atc_py.frontend.reader import Imported, ReadOptions, import_model, read

__all__ = ["Imported", "ReadOptions", "import_model", "parse_input_shapes", "read"]
