"""Addresses of brokers, tried without a client.

Cost: one connection for each address.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

PORT = 9092
"""Where an address names none."""


def knock(bootstrap: str, seconds: float) -> str:
    """Connect to one of the addresses, separated by commas, and hang up; '' where one took the
    connection, else why the last did not. `seconds` bounds all together."""
    addresses, refusal = bootstrap.split(","), ""
    for address in addresses:
        place = urlsplit(f"//{address.strip().rpartition('://')[2]}")
        where = place.hostname or "", place.port or PORT
        try:
            socket.create_connection(where, seconds / len(addresses)).close()
        except OSError as error:
            refusal = error.strerror or str(error)
        else:
            return ""
    return refusal
