"""Steps of random graphs that compute: elementwise operators, norms and activations in pieces, products, windows.

norm(0, 1, 2)    the newest row of features, less its mean, times the mean of its squares to the power of -1/2
"""

from __future__ import annotations

import numpy as np

from atc_py.graph import Ref
from atc_py.ir.types import DType
from tests.passes.generating import Made, Maker, Skip, ints, known, rank, step, tensor

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
        y = m.op("Softmax", x, axis=(-1, rank(tensor(x)) - 1)[c % 2])
    else:
        e = m.op("Exp", m.op("Sub", x, m.op("ReduceMax", x, axis)))
        y = m.op("Div", e, m.op("ReduceSum", e, axis))
    m.bound[y.value] = 1.0
    return y


@step
def reduce(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    name = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL2")[b % 5]
    axis = c % rank(tensor(x))
    axes = m.const([axis], np.int64)
    if not known(tensor(x), axis):
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
def whole_planes(m: Maker, a: int, b: int, c: int) -> Made:
    """What is taken of whole planes that the operator before makes."""
    x = m.image(a)
    y = m.scaled(m.op("ConvTranspose", x, m.random(ints(tensor(x))[1], 4, 2, 2), strides=(2, 2)), 8)
    y = m.op("Relu", y) if c % 2 else y
    if b % 3 == 0:
        return m.op("Mul", y, m.op("Sigmoid", m.op("GlobalAveragePool", y)))
    scale, shift = m.random(4), m.random(4)
    if b % 3 == 1:
        return m.scaled(m.op("GroupNormalization", y, scale, shift, num_groups=2, epsilon=1e-3), 4)
    return m.scaled(m.op("InstanceNormalization", y, scale, shift, epsilon=1e-3), 4)


@step
def upsample(m: Maker, a: int, b: int, c: int) -> Made:
    scales = m.const([1, 1, 2, 2])
    return m.op("Resize", m.image(a), None, scales, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
