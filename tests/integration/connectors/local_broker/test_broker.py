"""The local broker is the real thing: it keeps what it took, and it never outlives its owner."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meander.connectors.local_broker import kafka_jars as jars
from meander.connectors.local_broker.broker import (
    LocalBroker,
    broker_start,
    broker_status,
    broker_stop,
)
from meander.connectors.local_broker.java import java
from meander.schemas.errors import SetupError
from tests.support.kafka.brokers import Broker, container, no_docker
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    admin,
    consume_all,
    create_topic,
    produce,
    until,
)

NEW_YEAR_2013 = 1_356_998_400_000
DAY = 86_400_000


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_was_acknowledged_survives_a_kill_on_the_same_port(own_broker: LocalBroker) -> None:
    create_topic(own_broker.bootstrap, "flights", 2)
    sent = [Record(b"%d" % i, b"k", i % 2) for i in range(100)]
    produce(own_broker.bootstrap, "flights", sent, {"acks": "all"})
    before, first = own_broker.bootstrap, own_broker.pid

    own_broker.kill()
    assert own_broker.pid is None
    own_broker.start()

    assert own_broker.bootstrap == before
    assert own_broker.pid != first
    found = consume_all(own_broker.bootstrap, "flights")
    assert {record.value for record in found} == {record.value for record in sent}
    assert len(found) == len(sent)


def test_data_of_another_year_is_taken_and_keeps_its_time(broker: Broker, prefix: str) -> None:
    topic = prefix + "old"
    create_topic(broker.bootstrap, topic)
    times = [NEW_YEAR_2013 + day * DAY for day in range(365)] + [NEW_YEAR_2013 + 30 * 365 * DAY]
    produce(broker.bootstrap, topic, [Record(b"x", timestamp=at) for at in times])

    assert [record.timestamp for record in consume_all(broker.bootstrap, topic)] == times


def test_a_question_about_a_missing_topic_does_not_create_it(broker: Broker, prefix: str) -> None:
    with pytest.raises(AssertionError, match="does not exist"):
        consume_all(broker.bootstrap, prefix + "nowhere")
    assert prefix + "nowhere" not in admin(broker.bootstrap).list_topics(timeout=PATIENCE).topics


def test_the_console_tools_of_kafka_work_with_it(broker: Broker, prefix: str) -> None:
    topic = prefix + "console"
    create_topic(broker.bootstrap, topic)
    tool = [
        java(), "-cp", str(jars.kafka_jars() / "*"), "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server", broker.bootstrap, "--topic", topic,
    ]  # fmt: skip

    subprocess.run(tool, input=b'{"by": "hand"}\n', check=True, timeout=PATIENCE)

    assert [record.value for record in consume_all(broker.bootstrap, topic)] == [b'{"by": "hand"}']


def test_the_broker_dies_with_the_process_that_started_it() -> None:
    program = (
        "import time; from meander.connectors.local_broker.broker import LocalBroker\n"
        "b = LocalBroker(); b.start(); print(b.pid, b.log.parent, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        assert alive(int(pid))
        owner.send_signal(signal.SIGKILL)

    until(lambda: not alive(int(pid)), "the broker has ended")
    shutil.rmtree(home)


def test_a_detached_broker_runs_until_it_is_stopped(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from meander.connectors.local_broker.broker import broker_start\n"
        "print(broker_start(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    status = broker_status(tmp_path)
    assert status is not None
    try:
        assert said.stdout.strip() == status.bootstrap
        assert said.stderr == ""
        assert admin(status.bootstrap).list_topics(timeout=PATIENCE).brokers
        assert broker_start(tmp_path) == status.bootstrap, "the one that runs is taken"
        with pytest.raises(SetupError, match=f"one runs already, at {status.bootstrap}"):
            broker_start(tmp_path, port=1)
    finally:
        assert broker_stop(tmp_path)

    assert not alive(status.pid)
    assert broker_status(tmp_path) is None
    assert not broker_stop(tmp_path)


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        pass
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=x\n")

    with pytest.raises(SetupError, match=r"ended at once; its log .*server.log ends with(.|\n)*id"):
        broker.start()
    assert broker.pid is None


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}: another process listens there"):
            LocalBroker(tmp_path, port=port).start()


def test_a_corrupt_jar_is_not_run_but_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(jars.kafka_jars(), tmp_path / f"kafka-{jars.KAFKA}")
    monkeypatch.setenv("MEANDER_CACHE", str(tmp_path))
    victim = jars.cache() / "jopt-simple-5.0.4.jar"
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    assert [jar.name for jar in jars.mismatches(jars.cache(), jars.pins())] == [victim.name]

    assert jars.kafka_jars() == jars.cache()

    assert jars.mismatches(jars.cache(), jars.pins()) == []
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"kafka-{jars.KAFKA}", f"kafka-{jars.KAFKA}.lock"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digest": "0" * 64}, "jopt-simple-5.0.4.jar of Apache Kafka .*: SHA-256 0{64} is pinned"),
        ({"revision": "0.0.0"}, "its jars could not be fetched from Maven Central .*jopt-simple"),
    ],
)
def test_a_jar_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], said: str
) -> None:
    jar = next(jar for jar in jars.pins() if jar.module == "jopt-simple")
    monkeypatch.setattr(jars, "pins", lambda: [replace(jar, **change)])
    monkeypatch.setenv("MEANDER_CACHE", str(tmp_path))

    with pytest.raises(SetupError, match=said):
        jars.kafka_jars()

    assert list(jars.cache().iterdir()) == []


def test_the_official_image_takes_the_same_settings() -> None:
    reason = no_docker()
    if reason:
        pytest.skip(reason)
    with container() as bootstrap:
        create_topic(bootstrap, "flights")
        produce(bootstrap, "flights", [Record(b"x", timestamp=NEW_YEAR_2013)])
        assert [r.timestamp for r in consume_all(bootstrap, "flights")] == [NEW_YEAR_2013]
