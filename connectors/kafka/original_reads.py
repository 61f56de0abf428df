"""The reads of a worker for the original records of its dead letters, each in a thread.

Guarantees that no call waits for a broker, and that an answer covers the first of the places it was
asked for, at least one. A read beyond `MAX_BYTES` or `SLICE_SECONDS` is cut to fewer places. What
stops a read unexpectedly is raised in place of its answer. Memory: the records of one answer (I6),
and the queue of one consumer. Cost: no connection before the first dead letter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from confluent_kafka import KafkaException

from meander.connectors.kafka.client import Settings, translate
from meander.connectors.kafka.inquiry import Inquiry
from meander.connectors.kafka.original_records import OriginalReader
from meander.dataflow.interfaces import Wakeup
from meander.schemas.dead_letter import OriginalRecord, RecordPlace
from meander.schemas.errors import MeanderError

ANSWER_TIMEOUT = 5.0
"""The seconds after which a read is overdue: its dead letters leave without their records."""
FEW_PLACES, MAX_PLACES = 16, 512
"""The most places of the first read, and of any. Each read that succeeds doubles the next one."""
MAX_BYTES = 8 << 20
"""The bytes of the records of one answer, except where one record alone is larger."""
SLICE_SECONDS = 1.0
"""The seconds after which a read is cut to fewer places."""
GONE = "its topic no longer holds the record"
UNANSWERED = f"its topic did not answer within {ANSWER_TIMEOUT:g} s"

Answer = Mapping[RecordPlace, OriginalRecord | str]
"""The records at some places, or why a place has none."""


class OriginalReads:
    """Reads of original records, one at a time. `max_bytes` bounds the records of an answer."""

    def __init__(self, settings: Settings, wakeup: Wakeup, max_bytes: int = MAX_BYTES) -> None:
        self._reader = OriginalReader(settings)
        self._inquiry = Inquiry[Answer]("read originals", wakeup.set)
        self._max_bytes, self._most = max_bytes, FEW_PLACES
        self._asked_at = 0.0

    @property
    def busy(self) -> bool:
        """Return whether a read has no answer yet."""
        return self._inquiry.running

    @property
    def overdue(self) -> bool:
        """Return whether a read has had no answer for too long."""
        return self.busy and _now() - self._asked_at > ANSWER_TIMEOUT

    def ask(self, places: Sequence[RecordPlace]) -> None:
        """Start to read the records at some places, while no other read runs."""
        self._asked_at = _now()
        self._inquiry.ask(partial(self._read_first, places))

    def answer(self) -> Answer | None:
        """Return the answer once it is there, and only once. Raise an unexpected error of the
        read."""
        answer = self._inquiry.take()
        return None if answer is None else answer.result()

    def close(self) -> None:
        """Release the connections, without a wait for a broker."""
        self._inquiry.close(self._reader.close)

    # -- the thread's side

    def _read_first(self, places: Sequence[RecordPlace]) -> Answer:
        """Return what lies at the first of some places, as many as one read takes."""
        while True:
            some = places[: self._most]
            answer = self._read(some)
            if answer is not None:
                self._most = min(MAX_PLACES, 2 * self._most)
                return answer
            self._most = max(1, len(some) // 2)

    def _read(self, places: Sequence[RecordPlace]) -> Answer | None:
        """Return what lies at some places; None where they are too many for one read."""
        answer, size, until = dict[RecordPlace, OriginalRecord | str](), 0, _now() + SLICE_SECONDS
        for topic in dict.fromkeys(one.topic for one in places):
            wanted, missing = {one for one in places if one.topic == topic}, GONE
            try:
                for place, original in self._reader.read(wanted):
                    answer[place] = original
                    size += original.size
                    if len(places) > 1 and (size > self._max_bytes or _now() > until):
                        return None
            except MeanderError as error:
                missing = str(error)
            except KafkaException as error:
                missing = str(translate(error, f"topic {topic!r}"))
            answer |= dict.fromkeys(wanted - answer.keys(), missing)
        return answer


def _now() -> float:
    return time.monotonic()
