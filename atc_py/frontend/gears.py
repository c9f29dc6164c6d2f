"""The sizes that a model is compiled for when it is compiled for a list of them: ATC's three options.

    x: [-1, 3, 224, 224]            --dynamic-batch-size "1,2,4"                  x: [1, 3, 224, 224], [2, …], [4, …]
    x: [1, 3, -1, -1]               --dynamic-image-size "224,224;320,512"        x: [1, 3, 224, 224], [1, 3, 320, 512]
    ids: [-1, -1], mask: [-1, 16]   --dynamic-dims "1,8,1;2,16,2"                 ids: [1, 8], mask: [1, 16]; …

An axis varies when neither the model nor --input-shape gives it a size. A batch size is that of the first axis of all
inputs that vary, an image size that of H and W of all of them; --dynamic-dims has a value for each axis, in the order
of the inputs in --input-shape, then in the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from atc_py.errors import Problem, Problems, error
from atc_py.frontend import codes, inputs
from atc_py.frontend.inputs import whole
from atc_py.ir.dims import Dim, symbols_of
from atc_py.ir.graph import Range
from atc_py.ir.types import Tensor, Type

BATCH, IMAGE, DIMS = OPTIONS = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
"""The options' names; at most one of them is given."""
FEWEST, MOST = 2, 100
"""How many gears there may be (GE's limits)."""
_EXAMPLES = {BATCH: "1,2,4", IMAGE: "224,224;320,512", DIMS: "1,128;4,256"}
_IN_PYTHON = {BATCH: "(1, 2, 4)", IMAGE: "((224, 224), (320, 512))", DIMS: "((1, 128), (4, 256))"}
_DIGITS = 19
"""As many as the largest size has."""
_IMAGE_AXES = {(2, 3), (1, 2)}
"""H and W in NCHW and in NHWC."""

Values = tuple[tuple[int, ...], ...]
"""The sizes of each gear, as they are given."""
Axes = list[tuple[str, int, str]]
"""The axes that vary: (input, axis, symbol)."""


@dataclass(frozen=True)
class Gearing:
    """What was asked for, against the model's inputs.

    `symbols` are those of the axes that vary, `gears` their values in each gear; `types` are the inputs' types over
    these symbols, `shapes` for each gear the shapes of the inputs that vary.
    """

    option: str
    values: Values
    symbols: Mapping[str, Range]
    gears: tuple[tuple[int, ...], ...]
    types: Mapping[str, Type]
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the gears are called: by the sizes that were given."""
        return tuple([f"gear {','.join(map(str, v))}" for v in self.values])


def option_text(name: str) -> str:
    """An option as it is written on the command line."""
    return "--" + name.replace("_", "-")


def parse_gears(given: Mapping[str, str | None]) -> dict[str, Values]:
    """The options' texts as sizes, those that are None left out; raises `AtcError` E10001 naming all that is wrong."""
    found: dict[str, Values] = {}
    problems = Problems()
    for name, text in [(n, t) for n in OPTIONS if (t := given.get(n)) is not None]:
        place, hint = option_text(name), f'give sizes, e.g. "{_EXAMPLES[name]}"'
        if not text.strip():
            problems.add("E10001", place, "is given without a value", f"{hint}, or leave it out")
            continue
        parts = text.split(",") if name == BATCH else text.strip().rstrip(";").split(";")
        gears = [[_read(word, place, hint, problems) for word in part.split(",")] for part in parts]
        found[name] = tuple([tuple(gear) for gear in gears])
    problems.raise_any()
    return found


def _read(word: str, place: str, hint: str, problems: Problems) -> int:
    """A size that was written; 0 for what is none."""
    word = word.strip()
    if word.isdecimal() and word.isascii():
        if len(word) <= _DIGITS and int(word) <= inputs.LARGEST:
            return int(word)
        problems.add("E10001", place, f"'{word[:_DIGITS]}…' has {len(word)} digits", f"sizes are 1 to {inputs.LARGEST}")
    else:
        shown = word if len(word) <= 2 * _DIGITS else word[: 2 * _DIGITS] + "…"
        problems.add("E10001", place, f"'{shown}' is no size", hint)
    return 0


