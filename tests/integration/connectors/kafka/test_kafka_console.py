"""A command is a line of text that Kafka's own console tools can produce."""

from __future__ import annotations

import subprocess

from meander.connectors.kafka.client import admin
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import kafka_jars
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.internal_topics import ensure_internal
from meander.schemas.control import Migrate, is_command, parse_command
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import PATIENCE, until


def test_a_line_of_text_moves_bins(broker: Broker, prefix: str) -> None:
    rig = Rig(broker.bootstrap, prefix)
    names = ensure_internal(admin(rig.settings), prefix, "flow")
    control = ControlTopic(rig.settings, names.control, group(prefix, "flow"))
    control.start(None)
    line = b'{"meander": "command", "type": "migrate", "id": "m1", "bins": "all", "worker": 1}\n'
    console = ["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", rig.bootstrap]
    subprocess.run(
        [java(), "-cp", f"{kafka_jars()}/*", *console, "--topic", names.control],
        input=line, check=True, timeout=PATIENCE, capture_output=True,
    )  # fmt: skip
    found: list[bytes | None] = []

    def came() -> bool:
        found.extend(raw.value for raw in control.poll())
        return bool(found)

    until(came, "the command")
    control.close()
    assert is_command(found[0])
    command = parse_command(found[0], 256)
    assert isinstance(command, Migrate)
    assert (command.id, command.bins, command.worker) == ("m1", "all", 1)
