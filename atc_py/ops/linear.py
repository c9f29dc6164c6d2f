"""MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atc_py.ir.dims import Size, prod
from atc_py.ir.types import Tensor
from atc_py.ops import tiles_cube
from atc_py.ops.base import REQUIRED, Array, Attr, Call, Cost, Flags, Infer, InferError, Product, Result, Shape, declare
from atc_py.ops.layouts import right_operand
from atc_py.ops.linear_impl import add_scaled, compute_dtype, matmul
from atc_py.ops.shapes import assume, broadcast, show

matmul_op = declare(
    "MatMul", inputs="A B", outputs="Y", flags=Flags(fusible=True, fp16_safe=True, splittable=(-2, -1), cube=(0, 1))
)
gemm = declare(
    "Gemm",
    inputs="A B C?",
    outputs="Y",
    attrs={
        "alpha": Attr("float", 1.0),
        "beta": Attr("float", 1.0),
        "transA": Attr("int", 0),
        "transB": Attr("int", 0),
    },
    flags=Flags(fusible=True, fp16_safe=True, splittable=(0, 1), cube=(0, 1)),
)
matmul_op.layout(right_operand(1))
gemm.layout(right_operand(1))
einsum = declare(
    "Einsum",
    inputs="Inputs*",
    outputs="Output",
    attrs={"equation": Attr("str", REQUIRED)},
    flags=Flags(fp16_safe=True, cube=(0, 1)),
)
det = declare("Det", inputs="X", outputs="Y", flags=Flags())


def _same(a: Size, b: Size) -> bool:
    """Whether two sizes may be equal."""
    return type(a) is not int or type(b) is not int or a == b


def matmul_result(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a matrix product of any ranks (numpy's rules); raises `InferError` where inner sizes differ."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise InferError(f"a matrix product of {show(a)} and {show(b)}: operands must have rank 1 or more")
    inner = b[-2] if len(b) > 1 else b[0]
    if not _same(a[-1], inner):
        raise InferError(f"the inner sizes of {show(a)} and {show(b)} differ: {a[-1]} and {inner}")
    assume(a[-1], inner)
    batch = broadcast(a[:-2], b[:-2])
    assert batch is not None
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


matmul_op.tile(tiles_cube.product)


@matmul_op.infer
def _(n: Infer) -> Result:
    if n.dtype(0) is not n.dtype(1):
        n.fail(f"A is {n.dtype(0)}, but B is {n.dtype(1)}")
    return Tensor(n.dtype(0), matmul_result(n.shape(0), n.shape(1)))


@matmul_op.cost
def _(n: Infer) -> Cost:
    product = matmul_product(n.shape(0), n.shape(1))
    return Cost() if product is None else Cost(products=(product,))


def matmul_product(a: Shape | None, b: Shape | None) -> Product | None:
    """What MatMul multiplies; rows of all batches count as one where b has no batch. None: a rank is unknown."""
    out = matmul_result(a, b)
    if a is None or b is None or out is None:
        return None
    columns: Size = b[-1] if len(b) > 1 else 1
    rows: Size = a[-2] if len(a) > 1 else 1
    if len(b) <= 2:
        return Product(prod(a[:-1]), a[-1], columns)
    batch = prod(out[:-2] if len(a) > 1 else out[:-1])
    return Product(rows, a[-1], columns, batch)


@matmul_op.kernel
def _(call: Call, a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return matmul(call, a, b)


def _gemm_sizes(n: Infer) -> tuple[Size, Size, Size] | None:
    """(rows, columns, inner) of a Gemm."""
    a, b = n.shape(0), n.shape(1)
    for name, shape in (("A", a), ("B", b)):
        if shape is not None and len(shape) != 2:
            n.fail(f"{name} has shape {show(shape)}; expected rank 2")
    if a is None or b is None:
        return None
    rows, inner = (a[1], a[0]) if n.attrs["transA"] else (a[0], a[1])
    other, columns = (b[1], b[0]) if n.attrs["transB"] else (b[0], b[1])
    if not _same(inner, other):
        n.fail(f"the inner sizes of {show(a)} and {show(b)} differ: {inner} and {other}", "check transA and transB")
    return rows, columns, inner


gemm.tile(tiles_cube.gemm)


@gemm.infer
def _(n: Infer) -> Result:
    found = _gemm_sizes(n)
    if found is None:
        return Tensor(n.dtype(0), (n.fresh("Gemm rows"), n.fresh("Gemm columns")))
    rows, columns, _ = found
    c = n.shape(2) if n.has(2) else None
    if c is not None and (len(c) > 2 or not all(_same(x, y) or x == 1 for x, y in zip(c[::-1], (columns, rows)))):
        n.fail(f"C has shape {show(c)}, which does not broadcast to {show((rows, columns))}")
    return Tensor(n.dtype(0), (rows, columns))


@gemm.cost
def _(n: Infer) -> Cost:
    found = _gemm_sizes(n)
    if found is None:
        return Cost()
    rows, columns, inner = found
    return Cost(products=(Product(rows, inner, columns),), vector=rows * columns if n.has(2) else 0)


@gemm.kernel
def _(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    attrs, dtype = call.attrs, a.dtype
    left, right = (a.T if attrs["transA"] else a), (b.T if attrs["transB"] else b)
    alpha, beta = attrs["alpha"], attrs["beta"]
    with np.errstate(all="ignore"):
        if dtype.kind in "iu" and (alpha != 1 or beta not in (0, 1)):
            # The scalars are floats: the exact integer product, scaled in float64.
            product = matmul(Call(attrs), left, right).astype(np.float64) * alpha
            result = product if c is None else product + c.astype(np.float64) * beta
            y = call.into(0, result.shape, dtype)
            np.copyto(y, np.trunc(result), casting="unsafe")
            return y
        wide = compute_dtype(dtype)
        if wide != dtype:
            y = call.into(0, (left.shape[0], right.shape[1]), dtype)
            sums = matmul(Call(attrs), left.astype(wide), right.astype(wide))
        else:
            y = sums = matmul(call, left, right)
        if alpha != 1:
            np.multiply(sums, sums.dtype.type(alpha), out=sums)
        if c is not None:
            add_scaled(sums, c.astype(sums.dtype, copy=False), beta)
        if sums is not y:
            np.copyto(y, sums, casting="unsafe")
        return y


@dataclass(frozen=True)
class Equation:
    """A parsed Einsum equation: labels by operand (`...` is one element), and labels of the output."""

    operands: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse(equation: str) -> Equation:
    """Parse an Einsum equation; without an arrow the output is `...`, then the labels that occur once, sorted.

    "bij,bjk" means "bij,bjk->ik" with b summed over as well, because it occurs twice. Raises `InferError`.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = tuple(_labels(term, equation) for term in left.split(","))
    if arrow:
        output = _labels(right, equation)
    else:
        every = [label for term in operands for label in term if label != "..."]
        once = sorted({label for label in every if every.count(label) == 1})
        output = (*(["..."] if any("..." in term for term in operands) else []), *once)
    if len(set(output)) != len(output):
        raise InferError(f"the equation '{equation}' names an output axis twice")
    return Equation(operands, output)


