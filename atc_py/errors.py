"""The one exception type of atc-py.

An `AtcError` carries one or more `Problem`s, so that everything that is wrong with a model is said at once.
Each problem has a code (see `atc_py.error_catalogue`), the place where it was found, its cause and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong.

    `code` names the kind (stable, documented), `place` is a node, tensor, file or file offset, `cause` says what was
    expected and what was found, `hint` is the next step.
    """

    code: str
    place: str
    cause: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.code} {self.place}: {self.cause}" if self.place else f"{self.code}: {self.cause}"
        return f"{text}\n    {self.hint}" if self.hint else text

    def to_json(self) -> dict[str, str]:
        """The problem as a JSON object with the keys `code`, `place`, `cause` and `hint`."""
        return asdict(self)


class AtcError(Exception):
    """Raised by every part of atc-py; `problems` holds at least one `Problem`."""

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an AtcError needs at least one problem")
        super().__init__("\n".join(str(p) for p in problems))
        self.problems: tuple[Problem, ...] = problems

    @property
    def code(self) -> str:
        """The first problem's code."""
        return self.problems[0].code


def error(code: str, place: str, cause: str, hint: str = "") -> AtcError:
    """An `AtcError` with a single problem."""
    return AtcError(Problem(code, place, cause, hint))


class Problems:
    """Collects problems, drops repetitions, and raises them together."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def add(self, code: str, place: str, cause: str, hint: str = "") -> None:
        """Note one problem."""
        self._found.setdefault(Problem(code, place, cause, hint))

    def extend(self, problems: Iterable[Problem]) -> None:
        """Note several problems."""
        for problem in problems:
            self._found.setdefault(problem)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def raise_any(self) -> None:
        """Raise one `AtcError` with all problems, if there is one."""
        if self._found:
            raise AtcError(*self._found)
