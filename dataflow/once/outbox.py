"""The sink operator of results that nobody could make again: they wait in an outbox (design 5).

Behind records applied as they arrive, or a function declared non-deterministic, a replay gives
other results than before. So what has come here leaves only once a checkpoint that holds it exists,
in one transaction, whose mark names the checkpoint: of what a start finds in an outbox all is out,
or nothing. Invariant: what is leaving is in no other checkpoint, as none begins meanwhile; and what
an outbox held before comes ahead of all else. Cost: each result is written once more, as in flight.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from dataflow.batch import Batch
from dataflow.once.transactions import Keeping
from dataflow.operators.base import InputPort, Message, Quiet, Underway
from dataflow.operators.errors import Guard
from dataflow.operators.sink import written
from state.time import Time


class _Kept(NamedTuple):
    """Records that are not known to be out."""

    ticket: int
    time: Time
    """None of them is of an earlier one."""
    batch: Batch


class _Cut(NamedTuple):
    """What a checkpoint has of an outbox."""

    checkpoint: int
    ticket: int
    """Of the last batch; 0 where there is none."""


class OutboxSink(Quiet):
    """One sink on one worker; it lets the frontier pass what lies in its outbox."""

    def __init__(
        self,
        results: InputPort,
        before: InputPort,
        writer: Keeping,
        guard: Guard,
        counters: Counter[str],
    ) -> None:
        """What outboxes held at the cut with which the flow has begun comes in by `before`."""
        self._results, self._before, self._writer = results, before, writer
        self._guard, self._counters = guard, counters
        self._kept = deque[_Kept]()
        self._cut = _Cut(0, 0)
        self._leaving = 0
        """The ticket of the last that has been let go of."""

    def schedule(self) -> bool:
        """Take records in, let go of what is out."""
        took = self._take(self._before)
        if not self._before.frontier:
            took |= self._take(self._results)
        return self._release() or took

    @property
    def full(self) -> bool:
        """Whether nothing more is taken in before something has left (I6)."""
        return self._writer.full

    def finished(self) -> bool:
        """Whether all is out."""
        return not self._kept

    def underway(self) -> Iterable[Underway]:
        """What is not known to be out."""
        return [Underway(self._before.location, one.time, one.batch) for one in self._kept]

    def freeze(self, checkpoint: int) -> None:
        """A checkpoint has what lies here now, with all that was to come first: what it says of the
        two it says with one word."""
        self._release()
        self._take_all(self._before)
        waiting = not self._kept or self._kept[0].ticket > self._leaving
        assert waiting, "what is leaving is in no other checkpoint"
        self._cut = _Cut(checkpoint, self._kept[-1].ticket if self._kept else 0)

    def complete(self, checkpoint: int) -> bool:
        """One exists: what it has of this outbox leaves with the next transaction; whether that is
        anything."""
        cut, self._cut = self._cut, _Cut(0, 0)
        if cut.checkpoint != checkpoint or not cut.ticket:
            return False
        self._leaving = cut.ticket
        self._writer.let_go(cut.ticket)
        return True

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _take(self, port: InputPort) -> bool:
        took = False
        messages = port.drain()
        while not self._writer.full and (message := next(messages, None)) is not None:
            self._keep(message)
            took = True
        return took

    def _take_all(self, port: InputPort) -> None:
        """Though there is no room; that is a piece at most."""
        for message in port.drain():
            self._keep(message)

    def _keep(self, message: Message) -> None:
        assert isinstance(message.payload, Batch)
        # Functions may change values in place as long as these lie here.
        batch = message.payload.isolated()
        ticket = written(self._writer, self._guard, self._counters, batch)
        self._kept.append(_Kept(ticket, message.time, batch))

    def _release(self) -> bool:
        delivered, released = self._writer.delivered(), False
        while self._kept and self._kept[0].ticket <= delivered:
            self._kept.popleft()
            released = True
        return released
