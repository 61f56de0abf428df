"""A signal ends a flow: SIGTERM after a checkpoint, so that the next run repeats nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.counting_flow import LINES, CountingFlow
from tests.support.process.flow_process import last_beat, lines, meander

pytestmark = pytest.mark.timeout(PATIENCE)


def test_the_next_run_continues_from_the_checkpoint_that_sigterm_asks_for(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flow = CountingFlow(broker, prefix, tmp_path, interval=None)
    flow.feed()
    with meander(tmp_path, broker.bootstrap, *flow.run()) as process:
        flow.until_all(process)
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 128 + signal.SIGTERM
        assert process.of("checkpointed")[-1]["savepoint"] == ""
        assert "final_checkpoint_complete" in process.said
        process.until_gone()
    flow.feed()
    with meander(tmp_path, broker.bootstrap, *flow.run("--on-stop", "savepoint")) as process:
        flow.until_all(process)
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 128 + signal.SIGTERM
        assert str(process.of("checkpointed")[-1]["savepoint"]).startswith("stop-")
        counters = process.of("finished")[-1]["counters"]
        assert isinstance(counters, dict)
        assert counters["read"] == LINES


def test_a_flow_ends_without_a_checkpoint_where_none_is_asked_for_or_time_is_up(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flow = CountingFlow(broker, prefix, tmp_path, interval=None)
    flow.feed()
    for options in (("--on-stop", "none"), ("--on-stop-timeout", "0")):
        with meander(tmp_path, broker.bootstrap, *flow.run(*options)) as process:
            process.until_event("started")
            process.process.send_signal(signal.SIGTERM)
            assert process.exit_code() == 128 + signal.SIGTERM
            late = "final_checkpoint_missing" in process.said
            assert late == ("--on-stop-timeout" in options)


def test_a_second_sigterm_ends_the_flow_within_its_final_checkpoint(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    flow = CountingFlow(broker, prefix, tmp_path, interval=None)
    flow.feed()
    bound = "--on-stop-timeout", "600"
    with meander(tmp_path, broker.bootstrap, *flow.run(*bound)) as process:
        flow.until_all(process)
        lines(broker.bootstrap, prefix, ["sleep"], create=False)
        until(lambda: last_beat(broker.bootstrap, prefix)["calls"] != [], "a worker is in a call")
        process.process.send_signal(signal.SIGTERM)
        process.until_said("final_checkpoint_starts")
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 128 + signal.SIGTERM
        assert "final_checkpoint_complete" not in process.said
        process.until_gone()
