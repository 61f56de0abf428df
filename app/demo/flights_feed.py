"""Put the flights of 2013 onto the source topic of the shipped flow, as a program of its own.

Who runs that flow by hand, as in docker-compose.yml, feeds it by this program. Guarantees that each
flight is on the topic once, and in order per plane, when it returns 0. Reads settings of the file
and the environment.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from meander.app.common.output import CommandOutput
from meander.app.config.cluster import kafka
from meander.app.demo.data import load, unpack
from meander.app.flows.flights import topics
from meander.app.measurement.open_loop import Load, open_loop
from meander.connectors.kafka import client
from meander.connectors.kafka.topic_metadata import partitions_of
from meander.schemas.errors import MeanderError


def feed(settings: dict[str, str], flights: Load) -> None:
    """Send all flights. Raises MeanderError where some do not arrive."""
    with open_loop(settings, flights) as loop, CommandOutput.of(False).bar("flights") as bar:
        loop.release()
        task = bar.add_task(flights.topic, total=flights.total)
        while not loop.ended:
            bar.update(task, completed=loop.sent)
            time.sleep(0.1)


def main(
    rate: Annotated[int, typer.Argument(min=1, help="Records per second.")] = 2_000,
) -> None:
    """Put the flights of 2013 onto the topic of the shipped flow."""
    try:
        cluster = kafka(None, None, None)
        source, _, _ = topics(os.environ.get("MEANDER_FLIGHTS_PREFIX", ""))
        partitions = partitions_of(client.admin(cluster), source)
        with tempfile.TemporaryDirectory() as folder:
            flights = load(unpack(Path(folder)), partitions)
        feed(cluster, flights.load(source, rate))
    except MeanderError as error:
        typer.echo(error, err=True)
        raise typer.Exit(error.exit_code) from None


if __name__ == "__main__":
    typer.run(main)
