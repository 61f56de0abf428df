"""The demo while its flow runs: the load is started, commands are given, progress is shown.

Runs beside the coordinator, in a thread of its own, and ends the flow when every result has arrived
and every command is completed, or when that cannot be.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from app import demo_feed
from app.demo_commands import Commands, Step
from app.demo_feed import Clocked, Feed
from app.signals import Signals
from schemas.errors import MeanderError

PATIENCE = 30.0
"""Seconds that commands may take to be completed once all results have arrived."""


@dataclass(slots=True)
class Conductor:
    """What conducts, and what came of it."""

    feed: Feed
    commands: Commands
    steps: Sequence[Step]
    total: int
    signals: Signals
    """The flow ends when a signal counts as received."""
    console: Console
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
        with _bar(self.console) as bar:
            self._load(bar)
        deadline = time.monotonic() + PATIENCE
        while (waiting := self.commands.open) and not self.over:
            if time.monotonic() > deadline:
                named = ", ".join(sorted(waiting))
                raise MeanderError(f"commands {named}", f"not completed within {PATIENCE:g} s")
            time.sleep(0.02)

    def _load(self, bar: Progress) -> None:
        steps = deque(self.steps)
        task = bar.add_task("flights sent and answered", total=self.total, moving="")
        self.feed.start()
        while self.clocked is None and not self.over:
            for report in self.feed.reports(within=0.2):
                match report:
                    case demo_feed.Progress(answered=answered):
                        while steps and answered >= steps[0].after * self.total:
                            self.commands.send(steps.popleft().command)
                        moving = ", ".join(sorted(self.commands.open))
                        bar.update(task, completed=answered, moving=moving and f"  moves {moving}")
                    case Clocked():
                        self.clocked = report


@contextmanager
def conducting(conductor: Conductor) -> Iterator[None]:
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


class _Rate(ProgressColumn):
    """Records per second."""

    def render(self, task: Task) -> Text:
        """As far as it is known."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[moving]}"),
        console=console,
    )
