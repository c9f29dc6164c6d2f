"""Loading and running OM files. Imports neither onnx nor the compiler."""

from atc_py.runtime.session import NodeArg, Session

__all__ = ["NodeArg", "Session"]
