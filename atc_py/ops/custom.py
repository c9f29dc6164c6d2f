"""Operators that others declare, and what is done so that their mistakes are told as theirs.

    acme::SoftCap  ─ no shape rule                       →  its rank is unknown until its kernel has run
                   ─ no flags                            →  run as often as the model says, with what the model gives
                   ─ the kernel raises                   →  E40001: operator, module, line
                   ─ the kernel returns float64          →  E40002: what came, what was planned
                   ─ the shape rule returns (2, 3)       →  E16113: expected Tensor(dtype, shape)

A `CustomOp` is an `Op` whose functions are wrapped when they are given; nobody else treats it in a special way.
`atc_py.custom` is what authors import, `ops.plugins` finds and loads their modules.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from atc_py.errors import AtcError, error
from atc_py.ir.dims import Dim, DimOverflow, Size
from atc_py.ir.types import DType, Map, Optional, Tensor, Type
from atc_py.ir.types import Sequence as SequenceType
from atc_py.ops import base
from atc_py.ops.base import REGISTRY, REQUIRED, Array, Attr, Call, Engine, Infer, InferError, Op, Result

DTYPES = "_dtypes"
"""The attribute with the outputs' element types as the model declares them, for operators without a shape rule."""

KINDS = ("int", "float", "str", "ints", "floats", "strs", "bytes", "dtype", "tensor", "type", "dims")
DOCS = "see docs/custom_operators.md"


@dataclass(frozen=True)
class Flags(base.Flags):
    """As `ops.base.Flags`, but nothing is taken for granted: `deterministic` must be stated too.

    Only a deterministic operator is folded over constants or merged with an equal node.
    """

    deterministic: bool = False


_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def loading(label: str) -> Iterator[None]:
    """While a module is being loaded: `label` is how a user names it again."""
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


@dataclass
class CustomOp(Op):
    """An operator of a module that is not ours. `module` is how a user names it, `file` where it lies."""

    module: str = ""
    file: str = ""
    has_shape_rule: bool = False

    @property
    def where(self) -> str:
        """The operator and its module, as messages write them."""
        return f"{self.name} ({self.module})"

    def infer(self, fn: base.InferFn) -> base.InferFn:
        """Decorator: the shape and dtype rule."""

        @wraps(fn)
        def rule(n: Infer) -> Result:
            return typed(self, _guarded_rule(self, "shape rule", fn, n))

        self.infer_fn, self.has_shape_rule = rule, True
        return fn

    def value(self, fn: base.ValueFn) -> base.ValueFn:
        """Decorator: value propagation; gets known input values and returns the output's value, or None."""
        self.value_fn = wraps(fn)(lambda n: _guarded_rule(self, "value rule", fn, n))
        return fn

    def cost(self, fn: base.CostFn) -> base.CostFn:
        """Decorator: the work of one task."""

        @wraps(fn)
        def rule(n: Infer) -> base.Cost:
            found = _guarded_rule(self, "cost rule", fn, n)
            if not isinstance(found, base.Cost):
                raise InferError(f"the cost rule of {self.where} returned {_shown(found)}, expected Cost(macs, vector)")
            return found

        self.cost_fn = rule
        return fn

    def workspace(self, fn: base.WorkspaceFn) -> base.WorkspaceFn:
        """Decorator: how many bytes of device memory the kernel takes beside its operands, as `call.workspace`."""

        @wraps(fn)
        def rule(n: Infer) -> Size | None:
            found = _guarded_rule(self, "workspace rule", fn, n)
            return None if found is None else _size(self, "workspace rule", found)

        self.workspace_fn = rule
        return fn

    def prepare(self, fn: base.PrepareFn) -> base.PrepareFn:
        """Decorator: runs once at bind, with constant inputs and bound types; its result is `call.state`."""
        self.prepare_fn = wraps(fn)(lambda call: _guarded_kernel(self, "prepare function", fn, call, ()))
        return fn

    def kernel(self, fn: base.KernelFn) -> base.KernelFn:
        """Decorator: the kernel `fn(call, *inputs)`; returns the output array, or a tuple of them."""

        @wraps(fn)
        def kernel(call: Call, *inputs: Any) -> Any:
            result = _guarded_kernel(self, "kernel", fn, call, tuple(map(_read_only, inputs)))
            _check_results(self, call, result)
            return result

        self.kernel_fn = kernel
        return fn


