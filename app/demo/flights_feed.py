"""Put the flights of 2013 onto the source topic of the shipped flow, as a program of its own.

For whoever runs that flow by hand, as in docker-compose.yml. Guarantees that each flight is on the
topic once and in order per plane when it returns 0. RATE is in records per second, 2,000 unless
given; then the year takes about three minutes. Asks settings of file and environment.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from meander.app.config.cluster import kafka
from meander.app.demo.data import Records, load, unpack
from meander.app.flows.flights import topics
from meander.connectors.kafka import client
from meander.connectors.kafka.sink.record_producer import Sender, noted
from meander.connectors.kafka.topics import partitions_of
from meander.schemas.errors import MeanderError

STEP = 0.02
"""Seconds between two bursts."""
MOST = 50_000
"""Records on their way to the broker."""


def feed(settings: dict[str, str], topic: str, records: Records, rate: int) -> None:
    """Send all records, so many per second; raises MeanderError where some do not arrive."""
    sender = Sender(settings, topic)
    start = time.monotonic()
    for at in track(range(len(records)), description=f"flights to {topic}"):
        # A broker that is away for long fills the buffer; then its time is lost, but no flight.
        while time.monotonic() < start + at / rate or len(sender) > MOST:
            sender.pump()
            time.sleep(STEP)
        sender.send(
            records.values[at], records.keys[at], noted,
            [("time", b"%d" % records.times[at])], int(records.partitions[at]),
        )  # fmt: skip
    sender.flush(client.ANSWER)
    sender.close()


def main(
    rate: Annotated[int, typer.Argument(min=1, help="Records per second.")] = 2_000,
) -> None:
    """Put the flights of 2013 onto the topic of the shipped flow."""
    try:
        cluster = kafka(None, None, None)
        source, _, _ = topics(os.environ.get("MEANDER_FLIGHTS_PREFIX", ""))
        partitions = partitions_of(client.admin(cluster), source)
        with tempfile.TemporaryDirectory() as folder:
            records = load(unpack(Path(folder)), partitions)
        feed(cluster, source, records, rate)
    except MeanderError as error:
        typer.echo(error, err=True)
        raise typer.Exit(error.exit_code) from None


if __name__ == "__main__":
    typer.run(main)
