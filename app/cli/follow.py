"""Puts a command on the control topic and follows what becomes of it.

Guarantees that no event of the command is missed, as the status topic is followed from where it
ended before the command was produced, and that none of another command is taken for its own: both
are known by their place on the control topic. Ends with the command, or with its flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import typer

from meander.app.common.output import CommandOutput
from meander.app.status.overview import Overview, overview
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import control
from meander.connectors.topics.status import StatusReader
from meander.connectors.topics.topics import Names, expect_ran, names
from meander.schemas.control import Command, Rescale, Stop
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.status import (
    Aborted,
    Accepted,
    CheckpointAccepted,
    Checkpointed,
    CheckpointFailed,
    Claimed,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Planned,
    Queued,
    Recovering,
    Rescaled,
    Rescaling,
    Started,
)

START = "start it with meander run"


def produce(settings: Settings, topics: Names, flow: str, command: Command) -> int:
    """Put a command on the control topic; its offset there. Raises SetupError for no such flow."""
    expect_ran(client.admin(settings), topics.control, flow)
    return control.give(settings, topics.control, command.model_dump_json().encode())


def follow(settings: Settings, topics: Names, flow: str, command: Command) -> Iterator[Event]:
    """Produce a command and yield its events to the last, with those of the moves it brings about.

    Raises SetupError when no driver runs the flow, MeanderError when it ends meanwhile.
    """
    with contextlib.closing(StatusReader(settings, topics.status, flow)) as reader:
        seen = overview(flow, reader.recent())
        _expect_driver(seen, f"{START}, or leave the command for it with --no-wait")
        offset = produce(settings, topics, flow, command)
        left = f"{START}: {command.id!r} lies on its topic, and will be obeyed"
        accepted = False
        for told in reader.follow():
            if told is None:
                _expect_driver(seen, left)
                continue
            seen.take(told)
            event = told.event
            if isinstance(event, Finished) and isinstance(command, Stop):
                yield event
                return
            if isinstance(event, Failed | Finished):
                raise MeanderError(f"flow {flow!r}", f"it ended: {seen.reason or 'regularly'}")
            if isinstance(event, Recovering):
                raise _left_behind(command, event.place, accepted)
            accepted = accepted or _begins(event, offset)
            last = _ends(event, command, offset, accepted)
            if last or (accepted and _goes_on(event, command)):
                yield event
            if last:
                return


def _left_behind(command: Command, place: str, accepted: bool) -> MeanderError:
    """What is known of a command whose flow has lost a worker meanwhile.

    >>> print(_left_behind(Stop(type="stop", id="s"), "checkpoint 7", accepted=True))
    command 's': the flow has lost a worker and goes on from checkpoint 7, without the commands ...
    >>> print(_left_behind(Stop(type="stop", id="s"), "its start", accepted=False))
    command 's': the flow has lost a worker and goes on from its start; it had not said by th...
    """
    cause = f"the flow has lost a worker and goes on from {place}"
    if accepted:
        cause += ", without the commands that had not ended"
        remedy = "see meander status, and give it again under another id"
    else:
        cause += "; it had not said by then that it obeys, and may do so yet"
        remedy = "see meander status whether it does, before you give it again"
    return MeanderError(f"command {command.id!r}", cause, remedy)


def new_id() -> str:
    """A command's that the user gave none."""
    return f"cli-{uuid4().hex[:8]}"


def give(
    command: Command,
    cluster: Settings,
    prefix: str,
    flow: str,
    output: CommandOutput,
    show: Callable[[CommandOutput, Iterator[Event]], int] | None,
) -> None:
    """Put a command on its topic and, where it is to be shown, follow it to its end."""
    topics = names(prefix, flow)
    if show is None:
        produce(cluster, topics, flow, command)
        output.say(f"{command.id}: on {topics.control}")
        return
    output.say(f"{command.id}:")
    if code := show(output, follow(cluster, topics, flow, command)):
        raise typer.Exit(code)


def show_end(output: CommandOutput, events: Iterator[Event], said: Callable[[Event], str]) -> int:
    """Print how a command ends that is obeyed at once, in the words of `said`; the exit code."""
    for event in events:
        if not isinstance(event, Heartbeat):
            output.event(event)
        if isinstance(event, CommandRejected):
            output.say(f"rejected: {event.reason}")
            return 1
        if words := said(event):
            output.say(words)
        if isinstance(event, CheckpointFailed):
            return 1
    return 0


def _begins(event: Event, offset: int) -> bool:
    """Whether it says that the command at an offset will be obeyed, or what it would do."""
    begins = Accepted | Rescaling | Queued | Planned | CheckpointAccepted
    return isinstance(event, begins) and event.offset == offset


def _ends(event: Event, command: Command, offset: int, accepted: bool) -> bool:
    """Whether nothing more is said of a command."""
    match event:
        case CommandRejected():
            return event.offset == offset
        case Planned(last=last):
            return last and event.offset == offset
        case CheckpointFailed(id=id):
            return id == command.id
        case Checkpointed(id=id):
            return id == command.id and not isinstance(command, Stop)
        case Completed() | Rescaled() | Aborted():
            by = event.by if isinstance(event, Aborted) else ""
            return by == command.id or (accepted and event.id == command.id)
    return False


def _goes_on(event: Event, command: Command) -> bool:
    """Whether it is said of a command on its way, or of a move which that brings about."""
    if isinstance(event, Heartbeat):
        return True
    if isinstance(event, CommandRejected | Claimed | Started):
        return False
    return _of(command, event.key)


def _of(command: Command, id: str) -> bool:
    """Whether an event's id is the command's, or that of a move which it brings about."""
    return id == command.id or (isinstance(command, Rescale) and id.startswith(f"{command.id}/"))


def _expect_driver(seen: Overview, remedy: str) -> None:
    now = time.time_ns() // 1_000_000
    if seen.state not in {"starting", "running"} or seen.silent(now):
        raise SetupError(
            f"flow {seen.flow!r}",
            "no driver runs it",
            remedy,
        )
