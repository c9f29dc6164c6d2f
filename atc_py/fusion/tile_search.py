"""The search for a body's tile: from the whole down, at most a few dozen tiles.

    MatMul ─ Gelu, float16 [4096, 4096]      L0C 64 MiB: [208, 4096], 3.3 MiB: [208, 208], 169 KiB of 179: done

Leading dims are cut first, down to 1, the last one last, so that a tile lies in long pieces; products are cut into
blocks of the cube, as square as they can be. Symbols count as their upper bounds, or as very large; at run time tiles
are clipped, so that other sizes are tried too before a tile is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt

from atc_py.fusion.tile_use import SHARE, Fit, Meter, Misfit, Sizes, Use, show_bytes
from atc_py.ir.dims import Dim, Size, symbols_of
from atc_py.ir.graph import Graph, Range
from atc_py.ops.tile_program import Program, grid, layout
from atc_py.ops.tiles import Dims, Region, hull, lengths
from atc_py.ops.tiles_moves import reshaped, viewed
from atc_py.target import Target

UNBOUNDED = 1 << 22
"""What a symbol without an upper bound counts as."""
_LONG = 4096
"""The longest tile along a dim without an upper bound."""
_WINDOW = 8
"""Rows and columns of an image below which a tile does more for its borders than inside."""
_ROWS = 16
"""Rows that the cube takes at a time."""
_STEPS = 40
"""How many tiles are tried at most."""


class Search:
    """The tiles of one body, from the whole down."""

    def __init__(self, body: Graph, p: Program, target: Target) -> None:
        self.body, self.p, self.target = body, p, target
        self.room = {"UB": int(target.ub * SHARE), "L1": int(target.l1 * SHARE), "L0C": int(target.l0c * SHARE)}
        self.meter = Meter(body, p)
        dims = [d for v in body.values.values() for d in v.type.dims if type(d) is not int]  # type: ignore[union-attr]
        self.symbols = tuple(dict.fromkeys(s for d in dims for s in symbols_of(d)))
        ranges = {s: body.symbols.get(s, Range()) for s in self.symbols}
        self.ranges = ranges
        self.base = self.meter.sizes({s: UNBOUNDED if r.hi is None else r.hi for s, r in ranges.items()})
        self.first = self.base.shapes[p.outputs[0]]
        self.types = [body.tensor(v).dims for v in p.outputs]
        self.endless = [self._unbounded(d) for d in self.types[0]]
        self.products = 0
        self.joins = any(s.op.tile_fn in (reshaped, viewed) for s in p.steps)

    def _unbounded(self, size: Size) -> bool:
        return isinstance(size, Dim) and any(self.ranges[s].hi is None for s in symbols_of(size))

    def _kept(self, k: int) -> bool:
        """Whether dim `k` of the results stays whole: of size 1, or of sizes that differ and are not known."""
        if self.first[k] <= 1:
            return True
        if any(len(t) != len(self.first) for t in self.types):
            return True
        return any(
            (type(t[k]) is not int or type(self.types[0][k]) is not int) and t[k] not in (1, self.types[0][k])
            for t in self.types
        )

    def run(self) -> Fit | Misfit:
        """The largest tile that fits, tried from the whole down."""
        tile = [0] * len(self.first)
        fixed = [self._kept(k) for k in range(len(tile))]
        u, waiting = self._look(tile), None
        granule = self._granules(u)
        for _ in range(_STEPS):
            if not self._widen(tile, fixed, u):
                over = self._over(u.buffers)
                waiting = self._endless_value(u)
                if not over and waiting is None:
                    found = self._everywhere(tile, u)
                    if isinstance(found, Fit):
                        return found
                    over = self._over(found)
                if not self._shrink(tile, fixed, granule, max(over.values(), default=2.0), waiting is not None):
                    return self._misfit(u if self._over(u.buffers) else None, over, waiting)
            u = self._look(tile)
        return self._misfit(u, self._over(u.buffers), waiting)

    def _look(self, tile: Sequence[int], sizes: Sizes | None = None) -> Use:
        """What a tile takes, wherever it lies."""
        sizes = sizes or self.base
        g = grid(self.p, sizes.shapes, tile)
        return self.meter.use(sizes, g, (0,) * len(g.number))

    def _over(self, used: Mapping[str, int]) -> dict[str, float]:
        return {name: used[name] / room for name, room in self.room.items() if used[name] > room}

    def _granules(self, u: Use) -> list[int]:
        """Lengths that tiles are multiples of, where the cube makes the values: its rows, and C0 lanes of columns."""
        found = [1] * len(self.first)
        needs = [(s, n) for s, n in zip(self.p.steps, u.trace.needs) if n is not None and n.cube]
        self.products = len(needs)
        lanes = 32 if any(self.meter.itemsizes[s.inputs[k]] == 1 for s, n in needs for k in n.cube) else 16
        if any("strides" in s.attrs for s, _ in needs):  # a convolution: its columns are channels
            if len(found) > 2:
                found[1] = lanes
        elif needs and len(found) > 1:
            found[-2:] = [_ROWS, lanes]
        return found

    def _widen(self, tile: list[int], fixed: list[bool], u: Use) -> bool:
        """Keep whole what an operator makes whole, and cut where the parts of the first output begin.

        What other operators read beside the tile, windows that reach beyond it, is made again for each tile.
        """
        cut = [k for k, n in enumerate(tile) if n]
        if not cut:
            return False
        changed = False
        asked, entire = self._asked(u)
        for k in cut:
            now, n = tile[k], u.trace.regions[self.p.outputs[0]][k][1]
            if k in entire:
                changed, tile[k], fixed[k] = True, 0, True
                continue
            if n <= now or n <= asked[k] < self.first[k]:
                continue
            changed = True
            if n < self.first[k] and n % now == 0:
                tile[k], fixed[k] = n, True
            elif now & (now - 1):
                tile[k] = 1 << (now.bit_length() - 1)  # parts are powers of two more often than not
            else:
                tile[k], fixed[k] = 0, True
        return changed

    def _asked(self, u: Use) -> tuple[Dims, set[int]]:
        """(how much of the first output is read in the body, the dims that operators make whole of inner values)."""
        first = self.p.outputs[0]
        asked: dict[int, Region] = {}
        entire: set[int] = set()
        for step, need in reversed(list(zip(self.p.steps, u.trace.needs))):
            if need is None:
                continue
            for v, made in zip(step.outputs, need.outputs or ()):
                shape = self.base.shapes[v]
                if v == first or made is None or v not in asked or len(shape) != len(self.first):
                    continue
                for k, ((_, n), (_, m)) in enumerate(zip(made, asked[v])):
                    if m < shape[k] <= n and shape[k] == self.first[k] > 1:
                        entire.add(k)
            for v, region in zip(step.inputs, need.inputs):
                if region is not None:
                    asked[v] = hull(asked.get(v), region)
        return lengths(asked[first]) if first in asked else (0,) * len(self.first), entire

    def _endless_value(self, u: Use) -> str | None:
        """A dim without an upper bound of which a value is held in whole."""
        for v in self.p.made:
            region = u.trace.regions.get(v)
            for k, d in enumerate(self.body.tensor(v).dims if region is not None else ()):
                if type(d) is not int and region[k][1] >= self.base.shapes[v][k] and self._unbounded(d):  # type: ignore[index]
                    return str(d)
        return None

    def _everywhere(self, tile: Sequence[int], u: Use) -> Fit | Mapping[str, int]:
        """The fit, when it holds for other sizes too; else the bytes that are too many."""
        inner, buffers = u.inner, dict(u.buffers)
        if self._drifts(tile):
            for last in self._at_end(tile):
                inner = tuple(map(max, inner, last.inner))
                placed = layout(self.p, inner, u.places)[1]
                buffers = {name: max(n, last.buffers[name], placed.get(name, 0)) for name, n in buffers.items()}
            if self._over(buffers):
                return buffers
        if self.joins and self.symbols and any(tile):
            # One less than the upper bounds: what divides them by chance does not divide this too.
            env = {s: max(r.lo, UNBOUNDED - 1 if r.hi is None else r.hi - 1, 1) for s, r in self.ranges.items()}
            other = self._look(tile, self.meter.sizes(env))
            inner = tuple(map(max, inner, other.inner))
            placed = layout(self.p, inner, u.places)[1]
            buffers = {name: max(n, other.buffers[name], placed.get(name, 0)) for name, n in buffers.items()}
            if self._over(buffers):
                return buffers
        return Fit(tuple(tile), inner, buffers, u.places)

    def _shrink(self, tile: list[int], fixed: list[bool], granule: list[int], factor: float, endless: bool) -> bool:
        """Make the tile smaller by about `factor`. False: nothing is left to cut."""
        k = self._next(tile, fixed, granule, endless)
        if k is None:
            return False
        now, step = tile[k] or self.first[k], granule[k]
        length = min(now - 1, self._cap(k)) if endless else int(now / factor)
        other = self._beside(k, tile, granule)
        if other is not None and not endless:
            length = max(length, min(isqrt(int(now * other / factor)), other))
        if self._is_image(k, granule) and now > _WINDOW:
            length = max(length, _WINDOW)
        length = max(1, min(length, now - 1))
        if step > 1:
            length = max(step, length // step * step)
        if self.joins and not self.endless[k]:
            length = next((d for d in range(length, length // 2, -step) if self.first[k] % d == 0), length)
        while not self._alike(tile, k, length) and length > 1:
            length -= 1
        if length >= now:
            fixed[k] = True
            return self._shrink(tile, fixed, granule, factor, endless)
        tile[k] = length
        fixed[k] = length == 1
        return True

    def _is_image(self, k: int, granule: Sequence[int]) -> bool:
        """Whether dim `k` is one of those behind the channels of a convolution."""
        return k > 1 and len(granule) > 2 and granule[1] > 1 and granule[-1] == 1

    def _cap(self, k: int) -> int:
        """The longest tile along an endless dim: one index, but for the last such dim, or two that are the last of all.

        At run time tiles are clipped: of rows of unknown length one would often be too little.
        """
        endless = [j for j, e in enumerate(self.endless) if e]
        if len(endless) > 1 and endless[-2:] == [len(self.first) - 2, len(self.first) - 1]:
            return isqrt(_LONG) if k in endless[-2:] else 1
        return _LONG if k == endless[-1] else 1

    def _next(self, tile: Sequence[int], fixed: Sequence[bool], granule: Sequence[int], endless: bool) -> int | None:
        """The dim to cut: leading ones first, then of a product's rows and columns the longer.

        Of a convolution the image, as long as it is longer than its windows reach, then the channels; these last of
        all where other convolutions come before, for each part of the channels makes all of these again.
        """
        free = [k for k in range(len(tile)) if not fixed[k] and (tile[k] or self.first[k]) > 1]
        if endless:
            return next((k for k in free if self.endless[k] and not tile[k]), None)
        if self._is_image(len(tile) - 1, granule):
            long = [k for k in free if k == 0 or (k > 1 and (tile[k] or self.first[k]) > _WINDOW)]
            channels = [k for k in free if k == 1 and (tile[k] or self.first[k]) > granule[1]]
            image = sorted([k for k in free if k > 1], key=lambda k: -(tile[k] or self.first[k]))
            then = [*image, *channels] if self.products > 1 else [*channels, *image]
            return next(iter([*long, *then, *free]), None)
        plain = [k for k in free if granule[k] == 1 and k < len(tile) - 1]
        if plain:
            return plain[0]
        return max(free, key=lambda k: (tile[k] or self.first[k], -k)) if free else None

    def _beside(self, k: int, tile: Sequence[int], granule: Sequence[int]) -> int | None:
        """The length along the other dim of a product's rows and columns."""
        pair = [i for i, g in enumerate(granule) if g > 1]
        if len(pair) != 2 or k not in pair:
            return None
        j = pair[1 - pair.index(k)]
        return tile[j] or self.first[j]

    def _alike(self, tile: Sequence[int], k: int, length: int) -> bool:
        """Whether all results can be cut into equally many tiles along dim `k`, and these lie beside each other."""
        count = -(-self.first[k] // length)
        sizes = [self.base.shapes[v][k] for v in self.p.outputs]
        if not all(d in (1, self.first[k]) or -(-d // -(-d // count)) == count for d in sizes if d):
            return False
        trial = [length if j == k else n for j, n in enumerate(tile)]
        if not self._drifts(trial, (k,)):
            return True
        first = self.p.outputs[0]
        reach, *last = [u.trace.regions[first][k][1] for u in (self._look(trial), *self._at_end(trial))]
        return max(last) <= reach

    def _drifts(self, tile: Sequence[int], dims: Sequence[int] | None = None) -> bool:
        """Whether results of other lengths are cut along some of the dims: their tiles may lie ever further apart."""
        cut = [k for k in (range(len(tile)) if dims is None else dims) if 0 < tile[k] < self.first[k]]
        return any(self.base.shapes[v][k] not in (1, self.first[k]) for v in self.p.outputs for k in cut)

    def _at_end(self, tile: Sequence[int]) -> list[Use]:
        """What the last two tiles take: one that is whole, and what is left."""
        g = grid(self.p, self.base.shapes, tile)
        return [self.meter.use(self.base, g, tuple([max(0, n - back) for n in g.number])) for back in (2, 1)]

    def _misfit(self, u: Use | None, over: Mapping[str, float], endless: str | None) -> Misfit:
        if endless is not None:
            return Misfit("symbol", f"needs the whole of {endless}, which has no upper bound")
        name = max(over, key=lambda n: over[n], default="UB")
        has = {"UB": self.target.ub, "L1": self.target.l1, "L0C": self.target.l0c}[name]
        needs = u.buffers[name] if u is not None else int(over.get(name, 0.0) * self.room[name])
        reason = f"needs {show_bytes(needs)} of {name}, has {show_bytes(has)} and may take {SHARE:.0%}"
        if any(len(t) != len(self.first) for t in self.types):
            reason += "; results of several ranks cannot be cut"
        return Misfit(name, reason)
