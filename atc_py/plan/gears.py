"""Gears: a plan with a body for each of several sets of sizes, seen at one of them.

    gears N { gear 1 { tasks 0–4 }  gear 8 { tasks 5–9 } }       in_gear(plan, {"N": 8})  →  { tasks 5–9 }, x: [8, 3]

A gear is chosen by the symbols that the inputs have, and must be hit exactly. Sizes of outputs that no formula over
these gives are symbols too, and get their values from the gear. What holds of all gears is the law of `wrong_gears`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from atc_py.errors import AtcError, error
from atc_py.ir.dims import Size, UnboundSymbol, evaluate, substitute, symbols_of
from atc_py.ir.types import Tensor
from atc_py.plan.show import show
from atc_py.plan.types import Gears, Host, Plan, Port, Region, Static, walk

BATCH, IMAGE, DIMS = GEAR_LISTS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
"""How gears are listed: by the batch, by height and width, or by all dims that vary."""


def wrong_gears(plan: Plan) -> Iterator[tuple[str, str]]:
    """What breaks the law of gears, as place and cause: what looks at one gear must have looked at all there is.

    They stand alone at the top, each has a body, its symbols are the plan's, and the inputs' sizes name at most one;
    the hint is one of them. A plan without gears has a hint of its own symbols only.
    """
    found = [r for r in walk(plan.regions) if isinstance(r, Gears)]
    if not found:
        unknown = [s for s in plan.hint or {} if s not in plan.symbols]
        if unknown:
            yield "hint", f"gives {', '.join(unknown)} a value, which the plan does not have"
    elif len(plan.regions) > 1 or len(found) > 1 or plan.regions[0] is not found[0]:
        yield show(found[0]), "gears stand alone at the top of a plan, and there once"
    else:
        yield from _wrong_values(plan, found[0])


def _wrong_values(plan: Plan, region: Gears) -> Iterator[tuple[str, str]]:
    place, symbols, gears = show(region), region.symbols, region.gears
    if not gears or len(region.bodies) != len(gears) or any(len(g) != len(symbols) for g in gears):
        yield place, f"{len(gears)} gears of {len(symbols)} symbols have {len(region.bodies)} bodies"
        return
    if len(set(symbols)) < len(symbols):
        yield place, "a symbol is named twice"
    for s in symbols:
        if s not in plan.symbols or plan.symbols[s].runtime:
            yield place, f"'{s}' is no symbol whose value the plan is bound to"
    names = choosing(plan)
    chosen = [tuple([v for s, v in zip(symbols, g) if s in names]) for g in gears]
    for k, (gear, known) in enumerate(zip(gears, chosen)):
        if any(v < 1 for v in known) or any(v < 0 for v in gear):
            yield place, f"gear {k} has the sizes {gear}, expected 1 and more"
    if len(set(chosen)) < len(chosen):
        yield place, "two gears are for the same sizes of the inputs"
    if plan.hint not in gear_values(plan):
        yield "hint", f"{plan.hint} is none of the gears"


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


def gear_list(plan: Plan) -> tuple[str, tuple[tuple[int, ...], ...]] | None:
    """How the gears are listed, and the sizes of each: one, two, or one for each dim that varies, in the inputs' order.

    The plan's options say which of `GEAR_LISTS` it is; where its gears are no such sizes, it is all dims.
    """
    names, gears = set(choosing(plan)), gear_values(plan)
    if not gears:
        return None
    tensors = [p.type for p in plan.inputs if isinstance(p.type, Tensor)]
    dims = [d for t in tensors for d in t.shape or () if names.intersection(symbols_of(d))]
    sizes = [tuple([_size(d, values) for d in dims]) for values in gears]
    for name, count in ((BATCH, 1), (IMAGE, 2)):
        if name in plan.options and all(s and s == s[:count] * (len(s) // count) for s in sizes):
            return name, tuple([s[:count] for s in sizes])
    return DIMS, tuple(sizes)


def _size(size: Size, env: Mapping[str, int]) -> int:
    with suppress(UnboundSymbol, ZeroDivisionError):  # of a plan that no conversion has made
        return evaluate(size, env)
    return -1


def list_text(name: str, values: Sequence[Sequence[int]]) -> str:
    """Gears as the option of this name has them: `1,2,4`, or `224,224;320,512`."""
    return ("," if name == BATCH else ";").join([",".join(map(str, v)) for v in values])


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


def positions(region: Region) -> int:
    """How many positions a region takes itself, without those inside it (see `Buffer`)."""
    if isinstance(region, Static):
        return len(region.tasks)
    return 1 if isinstance(region, Host) else 0 if isinstance(region, Gears) else 2


def positions_before(plan: Plan, env: Mapping[str, int]) -> int:
    """At which position the gear that `env` names begins; 0 where the plan has none."""
    found, region = 0, gears_of(plan)
    if region is not None:
        values = tuple([env.get(s, -1) for s in region.symbols])
        for body in region.bodies[: region.gears.index(values) if values in region.gears else 0]:
            found += sum(map(positions, walk(body)))
    return found


def _sized(port: Port, env: Mapping[str, int]) -> Port:
    t = port.type
    if not isinstance(t, Tensor) or t.shape is None or t.static:
        return port
    return replace(port, type=t.with_shape(tuple([substitute(d, env) for d in t.shape])))
