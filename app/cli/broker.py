"""`meander broker`: a local Apache Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meander.app.cli.command_group import CommandGroup
from meander.app.cli.options import Json
from meander.app.common.output import CommandOutput
from meander.connectors.local_broker.broker import broker_start, broker_status, broker_stop
from meander.connectors.local_broker.default import DATA, start_local
from meander.connectors.local_broker.kafka_jars import kafka_jars
from meander.schemas.errors import SetupError

Data = Annotated[Path, typer.Option(help="The folder for data and log of the broker.")]

commands = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Run a local Apache Kafka: one process on 127.0.0.1.",
)


@commands.command(epilog="Example: meander broker start --port 19092")
def start(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port for clients. Default: 9092, or a"
                     " free one if 9092 is taken.",
                     show_default=False),
    ] = None,
    data: Data = DATA,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Start a broker that runs on after this command; a running one is kept."""
    output = CommandOutput.of(as_json)
    fetch(output)
    with output.working("starting Kafka"):
        bootstrap = start_local(data) if port is None else broker_start(data, port)
    if output.as_json:
        output.line({"bootstrap": bootstrap})
    output.say(f"Kafka answers at {bootstrap}. Stop it with: meander broker stop")


def fetch(output: CommandOutput) -> None:
    """Download the jars of Kafka, with a progress bar, unless they are here."""
    with output.bar("jars") as bar:

        def fetched(count: int, total: int) -> None:
            task = bar.task_ids[0] if bar.task_ids else bar.add_task("fetching Apache Kafka")
            bar.update(task, completed=count, total=total)

        kafka_jars(fetched)


@commands.command()
def status(data: Data = DATA, as_json: Json = False) -> None:
    """Show whether the broker runs, and its address."""
    found = broker_status(data)
    if found is None:
        raise SetupError(
            f"the broker in {data}", "it does not run", "start it with meander broker start"
        )
    CommandOutput.of(as_json).table(
        "broker",
        ["bootstrap", "pid", "version", "log"],
        [[found.bootstrap, str(found.pid), found.version, found.log]],
    )


@commands.command()
def stop(data: Data = DATA, as_json: Json = False) -> None:
    """Stop the broker; its data stays."""
    output = CommandOutput.of(as_json)
    with output.working("stopping Kafka"):
        stopped = broker_stop(data)
    if output.as_json:
        output.line({"stopped": stopped})
    output.say("The broker has stopped." if stopped else "No broker was running.")
