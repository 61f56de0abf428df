"""Questions to a broker that never hold up the thread that has them.

Guarantees one question at a time, asked in a thread of its own; a later call takes the answer, or
raises the error. A process that ends waits for no answer. Cost: a thread per question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


def _no_wakeup() -> None:
    return None


class Inquiry(Generic[T]):
    """A question after the other, each in a thread.

    >>> inquiry = Inquiry("ends")
    >>> inquiry.ask(lambda: 3)
    >>> while (answer := inquiry.take()) is None: pass
    >>> answer.result(), inquiry.running
    (3, False)
    """

    def __init__(self, name: str, wakeup: Callable[[], None] = _no_wakeup) -> None:
        """`name` is that of the threads, which call `wakeup` behind each answer."""
        self._name, self._wakeup = name, wakeup
        self._answer: Future[T] | None = None

    @property
    def running(self) -> bool:
        """Return whether the answer to a question is yet to be taken."""
        return self._answer is not None

    def ask(self, question: Callable[[], T]) -> None:
        """Ask a question. The answer to the one before must have been taken."""
        assert self._answer is None
        answer = self._answer = Future[T]()

        def find() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - `result` raises it
                answer.set_exception(error)
            self._wakeup()

        self._start(find)

    def take(self) -> Future[T] | None:
        """Return the answer, or the error, once it has arrived; only once."""
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        return answer

    def close(self, release: Callable[[], None]) -> None:
        """Release what the questions use once none runs, without a wait."""
        last = [] if self._answer is None else [self._answer]

        def end() -> None:
            wait(last)
            release()

        self._start(end)

    def _start(self, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name=self._name, daemon=True).start()
