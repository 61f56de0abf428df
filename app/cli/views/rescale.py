"""`meander rescale`: print how workers join and leave."""

from __future__ import annotations

from collections.abc import Iterator

from meander.app.cli.views.summary import MoveSummary
from meander.app.common.output import CommandOutput
from meander.dataflow.metrics.counters import counted
from meander.schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Event,
    Joined,
    JoinFailed,
    Left,
    Rescaled,
    RescaleProgress,
    Rescaling,
)


def show_rescale(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print events as they come, with a progress bar of workers and bins. Return the exit code: 1
    if some workers have not joined, or have got no bins."""
    summary = MoveSummary(output, waits)
    with output.bar("steps") as progress:
        task = progress.add_task("command sent", total=None)
        code, total = 0, 0
        for event in events:
            summary.take(event)
            if said := sentence(event):
                output.say(said)
            match event:
                case Rescaling(joining=joining, leaving=leaving):
                    total = len(joining) + len(leaving)
                    what = "workers leave" if leaving else "workers start"
                    progress.update(task, total=total, description=what)
                case Accepted(bins=bins):
                    total += len(bins)
                    progress.update(task, total=total, description="bins move")
                case BinMoved() | Joined() | JoinFailed() | Left():
                    progress.update(task, advance=1)
            refused = isinstance(event, CommandRejected | JoinFailed)
            if refused or (isinstance(event, Rescaled) and event.reason):
                code = 1
    return code


def waits(rescale: RescaleProgress) -> str:
    """Return a sentence about the rescale in progress.

    >>> waits(RescaleProgress(id="r1", joining=[2], leaving=[], waits_for="it is there (worker 2)"))
    'Command r1 waits until it is there (worker 2).'
    """
    if not rescale.waits_for:
        return f"Command {rescale.id} is in progress."
    return f"Command {rescale.id} waits until {rescale.waits_for}."


def sentence(event: Event) -> str:
    """Return a sentence about workers that join or leave; '' for other events.

    >>> from meander.schemas.status import Joined
    >>> sentence(Joined(id="r1", worker=2))
    'worker 2 has joined'
    """
    match event:
        case Joined(worker=worker):
            return f"worker {worker} has joined"
        case JoinFailed(reason=reason):
            return f"{reason}; the flow continues without it"
        case Left(worker=worker):
            return f"worker {worker} has left"
        case Rescaled(workers=workers, ms=ms, reason=reason):
            return f"completed: {counted(workers, 'worker')}, {ms:,.0f} ms" + (
                f"; {reason}" if reason else ""
            )
        case CommandRejected(reason=reason):
            return f"rejected: {reason}"
    return ""
