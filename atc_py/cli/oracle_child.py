"""Calls in a process of their own: a library that ends its process takes only the child with it.

    Child(run)(names, feeds)          the call goes through a pipe to a forked copy of this process, its result back
    Child(os.abort)()                 Died: signal 6 (SIGABRT)

The child is made at the first call and kept, with what `function` remembers, until this process ends. Where processes
cannot be forked the call is made in this one.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any


class Died(Exception):
    """The child ended during a call; the text says by what."""


class Child:
    """Makes the calls of one function in one forked child."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._pipe: Connection | None = None
        self._process: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """The function's result. Raises what the function raises, and `Died`."""
        if not hasattr(os, "fork"):
            return self._function(*arguments)
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(arguments)
            fine, value = self._pipe.recv()
        except (EOFError, ConnectionError) as e:
            raise Died(self._end()) from e
        if not fine:
            raise value
        return value

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("fork")
        self._pipe, inner = context.Pipe()
        self._process = context.Process(target=self._serve, args=(inner, self._pipe), daemon=True)
        self._process.start()
        inner.close()

    def _serve(self, pipe: Connection, outer: Connection) -> None:
        """Answer calls until the parent is gone."""
        outer.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's, whose end ends this
        with suppress(EOFError, ConnectionError):
            while True:
                arguments = pipe.recv()
                try:
                    answer: tuple[bool, Any] = True, self._function(*arguments)
                except Exception as e:  # whatever it is, it belongs to the caller
                    answer = False, e
                try:
                    pipe.send(answer)
                except (pickle.PicklingError, TypeError, AttributeError):
                    pipe.send((False, RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))

    def _end(self) -> str:
        """What ended the child; the next call makes a new one."""
        assert self._pipe is not None
        self._pipe.close()
        self._process.join()
        code, self._pipe = self._process.exitcode, None
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"signal {-code}"
