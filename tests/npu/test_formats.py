"""Storage formats in the simulator: GE's formulas, kernels over stored arrays, weights that are held once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atc_py import Options, compile_model
from atc_py.emit import om_bytes
from atc_py.ir.constants import blob
from atc_py.ir.types import DType, Format, Tensor, lanes, storage_shape
from atc_py.npu.device import BoundPlan, Context
from atc_py.npu.formats import adapted
from atc_py.npu.memory import Placed
from atc_py.ops import get
from atc_py.ops.base import Call, Engine, Infer, InferError
from atc_py.ops.evaluate import evaluate
from atc_py.ops.formats import pack, packed, unpack
from atc_py.ops.index import INDEX
from atc_py.plan.types import Space, Task
from atc_py.runtime.loader import load
from tests.making import FLOAT, model, node

DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT8, DType.INT32, DType.BOOL)


def filled(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Any:
    """Random elements, none of them zero."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 100, shape).astype(dtype.numpy)


def place_of(fmt: Format, at: tuple[int, ...], shape: tuple[int, ...], c0: int) -> tuple[int, ...]:
    """Where GE puts an element, one by one: its index in the stored array."""
    if fmt is Format.NC1HWC0:
        n, c, h, w = at
        return (n, c // c0, h, w, c % c0)
    if fmt is Format.FRACTAL_Z:
        n, c, h, w = at
        return ((c // c0 * shape[2] + h) * shape[3] + w, n // 16, n % 16, c % c0)
    if fmt is Format.FRACTAL_NZ:
        *batch, h, w = at
        return (*batch, w // c0, h // 16, h % 16, w % c0)
    if fmt is Format.NHWC:
        n, c, *rest = at
        return (n, *rest, c)
    return at


@st.composite
def tensors(draw: Any) -> tuple[Format, tuple[int, ...], DType]:
    fmt = draw(st.sampled_from(list(Format)))
    if fmt in (Format.NC1HWC0, Format.FRACTAL_Z):
        shape = (draw(st.integers(1, 35)), draw(st.integers(1, 35)), draw(st.integers(0, 3)), draw(st.integers(1, 3)))
    elif fmt is Format.FRACTAL_NZ:
        batch = draw(st.lists(st.integers(1, 2), max_size=2))
        shape = (*batch, draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    else:
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=3, max_size=5)))
    return fmt, shape, draw(st.sampled_from(DTYPES))


@settings(max_examples=150)
@given(tensors())
def test_packing_is_ge_s_formula_and_unpacking_its_inverse(case: tuple[Format, tuple[int, ...], DType]) -> None:
    fmt, shape, dtype = case
    x = filled(shape, dtype)
    stored = pack(x, fmt)
    c0 = 32 if dtype.itemsize == 1 else 16
    assert stored.shape == storage_shape(shape, dtype, fmt) and stored.dtype == x.dtype
    for at in np.ndindex(*shape):
        assert stored[place_of(fmt, at, shape, c0)] == x[at], at
    assert np.count_nonzero(stored) == x.size, "padding lanes are zero"
    np.testing.assert_array_equal(unpack(stored, fmt, shape), x)


def test_an_example_of_ge_s_manual() -> None:
    """HWCN (2, 2, 32, 32) of float16 becomes FRACTAL_Z (8, 2, 16, 16)."""
    hwcn = np.arange(2 * 2 * 32 * 32, dtype=np.float16).reshape(2, 2, 32, 32)
    stored = pack(hwcn.transpose(3, 2, 0, 1), Format.FRACTAL_Z)
    want = hwcn.reshape(2, 2, 2, 16, 2, 16).transpose(2, 0, 1, 4, 5, 3).reshape(8, 2, 16, 16)
    np.testing.assert_array_equal(stored, want)


@given(tensors())
def test_packed_constants_are_recipes_of_the_packed_array(case: tuple[Format, tuple[int, ...], DType]) -> None:
    fmt, shape, dtype = case
    x = filled(shape, dtype)
    recipe = packed(blob(x), fmt)
    assert recipe.shape == pack(x, fmt).shape
    np.testing.assert_array_equal(evaluate(recipe), pack(x, fmt))


# -- kernels over stored arrays --------------------------------------------------------------------------------


def stored_type(shape: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Tensor:
    return Tensor(dtype, shape, Format.NCHW, Format.NC1HWC0)


def call_stored(op: str, inputs: list[Any], types: list[Any], out: Tensor, **attrs: Any) -> tuple[Any, Any]:
    """(what the stored result means, the stored result) of a kernel; what is not blocked is a constant."""
    found = get(op)
    assert found is not None and found.kernel_fn is not None
    fixed = [None if t is not None and t.storage else x for x, t in zip(inputs, types, strict=True)]
    target = np.full([d for d in out.storage_shape if isinstance(d, int)], 7, out.dtype.numpy)
    consts = {i: x for i, x in enumerate(fixed) if x is not None}
    call = Call(found.attributes(attrs), (out,), [None], consts, tuple(types))
    if found.prepare_fn is not None:
        call.state = found.prepare_fn(call)
    kernel, call = adapted(found, found.kernel_fn, call, fixed, "t")
    call.outs = [target]
    args = [pack(x, Format.NC1HWC0) if f is None else f for x, f in zip(inputs, fixed, strict=True)]
    with np.errstate(all="ignore"):
        result = kernel(call, *args)
    assert result is target
    return unpack(target, Format.NC1HWC0, tuple(d for d in out.dims if isinstance(d, int))), target


def padding(stored: Any, channels: int) -> Any:
    c0 = stored.shape[-1]
    return stored[:, -1, :, :, channels % c0 :] if channels % c0 else np.zeros(0)


def unary_operators() -> list[str]:
    """Every elementwise operator of one tensor that keeps its type and is declared without required attributes."""
    found = []
    for name in sorted(INDEX):
        op = get(name)
        assert op is not None
        f, one = op.flags, len(op.inputs) == len(op.outputs) == 1
        plain = f.elementwise and f.layout_agnostic and not (f.alias or f.random or op.host_inputs)
        if plain and one and op.engine is Engine.AICORE and not op.bodies and op.inputs[0][-1] != "*":
            found.append(name)
    return found


@pytest.mark.parametrize("name", unary_operators())
def test_unary_operators_work_on_blocks_and_keep_padding_zero(name: str) -> None:
    op = get(name)
    assert op is not None and op.infer_fn is not None and op.kernel_fn is not None
    attrs: dict[str, Any] = {"to": DType.FLOAT32} if "to" in op.attrs else {}
    for dtype in (DType.FLOAT32, DType.INT32, DType.BOOL):
        x = filled((2, 20, 3, 2), dtype)
        try:
            out = op.infer_fn(Infer((Tensor(dtype, x.shape),), op.attributes(attrs)))
        except InferError:
            continue
        assert isinstance(out, Tensor)
        want_call = Call(op.attributes(attrs), (out,), [None], {}, (Tensor(dtype, x.shape),))
        want_call.state = op.prepare_fn(want_call) if op.prepare_fn else None
        with np.errstate(all="ignore"):
            want = op.kernel_fn(want_call, x)
        blocked = stored_type(x.shape, out.dtype)
        got, stored = call_stored(name, [x], [stored_type(x.shape, dtype)], blocked, **attrs)
        np.testing.assert_array_equal(got, want)
        assert not padding(stored, 20).any(), f"{name} leaves something in the padding"
        return
    pytest.skip("takes none of these types")


OPERANDS = {
    "map": ((2, 20, 3, 2), True),
    "gate": ((2, 20, 1, 1), True),
    "channels": ((20, 1, 1), False),
    "scalar": ((), False),
    "rows": ((3, 1), False),
    "image": ((1, 1, 3, 2), False),
}


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow", "Max", "PRelu", "Mod"])
@pytest.mark.parametrize("kind", OPERANDS)
def test_broadcasts_against_maps_in_blocks(op: str, kind: str) -> None:
    shape, blocked = OPERANDS[kind]
    x = filled((2, 20, 3, 2), DType.FLOAT32) / 8
    y = np.asarray(filled(shape, DType.FLOAT32, 1) / 8, np.float32)
    types = [stored_type(x.shape), stored_type(shape) if blocked else Tensor(DType.FLOAT32, shape)]
    attrs = {"fmod": 1} if op == "Mod" else {}
    found = get(op)
    assert found is not None and found.kernel_fn is not None
    plain = Call(found.attributes(attrs), (Tensor(DType.FLOAT32, x.shape),), [None], {}, ())
    want = found.kernel_fn(plain, x, y)
    got, stored = call_stored(op, [x, y], types, stored_type(x.shape), **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not padding(stored, 20).any()


@pytest.mark.parametrize("size", [1, 3])
def test_any_kernel_runs_between_unpacking_and_packing(size: int) -> None:
    x = filled((1, 20, size, size), DType.FLOAT16)
    w = filled((18, 20, 1, 1), DType.FLOAT16, 1)
    types = [stored_type(x.shape, DType.FLOAT16), Tensor(DType.FLOAT16, w.shape)]
    out = stored_type((1, 18, size, size), DType.FLOAT16)
    got, stored = call_stored("Conv", [x / 64, w / 64], types, out, kernel_shape=(1, 1))
    want = np.einsum("nchw,kc->nkhw", x / np.float32(64), w[:, :, 0, 0] / np.float32(64))
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2e-3)
    assert not padding(stored, 18).any()


# -- weights ---------------------------------------------------------------------------------------------------


def product() -> Any:
    w = np.random.default_rng(0).standard_normal((48, 40)).astype(np.float32)
    return model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, [4, 48])}, ["y"], {"w": w}), w


