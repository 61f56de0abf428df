"""The Compose file is valid, and what it says runs: here as plain processes, in CI as containers.

Commands and environment are taken from the file; only names and ports of its network, and folders,
are replaced by those of this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest
import yaml
from confluent_kafka import KafkaException

from meander.connectors.local_broker.broker import SETTINGS, free_port, watch
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import kafka_jars
from meander.schemas.status import BinMoved, Completed, Event, Finished, Started, parse_event
from tests.support.kafka.apicurio import VERSION
from tests.support.kafka.brokers import IMAGE
from tests.support.kafka.topics import PATIENCE, admin, consume_all, until

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
Service = dict[str, object]


def services() -> dict[str, Service]:
    return cast(dict[str, Service], yaml.safe_load(FILE.read_text())["services"])


TOOLS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
"""What the scripts of Kafka's image start."""


def property_of(variable: str) -> str:
    """The setting that a variable stands for, by the rules of Kafka's image."""
    bare = variable.removeprefix("KAFKA_").lower()
    return bare.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def answers(bootstrap: str) -> bool:
    """Whether a broker does, and names the address by which it was asked."""
    try:
        found = admin(bootstrap).list_topics(timeout=2).brokers.values()
    except KafkaException:
        return False
    return [f"{broker.host}:{broker.port}" for broker in found] == [bootstrap]


class Stack:
    """The services of the file as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        ports: dict[str, int] = {}
        for port in ("9092", "9093", "9094", "7077", "8080", "8081"):
            ports[port] = free_port(*ports.values())
        self.page = ports["8080"]
        self.bootstrap = f"127.0.0.1:{ports['9092']}"
        self.outside = f"127.0.0.1:{ports['9094']}"
        self._here = {
            "kafka:": "127.0.0.1:",
            "://:": "://127.0.0.1:",
            "spark-master": "127.0.0.1",
            "$$(hostname -i)": "127.0.0.1",
            "$$": "$",
            "/tmp/spark-worker": str(folder / "work"),
            "/opt/kafka/bin": str(folder),
        } | {there: str(here) for there, here in ports.items()}
        self._folder = folder
        for name, tool in TOOLS.items():
            script = folder / name
            script.write_text(f"#!/bin/sh\nexec {java()} -cp '{kafka_jars()}/*' {tool} \"$@\"\n")
            script.chmod(0o755)

    def here(self, text: str) -> str:
        """What the file says, in the names of this machine."""
        # At once, as a port of this machine may hold the number of another.
        return re.sub("|".join(map(re.escape, self._here)), lambda at: self._here[at[0]], text)

    def broker(self) -> list[str]:
        """What the image of Kafka starts with the file's environment; its storage is formatted."""
        lines = [f"log.dirs={self._folder / 'kafka'}"]
        for name, value in cast(dict[str, str], services()["kafka"]["environment"]).items():
            lines.append(f"{property_of(name)}={self.here(value)}")
        properties = self._folder / "server.properties"
        properties.write_text("\n".join(lines))
        kafka = [java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*"]
        cluster = "5L6g3nShT-eMCtK--X86sw"
        done = subprocess.run(
            [*kafka, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", properties],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [*kafka, "kafka.Kafka", str(properties)]

    def await_broker(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers, under both of its addresses."""

        def ready() -> bool:
            assert process.poll() is None, self.log("kafka").read_text()
            return answers(self.bootstrap) and answers(self.outside)

        until(ready, "kafka has started")

    def command(self, name: str) -> list[str]:
        service = services()[name]
        if name == "kafka":
            return self.broker()
        words = cast(list[str], service.get("entrypoint", [])) + cast(list[str], service["command"])
        return [self.here(word) for word in words]

    def environ(self, name: str) -> dict[str, str]:
        given = cast(dict[str, str], services()[name].get("environment", {}))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        local = {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        return os.environ | local | {key: self.here(value) for key, value in given.items()}

    def once(self, name: str) -> str:
        """Run a service that ends by itself; what it has said."""
        done = subprocess.run(
            self.command(name), env=self.environ(name), cwd=ROOT, timeout=PATIENCE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stdout}"
        return done.stdout

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    @contextmanager
    def run(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """One service while the block lasts."""
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                self.command(name), env=self.environ(name), stdout=log, stderr=log, cwd=ROOT
            )
        watcher = watch(process.pid)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)
            watcher.kill()
            watcher.communicate()

    def workers(self) -> int | None:
        """How many the master's page counts as alive; None where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=5) as page:
                return int(json.load(page)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError, json.JSONDecodeError):
            return None  # The page comes up in steps, a human's before a machine's.

    def await_workers(self, count: int, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until so many workers have registered, as the service just started brings about."""

        def ready() -> bool:
            assert process.poll() is None, self.log(name).read_text()
            return self.workers() == count

        until(ready, f"{name} has started")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Broker, master and worker as in the file."""
    running = Stack(tmp_path)
    with ExitStack() as processes:
        # Each takes its seconds to start; only the worker needs another, its master.
        master, kafka = (processes.enter_context(running.run(n)) for n in ("spark-master", "kafka"))
        running.await_workers(0, "spark-master", master)
        worker = processes.enter_context(running.run("spark-worker"))
        running.await_broker(kafka)
        running.await_workers(1, "spark-worker", worker)
        yield running


def test_the_file_follows_the_compose_specification() -> None:
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_image_is_the_one_of_the_tests() -> None:
    images = {name: service["image"] for name, service in services().items()}
    registry = f"apicurio/apicurio-registry:{VERSION}"
    assert images.pop("registry") == registry
    assert {image for image in images.values() if image != "meander"} == {IMAGE}


def test_its_broker_is_the_one_of_the_tests() -> None:
    kafka = services()["kafka"]
    environ = cast(dict[str, str], kafka["environment"])
    same = {"KAFKA_" + name.upper().replace(".", "_"): str(v) for name, v in SETTINGS.items()}
    named = {"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "KAFKA_INTER_BROKER_LISTENER_NAME"}
    for name in environ.keys() & same.keys() - named:
        assert environ[name] == same[name], name


def test_variables_of_kafkas_image_stand_for_its_settings() -> None:
    assert property_of("KAFKA_LOG_DIRS") == "log.dirs"
    assert property_of("KAFKA_A__B___C_D") == "a_b-c.d"


def test_whatever_it_publishes_it_publishes_to_this_machine_only() -> None:
    for name, service in services().items():
        for port in cast(list[str], service.get("ports", [])):
            assert port.startswith("127.0.0.1:"), name


def test_the_demo_flow_runs_on_the_cluster_and_obeys_a_command_by_hand(stack: Stack) -> None:
    def told(kind: type[Event]) -> list[Event]:
        if "flights.status" not in admin(stack.bootstrap).list_topics(timeout=PATIENCE).topics:
            return []
        records = consume_all(stack.bootstrap, "flights.status")
        events = [parse_event(record.value or b"") for record in records]
        return [event for event in events if isinstance(event, kind)]

    with stack.run("app") as app:

        def started() -> bool:
            assert app.poll() is None, stack.log("app").read_text()
            return bool(told(Started))

        until(started, "the flow has started")
        with stack.run("feed"):
            answers = stack.once("results").splitlines()
            stack.once("command")
            until(lambda: bool(told(Completed)), "the command is completed")

        app.terminate()
        app.wait(30)
        assert told(Finished), stack.log("app").read_text()

    results = [line for line in answers if "meander.time:" in line]
    assert len(results) == 10
    assert {event.target for event in told(BinMoved) if isinstance(event, BinMoved)} == {1}
