"""Addresses of brokers: a connection test without a client.

Cost: one connection per address.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

PORT = 9092
"""The port of an address that names none."""


def try_connect(bootstrap: str, seconds: float) -> str:
    """Connect to one of the addresses, separated by commas, and disconnect. Return '' where one
    accepts, else the reason of the last failure. `seconds` bounds all attempts together."""
    addresses, refusal = bootstrap.split(","), ""
    for address in addresses:
        url = urlsplit(f"//{address.strip().rpartition('://')[2]}")
        endpoint = url.hostname or "", url.port or PORT
        try:
            socket.create_connection(endpoint, seconds / len(addresses)).close()
        except OSError as error:
            refusal = error.strerror or str(error)
        else:
            return ""
    return refusal
