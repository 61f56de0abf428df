"""Retries: a function that has raised is called again on the same record, after a wait.

Guarantees at most `times` further calls of a record, with `wait` seconds before each. No turn waits
for them: the operator applies no record meanwhile, so records keep their order. Invariant: a failed
call changes no state, and each call gets its own copy of a value that it may change. The number of
calls is not part of a checkpoint, so it begins at 0 after a restart. Cost: one copy per call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_number, checked_whole

if TYPE_CHECKING:
    from meander.dataflow.interfaces import Clock
    from meander.dataflow.records.batch import Batch

Fallback = Literal["dead_letter", "skip", "fail"]
"""What happens to a record that a function cannot process."""


@dataclass(frozen=True, slots=True)
class Retry:
    """An error policy that calls a function again, up to `times` times, with `wait` seconds before
    each call. `then` decides about a record on which all calls have failed.

    Raises SetupError for values that name no such calls.

    >>> from meander import Retry
    >>> Retry(times=5, wait=0.2, then="skip")
    Retry(times=5, wait=0.2, then='skip')
    """

    times: int = 3
    wait: float = 0.2
    then: Fallback = "dead_letter"

    def __post_init__(self) -> None:
        checked_whole(f"{self}", "times", self.times, 1)
        checked_number(f"{self}", "wait", self.wait, 0, 3600)
        if self.then not in ("dead_letter", "skip", "fail"):
            raise SetupError(f"{self}", f"its then is {self.then!r}",
                             "give 'dead_letter', 'skip' or 'fail'")  # fmt: skip


OnError = Fallback | Retry
"""The error policy of an operator."""


def fallback(policy: OnError) -> Fallback:
    """Return what an error policy does with a record that is not called again.

    >>> fallback("skip"), fallback(Retry(then="fail"))
    ('skip', 'fail')
    """
    return policy.then if isinstance(policy, Retry) else policy


class Retries:
    """The retries of one operator on one worker."""

    def __init__(self, retry: Retry, clock: Clock, counters: Counter[str]) -> None:
        self._retry, self._clock, self._counters = retry, clock, counters
        self._place: tuple[int, ...] = ()
        self._failures = 0
        """The failed calls on the record of that place."""
        self._due = 0.0
        self._stopped_at: int | None = None
        """The row at which the current pass has stopped, or None."""
        self.pending = False
        """Whether a record waits for another call."""

    def again(self, batch: Batch, row: int, due: int | None = None) -> bool:
        """Note a failed call on a record. Return whether another call is to follow: then the pass
        stops at its row. An alarm has the same `due` in all its calls, whose times differ."""
        columns = batch.origins, batch.partitions, batch.offsets, batch.indexes
        time = int(batch.times[row]) if due is None else due
        place = (time, *(int(column[row]) for column in columns))
        self._failures = self._failures + 1 if place == self._place else 1
        self._place = place
        if self._failures > self._retry.times:
            return False
        self._counters["retries"] += 1
        self._due = self._clock.monotonic() + self._retry.wait
        self._stopped_at = row
        return True

    def end_pass(self, rows: int) -> int:
        """End a pass over `rows` records. Return how many of them are done."""
        stopped_at, self._stopped_at = self._stopped_at, None
        self.pending = stopped_at is not None
        if stopped_at is None:
            self._place = ()
            return rows
        return stopped_at

    @property
    def waiting(self) -> bool:
        """Return whether the next call is not due yet."""
        return self.pending and self._clock.monotonic() < self._due

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next call, or None where no record waits for one."""
        return max(0.0, self._due - self._clock.monotonic()) if self.pending else None