def declare(
    name: str,
    *,
    inputs: str,
    outputs: str,
    attrs: Mapping[str, Attr] | None = None,
    flags: base.Flags | None = None,
    engine: Engine = Engine.AICPU,
    host_inputs: Sequence[int] = (),
) -> CustomOp:
    """Declare the operator `name`, `domain::Name` as in ONNX; the bare name in ai.onnx.

    `inputs` and `outputs` are space-separated names, `?` behind an optional one, `*` behind a last one that may come
    any number of times. Without `flags` nothing is assumed. Declaring an operator again from the same module replaces
    it. Raises `AtcError` E20021 for a name that is taken and for a declaration that is wrong.
    """
    caller = sys._getframe(1).f_globals
    file = str(caller.get("__file__") or "")
    spelled = str(caller.get("__name__", ""))
    if spelled == "__main__" and file:
        spelled = Path(file).name
    op = CustomOp(
        name,
        tuple(inputs.split()),
        tuple(outputs.split()),
        {n: _fixed(a) for n, a in (attrs or {}).items()},
        Flags() if flags is None else flags,
        engine,
        (),
        tuple(host_inputs),
        module=_label.get() or spelled,
        file=file,
    )
    _check(op)
    op.infer_fn = lambda n: _declared_types(op, n)
    REGISTRY[name] = op
    return op


def custom(name: str) -> CustomOp | None:
    """The custom operator of that name, None when there is none so far."""
    found = REGISTRY.get(name)
    return found if isinstance(found, CustomOp) else None


def clash(name: str, module: str) -> AtcError:
    """The error for an operator that is ours already."""
    cause = f"{module} declares it, but atc-py has an operator of that name already"
    return error("E20021", f"operator '{name}'", cause, f"give yours a domain of its own, e.g. acme::{_bare(name)}")


# -- declarations --------------------------------------------------------------------------------------------------


def _fixed(attr: Attr) -> Attr:
    return replace(attr, default=tuple(attr.default)) if isinstance(attr.default, list) else attr


def _bare(name: str) -> str:
    return name.rpartition("::")[2]


def _check(op: CustomOp) -> None:
    from atc_py.ops.index import INDEX

    cause = _wrong_name(op.name) or _wrong_formals(op) or _wrong_attributes(op) or _wrong_flags(op)
    if cause:
        raise error("E20021", f"operator '{op.name}'", f"{op.module}: {cause}", DOCS)
    before = REGISTRY.get(op.name)
    if op.name in INDEX or (before is not None and not isinstance(before, CustomOp)):
        raise clash(op.name, op.module)
    if before is not None and before.module != op.module and (not op.file or before.file != op.file):
        cause = f"{op.module} declares it, but {before.module} has done so already"
        raise error("E20021", f"operator '{op.name}'", cause, "load one of the two, or rename one")


def _wrong_name(name: str) -> str:
    domain, colons, bare = name.rpartition("::")
    if domain in ("ai.onnx",) or (colons and not domain):
        return f"operators of ai.onnx are spelled without a domain: {bare}"
    if not bare or "::" in domain or not name.isprintable() or any(c.isspace() for c in name):
        return "a name is 'domain::Name', without blanks"
    return ""


def _wrong_formals(op: CustomOp) -> str:
    for what, names in (("input", op.inputs), ("output", op.outputs)):
        for i, name in enumerate(names):
            if not name.rstrip("?*").isidentifier() or len(name) - len(name.rstrip("?*")) > 1:
                return f"'{name}' is no name of an {what}: a word, with '?' or '*' behind it"
            if name.endswith("*") and i < len(names) - 1:
                return f"only the last {what} may be variadic, '{name}' is not"
    return "" if op.outputs else "an operator has at least one output"


def _wrong_attributes(op: CustomOp) -> str:
    from atc_py.ops import check

    for name, attr in op.attrs.items():
        if name.startswith("_"):
            return f"attribute '{name}': names with a leading underscore are atc-py's own"
        if attr.kind not in KINDS:
            return f"attribute '{name}' has the kind '{attr.kind}', which is none of {', '.join(KINDS)}"
        if attr.default is REQUIRED or attr.default is None:
            continue
        try:
            check.attributes(Op(op.name, (), (), {name: attr}, op.flags, op.engine), {})
        except InferError as e:
            return f"default: {e.cause}"
    return ""


def _wrong_flags(op: CustomOp) -> str:
    given: dict[str, tuple[Any, type]] = {"flags": (op.flags, base.Flags), "engine": (op.engine, Engine)}
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            return f"{name} must be of {kind.__name__}, but is {_shown(value)}"
    if op.engine is Engine.HCCL:
        return "engine HCCL is for collectives, which are atc-py's own: all devices must come to them in one order"
    if op.flags.control:
        return "control flow cannot be declared"
    if op.flags.alias and not op.inputs:
        return "the flag 'alias' says that the output is a view of input 0, but there is none"
    for i in (*op.flags.inplace, *op.host_inputs):
        if not 0 <= i < len(op.inputs):
            return f"input {i} is named by a flag, but there are {len(op.inputs)} inputs"
    return ""


