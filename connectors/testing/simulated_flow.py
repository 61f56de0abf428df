"""Test a flow of Kafka topics without Kafka or Spark, on simulated workers.

Guarantees that the flow is the user's own, unchanged: its sources and sinks read and write topics
in memory through their real formats, and everything between is the engine. A run is a function of
what is fed, its seed and its faults (`meander.testing`), and a failure says how to repeat it.

>>> from meander import KafkaSink, KafkaSource
>>> from meander import Flow
>>> flow = Flow("counts")
>>> words = flow.source(KafkaSource("lines", value="str")).flat_map(str.split)
>>> counts = words.key_by(lambda word: word).fold("count", lambda: 0, lambda n, w: (n + 1, [w, n]))
>>> counts.sink(KafkaSink("counts"))
>>> with TestFlow(flow, workers=2, seed=7) as run:
...     run.feed("lines", "to be or", "not to be")
...     run.run()
>>> run.values("counts")
[['to', 0], ['be', 0], ['or', 0], ['not', 0], ['to', 1], ['be', 1]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import SupportsIndex, cast

from meander.connectors.kafka.dead_letter import MalformedRecord
from meander.connectors.kafka.formats import Decoder, Format, encoder
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource, assigned
from meander.connectors.testing.in_memory import (
    AT_ONCE,
    Headers,
    Record,
    Topic,
    TopicReader,
    TopicWriter,
)
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import SinkNode, SourceNode
from meander.dataflow.interfaces import Partition, Rests, SourceReader
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.dataflow.simulation import simulated_flow
from meander.dataflow.simulation.faults import (
    At,
    Control,
    Crash,
    Fault,
    Jump,
    Pause,
    Planted,
    Raise,
    Slow,
)
from meander.dataflow.simulation.simulated_flow import Answer, DeadLetter, Result
from meander.dataflow.simulation.simulator import AddPartition, Command, HandOver, Join, Leave
from meander.dataflow.simulation.transactions import InMemory
from meander.schemas.errors import SetupError
from meander.state.keys.ids import WorkerId

__all__ = [
    "AddPartition",
    "Answer",
    "At",
    "Control",
    "Crash",
    "DeadLetter",
    "Feed",
    "HandOver",
    "Idle",
    "Join",
    "Jump",
    "Leave",
    "Pause",
    "Planted",
    "Raise",
    "Record",
    "Result",
    "Slow",
    "TestFlow",
]


@dataclass(frozen=True, slots=True)
class Feed(Fault):
    """A record comes onto a topic: late, unreadable, of the future, or just a record.

    `value` and `key` are bytes as they are, None for a null, and else what the source's formats
    read back; `ms` is its timestamp, the simulated time where none is given.

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
    """A partition looks empty for so many steps of the schedule, whatever is on it."""

    topic: str
    partition: int
    steps: int


