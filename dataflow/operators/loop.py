"""The two ends of a loop: where records enter it and come back, and where they are sent back.

Guarantees that no record goes round for ever: one that has had all its rounds goes the way of the
error policy. What goes round is taken before what enters, and never waits for credit, as all on
the cycle would wait for each other; past a bound it goes to disk instead (I6), and goes on from
there by time and round, in slices. Invariant: what waits is owed, under a capability (I1). A
record's index begins anew in each round, or a body with a flat_map would soon use it up; what that
leaves equal stands in the order of its bytes. Cost: one encoding of each value that goes round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from dataflow.batch import Batch
from dataflow.capability import Held
from dataflow.nested import at, rounds_of
from dataflow.operators.base import (
    InputPort,
    Message,
    OutputPort,
    Quiet,
    Underway,
    least_of,
)
from dataflow.operators.errors import Guard
from dataflow.operators.pool import Pool
from dataflow.operators.rows import Rows
from state.antichain import Antichain
from state.time import Time

_ALL = Antichain()
"""What has passed everything: nothing that has come back waits for a frontier."""
_KEYLESS, _KEYED = 0, 1
"""The side of a record that has come back: disk gives each a key, so this tells whether it had."""


class TooManyRounds(Exception):
    """A record would go round a loop once more than it may."""


class Enter(Quiet):
    """One loop's beginning on one worker; of what has come back, `most` bytes wait in memory."""

    def __init__(
        self, entering: InputPort, back: InputPort, output: OutputPort, waiting: Pool, most: int
    ) -> None:
        self._entering, self._back, self._output = entering, back, output
        self.waiting, self._most = waiting, most
        self._held = Held()

    def schedule(self) -> bool:
        """Pass on what has come, unless what was passed on before still waits."""
        worked = self._take_back()
        if not self._output.blocked():
            worked |= self._go_on()
        if worked:
            self._held.keep(*least_of(*self.waiting.owed))
        return worked

    def underway(self) -> Iterable[Underway]:
        """What has come back."""
        at = self._back.location
        rows = self.waiting.rows()
        return (Underway(at, some.least_time, one) for some in rows for one in _batches(some))

    def _take_back(self) -> bool:
        """Nobody can be held back here, so all of it, and at once what is too much to disk."""
        taken = False
        for message in self._back.hold():
            taken = True
            self._held.retain(self._output.mint(message))
            self.waiting.add(_rows(message))
        over = self.waiting.size - self._most if taken else 0
        while over > 0 and (moved := self.waiting.shed()):
            over -= moved
        return taken

    def _go_on(self) -> bool:
        ready, more = self.waiting.passed(_ALL)
        for rows in ready:
            for batch in _batches(rows):
                time = at(int(batch.times.min()), rows.rounds)
                self._output.send(self._held.permitting(time), time, batch)
            self._back.stay.over_each(rows.arrived)
        return self._enter() or bool(ready) or more

    def _enter(self) -> bool:
        """Let in what comes from outside, once nothing that goes round waits; whether any has."""
        entered = False
        for message in self._entering.drain() if self.waiting.least is None else ():
            entered = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return entered


def _rows(message: Message) -> Rows:
    """Records that have come back, as they may go to disk."""
    batch, side = message.payload, _KEYED
    assert isinstance(batch, Batch)
    if batch.keys is None:
        batch = replace(batch, keys=[b""] * len(batch), hashes=np.zeros(len(batch), np.uint64))
        side = _KEYLESS
    return Rows.of(batch, side, rounds_of(message.time), message.arrived)


def _batches(rows: Rows) -> Iterator[Batch]:
    """The inverse."""
    keyed = rows.sides == _KEYED
    parts = [rows] if keyed.all() or not keyed.any() else rows.split(keyed)
    for part in parts:
        yield part.batch if part.sides[0] else replace(part.batch, keys=None, hashes=None)


class Again(Quiet):
    """One loop's way back on one worker."""

    def __init__(self, source: InputPort, output: OutputPort, most: int, guard: Guard) -> None:
        self._input, self._output, self._most, self._guard = source, output, most, guard

    def schedule(self) -> bool:
        """Send back what has come."""
        worked = False
        for message in self._input.drain():
            worked = True
            assert isinstance(message.payload, Batch)
            with self._output.mint(message) as capability:
                batch = self._admitted(message.payload, message.time)
                if len(batch):
                    self._output.send(capability, message.time, batch)
        return worked

    def _admitted(self, batch: Batch, time: Time) -> Batch:
        done = rounds_of(time)[-1] + 1
        if done < self._most:
            return replace(batch.measured(), indexes=np.zeros(len(batch), np.int64))
        error = TooManyRounds(f"it has had {done} rounds, and max_rounds is {self._most}")
        for row in range(len(batch)):
            self._guard.failed(batch, row, error)
        return batch.take(np.array([], np.int64))
