"""The parts of every operator: ports, messages, and one method that does a little work.

The worker schedules an operator repeatedly. The operator then consumes messages, sends others under
its capabilities, and returns whether it worked. Guarantees that its conclusions from frontiers are
safe (I1): it sees the frontiers of the last progress broadcast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from meander.dataflow.graph.graph import Edge, Location
from meander.dataflow.metrics.operator_latency import OperatorLatency
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch
from meander.dataflow.wire import Payload
from meander.state.keys.ids import WorkerId
from meander.state.times.antichain import Antichain, minimal
from meander.state.times.time import Time


@dataclass(frozen=True, slots=True)
class Message:
    """A message that carries one payload to an input, with a lower bound of its times."""

    time: Time
    payload: Payload
    release_credit: Callable[[], None] | None = None
    """Returns the credit of the sender once the operator has consumed the message."""
    arrived_at: float = 0.0
    """The time of arrival at the input, in seconds of the worker's clock."""


class InFlight(NamedTuple):
    """A group of in-flight records that an operator holds, as they would arrive at one of its
    inputs."""

    location: Location
    time: Time
    """A lower bound of their times."""
    batch: Batch

    @staticmethod
    def isolated(location: Location, time: Time, batch: Batch) -> InFlight:
        """Return the records with copies of their values, which functions may change in place."""
        return InFlight(location, time, batch.isolated())


class Channels(Protocol):
    """A set of channels that carry payloads from outputs to inputs, on this worker and others."""

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        """Deliver a payload at an edge's target on any worker. Its records are of that time or
        later."""

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        """Return whether too many bytes wait on an edge to a worker for a further message (I6)."""


