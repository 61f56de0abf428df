"""A worker's transactions: the results of all its sinks, and the mark that says how far they go.

Guarantees that results and mark are committed together or not at all, in the order in which sinks
have handed them over. Results of one time leave together: beyond a bound they wait on disk (I6).
What comes while one is being committed leaves with the next. Ids are derived from the worker's
number, so a worker of a later life ends what an earlier one of that number had begun (I8).
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
    """Under which a worker commits, in whichever life.

    >>> transactional_id("test.", "delays", WorkerId(2))
    'test.delays.worker-2'
    """
    return f"{prefix}{flow}.worker-{worker}"


class KafkaTransactions:
    """Implements `Transactions`; `most` bounds the bytes under way in memory, `batch` those of one
    batch. `spools` opens what holds a transaction's parcels."""

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
        """Whoever had the id before commits nothing any more. Raises MeanderError."""
        self._committer = TransactionalProducer(settings, id, wakeup.set, batch_size=batch)
        self._marks, self._most, self._spools = marks, most, spools
        self._kept = MemoryLimit(f"outboxes of {id!r}", most)
        self._written, self._leaving = spools(), spools()
        """What is to leave with the next, and what is being committed."""
        self._keeping = 0
        """Bytes that wait in outboxes."""
        self._begun = 0

    @property
    def busy(self) -> bool:
        """Whether one is being committed. Raises MeanderError where one may have failed."""
        busy = self._committer.busy
        if not busy and self._leaving:
            self._leaving.close()
            self._leaving = self._spools()
        return busy

    @property
    def waiting(self) -> bool:
        """Whether anything has been taken over that is not being committed."""
        return bool(self._written)

    @property
    def full(self) -> bool:
        """Whether half of the bytes that memory has room for are under way."""
        return 2 * (self._written.size + self._leaving.size) >= self._most

    @property
    def crammed(self) -> bool:
        """Whether half of the bytes that may wait in outboxes do."""
        return 2 * self._keeping >= self._kept.most

    @property
    def committed(self) -> int:
        """How many have been."""
        return self._begun - self.busy

    def commit(self, mark: CommitMarker) -> None:
        """Begin to make visible what has been taken over, with its mark, while none is `busy`."""
        self.leave(TopicBatch(self._marks, [mark.to_bytes()], [None]))
        self._begun += 1
        self._leaving, self._written = self._written, self._spools()
        self._committer.commit(self._leaving)

    def leave(self, parcel: TopicBatch) -> int:
        """Take records over that leave with the next; the number of that."""
        self._written.add(parcel, self._most - self._leaving.near)
        return self._begun + 1

    def keep(self, size: int) -> None:
        """So many bytes wait in an outbox, or, where that is negative, no longer. Raises
        MeanderError where more do than the bound."""
        self._keeping += size
        self._kept.check(self._keeping, "results wait for a checkpoint")

    def writer(self, spec: KafkaSink, context: WorkerContext) -> ChecksummedWriter:
        """The way out of a sink that sends in the order of time."""
        return _Writer(self, spec, context)

    def outbox(self, spec: KafkaSink, context: WorkerContext) -> DeferredWriter:
        """The way out of a sink whose results wait for a checkpoint."""
        return _Outbox(self, spec, context)

    def close(self) -> None:
        """Give up what is not committed."""
        self._committer.close()
        self._written.close()


class _Writer:
    """Implements `ChecksummedWriter`: a ticket is the number of a transaction."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions, self._topic = transactions, spec.topic
        self._rows = RecordEncoder(
            spec, context.worker, context.pulse, Taken.by(spec.topic, context)
        )
        self.taken = Checksum()

    def write(self, batch: Batch) -> int:
        """Take over one batch. Raises RowRefused for a row that cannot be written."""
        values, keys, headers = self._rows.written(batch)
        self.taken += Checksum.of(batch.times, keys, values)
        return self._transactions.leave(TopicBatch(self._topic, values, keys, headers))

    def checksum(self, batch: Batch) -> Checksum:
        """Of a batch, were it written. Raises RowRefused as `write`."""
        return self._rows.checksum(batch)

    @property
    def full(self) -> bool:
        """Whether so much is under way that it should be given no more for now."""
        return self._transactions.full

    def delivered(self) -> int:
        """The last transaction that is committed. Raises MeanderError where one may have failed."""
        return self._transactions.committed

    def close(self) -> None:
        """It is closed with the transactions."""


class _Waiting(NamedTuple):
    """What lies in an outbox."""

    parcel: TopicBatch
    size: int
    """Bytes that are held for it."""


class _Outbox:
    """Implements `DeferredWriter`."""

    def __init__(
        self, transactions: KafkaTransactions, spec: KafkaSink, context: WorkerContext
    ) -> None:
        self._transactions, self._topic = transactions, spec.topic
        self._rows = RecordEncoder(
            spec, context.worker, context.pulse, Taken.by(spec.topic, context)
        )
        self._keeper = DeferredStore[_Waiting](self._leave)

    def write(self, batch: Batch) -> int:
        """Keep one batch, as it will be sent. Raises RowRefused for a row that cannot be."""
        parcel = TopicBatch(self._topic, *self._rows.written(batch))
        # The sink has the batch itself as long, for checkpoints, and its values are no smaller.
        waiting = _Waiting(parcel, 2 * parcel.size + batch.weight)
        self._transactions.keep(waiting.size)
        return self._keeper.add(waiting)

    def release(self, ticket: int) -> None:
        """All up to a ticket leaves with the next transaction."""
        self._keeper.release(ticket)

    @property
    def full(self) -> bool:
        """Whether so much is under way that it should be given no more for now."""
        return self._transactions.crammed

    def delivered(self) -> int:
        """The last that is out. Raises MeanderError where a transaction may have failed."""
        return self._keeper.delivered(self._transactions.committed)

    def close(self) -> None:
        """It is closed with the transactions."""

    def _leave(self, waiting: _Waiting) -> int:
        self._transactions.keep(-waiting.size)
        return self._transactions.leave(waiting.parcel)
