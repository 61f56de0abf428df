"""Questions to a broker that never hold up the thread that has them.

Guarantees one question at a time, asked by a thread of its own; a later call takes the answer.
Cost: one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Inquiry(Generic[T]):
    """A thread that asks one question after the other.

    >>> inquiry = Inquiry("ends")
    >>> inquiry.ask(lambda: 3)
    >>> while (answer := inquiry.take()) is None: pass
    >>> answer.result(), inquiry.running
    (3, False)
    >>> inquiry.close()
    """

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._thread = ThreadPoolExecutor(1, name)
        self._answer: Future[T] | None = None

    @property
    def running(self) -> bool:
        """Return whether the answer to a question is yet to be taken."""
        return self._answer is not None

    def ask(self, question: Callable[[], T]) -> None:
        """Ask a question. The answer to the one before must have been taken."""
        assert self._answer is None
        self._answer = self._thread.submit(question)

    def take(self) -> Future[T] | None:
        """Return the answer, or the error, once it has arrived; only once."""
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Ask no further, without a wait for a running question."""
        self._thread.shutdown(wait=False, cancel_futures=True)
