"""What a declaration says of an operator in plain data: its engine, flags and pattern, its attributes, work and layout.

    Flags(elementwise=True, fusible=True)              passes read flags and never guess
    Flags(pattern=Pattern.ROW_NORM)                    fusion rules are written for kinds of operators, and name few
    Cost(products=(Product(m, k, n),), vector=m * n)   the target makes cycles of it

Patterns are the kinds that tensor compilers tell apart (TVM's `OpPatternKind`, TBE's `pattern` of a compute: ElemWise,
CommReduce, pooling, quantization), finer where a rule must know what has to lie whole in a buffer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atc_py.ir.dims import Size
from atc_py.ir.types import Format


class Engine(enum.Enum):
    """Where an operator runs, cheapest first."""

    AICORE = "aicore"
    HCCL = "hccl"
    """The links to other devices: collectives. They read and write AI Core's memory."""
    AICPU = "aicpu"
    HOST = "host"

    def __repr__(self) -> str:
        return self.value


class Pattern(enum.Enum):
    """The kind of an operator that is not elementwise.

    `SCALE`: each channel is scaled and shifted by given numbers. `CHANNEL_NORM`: by statistics of its own pixels.
    `ROW_NORM`: statistics of the last axes. `NORM`: of other parts of the tensor. `REDUCTION`: along axes. `SOFTMAX`:
    along an axis. `POOL`: windows of a map. `GLOBAL_POOL`: all pixels of a map. `MOMENTS`: takes moments block by
    block. `COMBINE`: puts such moments together. `LOOKUP`: picks rows of a table. `PAD`: puts a border around.
    `QUANTIZATION`: to integers with a scale, or back. `QUANTIZED_PRODUCT`: a product of such integers with an epilogue
    of its own. `ROTATION`: turns pairs of elements. `BITS`: the same bytes as another type.
    """

    SCALE = "scale"
    CHANNEL_NORM = "channel norm"
    ROW_NORM = "row norm"
    NORM = "norm"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    POOL = "pool"
    GLOBAL_POOL = "global pool"
    MOMENTS = "moments"
    COMBINE = "combine"
    LOOKUP = "lookup"
    PAD = "pad"
    QUANTIZATION = "quantization"
    QUANTIZED_PRODUCT = "quantized product"
    ROTATION = "rotation"
    BITS = "bits"


@dataclass(frozen=True)
class Flags:
    """What passes may do with an operator. Everything is off unless the declaration says so.

    `inplace`: inputs whose buffer output 0 may take over (same shape and dtype, read elementwise).
    `alias`: the output is a view of input 0 (Reshape and its like): no task, no bytes moved.
    `layout_agnostic`: an elementwise kernel that also works on stored arrays, whatever the order of their axes.
    `splittable`: output axes along which the work can be cut into independent parts.
    `keeps_zero`: zero in gives zero out, so that padding lanes stay zero.
    `type_only`: of its inputs it reads the types alone, never the bytes (Shape and its like).
    `random`: draws from the counter-based generator; never folded, merged or reordered.
    `fp16_safe`: float16 has range and precision enough for what it reads and makes; sums are float32 inside.
    `cube`: inputs that the cube unit multiplies. Sums are float32; the node's attribute `out_dtype`, where it is set,
    is the dtype in which output 0 leaves the unit instead of that of the operands.
    `moves`: the elements of the outputs are elements of the inputs, whatever their dtype is.
    `wide_inputs`: inputs that stay float32 where the others are narrower (parameters of statistics, what is quantised).
    `joins`: the output is the inputs one after the other along the attribute `axis`; `cuts`: the outputs, one after the
    other along it, are input 0.
    `pattern`: the kind of work, for fusion, of an operator that is not elementwise.
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
    type_only: bool = False
    cube: tuple[int, ...] = ()
    moves: bool = False
    wide_inputs: tuple[int, ...] = ()
    joins: bool = False
    cuts: bool = False
    pattern: Pattern | None = None


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
    `inner`: the left operand is made by the same task and does not come from memory. `rows`: the task goes on with the
    result or the operand, so that a core makes whole rows of it. `packs`: over few channels, several filter positions
    share a block. `serial`: each of the `count` products needs the result of the one before, as the steps of a
    recurrence do.
    """

    m: Size
    k: Size
    n: Size
    count: Size = 1
    taps: Size = 1
    grouped: bool = False
    inner: bool = False
    rows: bool = False
    packs: bool = True
    serial: bool = False

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
    input is read twice). A collective sends so many elements over a device's link (`sent`), in so many `messages` one
    after the other. `target` makes cycles of all of it.
    """

    macs: Size = 0
    vector: Size = 0
    wide: Size = 0
    products: tuple[Product, ...] = ()
    reads: Mapping[int, Size] = field(default_factory=dict)
    run: Size = 0
    row: Size = 0
    sent: Size = 0
    messages: Size = 0

    def __post_init__(self) -> None:
        if self.products:
            object.__setattr__(self, "macs", sum((p.macs for p in self.products[1:]), self.products[0].macs))


@dataclass(frozen=True)
class Layout:
    """How an operator takes its operands on units that work on blocks of channels.

    `maps` are the inputs that are feature maps: they and all outputs lie as NC1HWC0 together, or none of them does; the
    outputs stay plain where they are no maps (`makes_maps`). `needs`: there is no kernel for plain ones. `weights` are
    the formats of constant inputs; those of an operator that has maps are asked for where these lie in blocks. Every
    other operand lies as the model means it.
    """

    maps: tuple[int, ...] = ()
    needs: bool = False
    weights: Mapping[int, Format] = field(default_factory=dict)
    makes_maps: bool = True