def _labels(term: str, equation: str) -> tuple[str, ...]:
    before, dots, after = term.partition("...")
    if not all(c.isalpha() and c.isascii() for c in before + after):
        raise InferError(f"the equation '{equation}' has a term '{term}' that is not letters and at most one '...'")
    return (*before, *(["..."] if dots else []), *after)


def einsum_shape(equation: Equation, shapes: Sequence[Shape]) -> Shape:
    """The output's shape; raises `InferError` where ranks or sizes do not fit the equation."""
    sizes: dict[str, Size] = {}
    spread: list[Shape] = []
    for term, shape in zip(equation.operands, shapes):
        named = [label for label in term if label != "..."]
        rest = len(shape) - len(named)
        if rest < 0 or (rest and "..." not in term):
            raise InferError(f"the term '{''.join(term)}' does not fit an operand of shape {show(shape)}")
        at = term.index("...") if "..." in term else len(named)
        spread.append(shape[at : at + rest])
        for label, size in zip(named, (*shape[:at], *shape[at + rest :])):
            known = broadcast((sizes.get(label, 1),), (size,))
            assert known is not None
            sizes[label] = known[0]
    dots = broadcast(*spread) or ()
    found: list[Size] = []
    for label in equation.output:
        if label == "...":
            found.extend(dots)
        elif label in sizes:
            found.append(sizes[label])
        else:
            raise InferError(f"the output axis '{label}' occurs in no operand")
    return tuple(found)


