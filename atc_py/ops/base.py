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

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from atc_py.ir.dims import Size, prod
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor, Type

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Shape: TypeAlias = "tuple[Size, ...]"
Result: TypeAlias = "Type | Sequence[Type | None] | None"
"""What an infer function returns: one type, or one for each output (None for an output that nobody asked for)."""


class Engine(enum.Enum):
    """Where an operator runs, cheapest first."""

    AICORE = "aicore"
    AICPU = "aicpu"
    HOST = "host"

    def __repr__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Flags:
    """What passes may do with an operator. Everything is off unless the declaration says so.

    `inplace`: inputs whose buffer output 0 may take over (same shape and dtype, read elementwise).
    `alias`: the output is a view of input 0 (Reshape and its like): no task, no bytes moved.
    `splittable`: output axes along which the work can be cut into independent parts.
    `keeps_zero`: zero in gives zero out, so that padding lanes stay zero.
    `random`: draws from the counter-based generator; never folded, merged or reordered.
    """

    elementwise: bool = False
    fusible: bool = False
    recomputable: bool = False
    inplace: tuple[int, ...] = ()
    alias: bool = False
    layout_agnostic: bool = False
    splittable: tuple[int, ...] = ()
    deterministic: bool = True
    side_effects: bool = False
    fp16_safe: bool = False
    keeps_zero: bool = False
    commutative: bool = False
    random: bool = False
    control: bool = False


REQUIRED = object()
"""The default of an attribute that must be given."""


@dataclass(frozen=True)
class Attr:
    """An attribute: its kind (`int float str ints floats strs bytes dtype tensor type dims`) and its default.

    A default of None means that the attribute may be absent and its absence has a meaning of its own.
    """

    kind: str
    default: Any = REQUIRED


@dataclass(frozen=True)
class Product:
    """What the cube unit multiplies: `count` times [m, k·taps] × [k·taps, n].

    A convolution over C channels in `groups` groups, with K filters of `taps` positions and P output positions in the
    batch, is Product(m=P, k=C/groups, n=K/groups, count=groups, taps=taps, grouped=True). Neighbouring products of a
    grouped one may be multiplied as one block-diagonal product, which fills a block of the cube with narrow groups.
    """

    m: Size
    k: Size
    n: Size
    count: Size = 1
    taps: Size = 1
    grouped: bool = False

    @property
    def macs(self) -> Size:
        """Multiply-accumulates, without the padding of blocks."""
        return self.count * self.m * self.k * self.taps * self.n


@dataclass(frozen=True)
class Cost:
    """Work of one task: what the cube multiplies, what the vector unit computes, and how data moves.

    `macs` are multiply-accumulates; with `products`, which tell their shapes, it is their sum. `vector` counts element
    operations in the tensors' own dtype, `wide` those that are done in float32 whatever the dtype is. Bytes moved are
    those of the operands, except: `reads` has the number of elements of an input that are read where it is not all
    of them; `run` is how many elements lie together where data is moved in pieces (0: in rows of any length); `row`
    is how many elements a reduction must see before it can write (where they do not fit the unified buffer, the
    input is read twice). `target` makes cycles of all of it.
    """

    macs: Size = 0
    vector: Size = 0
    wide: Size = 0
    products: tuple[Product, ...] = ()
    reads: Mapping[int, Size] = field(default_factory=dict)
    run: Size = 0
    row: Size = 0

    def __post_init__(self) -> None:
        if self.products:
            object.__setattr__(self, "macs", sum((p.macs for p in self.products[1:]), self.products[0].macs))


class InferError(Exception):
    """Raised by `Infer.fail`: the node cannot be typed. The frontend adds the node's name."""

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause, self.hint = cause, hint


@dataclass
class Infer:
    """What an operator's `infer`, `value` and `cost` functions may look at.

    `types` has one entry an input (None where an optional input is absent); `attrs` has every declared attribute,
    defaults filled in; `outputs` is how many outputs the node has.
    """

    types: tuple[Type | None, ...]
    attrs: Mapping[str, Any]
    outputs: int = 1
    values: tuple[Array | None, ...] = ()
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


def scratch(nbytes: int) -> Array:
    """The thread's scratch buffer, at least `nbytes` long (uint8). It belongs to the simulator, not to the plan."""
    buffer: Array | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes + 64, np.uint8)
        _LOCAL.buffer = buffer
    return buffer


def scratch_nbytes() -> int:
    """How large this thread's scratch buffer has become, in bytes."""
    buffer: Array | None = getattr(_LOCAL, "buffer", None)
    return 0 if buffer is None else buffer.nbytes


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

    def out(self, i: int = 0) -> Array | None:
        """The view for output `i`, or None when the kernel is to allocate."""
        return self.outs[i] if i < len(self.outs) else None

    def at(self, *outs: Array | None) -> Call:
        """The same call with other output views (calls are shared by the contexts of a session)."""
        return replace(self, outs=outs)

    def into(self, i: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The view for output `i`, or a new array of the given shape and numpy dtype."""
        view = self.out(i)
        return np.empty(shape, dtype) if view is None else view

    def scratch(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
        """A temporary array in the thread's scratch buffer, `offset` bytes in (a multiple of 64)."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array: Array = scratch(offset + nbytes)[offset : offset + nbytes].view(dtype).reshape(shape)
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
    reference: bool = False
    """Whether the kernel is onnx's reference implementation."""

    def infer(self, fn: InferFn) -> InferFn:
        """Decorator: the shape and dtype rule."""
        self.infer_fn = fn
        return fn

    def value(self, fn: ValueFn) -> ValueFn:
        """Decorator: value propagation; gets known input values and returns the output's value, or None."""
        self.value_fn = fn
        return fn

    def kernel(self, fn: KernelFn) -> KernelFn:
        """Decorator: the kernel `fn(call, *inputs)`; returns the output array, or a tuple of them."""
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

    @property
    def variadic(self) -> bool:
        """Whether the last input may come any number of times."""
        return bool(self.inputs) and self.inputs[-1].endswith("*")

    @property
    def min_inputs(self) -> int:
        """The fewest inputs of a well-formed node."""
        return max((i + 1 for i, n in enumerate(self.inputs) if not n.endswith(("?", "*"))), default=0)

    @property
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

    def work(self, n: Infer, out_types: Sequence[Type | None]) -> Cost:
        """The cost of one task whose outputs have the given types."""
        if self.cost_fn is not None:
            return self.cost_fn(n)
        if self.flags.alias:
            return Cost()
        sizes = [t.elements for t in out_types if isinstance(t, Tensor) and t.shape is not None]
        return Cost(vector=sizes[0] if sizes else 0)


REGISTRY: dict[str, Op] = {}
"""Every operator whose module has been imported; `atc_py.ops.get` imports what is asked for."""


def declare(
    name: str,
    *,
    inputs: str,
    outputs: str,
    attrs: Mapping[str, Attr] | None = None,
    flags: Flags = Flags(),
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
