"""Transactions in memory, for flows on simulated workers.

Guarantees what a broker does: a transaction is visible as a whole some turns after it was begun, or
not at all, and whose life is over commits nothing any more; of what was being committed just then
the seed says which of both it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import DeferredStore
from meander.dataflow.exactly_once.marker_retention import MarkerRetention
from meander.dataflow.interfaces import SinkWriter
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import ExecutionId

Show = Callable[[], None]
"""Makes what a transaction holds visible."""


@dataclass(slots=True)
class Ledger:
    """What outlives a flow: the marks that are committed, and who may commit."""

    rng: random.Random
    marks: list[CommitMarker] = field(default_factory=list)
    forgotten: int = 0
    """How many before those that are."""
    life: ExecutionId | None = None
    open: list[tuple[CommitMarker, Show]] = field(default_factory=list)
    """Being committed."""

    def begin(self, life: ExecutionId) -> None:
        """A new life: what earlier ones were committing is out by now, or never will be."""
        for mark, show in [*self.open]:
            if self.rng.random() < 0.5:
                self.settle(mark, show)
        self.open.clear()
        self.life = life

    def trimming(self) -> MarkerRetention:
        """Of the marks, some turns after it was asked for."""

        def ask() -> Callable[[], int | None]:
            end = self.forgotten + len(self.marks)
            return lambda: end if self.rng.random() < 0.9 else None

        return MarkerRetention(ask, self._forget)

    def _forget(self, end: int) -> None:
        del self.marks[: end - self.forgotten]
        self.forgotten = end

    def expect(self, life: ExecutionId) -> None:
        """Raises MeanderError for a life that is over."""
        if life != self.life:
            raise MeanderError(f"life {life}", "a later one has fenced it off")

    def settle(self, mark: CommitMarker, show: Show) -> None:
        """One is committed."""
        self.open = [one for one in self.open if one != (mark, show)]
        self.marks.append(mark)
        show()


class InMemory(SinkWriter, Protocol):
    """A writer in memory."""

    def made(self, batch: Batch) -> Show:
        """What makes a batch visible. Raises RowRefused."""

    def checksum(self, batch: Batch) -> Checksum:
        """Of a batch as it becomes visible. Raises RowRefused."""


class ListTransactions:
    """Implements `Transactions`, in memory."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._written: list[Show] = []
        self._open: tuple[CommitMarker, Show] | None = None
        self._pace = 1.0
        """How likely it is to be done at a look."""
        self.begun = self.done = 0
        """Transactions."""

    @property
    def busy(self) -> bool:
        """Some turns long, or many."""
        if self._open is None:
            return False
        mark, show = self._open
        self._ledger.expect(mark.execution)
        if self._ledger.rng.random() < self._pace:
            self._ledger.settle(mark, show)
            self.done, self._open = self.begun, None
        return self._open is not None

    @property
    def waiting(self) -> bool:
        """Whether anything has been written since the last was begun."""
        return bool(self._written)

    def commit(self, mark: CommitMarker) -> None:
        """Begin. Raises MeanderError once a later life has begun."""
        self._ledger.expect(mark.execution)
        written, self._written = self._written, []

        def show() -> None:
            for one in written:
                one()

        self.begun += 1
        self._pace = self._ledger.rng.choice([0.5, 0.02])
        self._open = mark, show
        self._ledger.open.append(self._open)

    def write(self, show: Show) -> int:
        """To be seen with the next transaction; the number of that."""
        self._written.append(show)
        return self.begun + 1

    def close(self) -> None:
        """Nothing is open."""


class OnceWriter:
    """Implements `ChecksummedWriter` by what another would write: tickets number transactions."""

    def __init__(self, transactions: ListTransactions, writer: InMemory) -> None:
        self._transactions, self._writer = transactions, writer
        self.taken = Checksum()

    def write(self, batch: Batch) -> int:
        """Keep a batch for the next transaction."""
        show = self._writer.made(batch)
        self.taken += self.checksum(batch)
        return self._transactions.write(show)

    def checksum(self, batch: Batch) -> Checksum:
        """Of a batch, were it written."""
        return self._writer.checksum(batch)

    @property
    def full(self) -> bool:
        """Never: memory has room."""
        return False

    def delivered(self) -> int:
        """The number of the last transaction that is committed."""
        return self._transactions.done

    def close(self) -> None:
        """Nothing is open."""


ROOM = 40
"""Batches that a `KeptWriter` takes over before some leave."""


class KeptWriter:
    """Implements `DeferredWriter` by what another would write."""

    def __init__(self, transactions: ListTransactions, writer: InMemory) -> None:
        self._transactions, self._writer = transactions, writer
        self._keeper = DeferredStore[Show](transactions.write)
        self._taken = 0

    def write(self, batch: Batch) -> int:
        """Keep a batch."""
        self._taken = self._keeper.add(self._writer.made(batch))
        return self._taken

    def release(self, ticket: int) -> None:
        """All up to a ticket leaves with the next transaction."""
        self._keeper.release(ticket)

    @property
    def full(self) -> bool:
        """Whether there is no room."""
        return self._taken - self.delivered() >= ROOM

    def delivered(self) -> int:
        """The last that is out."""
        return self._keeper.delivered(self._transactions.done)

    def close(self) -> None:
        """Nothing is open."""
