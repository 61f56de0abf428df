"""Keys expire by logical time alone, whatever moves or dies, and leave states and topic."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meander.app.cli.main import app
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import kill, meander
from tests.support.process.visits_flow import VisitsFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_expired_keys_begin_anew_and_leave_the_topic_though_a_worker_dies(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """I5: the results are those of one thread. The newest checkpoint has the states of keys that
    have not expired, and of some that no sweep has come to."""
    visits = VisitsFlow(broker, prefix, tmp_path)
    ends = "--prefix", prefix, "--bootstrap", broker.bootstrap
    visits.feed()
    with meander(tmp_path, broker.bootstrap, *visits.run("--workers", "2")) as flow:
        flow.until_event("started")
        visits.feed()
        flow.until_event("checkpointed")
        words = "migrate", "visits", "--bins", "0-3", "--worker", "1"
        moved = CliRunner().invoke(app, [*words, *ends])
        assert moved.exit_code == 0, moved.output
        visits.feed()
        kill(flow.workers[1])
        until(lambda: len(flow.of("started")) > 1, f"the flow runs again: {flow.said}")
        visits.feed()
        visits.until_answered(flow)
        visits.feed()
        visits.until_answered(flow)
        for _ in range(2):
            taken = CliRunner().invoke(app, ["checkpoint", "visits", *ends])
            assert taken.exit_code == 0, taken.output
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    returned, alive = visits.check()
    assert returned > 1000
    stored = visits.stored()
    assert alive <= stored
    assert len(stored) < 2 * len(alive), "expired keys leave the topic"
