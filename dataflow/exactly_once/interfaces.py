"""The interfaces of exactly-once delivery: the transactions of one worker and the writers in
them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, runtime_checkable

from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.interfaces import SinkWriter
from meander.dataflow.records.batch import Batch

T = TypeVar("T")


class Transactions(Protocol):
    """A sequence of transactions of one worker over all of its sinks.

    What their writers have written becomes visible with the next commit, all of it or nothing.
    """

    @property
    def busy(self) -> bool:
        """Whether a commit is under way. Raise `MeanderError` where it may have failed."""

    @property
    def waiting(self) -> bool:
        """Whether writers have written anything that no commit includes yet."""

    def commit(self, marker: CommitMarker) -> None:
        """Start to commit what was written, with its commit marker, while no commit is under
        way."""

    def close(self) -> None:
        """Give up what is not committed."""


@runtime_checkable
class ChecksummedWriter(SinkWriter, Protocol):
    """A writer in transactions that knows the checksum of its results."""

    @property
    def written_checksum(self) -> Checksum:
        """The checksum of all results written, and of those that only the limits of a topic
        refused: a replay may meet other limits."""

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch as if it were written to a topic without limits. Raise
        `RowError` for a row that does not fit the format."""


@runtime_checkable
class DeferredWriter(SinkWriter, Protocol):
    """A writer in transactions that keeps results until they are released."""

    def release(self, ticket: int) -> None:
        """Send all results up to a ticket with the next transaction."""


class DeferredStore(Generic[T]):
    """A store of results under tickets 1, 2, 3, ..., which knows the released and the delivered
    ones.

    >>> sent = []
    >>> store = DeferredStore(lambda one: sent.append(one) or 7)
    >>> store.add("a"), store.add("b"), store.release(1), sent
    (1, 2, None, ['a'])
    >>> store.delivered(6), store.delivered(7)
    (0, 1)
    """

    def __init__(self, send: Callable[[T], int]) -> None:
        """`send` puts a result into the next transaction and returns the number of that
        transaction."""
        self._send = send
        self._deferred = deque[T]()
        self._last = self._out = 0
        self._released = deque[tuple[int, int]]()
        """Transactions, each with its last ticket."""

    def add(self, one: T) -> int:
        """Add a result; return its ticket."""
        self._deferred.append(one)
        self._last += 1
        return self._last

    def release(self, ticket: int) -> None:
        """Send all results up to a ticket."""
        while self._last - len(self._deferred) < ticket:
            transaction = self._send(self._deferred.popleft())
            self._released.append((transaction, self._last - len(self._deferred)))

    def delivered(self, committed: int) -> int:
        """Return the last delivered ticket after some number of committed transactions."""
        while self._released and self._released[0][0] <= committed:
            _, self._out = self._released.popleft()
        return self._out
