"""The two ends of a loop: where records enter it and come back, and where they are sent back.

Guarantees that no record goes round for ever: one that has had all its rounds goes the way of the
error policy. What goes round is taken before what enters, and never waits for credit, as all on
the cycle would wait for each other; so what has come back and cannot go on is bounded (I6). A
record's index begins anew in each round, or a body with a flat_map would soon use it up; what that
leaves equal stands in the order of its bytes. Cost: one encoding of each value that goes round.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np

from dataflow.batch import Batch
from dataflow.bound import Bound
from dataflow.nested import rounds_of
from dataflow.operators.base import InputPort, OutputPort, Quiet
from dataflow.operators.errors import Guard
from state.time import Time


class TooManyRounds(Exception):
    """A record would go round a loop once more than it may."""


class Enter(Quiet):
    """One loop's beginning on one worker."""

    def __init__(
        self, entering: InputPort, back: InputPort, output: OutputPort, bound: Bound
    ) -> None:
        self._entering, self._back, self._output = entering, back, output
        self._bound = bound

    def schedule(self) -> bool:
        """Pass on what has come, unless what was passed on before still waits."""
        self._bound.check(self._back.size, "records go round at once")
        if self._output.blocked():
            return False
        passed = False
        for message in chain(self._back.drain(), self._entering.drain()):
            passed = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return passed


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
