"""The interval join: which records of two streams pair, and until when a record waits for others.

A left and a right record of one key pair if and only if the own time of the right one lies within
an interval around that of the left one. An own time closes `late` behind its end, the millisecond
that follows it. A record is late if and only if its logical time is this close or later, as in
windows. A record in time pairs with no record past its close, so the comparison of own times alone
decides, in any order of arrival. Cost: additions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.logic import LATE
from meander.dataflow.windows.window import MAX_SECONDS, millis_of
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_choice

How = Literal["inner", "left", "outer"]
"""Which records give a result alone if nothing pairs with them: none, left ones, or all."""
LEFT, RIGHT = 0, 1
"""The numbers of the two sides, which are those of the inputs."""


class Interval(NamedTuple):
    """An interval of own times around that of a left record, in milliseconds. It holds both ends.

    >>> interval = Interval(low=0, high=600, late=10)
    >>> interval.partners(LEFT, 5_000), interval.partners(RIGHT, 5_600)
    ((5000, 5600), (5000, 5600))
    >>> interval.close(LEFT, 5_000), interval.close(RIGHT, 5_000)
    (5611, 5011)
    """

    low: int
    high: int
    late: int
    """The milliseconds by which the logical time of a record may be behind its own."""

    def is_late(self, own_ms: int, now_ms: int) -> bool:
        """Return whether a record of an own and a logical time is late."""
        return own_ms + 1 + self.late <= now_ms

    def partners(self, side: int, own_ms: int) -> tuple[int, int]:
        """Return the first and the last own time of records of the other side that pair with one
        of a side."""
        if side == LEFT:
            return own_ms + self.low, own_ms + self.high
        return own_ms - self.high, own_ms - self.low

    def close(self, side: int, own_ms: int) -> int:
        """Return the close of a record: the logical time from which on all records that could pair
        with it are late."""
        return own_ms + 1 + self.late + (self.high if side == LEFT else -self.low)

    def alone(self, side: int, own_ms: int) -> int:
        """Return the own time of the result of a record alone: the later one of its own and of the
        last record that could pair with it.

        >>> interval = Interval(low=0, high=600, late=10)
        >>> interval.alone(LEFT, 5_000), interval.alone(RIGHT, 5_000)
        (5600, 5000)
        """
        return max(own_ms, self.partners(side, own_ms)[1])

    def closed(self, side: int, now_ms: int) -> int:
        """Return the last own time that has closed, for records of a side."""
        return now_ms - self.close(side, 0)


@dataclass(frozen=True, slots=True)
class IntervalJoin:
    """A join of two keyed streams by the own times of their records."""

    interval: Interval
    step: Callable[[Any, Any], object]
    """`(left, right) -> result`. None stands for the side that a record alone does not have."""
    how: How
    side: ClassVar[tuple[str, ...]] = (LATE,)
    """The side outputs."""
    uses: ClassVar[tuple[str, ...]] = (EVENT_MS,)
    """The extra columns that it reads."""

    @property
    def definition(self) -> str:
        """Return what decides about the records that it keeps, in words.

        >>> interval_join("shown", (-1, 600), 10, "inner", max).definition
        'inner join within (-1, 600), late=10'
        """
        low, high, late = (f"{ms / 1000:.15g}" for ms in self.interval)
        return f"{self.how} join within ({low}, {high}), late={late}"

    @property
    def keeps_alone(self) -> tuple[bool, bool]:
        """Return for each side whether a record gives a result alone if nothing pairs with it."""
        return self.how != "inner", self.how == "outer"


def interval_join(
    operator: str, within: object, late: object, how: object, step: object
) -> IntervalJoin:
    """Return the join that a user asks for. Raises SetupError for an interval that holds nothing,
    another way to join, or no function.

    >>> interval_join("shown", (0, 600), 10, "inner", lambda impression, click: click).interval
    Interval(low=0, high=600000, late=10000)
    """
    subject = f"operator {operator!r}"
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise SetupError(subject, f"its within is {within!r}",
                         "give two numbers of seconds, such as (0, 600)")  # fmt: skip
    low, high = (millis_of(subject, "within", one, -MAX_SECONDS) for one in within)
    if low > high:
        raise SetupError(subject, f"its within is {within!r}, which holds no time",
                         "give the earlier end first, such as (-60, 60)")  # fmt: skip
    checked_choice(subject, "how", how, get_args(How))
    if not callable(step):
        raise SetupError(subject, f"its step is {step!r}", "give such as lambda left, right: ...")
    interval = Interval(low, high, millis_of(subject, "late", late, 0))
    return IntervalJoin(interval, step, cast(How, how))
