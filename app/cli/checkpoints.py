"""`meander checkpoint | checkpoints | stop | reset`: the checkpoints that a flow restarts from."""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import Annotated, Literal

import typer

from meander.app.cli.follow import new_id, submit
from meander.app.cli.options import CommandId, Flow, FlowConnection, Wait, connected
from meander.app.cli.views.checkpoints import COLUMNS, listed, show_checkpoint
from meander.app.recovery import admin
from meander.schemas.control import RequestCheckpoint, Stop

commands = typer.Typer()
Savepoint = Annotated[
    str | None,
    typer.Option(help="Keep the checkpoint as a savepoint of this name until it is dropped."),
]


@commands.command(epilog="Example: meander checkpoint counts --savepoint v1")
@connected
def checkpoint(
    flow: Flow,
    policy: Annotated[
        Literal["unaligned", "unaligned_max_inflight", "aligned"] | None,
        typer.Option(
            help="How much the checkpoint may hold in flight. Default: the flow's own policy."
        ),
    ] = None,
    savepoint: Savepoint = None,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Take a checkpoint of a running flow. Its next run restarts from the newest checkpoint.

    Exit code 0: the checkpoint is complete; 1: the command was rejected, or the checkpoint failed.
    """
    command = RequestCheckpoint.model_construct(
        type="checkpoint", id=name or new_id(), policy=policy, savepoint=savepoint
    )
    submit(command, flow, to, show_checkpoint if wait else None)


@commands.command(epilog="Example: meander stop counts --savepoint v1")
@connected
def stop(
    flow: Flow,
    savepoint: Savepoint = None,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Stop a running flow and wait until its workers have ended.

    With --savepoint, the flow takes that savepoint first. The driver ends with exit code 0.

    Exit code 0: the flow has stopped; 1: the command was rejected, or the savepoint failed.
    """
    command = Stop.model_construct(type="stop", id=name or new_id(), savepoint=savepoint)
    submit(command, flow, to, show_checkpoint if wait else None)


@commands.command(epilog="Example: meander checkpoints counts --drop v1")
@connected
def checkpoints(
    flow: Flow,
    drop: Annotated[
        str | None, typer.Option(help="Drop this savepoint; the flow must not run.")
    ] = None,
    *,
    to: FlowConnection,
) -> None:
    """List the checkpoints that a flow can restart from, the newest first.

    The next run uses the marked one; meander run --from selects another.
    """
    output, cluster, topics = to.output, to.kafka(), to.topics_of(flow)
    if drop is not None:
        with output.working("asking Kafka"):
            admin.drop(cluster, topics, to.prefix_of(flow), flow, drop)
    with output.working("asking Kafka"):
        found, others = listed(cluster, topics, flow)
    if output.as_json:
        for one in found:
            output.line(asdict(one))
    else:
        output.table(f"checkpoints of {flow}", COLUMNS, [one.cells() for one in found], names=2)
    for why in others:
        typer.echo(why, err=True)


@commands.command(epilog="Example: meander reset counts")
@connected
def reset(
    flow: Flow,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    *,
    to: FlowConnection,
) -> None:
    """Delete the states, checkpoints and source positions of a flow that does not run.

    The next run starts from scratch. The topics that the flow reads and writes stay.
    """
    output, cluster, topics = to.output, to.kafka(), to.topics_of(flow)
    gone = admin.reset_topics(topics)
    if not yes:
        admin.expect_stopped(cluster, topics, to.prefix_of(flow), flow)
        typer.echo("The next run starts from scratch and writes all results again.", err=True)
        typer.confirm(f"Delete {', '.join(gone)}?", abort=True, err=True)
    admin.reset(cluster, topics, to.prefix_of(flow), flow)
    stays = [topic for topic in astuple(topics) if topic not in gone]
    rows = [[topic, "deleted"] for topic in gone] + [[topic, "kept"] for topic in stays]
    output.table(f"topics of {flow}", ["topic", "state"], rows)
    output.say("The topics that the flow reads and writes stay.")
