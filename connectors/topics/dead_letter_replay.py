"""The replay of dead letters: their records go back to the topics and partitions they came from.

Guarantees that a dead letter is produced again once, whatever fails: its record and its mark share
a transaction, and a later replay fences an earlier one before it reads the marks. Records of one
partition keep their order, key, bytes, headers and timestamp, and get one header more. Cost: one
transaction per `BATCH` dead letters, and two passes over the topic. Memory: the offsets of the dead
letters, the places of their records, and the dead letters of one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics.dead_letters import (
    DeadLetterRecord,
    ReplayMark,
    read_dead_letters,
    read_missing,
)
from meander.schemas import dead_letter
from meander.schemas.dead_letter import OriginalRecord, RecordPlace
from meander.schemas.errors import MeanderError

BATCH, BATCH_BYTES = 500, 32 << 20
"""The most dead letters of one transaction, and about the most bytes of them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that a replay is to produce again, and those that it leaves out."""

    offsets: frozenset[int]
    """The offsets of those to produce."""
    records: int
    """The records that they are about: several dead letters may be about one record."""
    replayed: int
    """How many have been produced again before."""
    without_record: int
    """How many are about no record of a topic: timers, notifications, changes, and those of
    `beside_kafka`."""
    beside_kafka: int
    """How many of these are about records of sources beside Kafka, such as lines of files."""


@dataclass(slots=True)
class ReplayCounts:
    """What a replay has done so far."""

    letters: int = 0
    """The dead letters that now have a mark."""
    records: int = 0
    """The records that it has produced: several dead letters may be about one record."""
    gone: int = 0
    """The dead letters that carry no record, and whose topics no longer hold it."""


class DeadLetterReplay:
    """A replay of the dead letters of one flow."""

    def __init__(self, settings: Settings, topic: str) -> None:
        """Fence an earlier replay. Raise MeanderError."""
        self._settings, self._topic = settings, topic
        self._producer: Producer = client.transactional(settings, f"{topic}.replay")
        self._failures = list[KafkaError]()

    def select(
        self, chosen: Callable[[DeadLetterRecord], bool], since_ms: int | None, again: bool
    ) -> Selection:
        """Return the chosen dead letters from a time of failure on. Those that were produced before
        are among them with `again` alone."""
        return select(self._settings, self._topic, chosen, since_ms, again)

    def produce(self, selection: Selection, progress: Callable[[int], None]) -> ReplayCounts:
        """Produce dead letters again. `progress` gets the number of each transaction. Raises
        MeanderError; dead letters without a mark then have no record either."""
        letters = (
            one
            for one in read_dead_letters(self._settings, self._topic)
            if isinstance(one, DeadLetterRecord) and one.offset in selection.offsets
        )
        counts = ReplayCounts()
        done = set[RecordPlace]()
        for some in batches(letters):
            self._produce(some, done, counts)
            progress(len(some))
        return counts

    def _produce(
        self, letters: Sequence[DeadLetterRecord], done: set[RecordPlace], counts: ReplayCounts
    ) -> None:
        # A record lies in its dead letter, unless it was too long or could not be read there.
        read = read_missing(self._settings, letters)
        marked, produced = list[int](), 0
        try:
            self._producer.begin_transaction()
            for letter in letters:
                assert letter.place is not None, "only dead letters of records are selected"
                original = letter.record_in(read)
                if original is None:
                    counts.gone += 1
                    continue
                marked.append(letter.offset)
                if letter.place not in done:
                    done.add(letter.place)
                    produced += 1
                    self._send(letter, letter.place, original)
            if marked:
                mark = ReplayMark(tuple(marked)).to_header()
                self._emit(self._topic, 0, None, None, [(dead_letter.REPLAYED, mark)], 0)
            client.retry_transactional(lambda: self._producer.commit_transaction(1.0))
        except KafkaException as error:
            raise self._refused(error) from error
        counts.letters += len(marked)
        counts.records += produced

    def _send(self, letter: DeadLetterRecord, place: RecordPlace, record: OriginalRecord) -> None:
        origin = f"{self._topic}:{letter.offset}".encode()
        own: list[tuple[str, str | bytes | None]] = [
            one for one in record.headers if one[0] != dead_letter.REPLAY
        ]
        self._emit(
            place.topic, place.partition, record.key, record.value,
            [*own, (dead_letter.REPLAY, origin)], max(0, record.time_ms),
        )  # fmt: skip

    def _emit(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None,
        headers: list[tuple[str, str | bytes | None]], time_ms: int,
    ) -> None:  # fmt: skip
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, self._note, timestamp=time_ms, headers=headers
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _note(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _refused(self, error: KafkaException) -> MeanderError:
        if error.args[0].code() == KafkaError._FENCED:
            return MeanderError(
                f"topic {self._topic!r}", "another replay of its dead letters has begun",
                "wait for its end, and list the dead letters again",
            )  # fmt: skip
        cause = self._failures[0] if self._failures else error
        return client.translate(cause, f"replay of {self._topic!r}")


def select(
    settings: Settings, topic: str, chosen: Callable[[DeadLetterRecord], bool],
    since_ms: int | None, again: bool,
) -> Selection:  # fmt: skip
    """Return the chosen dead letters from a time of failure on, as the method of a replay does."""
    places, marked, without, beside_kafka = dict[int, RecordPlace](), set[int](), 0, 0
    for one in read_dead_letters(settings, topic, since_ms):
        if isinstance(one, ReplayMark):
            marked.update(one.offsets)
        elif not chosen(one):
            continue
        elif one.place is None:
            without += 1
            beside_kafka += one.source_place is not None
        else:
            places[one.offset] = one.place
    before = set[int]() if again else places.keys() & marked
    offsets = frozenset(places.keys() - before)
    records = len({places[offset] for offset in offsets})
    return Selection(offsets, records, len(before), without, beside_kafka)


def batches(letters: Iterable[DeadLetterRecord]) -> Iterator[list[DeadLetterRecord]]:
    """Yield the dead letters of each transaction: as many as `BATCH`, or `BATCH_BYTES`."""
    some, size = list[DeadLetterRecord](), 0
    for one in letters:
        some.append(one)
        size += len(one.value or b"") + (0 if one.original is None else one.original.size)
        if len(some) >= BATCH or size >= BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
