"""Reachability: a check that a broker listens, before any other request of a command.

Guarantees that a command reports missing brokers within about `CONNECT_TIMEOUT` seconds. A slow
broker passes the check: its machine accepts the connection, whenever it answers.
"""

from __future__ import annotations

import time

from meander.connectors.kafka.addresses import try_connect
from meander.connectors.kafka.client import Settings, unreachable

CONNECT_TIMEOUT = 4.0
"""The seconds in which a starting broker has to listen."""
_RETRY_SECONDS = 0.1


def expect_reachable(settings: Settings) -> None:
    """Raise SetupError where none of the addresses accepts a connection."""
    bootstrap = settings["bootstrap.servers"]
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while refusal := try_connect(bootstrap, CONNECT_TIMEOUT):
        if time.monotonic() >= deadline:
            raise unreachable("Kafka", refusal, bootstrap)
        time.sleep(_RETRY_SECONDS)
