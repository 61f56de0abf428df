"""Whatever process of a flow dies or hangs, the others end, and a sentence says why.

Each flow here is the real command with Spark and Kafka. That nothing is left is told by a mark in
the environment that the driver, its JVM and the workers share.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from typer.testing import CliRunner

from meander import Checkpointing
from meander.app.cli.main import app
from meander.app.config.options import Options
from meander.app.driver import driver
from meander.connectors.topics.internal_topics import topic_names
from meander.schemas.errors import MeanderError
from meander.schemas.status import Event, Heartbeat, Started
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, await_records, consume_all, until
from tests.support.process.flow_process import (
    UP,
    FlowProcess,
    alive,
    flow_folder,
    last_beat,
    lines,
    meander,
    run_command,
)
from tests.support.process.word_counts import committed_counts, each_once

HEARTBEAT_TIMEOUT = 4.0
LOUD = """
logging = __import__("logging")
logging.getLogger("meander.waits").addHandler(logging.FileHandler({path!r}))
"""
"""What a flow's module does besides, so that its workers' waits are seen beside the driver, too."""
SILENT = "for=coordinator"
STOPS = """
import os
import signal
from pathlib import Path

gate = Path({gate!r})
if gate.exists() and not (gate / "open").exists():
    (gate / str(os.getpid())).touch()
    signal.pause()
gate.mkdir(exist_ok=True)
"""
"""Stops a worker before it runs. The driver loads the flow first."""
WAITS = """
from pathlib import Path


def say(line):
    while not Path({gate!r}).exists():
        time.sleep(0.01)
