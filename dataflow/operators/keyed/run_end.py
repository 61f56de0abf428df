"""The end of a bounded run, which fires the timers up to its last record unless it is to fire all.

Guarantees that no timer fires behind the furthest time that a source has read. An operator whose
own sources have ended has the control frontier alone, which leads the other sources. Timers that
remain once all sources have ended retire: they stay in the state, hold no time, and move with their
bins whenever they are due. Cost: a look at the times of the sources per turn of a bounded run.
"""

from __future__ import annotations

from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.timers import Timers
from meander.state.keys.ids import Bin
from meander.state.times.time import MIN_TIME


class RunEnd:
    """The end of a run for one operator on one worker."""

    def __init__(self, context: OperatorContext, timers: Timers) -> None:
        self._fires_timers, self._furthest = context.fires_timers, context.furthest
        self._timers, self._until = timers, MIN_TIME

    def step(self) -> bool:
        """Retire the timers once all sources have ended. Return whether that has just come.

        Sources give up their last times once all sinks have passed the last record, so all timers
        up to that record have fired.
        """
        if not self._limits:
            return False
        furthest = self._furthest()
        if furthest is None:
            self._timers.retired = True
            return True
        # The source with the furthest time may end before the others.
        self._until = max(self._until, furthest)
        return False

    def note_arrival(self, bin: Bin, time: int) -> None:
        """Retire the timers where one of a bin that has moved at a time is due before. The worker
        that sent it has learned of the end first."""
        due = self._timers.least_of(bin)
        if self._limits and due is not None and due < time:
            self._timers.retired = True

    @property
    def limits(self) -> tuple[int, ...]:
        """Return the time before which calls may be made; none where the frontier alone limits
        them."""
        return (self._until,) if self._limits else ()

    @property
    def _limits(self) -> bool:
        return not (self._timers.retired or self._fires_timers())
