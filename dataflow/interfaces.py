"""What the engine asks of the world outside, and nothing more.

The engine knows neither Kafka, ZeroMQ nor Spark. `connectors` implements these protocols for
real, `simulation` in memory with a simulated clock and network. Nothing here blocks, and no
call may be made from another thread than the worker's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol

from typing_extensions import TypeVar

from meander.dataflow.keepalive import Keepalive
from meander.dataflow.records.batch import Batch, Int64s
from meander.state.keys.ids import WorkerId

Frame = list[bytes]
"""One message between members, encoded by `dataflow.wire`: a head and, for data, Arrow IPC."""

Partition = NewType("Partition", int)
"""A partition of one source's topic."""


class Clock(Protocol):
    """Time outside the flow."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""


class Links(Protocol):
    """FIFO links to and from every other member (I7: what is sent arrives, or the flow ends)."""

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Queue one frame for a peer; never blocks."""

    def flush(self) -> None:
        """Let go what is queued: what one turn has sent to a peer leaves as one piece."""

    def receive(self) -> Iterable[tuple[WorkerId, Frame]]:
        """What has arrived since the last call, in order per peer."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a reader took from one partition, in offset order, decoded.

    `times` are the logical times that the records ask for (milliseconds x 2**20), before the
    running maximum, idling and `max_future` (those are the source operator's). A record that could
    not be decoded is not in a chunk: the reader has sent it to the dead-letter topic.
    """

    partition: Partition
    offsets: Int64s
    times: Int64s
    values: list[object]
    size: int
    """Bytes on the topic."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left to read of a partition."""

    offset: int
    """Of the next record."""
    end: int | None
    """Where a bounded run ends: the first offset that is not read."""


Rests = Mapping[Partition, Rest | None]
"""What is left of the partitions that a flow has read; None where another worker reads on."""


class SourceReader(Protocol):
    """One worker's share of a source."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions assigned to this worker."""

    @property
    def total(self) -> int | None:
        """How many partitions the topic was last found to have, on all workers; None where those of
        the start are all that will be read, as in a bounded run."""

    @property
    def unreadable(self) -> int:
        """How many records could not be decoded so far."""

    def poll(self) -> list[Chunk]:
        """What has been read of the partitions that are not paused; [] when nothing has."""

    def watch(self) -> None:
        """Nobody will ask before there is more, or a while has passed: rouse the loop then."""

    def pause(self, partition: Partition) -> None:
        """Hand out no more of a partition until `resume`; what it has prefetched it keeps."""

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""

    def idle(self, partition: Partition) -> bool:
        """Whether all that the log held at the last look has been handed out."""

    def ended(self, partition: Partition) -> bool:
        """Whether a bounded run has handed out this partition to its end."""

    def release(self, partition: Partition) -> Rest:
        """Read no more of a partition; what of it has not been handed out."""

    def rest(self, partition: Partition) -> Rest:
        """What of a partition has not been handed out."""

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read what is left of a partition that another worker has released, or all of a new."""

    def passed(self, partition: Partition, offset: int) -> None:
        """All results of the records before `offset` are delivered (for lag tools)."""

    def close(self) -> None:
        """Release connections."""


class SinkWriter(Protocol):
    """One worker's way out of the flow."""

    def write(self, batch: Batch) -> int:
        """Take over one batch; returns its ticket: 1, 2, 3, ... Raises RowRefused, before anything
        is written, for a row that the sink's format does not take."""

    @property
    def full(self) -> bool:
        """Whether so much is under way that it should be given no more for now."""

    def delivered(self) -> int:
        """The greatest ticket up to which all is durable outside; also where errors are raised."""

    def close(self) -> None:
        """Release connections; everything has been delivered before, or is given up."""


class DeadLetters(Protocol):
    """Where records go that a user's function could not take."""

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Set one record aside with the reason; `trace` is the traceback, or ''."""

    def pending(self) -> int:
        """How many are not yet durable."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How a source follows time (design 2)."""

    idle_after: float = 0.002
    """Seconds after which a partition that is read to its end moves on demand."""
    max_future: float = 1.0
    """Seconds that a timestamp may be ahead of the wall clock."""
    max_skew: float = 1.0
    """Seconds of logical time that a partition may be ahead of the flow's frontier with more than
    256 KiB of its records in the flow."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a connector gets to open its end on one worker."""

    flow: str
    topic_prefix: str
    worker: WorkerId
    workers: int
    settings: dict[str, str] = field(repr=False)
    """librdkafka settings; they may hold secrets."""
    until_end: bool
    start: str
    """Where a flow without a past starts: 'earliest', 'latest' or milliseconds since 1970."""
    wakeup: Wakeup
    max_waiting: int
    """Bytes that may wait to be delivered at one sink."""
    pulse: Keepalive
    """How the worker is heard of where user functions take long."""
    outside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """How each place that a sink writes to is set up there, as far as that is known."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """By the name of a source's topic the id of the topic that the flow reads."""
    skip_lost: bool = False
    """Whether the flow goes on where a source has lost records that it was to read."""


class Wakeup(Protocol):
    """Rouses the worker's loop from another thread."""

    def set(self) -> None:
        """Have the loop look again; callable from any thread, at any time."""


T_co = TypeVar("T_co", covariant=True, default=Any)
"""Of a source's values; a user who does not name it has them unchecked."""


class SourceSpec(Protocol[T_co]):
    """What a user passes to `flow.source`: `KafkaSource[Order]("orders")` gives `Stream[Order]`."""

    @property
    def options(self) -> SourceOptions:
        """How it follows time."""

    def open(
        self,
        context: WorkerContext,
        dead: DeadLetters,
        rests: Rests | None,
    ) -> SourceReader:
        """This worker's reader: of what is left of partitions, or of its share of all where the
        flow has not run before."""


class SinkSpec(Protocol):
    """What a user passes to `stream.sink`."""

    def open(self, context: WorkerContext) -> SinkWriter:
        """This worker's writer."""
