"""The one exception of this package."""

from __future__ import annotations

from enum import Enum


class OmErrorCode(str, Enum):
    """What kind of problem an `OmError` reports; the values are stable."""

    NOT_OM = "OM_NOT_OM"
    """The file is something else."""
    TRUNCATED = "OM_TRUNCATED"
    """The file ends before what it declares."""
    CORRUPT = "OM_CORRUPT"
    """Bytes contradict each other, or their digest."""
    NEWER = "OM_NEWER"
    """Written in a later version of the format."""
    UNSUPPORTED = "OM_UNSUPPORTED"
    """A valid OM of a kind that is not readable here (encrypted)."""
    FOREIGN = "OM_FOREIGN"
    """A readable OM without the partitions that this project adds."""
    INVALID = "OM_INVALID"
    """A writer was asked for something that the format cannot hold."""


class OmError(Exception):
    """A file that cannot be read, or content that cannot be written.

    `offset` is in bytes from the start of the file, None where no place in a file is meant. `cause` says
    what is wrong, `hint` what to do about it ("" when there is nothing to add). `path` is the file's, ""
    when it was read from memory or is being written.
    """

    def __init__(
        self, code: OmErrorCode, cause: str, *, offset: int | None = None, hint: str = "", path: str = ""
    ) -> None:
        self.code = code
        self.cause = cause
        self.offset = offset
        self.hint = hint
        self.path = path
        super().__init__(cause)

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset is not None else ""
        where = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.code.value}: {where}{self.cause}{place}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments need help to cross a process boundary.
        return _rebuild, (self.code, self.cause, self.offset, self.hint, self.path)


def _rebuild(code: OmErrorCode, cause: str, offset: int | None, hint: str, path: str) -> OmError:
    return OmError(code, cause, offset=offset, hint=hint, path=path)


def invalid(cause: str, hint: str = "") -> OmError:
    """An INVALID error: the caller of a writer asked for what cannot be written."""
    return OmError(OmErrorCode.INVALID, cause, hint=hint)


def corrupt(cause: str, offset: int, hint: str = "") -> OmError:
    """A CORRUPT error at a byte of the file."""
    return OmError(OmErrorCode.CORRUPT, cause, offset=offset, hint=hint)


def truncated(cause: str, offset: int, hint: str = "") -> OmError:
    """A TRUNCATED error; `offset` is where something should follow."""
    return OmError(OmErrorCode.TRUNCATED, cause, offset=offset, hint=hint)
