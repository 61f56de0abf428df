"""The interfaces that the engine needs from outside.

The engine knows neither Kafka, ZeroMQ nor Spark. `connectors` implements these protocols, and
`simulation` implements them in memory with a simulated clock and network. No call blocks, and only
the worker's thread makes calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol, runtime_checkable

from typing_extensions import TypeVar

from meander.dataflow.keepalive import Keepalive
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_number
from meander.state.encoding.value_columns import Values
from meander.state.keys.ids import WorkerId

Frame = list[bytes]
"""A message between members, encoded by `dataflow.wire`: a head, and Arrow IPC for data."""

Partition = NewType("Partition", int)
"""A partition of one source's topic."""


class Clock(Protocol):
    """A clock that measures time outside the flow."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""

    def undisturbed(self) -> float:
        """Return seconds that do not pass while this thread waits for a core."""


class Links(Protocol):
    """A set of FIFO links to and from all other members. It loses no frame unless the flow ends
    (I7)."""

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Queue one frame for a peer without blocking."""

    def flush(self) -> None:
        """Send queued frames. All frames of one turn to a peer leave as one piece."""

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        """Return the frames that have arrived since the last call, in order per peer."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that holds decoded records of one partition in offset order.

    `times` are the logical times that the records request (milliseconds x 2**20). The source
    operator applies the running maximum, idle advances and `max_future` later. The reader sends a
    malformed record to the dead-letter topic instead.
    """

    partition: Partition
    offsets: Int64s
    times: Int64s
    values: Values
    size: int
    """Bytes on the topic."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A rest that bounds the unread records of a partition."""

    offset: int
    """The offset of the next record."""
    end: int | None
    """The end offset of a bounded run, or None."""


Rests = Mapping[Partition, Rest | None]
"""The rests of the partitions that a flow has read. None stands for a partition that another worker
reads."""


Readers = Mapping[Partition, WorkerId]
"""The readers that a plan names for partitions of a source, where the flow starts without a
checkpoint."""


class SourceReader(Protocol):
    """A reader that hands out one worker's share of a source."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """Return the partitions assigned to this worker."""

    @property
    def total(self) -> int | None:
        """Return the number of partitions of the topic at the last check. Return None where the
        partitions of the start are final, as in a bounded run."""

    @property
    def unreadable(self) -> int:
        """Return the number of malformed records so far."""

    def poll(self) -> list[Chunk]:
        """Return the chunks that have arrived from partitions that are not paused."""

    def watch(self) -> None:
        """Wake the loop when records arrive, or after a while. No `poll` comes before."""

    def pause(self, partition: Partition) -> None:
        """Hand out no records of a partition until `resume`. Keep prefetched records."""

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""

    def idle(self, partition: Partition) -> bool:
        """Return whether all records that the log held at the last check have been handed out."""

    def ended(self, partition: Partition) -> bool:
        """Return whether a bounded run has handed out all records of this partition."""

    def release(self, partition: Partition) -> Rest:
        """Stop reading a partition, and return its rest."""

    def rest(self, partition: Partition) -> Rest:
        """Return the rest of a partition."""

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another worker has released, or of a new one."""

    def passed(self, partition: Partition, offset: int) -> None:
        """Record for lag tools that all results of records before `offset` are delivered."""

    def close(self) -> None:
        """Close connections."""


class SinkWriter(Protocol):
    """A writer that hands the results of one sink on one worker to a topic."""

    def write(self, batch: Batch) -> int:
        """Accept one batch and return its ticket: 1, 2, 3, ... Raises RowError, before it writes
        any result, for a row that does not fit the format of the sink."""

    @property
    def full(self) -> bool:
        """Return whether the writer takes no more results until earlier ones are durable."""

    def delivered(self) -> int:
        """Return the greatest ticket up to which all batches are durable. Raises an error of an
        earlier write, and WritesDropped where `write` may refuse more rows than before."""

    def close(self) -> None:
        """Close connections, and abandon batches that are not durable."""


