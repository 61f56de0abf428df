"""Transactions of a worker: the results of all its sinks, and the commit marker that bounds them.

Guarantees that results and marker commit together or not at all, in the order in which sinks wrote
them. Results of one time commit together; beyond a bound they wait on disk (I6). The next
transaction commits results that arrive during a commit. Ids derive from the worker's number, so a
worker of a later execution fences earlier workers of that number (I8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from meander.connectors.kafka.client import Settings, translate
from meander.connectors.kafka.sink.producer import RecordsRefused, error_of
from meander.connectors.kafka.sink.record_encoder import LimitError, RecordEncoder, header_bytes
from meander.connectors.kafka.sink.record_limits import learned_limits
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.sink.topic_batch import TopicBatch
from meander.connectors.kafka.sink.transaction_buffer import TransactionBuffer
from meander.connectors.kafka.sink.transactional_producer import TransactionalProducer
from meander.dataflow.backpressure.memory_limit import MemoryLimit
from meander.dataflow.errors import WorkerLost
from meander.dataflow.exactly_once.checksum import Checksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import (
    ChecksummedWriter,
    DeferredStore,
    DeferredWriter,
)
from meander.dataflow.interfaces import Wakeup, WorkerContext
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import MeanderError
from meander.schemas.row_error import RowError
from meander.state.keys.ids import WorkerId


def transactional_id(prefix: str, flow: str, worker: WorkerId) -> str:
    """Return the transactional id of a worker in all executions.

    >>> transactional_id("test.", "delays", WorkerId(2))
    'test.delays.worker-2'
    """
    return f"{prefix}{flow}.worker-{worker}"


class KafkaTransactions:
    """The transactions that commit one worker's results; implements `Transactions`. `max_bytes`
    bounds the bytes in memory, and `max_batch_bytes` the bytes of one Kafka batch. `open_buffer`
    opens the buffer of a transaction."""

    def __init__(
        self,
        settings: Settings,
        id: str,
        marker_topic: str,
        wakeup: Wakeup,
        max_bytes: int,
        open_buffer: Callable[[], TransactionBuffer],
        max_batch_bytes: int,
    ) -> None:
        """Fence earlier producers of the id. Raise MeanderError."""
        self._producer = TransactionalProducer(settings, id, wakeup.set, max_batch_bytes)
        self._sinks: list[tuple[KafkaSink, WorkerContext]] = []
        self._marker_topic, self._max_bytes = marker_topic, max_bytes
        self._outbox_limit = MemoryLimit(f"outboxes of {id!r}", max_bytes)
        self._open_buffer = open_buffer
        self._waiting, self._committing = open_buffer(), open_buffer()
        """The batches of the next transaction, and of the running commit."""
        self._outbox_bytes = 0
        """The bytes that wait in outboxes."""
        self._started = 0

    @property
    def busy(self) -> bool:
        """Return whether a commit runs. Raise MeanderError where one may have failed."""
        try:
            busy = self._producer.busy
        except RecordsRefused as refused:
            raise self._limit_error(refused) from refused
        if not busy and self._committing:
            self._committing.close()
            self._committing = self._open_buffer()
        return busy

    @property
    def waiting(self) -> bool:
        """Return whether results wait for the next transaction."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Return whether the bytes in memory exceed half of their bound."""
        return 2 * (self._waiting.size + self._committing.size) >= self._max_bytes

    @property
    def outboxes_full(self) -> bool:
        """Return whether the bytes in outboxes exceed half of their bound."""
        return 2 * self._outbox_bytes >= self._outbox_limit.max_bytes

    @property
    def committed(self) -> int:
        """Return the number of committed transactions."""
        return self._started - self.busy

    def commit(self, marker: CommitMarker) -> None:
        """Start to commit the waiting results with a commit marker; no transaction may be
        `busy`."""
        self.add(TopicBatch(self._marker_topic, [marker.to_bytes()], [None]))
        self._started += 1
        self._committing, self._waiting = self._waiting, self._open_buffer()
        self._producer.commit(self._committing)

    def add(self, *batches: TopicBatch) -> int:
        """Add records to the next transaction; return its number."""
        for batch in batches:
            self._waiting.add(batch, self._max_bytes - self._committing.memory_bytes)
        return self._started + 1

    def count_outbox(self, size: int) -> None:
        """Add `size` to the bytes in outboxes; a negative size removes bytes. Raise MeanderError
        beyond the bound."""
        self._outbox_bytes += size
        self._outbox_limit.check(self._outbox_bytes, "results wait for a checkpoint")

    def writer(self, spec: KafkaSink, context: WorkerContext) -> ChecksummedWriter:
        """Return the writer of a sink that sends in the order of time."""
        self._sinks.append((spec, context))
        return _Writer(self, spec, context)

    def outbox(self, spec: KafkaSink, context: WorkerContext) -> DeferredWriter:
        """Return the writer of a sink whose results wait for a checkpoint."""
        self._sinks.append((spec, context))
        return _Outbox(self, spec, context)

    def _limit_error(self, refused: RecordsRefused) -> MeanderError:
        """Return the error for a record that a topic refuses because of its limits."""
        assert refused.record is not None
        topic = str(refused.record.topic())
        writers = (one for one in self._sinks if one[0].accepts(topic))
        if (writer := next(writers, None)) is None:
            return translate(error_of(refused.record), f"topic {topic!r}")
        spec, context = writer
        try:
            limits = learned_limits(topic, context, refused, header_bytes(spec))
        except MeanderError as unexplained:
            return unexplained
        return StricterLimits(topic, limits)

    def close(self) -> None:
        """Drop results that are not committed."""
        self._producer.close()
        self._waiting.close()


