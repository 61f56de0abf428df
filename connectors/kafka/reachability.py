"""Whether any broker can be reached, asked before a command asks for anything else.

Guarantees that where none listens a command says so within about `REACH` seconds, and that a slow
broker is not taken for none: its machine takes the connection, whenever it answers.
"""

from __future__ import annotations

import time

from meander.connectors.kafka.addresses import knock
from meander.connectors.kafka.client import Settings, unreachable

REACH = 4.0
"""Seconds that a broker which is just starting gets to listen."""
_AGAIN = 0.1


def expect_reachable(settings: Settings) -> None:
    """Raises SetupError where none of the addresses takes a connection."""
    bootstrap = settings["bootstrap.servers"]
    deadline = time.monotonic() + REACH
    while refusal := knock(bootstrap, REACH):
        if time.monotonic() >= deadline:
            raise unreachable("Kafka", refusal, bootstrap)
        time.sleep(_AGAIN)
