"""The topics of a simulated flow, by name, and the faults of a topic.

Guarantees that a source reads a record back as it was fed: the value and key of a `Feed` pass the
formats of the source. The module refuses a record that does not fit the topic with SetupError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import SupportsIndex, cast

from meander.connectors.kafka.formats import (
    Decoder,
    Format,
    Place,
    ValueFormat,
    at_place,
    encoder,
    is_user_code,
)
from meander.connectors.kafka.original_records import original_of
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.testing.in_memory import Headers, Topic
from meander.dataflow.interfaces import Partition
from meander.dataflow.simulation.faults import Fault
from meander.schemas.dead_letter import OriginalRecord
from meander.schemas.errors import SetupError


@dataclass(frozen=True, slots=True)
class Feed(Fault):
    """A fault that puts a record onto a topic: late, unreadable, of the future, or a plain record.

    `value` and `key` as bytes remain unchanged, and None is a null. The source's formats encode
    other values. `ms` is its timestamp, by default the simulated time.

    >>> from meander.testing import At
    >>> At(Feed("lines", bytes([255]), partition=1), records=5).fault.partition
    1
    """

    topic: str
    value: object
    key: object = None
    ms: int | None = None
    partition: int = 0
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Idle(Fault):
    """A fault that makes a partition look empty for some steps of the schedule, whatever its
    records."""

    topic: str
    partition: int
    steps: int


class InMemoryTopics:
    """Topics that a simulated flow has in memory. Each starts with the same number of partitions.

    `step` returns the number of steps of the simulation so far.
    """

    def __init__(self, partitions: int, step: Callable[[], int]) -> None:
        self.partitions, self._step = partitions, step
        self.sources: dict[str, KafkaSource] = {}
        """The sources of the flow, by topic."""
        self.ended = False
        """Whether no records will follow."""
        self._topics: dict[str, Topic] = {}
        self._idle: dict[tuple[str, int], int] = {}

    def open(self, name: str) -> Topic:
        """Return a topic, which is new the first time."""
        return self._topics.setdefault(name, Topic.of(self.partitions))

    def topic(self, name: str) -> Topic:
        """Return a topic of the flow. Raise SetupError for another name."""
        if name not in self._topics:
            raise SetupError(f"topic {name!r}", "the flow does not use it",
                             f"name one of {', '.join(self._topics)}")  # fmt: skip
        return self._topics[name]

    def original(self, name: str, partition: int, offset: int) -> OriginalRecord | None:
        """Return the record at a place of a topic, if it holds one."""
        logs = self.open(name).logs
        held = partition < len(logs) and offset < len(logs[partition])
        return original_of(logs[partition][offset]) if held else None

    def feed(self, fault: Feed, now_ms: int) -> None:
        """Put a record onto a topic. Raise SetupError where no source could read it."""
        name, source = fault.topic, self.sources.get(fault.topic)
        if source is None:
            raise SetupError(f"topic {name!r}", "the flow does not read it",
                             f"name one of {', '.join(self.sources)}")  # fmt: skip
        if self.ended:
            raise SetupError(f"topic {name!r}", "the run has ended",
                             "feed before `run`; `run_until_idle` leaves it open")  # fmt: skip
        self._check_partition(name, fault.partition)
        self._topics[name].append(
            _raw(Place(name, "value", "source"), source.value, fault.value),
            _raw(Place(name, "key", "source"), source.key, fault.key),
            _headers(name, fault.headers),
            now_ms if fault.ms is None else _millis(name, fault.ms),
            fault.partition,
        )

    def pause(self, fault: Idle) -> None:
        """Make a partition look empty. Raise SetupError for an unknown partition."""
        self._check_partition(fault.topic, fault.partition)
        self._idle[fault.topic, fault.partition] = self._step() + fault.steps

    def paused(self, name: str, partition: Partition) -> bool:
        """Return whether a partition looks empty now."""
        until = self._idle.get((name, partition))
        return until is not None and until > self._step()

    @property
    def is_quiescent(self) -> bool:
        """Return whether no partition looks empty now."""
        return max(self._idle.values(), default=0) <= self._step()

    def _check_partition(self, name: str, partition: object) -> None:
        count = self.topic(name).partitions
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise SetupError(f"topic {name!r}", f"it has no partition {partition!r}",
                             f"name one of 0 to {count - 1}, or add partitions")  # fmt: skip


def _raw(place: Place, form: Format | Decoder, data: object) -> bytes | None:
    """Return data as the value or key of a record."""
    topic = place.topic
    if data is None or isinstance(data, bytes):
        return data
    if is_user_code(form):
        raise SetupError(f"topic {topic!r}", f"a function of the flow reads it, and not {data!r}",
                         "feed bytes")  # fmt: skip
    if isinstance(form, ValueFormat):
        # A producer beside the flow has registered its schema.
        place = replace(place, end="sink")
        form.check(place)
    try:
        return encoder(cast(Format, at_place(form, place)))(data)
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"topic {topic!r}",
            f"{data!r} is no {place.part} that its source reads as {form!r} ({error})",
            "feed values of this format, or encoded bytes",
        ) from error


def _millis(topic: str, ms: object) -> int:
    if not isinstance(ms, SupportsIndex):
        raise SetupError(f"topic {topic!r}", f"ms={ms!r} is no time of a record",
                         "pass whole milliseconds since 1970")  # fmt: skip
    return index(ms)


def _headers(topic: str, headers: object) -> Headers:
    for header in headers if isinstance(headers, Sequence) else [headers]:
        match header:
            case (str(), str() | bytes() | None):
                continue
        raise SetupError(f"topic {topic!r}", f"{header!r} is no header of a record",
                         "pass pairs of a name and text, bytes or None")  # fmt: skip
    return cast(Headers, headers)