def _einsum(n: Infer) -> tuple[Equation, Shape | None]:
    equation = parse(n.attrs["equation"])
    if len(equation.operands) != len(n.types):
        n.fail(f"the equation '{n.attrs['equation']}' has {len(equation.operands)} terms for {len(n.types)} inputs")
    shapes = [n.shape(i) for i in range(len(n.types))]
    if any(s is None for s in shapes):
        rank = None if "..." in equation.output else len(equation.output)
        return equation, None if rank is None else tuple(n.fresh(f"Einsum output{i}") for i in range(rank))
    return equation, einsum_shape(equation, [s for s in shapes if s is not None])


@einsum.infer
def _(n: Infer) -> Result:
    return Tensor(n.dtype(0), _einsum(n)[1])


@einsum.cost
def _(n: Infer) -> Cost:
    equation, out = _einsum(n)
    shapes = [n.shape(i) for i in range(len(n.types))]
    if out is None or any(s is None for s in shapes):
        return Cost()
    sizes: dict[str, Size] = {}
    for term, shape in zip(equation.operands, shapes):
        if "..." not in term and shape is not None:
            sizes.update(zip(term, shape, strict=True))
    summed = prod(size for label, size in sizes.items() if label not in equation.output)
    if len(shapes) == 1:
        return Cost(vector=prod(out) * summed)
    if len(shapes) > 2 or any("..." in term for term in equation.operands):
        return Cost(macs=prod(out) * summed)
    left, right = equation.operands
    kept = {label: size for label, size in sizes.items() if label in equation.output}
    rows = prod(size for label, size in kept.items() if label not in right)
    columns = prod(size for label, size in kept.items() if label not in left)
    batch = prod(size for label, size in kept.items() if label in left and label in right)
    return Cost(products=(Product(rows, summed, columns, batch),))


@einsum.prepare
def _(call: Call) -> Any:
    shapes = [t.shape if isinstance(t, Tensor) and t.static else None for t in call.in_types]
    if len(shapes) < 2 or any(s is None for s in shapes):
        return None
    stand_ins = [np.broadcast_to(np.float32(0), s) for s in shapes]  # type: ignore[arg-type]
    return np.einsum_path(call.attrs["equation"].replace(" ", ""), *stand_ins, optimize="greedy")[0]


@einsum.kernel
def _(call: Call, *inputs: Array) -> Array:
    dtype = inputs[0].dtype
    wide = compute_dtype(dtype)
    operands = [x if x.dtype == wide else x.astype(wide) for x in inputs]
    equation = call.attrs["equation"].replace(" ", "")
    with np.errstate(all="ignore"):
        how: Any = False if len(operands) < 2 else call.state or "greedy"
        result = np.asarray(np.einsum(equation, *operands, optimize=how))
    y = call.into(0, result.shape, dtype)
    np.copyto(y, result, casting="unsafe")
    return y


@det.infer
def _(n: Infer) -> Result:
    x = n.shape(0)
    if x is None:
        return Tensor(n.dtype(0), None)
    if len(x) < 2 or not _same(x[-1], x[-2]):
        n.fail(f"X has shape {show(x)}; expected square matrices in the last two axes")
    return Tensor(n.dtype(0), x[:-2])


@det.cost
def _(n: Infer) -> Cost:
    x = n.shape(0)
    return Cost() if x is None or len(x) < 2 else Cost(vector=prod(x) * x[-1])


@det.kernel
def _(call: Call, x: Array) -> Array:
    with np.errstate(all="ignore"):
        result = np.asarray(np.linalg.det(x.astype(compute_dtype(x.dtype), copy=False)))
    y = call.into(0, result.shape, x.dtype)
    np.copyto(y, result, casting="unsafe")
    return y
