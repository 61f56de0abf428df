"""What exactly once asks of the world outside: transactions, one after the other, of one worker."""

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
    """Those of one worker, over all of its sinks: what their writers take over becomes visible with
    the next commit, all of it or nothing."""

    @property
    def busy(self) -> bool:
        """Whether one is being committed. Raises MeanderError where one may have failed."""

    @property
    def waiting(self) -> bool:
        """Whether writers have taken anything over that no commit has begun to make visible."""

    def commit(self, mark: CommitMarker) -> None:
        """Begin to make visible what has been taken over, with its mark, while none is `busy`."""

    def close(self) -> None:
        """Give up what is not committed."""


@runtime_checkable
class ChecksummedWriter(SinkWriter, Protocol):
    """A sink's way out in transactions, which knows what it writes."""

    @property
    def taken(self) -> Checksum:
        """Of all that it has taken over."""

    def tally(self, batch: Batch) -> Checksum:
        """Of a batch, were it written. Raises RowRefused as `write`."""


@runtime_checkable
class DeferredWriter(SinkWriter, Protocol):
    """A sink's way out in transactions that keeps what it takes over until it is let go of."""

    def let_go(self, ticket: int) -> None:
        """All up to a ticket leaves with the next transaction."""


class Keeper(Generic[T]):
    """What is kept, under tickets 1, 2, 3, ..., and which of it is out.

    >>> sent = []
    >>> keeper = Keeper(lambda one: sent.append(one) or 7)
    >>> keeper.keep("a"), keeper.keep("b"), keeper.let_go(1), sent
    (1, 2, None, ['a'])
    >>> keeper.out(6), keeper.out(7)
    (0, 1)
    """

    def __init__(self, leave: Callable[[T], int]) -> None:
        """`leave` has something leave with the next transaction, and gives the number of that."""
        self._leave = leave
        self._kept = deque[T]()
        self._last = self._out = 0
        self._leaving = deque[tuple[int, int]]()
        """Transactions, each with the last ticket in it."""

    def keep(self, one: T) -> int:
        """Its ticket."""
        self._kept.append(one)
        self._last += 1
        return self._last

    def let_go(self, ticket: int) -> None:
        """All up to a ticket leaves."""
        while self._last - len(self._kept) < ticket:
            transaction = self._leave(self._kept.popleft())
            self._leaving.append((transaction, self._last - len(self._kept)))

    def out(self, committed: int) -> int:
        """The last ticket that is out, where so many transactions have been committed."""
        while self._leaving and self._leaving[0][0] <= committed:
            _, self._out = self._leaving.popleft()
        return self._out