# -- rules ---------------------------------------------------------------------------------------------------------


def _declared_types(op: CustomOp, n: Infer) -> list[Type]:
    """Without a shape rule: the element types that the model declares, else that of the first tensor; no shape."""
    told: Sequence[DType | None] = n.attrs.get(DTYPES) or ()
    first = next((t.dtype for t in n.types if isinstance(t, Tensor)), None)
    found: list[Type] = []
    for i in range(n.outputs):
        dtype = told[i] if i < len(told) and told[i] is not None else first
        if dtype is None:
            hint = "give it a shape rule, or declare the tensor's type in the model (value_info)"
            raise InferError(f"{op.where} has no shape rule, and nothing tells the element type of output {i}", hint)
        found.append(Tensor(dtype, None))
    return found


def _guarded_rule(op: CustomOp, what: str, fn: Callable[[Infer], Any], n: Infer) -> Any:
    try:
        return fn(n)
    except (InferError, AtcError, DimOverflow):
        raise
    except Exception as e:
        cause = f"the {what} of {op.where} failed{_line(op, e)}: {type(e).__name__}: {e}"
        raise InferError(cause, f"correct it in {op.module}") from e


def typed(op: CustomOp, result: Any) -> list[Type | None]:
    """What a shape rule returned, held to be types, sizes brought to ints and Dims. Raises `InferError`."""
    found = list(result) if isinstance(result, (list, tuple)) else [result]
    return [_typed(op, t, result) for t in found]


def _typed(op: CustomOp, t: Any, result: Any) -> Type | None:
    if t is None or isinstance(t, (SequenceType, Optional, Map)):
        return t
    if not isinstance(t, Tensor) or not isinstance(t.dtype, DType):
        cause = f"the shape rule of {op.where} returned {_shown(result)}, expected Tensor(dtype, shape)"
        raise InferError(cause, "return n.tensor(0), Tensor(n.dtype(0), shape), or a list of them, one an output")
    if t.shape is None:
        return t
    shape = tuple(_size(op, "shape rule", d) for d in t.shape)
    return t if shape == t.shape else t.with_shape(shape)


def _size(op: CustomOp, what: str, d: Any) -> Size:
    if isinstance(d, Dim):
        return d
    if isinstance(d, (int, np.integer)) and not isinstance(d, bool) and d >= 0:
        return int(d)
    raise InferError(f"the {what} of {op.where} gave the size {_shown(d)}, expected an int of 0 or more, or a Dim")


# -- kernels -------------------------------------------------------------------------------------------------------


def _read_only(value: Any) -> Any:
    """An input as the kernel sees it: the bytes of others cannot be written."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _guarded_kernel(op: CustomOp, what: str, fn: Callable[..., Any], call: Call, inputs: tuple[Any, ...]) -> Any:
    """Run the function; the error has no place, which whoever runs the task adds."""
    try:
        return fn(call, *inputs)
    except AtcError:
        raise
    except Exception as e:
        cause = f"the {what} of {op.where} failed{_line(op, e)}: {type(e).__name__}: {e}"
        raise error("E40001", "", cause, f"check the inputs' values and shapes, and the {what} in {op.module}") from e


def _check_results(op: CustomOp, call: Call, result: Any) -> None:
    results = result if isinstance(result, tuple) else (result,)
    if len(results) < len(call.out_types):
        hint = "return a tuple, one entry an output"
        _misfit(op, f"gave {len(results)} of {len(call.out_types)} outputs ({_shown(result)})", hint)
    for i, (t, given) in enumerate(zip(call.out_types, results)):
        if not isinstance(t, Tensor):
            continue
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        if array.dtype != t.dtype.numpy or (t.static and array.shape != t.shape):
            came = "None" if given is None else f"{array.dtype}{list(array.shape)}"
            planned = t.dtype.numpy.name + (str(list(t.dims)) if t.static else ", of any shape")
            hint = f"correct the kernel or the shape rule in {op.module}; astype(x.dtype) undoes a promotion"
            _misfit(op, f"gave {came} as output {i}, planned is {planned}", hint)


def _misfit(op: CustomOp, cause: str, hint: str) -> NoReturn:
    raise error("E40002", "", f"the kernel of {op.where} {cause}", hint)


def _line(op: CustomOp, e: Exception) -> str:
    """Where in the operator's own file it happened."""
    lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if op.file and f.filename == op.file]
    return f" in line {lines[-1]}" if lines else ""


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


__all__ = ["DTYPES", "Array", "CustomOp", "Flags", "clash", "custom", "declare", "loading", "typed"]
