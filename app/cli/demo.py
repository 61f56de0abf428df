"""`meander demo`: real flights through Kafka and Spark."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from meander.app.cli.options import Bootstrap, Config, Set
from meander.app.config.settings import Settings

EXAMPLE = "Example: meander demo --bootstrap broker:9092 --rate 2000"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
def demo(
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Records per second.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
) -> None:
    """Send real flights through Kafka and Spark while bins move, and check each result."""
    # Here, because it brings pandas, Spark and matplotlib, which no other command waits for.
    from meander.app.demo.demo import RATE
    from meander.app.demo.demo import main as run_demo

    # Without the local broker that may run: the demo takes that one, or starts it.
    given = Settings.load(config, os.environ, set_ or [], bootstrap)
    raise typer.Exit(run_demo(given, rate=rate or RATE))