def given_gears(given: Mapping[str, object]) -> dict[str, Values]:
    """The options as Python has them, as sizes, those that are empty left out.

    Batches are integers, all others sequences of them. Raises `AtcError` E10001 naming all that is wrong.
    """
    found: dict[str, Values] = {}
    problems = Problems()
    for name, gears in given.items():
        place, hint = option_text(name), f"give integers, e.g. Options({name}={_IN_PYTHON[name]})"
        listed = _listed(gears)
        if listed is None:
            problems.add("E10001", place, f"{_shortly(gears)} is no sequence of gears", hint)
            continue
        for k, gear in enumerate(listed):
            sizes = [gear] if name == BATCH else _listed(gear)
            wrong = [gear] if sizes is None else [size for size in sizes if _bounded(size) is None]
            problems.extend(
                Problem(
                    "E10001",
                    place,
                    f"gear {k}: {_shortly(w)} is no {'list of sizes' if sizes is None else 'size'}",
                    hint,
                )
                for w in wrong
            )
            found[name] = (*found.get(name, ()), tuple([_bounded(size) or 0 for size in sizes or ()]))
    problems.raise_any()
    return found


def _bounded(given: object) -> int | None:
    """An integer that a file can hold, be it a size or not; None for all else."""
    size = whole(given)
    return size if size is not None and abs(size) <= inputs.LARGEST else None


