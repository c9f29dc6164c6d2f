"""The canonical graph as it is stored in an OM: its text form, compressed.

8 B "ATCGRPH1" | u64 bytes of the text | zlib stream
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from atc_py.errors import AtcError, error
from atc_py.ir.graph import Graph
from atc_py.ir.text import BlobTable, parse_graph, print_graph

MAGIC = b"ATCGRPH1"
LIMIT = 1 << 30
"""A text longer than this many bytes is refused."""
LEVEL = 4
"""Of compression: higher ones take twice the time for a few percent of the text."""
_HEAD = struct.Struct("<8sQ")


def pack_graph(graph: Graph, blobs: BlobTable) -> bytes:
    """The stored form; blobs that the text refers to are added to `blobs`."""
    text = print_graph(graph, blobs).encode()
    return _HEAD.pack(MAGIC, len(text)) + zlib.compress(text, LEVEL)


def unpack_graph_text(data: memoryview) -> str:
    """The text of a stored graph. Raises `AtcError` E30011."""
    if data.nbytes < _HEAD.size:
        raise _broken("is too short")
    magic, size = _HEAD.unpack_from(data)
    if magic != MAGIC or size > LIMIT:
        raise _broken("does not start with its mark" if magic != MAGIC else f"announces {size} bytes of text")
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data[_HEAD.size :], size + 1)
        if len(raw) != size or inflate.unconsumed_tail or not inflate.eof:
            raise _broken(f"announces {size} bytes of text, but holds {'more' if len(raw) > size else len(raw)}")
        return raw.decode()
    except (zlib.error, UnicodeDecodeError) as e:
        raise _broken(f"does not decompress: {e}") from None


def unpack_graph(data: memoryview, blobs: Sequence[memoryview]) -> Graph:
    """The stored graph, its blobs being views of the file."""
    return parse_graph(unpack_graph_text(data), blobs)


def _broken(cause: str) -> AtcError:
    return error("E30011", "canonical graph", f"the partition {cause}", "convert the model again")
