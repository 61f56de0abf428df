"""Open several clients concurrently.

Each client needs a tenth of a second or more to reach the broker, and a recovery waits for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

AT_ONCE = 8
"""The number of threads."""


class _Closes(Protocol):
    def close(self) -> None:
        """Release all resources."""


C = TypeVar("C", bound=_Closes)
T = TypeVar("T")


class ConcurrentOpen:
    """A group of concurrent calls. It closes opened objects in the reverse order of their calls."""

    def __init__(self, ends: contextlib.ExitStack, pool: ThreadPoolExecutor) -> None:
        self._ends, self._pool = ends, pool

    def open(self, make: Callable[[], C]) -> Future[C]:
        """Start to open one object."""
        future = self._pool.submit(make)
        self._ends.callback(_close, future)
        return future

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Start a call whose result needs no closing."""
        return self._pool.submit(question)


@contextlib.contextmanager
def open_concurrently() -> Iterator[ConcurrentOpen]:
    """Yield a group of concurrent calls, whose objects stay open until the end of the block.

    >>> from io import StringIO
    >>> with open_concurrently() as opening:
    ...     first, second = opening.open(StringIO), opening.ask(lambda: 2)
    ...     print(first.result().closed, second.result())
    False 2
    >>> first.result().closed
    True
    """
    with contextlib.ExitStack() as ends, ThreadPoolExecutor(AT_ONCE) as pool:
        yield ConcurrentOpen(ends, pool)


def _close(future: Future[C]) -> None:
    if future.exception() is None:
        future.result().close()