class TestFlow(simulated_flow.SimulatedFlow):
    """A user's flow on simulated workers; each of its topics has so many `partitions`, and `states`
    are those that it starts from, by operator and key.

    Times are milliseconds since 1970. Topics are fed before or between `settle`, `advance` and
    `run`; what has become of it can be asked at any time, keyed state where nothing moves.

    >>> from meander import KafkaSink, KafkaSource
    >>> from meander import Flow
    >>> flow = Flow("sums", bins=2)
    >>> sums = flow.source(KafkaSource("in")).key_by(lambda v: v % 2)
    >>> sums.fold("sum", lambda: 0, lambda s, v: (s + v, s + v)).sink(KafkaSink("out"))
    >>> with TestFlow(flow, faults=[At(Raise("sum"), records=2)]) as run:
    ...     run.feed("in", 1, 2, b"{oops")
    ...     run.settle()
    ...     run.control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1})
    ...     run.feed("in", 3, 4)
    ...     run.run()
    ...     totals = run.states("sum")
    >>> [letter.operator for letter in run.dead_letters], run.answer("m1").said
    (['source in', 'sum'], 'completed')
    """

    def __init__(
        self,
        flow: Flow,
        workers: int = 2,
        seed: int = 0,
        *,
        partitions: int = 2,
        faults: Sequence[At] = (),
        states: Mapping[str, Mapping[object, object]] | None = None,
    ) -> None:
        self._topics: dict[str, Topic] = {}
        self._sources: dict[str, KafkaSource] = {}
        self._partitions = partitions
        self._idle: dict[tuple[str, int], int] = {}
        self._ending = False
        super().__init__(flow, workers, seed, faults=faults, states=states)
        self._repeat += f", partitions={partitions}"

    # -- what happens

    def feed(
        self,
        topic: str,
        *values: object,
        key: object = None,
        ms: int | None = None,
        partition: int = 0,
        headers: Headers = (),
    ) -> None:
        """Put records onto a topic that the flow reads; see `Feed`."""
        for value in values:
            self.strike(Feed(topic, value, key, ms, partition, headers))

    def run(self) -> None:
        """Play all faults, end the topics, and finish: see the engine's `SimulatedFlow`."""
        self.settle()
        while self._pending.left:
            self._hasten()
            self.settle()
        self._ending = True
        super().run()

    def strike(self, fault: Fault | Command) -> None:
        """A fault, or a command, now. Raises SetupError for one that the flow cannot have."""
        match fault:
            case Feed():
                self._feed(fault)
            case Idle(name, partition, steps):
                self._check_place(name, partition)
                self._idle[name, partition] = self.sim.actions + steps
            case AddPartition(name, records):
                topic = self._topic_of(name)
                partition = self._topic(topic).grow()
                for ms, value in records:
                    self._feed(Feed(topic, value, ms=ms, partition=partition))
            case _:
                super().strike(fault)

    # -- what has become of it

    def values(self, topic: str) -> list[object]:
        """What the flow has written to a topic, decoded, in the total order of the flow.

        Records of one millisecond on several partitions have no order that all seeds share.
        """
        return [result.value for result in self.results(topic)]

    def results(self, topic: str) -> list[Result]:
        """The same with place, key and worker of each; a value that a function has written stays
        bytes."""
        return sorted(self._topic(topic).results, key=lambda result: result.place)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic as they lie there, in the order in which they came."""
        return list(self._topic(topic).records)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The records that were set aside; of one that could not be read, `value` is its bytes."""
        return [
            replace(letter, value=letter.value.value)
            if isinstance(letter.value, MalformedRecord)
            else letter
            for letter in super().dead_letters
        ]

    # -- inside

    @property
    def _calm(self) -> bool:
        return super()._calm and max(self._idle.values(), default=0) <= self.sim.actions

    def _hasten(self) -> None:
        """All is at rest and faults are left: go to where the next one strikes."""
        left = self._pending.left
        waits = [at.seconds for at in left if at.seconds is not None]
        steps = [at.step for at in left if at.step is not None]
        if waits:
            clock = self.sim.clock
            clock.advance(max(0.0, min(waits) - clock.monotonic()))
        elif steps:
            self.sim.began = self.sim.actions
            while self.sim.actions < min(steps):
                self.act()
        else:
            raise AssertionError(
                f"{left[0]} never strikes, as only {self._read} records have been read"
            )

    def _feed(self, fault: Feed) -> None:
        source = self._sources.get(fault.topic)
        if source is None:
            raise SetupError(f"topic {fault.topic!r}", "the flow does not read it",
                             f"name one of {', '.join(self._sources)}")  # fmt: skip
        if self._ending:
            raise SetupError(f"topic {fault.topic!r}", "the run has come to its end",
                             "feed before `run`; `settle` leaves it open")  # fmt: skip
        self._check_place(fault.topic, fault.partition)
        self._topics[fault.topic].append(
            _raw(fault.topic, "value", source.value, fault.value),
            _raw(fault.topic, "key", source.key, fault.key),
            _headers(fault.topic, fault.headers),
            self.sim.clock.now_ms() if fault.ms is None else _millis(fault.topic, fault.ms),
            fault.partition,
        )

    def _check_place(self, name: str, partition: object) -> None:
        count = self._topic(name).partitions
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise SetupError(f"topic {name!r}", f"it has no partition {partition!r}",
                             f"name one of 0 to {count - 1}, or give the run more")  # fmt: skip

    def _topic_of(self, source: str) -> str:
        """The topic of a source, which is named as in the flow."""
        topics = {
            node.name: node.spec.topic
            for node in self._plan.sources
            if isinstance(node.spec, KafkaSource)
        }
        if source not in topics:
            raise SetupError(f"source {source!r}", "the flow has none of that name",
                             f"name one of {', '.join(topics)}")  # fmt: skip
        return topics[source]

    def _topic(self, name: str) -> Topic:
        if name not in self._topics:
            raise SetupError(f"topic {name!r}", "it is none of the flow's",
                             f"name one of {', '.join(self._topics)}")  # fmt: skip
        return self._topics[name]

    def _open(self, name: str) -> Topic:
        return self._topics.setdefault(name, Topic.of(self._partitions))

    def _reader(self, node: SourceNode, me: WorkerId, rests: Rests | None) -> SourceReader:
        source = node.spec
        if not isinstance(source, KafkaSource):
            return super()._reader(node, me, rests)
        assert rests is None, "topics in memory do not outlive their flow"
        self._sources.setdefault(source.topic, source)
        return TopicReader(
            self._open(source.topic),
            assigned(source.topic, self._partitions, me, self._count),
            source.intake(self._dead, NO_KEEPALIVE),
            self._rng,
            partial(self._held, source.topic),
            lambda: self._ending,
            self._room,
        )

    def _room(self) -> int:
        """How many records may be read before a fault strikes."""
        waits = [at.records for at in self._pending.left if at.records is not None]
        return min(waits) - self._read if waits else AT_ONCE[-1]

    def _held(self, topic: str, partition: Partition) -> bool:
        until = self._idle.get((topic, partition))
        return until is not None and until > self.sim.actions

    def _writer(self, node: SinkNode, me: WorkerId) -> InMemory:
        sink = node.spec
        if not isinstance(sink, KafkaSink):
            return super()._writer(node, me)
        return TopicWriter(
            sink, self._open(sink.topic), me, self._rng, lambda: self.sim.clock.now_ms()
        )


