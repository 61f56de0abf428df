"""Transactions of a worker: the results of all its sinks, and the commit marker that bounds them.

Guarantees that results and marker commit together or not at all, in the order in which sinks wrote
them. Results of one time leave together; beyond a bound they wait on disk (I6). Results that arrive
during a commit leave with the next transaction. Ids derive from the worker's number, so a worker of
a later execution fences earlier workers of that number (I8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.sink import KafkaSink, RecordEncoder, Taken
from meander.connectors.kafka.sink.transaction_buffer import Spool
from meander.connectors.kafka.sink.transactional_producer import TopicBatch, TransactionalProducer
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import (
    ChecksummedWriter,
    DeferredStore,
    DeferredWriter,
)
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.records.batch import Batch
from meander.state.keys.ids import WorkerId


def transactional_id(prefix: str, flow: str, worker: WorkerId) -> str:
    """Return the transactional id of a worker in all executions.

    >>> transactional_id("test.", "delays", WorkerId(2))
    'test.delays.worker-2'
    """
    return f"{prefix}{flow}.worker-{worker}"


class KafkaTransactions:
    """The transactions that commit one worker's results; implements `Transactions`. `most` bounds
    the bytes in memory, `batch` those of one Kafka batch. `spools` opens the buffer of a
    transaction."""

    def __init__(
        self,
        settings: Settings,
        id: str,
        marks: str,
        wakeup: Wakeup,
        most: int,
        spools: Callable[[], Spool],
        batch: int,
    ) -> None:
        """Fence earlier producers of the id. Raise MeanderError."""
        self._committer = TransactionalProducer(settings, id, wakeup.set, batch_size=batch)
        self._marks, self._most, self._spools = marks, most, spools
        self._kept = MemoryLimit(f"outboxes of {id!r}", most)
        self._written, self._leaving = spools(), spools()
        """The batches of the next transaction, and of the one that is being committed."""
        self._keeping = 0
        """The bytes that wait in outboxes."""
        self._begun = 0

    @property
    def busy(self) -> bool:
        """Return whether a transaction is being committed. Raise MeanderError where one may have
        failed."""
        busy = self._committer.busy
        if not busy and self._leaving:
            self._leaving.close()
            self._leaving = self._spools()
        return busy

    @property
    def waiting(self) -> bool:
        """Return whether results wait for the next transaction."""
        return bool(self._written)

    @property
    def full(self) -> bool:
        """Return whether the bytes in memory exceed half of their bound."""
        return 2 * (self._written.size + self._leaving.size) >= self._most

    @property
    def crammed(self) -> bool:
        """Return whether the bytes in outboxes exceed half of their bound."""
        return 2 * self._keeping >= self._kept.max_bytes

    @property
    def committed(self) -> int:
        """Return the number of committed transactions."""
        return self._begun - self.busy

    def commit(self, mark: CommitMarker) -> None:
        """Start to commit the waiting results with a commit marker; no transaction may be
        `busy`."""
        self.leave(TopicBatch(self._marks, [mark.to_bytes()], [None]))
        self._begun += 1
        self._leaving, self._written = self._written, self._spools()
        self._committer.commit(self._leaving)

    def leave(self, parcel: TopicBatch) -> int:
        """Add records to the next transaction; return its number."""
        self._written.add(parcel, self._most - self._leaving.near)
        return self._begun + 1

    def keep(self, size: int) -> None:
        """Add `size` bytes to those in outboxes; a negative size removes them. Raise MeanderError
        beyond the bound."""
        self._keeping += size
        self._kept.check(self._keeping, "results wait for a checkpoint")

    def writer(self, spec: KafkaSink, context: WorkerContext) -> ChecksummedWriter:
        """Return the writer of a sink that sends in the order of time."""
        return _Writer(self, spec, context)

    def outbox(self, spec: KafkaSink, context: WorkerContext) -> DeferredWriter:
        """Return the writer of a sink whose results wait for a checkpoint."""
        return _Outbox(self, spec, context)

    def close(self) -> None:
        """Drop results that are not committed."""
        self._committer.close()
        self._written.close()


class _Writer:
    """A writer that adds results to transactions; implements `ChecksummedWriter`. A ticket is the
    number of a transaction."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions, self._topic = transactions, spec.topic
        self._rows = RecordEncoder(
            spec, context.worker, context.keepalive, Taken.by(spec.topic, context)
        )
        self.written_checksum = Checksum()

    def write(self, batch: Batch) -> int:
        """Accept one batch. Raise RowRefused for a row that cannot be written."""
        values, keys, headers = self._rows.written(batch)
        self.written_checksum += Checksum.of(batch.times, keys, values)
        return self._transactions.leave(TopicBatch(self._topic, values, keys, headers))

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch without writing it. Raise RowRefused as `write` does."""
        return self._rows.checksum(batch)

    @property
    def full(self) -> bool:
        """Return whether the sink should wait, as half of the bound is in use."""
        return self._transactions.full

    def delivered(self) -> int:
        """Return the last committed transaction. Raise MeanderError where one may have failed."""
        return self._transactions.committed

    def close(self) -> None:
        """Do nothing, as the transactions close it."""


class _Waiting(NamedTuple):
    """A batch that waits in an outbox."""

    parcel: TopicBatch
    size: int
    """The bytes that it occupies."""


class _Outbox:
    """A writer that keeps results in an outbox; implements `DeferredWriter`."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions, self._topic = transactions, spec.topic
        self._rows = RecordEncoder(
            spec, context.worker, context.keepalive, Taken.by(spec.topic, context)
        )
        self._keeper = DeferredStore[_Waiting](self._leave)

    def write(self, batch: Batch) -> int:
        """Keep one batch in its encoded form. Raise RowRefused for a row that cannot be written."""
        parcel = TopicBatch(self._topic, *self._rows.written(batch))
        # The sink keeps the batch as long, for checkpoints, and its values are at least as large.
        waiting = _Waiting(parcel, 2 * parcel.size + batch.weight)
        self._transactions.keep(waiting.size)
        return self._keeper.add(waiting)

    def release(self, ticket: int) -> None:
        """Send all batches up to a ticket with the next transaction."""
        self._keeper.release(ticket)

    @property
    def full(self) -> bool:
        """Return whether the sink should wait, as half of the bound is in use."""
        return self._transactions.crammed

    def delivered(self) -> int:
        """Return the last committed ticket. Raise MeanderError where a transaction may have
        failed."""
        return self._keeper.delivered(self._transactions.committed)

    def close(self) -> None:
        """Do nothing, as the transactions close it."""

    def _leave(self, waiting: _Waiting) -> int:
        self._transactions.keep(-waiting.size)
        return self._transactions.leave(waiting.parcel)
