"""Python's collector of cycles, while much is made that stays.

    with paused():
        compile ...             # graphs, plans and messages: all of it lives until the end
                                # the collector is as it was

A conversion makes some hundred objects a node that stay alive. Each time their number has grown by a quarter the
collector looks at all of them, and finds next to nothing: what the compiler gives up, it holds in no cycles, so that
counting references frees it at once. This took a third of the time of a conversion, and more for larger models.

What has been made then counts as old at once, as if the collector had looked at it as often as it does before it leaves
things alone: its next look at what is young would else be one at all of it. After an error it does look, for a
traceback may hold anything.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection of cycles inside; the process' setting comes back, however it ends. May be nested."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        if not gc.get_freeze_count():  # else somebody keeps objects from the collector, and wants it so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
    finally:
        gc.enable()
