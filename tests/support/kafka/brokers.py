"""Which broker a test run takes: the one given, one in a container, or a local one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from meander.connectors.local_broker.broker import SETTINGS, LocalBroker, free_port
from meander.connectors.local_broker.kafka_jars import KAFKA

IMAGE = f"apache/kafka:{KAFKA}"


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker of a test run."""

    bootstrap: str
    kind: str


def no_docker() -> str | None:
    """Why no container can be started here; None where a Docker engine answers."""
    try:
        client = docker.from_env(timeout=5)
        try:
            client.ping()
        finally:
            client.close()
    except (DockerException, OSError) as error:
        return f"no Docker engine answers ({error})"
    return None


def choice(given: str | None) -> str:
    """What `running` will take, in words."""
    if given or os.environ.get("MEANDER_BOOTSTRAP"):
        return "the given broker"
    return f"container {IMAGE}" if no_docker() is None else f"local Apache Kafka {KAFKA}"


@contextmanager
def running(given: str | None) -> Iterator[Broker]:
    """The broker for one test run: given, else container, else local."""
    kind = choice(given)
    bootstrap = given or os.environ.get("MEANDER_BOOTSTRAP")
    if bootstrap:
        yield Broker(bootstrap, kind)
    elif kind.startswith("container"):
        with container() as bootstrap:
            yield Broker(bootstrap, kind)
    else:
        with LocalBroker() as local:
            yield Broker(local.bootstrap, kind)


@contextmanager
def container() -> Iterator[str]:
    """The bootstrap of the official image, run with the settings of the local broker."""
    port = free_port()
    settings = SETTINGS | {
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    kafka = DockerContainer(IMAGE).waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    for name, value in settings.items():
        kafka.with_env("KAFKA_" + name.upper().replace(".", "_"), str(value))
    kafka.ports["9092"] = ("127.0.0.1", port)  # type: ignore[assignment]  # a host too: localhost
    with kafka:
        yield f"127.0.0.1:{port}"
