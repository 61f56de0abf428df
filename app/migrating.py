"""`meander migrate`: puts a command on the control topic and follows what becomes of it.

Guarantees that no event of the command is missed, as the status topic is followed from where it
ended before the command was produced, and that none of another command is taken for its own: both
are known by their place on the control topic. Ends with the command, or with its flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from app.output import Output, at_millis, size
from app.overview import Overview, overview
from connectors import client
from connectors.client import Settings
from connectors.control import give
from connectors.status import StatusReader
from connectors.topics import Names, expect_ran
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


def produce(settings: Settings, names: Names, flow: str, command: Migrate) -> int:
    """Put a command on the control topic; its offset there. Raises SetupError for no such flow."""
    expect_ran(client.admin(settings), names.control, flow)
    return give(settings, names.control, command.model_dump_json().encode())


def follow(settings: Settings, names: Names, flow: str, command: Migrate) -> Iterator[Event]:
    """Produce a command and yield its events to the last.

    Raises SetupError when no driver runs the flow, MeanderError when it ends meanwhile.
    """
    with contextlib.closing(StatusReader(settings, names.status, flow)) as reader:
        seen = overview(flow, reader.recent())
        _expect_driver(seen)
        offset = produce(settings, names, flow, command)
        accepted = False
        for told in reader.follow():
            if told is None:
                _expect_driver(seen)
                continue
            seen.take(told)
            match told.event:
                case Failed() | Finished():
                    raise MeanderError(f"flow {flow!r}", f"it ended: {seen.reason or 'regularly'}")
                case CommandRejected() as rejected if rejected.offset == offset:
                    yield rejected
                    return
                case Accepted() as event if event.offset == offset:
                    accepted = True
                    yield event
                case BinMoved() as event if accepted and event.id == command.id:
                    yield event
                case Completed() as event if accepted and event.id == command.id:
                    yield event
                    return


def _expect_driver(seen: Overview) -> None:
    now = time.time_ns() // 1_000_000
    if seen.state not in {"starting", "running"} or seen.silent(now):
        raise SetupError(
            f"flow {seen.flow!r}",
            "no driver runs it",
            "start it with meander run, or leave the command for it with --no-wait",
        )


def show(output: Output, events: Iterator[Event]) -> int:
    """Print events as they come, with a bar while bins move; the exit code."""
    with output.bar("bins") as progress:
        task = progress.add_task("waits to be accepted", total=None)
        carried, code, total = 0, 0, 0
        for event in events:
            if output.as_json:
                output.line(event.model_dump(mode="json", by_alias=True))
            match event:
                case Accepted() as accepted:
                    output.say(f"accepted: from {at_millis(accepted.time)} on")
                    total = len(accepted.bins)
                    progress.update(task, total=total, description="moving")
                case BinMoved(bytes=count):
                    carried += count
                    progress.update(task, advance=1, description=f"moving, {size(carried)}")
                case Completed() as done:
                    progress.update(task, total=done.bins, completed=done.bins)
                    there = total - done.bins
                    were = f" ({there} were there already)" if there else ""
                    output.say(
                        f"completed: {done.bins} bins{were}, {size(done.bytes)}, {done.ms:,.0f} ms"
                    )
                case CommandRejected(reason=reason):
                    progress.update(task, visible=False)
                    output.say(f"rejected: {reason}")
                    code = 1
    return code
