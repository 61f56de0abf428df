"""One transactional producer: what it is given becomes visible as a whole, or not at all.

Guarantees that lots are committed in the order given, one at a time, that whoever opens one under
the same id later has ended this one for good (I8), and that a lot that Kafka gave back whole is
tried again, so an outage is waited for; where nobody knows what became of one, `busy` raises.
`commit_transaction` blocks, so it has a thread, which waits in native code. Cost: 2 to 5 ms a lot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from confluent_kafka import KafkaError, KafkaException, Message

from meander.connectors.kafka.client import (
    TRANSACTION,
    Settings,
    contact,
    patiently,
    transactional,
    transient,
    translate,
)
from meander.connectors.kafka.sink.producer import ANYWHERE, Headers, Report, size_of
from meander.dataflow.errors import WorkerLost

PAUSE = 0.1
"""Seconds before a lot that was given back is tried again."""
_GIVEN_BACK = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._STATE,
    KafkaError._INCONSISTENT,  # of some that said one of the others
    # A broker that has come back may not know what it was sent last.
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
"""What is said of records of a transaction that could not be sent in time, or was given up, or of
which Kafka has missed some: none of them is there once it has confirmed that."""


@dataclass(frozen=True, slots=True)
class TopicBatch:
    """Records for one topic; `headers` is None where they have none. Shapes (n,)."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None

    @property
    def size(self) -> int:
        """About how many bytes they take."""
        return size_of(self.values, self.keys, self.headers)


TransactionBatch = Iterable[TopicBatch]
"""Asked for its parcels once for each try, in the thread."""


class TransactionalProducer:
    """Commits lots under an id; `done` is called, in its thread, after each."""

    def __init__(
        self, settings: Settings, id: str, done: Callable[[], None], **tuning: str | float
    ) -> None:
        """Whoever had the id before commits nothing any more. Raises MeanderError."""
        self._id, self._done = id, done
        self._contact = contact(settings)
        self._producer = transactional(settings, id, **tuning)
        self._lots = SimpleQueue[TransactionBatch | None]()
        self._begun = self._ended = 0
        self._failure: Exception | None = None
        self._refused: tuple[KafkaError, str] | None = None
        """Why the lot under way cannot be taken, and by which topic."""
        threading.Thread(target=self._work, name=f"commits {id}", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a lot is being committed. Raises what has ended it otherwise."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()
        return self._begun != self._ended

    def commit(self, lot: TransactionBatch) -> None:
        """Begin to commit, while it is not `busy`."""
        self._begun += 1
        self._lots.put(lot)

    def close(self) -> None:
        """Give up what is not committed."""
        self._lots.put(None)

    def _work(self) -> None:
        while (lot := self._lots.get()) is not None:
            try:
                while not self._committed(lot):
                    time.sleep(PAUSE)
            except Exception as error:  # noqa: BLE001 - it is raised where the lot is looked after
                self._failure = error
                self._done()
                return
            self._ended += 1
            self._done()
        del self._producer

    def _committed(self, lot: TransactionBatch) -> bool:
        """Whether a lot is out; else Kafka has given it back whole, and may take it later. Raises
        MeanderError for what it refuses, WorkerLost where nobody knows what has become of it."""
        self._refused, begun = None, time.monotonic()
        try:
            self._producer.begin_transaction()
            for parcel in lot:
                self._send(parcel)
            patiently(self._producer.commit_transaction)
        except KafkaException as error:
            self._undo(error, time.monotonic() - begun)
            return False
        return True

    def _undo(self, error: KafkaException, seconds: float) -> None:
        """Give a lot up, begun so long ago. Raises where it is not to be tried again."""
        where = f"transactions of {self._id!r}"
        cause, remedy = translate(error, where).cause, "run the flow again"
        if seconds > TRANSACTION:
            cause = f"one took {seconds:.0f} s, and Kafka ends it after {TRANSACTION:g} s ({cause})"
            remedy += "; unless an outage was the reason, have it make fewer results of one time"
        lost = WorkerLost(where, cause, remedy)
        if error.args[0].fatal():
            raise lost from None
        try:
            self._producer.abort_transaction(TRANSACTION)
        except KafkaException:
            raise lost from None
        if self._refused is not None:
            raise translate(*self._refused)
        if not _comes_back(error.args[0]):
            raise translate(error, where)

    def _send(self, parcel: TopicBatch) -> None:
        headers, report = parcel.headers, partial(self._report, parcel.topic)
        for row, (value, key) in enumerate(zip(parcel.values, parcel.keys, strict=True)):
            theirs = None if headers is None else headers[row]
            while not self._produced(parcel.topic, value, key, report, theirs):
                self._producer.poll(0.05)

    def _produced(
        self, topic: str, value: bytes | None, key: bytes | None, report: Report,
        headers: Headers | None,
    ) -> bool:  # fmt: skip
        """Whether there was room. Raises KafkaException."""
        try:
            self._producer.produce(topic, value, key, ANYWHERE, on_delivery=report, headers=headers)
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._refused = error.args[0], f"topic {topic!r}"
            raise
        return True

    def _report(self, topic: str, error: KafkaError | None, _: Message) -> None:
        """The first that is refused for good is why all of the lot is given back."""
        if error is not None and self._refused is None and not _comes_back(error):
            self._refused = error, f"topic {topic!r}"


def _comes_back(error: KafkaError) -> bool:
    """Whether what was given back for this is worth another try."""
    return transient(error) or error.code() in _GIVEN_BACK
