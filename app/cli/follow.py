"""Put a command on the control topic and follow its events.

Guarantees that no event of the command is missed: the reader starts where the status topic ended
before the command was produced. An event belongs to the command by its offset on the control topic,
so no event of another command is shown. The reader ends with the command, or with its flow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import typer

from meander.app.cli.options import FlowConnection
from meander.app.common.output import CommandOutput
from meander.app.status.overview import Overview, overview
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import control
from meander.connectors.topics.internal_topics import TopicNames, expect_started
from meander.connectors.topics.status import StatusReader
from meander.schemas.control import ApplyPlan, ChangeLogic, Command, Rescale, Stop
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
    LogicAccepted,
    LogicChanged,
    PlanCompared,
    Planned,
    Queued,
    Reconfigured,
    Reconfiguring,
    Recovering,
    Rescaled,
    Rescaling,
    RolledBack,
    Started,
)

START = "start it with meander run"


def produce(settings: Settings, topics: TopicNames, flow: str, command: Command) -> int:
    """Put a command on the control topic; return its offset. Raises SetupError for no such flow."""
    expect_started(client.admin(settings), topics.control, flow)
    return control.submit(settings, topics.control, command.model_dump_json().encode())


def follow(settings: Settings, topics: TopicNames, flow: str, command: Command) -> Iterator[Event]:
    """Produce a command and yield its events to the last, with those of the moves it brings about.

    Raises SetupError when no driver runs the flow, MeanderError when it ends meanwhile.
    """
    with contextlib.closing(StatusReader(settings, topics.status, flow)) as reader:
        seen = overview(flow, reader.recent())
        _expect_driver(seen, f"{START}, or leave the command for its next run with --no-wait")
        offset = produce(settings, topics, flow, command)
        left = (
            f"{START}: command {command.id!r} is on the control topic, and the next run executes it"
        )
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
                raise MeanderError(
                    f"flow {flow!r}", f"it ended: {seen.reason or 'without an error'}"
                )
            # The next execution continues with a change of logic or plan, decided or not.
            continues = isinstance(command, ChangeLogic | ApplyPlan)
            if isinstance(event, Recovering) and not continues:
                raise _left_behind(command, event.restart_point, accepted)
            accepted = accepted or _begins(event, offset)
            last = _ends(event, command, offset, accepted)
            # A command that waits for its turn shows what the flow waits for, too.
            if last or isinstance(event, Heartbeat) or (accepted and _goes_on(event, command)):
                yield event
            if last:
                return


def _left_behind(command: Command, place: str, accepted: bool) -> MeanderError:
    """Return the error for a command whose flow has lost a worker meanwhile.

    >>> print(_left_behind(Stop(type="stop", id="s"), "checkpoint 7", accepted=True))
    command 's': the flow has lost a worker and restarts from checkpoint 7; commands that had n...
    >>> print(_left_behind(Stop(type="stop", id="s"), "its start", accepted=False))
    command 's': the flow has lost a worker and restarts from its start; the command was not a...
    """
    cause = f"the flow has lost a worker and restarts from {place}"
    if accepted:
        cause += "; commands that had not ended are dropped"
        remedy = "see meander status, and send it again with another id"
    else:
        cause += "; the command was not accepted yet, and may still be executed"
        remedy = "see meander status before you send it again"
    return MeanderError(f"command {command.id!r}", cause, remedy)


def new_id() -> str:
    """Return an id for a command without one."""
    return f"cli-{uuid4().hex[:8]}"


def submit(
    command: Command,
    flow: str,
    to: FlowConnection,
    show: Callable[[CommandOutput, Iterator[Event]], int] | None,
    *,
    quiet: bool = False,
) -> None:
    """Put a command on the control topic and, with `show`, follow it to its end.

    A `quiet` command does not print its id.
    """
    cluster, output, topics = to.kafka(), to.output, to.topics_of(flow)
    if show is None:
        produce(cluster, topics, flow, command)
        output.say(f"{command.id}: written to {topics.control}")
        return
    if not quiet:
        output.say(f"{command.id}:")
    if code := show(output, follow(cluster, topics, flow, command)):
        raise typer.Exit(code)


def show_end(output: CommandOutput, events: Iterator[Event], said: Callable[[Event], str]) -> int:
    """Print the events of a command in the words of `said`; return the exit code."""
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
    """Return whether an event accepts the command at an offset, or shows its plan."""
    begins = Accepted | Rescaling | Queued | Planned | CheckpointAccepted | LogicAccepted
    plans = Reconfiguring | PlanCompared
    return isinstance(event, begins | plans) and event.offset == offset


def _ends(event: Event, command: Command, offset: int, accepted: bool) -> bool:
    """Return whether an event is the last one of a command."""
    match event:
        case CommandRejected() | PlanCompared() | Reconfigured() | RolledBack():
            return event.offset == offset
        case Planned(last=last):
            return last and event.offset == offset
        case CheckpointFailed(id=id):
            return id == command.id
        case Checkpointed(id=id):
            return id == command.id and not isinstance(command, Stop)
        case Completed() | Rescaled() | LogicChanged():
            return accepted and event.id == command.id
        case Aborted(id=id, by=by):
            # A command that waits for its turn is aborted before its acceptance.
            # The parts of a plan that is rolled back are aborted by its command.
            ended_by = by == command.id and not isinstance(command, ApplyPlan)
            return ended_by or (id == command.id and (accepted or event.offset == offset))
    return False


def _goes_on(event: Event, command: Command) -> bool:
    """Return whether an event is of an accepted command, or of a move that it causes."""
    if isinstance(event, CommandRejected | Claimed | Started):
        return False
    return _of(command, event.key)


def _of(command: Command, id: str) -> bool:
    """Return whether an id is that of a command, or of a move that it causes."""
    moves = isinstance(command, Rescale | ApplyPlan)
    return id == command.id or (moves and id.startswith(f"{command.id}/"))


def _expect_driver(seen: Overview, remedy: str) -> None:
    now = time.time_ns() // 1_000_000
    if seen.state not in {"starting", "running"} or seen.silent(now):
        raise SetupError(
            f"flow {seen.flow!r}",
            "it does not run",
            remedy,
        )