def _raw(topic: str, part: str, form: Format | Decoder, data: object) -> bytes | None:
    """Data as a record's value or key."""
    if data is None or isinstance(data, bytes):
        return data
    if not isinstance(form, str):
        raise SetupError(f"topic {topic!r}", f"a function of the flow reads it, and not {data!r}",
                         "feed bytes")  # fmt: skip
    try:
        return encoder(form)(data)
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"topic {topic!r}",
            f"{data!r} is no {part} that its source reads as {form!r} ({error})",
            "feed what the source reads back, or bytes as they are",
        ) from error


def _millis(topic: str, ms: object) -> int:
    """A record's timestamp."""
    if not isinstance(ms, SupportsIndex):
        raise SetupError(f"topic {topic!r}", f"ms={ms!r} is no time of a record",
                         "give whole milliseconds since 1970")  # fmt: skip
    return index(ms)


def _headers(topic: str, headers: object) -> Headers:
    """A record's headers, as Kafka takes them."""
    for header in headers if isinstance(headers, Sequence) else [headers]:
        match header:
            case (str(), str() | bytes() | None):
                continue
        raise SetupError(f"topic {topic!r}", f"{header!r} is no header of a record",
                         "give pairs of a name and text, bytes or None")  # fmt: skip
    return cast(Headers, headers)
