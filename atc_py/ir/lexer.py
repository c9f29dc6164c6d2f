"""The words of the IR's text form: strings, names, numbers, and lists of sizes; mistakes with their position.

    quote('say "hi"')             →  "say \\"hi\\""    JSON, so no word has a raw line break inside
    sizes('N, min(H, "a,b"), 3')  →  (N, min(H, "a,b"), 3)

The patterns are used with `match(text, position)`. Each alternative begins with another character, so
hostile text is rejected in linear time.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import NoReturn

from atc_py.errors import AtcError, error
from atc_py.ir.dims import Size, parse_dim

STRING = r'"[^"\\\x00-\x1f]*(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*)*"'
NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
OPERATOR = r"[A-Za-z_][A-Za-z0-9_.\-]*(?:::[A-Za-z_][A-Za-z0-9_.\-]*)?"
BRACKET = rf'\[([^"\[\]\n]*(?:{STRING}[^"\[\]\n]*)*)\]'
"""Sizes between brackets; group 1 is what stands inside."""

MAX_DIGITS = 40
MAX_DEPTH = 64
"""Values, types, recipes or graphs inside each other."""
CACHED = 1024
"""Characters; what longer texts mean is not kept in caches."""

_PLAIN_NAME = re.compile(NAME)
_PLAIN_OPERATOR = re.compile(OPERATOR)
_PIECES = re.compile(rf'({STRING})|([(])|([)])|(,)|[^"(),]+')
_WORDS = re.compile(rf"{STRING}|{NAME}")


class Mistake(Exception):
    """What is wrong, and at which character of the text that was being read (from 0)."""

    def __init__(self, at: int, cause: str, code: str = "EI101") -> None:
        super().__init__(cause)
        self.at, self.cause, self.code = at, cause, code

    def raise_error(self, place: str, line: int | None = None, before: int = 0) -> NoReturn:
        """Raise an `AtcError` that names `line` and column (from 1); `before` characters precede the text."""
        where = f"column {before + self.at + 1}"
        where = where if line is None else f"line {line}, {where}"
        hint = "the text is damaged, or was written by another version of atc-py"
        raise error(self.code, f"{place}, {where}", self.cause, hint)


def unprintable(place: str, cause: str, hint: str = "") -> AtcError:
    """The error of a thing that has no text form."""
    return error("EI103", place, cause, hint)


def quote(text: str) -> str:
    """`text` as a JSON string; characters that do not print are escaped."""
    if not text.isprintable():
        return encode_basestring_ascii(text)
    return encode_basestring(text) if '"' in text or "\\" in text else f'"{text}"'


def unquote(word: str, at: int = 0) -> str:
    """The inverse of `quote`, for a word that matches `STRING`."""
    if "\\" not in word:
        return word[1:-1]
    try:
        return str(json.loads(word))
    except ValueError:
        raise Mistake(at, f"the string {word[:40]} has a malformed escape") from None


def name_text(name: str) -> str:
    """A name as it is, or quoted where it is no plain one."""
    return name if _PLAIN_NAME.fullmatch(name) else quote(name)


def operator_text(op: str) -> str:
    """An operator's name, quoted where it is unusual."""
    return op if _PLAIN_OPERATOR.fullmatch(op) and op != "_" else quote(op)


def named(word: str, at: int = 0) -> str:
    """The name that a word (plain or quoted) stands for."""
    return unquote(word, at) if word.startswith('"') else word


def words_text(words: tuple[str, ...] | list[str]) -> str:
    """Strings, quoted, with commas between them."""
    return ", ".join(map(quote, words))


def words(text: str, at: int = 0) -> list[str]:
    """The strings and names of a list whose form has been checked."""
    return [named(word, at) for word in _WORDS.findall(text)]


def sizes_text(dims: tuple[Size, ...]) -> str:
    """Sizes with commas between them."""
    return ", ".join(map(str, dims))


def sizes(text: str, at: int = 0) -> tuple[Size, ...]:
    """The sizes of a list, `text` being what stands between its brackets."""
    if not text or text.isspace():
        return ()
    parts = _split(text, at) if '"' in text or "(" in text else text.split(",")
    result: list[Size] = []
    for part in parts:
        word = part.strip()
        if word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS:
            result.append(int(word))
        else:
            result.append(size(word, at))
    return tuple(result)


def size(text: str, at: int = 0) -> Size:
    """One size."""
    try:
        return parse_dim(text)
    except ValueError as problem:
        raise Mistake(at, str(problem)) from None


def integer(word: str, at: int = 0) -> int:
    """A decimal integer that matches `-?[0-9]+`."""
    if len(word) > MAX_DIGITS:
        raise Mistake(at, f"an integer of {len(word)} digits; the limit is {MAX_DIGITS}", "EI102")
    return int(word)


def _split(text: str, at: int) -> list[str]:
    """`text` cut at the commas that stand outside of strings and parentheses."""
    parts: list[str] = []
    depth = start = position = 0
    while position < len(text):
        match = _PIECES.match(text, position)
        if match is None:
            raise Mistake(at + position, "a string is not closed")
        kind = match.lastindex
        depth += (kind == 2) - (kind == 3)
        if kind == 4 and depth == 0:
            parts.append(text[start:position])
            start = match.end()
        position = match.end()
    parts.append(text[start:])
    return parts
