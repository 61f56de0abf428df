"""The context of a process function: what a function learns about its call, and what it asks for.

Guarantees that a call that fails leaves nothing behind: the operator takes results and changes of
timers from the context once the function has returned. Cost: one object per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, cast

from typing_extensions import TypeVar

from meander.dataflow.operators.keyed.callbacks import CallKind, TimerChange
from meander.dataflow.operators.stateless import MAX_OUTPUTS, TooManyOutputsError
from meander.dataflow.records.extra_columns import EVENT_MS, NO_CELLS, Cell
from meander.schemas.option_values import is_number
from meander.state.encoding import codec
from meander.state.times.time import before_millis, checked_millis, from_millis, to_millis

NAME_BYTES: Final = 255
"""The most bytes of the name of a timer."""
MAX_ALARM_SECONDS: Final = 100 * 366 * 86400
"""The most seconds until an alarm."""
K = TypeVar("K", covariant=True, default=Any)


class UndeclaredUseError(ValueError):
    """An error for a property of records that does not travel with them, as no function asks."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"context.{name} does not travel with the records here: define the operator with"
            f" uses=[{name!r}]"
        )


class Context(Generic[K]):
    """A context that gives a process function its key, time, outputs, timers and notifications. The
    function may forget the key. `K` is the type of its keys.

    A timer or an alarm may have a name. A key has at most one timer or alarm of a name: another one
    replaces it, and `cancel` removes it. One that is cancelled or replaced never calls.

    >>> from meander import Flow
    >>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
    >>> from meander.testing import TestFlow
    >>> def step(context: Context[str], failures: int, event: tuple[str, str]) -> int:
    ...     if event[1] == "login":
    ...         context.cancel("forget")
    ...         return 0
    ...     context.timer(context.time_ms + 300_000, name="forget")
    ...     return failures + 1
    >>> def on_timer(context: Context[str], failures: int) -> int:
    ...     context.emit((context.key, context.timer_name, failures))
    ...     return 0
    >>> flow, sink = Flow("logins"), ListSink()
    >>> events = [(1000, ("ann", "failure")), (2000, ("bob", "failure")), (3000, ("bob", "login"))]
    >>> users = flow.source(ListSource([events])).key_by(lambda event: event[0])
    >>> users.process("failures", int, step, on_timer).sink(sink)
    >>> with TestFlow(flow) as run:
    ...     run.run()
    >>> sink.values
    [('ann', 'forget', 1)]
    """

    __slots__ = (
        "_calls", "_emitted", "_extra", "_forgotten", "_key", "_lost", "_name", "_notice", "_side",
        "_time", "_timers",
    )  # fmt: skip

    def __init__(
        self,
        key: bytes,
        time: int,
        calls: Collection[CallKind],
        side: Sequence[str],
        name: str = "",
        extra: Mapping[str, Cell] = NO_CELLS,
    ) -> None:
        """`extra` are the record's values in the extra columns that the functions use."""
        self._key, self._time, self._calls, self._name = key, time, calls, name
        self._extra = extra
        self._notice = self._forgotten = False
        self._side = side
        self._emitted: dict[str | None, list[object]] = {}
        """The results by output, of those that have some."""
        self._timers: list[TimerChange] = []
        self._lost: object = None
        """The value of a dead letter of the call, which has no record."""

    @property
    def key(self) -> K:
        """Return the record's key, in the canonical form of all equal keys (`codec.encode_key`)."""
        return cast(K, codec.decode(self._key))

    @property
    def time_ms(self) -> int:
        """Return the record's logical time, in milliseconds since 1970."""
        return to_millis(self._time)

    @property
    def event_ms(self) -> int:
        """Return the record's own time, in milliseconds since 1970. It is earlier than `time_ms` if
        the record is late, and later if the record was too far in the future. A timer, an alarm
        or a notification has no other time than `time_ms`. The operator names "event_ms" in its
        `uses`.
        """
        return cast(int, self._used(EVENT_MS))

    @property
    def _own_ms(self) -> int:
        """Return the own time of its results."""
        return cast(int, self._extra.get(EVENT_MS, self.time_ms))

    def _set_own_time(self, own_ms: int) -> None:
        """Set the own time of a call that has no record, and of its results."""
        self._extra = {**self._extra, EVENT_MS: own_ms}

    def _used(self, name: str) -> object:
        if name not in self._extra:
            raise UndeclaredUseError(name)
        return self._extra[name]

    @property
    def timer_name(self) -> str | None:
        """Return the name of the timer or alarm that is due, or None for one without a name."""
        return self._name or None

    def emit(self, result: object, to: str | None = None) -> None:
        """Send a result at the record's time, to the first output or to a side output by name."""
        emitted = self._emitted.get(to)
        if emitted is None:
            if to is not None and to not in self._side:
                raise ValueError(f"the operator has no side output {to!r}: name it in `side`")
            self._emitted[to] = [result]
            return
        if len(emitted) == MAX_OUTPUTS:
            raise TooManyOutputsError
        emitted.append(result)

    def forget(self) -> None:
        """Forget the key: it has no state after this call, whatever the function returns. Its next
        record or call meets a state of `init`. Its timers and notifications stay."""
        self._forgotten = True

    def timer(self, at_ms: int, *, name: str | None = None) -> None:
        """Set a timer for this key, in milliseconds since 1970. `at_ms` must be later than the
        record's time, and the call comes once the frontier has passed it. The frontier follows
        records, never the clock, so the timers of a silent flow wait.

        A second timer without a name for the same key and time has no effect. A timer with a name
        replaces the key's timer or alarm of that name. Raises ValueError for any other `at_ms` or
        name, and where the operator has no `on_timer`."""
        time = from_millis(checked_millis(at_ms))
        if time <= self._time:
            raise ValueError(f"a timer for {at_ms} ms is not after the record's {self.time_ms} ms")
        if "timer" not in self._calls:
            raise ValueError("the operator has no on_timer function to call back")
        self._timers.append(TimerChange("timer", time, _checked_name(name)))

    def _timer_before(self, end_ms: int, name: str) -> None:
        """Set a timer with a name for the last time before `end_ms`. So it comes behind all records
        before `end_ms`, of which this one may be the last."""
        time = before_millis(checked_millis(end_ms))
        assert time >= self._time, "a timer is not before its record"
        self._timers.append(TimerChange("timer", time, name))

    def alarm(self, seconds: float, *, name: str | None = None) -> None:
        """Set an alarm for this key by the wall clock. `on_alarm` is called no earlier than so many
        seconds from now, also where no record comes. Its `time_ms` is the logical time that the
        operator has reached. A flow that ends before calls no alarm.

        An alarm with a name replaces the key's timer or alarm of that name. Raises ValueError for a
        negative or too large number of seconds, for an invalid name, and where the operator has no
        `on_alarm`."""
        if not is_number(seconds) or not 0 <= seconds <= MAX_ALARM_SECONDS:
            raise ValueError(
                f"an alarm is due in 0 to {MAX_ALARM_SECONDS:,} seconds, not in {seconds!r}"
            )
        if "alarm" not in self._calls:
            raise ValueError("the operator has no on_alarm function to call back")
        self._timers.append(TimerChange("alarm", math.ceil(seconds * 1000), _checked_name(name)))

    def cancel(self, name: str) -> None:
        """Cancel this key's timer or alarm of a name. Without one the call has no effect. Raises
        ValueError for an invalid name, and where the operator has neither `on_timer` nor
        `on_alarm`."""
        if "timer" not in self._calls and "alarm" not in self._calls:
            raise ValueError("the operator has no on_timer or on_alarm function, so no timers")
        if name is None:
            raise ValueError("only a timer with a name can be cancelled: give its name")
        self._timers.append(TimerChange("cancel", 0, _checked_name(name)))

    def notify(self) -> None:
        """Request a call of this key after all records of this time, and before any later record.
        In a loop the call comes after this iteration. A second request for the same key and time
        has no effect."""
        if "notification" not in self._calls:
            raise ValueError("the operator has no on_notify function to call, or it is this one")
        self._notice = True


OnValue = Callable[[Context, object, object], object]
"""`(context, state, value) -> state`."""
OnTimer = Callable[[Context, object], object]
"""`(context, state) -> state`."""


def _checked_name(name: object) -> str:
    """Return the name of a timer, or the empty name for None."""
    if name is None:
        return ""
    # A name of another type of text would come back as a plain one.
    if type(name) is not str or not 0 < len(name.encode(errors="replace")) <= NAME_BYTES:
        raise ValueError(f"the name of a timer is a text of 1 to {NAME_BYTES} bytes, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of a timer is {name!r}, which is no valid text") from None
    return name
