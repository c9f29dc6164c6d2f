"""Random graphs over most kinds of operators: what the passes are proved on, beside the models of the corpus.

    steps [("unary", 0, 0, 0), ("turn", 0, 1, 0), ("add", 0, 1, 0)]

    x: float32[N, 8, 16] ── Relu ── Transpose ── Add ── y0        each step reads the newest values that fit it
                              └─────────────────┘                 (0: the newest, 1: the one before, …)

A step is a name and three numbers; which values it reads, of which form it is and how its attributes are follow from
the numbers, so that an example that fails shrinks to few steps and small numbers. Steps that nothing fits are left
out. Values stay small and no step has a jump where rounding could push a value over it: two graphs that compute the
same differ by rounding only, however deep they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from atc_py.graph import Builder, Ref
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor

Step = tuple[str, int, int, int]
Made = Ref | list[Ref] | None
MOST = 8_192
"""Elements of the largest value."""
LARGE = 64.0
"""Magnitude above which a value goes through Tanh."""
SIZES: Mapping[str, int] = {"N": 3}
"""What symbols stand for when a generated graph runs."""


@dataclass
class Maker:
    """The graph under construction, the values that later steps may read, and bounds of their magnitudes."""

    b: Builder
    pool: list[Ref] = field(default_factory=list)
    bound: dict[int, float] = field(default_factory=dict)
    consts: int = 0

    def op(self, name: str, *inputs: Ref | None, **attrs: Any) -> Any:
        """One operator; its results are bounded as its inputs are."""
        made = self.b.op(name, *inputs, **attrs)
        size = max((self.bound.get(r.value, 1.0) for r in inputs if r is not None), default=1.0)
        for r in made if isinstance(made, list) else [made]:
            self.bound[r.value] = size
        return made

    def scaled(self, r: Ref, factor: float) -> Ref:
        """The value, said to be that much larger than its inputs; too large, it goes through Tanh."""
        self.bound[r.value] = self.bound.get(r.value, 1.0) * factor
        if self.bound[r.value] <= LARGE:
            return r
        small: Ref = self.b.op("Tanh", r)
        self.bound[small.value] = 1.0
        return small

    def const(self, array: Any, dtype: Any = np.float32) -> Ref:
        """A constant."""
        r = self.b.const(np.asarray(array, dtype, order="C"))
        found = np.abs(np.asarray(array, np.float64)).max(initial=0)
        self.bound[r.value] = float(found)
        return r

    def random(self, *shape: int, scale: float = 0.5) -> Ref:
        """A constant of random numbers, others at each call."""
        self.consts += 1
        return self.const(np.random.default_rng(self.consts).uniform(-scale, scale, shape))

    def pick(self, number: int, fits: Callable[[Tensor], bool]) -> Ref:
        """The newest value that fits, or one before it. Raises `Skip` when there is none."""
        found = [r for r in self.pool if fits(tensor(r))]
        if not found:
            raise Skip
        return found[-1 - number % len(found)]

    def real(self, number: int, least: int = 1) -> Ref:
        """A float32 value of some rank."""
        return self.pick(number, lambda t: t.dtype is DType.FLOAT32 and t.rank >= least)

    def image(self, number: int) -> Ref:
        """A batch of feature maps with a side to slide over."""
        return self.pick(
            number, lambda t: t.dtype is DType.FLOAT32 and t.rank == 4 and known(t, 1) and min(sides(t)) > 2
        )

    def flat(self, number: int) -> Ref:
        """A value whose last dim is known: a row of features."""
        return self.pick(number, lambda t: t.dtype is DType.FLOAT32 and t.rank >= 2 and known(t, -1))

    def run(self, steps: list[Step]) -> None:
        """Take the steps."""
        for name, *numbers in steps:
            try:
                made = STEPS[name](self, *numbers)
            except Skip:
                continue
            for r in made if isinstance(made, list) else [] if made is None else [made]:
                if elements(tensor(r)) <= MOST:
                    self.pool.append(r)


class Skip(Exception):
    """Nothing fits a step."""


def tensor(r: Ref) -> Tensor:
    """The type, which is a tensor."""
    assert isinstance(r.type, Tensor)
    return r.type


def ints(t: Tensor) -> list[int]:
    """The shape with symbols at the size at which the graph runs."""
    return [d if isinstance(d, int) else 3 for d in t.dims]


def elements(t: Tensor) -> int:
    return prod(ints(t))


def known(t: Tensor, axis: int) -> bool:
    return isinstance(t.dims[axis], int) and t.dims[axis] != 0


def sides(t: Tensor) -> list[int]:
    return [d if isinstance(d, int) else 0 for d in t.dims[2:]]


STEPS: dict[str, Callable[..., Made]] = {}


def step(fn: Callable[..., Made]) -> Callable[..., Made]:
    """Declare a step under the function's name."""
    STEPS[fn.__name__] = fn
    return fn


