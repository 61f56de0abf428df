"""`meander checkpoint | checkpoints | stop | reset`: what a flow goes on from when it is run."""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import Annotated, Literal

import typer

from meander.app.cli.follow import give, new_id
from meander.app.cli.options import Bootstrap, CommandId, Config, Flow, Json, Prefix, Set, Wait
from meander.app.cli.views.checkpoints import COLUMNS, listed, show_checkpoint
from meander.app.common.output import CommandOutput
from meander.app.config.cluster import kafka
from meander.app.recovery import admin
from meander.connectors.topics.topics import names
from meander.schemas.control import Stop, TakeCheckpoint

Savepoint = Annotated[
    str | None, typer.Option(help="Keep the checkpoint under this name until it is dropped.")
]


def checkpoint(
    flow: Flow,
    policy: Annotated[
        Literal["unaligned", "unaligned_max_inflight", "aligned"] | None,
        typer.Option(help="How much may be in flight in it; else as the flow says."),
    ] = None,
    savepoint: Savepoint = None,
    name: CommandId = None,
    wait: Wait = True,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take a checkpoint of a running flow, from which it goes on when it is run again.

    Exit code 0: it is taken; 1: it was rejected, or given up.
    """
    command = TakeCheckpoint.model_construct(
        type="checkpoint", id=name or new_id(), policy=policy, savepoint=savepoint
    )
    cluster = kafka(config, set_, bootstrap)
    give(
        command, cluster, prefix, flow, CommandOutput.of(as_json), show_checkpoint if wait else None
    )


def stop(
    flow: Flow,
    savepoint: Savepoint = None,
    name: CommandId = None,
    wait: Wait = True,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Stop a running flow, with --savepoint once that is taken; its driver ends with exit code 0.

    Exit code 0: it has stopped; 1: it was rejected, or the savepoint given up.
    """
    command = Stop.model_construct(type="stop", id=name or new_id(), savepoint=savepoint)
    cluster = kafka(config, set_, bootstrap)
    give(
        command, cluster, prefix, flow, CommandOutput.of(as_json), show_checkpoint if wait else None
    )


def checkpoints(
    flow: Flow,
    drop: Annotated[
        str | None, typer.Option(help="Keep this savepoint no longer; the flow must not run.")
    ] = None,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the checkpoints that a flow can go on from, the newest first: where its next run begins,
    and what else meander run --from may name."""
    output, cluster = CommandOutput.of(as_json), kafka(config, set_, bootstrap)
    topics = names(prefix, flow)
    if drop is not None:
        with output.working("asking Kafka"):
            admin.drop(cluster, topics, prefix, flow, drop)
    with output.working("asking Kafka"):
        found, others = listed(cluster, topics, flow)
    if output.as_json:
        for one in found:
            output.line(asdict(one))
    else:
        output.table(f"checkpoints of {flow}", COLUMNS, [one.cells() for one in found])
    for why in others:
        typer.echo(why, err=True)


def reset(
    flow: Flow,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether you mean it.")] = False,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Have a flow that does not run forget its states and how far it has come: its next run begins
    as its first did. The topics that it reads and writes stay as they are."""
    output, cluster = CommandOutput.of(as_json), kafka(config, set_, bootstrap)
    topics = names(prefix, flow)
    gone = admin.forgotten(topics)
    if not yes:
        admin.expect_alone(cluster, topics, prefix, flow)
        anew = "its next run begins as its first did, so what is out by now comes again"
        typer.confirm(f"Delete {', '.join(gone)}? ({anew})", abort=True, err=True)
    admin.reset(cluster, topics, prefix, flow)
    stays = [topic for topic in astuple(topics) if topic not in gone]
    rows = [[topic, "deleted"] for topic in gone] + [[topic, "kept"] for topic in stays]
    output.table(f"topics of {flow}", ["topic", "state"], rows)
    output.say("the topics that it reads and writes stay as they are")