def test_weights_in_fractals_are_not_held_twice() -> None:
    proto, w = product()
    loaded = load(om_bytes(compile_model(proto, Options())))
    plan, weights = loaded.plan, loaded.weights
    [buffer] = [b for b in plan.buffers if b.space is Space.WEIGHTS]
    fractals = pack(w, Format.FRACTAL_NZ)
    assert buffer.nbytes == fractals.nbytes and buffer.offset is not None
    bound = BoundPlan(plan, weights)
    x = np.ones((4, 48), np.float32)
    [y] = Context(bound).run([x], bound.output_arrays())
    np.testing.assert_allclose(y, x @ w, rtol=1e-4)
    assert weights.made_nbytes == 0, "kernels get the bytes of the file"
    placed = Placed(Space.WEIGHTS, buffer.index, buffer.offset, fractals.shape, np.dtype(np.float32), None)
    np.testing.assert_array_equal(weights.view(placed), fractals)
    assert weights.made_nbytes == fractals.nbytes, "made when somebody reads them as they lie"


def test_every_value_lies_in_its_format_in_the_arena() -> None:
    """A convolution's result is looked up in the arena where and as the plan says it is."""
    w = np.random.default_rng(1).standard_normal((20, 3, 1, 1)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]),
    ]
    proto = model(nodes, {"x": (FLOAT, [1, 3, 4, 4])}, ["p"], {"w": w})
    loaded = load(om_bytes(compile_model(proto, Options(disabled_passes=frozenset({"conv_pool"})))))
    bound = BoundPlan(loaded.plan, loaded.weights)
    context = Context(bound)
    x = np.random.default_rng(2).standard_normal((1, 3, 4, 4)).astype(np.float32)
    want = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
    [conv] = [t for t in loaded.plan.tasks() if t.kernel == "Conv"]
    [operand] = conv.outputs
    assert isinstance(operand.type, Tensor) and operand.type.storage is Format.NC1HWC0
    seen: list[Any] = []
    execute = context.execute

    def watched(task: Task) -> None:
        execute(task)
        if task is conv:
            seen.append(context.load(operand).copy())

    context.execute = watched  # type: ignore[method-assign]
    context.run([x], bound.output_arrays())
    np.testing.assert_allclose(seen[0], pack(want, Format.NC1HWC0), rtol=1e-4, atol=1e-5)


def test_lanes_are_of_the_elements_width() -> None:
    assert [lanes(d) for d in DTYPES] == [16, 16, 16, 32, 32, 16, 32]
