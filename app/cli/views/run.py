"""`meander run`: print the events of a running flow, and one line with its progress.

Rate and time left are means over the last heartbeats, so the start does not distort them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Self

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from meander.app.cli.views.checkpoints import given_up, taken
from meander.app.cli.views.migrate import begins
from meander.app.cli.views.rescale import sentence
from meander.app.cli.views.summary import RunSummary
from meander.app.common.output import CommandOutput, at_millis, size
from meander.dataflow.metrics.counters import counted
from meander.schemas.status import (
    Accepted,
    BinMoved,
    Checkpointed,
    CheckpointFailed,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Joined,
    JoinFailed,
    Left,
    PartitionAdded,
    Recovering,
    Rescaled,
    Started,
)

WINDOW = 10
"""Heartbeats for the mean rate."""


class Watch:
    """A printer of events; a context manager for the progress line."""

    def __init__(self, output: CommandOutput, bounded: bool) -> None:
        self._output, self._bounded = output, bounded
        self._line = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=output.console,
            transient=True,
            disable=output.as_json,
        )
        self._starting = "starting Spark"
        self._task = self._line.add_task("checking the flow")
        self._passed: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._open: dict[str, tuple[int, int]] = {}
        self._summary = RunSummary()

    def __enter__(self) -> Self:
        self._line.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._line.stop()

    def wait(self, seconds: float) -> None:
        """Show for how long the driver still waits for the lease of another one."""
        left = f"waiting for the lease of another driver, at most {seconds:.0f} s more"
        self._line.update(self._task, description=left)

    def show(self, event: Event) -> None:
        """Print one event as it goes to the status topic."""
        if self._output.as_json:
            self._print(event)
            return
        match event:
            case Heartbeat() as heartbeat:
                self._line.update(self._task, description=self._state(heartbeat))
            case Started(workers=workers):
                verb = "runs" if workers == 1 else "run"
                self._output.say(f"{counted(workers, 'worker')} {verb}")
            case Accepted() as accepted:
                self._open[accepted.id] = (0, len(accepted.bins))
                self._output.say(
                    f"{accepted.id}: accepted, {counted(len(accepted.bins), 'bin')},"
                    f" {accepted.strategy}, {begins(accepted)}"
                )
            case BinMoved(id=name):
                moved, total = self._open.get(name, (0, 0))
                self._open[name] = (moved + 1, total)
            case Completed() as done:
                self._open.pop(done.id, None)
                self._output.say(
                    f"{done.id}: completed, {counted(done.bins, 'bin')}, {size(done.bytes)},"
                    f" {done.ms:,.0f} ms"
                )
            case Failed() | Finished():
                self._line.stop()
            case _:
                if isinstance(event, Recovering):
                    self._starting = "restarting"
                    self._passed.clear()
                if said := _sentence(event):
                    self._output.say(said)

    def _print(self, event: Event) -> None:
        if (line := self._summary.take(event)) is not None:
            self._output.line(line)
        if not isinstance(event, Heartbeat):
            self._output.event(event)

    def _state(self, heartbeat: Heartbeat) -> str:
        if not heartbeat.bins:
            registered, workers = heartbeat.registered, heartbeat.workers
            return f"{self._starting}: {registered} of {workers} workers registered"
        counters = heartbeat.counters
        read = counters.get("read", 0)
        self._passed.append((time.monotonic(), read))
        (then, before), (now, _) = self._passed[0], self._passed[-1]
        rate = (read - before) / (now - then) if now > then else 0.0
        parts = [
            f"{read:,} records read ({rate:,.0f}/s)",
            f"{counters.get('written', 0):,} results written",
            f"lag {heartbeat.lag:,}",
        ]
        if self._bounded and rate > 0:
            parts.append(f"{heartbeat.lag / rate:,.0f} s left")
        parts += [f"{name} {moved}/{total} bins" for name, (moved, total) in self._open.items()]
        if dead := counters.get("dead_letters"):
            parts.append(counted(dead, "dead letter"))
        if unreadable := counters.get("unreadable"):
            parts.append(f"{unreadable:,} unreadable")
        return " · ".join(parts)


def show_dead_letters(output: CommandOutput, flow: str, count: int) -> None:
    """Print on a line of its own that a run has given dead letters."""
    if output.as_json:
        output.line({"type": "dead_letters", "flow": flow, "count": count})
        return
    output.say(f"{counted(count, 'dead letter')}: see meander dead-letters {flow}")


def _sentence(event: Event) -> str:
    """Return a sentence about any other event; '' for events of no interest to users."""
    match event:
        case Joined() | JoinFailed() | Left() | Rescaled() | CommandRejected():
            return f"{event.id}: {sentence(event)}"
        case PartitionAdded(source=source, partition=partition, worker=worker, time=time):
            return (
                f"{source}: worker {worker} reads the new partition {partition}"
                f" from {at_millis(time)} on"
            )
        case Recovering(reason=reason, renumbered=renumbered):
            ids = "".join(f"; worker {old} becomes {new}" for old, new in renumbered.items())
            return f"restarts from {event.restart_point}: {reason}{ids}"
        case Checkpointed(id=id) if id:
            return f"{id}: {taken(event)}"
        case CheckpointFailed():
            return given_up(event)
    return ""
