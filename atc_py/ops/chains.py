"""Which products of a task feed each other: what that means for how the cores share them.

Conv 1×1 ─ Relu ─ Conv 3×3 ─ Add(x)        both convolutions make whole rows of their maps on one core: the second
                                           needs all channels of the first; its left operand is made by the task
MatMul q, MatMul k (one input)             neither feeds the other: split as each likes
RMSNormalization ─ MatMul                  the product's left operand is made by the task
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from atc_py.ir.dims import Size, floordiv
from atc_py.ops.base import Product

_PARTS = 1 << 10
"""What shares of symbolic sizes are counted in."""


class Chains:
    """The products of a body in order. A node is any object with `inputs` and `outputs`, lists of value ids."""

    def __init__(self) -> None:
        self._behind: dict[int, frozenset[int]] = {}
        """By inner value the numbers of the products that it is made of."""
        self._products: list[tuple[tuple[Product, ...], bool, float]] = []
        self._feeding: set[int] = set()

    def add(
        self, inputs: Sequence[int], outputs: Sequence[int], products: tuple[Product, ...], again: float = 0.0
    ) -> None:
        """One operator of the body, after those that it reads; `again` is the share of its work that is repeated."""
        behind: frozenset[int] = frozenset().union(*[self._behind.get(v, frozenset()) for v in inputs])
        if products:
            fed = self._behind.get(inputs[0], frozenset())
            self._feeding |= fed | ({len(self._products)} if fed else set())
            self._products.append((products, inputs[0] in self._behind, again))
            behind |= {len(self._products) - 1}
        for v in outputs:
            self._behind[v] = behind

    @property
    def chained(self) -> bool:
        """Whether any product feeds another one."""
        return bool(self._feeding)

    def products(self) -> tuple[Product, ...]:
        """All products, marked."""
        found: list[Product] = []
        for number, (products, inner, again) in enumerate(self._products):
            rows = number in self._feeding
            if inner or rows or again > 0:
                products = tuple([replace(p, inner=inner or p.inner, rows=rows, m=more(p.m, again)) for p in products])
            found += products
        return tuple(found)


def more(size: Size, again: float) -> Size:
    """A size and the share of it that is repeated."""
    if again <= 0:
        return size
    return ceil(size * (1 + again)) if type(size) is int else floordiv(size * int(_PARTS * (1 + again)), _PARTS)
