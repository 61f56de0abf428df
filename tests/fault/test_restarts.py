"""A flow survives as many failures without a new checkpoint as its restart policy says, and pauses
before each restart but the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.counting_flow import CountingFlow
from tests.support.process.flow_process import FlowProcess, kill, meander

pytestmark = pytest.mark.timeout(PATIENCE)


def test_a_flow_fails_at_the_first_failure_beyond_its_restarts(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flow = CountingFlow(broker, prefix, tmp_path, interval=None)
    flow.feed()
    options = "--restart-attempts", "2", "--restart-backoff", "0.25"
    with meander(tmp_path, broker.bootstrap, *flow.run(*options)) as process:
        flow.until_all(process)
        for paused in False, True:
            restart(process)
            assert ("restart_paused seconds=0.25" in process.said) == paused
        kill(process.workers[0])
        assert process.exit_code() == 1
        assert len(process.of("recovering")) == 2
        assert "2 executions before it failed without a new checkpoint within 600 s" in process.said


def restart(process: FlowProcess) -> None:
    """Kill a worker, and wait until the flow runs again."""
    starts = len(process.of("started"))
    kill(process.workers[0])
    until(lambda: len(process.of("started")) > starts, "the flow runs again")
