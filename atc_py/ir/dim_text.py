"""The parser of symbolic sizes: the inverse of `str(dim)`.

Worked example: '2*(H//2) + min(N, 4)'. Operands go on one stack, operators and open brackets on another; an
operator waits there until one of lower or equal precedence, a comma or a bracket follows (E. W. Dijkstra's
shunting yard). So there is no recursion, and what arrives on the operand stack is a size in normal form
already.

Grammar: + - * // % unary - (Python's precedence), ** with an integer literal, min(...), max(...),
parentheses, integers, names [A-Za-z_][A-Za-z0-9_.]*, and any other name as a JSON string. Text comes from
files: hence limits.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from atc_py.ir.dim_poly import MAX_BITS, MAX_DEGREE, DimOverflow, Size, symbol
from atc_py.ir.dim_rules import extreme, floordiv, mod

__all__ = ["parse_dim"]

MAX_TEXT = 1 << 21  # characters; any printed Dim is shorter
MAX_TOKENS = 8192
MAX_NESTING = 128
MAX_DIGITS = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)"
    r'|(?P<str>"(?:[^"\\]|\\.)*")|(?P<op>\*\*|//|[-+*%(),]))'
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2, "neg": 3}
_FUNCTIONS: dict[str, Callable[..., Size]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": floordiv,
    "%": mod,
    "neg": operator.neg,
}


def parse_dim(text: str) -> Size:
    """The size that `text` denotes; `parse_dim(str(size)) == size` for every size of at most 128 bits.

    Raises ValueError that names the position (in characters, from 0) for malformed text and for what exceeds
    the limits (DimOverflow, where the text is well formed and the size is too large).
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"the text of a dimension has {len(text)} characters; the limit is {MAX_TEXT}")
    return _parse(text)


@lru_cache(2048)
def _parse(text: str) -> Size:
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # where the current token begins
        self.operands: list[Size] = []
        self.waiting: list[tuple[str, int]] = []  # an operator, '(', 'min' or 'max'; the operands below it
        self.nesting = 0

    def error(self, what: str) -> ValueError:
        return ValueError(f"{what} at position {self.at} of the dimension {self.text[:80]!r}")

    def run(self) -> Size:
        end = len(self.text.rstrip())
        position = tokens = 0
        operand_next = True  # else an operator must follow
        while position < end:
            match = _TOKEN.match(self.text, position)
            if match is None:
                self.at = end - len(self.text[position:end].lstrip())
                raise self.error("unexpected character")
            self.at = match.start(match.lastgroup or 0)
            tokens += 1
            if tokens > MAX_TOKENS:
                raise self.error(f"more than {MAX_TOKENS} words")
            position = match.end()
            word, kind = match[match.lastgroup or 0], match.lastgroup
            if operand_next:
                operand_next, position = self.operand(word, kind, position)
            elif word == "**":
                position = self.power(position)
            else:
                operand_next = self.operator(word, kind)
        self.at = end
        if operand_next:
            raise self.error("an operand is missing")
        self.reduce(0)
        if self.waiting:
            raise self.error("a closing parenthesis is missing")
        return self.operands[0]

    def operand(self, word: str, kind: str | None, position: int) -> tuple[bool, int]:
        """Take a token where an operand must begin: (whether one must still follow, the position after)."""
        if kind == "int":
            self.operands.append(self.integer(word))
        elif word in ("min", "max"):
            match = _TOKEN.match(self.text, position)
            if match is None or match["op"] != "(":
                raise self.error(f"{word} without arguments")
            self.open(word)
            return True, match.end()
        elif kind in ("name", "str"):
            self.symbol(word)
        elif word == "-":
            self.waiting.append(("neg", len(self.operands)))
            if len(self.waiting) > MAX_TOKENS // 2:
                raise self.error("too many signs")
            return True, position
        elif word == "(":
            self.open("(")
            return True, position
        else:
            raise self.error("an operand is missing")
        return False, position

    def operator(self, word: str, kind: str | None) -> bool:
        """Take a token after an operand; whether an operand must follow."""
        if kind == "op" and word in _PRECEDENCE:
            self.reduce(_PRECEDENCE[word])
            self.waiting.append((word, len(self.operands)))
            return True
        if word not in (")", ","):
            raise self.error("an operator is missing")
        self.reduce(0)
        opened, base = self.waiting[-1] if self.waiting else ("", 0)
        if not opened or (word == "," and opened == "("):
            raise self.error(f"unexpected '{word}'")
        if word == ",":
            return True
        self.waiting.pop()
        self.nesting -= 1
        if opened != "(":
            args = tuple(self.operands[base:])
            del self.operands[base:]
            self.push(extreme, opened, args)
        return False

    def open(self, what: str) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.error(f"parentheses nested more than {MAX_NESTING} deep")
        self.waiting.append((what, len(self.operands)))

    def integer(self, digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise self.error(f"an integer of {len(digits)} digits")
        return int(digits)

    def symbol(self, word: str) -> None:
        name = word
        if word.startswith('"'):
            try:
                name = json.loads(word)
            except json.JSONDecodeError as problem:
                raise self.error(f"a quoted name is malformed ({problem.msg})") from None
        if not name:
            raise self.error("a symbol without a name")
        self.push(symbol, name)

    def power(self, position: int) -> int:
        """Raise the last operand to the integer that follows; the position after it."""
        match = _TOKEN.match(self.text, position)
        if match is None or match["int"] is None or self.integer(match["int"]) > MAX_DEGREE:
            raise self.error(f"a power that is not an integer of at most {MAX_DEGREE}")
        self.push(operator.pow, self.operands.pop(), int(match["int"]))
        return match.end()

    def reduce(self, precedence: int) -> None:
        """Apply the waiting operators that bind at least as tightly as one of `precedence`."""
        while self.waiting and _PRECEDENCE.get(self.waiting[-1][0], -1) >= max(precedence, 1):
            word, _ = self.waiting.pop()
            count = 1 if word == "neg" else 2
            args = self.operands[-count:]
            del self.operands[-count:]
            self.push(_FUNCTIONS[word], *args)

    def push(self, function: Callable[..., Size], *args: Any) -> None:
        """Put the function's result on the operand stack; its errors get the position."""
        try:
            value = function(*args)
        except DimOverflow as problem:
            raise DimOverflow(str(self.error(str(problem)))) from None
        except ZeroDivisionError:
            raise self.error("a division by zero") from None
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise DimOverflow(str(self.error(f"an integer of more than {MAX_BITS} bits")))
        self.operands.append(value)
