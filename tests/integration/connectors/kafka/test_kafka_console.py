"""Kafka's own console tools are all that it takes to command a flow, and to feed and read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from meander.connectors.kafka.client import admin
from meander.connectors.kafka.topics import group
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import cache, kafka_jars
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.topics import ensure_internal
from meander.schemas.control import Migrate, meant, parse_command
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until

README = Path(__file__).parents[4] / "README.md"


def test_a_line_of_text_moves_bins(broker: Broker, prefix: str) -> None:
    rig = Rig(broker.bootstrap, prefix)
    names = ensure_internal(admin(rig.settings), prefix, "flow")
    control = ControlTopic(rig.settings, names.control, group(prefix, "flow"))
    control.begin(None)
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
    assert meant(found[0])
    command = parse_command(found[0], 256)
    assert isinstance(command, Migrate)
    assert (command.id, command.bins, command.worker) == ("m1", "all", 1)


def readme_command(tool: str, broker: Broker, prefix: str, more: str = "") -> str:
    """What the command that the README shows prints, with this test's broker and topics."""
    lines = README.read_text().replace("\\\n", "").splitlines()
    (command,) = [line for line in lines if f"{tool} " in line]
    for shown, here in (
        ("$HOME/.cache/meander", str(cache().parent)),
        ("127.0.0.1:9092", broker.bootstrap),
        ("--topic ", f"--topic {prefix}"),
    ):
        assert shown in command
        command = command.replace(shown, here)
    done = subprocess.run(
        command + more, shell=True, check=True, timeout=PATIENCE, capture_output=True, text=True
    )
    return done.stdout


def test_the_commands_of_the_readme_put_lines_on_a_topic_and_read_results(
    broker: Broker, prefix: str
) -> None:
    for topic in ("lines", "counts"):
        create_topic(broker.bootstrap, prefix + topic, 4)
    readme_command("ConsoleProducer", broker, prefix)
    (line,) = consume_all(broker.bootstrap, prefix + "lines")
    assert line.value == b"to be or not to be"

    results = ['{"word":"to","count":1}', '{"word":"be","count":1}']
    produce(broker.bootstrap, prefix + "counts", [Record(text.encode()) for text in results])
    shown = readme_command("ConsoleConsumer", broker, prefix, more=" --max-messages 2")
    assert sorted(shown.splitlines()) == sorted(results)
