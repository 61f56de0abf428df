"""`meander status`: show the state of a flow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from meander.app.cli.options import Flow, FlowConnection, connected
from meander.app.cli.views.status import fields, tables
from meander.app.common.output import CommandOutput
from meander.app.status.overview import overview
from meander.connectors.topics.status import StatusReader, StatusRecord

EXAMPLE = "Example: meander status counts --json"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def status(
    flow: Flow,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Read the whole status topic, and show old migrations too."),
    ] = False,
    *,
    to: FlowConnection,
) -> None:
    """Show a flow's workers, frontiers, lag, bins and migrations."""
    output, topic = to.output, to.topics_of(flow).status
    with contextlib.ExitStack() as opened:
        with output.working("asking Kafka"):
            reader = StatusReader(to.kafka(), topic, flow)
            opened.callback(reader.close)
        seen = overview(flow, _all(reader, output) if whole else reader.recent())
    now = time.time_ns() // 1_000_000
    state = "silent" if seen.silent(now) else seen.state
    if output.as_json:
        output.line(fields(seen, state, now))
    else:
        tables(output, seen, state, now)


def _all(reader: StatusReader, output: CommandOutput) -> Iterator[StatusRecord]:
    with output.bar("events") as progress:
        total = reader.high - reader.low
        yield from progress.track(reader.all(), total, description="reading the status topic")
