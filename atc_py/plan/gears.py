"""Gears: a plan with a body for each of several sets of sizes, seen at one of them.

    gears N { gear 1 { tasks 0–4 }  gear 8 { tasks 5–9 } }       in_gear(plan, {"N": 8})  →  { tasks 5–9 }, x: [8, 3]

A gear is chosen by the symbols that the inputs have, and must be hit exactly. Sizes of outputs that no formula over
these gives are symbols too, and get their values from the gear.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from atc_py.errors import AtcError, error
from atc_py.ir.dims import UnboundSymbol, evaluate, substitute, symbols_of
from atc_py.ir.types import Tensor
from atc_py.plan.types import Gears, Plan, Port, Region


def gears_of(plan: Plan) -> Gears | None:
    """The gears of a plan that was compiled for a list of sizes; None for any other."""
    return next((r for r in plan.regions if isinstance(r, Gears)), None)


def gear_values(plan: Plan) -> list[dict[str, int]]:
    """The symbols' values of each gear, in order; none where the plan has no gears."""
    region = gears_of(plan)
    return [] if region is None else [dict(zip(region.symbols, values)) for values in region.gears]


def gear_count(plan: Plan) -> int:
    """How many sets of sizes the plan has bodies for: 1 where it has no gears."""
    region = gears_of(plan)
    return 1 if region is None else len(region.gears)


def choosing(plan: Plan) -> tuple[str, ...]:
    """The symbols of the gears that inputs have, in the order of the gears' values; all where inputs have none."""
    region = gears_of(plan)
    if region is None:
        return ()
    tensors = [p.type for p in plan.inputs if isinstance(p.type, Tensor)]
    given = {s for t in tensors for d in t.shape or () for s in symbols_of(d)}
    return tuple([s for s in region.symbols if s in given]) or region.symbols


def in_full(plan: Plan, env: Mapping[str, int]) -> dict[str, int]:
    """`env` with the values of all symbols of the gear that it names; raises `AtcError` E30009 where it names none.

    As it is where the plan has no gears, or `env` does not have all the symbols by which one is chosen.
    """
    names = choosing(plan)
    if not names or any(s not in env for s in names):
        return dict(env)
    for values in gear_values(plan):
        if all(values[s] == env[s] for s in names):
            return {**env, **values}
    raise _no_gear(plan, env)


def _no_gear(plan: Plan, env: Mapping[str, int]) -> AtcError:
    wanted = shapes_text(plan, env) or ", ".join(f"{s} = {env[s]}" for s in choosing(plan))
    listed = [shapes_text(plan, values) or str(tuple(values.values())) for values in gear_values(plan)]
    cause = f"the model was compiled for {len(listed)} sets of sizes, and {wanted} is none of them"
    return error("E30009", "inputs", cause, "its gears are " + ", ".join(f'"{text}"' for text in listed))


def gear_shapes(plan: Plan, env: Mapping[str, int]) -> dict[str, list[int]]:
    """The shapes under `env` of the inputs whose shapes the gears say, by name."""
    names, found = set(choosing(plan)), dict[str, list[int]]()
    for port in plan.inputs:
        shape = port.type.shape if isinstance(port.type, Tensor) else None
        if shape is not None and any(names.intersection(symbols_of(d)) for d in shape):
            with suppress(UnboundSymbol, ZeroDivisionError):  # of a plan that no conversion has made
                found[port.name] = [evaluate(d, env) for d in shape]
    return found


def shapes_text(plan: Plan, env: Mapping[str, int]) -> str:
    """These shapes as `--input-shape` takes them: `x:8,3,224,224;mask:8,16`."""
    return ";".join(f"{name}:{','.join(map(str, shape))}" for name, shape in gear_shapes(plan, env).items())


def in_gear(plan: Plan, env: Mapping[str, int] | None) -> Plan:
    """The plan without its other gears: the regions of the one that `env` names, and ports of its sizes.

    The plan itself where it has no gears or `env` names none.
    """
    region = gears_of(plan)
    values = None if region is None else tuple([(env or {}).get(s, -1) for s in region.symbols])
    if region is None or values not in region.gears:
        return plan
    number = region.gears.index(values)
    known = dict(zip(region.symbols, region.gears[number]))
    regions: list[Region] = []
    for r in plan.regions:
        regions += region.bodies[number] if r is region else (r,)
    inputs, outputs = (tuple([_sized(p, known) for p in ports]) for ports in (plan.inputs, plan.outputs))
    return replace(plan, regions=tuple(regions), inputs=inputs, outputs=outputs)


def _sized(port: Port, env: Mapping[str, int]) -> Port:
    t = port.type
    if not isinstance(t, Tensor) or t.shape is None or t.static:
        return port
    return replace(port, type=t.with_shape(tuple([substitute(d, env) for d in t.shape])))
