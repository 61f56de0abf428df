"""The cluster settings of a command. The default broker is the local one, if it runs."""

from __future__ import annotations

import os
from pathlib import Path

from meander.app.config.settings import Settings
from meander.connectors.kafka.reachability import expect_reachable
from meander.connectors.local_broker.broker import broker_status
from meander.connectors.local_broker.default import DATA


def settings(config: Path | None, flags: list[str] | None, bootstrap: str | None) -> Settings:
    """Load settings from file, environment and flags; a later source overrides an earlier one."""
    return Settings.load(config, os.environ, flags or [], bootstrap, _local_broker())


def kafka(config: Path | None, flags: list[str] | None, bootstrap: str | None) -> dict[str, str]:
    """Return the settings for librdkafka. Raises SetupError where no broker answers."""
    found = settings(config, flags, bootstrap).kafka()
    expect_reachable(found)
    return found


def _local_broker() -> str | None:
    try:
        running = broker_status(DATA)
    except (NotADirectoryError, PermissionError):
        # A user without a home, such as a service, has no local broker there.
        return None
    return None if running is None else running.bootstrap
