"""`meander migrate`: puts a command on the control topic and follows what becomes of it.

Guarantees that no event of the command is missed: the status topic has been read to its end before
the command is produced. Ends with the command, or with its flow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

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

from app.output import Output, at_millis, size
from app.overview import Overview
from connectors import client
from connectors.client import Settings
from connectors.outbox import deliver
from connectors.status import read_status
from connectors.topics import Names, partitions_of
from schemas.control import Migrate
from schemas.errors import MeanderError, SetupError
from schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
)

MOST_BINS = 1 << 16
"""What a flow may have at most."""


def parse_bins(text: str) -> list[int] | str:
    """What `--bins` means: numbers and ranges, or all of them.

    >>> parse_bins("0-2,7"), parse_bins("all")
    ([0, 1, 2, 7], 'all')
    """
    if text == "all":
        return text
    bins: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            remedy = "write numbers and ranges such as 0-2,7, or all"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        low, high = int(first), int(last if dash else first)
        if not low <= high < MOST_BINS:
            remedy = f"write ranges upwards, of numbers below {MOST_BINS}"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        bins.extend(range(low, high + 1))
    return bins


def produce(settings: Settings, names: Names, command: Migrate) -> None:
    """Put a command on the control topic; returns once it is there."""
    partitions_of(client.admin(settings), names.control)
    deliver(settings, names.control, command.model_dump_json().encode())


def follow(settings: Settings, names: Names, flow: str, command: Migrate) -> Iterator[Event]:
    """Produce a command and yield its events to the last.

    Raises SetupError when no driver runs the flow, MeanderError when it ends meanwhile.
    """
    seen, sent = Overview(flow), False
    for told in read_status(settings, names.status, follow=True):
        if told is not None:
            seen.take(told)
            if not sent:
                continue
            event = told.event
            if isinstance(event, Failed | Finished):
                raise MeanderError(f"flow {flow!r}", f"it ended: {seen.reason or 'regularly'}")
            if getattr(event, "id", None) == command.id:
                yield event
                if isinstance(event, Completed | CommandRejected):
                    return
        else:
            _alive(seen, flow)
            if not sent:
                produce(settings, names, command)
                sent = True


def _alive(seen: Overview, flow: str) -> None:
    now = time.time_ns() // 1_000_000
    if seen.state not in {"starting", "running"} or seen.silent(now):
        raise SetupError(
            f"flow {flow!r}",
            "no driver runs it",
            "start it with meander run, or leave the command for it with --no-wait",
        )


def show(output: Output, events: Iterator[Event]) -> int:
    """Print events as they come, with a bar while bins move; the exit code."""
    with _bar(output) as progress:
        task = progress.add_task("waits to be accepted", total=None)
        carried, code = 0, 0
        for event in events:
            if output.as_json:
                output.line(event.model_dump(mode="json", by_alias=True))
            match event:
                case Accepted() as accepted:
                    output.say(f"accepted: from {at_millis(accepted.time)} on")
                    progress.update(task, total=len(accepted.bins), description="moving")
                case BinMoved(bytes=count):
                    carried += count
                    progress.update(task, advance=1, description=f"moving, {size(carried)}")
                case Completed() as done:
                    progress.update(task, total=done.bins, completed=done.bins)
                    output.say(
                        f"completed: {done.bins} bins, {size(done.bytes)}, {done.ms:,.0f} ms"
                    )
                case CommandRejected(reason=reason):
                    progress.update(task, visible=False)
                    output.say(f"rejected: {reason}")
                    code = 1
    return code


class _Rate(ProgressColumn):
    """Bins per second."""

    def render(self, task: Task) -> Text:
        """As far as it is known."""
        return Text(f"bins, {task.speed:.1f}/s" if task.speed else "bins")


def _bar(output: Output) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=output.console,
        disable=output.as_json,
    )
