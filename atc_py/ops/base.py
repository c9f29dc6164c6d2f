"""How an operator is declared: one `Op` in one module of its family.

    relu = declare("Relu", inputs="X", outputs="Y", flags=Flags(elementwise=True, inplace=(0,), keeps_zero=True))

    @relu.infer
    def _(n: Infer) -> Result:
        return n.types[0]

    @relu.kernel
    def _(call: Call, x: Array) -> Array:
        return np.maximum(x, 0, out=call.out(0))

The declaration is the only place that knows the operator. Passes read its flags and never guess; the frontend,
constant folding, the simulator and the check all use the same functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod as count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from atc_py.ir.dims import DimOverflow, Size, prod
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor, Type
from atc_py.ops.traits import REQUIRED, Attr, Cost, Engine, Flags, Layout, Pattern, Product

if TYPE_CHECKING:
    from atc_py.ops.tiles import Need, Wanted

__all__ = [
    "REQUIRED", "Array", "Attr", "Call", "Cost", "Engine", "Flags", "Infer", "InferError", "Layout", "Op", "Pattern",
    "Product", "Result", "Shape", "declare", "elements", "scratch", "scratch_nbytes",
]  # fmt: skip

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape: TypeAlias = "tuple[Size, ...]"
Result: TypeAlias = "Type | Sequence[Type | None] | None"
"""What an infer function returns: one type, or one for each output (None for an output that nobody asked for)."""


class InferError(Exception):
    """Raised by `Infer.fail`: the node cannot be typed. The frontend adds the node's name."""

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause, self.hint = cause, hint


@dataclass
class Infer:
    """What an operator's `infer`, `value`, `cost` and `workspace` functions may look at.

    `types` has one entry an input (None where an optional input is absent); `attrs` has every declared attribute,
    defaults filled in; `outputs` is how many outputs the node has.
    """

    types: tuple[Type | None, ...]
    attrs: Mapping[str, Any]
    outputs: int = 1
    values: Sequence[Array | None] = ()
    new_symbol: Callable[[str], Size] | None = None
    infer_body: Callable[[str, Sequence[Type | None], Sequence[Array | None]], Sequence[Type]] | None = None
    captures: int = 0
    bodies: Mapping[str, Graph] = field(default_factory=dict)
    """The node's subgraphs, for cost functions."""

    def has(self, i: int) -> bool:
        """Whether input `i` is given."""
        return i < len(self.types) and self.types[i] is not None

    def tensor(self, i: int) -> Tensor:
        """The type of input `i`, which must be a tensor."""
        t = self.types[i] if i < len(self.types) else None
        if not isinstance(t, Tensor):
            self.fail(f"input {i} must be a tensor, but is {'absent' if t is None else type(t).__name__}")
        return t  # type: ignore[return-value]

    def dtype(self, i: int) -> DType:
        """The element type of input `i`."""
        return self.tensor(i).dtype

    def shape(self, i: int) -> Shape | None:
        """The shape of input `i`, None when its rank is unknown."""
        return self.tensor(i).shape

    def value(self, i: int) -> Array | None:
        """The value of input `i` when it is known: an array of ints/floats/bools, or of dtype object with `Dim`s."""
        return self.values[i] if i < len(self.values) else None

    def ints(self, i: int) -> list[Any] | None:
        """The known value of integer input `i` as a flat list of ints and Dims."""
        v = self.value(i)
        return None if v is None else [x if not isinstance(x, np.generic) else x.item() for x in v.reshape(-1)]

    def fresh(self, why: str) -> Size:
        """A new symbol for a size that only the run time knows; `why` becomes part of its name."""
        if self.new_symbol is None:
            raise InferError(f"the size of {why} is known only at run time")
        return self.new_symbol(why)

    def fail(self, cause: str, hint: str = "") -> None:
        """Say that the node is wrong; raises `InferError`."""
        raise InferError(cause, hint)


_LOCAL = threading.local()


def scratch(nbytes: int, name: str = "kernel") -> Array:
    """The thread's scratch buffer called `name`, at least `nbytes` long (uint8): the simulator's, not the plan's.

    One is for kernels, another for what lies between the operators of a fused task.
    """
    buffer: Array | None = _LOCAL.__dict__.get(name)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes + 64, np.uint8)
        _LOCAL.__dict__[name] = buffer
    return buffer


def scratch_nbytes() -> int:
    """How large this thread's scratch buffers have become, in bytes."""
    return sum(buffer.nbytes for buffer in _LOCAL.__dict__.values())