def _listed(given: object) -> list[object] | None:
    """The items of a sequence, or of an array; None for what is none, and for text, whose items are letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return None
    return list(given)


def _shortly(given: object) -> str:
    if isinstance(given, int) and abs(given) > inputs.LARGEST:
        return f"an integer of {given.bit_length()} bits"
    text = repr(given)
    return text if len(text) <= 40 else text[:40] + "…"


def read_gears(proto: onnx.ModelProto, shapes: inputs.Shapes, asked: Mapping[str, Values]) -> Gearing:
    """The gears of a model. Raises one `AtcError` with everything that is wrong with them: E10002, E10009 to E10045."""
    problems = Problems()
    option, values = _one(asked, problems)
    _check_values(option, values, problems)
    known = {i.name for i in proto.graph.initializer if i.name not in shapes}
    found = inputs.resolve({i.name: i.type for i in proto.graph.input if i.name not in known}, shapes, problems)
    axes = _axes(found, [n for n in shapes if n in found.types])
    _check_axes(option, values, axes, found, problems)
    problems.raise_any()
    sizes = [_spread(option, gear, axes) for gear in values]
    gears = [_by_symbol(option, gear, spread, axes, problems) for gear, spread in zip(values, sizes)]
    problems.raise_any()
    symbols = {s: found.symbols.get(s, Range()) for s in dict.fromkeys(s for _, _, s in axes)}
    per_gear = tuple([_shapes(found, axes, gear) for gear in gears])
    return Gearing(option, values, symbols, tuple([tuple(g.values()) for g in gears]), found.types, per_gear)


def _one(asked: Mapping[str, Values], problems: Problems) -> tuple[str, Values]:
    """The option that is given."""
    names = [n for n in OPTIONS if asked.get(n)]
    if not names:
        raise error("E10001", "gears", "none are given", f"give one of {', '.join(map(option_text, OPTIONS))}")
    if len(names) > 1:
        cause = f"{' and '.join(map(option_text, names))} are given, which exclude each other"
        problems.add(codes.GEARS_TWICE, "gears", cause, "--dynamic-dims can say what the others say together")
    return names[0], asked[names[0]]


def _check_values(option: str, values: Values, problems: Problems) -> None:
    """What is wrong with the sizes whatever the model is."""
    place = option_text(option)
    if len(values) < FEWEST:
        hint = "give the sizes with --input-shape: an OM for one set of sizes needs no gears"
        problems.add(codes.GEARS_FEW, place, f"has {len(values)} gear, expected at least {FEWEST}", hint)
    if len(values) > MOST:
        hint = "leave the option out: with dims of -1 in --input-shape the OM takes any size"
        problems.add(codes.GEARS_MANY, place, f"has {len(values)} gears, expected at most {MOST}", hint)
    if len({len(v) for v in values}) > 1:
        lengths = ", ".join(str(len(v)) for v in values)
        problems.add(codes.GEARS_UNEQUAL, place, f"its gears have {lengths} values", "give each the same number")
    for k, gear in enumerate(values):
        if any(v <= 0 for v in gear):
            shown = ",".join(map(str, gear))
            problems.add(codes.GEARS_SIZE, place, f"gear {k} is {shown}", "give sizes of 1 and more")
        if gear in values[:k]:
            shown = ",".join(map(str, gear))
            problems.add(codes.GEARS_EQUAL, place, f"gears {values.index(gear)} and {k} are both {shown}", "drop one")


def _axes(found: inputs.Inputs, first: Sequence[str]) -> Axes:
    """The axes that vary, the inputs of `first` before the others."""
    return [
        (name, axis, symbols_of(d)[0])
        for name in dict.fromkeys((*first, *found.types))
        if isinstance(t := found.types[name], Tensor)
        for axis, d in enumerate(t.shape or ())
        if isinstance(d, Dim)
    ]


def _check_axes(option: str, values: Values, axes: Axes, found: inputs.Inputs, problems: Problems) -> None:
    """Which axes may vary."""
    place = option_text(option)
    listed = "; ".join(f"{n}: {_shown(t)}" for n, t in found.types.items())
    if not axes and not len(problems):
        hint = "give -1 for a dim that the model leaves open, or export the model with a dynamic axis"
        problems.add(codes.GEARS_FIXED, place, f"no dim of an input varies: the inputs are {listed}", hint)
    for name, axis, label in axes:
        range_ = found.symbols.get(label, Range())
        if range_.lo > 0 or range_.hi is not None:
            cause = f"dim {axis} has a range in --input-shape, but its sizes are those of {place}"
            problems.add(codes.GEARS_RANGE, f"input '{name}'", cause, "give -1 for it")
    count = {BATCH: 1, IMAGE: 2}.get(option, len(axes))
    wrong = {len(v) for v in values} - {count}
    if axes and wrong and len({len(v) for v in values}) == 1:
        what = ", ".join(f"dim {axis} of '{name}'" for name, axis, _ in axes)
        has = wrong.pop()
        cause = f"a gear has {has} value{'s' * (has != 1)}, expected {count}" + (f" ({what})" if option == DIMS else "")
        hint = "give a value for each dim that varies; --input-shape fixes the others" if option == DIMS else "h,w"
        problems.add(codes.GEARS_COUNT, place, cause, hint)
    for name in dict.fromkeys(n for n, _, _ in axes):
        own = tuple([a for n, a, _ in axes if n == name])
        if option == BATCH and own != (0,):
            cause = f"{_varying(own)}, where a batch size says dim 0"
            hint = f"fix the others with --input-shape, or use {option_text(DIMS)}: {listed}"
            problems.add(codes.GEARS_BATCH, f"input '{name}'", cause, hint)
        if option == IMAGE and own not in _IMAGE_AXES:
            cause = f"{_varying(own)}, where an image size says H and W: 2 and 3, or 1 and 2"
            hint = f"fix the others with --input-shape, or use {option_text(DIMS)}: {listed}"
            problems.add(codes.GEARS_IMAGE, f"input '{name}'", cause, hint)


def _varying(axes: Sequence[int]) -> str:
    return f"dim {axes[0]} varies" if len(axes) == 1 else f"dims {', '.join(map(str, axes))} vary"


def _shown(type_: Type) -> str:
    if not isinstance(type_, Tensor) or type_.shape is None:
        return "[?]"
    return "[" + ", ".join("-1" if isinstance(d, Dim) else str(d) for d in type_.shape) + "]"


def _spread(option: str, gear: tuple[int, ...], axes: Axes) -> list[int]:
    """A gear's value for each axis."""
    if option == BATCH:
        return [gear[0]] * len(axes)
    return list(gear) * (len(axes) // 2) if option == IMAGE else list(gear)


def _by_symbol(
    option: str, gear: tuple[int, ...], sizes: Sequence[int], axes: Axes, problems: Problems
) -> dict[str, int]:
    """A gear's value for each symbol, which may stand at several axes."""
    found: dict[str, int] = {}
    for (name, axis, label), size in zip(axes, sizes, strict=True):
        if found.setdefault(label, size) != size:
            cause = f"gear {','.join(map(str, gear))} gives dim {axis} of '{name}' {size}"
            cause += f", but it is '{label}' in the model, which is {found[label]} elsewhere"
            problems.add(codes.GEARS_COUNT, option_text(option), cause, "dims of one name have one size")
    return found


def _shapes(found: inputs.Inputs, axes: Axes, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that vary."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys(n for n, _, _ in axes):
        t = found.types[name]
        assert isinstance(t, Tensor)
        shapes[name] = tuple([values[symbols_of(d)[0]] if isinstance(d, Dim) else d for d in t.dims])
    return shapes
