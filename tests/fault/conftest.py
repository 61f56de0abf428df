"""Fixtures of several modules here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.process.logic_flow import LogicFlow


@pytest.fixture
def logic(broker: Broker, prefix: str, tmp_path: Path) -> LogicFlow:
    """A flow whose logic and plan change."""
    return LogicFlow(broker, prefix, tmp_path)
