"""The calls of keys that a stateful operator makes in one pass over its records.

Guarantees I3: at one time records come first, then timers, then notifications, each in the order of
keys. A call that another call asks for takes its place in this order. Invariant: a pass makes at
most `most` calls, so it calls only keys of `along`. Cost: O(log n) per call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import Rounds, at, outer, rounds_of
from meander.schemas.errors import MeanderError
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain

Why = Literal["timer", "notice"]
"""The reason of a call: the timer of a key is due, or all records of a time have arrived."""


class Call(NamedTuple):
    """A call that one key gets."""

    time: int
    """The outer time."""
    why: Why
    key: bytes


class Calls:
    """The calls that one pass makes. They have equal iterations and times before `until`."""

    def __init__(
        self,
        operator: str,
        origin: int,
        space: BinSpace,
        timers: Timers,
        notices: Notifications,
        answers: Collection[Why],
        rounds: Rounds,
        until: Antichain,
        most: int,
    ) -> None:
        """Take timers and notifications of an operator that answers `answers`. `until` has one
        outer time or none."""
        self._operator, self._origin, self._space = operator, origin, space
        self._timers, self._notices, self._answers = timers, notices, answers
        self.most, self.rounds = most, rounds
        self._until = min(map(outer, until), default=None)

    def along(self, keys: list[bytes], bins: Int64s) -> tuple[list[bytes], Int64s]:
        """Return the keys of a pass and their bins: those of its records, then those that may be
        called."""
        if self._first is None:
            return keys, bins
        timers = [] if self.rounds else self._timers.firsts(self._until, self.most)
        notices = self._notices.firsts(self.rounds, self._until, self.most)
        others = [key for _, key in chain(timers, notices)]
        theirs = self._space.bins_of(self._space.hash_keys(others))
        return [*keys, *others], np.concatenate([bins, theirs])

    def next(self) -> Call | None:
        """Return the next due call, or None. Raises MeanderError where the operator has no function
        for it."""
        call = self._first
        if call is not None and call.why not in self._answers:
            raise MeanderError(
                f"operator {self._operator!r}",
                f"a {call.why} is due and it has no function for it",
            )
        return call

    def take(self, call: Call) -> None:
        """Remove the next call, as it is made."""
        if call.why == "timer":
            self._timers.pop()
        else:
            self._notices.pop()

    def ask(self, key: bytes, now: int, timers: Sequence[int], notice: bool) -> None:
        """Set timers for a key of this pass, and a notification for its time if `notice` holds."""
        for time in timers:
            self._timers.set(Bin(self._space.bin_of(key)), time, key)
        if notice:
            self._notices.ask(at(now, self.rounds), key)

    def fits(self, times: Int64s) -> int:
        """Return how many records of these times, in order, no later call has to precede."""
        if self._until is None:
            return len(times)
        return int(np.searchsorted(times, self._until, side="right"))

    def batch(self, calls: Sequence[Call]) -> Batch:
        """Return calls as records without values, each in its place in the total order."""
        keys = [call.key for call in calls]
        hashes = self._space.hash_keys(keys)
        return Batch(
            np.array([call.time for call in calls], np.int64),
            np.full(len(calls), self._origin, np.int64),
            hashes.view(np.int64),
            np.array([call.why == "notice" for call in calls], np.int64),
            np.zeros(len(calls), np.int64),
            [None] * len(calls),
            keys,
            hashes,
        )

    @property
    def _first(self) -> Call | None:
        timer, notice = self._timers.first, self._notices.first
        found: Call | None = None
        if timer is not None and not self.rounds and self._is_due(timer[0]):
            found = Call(timer[0], "timer", timer[1])
        if notice is not None and rounds_of(notice[0]) == self.rounds:
            time = outer(notice[0])
            if self._is_due(time) and (found is None or time < found.time):
                found = Call(time, "notice", notice[1])
        return found

    def _is_due(self, time: int) -> bool:
        return self._until is None or time < self._until
