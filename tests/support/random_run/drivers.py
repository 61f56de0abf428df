"""The drivers of a random run: one after the other, and two at once where one was stopped.

Guarantees that a driver that has ended for a known reason is followed by another, once its lease is
over, and that any other end is an `AssertionError`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from tests.support.process.flow_process import FlowProcess, alive, meander

HEARTBEAT_TIMEOUT = 5
"""Seconds."""
LOSSES = 2
"""Strikes on workers between two checkpoints: four executions in a row without one end a flow."""


@dataclass
class Driver:
    """A command that runs the flow, or has run it."""

    number: int
    flow: FlowProcess
    was_away: bool
    """Whether the broker was, at some time since it was run."""
    starts_over: bool
    """Whether the flow starts from scratch where there is no checkpoint."""
    struck: list[int] = field(default_factory=list)
    """How many events there were at each strike on a worker."""
    killed: set[int] = field(default_factory=set)
    """Processes of workers that are as good as dead."""
    _excuses: list[tuple[str, float]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.flow.process.poll() is not None

    @property
    def last_words(self) -> str:
        return (self.flow.said.splitlines() or [""])[-1]

    @property
    def workers(self) -> list[tuple[int, int]]:
        """The numbers and processes of those that live."""
        known = self.flow.workers.items()
        return [(one, pid) for one, pid in known if alive(pid) and pid not in self.killed]

    @property
    def losses(self) -> int:
        """Strikes on workers since the last checkpoint."""
        events = list(self.flow.events)
        taken = [n for n, event in enumerate(events) if event["type"] == "checkpointed"]
        return sum(at > max(taken, default=-1) for at in self.struck)

    def strike(self) -> None:
        """A worker is about to be lost."""
        self.struck.append(len(self.flow.events))

    def excuse(self, why: str, seconds: float = inf) -> None:
        """It may end, from now on or for some seconds."""
        self._excuses.append((why, time.monotonic() + seconds))

    def why(self, checkpointed: bool) -> str | None:
        """A known reason for its end; `checkpointed` says whether there was a checkpoint."""
        said = self.last_words
        if "a driver runs it" in said:
            return "the flow is another's"
        for why, until in self._excuses:
            if time.monotonic() < until:
                return why
        if self.was_away and not self.flow.of("started"):
            return "the broker was away at its start"
        if self.struck and not checkpointed and not self.starts_over:
            return "a worker was lost before the first checkpoint"
        if self.losses >= LOSSES and "before it failed without a new checkpoint" in said:
            return "too many workers were lost"
        return None


class Drivers:
    """All of them, and the one that has the flow, or should."""

    def __init__(self, folder: Path, bootstrap: str, words: list[str],
                 note: Callable[[str], None], *, starts_over: bool) -> None:  # fmt: skip
        """`words` are the command's but for the number of workers."""
        self._starts_over = starts_over
        self._folder, self._bootstrap, self._words, self._note = folder, bootstrap, words, note
        self._opened = contextlib.ExitStack()
        self._next_at: float | None = None
        self.stops = 0
        """Commands to stop that have ended no driver yet; the next one obeys what is left."""
        self.all: list[Driver] = []
        self.now: Driver

    def run(self, workers: int, *words: str, was_away: bool) -> None:
        """The next one."""
        command = [*self._words, "--workers", str(workers), *words]
        flow = self._opened.enter_context(meander(self._folder, self._bootstrap, *command))
        self.now = Driver(len(self.all), flow, was_away, self._starts_over)
        self.all.append(self.now)
        self._next_at = None
        self._note(f"driver {self.now.number}: --workers {workers} {' '.join(words)}")

    def run_next(self, seconds: float) -> None:
        """Run the next one then, whatever becomes of this."""
        self._next_at = time.monotonic() + seconds

    def due(self) -> bool:
        """Whether the next one is to be run; looks at the one of now."""
        if self.now.ended and self._next_at is None:
            self._bury()
        return self._next_at is not None and time.monotonic() >= self._next_at

    @property
    def checkpoints(self) -> list[dict[str, object]]:
        """The events of all that were taken."""
        return [taken for driver in self.all for taken in driver.flow.of("checkpointed")]

    def keep(self) -> None:
        """Write down what they have told."""
        for driver in self.all:
            events = "".join(f"{json.dumps(event)}\n" for event in list(driver.flow.events))
            (self._folder / f"driver-{driver.number}.events").write_text(events)
            if driver.flow.errors.exists():
                driver.flow.errors.rename(self._folder / f"driver-{driver.number}.err")

    def close(self) -> None:
        """Kill whatever is left of them."""
        self._opened.close()

    def _bury(self) -> None:
        ended = self.now
        code = ended.flow.process.returncode
        if code == 0 and self.stops:
            self.stops -= 1
            ended.excuse("a command has stopped it")
        why = ended.why(bool(self.checkpoints))
        assert why is not None, f"the flow has ended by itself ({code}): {ended.last_words}"
        self._note(f"driver {ended.number} has ended ({code}): {why}; {ended.last_words}")
        refused = "a driver runs it" in ended.last_words
        others = [driver for driver in self.all if not driver.ended]
        if refused and others:
            self.now = others[-1]
            self._note(f"driver {self.now.number} still has the flow")
        else:
            self.run_next(HEARTBEAT_TIMEOUT + 0.5 if code < 0 else 1 if refused else 0)
