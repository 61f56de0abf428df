"""I8: a driver that was away for longer than its lease, and wakes up when another has the flow,
leaves it alone, and nothing of its own becomes visible."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.counting_flow import HEARTBEAT_TIMEOUT, CountingFlow
from tests.support.process.flow_process import kill, meander, until_silent


def test_a_driver_that_wakes_up_when_another_has_the_flow_ends(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    counting = CountingFlow(broker, prefix, tmp_path)
    counting.feed()
    run = counting.run("--workers", "1")
    with meander(tmp_path, broker.bootstrap, *run) as first:
        first.until_event("checkpointed")
        until(lambda: counting.committed.total() >= 100, "some are out")
        counting.feed()
        kill(first.process.pid, signal.SIGSTOP)
        until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
        with meander(tmp_path, broker.bootstrap, *run) as second:
            second.until_event("started")
            counting.feed()
            kill(first.process.pid, signal.SIGCONT)
            assert first.exit_code() == 2, first.said
            assert "another driver has taken it" in first.said
            counting.feed()
            counting.until_all(second)
            assert len(second.of("started")) == 1, "its life goes on"
            kill(second.process.pid, signal.SIGINT)
            assert second.exit_code() == 130, second.said
