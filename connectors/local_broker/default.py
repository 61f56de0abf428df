"""The default local broker, which commands start and find without settings: its folder and its
port."""

from __future__ import annotations

from pathlib import Path

from meander.connectors.local_broker.broker import broker_start, broker_status, free_port, is_free
from meander.connectors.local_broker.home import home

DATA = home() / ".local" / "share" / "meander" / "broker"
PORT = 9092


def start_local(data: Path) -> str:
    """Start the broker, unless it runs, at port 9092 or else a free port; return its address."""
    running = broker_status(data)
    if running is not None:
        return running.bootstrap
    return broker_start(data, PORT if is_free(PORT) else free_port())
