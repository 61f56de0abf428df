"""The demo while its flow runs: the load is started, commands are given, progress is shown.

Runs beside the coordinator, in a thread of its own, and ends the flow when every result has arrived
and every command is completed, or when that cannot be.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meander.app.common.signals import Signals
from meander.app.demo import feed
from meander.app.demo.commands import DemoCommands, DemoStep
from meander.app.demo.feed import Clocked, FeedProcess
from meander.app.demo.stages import Gauge
from meander.schemas.errors import MeanderError

PATIENCE = 30.0
"""Seconds that commands may take when nothing else is under way."""


@dataclass(slots=True)
class DemoRun:
    """What conducts, and what came of it."""

    feed: FeedProcess
    commands: DemoCommands
    steps: deque[DemoStep]
    """Those that are still to be taken."""
    total: int
    free: int
    """What is sent beyond so many records is sent only once every command is completed."""
    signals: Signals
    """The flow ends when a signal counts as received."""
    gauge: Gauge
    answered: int = 0
    clocked: Clocked | None = None
    failure: Exception | None = None
    over: bool = False
    """The flow has ended; there is nothing left to conduct."""

    def run(self) -> None:
        """Conduct from the first record to the last; then the flow is to end."""
        try:
            self._conduct()
        except Exception as error:  # noqa: BLE001 - it is raised where the flow was started
            self.failure = error
        finally:
            self.signals.received = self.signals.received or signal.SIGTERM

    def _conduct(self) -> None:
        while not self.commands.started:
            if self.over:
                return
            time.sleep(0.02)
        # What is given at the very beginning must not come too late for its time.
        self._tell(0)
        self._await("accepted", lambda: self.commands.unheard)
        self.feed.start()
        if self.free < self.total:
            self._follow(self.free)
            self._await("completed", lambda: self.commands.open)
            self.feed.release()
        self._follow(None)
        self._await("completed", lambda: self.commands.open)

    def _follow(self, upto: int | None) -> None:
        """Give the commands in time, until so many records are answered, or all are clocked."""
        while self.clocked is None and not self.over and (upto is None or self.answered < upto):
            for report in self.feed.reports(within=0.2):
                match report:
                    case feed.FeedProgress(answered=answered):
                        self._tell(answered)
                    case Clocked():
                        self.clocked = report

    def _tell(self, answered: int) -> None:
        self.answered = answered
        while self.steps and answered >= self.steps[0].after * self.total:
            self.commands.send(self.steps.popleft().command)
        moving = ", ".join(sorted(self.commands.open))
        self.gauge.show(answered, self.total, "flights answered", moving and f"moves {moving}")

    def _await(self, what: str, left: Callable[[], Collection[str]]) -> None:
        """Wait until no command is left."""
        deadline = time.monotonic() + PATIENCE
        while (waiting := left()) and not self.over:
            if time.monotonic() > deadline:
                named = ", ".join(sorted(waiting))
                raise MeanderError(f"commands {named}", f"not {what} within {PATIENCE:g} s")
            time.sleep(0.02)


@contextmanager
def conducting(conductor: DemoRun) -> Iterator[None]:
    """Conduct beside the block, which runs the flow; raises what went wrong."""
    thread = threading.Thread(target=conductor.run, name="demo conductor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        conductor.over = True
        thread.join()
    if conductor.failure is not None:
        raise conductor.failure