class InputPort:
    """An input port that holds messages for its operator."""

    def __init__(self, location: Location, progress: Progress, latency: OperatorLatency) -> None:
        self.location, self._progress, self.latency = location, progress, latency
        self._queue: deque[Message] = deque()
        self._held_new: deque[Message] | None = None
        """Messages that arrived before all restored ones, which precede them. None after these."""

    def put(self, message: Message) -> None:
        """Append a message. Its sender has counted it already."""
        (self._queue if self._held_new is None else self._held_new).append(message)

    def hold_new(self) -> None:
        """Hold new messages back until `release_new`."""
        self._held_new = deque()

    def restore(self, message: Message) -> None:
        """Append a message of a checkpoint, ahead of all new messages."""
        self._queue.append(message)

    def release_new(self) -> None:
        """Append the messages that were held back, as all restored ones precede them now."""
        self._queue.extend(self.held_new)
        self._held_new = None

    def drain(self) -> Iterator[Message]:
        """Remove and yield waiting messages. The operator completes them by the end of the turn."""
        for message in self.consume():
            if isinstance(message.payload, Batch):
                self.latency.complete(message.arrived_at, len(message.payload))
            yield message

    def consume(self) -> Iterator[Message]:
        """Remove and yield waiting messages. The operator reports their completion to `latency`.

        A message counts as consumed in the same step as the messages that follow from it.
        """
        while self._queue:
            message = self._queue.popleft()
            self._progress.changes.add(self.location, message.time, -1)
            if message.release_credit is not None:
                message.release_credit()
            yield message

    def pop(self, max_rows: int) -> Message | None:
        """Remove the next message, or at most `max_rows` of its records; the others stay.

        The operator completes them by the end of the turn.
        """
        message = self.take(max_rows)
        if message is not None and isinstance(message.payload, Batch):
            self.latency.complete(message.arrived_at, len(message.payload))
        return message

    def take(self, max_rows: int) -> Message | None:
        """Remove the next message, or at most `max_rows` of its records; the others stay. The
        operator reports their completion to `latency`."""
        if not self._queue:
            return None
        batch = self._queue[0].payload
        if not isinstance(batch, Batch) or len(batch) <= max_rows:
            return next(self.consume())
        message = self._queue.popleft()
        first, rest = batch.take(np.arange(max_rows)), batch.take(np.arange(max_rows, len(batch)))
        self._queue.appendleft(replace(message, payload=rest))
        return replace(message, payload=first, release_credit=None)

    def peek(self, max_rows: int) -> Message | None:
        """Return the next message, or at most `max_rows` of its records. They stay."""
        if not self._queue:
            return None
        message = self._queue[0]
        batch = message.payload
        if not isinstance(batch, Batch) or len(batch) <= max_rows:
            return message
        return replace(message, payload=batch.take(np.arange(max_rows)))

    @property
    def empty(self) -> bool:
        """Return whether the operator has consumed all messages."""
        return self.drained and not self._held_new

    @property
    def drained(self) -> bool:
        """Return whether the operator has consumed all messages but those held back."""
        return not self._queue

    @property
    def first(self) -> Message | None:
        """Return the next message, or None."""
        return self._queue[0] if self._queue else None

    @property
    def waiting(self) -> list[Message]:
        """Return the messages that the operator may consume."""
        return list(self._queue)

    @property
    def held_new(self) -> list[Message]:
        """Return the messages that are held back."""
        return list(self._held_new or ())

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of messages that may still arrive."""
        return self._progress.frontier(self.location)


class OutputPort:
    """An output port that sends an operator's messages along every edge of it."""

    def __init__(
        self,
        location: Location,
        edges: Sequence[Edge],
        progress: Progress,
        me: WorkerId,
        channels: Channels,
    ) -> None:
        self.location, self._edges, self._progress = location, edges, progress
        self._me, self._channels = me, channels

    def open(self, time: Time) -> Capability:
        """Create a capability out of nothing, as only the opening of an operator may."""
        return Capability(self.location, time, self._progress.changes)

    def mint(self, message: Message) -> Capability:
        """Create the capability of a message, in the step that consumes the message."""
        return Capability(self.location, message.time, self._progress.changes)

    def send(
        self, capability: Capability, time: Time, payload: Payload, to: WorkerId | None = None
    ) -> None:
        """Send to a worker, by default this one. Raises CapabilityError if the capability does not
        permit it."""
        capability.check(time)
        to = self._me if to is None else to
        for n, edge in enumerate(self._edges):
            # Remote readers get a copy by the wire, so each local reader gets one too.
            if n and to == self._me and isinstance(payload, Batch):
                payload = payload.isolated()
            target_time = edge.summary.results_in(time)
            self._progress.changes.add(edge.target, target_time, 1)
            self._channels.deliver(edge, to, target_time, payload)

    def blocked(self, to: WorkerId | None = None) -> bool:
        """Return whether earlier messages to a worker, by default this one, still wait."""
        to = self._me if to is None else to
        # Each turn calls this, and a generator would cost more than the loop.
        for edge in self._edges:  # noqa: SIM110
            if self._channels.blocked(edge, to):
                return True
        return False

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of messages that may still leave, here or on any other worker."""
        return self._progress.frontier(self.location)


class Operator(Protocol):
    """An operator that has one instance per worker."""

    def schedule(self) -> bool:
        """Do a little work (about a millisecond at most), and return whether there was any."""

    def wait_seconds(self) -> float | None:
        """Return after how many seconds there may be work without a message, or None."""

    def finished(self) -> bool:
        """Return whether the operator has no work that progress tracking does not know."""

    def in_flight(self) -> Iterable[InFlight]:
        """Return its consumed records as of the call, in the order in which they must arrive again.
        The caller reads them later. States are not among them."""

    def close(self) -> None:
        """Close outside resources."""


class BaseOperator:
    """An operator that waits for messages and frontiers alone, and holds no records."""

    def wait_seconds(self) -> float | None:
        """Return None, as there is no work without a message."""
        return None

    def finished(self) -> bool:
        """Return True, as progress tracking knows all work."""
        return True

    def in_flight(self) -> Iterable[InFlight]:
        """Return nothing, as the operator passes records on in the same turn."""
        return ()

    def close(self) -> None:
        """Do nothing, as there are no outside resources."""


def least_of(*times: Time | None) -> tuple[Time, ...]:
    """Return the least of some times; None stands for no time.

    >>> least_of(None, 4, 2), least_of(None)
    ((2,), ())
    """
    return minimal(time for time in times if time is not None)
