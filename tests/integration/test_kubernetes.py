"""What the manifests for Kubernetes say runs: here as plain processes, in place of containers.

Words, environment, settings and probes are those of the manifests; only addresses, ports and
folders are replaced by those of this machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meander.connectors.local_broker.broker import free_port
from meander.connectors.topics.internal_topics import topic_names
from tests.support.deploy.manifests import (
    DEPLOY,
    Object,
    container,
    environ_of,
    named,
    pods,
    variables_of,
)
from tests.support.doc_blocks import blocks
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until
from tests.support.process.flow_process import FlowProcess, meander
from tests.support.process.spark_cluster import REGISTERED, STARTED

FIELDS = {"status.podIP": "127.0.0.1"}
SETTINGS = named("ConfigMap", "counts-settings")["data"]["meander.toml"]


class Node:
    """A machine that runs the containers of pods, with folders for their volumes."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str) -> None:
        self._folder, self._bootstrap, self._prefix = folder, bootstrap, prefix
        self.state = folder / "state"
        self._metrics, spark = (str(free_port()) for _ in range(2))
        self._here = {
            "/flow/": f"{folder}/",
            "/etc/meander/": f"{folder}/",
            "/var/lib/meander": str(self.state),
            "9464": self._metrics,
            # The master is bound to another name of this machine, as a service has its own address.
            "spark-master:7077": f"localhost:{spark}",
            "7077": spark,
        }
        self.state.mkdir()
        for topic in "lines", "counts":
            create_topic(bootstrap, prefix + topic, 4)
        (flow,) = (b.text for b in blocks("docs/quickstart.md") if b.file == "counts.py")
        (folder / "counts.py").write_text(re.sub(r'"(lines|counts)", v', rf'"{prefix}\1", v', flow))

    @contextmanager
    def driver(self, *lines: str) -> Iterator[FlowProcess]:
        """Run the pod of the flow, with more lines in its settings."""
        (self._folder / "meander.toml").write_text(self._local("\n".join([SETTINGS, *lines])))
        one = container(pods()["counts"])
        program, *words = self._words(one)
        assert program == "meander"
        environ = self._environ(one) | {
            "MEANDER_BOOTSTRAP": self._bootstrap, "MEANDER_FLOW__PREFIX": self._prefix,
            "MEANDER_FLOW__STARTUP_TIMEOUT": str(PATIENCE),
            "MEANDER_FLOW__HEARTBEAT_TIMEOUT": "60",
        }  # fmt: skip
        with meander(self._folder, self._bootstrap, *words, **environ) as running:
            yield running

    @contextmanager
    def spark(self, name: str, until_said: re.Pattern[str]) -> Iterator[None]:
        """Run a pod of Spark while the block lasts, which begins once it has said a line."""
        one, said = container(pods()[name]), self._folder / f"{name}.log"
        program, *words = self._words(one)
        assert program == "spark-class"
        command = [str(Path(sys.executable).with_name(program)), *words]
        pages = {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}
        environ = os.environ | {"PYSPARK_PYTHON": sys.executable} | self._environ(one) | pages
        with (
            said.open("w") as log,
            subprocess.Popen(command, env=environ, stdout=log, stderr=log) as process,
        ):
            try:
                until(lambda: until_said.search(said.read_text()) is not None, f"{name} runs")
                yield
            finally:
                process.terminate()

    def answer(self, kind: str) -> int:
        """Return the status with which the driver answers a probe; 0 without an answer."""
        path = container(pods()["counts"])[f"{kind}Probe"]["httpGet"]["path"]
        try:
            return self._get(path)[0]
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metrics(self) -> str:
        """Return the metrics of the driver."""
        return self._get("/metrics")[1]

    def _get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self._metrics}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()

    def results(self, *texts: str) -> int:
        """Feed lines to the flow; return how many results there are once each word has one."""
        records = [Record(text.encode(), partition=0) for text in texts]
        produce(self._bootstrap, self._prefix + "lines", records)
        words = sum(len(text.split()) for text in texts)

        def counted() -> list[Record]:
            return consume_all(self._bootstrap, self._prefix + "counts")

        until(lambda: len(counted()) >= words, "all words are counted")
        return len(counted())

    def checkpoints(self) -> int:
        """Return the number of records on the topic of checkpoints."""
        topic = topic_names(self._prefix, "counts").checkpoints
        return len(consume_all(self._bootstrap, topic))

    def _words(self, one: Object) -> list[str]:
        own = environ_of(one, FIELDS)
        words = (re.sub(r"\$\((\w+)\)", lambda at: own[at[1]], word) for word in one["args"])
        return [self._local(word) for word in words]

    def _environ(self, one: Object) -> dict[str, str]:
        """Return the environment of a container; the broker of the tests asks for no login."""
        found = variables_of(DEPLOY / "Dockerfile") | environ_of(one, FIELDS)
        kept = (pair for pair in found.items() if not pair[0].startswith("MEANDER_KAFKA"))
        return {name: self._local(value) for name, value in kept}

    def _local(self, text: str) -> str:
        # At once, as a port of this machine may hold the digits of another.
        return re.sub("|".join(map(re.escape, self._here)), lambda at: self._here[at[0]], text)


@pytest.fixture
def node(bootstrap: str, prefix: str, tmp_path: Path) -> Node:
    return Node(tmp_path, bootstrap, prefix)


def expect_ready(node: Node, running: FlowProcess) -> None:
    def ready() -> bool:
        assert running.process.poll() is None, running.said
        return node.answer("readiness") == 200

    until(ready, f"the driver is ready; standard error: {running.said}")


def test_the_pod_of_a_flow_gets_ready_and_ends_with_a_checkpoint(node: Node) -> None:
    with node.driver() as running:
        expect_ready(node, running)
        assert node.answer("startup") == node.answer("liveness") == 200
        assert 'meander_workers{flow="counts"} 2.0' in node.metrics()
        assert node.results("to be or", "not to be") == 6
        assert [*node.state.rglob("meander-counts-*")], "states lie on the volume"
        running.process.send_signal(signal.SIGTERM)
        assert running.exit_code() == 128 + signal.SIGTERM, running.said
    assert node.checkpoints() > 0


def test_the_workers_of_a_flow_run_in_the_pods_of_spark(node: Node) -> None:
    """A StatefulSet would start more workers."""
    with (
        node.spark("spark-master", STARTED),
        node.spark("spark-worker", re.compile(REGISTERED)),
        node.driver('master = "spark://spark-master:7077"') as running,
    ):
        expect_ready(node, running)
        assert node.results("to be or", "not to be") == 6
        assert [*(node.state / "work").rglob("meander-counts-*")], "states lie on the volume"
        running.process.send_signal(signal.SIGTERM)
        assert running.exit_code() == 128 + signal.SIGTERM, running.said
