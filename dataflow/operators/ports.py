"""The parts of every operator: ports, messages, and one method that does a little work.

The worker schedules an operator repeatedly. The operator then takes messages, sends what it may,
and returns whether it worked. Guarantees that its conclusions from frontiers are safe (I1): it sees
those of the last progress broadcast, never later ones than its own actions justify.
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
    taken: Callable[[], None] | None = None
    """A function that the operator calls when it takes the message. It returns the credit of the
    sender."""
    arrived: float = 0.0
    """The time of arrival at the input, in seconds of the worker's clock."""


class InFlight(NamedTuple):
    """A group of in-flight records that an operator holds, as they would arrive at one of its
    inputs."""

    location: Location
    time: Time
    """A lower bound of their times."""
    batch: Batch

    @staticmethod
    def held(location: Location, time: Time, batch: Batch) -> InFlight:
        """Return the records with copies of their values, as user functions may change values in
        place."""
        return InFlight(location, time, batch.isolated())


class Ways(Protocol):
    """A delivery service that takes payloads from outputs to the inputs behind them, on this worker
    and others."""

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        """Deliver a payload at an edge's target on any worker. Its records are of that time or
        later."""

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        """Return whether an edge to a worker takes no more now, as too many bytes wait (I6)."""


class InputPort:
    """An input port that holds messages for its operator."""

    def __init__(self, location: Location, progress: Progress, stay: OperatorLatency) -> None:
        self.location, self._progress, self.stay = location, progress, stay
        self._queue: deque[Message] = deque()
        self._behind: deque[Message] | None = None
        """Messages that arrived before all restored ones were put back, which precede them."""

    def put(self, message: Message) -> None:
        """Append a message. Its sender has counted it already."""
        (self._queue if self._behind is None else self._behind).append(message)

    def keep_behind(self) -> None:
        """Keep new messages back until all restored ones have been put back."""
        self._behind = deque()

    def put_back(self, message: Message) -> None:
        """Append a message of a checkpoint, ahead of all new messages."""
        self._queue.append(message)

    def admit(self) -> None:
        """Admit the messages that were kept back, as all restored ones have been put back."""
        self._queue.extend(self.behind)
        self._behind = None

    def drain(self) -> Iterator[Message]:
        """Yield and remove waiting messages. The operator completes them by the end of the turn."""
        for message in self.hold():
            if isinstance(message.payload, Batch):
                self.stay.over(message.arrived, len(message.payload))
            yield message

    def hold(self) -> Iterator[Message]:
        """Yield and remove waiting messages. The operator reports their completion to `stay`. Each
        message counts as consumed in the same step as the messages that follow from it."""
        while self._queue:
            message = self._queue.popleft()
            self._progress.changes.add(self.location, message.time, -1)
            if message.taken is not None:
                message.taken()
            yield message

    def take(self, most: int) -> Message | None:
        """Remove the next message, or at most `most` of its records. The operator completes them by
        the end of the turn, and other records stay."""
        if not self._queue:
            return None
        batch = self._queue[0].payload
        if not isinstance(batch, Batch) or len(batch) <= most:
            return next(self.drain())
        whole = self._queue.popleft()
        first, rest = batch.take(np.arange(most)), batch.take(np.arange(most, len(batch)))
        self._queue.appendleft(replace(whole, payload=rest))
        self.stay.over(whole.arrived, most)
        return replace(whole, payload=first, taken=None)

    @property
    def empty(self) -> bool:
        """Return whether its operator has taken all messages."""
        return self.taken and not self._behind

    @property
    def taken(self) -> bool:
        """Return whether its operator has taken all admitted messages."""
        return not self._queue

    @property
    def first(self) -> Message | None:
        """Return the next message, or None."""
        return self._queue[0] if self._queue else None

    @property
    def waiting(self) -> list[Message]:
        """Return the messages that the operator may take."""
        return list(self._queue)

    @property
    def behind(self) -> list[Message]:
        """Return the messages that are kept back."""
        return list(self._behind or ())

    @property
    def frontier(self) -> Antichain:
        """Return the frontier of messages that may still arrive."""
        return self._progress.frontier(self.location)


class OutputPort:
    """An output port that sends an operator's messages to every edge that begins here."""

    def __init__(
        self,
        location: Location,
        edges: Sequence[Edge],
        progress: Progress,
        me: WorkerId,
        ways: Ways,
    ) -> None:
        self.location, self._edges, self._progress = location, edges, progress
        self._me, self._ways = me, ways

    def open(self, time: Time) -> Capability:
        """Create a capability. Only an operator's opening may do this."""
        return Capability(self.location, time, self._progress.changes)

    def mint(self, message: Message) -> Capability:
        """Return the capability of a message, in the step that consumes the message."""
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
            there = edge.summary.advance(time)
            self._progress.changes.add(edge.target, there, 1)
            self._ways.deliver(edge, to, there, payload)

    def blocked(self, to: WorkerId | None = None) -> bool:
        """Return whether an operator should keep messages to a worker, by default this one, as
        earlier ones still wait."""
        to = self._me if to is None else to
        # Each turn calls this, and a generator would cost more than the loop.
        for edge in self._edges:  # noqa: SIM110
            if self._ways.blocked(edge, to):
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

    def underway(self) -> Iterable[InFlight]:
        """Return the records that it has taken and still holds, in the order in which they must
        arrive again. States are not among them."""

    def close(self) -> None:
        """Close outside resources."""


class BaseOperator:
    """An operator that waits for messages and frontiers alone."""

    def wait_seconds(self) -> float | None:
        """Return None, as there is no work without a message."""
        return None

    def finished(self) -> bool:
        """Return True, as progress tracking knows all work."""
        return True

    def underway(self) -> Iterable[InFlight]:
        """Return nothing, as the operator passes records on in the same turn."""
        return ()

    def close(self) -> None:
        """Do nothing, as there are no outside resources."""


def least_of(*times: Time | None) -> tuple[Time, ...]:
    """Return the least times among some. None stands for no time.

    >>> least_of(None, 4, 2), least_of(None)
    ((2,), ())
    """
    return minimal(time for time in times if time is not None)
