"""The transactional producer: commits batches of records as a whole, or not at all.

Guarantees that transactions commit in the given order, one at a time. A later producer with the
same id fences this one for good (I8). The producer repeats a transaction that Kafka aborted as a
whole, so it waits for the end of an outage. `busy` raises WorkerLost where the outcome is unknown.
`commit_transaction` blocks, so it runs in a thread that waits in native code. Cost: 2 to 5 ms per
transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka import topic_metadata
from meander.connectors.kafka.client import (
    MAX_MESSAGE_BYTES,
    TRANSACTION_TIMEOUT,
    Settings,
    admin,
    contact,
    is_missing,
    is_transient,
    retry_transactional,
    transactional,
    translate,
)
from meander.connectors.kafka.sink.producer import (
    RecordsRefused,
    Report,
    batch_limit,
    is_beyond_limits,
)
from meander.connectors.kafka.sink.topic_batch import Record, TopicBatch, records_from
from meander.dataflow.errors import WorkerLost
from meander.schemas.errors import MeanderError, SetupError

RETRY_PAUSE = 0.1
"""The seconds before an aborted transaction is tried again."""
_RETRIABLE = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._STATE,
    KafkaError._INCONSISTENT,  # some records report it beside another of these errors
    # A broker that has returned may lack the last records that it received.
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
"""The errors of records that were late, were aborted, or followed a gap that Kafka noticed. None of
them is visible once Kafka has confirmed the abort."""


TransactionBatch = Iterable[TopicBatch]
"""The batches of one transaction. The thread iterates over them once per attempt."""


class TopicDeleted(SetupError):
    """An error that reports a deleted topic of a transaction."""


def topic_deleted(topics: Sequence[str]) -> TopicDeleted:
    """Return the error for a deleted topic, which is one of these.

    >>> print(topic_deleted(["counts"]))
    topic 'counts': it was deleted while the flow ran; create it again (meander topics create), ...
    """
    one = len(topics) == 1
    return TopicDeleted(
        f"{'topic' if one else 'topics'} {', '.join(map(repr, topics))}",
        f"{'it' if one else 'one of them'} was deleted while the flow ran",
        "create it again (meander topics create), and run the flow again: it does not repeat the"
        " results that it has committed",
    )


class TransactionalProducer:
    """A producer that commits transactions under an id; its thread calls `done` after each."""

    def __init__(
        self, settings: Settings, id: str, done: Callable[[], None],
        max_batch_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:  # fmt: skip
        """Fence earlier producers of the id. Raise MeanderError."""
        self._settings, self._id, self._done = settings, id, done
        self._contact = contact(settings)
        self._open(batch_limit(settings, max_batch_bytes))
        self._transactions = SimpleQueue[TransactionBatch | None]()
        self._started = self._ended = 0
        self._failure: Exception | None = None
        self._topics: dict[str, None] = {}
        """The topics of the present transaction, in order."""
        self._deleted = False
        """Whether a topic of the last attempt did not exist."""
        self._refused: tuple[KafkaError, str] | None = None
        """The refusal of the present transaction, and its topic."""
        self._beyond_limits: list[Message] = []
        """The records that their topics have refused because of their limits."""
        threading.Thread(target=self._run, name=f"commits {id}", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Return whether a transaction is being committed. Raise the error that has ended the
        producer: RecordsRefused with a refused record."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()
        return self._started != self._ended

    def commit(self, transaction: TransactionBatch) -> None:
        """Start to commit a transaction; the producer must not be `busy`."""
        self._started += 1
        self._transactions.put(transaction)

    def close(self) -> None:
        """Drop transactions that are not committed."""
        self._transactions.put(None)

    def _open(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._producer = transactional(self._settings, self._id, batch_size=batch_bytes)

    def _run(self) -> None:
        while (transaction := self._transactions.get()) is not None:
            try:
                while not self._try_commit(transaction):
                    time.sleep(RETRY_PAUSE)
            except Exception as error:  # noqa: BLE001 - `busy` raises it on the caller's thread
                self._failure = error
                self._done()
                return
            self._ended += 1
            self._done()
        del self._producer

    def _try_commit(self, transaction: TransactionBatch) -> bool:
        """Return whether a transaction has committed; otherwise Kafka has aborted it and may accept
        it later. Raise MeanderError for a refusal, WorkerLost for an unknown outcome."""
        self._refused, self._beyond_limits, started = None, [], time.monotonic()
        self._topics.clear()
        try:
            self._producer.begin_transaction()
            for batch in transaction:
                self._send(batch)
            retry_transactional(self._producer.commit_transaction)
        except KafkaException as error:
            self._abort(error, time.monotonic() - started)
            return False
        return True

    def _abort(self, error: KafkaException, seconds: float) -> None:
        """Abort a transaction that has run for `seconds`. Raise where another attempt is
        useless."""
        found = self._explain(error.args[0], seconds)
        cause, remedy = found.cause, "run the flow again"
        if isinstance(found, TopicDeleted):
            remedy = found.remedy
        elif seconds > TRANSACTION_TIMEOUT:
            limit = f"Kafka ends it after {TRANSACTION_TIMEOUT:g} s"
            cause = f"one took {seconds:.0f} s, and {limit} ({cause})"
            remedy += "; unless an outage was the reason, have it make fewer results of one time"
        lost = WorkerLost(found.subject, cause, remedy)
        if error.args[0].fatal():
            raise lost from None
        try:
            self._producer.abort_transaction(TRANSACTION_TIMEOUT)
        except KafkaException:
            raise lost from None
        if self._beyond_limits:
            refused = RecordsRefused(self._beyond_limits, self._batch_bytes)
            if refused.record is not None:
                raise refused
            self._open(refused.batch_bytes)
            return
        deleted, self._deleted = self._deleted, isinstance(found, TopicDeleted)
        # A broker that has just started may not know all of its topics yet.
        twice = deleted and self._deleted
        if twice or self._refused is not None or not _is_retriable(error.args[0]):
            raise found

    def _explain(self, error: KafkaError, seconds: float) -> MeanderError:
        """Return why a transaction has failed after `seconds`, with its topic where that is
        known."""
        refused, topics = error, [*self._topics]
        if self._refused is not None:
            refused, topics = self._refused[0], [self._refused[1]]
        # The records of a deleted topic wait in the client until they time out.
        if is_missing(refused) or 2 * seconds > TRANSACTION_TIMEOUT:
            missing = self._missing_topics()
            if missing or is_missing(refused):
                return topic_deleted(missing or topics)
        unknown = f"transactions of {self._id!r}"
        return translate(refused, unknown if self._refused is None else f"topic {topics[0]!r}")

    def _missing_topics(self) -> list[str]:
        """Return the topics of the transaction that do not exist; none where no broker answers."""
        with suppress(MeanderError):
            client = admin(self._settings)
            found = topic_metadata.descriptions(client, [*self._topics])
            return [topic for topic, description in found.items() if description is None]
        return []

    def _send(self, batch: TopicBatch) -> None:
        report = partial(self._report, batch.topic)
        if len(batch):
            self._topics[batch.topic] = None
        for record in records_from([batch], 0):
            while not self._produce(record, report):
                self._producer.poll(0.05)

    def _produce(self, record: Record, report: Report) -> bool:
        """Return whether the queue had room. Raise KafkaException."""
        topic, value, key, partition, headers, timestamp = record
        try:
            self._producer.produce(
                topic, value, key, partition, report, timestamp=timestamp, headers=headers
            )
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._refused = error.args[0], topic
            raise
        return True

    def _report(self, topic: str, error: KafkaError | None, message: Message) -> None:
        """Record the first permanent refusal of a record, which aborts the whole transaction."""
        if error is None:
            return
        if is_beyond_limits(error, message):
            self._beyond_limits.append(message)
        elif self._refused is None and not _is_retriable(error):
            self._refused = error, topic


def _is_retriable(error: KafkaError) -> bool:
    """Return whether a transaction aborted for this error is worth another attempt."""
    return is_transient(error) or error.code() in _RETRIABLE
