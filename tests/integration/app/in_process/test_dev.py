"""`meander dev` shows results as they come, starts a changed flow again, and ends whole."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from meander.connectors.local_broker.broker import broker_status, is_free
from meander.connectors.local_broker.default import PORT
from meander.connectors.local_broker.kafka_jars import cache
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, create_topic, ends, produce, until
from tests.support.process.flow_process import FlowProcess, kill, meander

FLOW = """
from meander import Flow, KafkaSink, KafkaSource
from changes import change

flow = Flow("{prefix}words")
lines = flow.source(KafkaSource("{prefix}lines", value="str"))
print("a line of the user")
lines.map(change).key_by(len).sink(KafkaSink("{prefix}words"))
"""


@pytest.fixture
def module(tmp_path: Path, prefix: str) -> Path:
    """A flow whose function lies in another file."""
    name = prefix.replace(".", "_")
    (tmp_path / "flow.py").write_text(FLOW.format(prefix=name))
    (tmp_path / "changes.py").write_text("change = str.upper\n")
    return tmp_path / "flow.py"


def values(dev: FlowProcess) -> list[object]:
    return [(one["key"], one["value"]) for one in dev.of("result")]


def test_a_saved_change_shows_in_the_results(broker: Broker, module: Path, prefix: str) -> None:
    topic = prefix.replace(".", "_")
    for name in ("lines", "words"):
        create_topic(broker.bootstrap, topic + name, 1)
    produce(broker.bootstrap, topic + "lines", [Record(b"one")])
    with meander(module.parent, broker.bootstrap, "dev", "flow.py") as dev:
        until(lambda: values(dev) == [(3, "ONE")], f"the first result: {dev.said}")
        produce(broker.bootstrap, topic + "lines", [Record(b"two")])
        until(lambda: values(dev)[1:] == [(3, "TWO")], "a result as it comes")
        (module.parent / "changes.py").write_text("change = 1 / 0\n")
        until(lambda: bool(dev.of("failed")), "the change that fails")
        assert "ZeroDivisionError" in str(dev.of("failed")[0]["reason"])
        (module.parent / "changes.py").write_text("change = '{}!'.format\n")
        until(lambda: values(dev)[2:] == [(4, "one!"), (4, "two!")], f"all anew: {dev.events}")
        dev.process.send_signal(signal.SIGINT)
        assert dev.exit_code() == 130
        dev.until_gone()
    assert "a line of the user" in dev.said
    assert ends(broker.bootstrap, topic + "words") == 0, "nothing is written"


def test_the_process_of_the_flow_ends_with_its_command(broker: Broker, module: Path) -> None:
    with meander(module.parent, broker.bootstrap, "dev", "flow.py") as dev:
        until(lambda: bool(dev.of("failed")), "its topic is missing")
        kill(dev.process.pid)
        dev.until_gone()


@pytest.mark.skipif(not is_free(PORT), reason=f"another broker of this machine has port {PORT}")
def test_a_local_broker_runs_meanwhile(module: Path, tmp_path: Path) -> None:
    data = tmp_path / ".local" / "share" / "meander" / "broker"
    home = {"HOME": str(tmp_path), "MEANDER_CACHE": str(cache().parent)}
    with meander(module.parent, "", "dev", "flow.py", **home) as dev:
        dev.until_event("started")
        running = broker_status(data)
        assert running is not None
        (topic,) = (f"{one['flow']}".replace("words", "lines") for one in dev.of("started"))
        produce(running.bootstrap, topic, [Record(b"hello")])
        until(lambda: values(dev) == [(5, "HELLO")], f"the result: {dev.said}")
        dev.process.send_signal(signal.SIGINT)
        assert dev.exit_code() == 130
        assert broker_status(data) is None
        dev.until_gone()
