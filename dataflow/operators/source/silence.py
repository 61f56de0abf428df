"""Silence: how far logical time may follow the wall clock while no source has records.

Guarantees that time follows the clock only where all sources have been silent, on all workers. Each
source proposes the clock's time minus its seconds of silence, as the time of a capability on its
silence port. The least proposal is the time that all agree to. A source that reads makes no further
proposals, so its last one holds all others back. Cost: one progress update per `STEP` of silence.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.ports import OutputPort
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.loop_times import outer_time
from meander.state.times.time import MIN_TIME, from_millis, to_millis

STEP = 0.25
"""The seconds from one proposal to the next; less where a silence is shorter than a second."""
DEFAULT_SECONDS = 5.0
"""The silence before the proposals of a source that sets no seconds itself."""


class Silence:
    """The silence of one source on one worker. Logical times are of the outer scope."""

    def __init__(
        self,
        port: OutputPort,
        locations: Sequence[Location],
        seconds: float | None,
        progress: Progress,
        clock: Clock,
    ) -> None:
        """`locations` are the silence ports of all sources. A source with `seconds` None agrees
        after the default, and does not follow itself."""
        self._port, self._locations = port, locations
        self.follows, self._seconds = seconds is not None, seconds or DEFAULT_SECONDS
        self._step = min(STEP, self._seconds / 4)
        self._progress, self._clock = progress, clock
        self._capability: Capability | None = None

    def take_part(self) -> None:
        """Hold back all other sources, from now until this one proposes a time."""
        if self._capability is None:
            self._capability = self._port.open(MIN_TIME)

    def propose(self, silent_since: float | None) -> None:
        """Propose a time, given the second of the last record; None while the source reads."""
        if silent_since is None or self._due_in(silent_since) > 0:
            return
        assert self._capability is not None, "a source with partitions takes part"
        millis = self._clock.now_ms() - round(self._seconds * 1000)
        self._capability.downgrade(max(outer_time(self._capability.time), from_millis(millis)))

    def withdraw(self) -> None:
        """Agree to all times, as no partition is left here."""
        if self._capability is not None:
            self._capability.drop()
            self._capability = None

    @property
    def agreed(self) -> int:
        """Return the time to which all sources agree to follow the clock."""
        least = self._progress.least(self._locations)
        return MIN_TIME if least is None else outer_time(least)

    def wait_seconds(self, silent_since: float | None) -> float | None:
        """Return the seconds until the next proposal; None while the source reads."""
        return None if silent_since is None else max(0.0, self._due_in(silent_since))

    def _due_in(self, silent_since: float) -> float:
        silent = self._seconds - (self._clock.monotonic() - silent_since)
        if self._capability is None or self._capability.time == MIN_TIME:
            return silent
        proposed_at = to_millis(outer_time(self._capability.time)) + round(self._seconds * 1000)
        return max(silent, self._step - (self._clock.now_ms() - proposed_at) / 1000)
