"""The calls of keys that a stateful operator makes in one pass over its records.

Guarantees I3: at one time records come first, then timers, then notifications, each in the order of
keys. A call that another call requests has its place in this order. Invariant: a pass makes at most
`max_calls` calls, so it calls only keys of `with_callable_keys`. Cost: O(log n) per call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time, outer_time
from meander.schemas.errors import MeanderError
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain

CallKind = Literal["timer", "notification"]
"""The reason of a call: the timer of a key is due, or all records of a time have arrived."""


class Call(NamedTuple):
    """A call of one key."""

    time: int
    """The outer time."""
    kind: CallKind
    key: bytes


class Calls:
    """A queue of the calls of one pass, which have equal iterations and times before `until`."""

    def __init__(
        self,
        operator: str,
        origin: int,
        space: BinSpace,
        timers: Timers,
        notifications: Notifications,
        kinds: Collection[CallKind],
        iterations: Iterations,
        until: Antichain,
        max_calls: int,
    ) -> None:
        """The operator has functions for `kinds` of calls. `until` has one outer time or none."""
        self._operator, self._origin, self._space = operator, origin, space
        self._timers, self._notifications, self._kinds = timers, notifications, kinds
        self.max_calls, self.iterations = max_calls, iterations
        self._until = min(map(outer_time, until), default=None)

    def with_callable_keys(self, keys: list[bytes], bins: Int64s) -> tuple[list[bytes], Int64s]:
        """Return the keys of a pass and their bins: first those of its records, then those that it
        may call."""
        if self._first is None:
            return keys, bins
        timers = [] if self.iterations else self._timers.peek(self._until, self.max_calls)
        notifications = self._notifications.peek(self.iterations, self._until, self.max_calls)
        called = [key for _, key in chain(timers, notifications)]
        called_bins = self._space.bins_of(self._space.hash_keys(called))
        return [*keys, *called], np.concatenate([bins, called_bins])

    def next(self) -> Call | None:
        """Return the next due call, or None. Raises MeanderError where the operator has no function
        for it."""
        call = self._first
        if call is not None and call.kind not in self._kinds:
            raise MeanderError(
                f"operator {self._operator!r}",
                f"a {call.kind} is due, and the operator has no function for it",
                f"give it {'on_timer' if call.kind == 'timer' else 'on_notify'}",
            )
        return call

    def pop(self, call: Call) -> None:
        """Remove the next call, as it is made."""
        if call.kind == "timer":
            self._timers.pop()
        else:
            self._notifications.pop()

    def register(self, key: bytes, now: int, timers: Sequence[int], notification: bool) -> None:
        """Set timers for a key, and with `notification` request a notification for `now`."""
        for time in timers:
            self._timers.set(Bin(self._space.bin_of(key)), time, key)
        if notification:
            self._notifications.request(nested_time(now, self.iterations), key)

    def count_before_calls(self, times: Int64s) -> int:
        """Return how many records, in order of their times, are before all later calls."""
        if self._until is None:
            return len(times)
        return int(np.searchsorted(times, self._until, side="right"))

    def batch(self, calls: Sequence[Call]) -> Batch:
        """Return calls as records without values, at their places in the total order."""
        keys = [call.key for call in calls]
        hashes = self._space.hash_keys(keys)
        return Batch(
            np.array([call.time for call in calls], np.int64),
            np.full(len(calls), self._origin, np.int64),
            hashes.view(np.int64),
            np.array([call.kind == "notification" for call in calls], np.int64),
            np.zeros(len(calls), np.int64),
            [None] * len(calls),
            keys,
            hashes,
        )

    @property
    def _first(self) -> Call | None:
        timer, notification = self._timers.first, self._notifications.first
        found: Call | None = None
        if timer is not None and not self.iterations and self._is_due(timer[0]):
            found = Call(timer[0], "timer", timer[1])
        if notification is not None and iterations_of(notification[0]) == self.iterations:
            time = outer_time(notification[0])
            if self._is_due(time) and (found is None or time < found.time):
                found = Call(time, "notification", notification[1])
        return found

    def _is_due(self, time: int) -> bool:
        return self._until is None or time < self._until