"""
"""Holds each record until the test opens the gate."""


@pytest.fixture
def running(broker: Broker, prefix: str, tmp_path: Path) -> Iterator[FlowProcess]:
    """A flow of two workers whose results have left, so a loss ends it."""
    lines(broker.bootstrap, prefix, ["to be or not to be"] * 20)
    module = flow_folder(tmp_path, prefix)
    words = run_command(module, prefix, HEARTBEAT_TIMEOUT, "--startup-timeout", str(PATIENCE))
    with meander(tmp_path, broker.bootstrap, *words) as process:
        process.until_event("started")
        await_records(broker.bootstrap, prefix + "counts", lambda all: len(all) >= 120)
        yield process


def test_a_killed_worker_ends_the_flow_and_is_named(running: FlowProcess) -> None:
    pid = running.workers[1]
    os.kill(pid, signal.SIGKILL)

    assert running.exit_code() == 1
    last = running.said.splitlines()[-1]
    assert f"worker 1 (process {pid} on " in last
    assert "its process was killed, or crashed" in last
    assert "restart_refused" in running.said
    assert "run the flow again" in last
    assert str(running.until_event("failed")["reason"]) == last
    running.until_gone()


def test_a_worker_lost_before_the_first_checkpoint_costs_nothing_where_no_result_has_left(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    lines(broker.bootstrap, prefix, ["to be or not to be"] * 20)
    rare = Checkpointing(interval=600)
    module = flow_folder(tmp_path, prefix, delivery="exactly_once", checkpoints=rare)
    # The first checkpoint begins at once, and no worker freezes while it holds a record.
    gate, functions = tmp_path / "gate", tmp_path / "counting.py"
    functions.write_text(functions.read_text() + WAITS.format(gate=str(gate)))
    ends = "--prefix", prefix, "--bootstrap", broker.bootstrap
    words = run_command(module, prefix, HEARTBEAT_TIMEOUT, "--startup-timeout", str(PATIENCE))
    with meander(tmp_path, broker.bootstrap, *words) as process:
        process.until_event("started")
        os.kill(process.workers[1], signal.SIGKILL)
        assert process.until_event("recovering")["checkpoint"] == 0
        gate.touch()
        until(lambda: len(process.of("started")) == 2, "it has begun again")
        taken = CliRunner().invoke(app, ["checkpoint", "counts", *ends])
        assert taken.exit_code == 0, taken.output
        process.process.send_signal(signal.SIGINT)
        assert process.exit_code() == 128 + signal.SIGINT
        process.until_gone()
    counts = each_once(committed_counts(broker.bootstrap, prefix))
    assert counts == {"to": 40, "be": 40, "or": 20, "not": 20}


def test_a_worker_lost_before_the_flow_runs_costs_nothing_at_least_once(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    lines(broker.bootstrap, prefix, ["to be or not to be"] * 20)
    module, gate = flow_folder(tmp_path, prefix), tmp_path / "gate"
    module.write_text(STOPS.format(gate=str(gate)) + module.read_text())
    options = "--workers", "1", "--startup-timeout", str(PATIENCE)
    words = run_command(module, prefix, HEARTBEAT_TIMEOUT, *options, "--until-end")
    with meander(tmp_path, broker.bootstrap, *words) as process:
        until(lambda: gate.exists() and any(gate.iterdir()), "the worker loads the flow")
        (stopped,) = gate.iterdir()
        (gate / "open").touch()
        os.kill(int(stopped.name), signal.SIGKILL)
        assert process.until_event("recovering")["checkpoint"] == 0
        assert process.exit_code() == 0, process.said
        assert len(process.of("started")) == 1
    counts = each_once(committed_counts(broker.bootstrap, prefix))
    assert counts == {"to": 40, "be": 40, "or": 20, "not": 20}


def test_a_flow_starts_over_where_no_result_has_left_and_skips_no_record(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    lines(broker.bootstrap, prefix, ["earlier"] * 20)
    module, gate = flow_folder(tmp_path, prefix), tmp_path / "gate"
    functions = tmp_path / "counting.py"
    functions.write_text(functions.read_text() + WAITS.format(gate=str(gate)))
    options = "--start", "latest", "--startup-timeout", str(PATIENCE)
    words = run_command(module, prefix, HEARTBEAT_TIMEOUT, *options, "--metrics-host", "127.0.0.2")
    with meander(tmp_path, broker.bootstrap, *words) as process:
        process.until_event("started")
        lines(broker.bootstrap, prefix, ["to be or not to be"] * 20, create=False)
        os.kill(process.workers[1], signal.SIGKILL)
        assert process.until_event("recovering")["checkpoint"] == 0
        gate.touch()
        await_records(broker.bootstrap, prefix + "counts", lambda all: len(all) >= 120)
        (address,) = re.findall(r"metrics_served address=(http://127\.0\.0\.2:\S+)", process.said)
        with urllib.request.urlopen(address) as answer:
            assert 'meander_restarts_total{flow="counts"} 1.0' in answer.read().decode()
        os.kill(process.workers[1], signal.SIGKILL)
        assert process.exit_code() == 1, "results have left"
        assert len(process.of("recovering")) == 1
        process.until_gone()
    counts = each_once(committed_counts(broker.bootstrap, prefix))
    assert counts == {"to": 40, "be": 40, "or": 20, "not": 20}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("to be", r"nothing was heard of it for \d+ s: it is stopped"),
        ("sleep", r"nothing was heard of it for \d+ s: it is stopped"),
        ("hang", "its process was killed, or crashed"),
    ],
    ids=["stopped", "stopped within a call", "its loop hangs"],
)
def test_a_worker_that_hangs_longer_than_the_lease_ends_the_flow_and_is_named(
    text: str,
    says: str,
    broker: Broker,
    prefix: str,
    tmp_path: Path,
    context: SparkContext,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines(broker.bootstrap, prefix, [text])
    options = Options(
        {"bootstrap.servers": broker.bootstrap},
        prefix=prefix,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        startup_timeout=PATIENCE,
        restart_attempts=0,
    )  # fmt: skip
    workers: dict[str, str] = {}

    def hang(event: Event) -> None:
        if isinstance(event, Started):
            workers.update(UP.findall(caplog.text))
        calls = event.calls if isinstance(event, Heartbeat) else ()
        if text == "to be" and isinstance(event, Started):
            os.kill(int(workers["0"]), signal.SIGSTOP)
        if text == "sleep" and calls and calls[0].seconds > options.heartbeat_timeout:
            assert calls[0].operator == "inspect"
            os.kill(int(workers[str(calls[0].worker)]), signal.SIGSTOP)

    with (
        caplog.at_level(logging.INFO),
        pytest.raises(MeanderError, match=rf"worker \d .*{says}"),
    ):
        driver.run(flow_folder(tmp_path / "flow", prefix), options, lambda: context, hang)
    until(lambda: not any(alive(int(pid)) for pid in workers.values()), "both have ended")


def test_a_killed_jvm_ends_the_flow_with_a_sentence(running: FlowProcess) -> None:
    (jvm,) = [line for line in running.living() if "SparkSubmit" in line]
    os.kill(int(jvm.partition(":")[0]), signal.SIGKILL)

    assert running.exit_code() == 1
    last = running.said.splitlines()[-1]
    assert "Spark's JVM has ended (killed by SIGKILL)" in last
    assert "Traceback" not in running.said
    assert "Exception" not in running.said
    assert str(running.until_event("failed")["reason"]) == last
    running.until_gone()


JVM_GONE = """
from meander.app.driver.workers.spark_launcher import capacity, spark_context

