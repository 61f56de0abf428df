"""What a flow has written, compared with what is right as it comes: each key's 1, 2, 3, ... in this
order, as a reader of committed records sees them.

At least once, a key's numbers may go back, and repeat from there one by one. Records without a key
lie on any partition: there, too, what was fed first is first, exactly once.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from meander.dataflow.api.nodes import Guarantee
from tests.support.kafka.topics import PATIENCE, admin, partitions_of
from tests.support.random_run.configuration import COPIES, GROUPS

AROUND = 6
"""Results of a key that are shown before and after one that is wrong."""
SHOWN = 5
"""Keys that are shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result lies."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """A result that does not follow the one before it."""

    key: str
    place: Place
    why: str


class Sequences:
    """The results of each key of each topic so far."""

    def __init__(self, delivery: Guarantee) -> None:
        self._delivery = delivery
        self.last: dict[tuple[str, str], int] = {}
        """By topic and key."""
        self.wrong: list[Wrong] = []
        self.repeated = 0
        """How often a key's numbers have gone back, as they may."""
        self._copies = defaultdict[str, set[int]](set)
        """What was fed with a key and has been seen without one."""
        self._newest: dict[tuple[int, str], int] = {}
        """The last of these by partition and key."""

    def see(self, place: Place, key: str, value: Mapping[str, object]) -> None:
        """The next result of a topic's partition.

        >>> sequences = Sequences("at_least_once")
        >>> for n, count in enumerate([1, 2, 3, 2, 3, 4, 6]):
        ...     sequences.see(Place("counts", 0, n), "k1", {"count": count})
        >>> [wrong.why for wrong in sequences.wrong], sequences.repeated
        (['6 comes behind 4'], 1)
        """
        count = value["count"]
        assert isinstance(count, int)
        last = self.last.get((place.topic, key), 0)
        if count != last + 1:
            if self._delivery == "exactly_once" or not 1 <= count <= last:
                self.wrong.append(Wrong(key, place, f"{count} comes behind {last}"))
            else:
                self.repeated += 1
        for other in ("fed", "again"):
            if value.get(other, count) != count:
                self.wrong.append(Wrong(key, place, f"{count} is the {other} {value[other]}"))
        self.last[place.topic, key] = count

    def see_copy(self, place: Place, key: str, fed: int) -> None:
        """The next result without a key, of a partition.

        >>> sequences = Sequences("exactly_once")
        >>> for n, (partition, fed) in enumerate([(0, 1), (1, 3), (0, 2), (1, 3), (0, 4), (0, 5)]):
        ...     sequences.see_copy(Place("copies", partition, n), "k1", fed)
        >>> [wrong.why for wrong in sequences.wrong]
        ['3 is there twice']
        >>> sequences.see_copy(Place("copies", 1, 6), "k1", 2 + 6)
        >>> sequences.see_copy(Place("copies", 1, 7), "k1", 7)
        >>> sequences.wrong[-1].why, sequences.missing("copies", {"k1": 8})
        ('7 comes behind 8', ['k1'])
        """
        copies, last = self._copies[key], self._newest.get((place.partition, key), 0)
        if self._delivery == "exactly_once" and fed in copies:
            self.wrong.append(Wrong(key, place, f"{fed} is there twice"))
        elif self._delivery == "exactly_once" and fed < last:
            self.wrong.append(Wrong(key, place, f"{fed} comes behind {last}"))
        copies.add(fed)
        self._newest[place.partition, key] = fed
        self.last[place.topic, key] = len(copies)

    def missing(self, topic: str, fed: Mapping[str, int]) -> list[str]:
        """The keys whose last result, or any copy, is not there yet."""
        return [key for key, last in fed.items() if self.last.get((topic, key), 0) != last]


def totals(fed: Mapping[str, int]) -> dict[str, int]:
    """How many records each group has.

    >>> totals({"k1": 5, "k51": 2, "k2": 1})
    {'g1': 7, 'g2': 1}
    """
    found: dict[str, int] = {}
    for key, count in fed.items():
        group = f"g{int(key[1:]) % GROUPS}"
        found[group] = found.get(group, 0) + count
    return found


class Results:
    """A reader of topics of results from their beginning on."""

    def __init__(self, bootstrap: str, topics: Mapping[str, str], delivery: Guarantee) -> None:
        """`topics` are their short names, by what they are called."""
        self._bootstrap, self._names = bootstrap, topics
        self.sequences, self.seen = Sequences(delivery), 0
        self._consumer = _consumer(bootstrap)
        client = admin(bootstrap)
        self._open = {(topic, one) for topic in topics for one in partitions_of(client, topic)}
        self._consumer.assign([TopicPartition(*one, OFFSET_BEGINNING) for one in self._open])

    def read(self, seconds: float) -> None:
        """Take what comes within some seconds, and no more than some thousand results."""
        for message in self._consumer.consume(5_000, seconds):
            self._take(message)

    def read_to_end(self) -> None:
        """All that there is."""
        deadline = time.monotonic() + PATIENCE
        while self._open:
            assert time.monotonic() < deadline, f"no end of {self._open}"
            self.read(0.5)

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message) -> None:
        place, error = _place(message), message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._open.discard((place.topic, place.partition))
            return
        value = json.loads(message.value() or b"")
        short = Place(self._names[place.topic], place.partition, place.offset)
        if short.topic == COPIES:
            self.sequences.see_copy(short, str(value["key"]), int(value["fed"]))
        else:
            self.sequences.see(short, str(value["key"]), value)
        self.seen += 1

    def around(self, wrong: list[Wrong]) -> Iterator[str]:
        """In lines, results of the first wrong keys beside the wrong ones."""
        for one in [*{each.key: each for each in reversed(wrong)}.values()][-SHOWN:]:
            yield f"{one.key}: {one.why}; {one.place}"
            yield from self._beside(one)

    def _beside(self, wrong: Wrong) -> Iterator[str]:
        topic = next(topic for topic, name in self._names.items() if name == wrong.place.topic)
        lines = list[tuple[int, str]]()
        with contextlib.closing(_consumer(self._bootstrap)) as consumer:
            where = TopicPartition(topic, wrong.place.partition, OFFSET_BEGINNING)
            consumer.assign([where])
            # While more comes without a pause, no end is told.
            end = consumer.get_watermark_offsets(where, PATIENCE)[1]
            while (message := consumer.poll(PATIENCE)) and message.error() is None:
                if _place(message).offset >= end - 1:
                    break
                if json.loads(message.value() or b"")["key"] == wrong.key:
                    lines.append((_place(message).offset, _line(message)))
        at = next(n for n, (offset, _) in enumerate(lines) if offset == wrong.place.offset)
        for offset, line in lines[max(0, at - AROUND) : at + AROUND]:
            yield ("  > " if offset == wrong.place.offset else "    ") + line


def _consumer(bootstrap: str) -> Consumer:
    return Consumer({
        "bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False,
        "enable.partition.eof": True, "isolation.level": "read_committed", "log_level": 0,
        "auto.offset.reset": "earliest",
    })  # fmt: skip


def _place(message: Message) -> Place:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    return Place(topic or "", -1 if partition is None else partition, offset or 0)


def _line(message: Message) -> str:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    said = " ".join(
        f"{name.removeprefix('meander.')}={value.decode() if isinstance(value, bytes) else value}"
        for name, value in pairs
    )
    return f"offset {message.offset()}: {(message.value() or b'').decode()} ({said})"
