"""Policies on real processes: they change the plan by themselves, and the results stay those of a
single thread, whatever a policy does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE
from tests.support.process.flow_process import kill, meander
from tests.support.process.late_flights import FIRST_LIMIT, LateFlights

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_the_limit_of_alerts_follows_their_rate(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flights = LateFlights(broker, prefix, tmp_path)
    words = flights.run("--workers", "2", "--policy-interval", "1")
    with meander(tmp_path, broker.bootstrap, *words, **flights.variables) as flow:
        flow.until_event("started")
        flights.feed_until(flow, lambda: bool(flow.of("reconfigured")))
        for _ in range(3):
            flights.feed(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    alerts = flights.check()
    assert len(alerts) > 1
    assert all(alerts.values()), alerts
    first, *_ = flights.history()
    assert first["by"] == "policy DriftTrigger"
    assert first["outcome"] == "in force"
    assert "the selectivity of alert is" in str(first["why"])
    assert f"limit={FIRST_LIMIT}" in str(first["operations"])