with spark_context("local[2]", "tests") as spark:
    print(capacity(spark))
    spark._gateway.proc.kill()
    try:
        capacity(spark)
    except Exception as error:
        print(error)
"""


def test_a_jvm_that_is_gone_between_two_executions_is_named() -> None:
    """The next execution asks it for slots before it launches any worker."""
    told = subprocess.run([sys.executable, "-c", JVM_GONE], check=True, capture_output=True)
    first, second = told.stdout.decode().splitlines()
    assert first == "2"
    assert second.startswith("Spark: Spark's JVM has ended (killed by SIGKILL);")


def test_the_workers_of_a_killed_driver_end_themselves(running: FlowProcess) -> None:
    os.kill(running.process.pid, signal.SIGKILL)

    running.exit_code()
    running.until_gone()


def test_the_workers_of_a_driver_that_hangs_end_themselves(
    running: FlowProcess, broker: Broker, prefix: str
) -> None:
    """One of them within a call that ends long after."""
    lines(broker.bootstrap, prefix, ["sleep"], create=False)
    until(lambda: last_beat(broker.bootstrap, prefix)["calls"] != [], "the call is told of")
    os.kill(running.process.pid, signal.SIGSTOP)

    workers = set(running.workers.values())
    assert workers
    until(lambda: not any(map(alive, workers)), "the workers have ended")
    os.kill(running.process.pid, signal.SIGCONT)
    assert running.exit_code() == 1
    running.until_gone()


def test_workers_go_on_while_the_driver_hangs_for_less_than_the_lease(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    lines(broker.bootstrap, prefix, ["to be"] * 20)
    module, waits = flow_folder(tmp_path, prefix), tmp_path / "waits"
    with module.open("a") as text:
        text.write(LOUD.format(path=str(waits)))
    words = run_command(module, prefix, PATIENCE)
    with meander(tmp_path, broker.bootstrap, *words) as running:

        def answered(count: int) -> None:
            await_records(broker.bootstrap, prefix + "counts", lambda all: len(all) >= count)

        answered(40)
        # Until it has seen how fast the data's time runs, the driver rules out nothing beyond it.
        status = topic_names(prefix, "counts").status
        told = len(consume_all(broker.bootstrap, status))
        await_records(broker.bootstrap, status, lambda all: len(all) >= told + 3)
        os.kill(running.process.pid, signal.SIGSTOP)
        lines(broker.bootstrap, prefix, ["or not"] * 20, create=False)
        answered(80)
        until(lambda: waits.read_text().count(SILENT) == 2, "both workers say what they wait for")
        lines(broker.bootstrap, prefix, ["or not"] * 20, create=False, after=3_600_000)
        os.kill(running.process.pid, signal.SIGCONT)
        answered(120)
        said = [f"waited worker={n} {SILENT}" for n in range(2)]
        until(lambda: all(text in running.said for text in said), "its end is told")
        assert all(f"waiting worker={n} {SILENT} since=" in running.said for n in (0, 1))
        # Ctrl-C stops everything, and is the exit code.
        running.process.send_signal(signal.SIGINT)
        assert running.exit_code() == 128 + signal.SIGINT
        assert running.until_event("finished")
        running.until_gone()
    counts = each_once(committed_counts(broker.bootstrap, prefix))
    assert counts == {"to": 20, "be": 20, "or": 40, "not": 40}


def test_a_signal_while_spark_starts_leaves_nothing_behind(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    lines(broker.bootstrap, prefix, [])
    module = flow_folder(tmp_path, prefix)
    with meander(tmp_path, broker.bootstrap, "run", str(module), "--prefix", prefix) as process:
        process.until_event("summary")
        process.process.send_signal(signal.SIGTERM)
        assert process.exit_code() == 128 + signal.SIGTERM
        process.until_gone()
