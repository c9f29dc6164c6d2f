"""Random graphs over most kinds of operators: what the passes are proved on, beside the models of the corpus.

    steps [("unary", 0, 0, 0), ("unary", 0, 1, 0), ("add", 0, 1, 0)]

    x: float32[N, 8, 16] ── Relu ── Sigmoid ── Add ── y0          each step reads the newest values that fit it
                              └─────────────────┘                 (0: the newest, 1: the one before, …)

A step is a name and three numbers; which values it reads, of which form it is and how its attributes are follow from
the numbers, so that an example that fails shrinks to few steps and small numbers. Steps that nothing fits are left
out. Values stay small and no step has a jump where rounding could push a value over it: two graphs that compute the
same differ by rounding only, however deep they are.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from atc_py.graph import Builder, Ref
from atc_py.ir.graph import Graph
from atc_py.ir.types import DType, Tensor
from tests.passes.generated_compute import UNARY
from tests.passes.generating import STEPS, Made, Maker, Skip, Step, ints, known, rank, step, tensor

# -- moves ---------------------------------------------------------------------------------------------------------


@step
def turn(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    dims = rank(tensor(x))
    perm = list(range(dims))
    i, j = b % dims, c % dims
    perm[i], perm[j] = perm[j], perm[i]
    if b % 3 == 2 and dims == 4:
        perm = [[0, 2, 3, 1], [0, 3, 1, 2]][c % 2]
    return m.op("Transpose", x, perm=tuple(perm))


@step
def reshape(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    t = tensor(x)
    if b % 5 == 0:
        return m.op("Flatten", x, axis=1)
    if b % 5 == 1:
        return m.op("Unsqueeze", x, m.const([c % (rank(t) + 1)], np.int64)) if rank(t) < 4 else m.op("Flatten", x)
    if b % 5 == 2:
        ones = [i for i, d in enumerate(t.dims) if d == 1]
        return m.op("Squeeze", x, m.const(ones, np.int64)) if ones and len(ones) < rank(t) else None
    if b % 5 == 3:
        batch = m.op("Gather", m.op("Shape", x), m.const([0], np.int64))
        return m.op("Reshape", x, m.op("Concat", batch, m.const([-1], np.int64), axis=0))
    last = ints(t)[-1]
    if not known(t, -1) or last % 4 or rank(t) > 3:
        raise Skip
    return m.op("Reshape", x, m.const([0] * (rank(t) - 1) + [last // 4, 4], np.int64))


@step
def cut(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    axis = b % rank(tensor(x))
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
def look_up(m: Maker, a: int, b: int, c: int) -> Made:
    """Rows of a table of bytes, by numbers that the run makes."""
    x = m.real(a)
    rows = m.op("Cast", m.op("Greater", x, m.const(0.1 * b)), to=DType.INT64)
    table = m.const(np.random.default_rng(c).integers(-128, 128, (500, 4)), np.int8)
    pair = m.const(0.01), m.const(c % 3, np.int8)
    return m.scaled(m.op("Gather", m.op("DequantizeLinear", table, *pair), rows), 1 / 64)


@step
def join(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    axis = c % rank(tensor(x))
    others = [d for i, d in enumerate(tensor(x).dims) if i != axis]

    def fits(t: Tensor) -> bool:
        alike = t.dtype is DType.FLOAT32 and t.rank == tensor(x).rank
        return alike and [d for i, d in enumerate(t.dims) if i != axis] == others

    return m.scaled(m.op("Concat", x, m.pick(b, fits), axis=axis), 2)


@step
def pad(m: Maker, a: int, b: int, c: int) -> Made:
    x = m.real(a, 2)
    dims = rank(tensor(x))
    pads = [0] * (2 * dims)
    pads[dims - 1] = b % 2
    pads[2 * dims - 1] = c % 3
    if dims == 4:
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
    made = m.b.op("If", flag, then_branch=then, else_branch=other)
    return m.scaled(made, m.bound.get(x.value, 1.0))


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


@step
def collective(m: Maker, a: int, b: int, c: int) -> Made:
    """In the group of one that the interpreter is."""
    both = [m.b.op(op, m.real(n), outputs=2)[0] for op, n in (("HcomAllReduce", a), ("HcomAllToAll", b))]
    for made in both:
        m.bound[made.value] = m.bound[m.b.graph.producer(made.value).inputs[0]]
    return both


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
