"""The demo while its flow runs: the load, three migrations of half of all bins, and progress.

One command moves bins one by one and one moves its bins at a single time, both as soon as possible
while records come. The third is given at the start for a time that the data reaches later. All go
through the control topic. The commands come from a thread beside the driver. It ends the flow when
every result has arrived and every command is completed, or when that cannot be.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import TypeVar

import numpy as np

from meander.app.common.signals import Interrupted, Signals
from meander.app.demo.check import Move
from meander.app.demo.data import Flights, cause
from meander.app.measurement.latencies import Band, Float64s
from meander.app.measurement.open_loop import Int64s, Load, Measured, Results, open_loop
from meander.connectors.topics import control
from meander.schemas.control import Migrate
from meander.schemas.errors import MeanderError
from meander.schemas.status import Accepted, BinMoved, CommandRejected, Completed, Event, Started
from meander.state.times.time import to_millis

E = TypeVar("E", bound=Event)

PATIENCE = 30.0
"""Seconds that commands may take while no record is under way."""
LOOK = 0.02
"""Seconds between two looks at events and results."""


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A command, and the share of the records that is answered before it."""

    after: float
    command: Migrate


def plan(owners: Sequence[int], times: Int64s) -> list[DemoStep]:
    """Return the commands for workers 0 and 1, which own bins as `owners` says.

    `times` are those of the data, milliseconds since 1970, ascending, shape (n,).

    >>> steps = plan([0] * 16 + [1] * 16, np.arange(100))
    >>> [(len(step.command.bins), step.command.worker, step.command.time) for step in steps]
    [(8, 0, 66), (1, 1, None), (7, 1, None)]
    """
    first, second = ([b for b, owner in enumerate(owners) if owner == worker] for worker in (0, 1))
    reached_later = int(times[2 * len(times) // 3])
    # Bin after bin takes a while, and what moves last must still answer something afterwards.
    few, half = len(first) // 16, len(first) // 2
    steps = [
        (0.0, "at-a-date", second[: len(second) // 2], 0, reached_later, "all-at-once"),
        (0.15, "one-by-one", first[:few], 1, None, "fluid"),
        (0.5, "all-at-once", first[few:half], 1, None, "all-at-once"),
    ]
    return [
        DemoStep(after, Migrate.model_validate({
            "type": "migrate", "id": id, "bins": bins, "worker": worker, "time": at,
            "strategy": strategy,
        })) for after, id, bins, worker, at, strategy in steps
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoMigration:
    """A migration of the demo, as its report shows it."""

    id: str
    strategy: str
    to: int
    asked: int | None
    """The time that the command named, milliseconds since 1970; None for as soon as possible."""
    time: int
    """`at` in milliseconds since 1970."""
    at: int
    """The logical time from which on it holds (fluid: of its first bin)."""
    bins: int
    keys: int
    bytes: int
    """Of state, through the state topic."""
    measured_ms: float
    """From the command, or from when data of its time was due, to the event of its end."""
    ms: float
    """From its acceptance to its end, as the status topic says."""


@dataclass(slots=True)
class DemoRun:
    """A run of the demo starts the load, gives commands and waits for their ends."""

    kafka: dict[str, str] = field(repr=False)
    control: str
    """The control topic."""
    flights: Flights
    load: Load
    results: tuple[str, str]
    """The results topics."""
    steps: deque[DemoStep]
    """The commands to come."""
    signals: Signals
    """The flow ends when a signal counts as received."""
    show: Callable[[int, int, str], None]
    """Takes how many flights are answered, of how many, and what moves."""
    over: Flag = field(default_factory=Flag)
    """Set when the flow has ended."""
    _given: dict[str, tuple[Migrate, float]] = field(default_factory=dict)
    _events: list[tuple[float, Event]] = field(default_factory=list)
    """With when each came, seconds since 1970."""

    def hear(self, event: Event) -> None:
        """Take in an event of the status topic."""
        self._events.append((time.time(), event))

    def conduct(self) -> Measured:
        """Conduct from the first record to the last result, then end the flow.

        Raises MeanderError where a command is rejected, or does not end in time.
        """
        try:
            self._await("start", lambda: () if self._of(Started) else ("the flow",), np.inf)
            # What is given at the very beginning must not come too late for its time.
            self._give(0)
            self._await(
                "be accepted", lambda: self.moving() and self._given.keys() - self._accepted()
            )
            with open_loop(self.kafka, self.load, Results(self.results, cause)) as loop:
                deadline = np.inf
                while not loop.ended:
                    self._give(loop.answered)
                    moving = sorted(self.moving())
                    words = f"moves {', '.join(moving)}" if moving else ""
                    self.show(loop.answered, len(self.flights), words)
                    if not (self.steps or moving):
                        loop.release()
                    elif loop.answered >= self.load.free:
                        deadline = min(deadline, time.monotonic() + PATIENCE)
                    self._turn("end", moving, deadline)
                self.show(loop.answered, len(self.flights), "")
            self._await("end", self.moving)
            return loop.found()
        finally:
            self.signals.received = self.signals.received or signal.SIGINT

    def moving(self) -> Collection[str]:
        """Return the commands that have not ended. Raises MeanderError if one was rejected."""
        for event in self._of(CommandRejected):
            raise MeanderError(f"command {event.id!r}", f"it was rejected: {event.reason}")
        return self._given.keys() - {event.id for event in self._of(Completed)}

    def moves(self) -> list[Move]:
        """Return every move of a bin."""
        return [Move(e.bin, e.source, e.target, e.at) for e in self._of(BinMoved)]

    def migrations(self, due: Float64s) -> list[tuple[DemoMigration, Band]]:
        """Return what became of each command, and when, in the order of their times.

        `due` says when each record was due, seconds since 1970.
        """
        accepted, found = self._accepted(), []
        for ended, event in self._events:
            if not isinstance(event, Completed):
                continue
            command, start = self._given[event.id]
            if command.time is not None:
                first = int(np.searchsorted(self.flights.times, command.time))
                start = float(due[min(first, len(due) - 1)])
            at = accepted[event.id]
            # fmt: off
            found.append((DemoMigration(
                id=event.id, strategy=command.strategy, to=command.worker, asked=command.time,
                time=to_millis(at), at=at, bins=event.bins,
                keys=sum(moved.keys for moved in self._of(BinMoved) if moved.id == event.id),
                bytes=event.bytes, measured_ms=1000 * (ended - start), ms=event.ms,
            ), Band(f"{event.id}: {event.bins} bins, {command.strategy}", start, ended)))
            # fmt: on
        return sorted(found, key=lambda one: one[0].at)

    def _of(self, kind: type[E]) -> list[E]:
        return [event for _, event in self._events if isinstance(event, kind)]

    def _accepted(self) -> dict[str, int]:
        """The time of each accepted command; of a fluid one, that of its first bin."""
        times: dict[str, int] = {}
        for _, event in self._events:
            if isinstance(event, Accepted | BinMoved) and event.at is not None:
                times.setdefault(event.id, event.at)
        return times

    def _give(self, answered: int) -> None:
        while self.steps and answered >= self.steps[0].after * len(self.flights):
            command = self.steps.popleft().command
            self._given[command.id] = command, time.time()
            control.submit(self.kafka, self.control, command.model_dump_json().encode())

    def _await(
        self, what: str, left: Callable[[], Collection[str]], seconds: float = PATIENCE
    ) -> None:
        deadline = time.monotonic() + seconds
        while waiting := left():
            self._turn(what, waiting, deadline)

    def _turn(self, what: str, waiting: Collection[str], deadline: float) -> None:
        """Sleep for a moment. Raises what ends the demo before its end."""
        if self.signals.received:
            raise Interrupted(self.signals.received)
        if self.over.is_set():
            raise MeanderError("the flow", "it ended before the demo")
        if time.monotonic() > deadline:
            named = ", ".join(sorted(waiting))
            raise MeanderError(f"commands {named}", f"they did not {what} within {PATIENCE:g} s")
        time.sleep(LOOK)
