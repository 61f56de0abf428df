"""Kafka's own console producer is all that it takes to command a flow."""

from __future__ import annotations

import subprocess

from connectors.client import admin
from connectors.control import ControlTopic
from connectors.java import java
from connectors.kafka_jars import kafka_jars
from connectors.topics import ensure_internal
from schemas.control import parse_command
from tests.brokers import Broker
from tests.kafka_rig import Rig
from tests.kafka_tools import until


def test_a_line_of_text_moves_bins(broker: Broker, prefix: str) -> None:
    rig = Rig(broker.bootstrap, prefix)
    names = ensure_internal(admin(rig.settings), prefix, "flow")
    control = ControlTopic(rig.settings, names.control, f"{prefix}flow")
    line = b'{"type": "migrate", "id": "m1", "bins": "all", "worker": 1, "strategy": "sudden"}\n'
    console = ["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", rig.bootstrap]
    subprocess.run(
        [java(), "-cp", f"{kafka_jars()}/*", *console, "--topic", names.control],
        input=line, check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    found: list[bytes | None] = []

    def came() -> bool:
        found.extend(raw.value for raw in control.poll())
        return bool(found)

    until(came, "the command")
    control.close()
    command = parse_command(found[0], 256, 2)
    assert (command.id, command.bins, command.worker, command.strategy) == (
        "m1",
        "all",
        1,
        "sudden",
    )
