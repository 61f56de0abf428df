"""What every operator is made of: ports, messages, and one method that does a little work.

An operator is scheduled again and again; each time it takes what has come, sends what it may, and
returns whether it did anything. It sees frontiers as of the last flush of progress, never later
ones than its own actions justify, so what it concludes from them is safe (I1).
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
    """One payload and a lower bound of its records' times."""

    time: Time
    payload: Payload
    taken: Callable[[], None] | None = None
    """To be called once its operator has taken it: gives back its sender's credit."""
    arrived: float = 0.0
    """When it has come to its input, seconds of the worker's clock."""


class InFlight(NamedTuple):
    """Records that an operator holds, as they would come to one of its inputs."""

    location: Location
    time: Time
    """None of them is of an earlier one."""
    batch: Batch

    @staticmethod
    def held(location: Location, time: Time, batch: Batch) -> InFlight:
        """As they are now: users' functions may change values in place when they get them."""
        return InFlight(location, time, batch.isolated())


class Ways(Protocol):
    """What leads from an operator's outputs to the inputs behind them, here and elsewhere."""

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        """Take a payload to an edge's target on a worker, this one or another; its records are of
        that time or later."""

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        """Whether nothing more should go there now, as too much waits to be taken (I6)."""


class InputPort:
    """Where messages wait for their operator."""

    def __init__(self, location: Location, progress: Progress, stay: OperatorLatency) -> None:
        self.location, self._progress, self.stay = location, progress, stay
        self._queue: deque[Message] = deque()
        self._behind: deque[Message] | None = None
        """What has come before all was put back that is to be ahead of it."""

    def put(self, message: Message) -> None:
        """Enqueue; the sender has counted it already."""
        (self._queue if self._behind is None else self._behind).append(message)

    def keep_behind(self) -> None:
        """What comes from now on waits until all has been put back."""
        self._behind = deque()

    def put_back(self, message: Message) -> None:
        """Enqueue what was here when a checkpoint was taken, ahead of all that comes anew."""
        self._queue.append(message)

    def admit(self) -> None:
        """All has been put back."""
        self._queue.extend(self.behind)
        self._behind = None

    def drain(self) -> Iterator[Message]:
        """Take what waits, to be through with it by the end of the turn."""
        for message in self.hold():
            if isinstance(message.payload, Batch):
                self.stay.over(message.arrived, len(message.payload))
            yield message

    def hold(self) -> Iterator[Message]:
        """Take what waits, and say to `stay` when that is over. Each message counts as consumed in
        the same step as what follows."""
        while self._queue:
            message = self._queue.popleft()
            self._progress.changes.add(self.location, message.time, -1)
            if message.taken is not None:
                message.taken()
            yield message

    def take(self, most: int) -> Message | None:
        """The next message, or so many of its records, to be through with them by the end of the
        turn; the others wait on."""
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
        """Whether its operator has taken all that has come."""
        return self.taken and not self._behind

    @property
    def taken(self) -> bool:
        """Whether its operator has taken all that it may."""
        return not self._queue

    @property
    def first(self) -> Message | None:
        """What it may take next."""
        return self._queue[0] if self._queue else None

    @property
    def waiting(self) -> list[Message]:
        """What it may take."""
        return list(self._queue)

    @property
    def behind(self) -> list[Message]:
        """What waits until all has been put back."""
        return list(self._behind or ())

    @property
    def frontier(self) -> Antichain:
        """What may still arrive."""
        return self._progress.frontier(self.location)


class OutputPort:
    """Where an operator's messages leave, to every edge that begins here."""

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
        """A capability out of nothing: only in an operator's opening."""
        return Capability(self.location, time, self._progress.changes)

    def mint(self, message: Message) -> Capability:
        """The capability that a message brings, to be taken in the step that consumes it."""
        return Capability(self.location, message.time, self._progress.changes)

    def send(
        self, capability: Capability, time: Time, payload: Payload, to: WorkerId | None = None
    ) -> None:
        """Send to a worker, by default this one. Raises CapabilityError if not permitted."""
        capability.check(time)
        to = self._me if to is None else to
        for n, edge in enumerate(self._edges):
            # Whoever reads it elsewhere gets a copy by the wire; so here, too, each gets its own.
            if n and to == self._me and isinstance(payload, Batch):
                payload = payload.isolated()
            there = edge.summary.advance(time)
            self._progress.changes.add(edge.target, there, 1)
            self._ways.deliver(edge, to, there, payload)

    def blocked(self, to: WorkerId | None = None) -> bool:
        """Whether an operator should keep for now what it would send to a worker, by default this
        one: what it sent before waits to be taken."""
        to = self._me if to is None else to
        # Asked in every turn: a generator would cost more than the answer.
        for edge in self._edges:  # noqa: SIM110
            if self._ways.blocked(edge, to):
                return True
        return False

    @property
    def frontier(self) -> Antichain:
        """What may still leave, here or on any other worker."""
        return self._progress.frontier(self.location)


class Operator(Protocol):
    """One instance of an operator on one worker."""

    def schedule(self) -> bool:
        """Do a little work (about a millisecond at most); whether anything was done."""

    def wait_seconds(self) -> float | None:
        """After how long there may be work without a message; None for never."""

    def finished(self) -> bool:
        """Whether nothing is under way that progress does not know of."""

    def underway(self) -> Iterable[InFlight]:
        """What it has taken and still holds, as of the call, in the order in which it would have to
        come again; without what has gone into state."""

    def close(self) -> None:
        """Release what lies outside."""


class BaseOperator:
    """The answers of an operator that waits for nothing but messages and frontiers."""

    def wait_seconds(self) -> float | None:
        """Never on its own."""
        return None

    def finished(self) -> bool:
        """Always."""
        return True

    def underway(self) -> Iterable[InFlight]:
        """Nothing: what it takes it passes on in the same turn."""
        return ()

    def close(self) -> None:
        """Nothing to release."""


def least_of(*times: Time | None) -> tuple[Time, ...]:
    """The least of some times; None stands for none.

    >>> least_of(None, 4, 2), least_of(None)
    ((2,), ())
    """
    return minimal(time for time in times if time is not None)
