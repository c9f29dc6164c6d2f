"""Resize in all its modes; the arithmetic is in `resize_impl`. Integer results are rounded to nearest and saturated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atc_py.ir.dims import Dim, Size, prod
from atc_py.ir.types import DType, Tensor
from atc_py.ops.base import Array, Attr, Call, Cost, Flags, Infer, InferError, Result, Shape, declare
from atc_py.ops.layouts import feature_maps
from atc_py.ops.resize_impl import COORDINATES, NEAREST, POLICIES, AxisPlan, apply, by_policy, output_size, plan
from atc_py.ops.shapes import axes as axes_of

resize = declare(
    "Resize",
    inputs="X roi? scales? sizes?",
    outputs="Y",
    attrs={
        "antialias": Attr("int", 0),
        "axes": Attr("ints", None),
        "coordinate_transformation_mode": Attr("str", "half_pixel"),
        "cubic_coeff_a": Attr("float", -0.75),
        "exclude_outside": Attr("int", 0),
        "extrapolation_value": Attr("float", 0.0),
        "keep_aspect_ratio_policy": Attr("str", "stretch"),
        "mode": Attr("str", "nearest"),
        "nearest_mode": Attr("str", "round_prefer_floor"),
    },
    flags=Flags(splittable=(0, 1), fp16_safe=True),
    host_inputs=(1, 2, 3),
)
resize.layout(feature_maps(0, needs=True))

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("nearest", "linear", "cubic"),
    "coordinate_transformation_mode": COORDINATES,
    "nearest_mode": NEAREST,
    "keep_aspect_ratio_policy": POLICIES,
}


def _check(n: Infer) -> None:
    for name, allowed in _CHOICES.items():
        if n.attrs[name] not in allowed:
            n.fail(f"{name} is '{n.attrs[name]}'; expected one of {', '.join(allowed)}")
    if n.attrs["mode"] != "nearest" and n.dtype(0) in (DType.STRING, DType.BOOL):
        n.fail(f"mode '{n.attrs['mode']}' needs numbers, but X is {n.dtype(0)}")


def _given(n: Infer, i: int) -> bool:
    """Whether input `i` is there and not an empty tensor, which stands for an absent one."""
    return n.has(i) and n.shape(i) != (0,)


def _scaled(n: Infer, at: int, size: Size, scale: float) -> Size:
    """floor(size · scale); exact for symbolic sizes where the scale is a fraction with a small denominator."""
    if not isinstance(size, Dim):
        return output_size(size, scale)
    over, under = float(scale).as_integer_ratio()
    return size * over // under if under <= 1024 else n.fresh(f"Resize output{at}")


def _sizes(n: Infer, x: Shape, axes: list[int]) -> dict[int, Size]:
    """Output sizes of the resized axes."""
    if _given(n, 3):
        wanted, policy = n.ints(3), n.attrs["keep_aspect_ratio_policy"]
        if wanted is None:
            return {a: n.fresh(f"Resize output{a}") for a in axes}
        if len(wanted) != len(axes):
            n.fail(f"sizes has {len(wanted)} entries; expected {len(axes)}")
        if policy == "stretch":
            return dict(zip(axes, wanted))
        if any(isinstance(v, Dim) for v in (*wanted, *(x[a] for a in axes))):
            return {a: n.fresh(f"Resize output{a}") for a in axes}
        shape = [0 if isinstance(d, Dim) else d for d in x]
        return dict(by_policy(shape, {a: int(v) for a, v in zip(axes, wanted)}, policy)[0])
    if not _given(n, 2):
        n.fail("neither scales nor sizes is given")
    scales = n.value(2)
    if scales is None:
        return {a: n.fresh(f"Resize output{a}") for a in axes}
    if scales.size != len(axes):
        n.fail(f"scales has {scales.size} entries; expected {len(axes)}")
    if any(not float(s) > 0 for s in scales.reshape(-1)):
        n.fail(f"scales are {scales.tolist()}; every one must be positive")
    return {a: _scaled(n, a, x[a], float(s)) for a, s in zip(axes, scales.reshape(-1))}


def _axes(attrs: Mapping[str, Any], rank: int) -> list[int]:
    return axes_of(attrs["axes"], rank) if attrs["axes"] else list(range(rank))


@resize.infer
def _(n: Infer) -> Result:
    _check(n)
    x = n.shape(0)
    if x is None:
        return Tensor(n.dtype(0), None)
    sizes = _sizes(n, x, _axes(n.attrs, len(x)))
    return Tensor(n.dtype(0), tuple(sizes.get(a, d) for a, d in enumerate(x)))


@resize.cost
def _(n: Infer) -> Cost:
    x = n.shape(0)
    if x is None:
        return Cost()
    sizes = _sizes(n, x, _axes(n.attrs, len(x)))
    changed = sum(1 for a, s in sizes.items() if s != x[a])
    taps = {"nearest": 1, "linear": 2 * changed, "cubic": 4 * changed}[n.attrs["mode"]]
    return Cost(vector=prod(sizes.get(a, d) for a, d in enumerate(x)) * max(1, taps))


def _present(a: Array | None) -> Array | None:
    return None if a is None or a.size == 0 else a.reshape(-1)


def bound_plan(
    attrs: Mapping[str, Any], shape: tuple[int, ...], roi: Array | None, scales: Array | None, sizes: Array | None
) -> tuple[tuple[int, ...], list[AxisPlan]]:
    """The output's shape and the plan for bound inputs (empty arrays count as absent)."""
    axes = _axes(attrs, len(shape))
    roi, scales, sizes = _present(roi), _present(scales), _present(sizes)
    if sizes is not None:
        wanted = {a: int(s) for a, s in zip(axes, sizes)}
        outs, factors = by_policy(shape, wanted, attrs["keep_aspect_ratio_policy"])
    elif scales is not None:
        factors = {a: float(s) for a, s in zip(axes, scales)}
        outs = {a: output_size(shape[a], s) for a, s in factors.items()}
    else:
        raise InferError("neither scales nor sizes is given")
    parts = {}
    if roi is not None:
        parts = {a: (float(roi[i]), float(roi[len(axes) + i])) for i, a in enumerate(axes)}
    result = tuple(outs.get(a, d) for a, d in enumerate(shape))
    return result, plan(attrs, shape, outs, factors, parts)


@resize.prepare
def _(call: Call) -> Any:
    x = call.in_types[0] if call.in_types else None
    given = [i for i in (1, 2, 3) if i < len(call.in_types) and call.in_types[i] is not None]
    if not isinstance(x, Tensor) or not x.static or any(i not in call.consts for i in given):
        return None
    shape = tuple(int(d) for d in x.dims)  # type: ignore[arg-type]
    return shape, bound_plan(call.attrs, shape, *(call.consts.get(i) for i in (1, 2, 3)))


@resize.kernel
def _(call: Call, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
    if call.state is not None and call.state[0] == x.shape:
        shape, plans = call.state[1]
    else:
        shape, plans = bound_plan(call.attrs, x.shape, roi, scales, sizes)
    y = call.into(0, shape, x.dtype)
    with np.errstate(all="ignore"):
        apply(x, plans, y, call.attrs["extrapolation_value"])
    return y
