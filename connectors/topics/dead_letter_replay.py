"""The replay of dead letters: their records go back to the topics and partitions they came from.

Guarantees that a record is produced again once for all its dead letters, whatever fails: it shares
a transaction with their marks, and a later replay fences an earlier one before it reads the marks.
A record that its topic refuses holds up no other. Records of one partition keep their order, key,
bytes, headers and timestamp, and get one header more. Cost: two passes over the topic, and a
transaction per `BATCH` dead letters; each refused record halves its transaction down to itself.
Memory: the places of the records of all dead letters, and the dead letters of one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.producer import PURGED
from meander.connectors.kafka.topic_metadata import descriptions
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
MAX_RECORD = 63 << 20
"""The most bytes of a record: no flow passes a larger one on, and the client's queue has room."""
MAX_REFUSALS = 100
"""The most refused records that a replay names."""
ATTEMPTS = 5
"""The most attempts of a transaction: the first one behind a refused one meets its gap."""
_GAP = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
"""The error of a record that follows refused ones. The abort then gives the producer a new
epoch."""

LeftOut = Literal["call", "beside_kafka", "unnamed", "topic_gone", "partition_gone"]
"""Why a dead letter cannot go back: it is about a timer, a notification or a change; a record of a
source beside Kafka; a place that no topic has; a topic, or a partition, that does not exist."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that a replay is to produce again, and those that it leaves out."""

    places: frozenset[RecordPlace]
    """The records to produce: several dead letters may be about one record."""
    letters: int
    """All dead letters of these records."""
    replayed: int
    """The chosen dead letters whose records have been produced again before."""
    left_out: Mapping[LeftOut, int]
    """The chosen dead letters that cannot go back, by cause."""

    @property
    def lacks_target(self) -> bool:
        """Return whether a topic or a partition that a record came from does not exist."""
        return any(self.left_out.get(one) for one in ("topic_gone", "partition_gone"))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a record by its topic."""

    offset: int
    """The offset of the dead letter."""
    place: RecordPlace
    cause: str
    remedy: str


@dataclass(slots=True)
class ReplayCounts:
    """What a replay has done so far."""

    letters: int = 0
    """The dead letters that now have a mark."""
    records: int = 0
    """The records that it has produced: several dead letters may be about one record."""
    gone: int = 0
    """The dead letters that carry no record, and whose topics no longer hold it."""
    refused: int = 0
    """The dead letters whose records their topics refuse."""
    refusals: list[Refusal] = field(default_factory=list)
    """The first `MAX_REFUSALS` of them."""


@dataclass(frozen=True, slots=True)
class _Return:
    """A dead letter, by its offset, and the record that goes back."""

    offset: int
    place: RecordPlace
    record: OriginalRecord


class DeadLetterReplay:
    """A replay of the dead letters of one flow."""

    def __init__(self, settings: Settings, topic: str) -> None:
        """Fence an earlier replay. Raise MeanderError."""
        self._settings, self._topic = settings, topic
        self._subject = f"replay of {topic!r}"
        self._producer: Producer = client.transactional(
            settings, f"{topic}.replay", message_max_bytes=MAX_RECORD
        )
        self._failures = list[tuple[KafkaError, str]]()
        """The errors of the present transaction, each with the topic of its record."""

    def select(
        self, chosen: Callable[[DeadLetterRecord], bool], since_ms: int | None, again: bool
    ) -> Selection:
        """Return the chosen dead letters from a time of failure on. Those whose records were
        produced before are among them with `again` alone."""
        return select(self._settings, self._topic, chosen, since_ms, again)

    def produce(self, selection: Selection, progress: Callable[[int], None]) -> ReplayCounts:
        """Produce dead letters again. `progress` gets the number of each batch. Raises
        MeanderError; dead letters without a mark then have no record either."""
        letters = (
            one
            for one in read_dead_letters(self._settings, self._topic)
            if isinstance(one, DeadLetterRecord) and one.place in selection.places
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
        there = list[_Return]()
        for letter in letters:
            record = letter.record_in(read)
            if record is None or letter.place is None:
                counts.gone += 1
            else:
                there.append(_Return(letter.offset, letter.place, record))
        parts = [there] if there else []
        while parts:
            part = parts.pop()
            error = self._commit(part, done)
            if error is None:
                counts.letters += len(part)
                counts.records += len({one.place for one in part} - done)
                done.update(one.place for one in part)
            elif len(part) > 1:
                # A broker refuses a batch of records, and may not say which of them it means.
                half = len(part) // 2
                parts += part[half:], part[:half]
            else:
                counts.refused += 1
                if len(counts.refusals) < MAX_REFUSALS:
                    counts.refusals.append(_refusal(part[0], error))

    def _commit(self, part: Sequence[_Return], done: set[RecordPlace]) -> KafkaError | None:
        """Produce and mark dead letters in one transaction. Return why a topic refuses one of
        them, in which case none is produced."""
        for _ in range(ATTEMPTS):
            self._failures.clear()
            try:
                self._run_transaction(part, done)
            except KafkaException as error:
                self._abort(error)
                cause = self._explain(error)
                if cause.code() != _GAP:
                    return cause
            else:
                return None
        raise client.translate(cause, self._subject)

    def _run_transaction(self, part: Sequence[_Return], done: set[RecordPlace]) -> None:
        first = {one.place: one for one in reversed(part) if one.place not in done}
        self._producer.begin_transaction()
        for one in part:
            if first.get(one.place) is one:
                self._send(one)
        mark = ReplayMark(tuple(one.offset for one in part)).to_header()
        self._emit(self._topic, 0, None, None, [(dead_letter.REPLAYED, mark)], 0)
        client.retry_transactional(lambda: self._producer.commit_transaction(1.0))

    def _send(self, one: _Return) -> None:
        place, record = one.place, one.record
        origin = f"{self._topic}:{one.offset}".encode()
        own: list[tuple[str, str | bytes | None]] = [
            header for header in record.headers if header[0] != dead_letter.REPLAY
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
            except KafkaException as error:
                self._failures.append((error.args[0], topic))
                raise
            else:
                return

    def _note(self, error: KafkaError | None, record: Message) -> None:
        # Other records of a transaction are purged at its abort, or follow a gap.
        if error is not None and error.code() not in {*PURGED, _GAP}:
            self._failures.append((error, record.topic() or ""))

    def _abort(self, error: KafkaException) -> None:
        """Abort a transaction that has failed. Raise MeanderError where another replay runs."""
        if error.args[0].code() == KafkaError._FENCED:
            raise MeanderError(
                f"topic {self._topic!r}", "another replay of its dead letters has begun",
                "wait for its end, and list the dead letters again",
            ) from error  # fmt: skip
        try:
            client.retry_transactional(lambda: self._producer.abort_transaction(1.0))
        except KafkaException as second:
            raise client.translate(second, self._subject) from error

    def _explain(self, error: KafkaException) -> KafkaError:
        """Return the refusal of a record in a failed transaction, or the gap that an earlier one
        has left. Raise MeanderError for any other error."""
        if not self._failures:
            first: KafkaError = error.args[0]
            if first.code() == _GAP:
                return first
            raise client.translate(error, self._subject) from error
        cause, topic = self._failures[0]
        if topic == self._topic or not _is_refusal(cause):
            raise client.translate(cause, f"topic {topic!r}") from error
        return cause


def _is_refusal(error: KafkaError) -> bool:
    """Return whether an error is about one record, so that others may go back."""
    own = client.is_record_refusal(error) or client.is_missing(error)
    return own or error.code() == KafkaError.INVALID_TIMESTAMP


def _refusal(one: _Return, error: KafkaError) -> Refusal:
    told = client.translate(error, f"topic {one.place.topic!r}")
    remedy = _REMEDIES.get(error.code(), told.remedy)
    return Refusal(one.offset, one.place, told.cause, remedy)


_REMEDIES = {
    KafkaError.INVALID_RECORD: "set its cleanup.policy to delete while you replay, or add a"
    " record with a key by hand",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise its max.message.bytes; beyond"
    f" {MAX_RECORD >> 20} MiB also give --set message.max.bytes=...",
}


def select(
    settings: Settings, topic: str, chosen: Callable[[DeadLetterRecord], bool],
    since_ms: int | None, again: bool,
) -> Selection:  # fmt: skip
    """Return the chosen dead letters from a time of failure on, as the method of a replay does."""
    places, wanted, marked = dict[int, RecordPlace](), list[int](), set[int]()
    left_out = Counter[LeftOut]()
    for one in read_dead_letters(settings, topic):
        if isinstance(one, ReplayMark):
            marked.update(one.offsets)
            continue
        is_wanted = chosen(one) and (since_ms is None or one.at_ms >= since_ms)
        if one.place is not None:
            places[one.offset] = one.place
            if is_wanted:
                wanted.append(one.offset)
        elif is_wanted:
            left_out[_nature(one)] += 1
    before = set[RecordPlace]() if again else {places[one] for one in marked & places.keys()}
    open_places = [places[one] for one in wanted if places[one] not in before]
    targets = _Targets.of(settings, {one.topic for one in open_places})
    lacks = [(one, targets.lack(one)) for one in open_places]
    left_out += Counter(cause for _, cause in lacks if cause is not None)
    there = frozenset(one for one, cause in lacks if cause is None)
    return Selection(
        there,
        sum(one in there for one in places.values()),
        len(wanted) - len(open_places),
        left_out,
    )


def _nature(letter: DeadLetterRecord) -> LeftOut:
    """Return what a dead letter without a place on Kafka is about."""
    if letter.source_place is not None:
        return "beside_kafka"
    return "unnamed" if letter.kind in ("record", "unreadable") else "call"


@dataclass(frozen=True, slots=True)
class _Targets:
    """The topics that records go back to."""

    partitions: Mapping[str, int]
    """The number of partitions by topic; 0 where a topic does not exist."""

    @staticmethod
    def of(settings: Settings, topics: set[str]) -> _Targets:
        """Ask the brokers for topics. Raise SetupError where one is refused."""
        if not topics:
            return _Targets({})
        found = descriptions(client.admin(settings), sorted(topics))
        return _Targets({name: len(one.partitions) if one else 0 for name, one in found.items()})

    def lack(self, place: RecordPlace) -> LeftOut | None:
        """Return what does not exist of a place, or None."""
        partitions = self.partitions[place.topic]
        if not partitions:
            return "topic_gone"
        return None if place.partition < partitions else "partition_gone"


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
