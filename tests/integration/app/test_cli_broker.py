"""The local broker is found wherever it listens, by commands that are told of no other."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from meander.connectors.local_broker.broker import HOST
from meander.connectors.local_broker.default import PORT
from meander.connectors.local_broker.kafka_jars import cache
from tests.support.kafka.topics import PATIENCE
from tests.support.process.flow_process import MEANDER

Line = dict[str, object]


@pytest.fixture
def taken() -> Iterator[None]:
    """The usual port is taken, by us where nobody else has it."""
    with socket.socket() as other:
        with contextlib.suppress(OSError):
            other.bind((HOST, PORT))
            other.listen()
        yield


@pytest.mark.usefixtures("taken")
def test_where_the_usual_port_is_taken_commands_go_to_the_port_that_the_broker_took(
    tmp_path: Path,
) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MEANDER_")
    } | {"HOME": str(tmp_path), "MEANDER_CACHE": str(cache().parent)}

    def call(*words: str) -> list[Line]:
        done = subprocess.run(
            [MEANDER, *words], env=environment, cwd=tmp_path, timeout=PATIENCE,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def setting() -> Line:
        (bootstrap,) = (line for line in call("config") if line["name"] == "bootstrap.servers")
        return bootstrap

    assert setting()["from"] == "default"
    (started,) = call("broker", "start")
    try:
        assert started["bootstrap"] != f"{HOST}:{PORT}"
        assert setting()["from"] == "local broker"
        assert setting()["value"] == started["bootstrap"]
        assert call("topics", "create", "lines") == [{"topic": "lines", "state": "created"}]
        assert call("broker", "start") == [started], "the one that runs is taken"
    finally:
        assert call("broker", "stop") == [{"stopped": True}]
    assert setting()["from"] == "default"
