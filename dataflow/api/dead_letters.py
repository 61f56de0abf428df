"""The bound of a flow's dead letters: beyond it the flow fails.

Guarantees that the bound counts the dead letters of all workers, unreadable records included, by
their reports. A report may be a second old, so some more may be written. Cost: one sum per report.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger
from meander.schemas.option_values import checked_number, checked_whole

log = LineLogger(__name__)

Consequence = Literal["fail", "continue"]
"""What follows from too many dead letters: the flow fails, or the log has one warning."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The bound of a flow's dead letters: more than `limit` within `per` seconds fail the flow, or
    with `then="continue"` give one warning in the log. Raises SetupError for values that bound
    nothing.

    >>> from meander import DeadLetters, Flow
    >>> flow = Flow("orders", dead_letters=DeadLetters(limit=100, per=60))
    """

    limit: int
    per: float = 60.0
    then: Consequence = "fail"

    def __post_init__(self) -> None:
        checked_whole(f"{self}", "limit", self.limit, 0)
        checked_number(f"{self}", "per", self.per, above=0)
        if self.then not in ("fail", "continue"):
            raise SetupError(f"{self}", f"its then is {self.then!r}",
                             "give 'fail' or 'continue'")  # fmt: skip


class DeadLetterCount:
    """The dead letters of a flow over its executions, and within the last seconds.

    >>> count = DeadLetterCount("orders", DeadLetters(limit=2, per=10))
    >>> count.note(2, 0.0); count.start_execution(); count.note(2, 11.0)
    >>> count.total
    4
    >>> count.note(3, 12.0)
    Traceback (most recent call last):
    meander.schemas.errors.MeanderError: flow 'orders': 3 dead letters within 10 s, and its limit...
    """

    def __init__(self, flow: str, bound: DeadLetters | None) -> None:
        self._flow, self._bound = flow, bound
        self._earlier = self.total = 0
        self._warned = False
        self._totals = deque[tuple[float, int]]([(float("-inf"), 0)])
        """The totals at some times. The first one is that before the last `per` seconds."""

    def start_execution(self) -> None:
        """Begin to count an execution, whose counters start at 0."""
        self._earlier = self.total

    def note(self, count: int, now: float) -> None:
        """Note how many dead letters an execution has had at a time in seconds. Raises MeanderError
        where the last seconds had more than the limit, or logs it."""
        self.total = self._earlier + count
        if self._bound is None:
            return
        while len(self._totals) > 1 and self._totals[1][0] <= now - self._bound.per:
            self._totals.popleft()
        recent = self.total - self._totals[0][1]
        if self.total > self._totals[-1][1]:
            self._totals.append((now, self.total))
        if recent > self._bound.limit:
            self._apply(recent, self._bound)

    def _apply(self, recent: int, bound: DeadLetters) -> None:
        cause = f"{recent:,} dead letters within {bound.per:g} s, and its limit is {bound.limit:,}"
        if bound.then == "fail":
            raise MeanderError(
                f"flow {self._flow!r}", cause,
                f"see what is wrong with meander dead-letters {self._flow}, or raise the limit",
            )  # fmt: skip
        if not self._warned:
            self._warned = True
            log.warning("too_many_dead_letters", flow=self._flow, reason=cause)
