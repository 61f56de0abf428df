"""The calls of keys that a stateful operator makes in one pass over its records.

Guarantees I3: at one time records come first, then timers, then notifications, each in the order of
keys. A call that another call requests has its place in this order. Alarms have passes of their
own, without records. Invariant: a pass makes at most `max_calls` calls, so it calls only keys of
`with_callable_keys`. Cost: O(log n) per call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import Iterations, iterations_of, nested_time, outer_time
from meander.schemas.errors import MeanderError
from meander.state.encoding.timers import Timer
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.times.antichain import Antichain

CallKind = Literal["timer", "notification", "alarm"]
"""The reason of a call: a timer or an alarm of a key is due, or all records of a time have
arrived."""
FUNCTIONS = {"timer": "on_timer", "notification": "on_notify", "alarm": "on_alarm"}
"""The function for each kind of calls."""
NAMED = 2
"""The least offset of a call with a name. Earlier ones are of timers and of notifications."""
ALARM = 1 << 60
"""The least offset of an alarm."""
RANKED_BYTES = 7
"""The bytes of a name that decide the order of results of one key and time."""


class Call(NamedTuple):
    """A call of one key."""

    time: int
    """The outer time."""
    kind: CallKind
    key: bytes
    name: str = ""
    """The name of the timer or alarm."""
    due: int | None = None
    """The time of the clock at which an alarm was due, in milliseconds."""

    @property
    def offset(self) -> int:
        """Return its place among the calls of its key and time.

        >>> [Call(1, "timer", b"k", name).offset < ALARM for name in ("", "a", "b" * 99)]
        [True, True, True]
        """
        if self.kind == "notification":
            return 1
        if self.kind == "timer" and not self.name:
            return 0
        rank = int.from_bytes(self.name.encode()[:RANKED_BYTES].ljust(RANKED_BYTES, b"\0"), "big")
        return NAMED + rank + (ALARM if self.kind == "alarm" else 0)


class TimerChange(NamedTuple):
    """A change that a call makes to the timers of its key."""

    kind: Literal["timer", "alarm", "cancel"]
    time: int
    """The outer time of a timer, or the milliseconds until an alarm."""
    name: str = ""


def without_function(operator: str, kind: CallKind) -> MeanderError:
    """Return the error for a call that is due at an operator without a function for it."""
    return MeanderError(
        f"operator {operator!r}",
        f"{'an' if kind == 'alarm' else 'a'} {kind} is due, and the operator has no function for"
        " it",
        f"give it {FUNCTIONS[kind]}",
    )


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
        now_ms: Callable[[], int],
    ) -> None:
        """The operator has functions for `kinds` of calls. `until` has one outer time or none.
        `now_ms` returns the wall clock."""
        self._operator, self._origin, self._space = operator, origin, space
        self._now_ms = now_ms
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
        split = self._timers.split
        called = [*(split(tag)[0] for _, tag in timers), *(key for _, key in notifications)]
        return [*keys, *called], np.concatenate([bins, self.bins_of(called)])

    def bins_of(self, keys: Sequence[bytes]) -> Int64s:
        """Return the bin of each encoded key, shape (n,)."""
        return self._space.bins_of(self._space.hash_keys(keys))

    def next(self) -> Call | None:
        """Return the next due call, or None. Raises MeanderError where the operator has no function
        for it."""
        call = self._first
        if call is not None and call.kind not in self._kinds:
            raise without_function(self._operator, call.kind)
        return call

    def pop(self, call: Call) -> None:
        """Remove the next call, as it is made."""
        if call.kind == "timer":
            self._timers.pop()
        else:
            self._notifications.pop()

    def register(
        self, key: bytes, now: int, changes: Sequence[TimerChange], notification: bool
    ) -> None:
        """Change the timers of a key, and with `notification` request a notification for `now`."""
        bin = Bin(self._space.bin_of(key)) if changes else Bin(0)
        for kind, time, name in changes:
            if kind == "timer":
                self._timers.set(bin, time, key, name)
            elif kind == "alarm":
                self._timers.set_alarm(bin, self._now_ms() + time, key, name)
            else:
                self._timers.cancel(bin, key, name)
        if notification:
            self._notifications.request(nested_time(now, self.iterations), key)

    def due_timers(self, before: int | None) -> list[Timer]:
        """Return the first timers before a time that are due, in order and at most `max_calls`. A
        logic that handles many timers at once removes them by `drop_timers`."""
        if self.iterations or self._timers.first is None:
            return []
        bounds = [one for one in (before, self._until) if one is not None]
        return self._timers.peek(min(bounds, default=None), self.max_calls)

    def drop_timers(self, count: int) -> None:
        """Remove the first timers."""
        for _ in range(count):
            self._timers.pop()

    def set_timer(self, bin: Bin, time: int, tag: bytes) -> None:
        """Set a timer without a name, whose tag may be any encoded value."""
        self._timers.set(bin, time, tag)

    def count_before_calls(self, times: Int64s) -> int:
        """Return how many records, in order of their times, are before all later calls."""
        if self._until is None:
            return len(times)
        return int(np.searchsorted(times, self._until, side="right"))

    def batch(self, calls: Sequence[Call], value: object = None) -> Batch:
        """Return calls as records with a value or without, at their places in the total order."""
        times = np.array([call.time for call in calls], np.int64)
        offsets = np.array([call.offset for call in calls], np.int64)
        return self.at(times, offsets, [call.key for call in calls]).with_values(
            [value] * len(calls)
        )

    def at(self, times: Int64s, offsets: Int64s, keys: list[bytes]) -> Batch:
        """Return records without values at the places of calls of some keys, shapes (n,)."""
        hashes = self._space.hash_keys(keys)
        return Batch(
            times,
            np.full(len(keys), self._origin, np.int64),
            hashes.view(np.int64),
            offsets,
            np.zeros(len(keys), np.int64),
            [None] * len(keys),
            keys,
            hashes,
        )

    @property
    def _first(self) -> Call | None:
        timer, notification = self._timers.first, self._notifications.first
        found: Call | None = None
        if timer is not None and not self.iterations and self._is_due(timer[0]):
            found = Call(timer[0], "timer", *self._timers.split(timer[1]))
        if notification is not None and iterations_of(notification[0]) == self.iterations:
            time = outer_time(notification[0])
            if self._is_due(time) and (found is None or time < found.time):
                found = Call(time, "notification", notification[1])
        return found

    def _is_due(self, time: int) -> bool:
        return self._until is None or time < self._until


class AlarmCalls(Calls):
    """A queue of the alarms of one pass. All are called at one outer time."""

    def __init__(
        self,
        operator: str,
        origin: int,
        space: BinSpace,
        timers: Timers,
        notifications: Notifications,
        kinds: Collection[CallKind],
        time: int,
        due: Sequence[Timer],
        now_ms: Callable[[], int],
    ) -> None:
        """`due` are the alarms that are due, at bins that are here."""
        until = Antichain.of(time)
        super().__init__(
            operator, origin, space, timers, notifications, kinds, (), until, len(due), now_ms
        )
        self._time, self._due, self._next = time, due, 0

    def with_callable_keys(self, keys: list[bytes], bins: Int64s) -> tuple[list[bytes], Int64s]:
        """Return the keys of a pass and their bins."""
        alarms = self._timers.alarms
        called = [alarms.split(tag)[0] for _, tag in self._due]
        return [*keys, *called], np.concatenate([bins, self.bins_of(called)])

    def pop(self, call: Call) -> None:
        """Remove the next alarm, as it is called."""
        self._timers.alarms.remove(self._due[self._next])
        self._next += 1

    @property
    def _first(self) -> Call | None:
        alarms = self._timers.alarms
        # Another alarm of the key may have cancelled it.
        while self._next < len(self._due) and self._due[self._next] not in alarms:
            self._next += 1
        if self._next == len(self._due):
            return None
        due, tag = self._due[self._next]
        return Call(self._time, "alarm", *alarms.split(tag), due)
