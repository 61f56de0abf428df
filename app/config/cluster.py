"""The settings that a command is given; where none names a broker, the local one that runs."""

from __future__ import annotations

import os
from pathlib import Path

from meander.app.config.settings import Settings
from meander.connectors.kafka.reachability import expect_reachable
from meander.connectors.local_broker.broker import broker_status
from meander.connectors.local_broker.default import DATA


def settings(config: Path | None, given: list[str] | None, bootstrap: str | None) -> Settings:
    """File, then environment, then flags; the later wins."""
    return Settings.load(config, os.environ, given or [], bootstrap, _local_broker())


def kafka(config: Path | None, given: list[str] | None, bootstrap: str | None) -> dict[str, str]:
    """All of it as librdkafka takes it. Raises SetupError where no broker can be reached."""
    found = settings(config, given, bootstrap).kafka()
    expect_reachable(found)
    return found


def _local_broker() -> str | None:
    try:
        running = broker_status(DATA)
    except (NotADirectoryError, PermissionError):
        # Who has no home of their own, as services have none, has no broker there either.
        return None
    return None if running is None else running.bootstrap
