"""A driver handles each command that came since the first start, on a real broker (I7)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from meander.app.config.options import Options
from meander.app.loading.preflight import PreparedFlow, prepare
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import resume_commands
from meander.connectors.kafka.client import admin
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.topics.control import ControlTopic, DecisionTopic
from meander.dataflow.control.decisions import StartDecision
from meander.state.keys.ids import ExecutionId
from tests.support.kafka.topics import PATIENCE, Record, produce, until
from tests.support.process.flow_process import flow_folder, lines

FIRST, SECOND = map(ExecutionId, (1, 2))


@pytest.fixture
def flow(bootstrap: str, prefix: str, tmp_path: Path) -> PreparedFlow:
    """A prepared flow whose control topic holds one command from before its first start."""
    lines(bootstrap, prefix, [])
    options = Options({"bootstrap.servers": bootstrap}, prefix=prefix)
    prepared = prepare(flow_folder(tmp_path / "flow", prefix), options)
    give(prepared)
    return prepared


def give(flow: PreparedFlow) -> None:
    """Put one command on the control topic."""
    produce(flow.options.kafka["bootstrap.servers"], flow.names.control, [Record(b"command")])


def start(flow: PreparedFlow, execution: ExecutionId) -> int:
    """Start an execution of a new driver; return the offset of its first command."""
    settings, names = flow.options.kafka, flow.names
    name = group(flow.options.prefix, flow.flow)
    with (
        closing(ControlTopic(settings, names.control, name)) as control,
        closing(DecisionTopic(settings, names.decisions)) as decisions,
    ):
        decisions.write(to_bytes(execution, StartDecision(0, (), 1)))
        return resume_commands(flow.with_execution(execution), control, decisions, None).first


def expire_group(flow: PreparedFlow) -> None:
    """Let Kafka forget the consumer group, as it does after a week without a commit."""
    client, name = admin(flow.options.kafka), group(flow.options.prefix, flow.flow)

    def forgotten() -> bool:
        try:
            client.delete_consumer_groups([name])[name].result(PATIENCE)
        except KafkaException:
            # The group counts as not empty for a moment.
            return False
        return True

    until(forgotten, "the group is forgotten")


def test_a_driver_continues_at_the_first_start_though_the_group_has_expired(
    flow: PreparedFlow,
) -> None:
    assert start(flow, FIRST) == 1, "no command from before the first start is handled"
    expire_group(flow)
    give(flow)
    assert start(flow, SECOND) == 1, "a command that came while no driver ran is handled"
