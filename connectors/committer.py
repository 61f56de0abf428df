"""One transactional producer: what it is given becomes visible as a whole, or not at all.

Guarantees that lots are committed in the order given, one at a time, that whoever opens one under
the same id later has ended this one for good (I8), and that a lot that Kafka gave back whole is
tried again, so an outage is waited for; where nobody knows what became of one, `busy` raises.
`commit_transaction` blocks, so it has a thread, which waits in native code. Cost: 2 to 5 ms a lot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from confluent_kafka import KafkaException

from connectors.client import Settings, contact, transactional, translate
from connectors.producing import ANYWHERE, Headers, size_of
from schemas.errors import MeanderError


@dataclass(frozen=True, slots=True)
class Parcel:
    """Records for one topic; `headers` is None where they have none. Shapes (n,)."""

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers] | None = None

    @property
    def size(self) -> int:
        """About how many bytes they take."""
        return size_of(self.values, self.keys, self.headers)


Lot = Sequence[Parcel]


class Committer:
    """Commits lots under an id; `done` is called, in its thread, after each."""

    def __init__(
        self, settings: Settings, id: str, done: Callable[[], None], **tuning: str | float
    ) -> None:
        """Whoever had the id before commits nothing any more. Raises MeanderError."""
        self._id, self._done = id, done
        self._contact = contact(settings)
        self._producer = transactional(settings, id, **tuning)
        self._lots = SimpleQueue[Lot | None]()
        self._begun = self._ended = 0
        self._failure: MeanderError | None = None
        self._thread = threading.Thread(target=self._work, name=f"commits {id}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a lot is being committed. Raises what has ended it otherwise."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()
        return self._begun != self._ended

    def commit(self, lot: Lot) -> None:
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
                    pass
            except KafkaException as error:
                self._failure = translate(error, f"transactions of {self._id!r}")
                self._done()
                return
            self._ended += 1
            self._done()
        del self._producer

    def _committed(self, lot: Lot) -> bool:
        """Whether a lot is out; else Kafka has given it back whole. Raises KafkaException where
        that is not known."""
        try:
            self._producer.begin_transaction()
            for parcel in lot:
                self._send(parcel)
            _patiently(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _patiently(self._producer.abort_transaction)
            return False
        return True

    def _send(self, parcel: Parcel) -> None:
        headers = parcel.headers
        for row, (value, key) in enumerate(zip(parcel.values, parcel.keys, strict=True)):
            theirs = None if headers is None else headers[row]
            while True:
                try:
                    self._producer.produce(parcel.topic, value, key, ANYWHERE, headers=theirs)
                    break
                except BufferError:
                    self._producer.poll(0.05)


def _patiently(step: Callable[[], None]) -> None:
    """Until Kafka has answered: it is asked anew, which does no harm, where no answer came."""
    while True:
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