class DeadLetterWriter(Protocol):
    """A writer of the records on which a user function has failed."""

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Write one record with the reason. `trace` is the traceback, or ''."""


class DeadLetterTopic(DeadLetterWriter, Protocol):
    """A dead-letter topic, as one worker writes it. The tickets of dead letters are 1, 2, 3, ..."""

    @property
    def added(self) -> int:
        """Return the ticket of the last dead letter; 0 without one."""

    def delivered(self) -> int:
        """Return the last ticket up to which all dead letters are durable. Raise MeanderError when
        the broker refused one."""

    def has_room(self) -> bool:
        """Send waiting dead letters; return whether more than half of their room is free. A worker
        calls it in each turn."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options that control how a source follows time (design 2). Raises SetupError for values
    that are no seconds."""

    idle_after: float = 0.002
    """Seconds after which an idle partition may make an idle advance."""
    max_future: float = 1.0
    """Seconds that a timestamp may be ahead of the wall clock."""
    max_skew: float = 1.0
    """Seconds of logical time that a partition may be ahead of the flow's frontier with more than
    256 KiB of its records in the flow."""
    advance_after: float | None = None
    """Seconds for which all sources are silent before logical time follows the wall clock, as many
    seconds behind it; None where it waits for records."""

    def __post_init__(self) -> None:
        for name in ("idle_after", "max_future", "max_skew"):
            checked_number("SourceOptions", name, getattr(self, name), 0)
        if self.advance_after is not None:
            checked_number("SourceOptions", "advance_after", self.advance_after, above=0)


def check_options(subject: str, options: object) -> None:
    """Raise SetupError for a value that is no options of a source."""
    if not isinstance(options, SourceOptions):
        raise SetupError(subject, f"its options are {options!r}", "give SourceOptions(...)")


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A context in which a connector opens a source or sink on one worker."""

    flow: str
    topic_prefix: str
    worker: WorkerId
    workers: int
    settings: dict[str, str] = field(repr=False)
    """The settings of librdkafka, which may hold secrets."""
    until_end: bool
    start: str
    """The position at which a new flow starts: 'earliest', 'latest' or milliseconds since 1970."""
    wakeup: Wakeup
    max_waiting: int
    """Bytes that may wait for delivery at one sink."""
    keepalive: Keepalive
    """The keepalive for long user functions."""
    sink_topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The known settings of each topic of a sink, by topic."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics that the flow reads, by topic."""
    skip_lost: bool = False
    """Whether the flow continues where a topic has lost records before their reading."""
    start_offsets: Sequence[int] = ()
    """The offsets at which the partitions of a source start in a new flow; () where `start` decides
    it."""


class Wakeup(Protocol):
    """A wakeup by which other threads end the wait of the worker's loop."""

    def set(self) -> None:
        """Wake the loop. Any thread may call this at any time."""


T_co = TypeVar("T_co", covariant=True, default=Any)
"""The type of a source's values. Without it, type checkers do not check values."""


class SourceSpec(Protocol[T_co]):
    """A source that a user passes to `flow.source`. `KafkaSource[Order]("orders")` gives
    `Stream[Order]`."""

    @property
    def options(self) -> SourceOptions:
        """Return the options that control how the source follows time."""

    def open(
        self,
        context: WorkerContext,
        dead: DeadLetterTopic,
        rests: Rests | None,
        readers: Readers,
    ) -> SourceReader:
        """Open this worker's reader of the given rests. A flow that starts without a checkpoint
        passes None, and the reader takes its share of all partitions: those that it reads by
        `readers`, and its default share of the others."""


@runtime_checkable
class CompositeSource(Protocol):
    """A source that may consist of a source for each of its topics."""

    @property
    def is_composite(self) -> bool:
        """Return whether it consists of others; otherwise it is a `SourceSpec` of one topic."""

    @property
    def pattern(self) -> str:
        """Return the pattern of its topics; '' for a list."""

    def parts(self, topics: Sequence[str]) -> Mapping[str, SourceSpec]:
        """Return the source of each topic. `topics` are those of the cluster that a pattern may
        match."""


@runtime_checkable
class KeyedSource(Protocol):
    """A source whose records may bring their keys along."""

    def with_keys(self) -> SourceSpec:
        """Return the source whose values are pairs of key and value, or a `Record` each."""


class SinkSpec(Protocol):
    """A sink that a user passes to `stream.sink`."""

    def open(self, context: WorkerContext) -> SinkWriter:
        """Open this worker's writer."""
