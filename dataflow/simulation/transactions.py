"""Transactions in memory for simulated workers.

Guarantees the behaviour of a broker. A transaction becomes visible as a whole some turns after its
start, or never. A fenced execution commits no further transaction, and the seed decides about its
open ones.
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
"""Makes the contents of a transaction visible."""


@dataclass(slots=True)
class Ledger:
    """A ledger of the committed markers, and of the execution that may commit."""

    rng: random.Random
    markers: list[CommitMarker] = field(default_factory=list)
    forgotten: int = 0
    """The number of deleted commit markers before these."""
    execution: ExecutionId | None = None
    open: list[tuple[CommitMarker, Show]] = field(default_factory=list)
    """Transactions whose commit has started."""

    def start_execution(self, execution: ExecutionId) -> None:
        """Start an execution. Open transactions of earlier executions commit now or never."""
        for marker, show in [*self.open]:
            if self.rng.random() < 0.5:
                self.commit(marker, show)
        self.open.clear()
        self.execution = execution

    def marker_retention(self) -> MarkerRetention:
        """Return the marker retention, whose answers take some turns."""

        def ask() -> Callable[[], int | None]:
            end = self.forgotten + len(self.markers)
            return lambda: end if self.rng.random() < 0.9 else None

        return MarkerRetention(ask, self._forget)

    def _forget(self, end: int) -> None:
        del self.markers[: end - self.forgotten]
        self.forgotten = end

    def expect_current(self, execution: ExecutionId) -> None:
        """Raise MeanderError for a fenced execution."""
        if execution != self.execution:
            raise MeanderError(f"execution {execution}", "a later execution has fenced it")

    def commit(self, marker: CommitMarker, show: Show) -> None:
        """Commit an open transaction."""
        self.open = [one for one in self.open if one != (marker, show)]
        self.markers.append(marker)
        show()


class InMemoryWriter(SinkWriter, Protocol):
    """A writer that keeps results in memory."""

    def prepared(self, batch: Batch) -> Show:
        """Return a function that makes a batch visible. Raises RowError."""

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch as it becomes visible. Raises RowError."""


class ListTransactions:
    """A transaction service in memory that implements `Transactions`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._written: list[Show] = []
        self._open: tuple[CommitMarker, Show] | None = None
        self._chance = 1.0
        """The probability that a check finds the open transaction committed."""
        self.begun = self.done = 0
        """The numbers of started and of committed transactions."""

    @property
    def busy(self) -> bool:
        """Return whether a transaction is open, after a random check may have committed it."""
        if self._open is None:
            return False
        marker, show = self._open
        self._ledger.expect_current(marker.execution)
        if self._ledger.rng.random() < self._chance:
            self._ledger.commit(marker, show)
            self.done, self._open = self.begun, None
        return self._open is not None

    @property
    def waiting(self) -> bool:
        """Return whether a write waits for the next transaction."""
        return bool(self._written)

    def commit(self, marker: CommitMarker) -> None:
        """Start a transaction. Raises MeanderError for a fenced execution."""
        self._ledger.expect_current(marker.execution)
        written, self._written = self._written, []

        def show() -> None:
            for one in written:
                one()

        self.begun += 1
        self._chance = self._ledger.rng.choice([0.5, 0.02])
        self._open = marker, show
        self._ledger.open.append(self._open)

    def write(self, show: Show) -> int:
        """Add a write to the next transaction, and return the number of that transaction."""
        self._written.append(show)
        return self.begun + 1

    def close(self) -> None:
        """Do nothing, as no resource is open."""


class TransactionalWriter:
    """A writer that implements `ChecksummedWriter` by another writer. Its tickets are the numbers
    of transactions."""

    def __init__(self, transactions: ListTransactions, writer: InMemoryWriter) -> None:
        self._transactions, self._writer = transactions, writer
        self.written_checksum = Checksum()

    def write(self, batch: Batch) -> int:
        """Keep a batch for the next transaction."""
        show = self._writer.prepared(batch)
        self.written_checksum += self.checksum(batch)
        return self._transactions.write(show)

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch that is not written."""
        return self._writer.checksum(batch)

    @property
    def full(self) -> bool:
        """Return False, as memory has room."""
        return False

    def delivered(self) -> int:
        """Return the number of the last committed transaction."""
        return self._transactions.done

    def close(self) -> None:
        """Do nothing, as no resource is open."""


MAX_DEFERRED = 40
"""The most batches that an `OutboxWriter` holds."""


class OutboxWriter:
    """A writer that implements `DeferredWriter` by another writer."""

    def __init__(self, transactions: ListTransactions, writer: InMemoryWriter) -> None:
        self._transactions, self._writer = transactions, writer
        self._deferred = DeferredStore[Show](transactions.write)
        self._last = 0

    def write(self, batch: Batch) -> int:
        """Keep a batch, and return its ticket."""
        self._last = self._deferred.add(self._writer.prepared(batch))
        return self._last

    def release(self, ticket: int) -> None:
        """Send all batches up to a ticket with the next transaction."""
        self._deferred.release(ticket)

    @property
    def full(self) -> bool:
        """Return whether there is no room."""
        return self._last - self.delivered() >= MAX_DEFERRED

    def delivered(self) -> int:
        """Return the last ticket whose batch is committed."""
        return self._deferred.delivered(self._transactions.done)

    def close(self) -> None:
        """Do nothing, as no resource is open."""