@dataclass
class Call:
    """One invocation of a kernel.

    `out_types` are the bound types of the outputs where they are known (None for data-dependent ones when folding),
    `outs` the views at the planned addresses (or None: the kernel allocates), `consts` the values of constant inputs
    at bind time, `state` whatever the operator's `prepare` made of them.
    """

    attrs: Mapping[str, Any]
    out_types: tuple[Type | None, ...] = ()
    outs: Sequence[Array | None] = ()
    consts: Mapping[int, Array] = field(default_factory=dict)
    in_types: tuple[Type | None, ...] = ()
    state: Any = None
    bodies: Mapping[str, Callable[[Sequence[Any]], list[Any]]] = field(default_factory=dict)
    key: tuple[int, int, int] = (0, 0, 0)
    """(seed, operator id, number of the execution) of random operators; the last one counts across runs, to 2**128."""
    body: Graph | None = None
    """The tile program of a fused task."""
    tiles: bool = False
    """Whether kernels with a tile program are to run it tile by tile in buffers of the planned sizes."""
    workspace: Array | None = None
    """The bytes that the operator asks for (`Op.workspace`), uint8, at the planned address where there is a plan; None
    where it asks for none. What they hold means nothing before and after the call."""

    def out(self, i: int = 0) -> Array | None:
        """The view for output `i`, or None when the kernel is to allocate."""
        return self.outs[i] if i < len(self.outs) else None

    def at(self, *outs: Array | None) -> Call:
        """The same call with other output views (calls are shared by the contexts of a session)."""
        copied = object.__new__(Call)  # dataclasses.replace takes three times as long, and this runs once a task
        copied.__dict__.update(self.__dict__, outs=outs)
        return copied

    def into(self, i: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The view for output `i`, or a new array of the given shape and numpy dtype."""
        view = self.out(i)
        if view is not None:
            return view
        wider = self.attrs.get("out_dtype") if i == 0 else None
        return np.empty(shape, dtype if wider is None else wider.numpy)

    def scratch(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
        """A temporary array in the thread's scratch buffer, `offset` bytes in (a multiple of 64)."""
        dtype = np.dtype(dtype)
        nbytes = count(shape) * dtype.itemsize
        array: Array = scratch(offset + nbytes)[offset : offset + nbytes].view(dtype).reshape(shape)
        return array

    def from_workspace(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
        """An array in the workspace, `offset` bytes in (a multiple of the itemsize); a new one where there is none.

        It holds anything. Raises `InferError` where the workspace is too small for it.
        """
        if self.workspace is None:
            return np.empty(shape, dtype)
        dtype = np.dtype(dtype)
        end = offset + count(shape) * dtype.itemsize
        if end > self.workspace.nbytes:
            raise InferError(f"the kernel takes {end} bytes of workspace, but asked for {self.workspace.nbytes}")
        array: Array = self.workspace[offset:end].view(dtype).reshape(shape)
        return array

    def random(self) -> np.random.Generator:
        """The counter-based generator (Philox) of a random operator, keyed by (seed, operator id, execution).

        The attribute `seed`, where the node has one, is part of the seed. Executions are 2**128 blocks apart.
        """
        seed, op_id, execution = self.key
        if self.attrs.get("seed") is not None:
            seed ^= int(np.float64(self.attrs["seed"]).view(np.uint64))
        low = 2**64 - 1
        counter = [0, 0, execution & low, execution >> 64]
        return np.random.Generator(np.random.Philox(key=[seed & low, op_id], counter=counter))


InferFn: TypeAlias = "Callable[[Infer], Result]"
ValueFn: TypeAlias = "Callable[[Infer], Array | Sequence[Array | None] | None]"
KernelFn: TypeAlias = "Callable[..., Any]"
PrepareFn: TypeAlias = "Callable[[Call], Any]"
CostFn: TypeAlias = "Callable[[Infer], Cost]"
WorkspaceFn: TypeAlias = "Callable[[Infer], Size | None]"
"""Bytes; None where it takes the value of an input to tell, and `Infer` does not have it."""
TileFn: TypeAlias = "Callable[[Wanted], Need]"
LayoutFn: TypeAlias = "Callable[[Infer, Sequence[Type]], Layout | None]"
"""Gets the call and the types of its outputs; None: every operand lies as the model means it."""


@dataclass
class Op:
    """One operator. `inputs`/`outputs` are names in order; a trailing `?` marks an optional one, `*` a variadic one."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr]
    flags: Flags
    engine: Engine
    bodies: tuple[str, ...] = ()
    host_inputs: tuple[int, ...] = ()
    """Inputs that the host reads to launch the task (shapes, axes, pads), rather than the device."""
    infer_fn: InferFn | None = None
    value_fn: ValueFn | None = None
    kernel_fn: KernelFn | None = None
    prepare_fn: PrepareFn | None = None
    cost_fn: CostFn | None = None
    workspace_fn: WorkspaceFn | None = None
    tile_fn: TileFn | None = None
    layout_fn: LayoutFn | None = None
    reference: bool = False
    """Whether the kernel is onnx's reference implementation."""

    def infer(self, fn: InferFn) -> InferFn:
        """Decorator: the shape and dtype rule; `out_dtype` of cube operators is seen to here."""
        self.infer_fn = _leaving_cube(fn) if self.flags.cube else fn
        return fn

    def value(self, fn: ValueFn) -> ValueFn:
        """Decorator: value propagation; gets known input values and returns the output's value, or None."""
        self.value_fn = fn
        return fn

    def kernel(self, fn: KernelFn) -> KernelFn:
        """Decorator: the kernel `fn(call, *inputs)`; returns the output array, or a tuple of them.

        Whoever calls it has numpy's floating point warnings off (`np.errstate(all="ignore")`).
        """
        self.kernel_fn = fn
        return fn

    def prepare(self, fn: PrepareFn) -> PrepareFn:
        """Decorator: runs once at bind, with constant inputs and bound types; its result is `call.state`."""
        self.prepare_fn = fn
        return fn

    def cost(self, fn: CostFn) -> CostFn:
        """Decorator: the work of one task. Without it: one vector operation an output element."""
        self.cost_fn = fn
        return fn

    def workspace(self, fn: WorkspaceFn) -> WorkspaceFn:
        """Decorator: how many bytes of device memory the kernel takes beside its operands, as `call.workspace`.

        It is the device kernel's: planned, verified and counted as tensors are. The simulator's own temporaries are not
        (`Call.scratch`). All ranks are known when it is asked. An operator with a workspace is no part of a fused task:
        its bytes are those for whole operands, and a tile program has only the buffers of a core.
        """
        self.workspace_fn = fn
        return fn

    def tile(self, fn: TileFn) -> TileFn:
        """Decorator: which regions of the inputs a region of the output needs (`ops.tiles`)."""
        self.tile_fn = fn
        return fn

    def layout(self, fn: LayoutFn) -> LayoutFn:
        """Decorator: the formats in which operands are taken. Without it: `ops.layouts` knows elementwise operators."""
        self.layout_fn = fn
        return fn

    @cached_property
    def variadic(self) -> bool:
        """Whether the last input may come any number of times."""
        return bool(self.inputs) and self.inputs[-1].endswith("*")

    @cached_property
    def min_inputs(self) -> int:
        """The fewest inputs of a well-formed node."""
        return max((i + 1 for i, n in enumerate(self.inputs) if not n.endswith(("?", "*"))), default=0)

    @cached_property
    def max_inputs(self) -> int | None:
        """The most inputs, None when variadic."""
        return None if self.variadic else len(self.inputs)

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All declared attributes with defaults filled in; raises `InferError` when a required one is missing.

        Attributes that are given but not declared are kept: they are the node's own notes.
        """
        filled = dict(given)
        for name, attr in self.attrs.items():
            if name not in filled:
                if attr.default is REQUIRED:
                    raise InferError(f"attribute '{name}' is missing")
                filled[name] = attr.default
        return filled

    def workspace_nbytes(self, n: Infer) -> Size | None:
        """Bytes of workspace of one task, 0 where the operator takes none; None where only the inputs tell."""
        if self.workspace_fn is None:
            return 0
        if any(isinstance(t, Tensor) and t.shape is None for t in n.types):
            return None
        try:
            return self.workspace_fn(n)
        except DimOverflow:
            return None

    def work(self, n: Infer, out_types: Sequence[Type | None]) -> Cost:
        """The cost of one task whose outputs have the given types."""
        if self.cost_fn is not None:
            return self.cost_fn(n)
        if self.flags.alias:
            return Cost()
        sizes = [t.elements for t in out_types if isinstance(t, Tensor) and t.shape is not None]
        return Cost(vector=sizes[0] if sizes else 0)


def _leaving_cube(fn: InferFn) -> InferFn:
    """The rule of an operator whose output 0 may leave the cube in a wider dtype than its operands have."""

    def infer(n: Infer) -> Result:
        result, dtype = fn(n), n.attrs.get("out_dtype")
        if dtype is None:
            return result
        first, *others = [result] if isinstance(result, Tensor) else list(result)  # type: ignore[arg-type]
        return [replace(first, dtype=dtype) if isinstance(first, Tensor) else first, *others]

    return infer


REGISTRY: dict[str, Op] = {}
"""Every operator whose module has been imported; `atc_py.ops.get` imports what is asked for."""


NO_FLAGS = Flags()
"""Nothing is assumed."""


def declare(
    name: str,
    *,
    inputs: str,
    outputs: str,
    attrs: Mapping[str, Attr] | None = None,
    flags: Flags = NO_FLAGS,
    engine: Engine = Engine.AICORE,
    bodies: tuple[str, ...] = (),
    host_inputs: tuple[int, ...] = (),
) -> Op:
    """Declare operator `name`. `inputs` and `outputs` are space-separated names, e.g. `"X W B?"` or `"data*"`."""
    op = Op(name, tuple(inputs.split()), tuple(outputs.split()), attrs or {}, flags, engine, bodies, host_inputs)
    if name in REGISTRY:
        raise ValueError(f"operator {name} is declared twice")
    REGISTRY[name] = op
    return op


def elements(t: Type | None) -> Size:
    """Number of elements of a tensor type, 0 when it is unknown or no tensor."""
    return prod(t.dims) if isinstance(t, Tensor) and t.shape is not None else 0
