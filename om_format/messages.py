"""The protobuf messages in partitions, to and from bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from .errors import corrupt, invalid

if TYPE_CHECKING:
    from google.protobuf.message import Message

    M = TypeVar("M", bound=Message)

_MAX_BYTES: Final = (1 << 31) - 1


def serialize(message: Message) -> bytes:
    """A message's bytes, equal for equal messages: maps are sorted by key. INVALID above protobuf's 2 GiB."""
    if message.ByteSize() > _MAX_BYTES:
        raise _too_large(message.DESCRIPTOR.full_name)
    return message.SerializeToString(deterministic=True)


def limited(data: bytes, name: str) -> bytes:
    """The bytes of a message called `name`, as they are. INVALID above protobuf's 2 GiB."""
    if len(data) > _MAX_BYTES:
        raise _too_large(name)
    return data


def _too_large(name: str) -> Exception:
    return invalid(f"{name} is larger than protobuf's 2 GiB")


def parse(kind: type[M], data: memoryview, offset: int) -> M:
    """The message of type `kind` in a partition at file byte `offset`. Raises CORRUPT."""
    from google.protobuf.message import DecodeError

    try:
        if len(data) <= _MAX_BYTES:
            return kind.FromString(bytes(data))
        problem = "longer than protobuf allows"
    except (DecodeError, RecursionError, ValueError) as error:
        # Runtimes without the C extension let the latter two through.
        problem = str(error)
    raise corrupt(f"not a {kind.DESCRIPTOR.full_name} message ({problem})", offset)
