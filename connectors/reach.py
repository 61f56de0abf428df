"""Whether any broker can be reached, asked before a command asks for anything else.

Guarantees that where none listens a command says so within about `REACH` seconds, and that a slow
broker is not taken for none: its machine takes the connection, whenever it answers.
"""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from connectors.client import Settings, unreachable

REACH = 4.0
"""Seconds that a broker which is just starting gets to listen."""
PORT = 9092
"""Where an address names none."""
_AGAIN = 0.1


def expect_reachable(settings: Settings) -> None:
    """Raises SetupError where none of the addresses takes a connection."""
    bootstrap = settings["bootstrap.servers"]
    addresses = bootstrap.split(",")
    deadline = time.monotonic() + REACH
    while True:
        for address in addresses:
            try:
                _connect(address.strip(), REACH / len(addresses))
            except OSError as error:
                refusal = error.strerror or str(error)
            else:
                return
        if time.monotonic() >= deadline:
            raise unreachable("Kafka", refusal, bootstrap)
        time.sleep(_AGAIN)


def _connect(address: str, seconds: float) -> None:
    place = urlsplit(f"//{address.rpartition('://')[2]}")
    socket.create_connection((place.hostname or "", place.port or PORT), seconds).close()