# -- elementwise ---------------------------------------------------------------------------------------------------

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "Softplus", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu",
         "Identity", "Sin", "Mish", "Softsign")  # fmt: skip


@step
def unary(m: Maker, a: int, b: int, c: int) -> Made:
    return m.op(UNARY[b % len(UNARY)], m.real(a))


@step
def add(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    y = m.pick(b, lambda t: t.dtype is DType.FLOAT32 and t.dims == tensor(x).dims)
    name = ("Add", "Sub", "Max", "Min", "Mul", "Mean")[c % 6]
    return m.scaled(m.op(name, x, y), m.bound.get(y.value, 1.0) if name == "Mul" else 2)


@step
def by_constant(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    last = tensor(x).dims[-1]
    values: list[Ref] = [m.const(0.75), m.const([1.0]), m.const(0.0), m.const(1.0), m.const(-2.0)]
    if isinstance(last, int) and last:
        values.append(m.random(last))
    if tensor(x).rank == 4 and known(tensor(x), 1):
        values += [m.random(ints(tensor(x))[1], 1, 1)] * 2
    name = ("Add", "Mul", "Sub", "Max")[c % 4]
    return m.scaled(m.op(name, x, values[b % len(values)]), 2)


@step
def divide(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    if c % 2:
        return m.scaled(m.op("Div", x, m.const((0.7, 2.0, -4.0)[b % 3])), 2)
    y = m.pick(b, lambda t: t.dtype is DType.FLOAT32 and t.dims == tensor(x).dims)
    return m.scaled(m.op("Div", x, m.op("Add", m.op("Abs", y), m.const(0.5))), 2)


@step
def powers(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.op("Tanh", m.real(a))
    return (
        lambda: m.op("Pow", x, m.const((2.0, 3.0, 1.0, 0.0)[c % 4])),
        lambda: m.op("Sqrt", m.op("Add", m.op("Mul", x, x), m.const(0.5))),
        lambda: m.scaled(m.op("Exp", x), 3),
        lambda: m.op("Clip", x, m.const(-0.6), m.const(0.7) if c % 2 else None),
        lambda: m.op("Reciprocal", m.op("Add", m.op("Abs", x), m.const(0.5))),
    )[b % 5]()


@step
def choose(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    y = m.pick(b, lambda t: t.dtype is DType.FLOAT32 and t.dims == tensor(x).dims)
    return m.op("Where", m.op(("Greater", "LessOrEqual")[c % 2], x, y), *((x, y) if c % 3 else (y, x)))


@step
def there_and_back(m: Maker, a: int, b: int, c: int) -> Made:
    wide = m.op("Cast", m.real(a), to=DType.FLOAT64)
    wide = m.op(("Identity", "Tanh", "Neg")[b % 3], wide)
    return m.op("Cast", wide, to=DType.FLOAT32)


@step
def integers(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.pick(a, lambda t: t.dtype is DType.INT64)
    y = (
        lambda: m.op("Add", x, m.const(3, np.int64)),
        lambda: m.op("Mul", x, m.const((0, 1, 2)[c % 3], np.int64)),
        lambda: m.op("Cast", m.op("Cast", x, to=DType.INT32), to=DType.INT64),
        lambda: m.op("Equal", x, m.const(1, np.int64)),
        lambda: m.op("Not", m.op("Greater", m.op("Mod", x, m.const(2, np.int64)), m.const(0, np.int64))),
        lambda: m.op("Where", m.op("Less", x, m.const(2, np.int64)), x, m.op("Neg", x)),
    )[b % 6]()
    return [y, m.op("Cast", y, to=DType.FLOAT32)] if c % 2 else y


# -- activations, norms and softmax in pieces ----------------------------------------------------------------------


@step
def activation(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    one, three, six = m.const(1), m.const(3), m.const(6)
    half, root = m.op("Mul", x, m.const(0.5)), m.op("Div", x, m.const(2**0.5))
    return m.scaled((
        lambda: m.op("Mul", x, m.op("Sigmoid", x)),
        lambda: m.op("Mul", half, m.op("Add", m.op("Erf", root), one)),
        lambda: m.op("Div", m.op("Mul", x, m.op("Clip", m.op("Add", x, three), m.const(0), six)), six),
        lambda: m.op("Mul", x, m.op("Tanh", m.op("Softplus", x))),
        lambda: m.op("Mul", x, m.op("Sigmoid", m.op("Mul", x, m.const(1.702)))),
        lambda: m.op("Max", x, m.const(0)),
        lambda: m.op("Reciprocal", m.op("Add", m.op("Exp", m.op("Neg", m.op("Tanh", x))), one)),
    )[b % 7](), 2)  # fmt: skip


@step
def norm(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.flat(a)
    size = ints(tensor(x))[-1]
    if b % 4 == 3:
        y = m.op("LayerNormalization", x, m.random(size), m.random(size), epsilon=1e-3)
    else:
        y = in_pieces(m, x, centred=b % 4 != 0, by=("Mul", "Pow")[c % 2], root=c % 3)
        y = m.op("Mul", y, m.random(size)) if c % 5 else y
        y = m.op("Add", y, m.random(size)) if b % 4 == 2 else y
    m.bound[y.value] = 4.0
    return y


def in_pieces(m: Maker, x: Ref, centred: bool, by: str, root: int) -> Ref:
    """x, less its mean, over the root of the mean of its squares."""
    axis = m.const([-1], np.int64)
    if centred:
        x = m.op("Sub", x, m.op("ReduceMean", x, axis))
    square = m.op("Mul", x, x) if by == "Mul" else m.op("Pow", x, m.const(2))
    mean = m.op("Add", m.op("ReduceMean", square, axis), m.const(1e-3))
    if root == 0:
        return m.op("Div", x, m.op("Sqrt", mean))
    if root == 1:
        return m.op("Mul", x, m.op("Reciprocal", m.op("Sqrt", mean)))
    return m.op("Mul", x, m.op("Pow", mean, m.const(-0.5)))


@step
def softmax(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.flat(a)
    axis = m.const([-1], np.int64)
    if b % 2:
        y = m.op("Softmax", x, axis=(-1, tensor(x).rank - 1)[c % 2])
    else:
        e = m.op("Exp", m.op("Sub", x, m.op("ReduceMax", x, axis)))
        y = m.op("Div", e, m.op("ReduceSum", e, axis))
    m.bound[y.value] = 1.0
    return y


@step
def reduce(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    name = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL2")[b % 5]
    axes = m.const([c % tensor(x).rank], np.int64)
    if not known(tensor(x), c % tensor(x).rank):
        raise Skip
    back = m.op(name, x, axes, keepdims=1) if c % 2 else m.op(name, x, axes, keepdims=0)
    return [m.scaled(back, 4)] + ([m.scaled(m.op("Sub", x, back), 2)] if c % 2 else [])


@step
def centred(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.image(a)
    channels = ints(tensor(x))[1]
    if b % 2:
        y = m.op("InstanceNormalization", x, m.random(channels), m.random(channels), epsilon=1e-3)
    else:
        params = [m.random(channels), m.random(channels), m.random(channels)]
        y = m.op("BatchNormalization", x, *params, m.const(np.linspace(0.5, 1.5, channels)))
    return m.scaled(y, 4)


# -- products and windows ------------------------------------------------------------------------------------------


@step
def matmul(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.flat(a)
    k = ints(tensor(x))[-1]
    n = (4, 16, 8)[b % 3]
    if tensor(x).rank == 2 and c % 2:
        y = m.op("Gemm", x, m.random(n, k), m.random(n), transB=1)
    else:
        y = m.op("MatMul", x, m.random(k, n))
        y = m.op("Add", y, m.random(n)) if c % 3 else y
    return m.scaled(y, 8)


@step
def fan_out(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.flat(a)
    k = ints(tensor(x))[-1]
    gate, up = (m.op("MatMul", x, m.random(k, 8)) for _ in range(2))
    if c % 2:
        return [m.scaled(gate, 8), m.scaled(up, 8)]
    return m.scaled(m.op("Mul", m.op("Mul", gate, m.op("Sigmoid", gate)), up), 64)


@step
def attend(m: Maker, a: int, b: int, c: int) -> Made:
    """Attention in pieces: heads split by Reshape and Transpose, or none; the scale on the scores or on q."""
    x = m.pick(a, lambda t: t.dtype is DType.FLOAT32 and t.rank == 3 and known(t, -1) and known(t, 1))
    length, width = ints(tensor(x))[1:]
    heads = 2 if width % 2 == 0 and b % 2 else 1
    split, joined = m.const([0, length, heads, width // heads], np.int64), m.const([0, length, width], np.int64)
    parts = [m.op("MatMul", x, m.random(width, width, scale=0.2)) for _ in range(3)]
    q, k, v = (m.op("Transpose", m.op("Reshape", p, split), perm=(0, 2, 1, 3)) for p in parts)
    scale = m.const((width // heads) ** -0.5)
    q = m.op("Mul", q, scale) if c % 2 else q
    scores = m.op("MatMul", q, m.op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = scores if c % 2 else m.op("Mul", scores, scale)
    y = m.op("MatMul", m.op("Softmax", scores, axis=-1), v)
    return m.scaled(m.op("Reshape", m.op("Transpose", y, perm=(0, 2, 1, 3)), joined), 4)


@step
def conv(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.image(a)
    channels = ints(tensor(x))[1]
    kernel = (1, 3)[b % 2]
    pads = (kernel // 2,) * 4
    if c % 5 == 4:
        y = m.op("ConvTranspose", x, m.random(channels, 4, 2, 2), strides=(2, 2))
    elif c % 5 == 3:
        y = m.op("Conv", x, m.random(channels, 1, kernel, kernel), pads=pads, group=channels)
    else:
        weights = m.random((4, 16, 20)[c % 3], channels, kernel, kernel)
        bias = m.random((4, 16, 20)[c % 3]) if b % 3 else None
        y = m.op("Conv", x, weights, bias, pads=pads, strides=(1 + b % 4 // 3,) * 2)
    return m.scaled(y, 8)


@step
def pool(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.image(a)
    return (
        lambda: m.op("MaxPool", x, kernel_shape=(2, 2), strides=(1 + c % 2,) * 2),
        lambda: m.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=c % 2),
        lambda: m.op("GlobalAveragePool", x),
        lambda: m.op("ReduceMean", x, m.const([2, 3], np.int64), keepdims=c % 2),
    )[b % 4]()


@step
def upsample(m: Maker, a: int, b: int, c: int) -> Made:
    scales = m.const([1, 1, 2, 2])
    return m.op("Resize", m.image(a), None, scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip


# -- moves ---------------------------------------------------------------------------------------------------------


@step
def turn(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    rank = tensor(x).rank
    perm = list(range(rank))
    i, j = b % rank, c % rank
    perm[i], perm[j] = perm[j], perm[i]
    if b % 3 == 2 and rank == 4:
        perm = [[0, 2, 3, 1], [0, 3, 1, 2]][c % 2]
    return m.op("Transpose", x, perm=tuple(perm))


@step
def reshape(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    t = tensor(x)
    if b % 5 == 0:
        return m.op("Flatten", x, axis=1)
    if b % 5 == 1:
        return m.op("Unsqueeze", x, m.const([c % (t.rank + 1)], np.int64)) if t.rank < 4 else m.op("Flatten", x)
    if b % 5 == 2:
        ones = [i for i, d in enumerate(t.dims) if d == 1]
        return m.op("Squeeze", x, m.const(ones, np.int64)) if ones and len(ones) < t.rank else None
    if b % 5 == 3:
        batch = m.op("Gather", m.op("Shape", x), m.const([0], np.int64))
        return m.op("Reshape", x, m.op("Concat", batch, m.const([-1], np.int64), axis=0))
    last = ints(t)[-1]
    if not known(t, -1) or last % 4 or t.rank > 3:
        raise Skip
    return m.op("Reshape", x, m.const([0] * (t.rank - 1) + [last // 4, 4], np.int64))


@step
def cut(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    axis = b % tensor(x).rank
    size = tensor(x).dims[axis]
    if not isinstance(size, int) or size < 2:
        raise Skip
    if c % 3 == 0:
        parts = m.op("Split", x, m.const([1, size - 1], np.int64), outputs=2, axis=axis)
        return list(parts)
    if c % 3 == 1:
        index = m.const([size - 1, 0] if c % 2 else 1, np.int64)
        return m.op("Gather", x, index, axis=axis)
    ends = [m.const([v], np.int64) for v in (c % 2, size - c % 2, axis, 1 + c % 4 // 3)]
    return m.op("Slice", x, *ends)


@step
def join(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    axis = c % tensor(x).rank
    others = [d for i, d in enumerate(tensor(x).dims) if i != axis]

    def fits(t: Tensor) -> bool:
        alike = t.dtype is DType.FLOAT32 and t.rank == tensor(x).rank
        return alike and [d for i, d in enumerate(t.dims) if i != axis] == others

    return m.scaled(m.op("Concat", x, m.pick(b, fits), axis=axis), 2)


@step
def pad(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    rank = tensor(x).rank
    pads = [0] * (2 * rank)
    pads[rank - 1] = b % 2
    pads[2 * rank - 1] = c % 3
    if rank == 4:
        pads[2] = pads[6] = 1
    return m.op("Pad", x, m.const(pads, np.int64), m.const((0.0, 0.5)[b % 3 // 2]))


@step
def expand(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.pick(a, lambda t: t.dtype is DType.FLOAT32 and 1 in t.dims)
    shape = [4 if d == 1 else 1 for d in tensor(x).dims]
    return m.op("Expand", x, m.const(shape, np.int64))


@step
def shuffle(m: Maker, a: int, b: int, c: int) -> Made:
    """Pixels or channels that change places: Reshape, Transpose, Reshape."""
    x = m.pick(a, lambda t: t.dtype is DType.FLOAT32 and t.rank == 4 and all(known(t, i) for i in (1, 2, 3)))
    _, k, h, w = ints(tensor(x))
    if k % 4 or h * w % 4 or h % 2 or w % 2:
        raise Skip
    inner, perm, outer = (
        ((k // 4, 2, 2, h, w), (0, 1, 4, 2, 5, 3), (k // 4, 2 * h, 2 * w)),
        ((2, 2, k // 4, h, w), (0, 3, 4, 1, 5, 2), (k // 4, 2 * h, 2 * w)),
        ((k, h // 2, 2, w // 2, 2), (0, 3, 5, 1, 2, 4), (4 * k, h // 2, w // 2)),
        ((2, k // 2, h, w), (0, 2, 1, 3, 4), (k, h, w)),
        ((k // 2, 2, h * w), (0, 3, 1, 2), (h, w, k)),
    )[b % 5]
    x = m.op("Reshape", x, m.const([0, *inner], np.int64))
    return m.op("Reshape", m.op("Transpose", x, perm=perm), m.const([0, *outer], np.int64))


@step
def rows(m: Maker, a: int, b: int, c: int) -> Made:
    """A product of rows between Reshapes."""
    x = m.pick(a, lambda t: t.dtype is DType.FLOAT32 and t.rank == 3 and known(t, -1) and known(t, 1))
    length, width = ints(tensor(x))[1:]
    y = m.op("Reshape", x, m.const([-1, width], np.int64))
    y = m.op("Gemm", y, m.random(width, 8), m.random(8)) if b % 2 else m.op("MatMul", y, m.random(width, 8))
    return m.scaled(m.op("Reshape", y, m.const([-1, length, 8], np.int64)), 8)


@step
def rotate(m: Maker, a: int, b: int, c: int) -> Made:
    """A rotary embedding in pieces."""
    x = m.pick(a, lambda t: t.dtype is DType.FLOAT32 and t.rank == 3 and known(t, -1) and known(t, 1))
    length, width = ints(tensor(x))[1:]
    if width % 4:
        raise Skip
    x = m.op("Transpose", m.op("Reshape", x, m.const([0, length, 2, width // 2], np.int64)), perm=(0, 2, 1, 3))
    angle = np.outer(np.arange(length), 0.5 ** np.arange(width // 4))
    cos, sin = (m.const(np.concatenate([f(angle)] * 2, -1)[None, None]) for f in (np.cos, np.sin))
    low, high = m.op("Split", x, outputs=2, axis=3, num_outputs=2)
    turned = m.op("Concat", m.op("Neg", high), low, axis=-1)
    pair = [m.op("Mul", x, cos), m.op("Mul", turned, sin)]
    y = m.op("Add", *(pair if b % 2 else pair[::-1]))
    return m.scaled(m.op("Reshape", m.op("Transpose", y, perm=(0, 2, 1, 3)), m.const([0, length, width], np.int64)), 2)


@step
def folded(m: Maker, a: int, b: int, c: int) -> Made:
    """An affine map of channels behind a convolution or a product, its constants computed of constants."""
    x = m.image(a) if b % 2 else m.flat(a)
    k = ints(tensor(x))[1 if b % 2 else -1]
    last = (1, 1) if b % 2 else ()
    y = m.op("Conv", x, m.random(8, k, 1, 1)) if b % 2 else m.op("MatMul", x, m.random(k, 8))
    if c % 3 == 2 and b % 2:
        y = m.op("BatchNormalization", y, m.random(8), m.random(8), m.random(8), m.const(np.linspace(0.5, 1.5, 8)))
    else:
        y = m.op("Mul", y, m.op("Add", m.random(8, *last), m.const(0.25)))
        y = m.op("Add", y, m.op("Exp", m.random(8, *last)))
    return m.scaled(m.op("Relu", y) if c % 2 else y, 16)


# -- integers, branches and loops ----------------------------------------------------------------------------------


def fake(m: Maker, x: Ref, scale: float, zero: int = -3) -> Ref:
    """Through int8 and back."""
    pair = m.const(scale), m.b.const(np.int8(zero))
    return m.scaled(m.b.op("DequantizeLinear", m.b.op("QuantizeLinear", x, *pair), *pair), 8)


@step
def quantized(m: Maker, a: int, b: int, c: int) -> Made:
    """A convolution, a product or an elementwise operator between Quantize and Dequantize."""
    if b % 3 == 2:
        return fake(m, m.op(UNARY[c % 4], fake(m, m.real(a), 0.0373)), 0.0217)
    x = m.image(a) if b % 3 == 0 else m.flat(a)
    axis, inner = (1, 3) if b % 3 == 0 else (-1, 1)
    k = ints(tensor(x))[axis]
    m.consts += 1
    weights = np.random.default_rng(m.consts).integers(-127, 128, (8, k, *[inner] * 2 * (b % 3 == 0)))
    scales = m.const(np.linspace(0.0011, 0.0031, 8))
    w = m.b.op("DequantizeLinear", m.b.const(weights.astype(np.int8)), scales, m.b.const(np.zeros(8, np.int8)), axis=0)
    if b % 3 == 0:
        y = m.b.op("Conv", fake(m, x, 0.0373), w)
    else:
        y = m.b.op("MatMul", fake(m, x, 0.0373), m.b.op("Transpose", w, perm=(1, 0)))
    m.bound[y.value] = 8.0
    return fake(m, m.op("Relu", y) if c % 2 else y, 0.0417)


@step
def branch(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    flag = m.pick(0, lambda t: t.dtype is DType.BOOL and t.rank == 0) if c % 3 else m.const(c % 2 == 0, np.bool_)
    then, other = m.b.body("then"), m.b.body("else")
    then.give(then.op(UNARY[b % len(UNARY)], then.op("Identity", then.op("Relu", x))))
    half = other.const(np.float32(0.5))
    other.give(other.op("Mul", other.op("Mul", x, half), half) if b % 2 else x)
    return (
        m.op("If", flag, then_branch=then, else_branch=other)
        if not c % 3
        else m.scaled(m.b.op("If", flag, then_branch=then, else_branch=other), m.bound.get(x.value, 1.0))
    )


@step
def loop(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a)
    body = m.b.body("body")
    body.data("i", "int64", ())
    go = body.data("go", "bool", ())
    state = body.data("state", "float32", tensor(x).dims)
    half = body.const(np.float32(0.5))
    new = body.op("Add", body.op("Mul", state, half), body.op("Sigmoid", body.op("Tanh", x)) if b % 2 else half)
    results = [body.op("Identity", go), new]
    body.give(*results, *([body.op("Neg", new)] if c % 2 else []))
    trips = m.const((3, 1, 0)[b % 3], np.int64)
    made = m.b.op("Loop", trips, m.const(True, np.bool_), x, outputs=1 + c % 2, body=body)
    made = [made] if isinstance(made, Ref) else made
    return [m.scaled(r, 2 * m.bound.get(x.value, 1.0)) for r in made]


# -- whole graphs --------------------------------------------------------------------------------------------------


def graph_of(steps: list[Step], symbolic: bool, outputs: int) -> Graph:
    """The graph of the steps: its outputs are what nothing reads, the last `outputs` at most, and one inner value."""
    b = Builder("generated")
    batch: int | str = "N" if symbolic else 3
    m = Maker(b)
    m.pool = [b.data("i", "int64", (5,)), b.data("flag", "bool", ()), b.data("image", "float32", (batch, 4, 8, 8))]
    m.pool += [b.data("z", "float32", (batch, 8, 16)), b.data("x", "float32", (batch, 8, 16))]
    m.bound = {r.value: 4.0 for r in m.pool}
    given = len(m.pool)
    m.run(steps)
    made = m.pool[given:] or [m.op("Relu", m.pool[-1])]
    read = {v for n in b.graph.nodes.values() for v in n.inputs}
    ends = [r for r in made if r.value not in read][-outputs:] or made[-1:]
    inner = [r for r in made if r.value in read][:1] if outputs > 2 else []
    return b.build(**{f"y{i}": r for i, r in enumerate(dict.fromkeys([*ends, *inner]))})


def graphs(most: int = 12) -> st.SearchStrategy[Graph]:
    """Graphs of up to that many steps; they run with the sizes in `SIZES`."""
    number = st.integers(0, 30)
    steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), number, number, number), min_size=1, max_size=most)
    return st.builds(graph_of, steps, st.booleans(), st.integers(1, 4))