class StricterLimits(WorkerLost):
    """An error that ends an execution, as a topic has refused a record in a transaction. The next
    execution needs the limits."""

    def __init__(self, topic: str, limits: dict[str, str]) -> None:
        self.limits = {topic: limits}
        """The limits of the topic, which are stricter than before."""
        named = ", ".join(f"{name}={value}" for name, value in limits.items())
        super().__init__(
            f"topic {topic!r}",
            f"it refuses a record, as its limits have become stricter ({named})",
            "run the flow again",
        )


class _Writer:
    """A writer that adds results to transactions; implements `ChecksummedWriter`. A ticket is the
    number of a transaction."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions = transactions
        self._encoder = RecordEncoder.limited(spec, context)
        self.written_checksum = Checksum()

    def write(self, batch: Batch) -> int:
        """Accept one batch. Raise RowError for a row that cannot be written."""
        try:
            records = self._encoder.encode(batch)
        except RowError as refused:
            limited = [one.row for one in refused.all if isinstance(one, LimitError)]
            rows = batch.take(np.array(limited, np.int64))
            self.written_checksum += self._encoder.checksum(rows)
            raise
        self.written_checksum += self._encoder.checksum_of(batch, records)
        return self._transactions.add(*records.by_topic())

    def checksum(self, batch: Batch) -> Checksum:
        """Return the checksum of a batch without writing it. Raise RowError for a row that does not
        fit the format."""
        return self._encoder.checksum(batch)

    @property
    def full(self) -> bool:
        """Return whether the sink should wait, as half of the bound is in use."""
        return self._transactions.full

    def delivered(self) -> int:
        """Return the last committed transaction. Raise MeanderError where one may have failed."""
        return self._transactions.committed

    def close(self) -> None:
        """Do nothing, as the transactions close it."""


class _DeferredBatch(NamedTuple):
    batches: list[TopicBatch]
    size: int
    """The bytes that it occupies."""


class _Outbox:
    """A writer that retains results in an outbox; implements `DeferredWriter`."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions = transactions
        self._encoder = RecordEncoder.limited(spec, context)
        self._store = DeferredStore[_DeferredBatch](self._send)

    def write(self, batch: Batch) -> int:
        """Retain one batch in its encoded form. Raise RowError for a row that cannot be written."""
        encoded = self._encoder.encode(batch).by_topic()
        # The sink retains the batch as long, for checkpoints, and its values are at least as large.
        size = 2 * sum(one.size for one in encoded) + batch.weight
        deferred = _DeferredBatch(encoded, size)
        self._transactions.count_outbox(deferred.size)
        return self._store.add(deferred)

    def release(self, ticket: int) -> None:
        """Send all batches up to a ticket with the next transaction."""
        self._store.release(ticket)

    @property
    def full(self) -> bool:
        """Return whether the sink should wait, as half of the bound is in use."""
        return self._transactions.outboxes_full

    def delivered(self) -> int:
        """Return the last committed ticket. Raise MeanderError where a transaction may have
        failed."""
        return self._store.delivered(self._transactions.committed)

    def close(self) -> None:
        """Do nothing, as the transactions close it."""

    def _send(self, deferred: _DeferredBatch) -> int:
        self._transactions.count_outbox(-deferred.size)
        return self._transactions.add(*deferred.batches)
