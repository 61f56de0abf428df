"""The command line as a user has it: one flow runs, and every other command is tried on it."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from meander.connectors.kafka import reachability
from meander.connectors.kafka.client import admin
from meander.connectors.kafka.topic_metadata import find_topic
from meander.connectors.topics.internal_topics import ensure_internal, topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, consume_all, until
from tests.support.process.command_here import Done, command_here
from tests.support.process.flow_process import (
    MEANDER,
    FlowProcess,
    flow_folder,
    lines,
    meander,
    run_command,
)

FLOW = """
from meander import Flow, KafkaSource
flow = Flow("nobody")
flow.source(KafkaSource("nowhere"))
"""
TEXTS = [f"w{i % 40} w{i % 7}" for i in range(400)]


@dataclass
class Running:
    """A flow that runs."""

    bootstrap: str
    prefix: str
    folder: Path
    module: Path
    process: FlowProcess

    def call(self, *words: str) -> Done:
        """Another command about this flow."""
        return call(self.folder, self.bootstrap, *words, "--prefix", self.prefix)

    def on_terminal(self, *words: str, until_shown: str | None = None) -> str:
        """What a command shows on a terminal, to its end or until it has shown a text."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [MEANDER, *words, "--prefix", self.prefix],
            env=environment(self.bootstrap) | {"COLUMNS": "160", "TERM": "xterm"},
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=self.folder,
        ) as process:  # fmt: skip
            os.close(theirs)
            shown = bytearray()
            while chunk := _read(ours):
                shown += chunk
                if until_shown is not None and until_shown.encode() in shown:
                    process.kill()
        os.close(ours)
        return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # The other end has closed.
        return b""


def environment(bootstrap: str) -> dict[str, str]:
    return os.environ | {"MEANDER_BOOTSTRAP": bootstrap}


def call(folder: Path, bootstrap: str, *words: str) -> Done:
    done = subprocess.run(
        [MEANDER, *words], env=environment(bootstrap), cwd=folder, timeout=PATIENCE,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def running(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    prefix, folder = f"t{uuid4().hex[:10]}.", tmp_path_factory.mktemp("cli")
    lines(broker.bootstrap, prefix, TEXTS)
    module = flow_folder(folder / "flow", prefix)
    # As users call files; where the command is called and beside the flow.
    for name in ("app", "state"):
        (folder / f"{name}.py").write_text("X = 1")
        (folder / "flow" / f"{name}.py").write_text("X = 1")
    # Workers start in the folder of the command, and import none of their own modules from there.
    for name in ("meander", "msgspec"):
        (folder / f"{name}.py").write_text("X = 1")
    words = run_command(module, prefix, 30, "--startup-timeout", str(PATIENCE))
    with meander(folder, broker.bootstrap, *words) as process:
        process.until_event("started")
        yield Running(broker.bootstrap, prefix, folder, module, process)


def status_of(running: Running) -> dict[str, object]:
    done = running.call("status", "counts")
    assert done.code == 0, done.err
    (seen,) = done.lines
    return seen


def test_status_shows_counters_frontiers_and_bins(running: Running) -> None:
    results = 2 * len(TEXTS)

    def written() -> bool:
        counters = status_of(running)["counters"]
        assert isinstance(counters, dict)
        return counters.get("written") == results

    until(written, "all results are written")
    seen = status_of(running)
    assert (seen["state"], seen["workers"]) == ("running", 2)
    assert seen["bins"] == [128, 128] or isinstance(seen["migrations"], list)
    assert isinstance(seen["frontiers"], dict)
    assert seen["frontiers"]["sink"] >= 1_700_000_000_000 + len(TEXTS) - 1
    until(lambda: status_of(running)["lag"] == 0, "the lag is 0")


def test_a_migration_is_followed_to_its_end_and_stands_in_the_status(running: Running) -> None:
    done = running.call("migrate", "counts", "--bins", "0-9,12", "--worker", "1", "--id", "few")

    assert done.code == 0, done.err
    assert [line["type"] for line in done.lines] == ["accepted", "completed"]
    assert done.lines[-1]["bins"] == 11
    until(lambda: status_of(running)["bins"] == [117, 139], "the status shows it")
    migrations = status_of(running)["migrations"]
    assert isinstance(migrations, list)
    (few,) = [m for m in migrations if m["id"] == "few"]
    assert (few["state"], few["moved"], few["bins"]) == ("completed", 11, 11)


def test_a_rejected_migration_says_what_would_be_right_and_is_exit_code_1(
    running: Running,
) -> None:
    done = running.call("migrate", "counts", "--bins", "0", "--worker", "5000")

    assert done.code == 1
    (rejected,) = done.lines
    assert "name one of 0 to 1" in str(rejected["reason"])

    done = running.call("migrate", "counts", "--bins", "0", "--worker", "1", "--operator", "total")

    assert done.code == 1
    (rejected,) = done.lines
    assert "operator 'total' does not move alone: leave it out" in str(rejected["reason"])


def test_a_dry_run_says_what_would_move_and_moves_nothing(running: Running) -> None:
    before = running.call("status", "counts").lines[0]["bins"]
    done = running.call("migrate", "counts", "--bins", "all", "--worker", "0", "--dry-run")
    assert done.code == 0
    assert {line["to"] for line in done.lines if line["type"] == "move"} == {0}
    assert running.call("status", "counts").lines[0]["bins"] == before


def test_what_moves_nothing_cannot_be_aborted(running: Running) -> None:
    done = running.call("abort", "counts", "nothing")
    assert done.code == 1
    reason = str(done.lines[0]["reason"])
    assert "command 'nothing' is not running: there is none to abort" in reason


def test_keys_move_only_with_a_yes_to_their_whole_bins(running: Running) -> None:
    words = ["migrate", "counts", "--key", "w1", "--worker", "0"]
    done = running.call(*words)
    assert done.code == 2
    assert "--key: all keys of a bin move together" in done.err
    assert "add --whole-bins" in done.err

    done = running.call(*words, "--whole-bins")
    assert done.code == 0, done.err
    assert done.lines[-1]["type"] == "completed"


def test_on_a_terminal_there_are_tables(running: Running) -> None:
    shown = running.on_terminal("status", "counts")
    for title in ("probe or sink", "latency", "delivery of source", "source partitions", "links"):
        assert title in shown
    assert "running" in shown
    shown = running.on_terminal("migrate", "counts", "--bins", "20-22", "--worker", "1")
    assert "completed: 3 bins" in shown


def test_a_second_driver_is_refused_while_the_first_holds_the_lease(running: Running) -> None:
    done = running.call("run", str(running.module), "--no-wait")

    assert done.code == 2
    assert "flow 'counts': a driver runs it" in done.err
    assert len(done.err.splitlines()) == 1
    # A person who reads along gets the answer at once, and the option that waits.
    shown = running.on_terminal("run", str(running.module))
    assert "flow 'counts': a driver runs it" in shown
    assert "or give --wait" in shown
    assert "claim_deferred" not in shown
    assert running.process.process.poll() is None
    assert (status_of(running)["state"], status_of(running)["reason"]) == ("running", "")


def test_a_second_driver_without_a_terminal_waits_for_the_lease_of_the_first(
    running: Running,
) -> None:
    words = "run", str(running.module), "--prefix", running.prefix
    with meander(running.folder, running.bootstrap, *words) as second:
        second.until_said("claim_deferred flow=counts")


def test_a_driver_that_waits_shows_on_a_terminal_for_how_long(running: Running) -> None:
    text = "waiting for the lease of another driver, at most"
    shown = running.on_terminal("run", str(running.module), "--wait", until_shown=text)
    assert text in shown
    assert "claim_deferred" in shown, "the log says until when, and why"


def test_topics_are_listed_with_their_purpose(running: Running) -> None:
    done = running.call("topics")

    called = topic_names(running.prefix, "counts")
    purposes = {line["topic"]: line["purpose"] for line in done.lines}
    assert purposes[called.state] == "keyed state, in layers"
    assert purposes.keys() == {getattr(called, kind) for kind in called.__slots__}


def test_what_the_users_module_logs_and_prints_reaches_the_drivers_log(running: Running) -> None:
    lines(running.bootstrap, running.prefix, ["hello log"], create=False)

    said = ["a line for the log", "a line for the terminal"]
    until(lambda: all(text in running.process.said for text in said), "it is there")


def test_without_metrics_the_port_is_left_alone_and_the_status_names_none(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """It is another's, which would end a flow that wants it."""
    lines(broker.bootstrap, prefix, [])
    module = flow_folder(tmp_path / "flow", prefix)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = ["run", str(module), "--prefix", prefix, "--metrics-port", port]
        done = call(tmp_path, broker.bootstrap, *words)
        assert (done.code, f"port {port} for metrics" in done.err) == (2, True)
        # Which has not claimed the flow, so the next may have it at once.
        with meander(tmp_path, broker.bootstrap, *words, "--no-metrics") as process:
            process.until_event("summary")
            (seen,) = call(tmp_path, broker.bootstrap, "status", "counts", "--prefix", prefix).lines
            assert (seen["state"], seen["metrics"]) == ("starting", "")
            process.process.send_signal(signal.SIGTERM)
            assert process.exit_code() == 128 + signal.SIGTERM
            assert "metrics_served" not in process.said


def until_known(broker: Broker, topic: str) -> None:
    """Wait until the broker tells of a topic that it has just created."""
    client = admin({"bootstrap.servers": broker.bootstrap})
    until(lambda: find_topic(client, topic).partitions == 2, f"{topic} is known")


def test_topics_are_created_once(broker: Broker, prefix: str, tmp_path: Path) -> None:
    words = ["topics", "create", prefix + "a", prefix + "b", prefix + "a", "--partitions", "2"]
    first = command_here(tmp_path, broker.bootstrap, *words)
    for name in "ab":
        until_known(broker, prefix + name)
    second = command_here(tmp_path, broker.bootstrap, *words)

    assert {str(line["state"]) for line in first.lines} == {"created"}
    assert {str(line["state"]) for line in second.lines} == {"exists"}
    assert consume_all(broker.bootstrap, prefix + "a") == []


def test_another_number_of_partitions_is_refused_with_a_remedy(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    topic, flow = prefix + "lines", prefix + "flow"
    ensure_internal(admin({"bootstrap.servers": broker.bootstrap}), prefix, "flow")
    words = ["topics", "create", topic, "--partitions"]
    assert command_here(tmp_path, broker.bootstrap, *words, "2").err == ""
    until_known(broker, topic)
    more = command_here(tmp_path, broker.bootstrap, *words, "8")
    fewer = command_here(tmp_path, broker.bootstrap, *words, "1")
    internal = command_here(
        tmp_path, broker.bootstrap, "topics", "create", f"{flow}.state", "--partitions", "9"
    )

    assert more.lines == [{"topic": topic, "state": "exists, with 2 partitions"}]
    assert more.err == (
        f"topic '{topic}': it has 2 partitions, not 8; add some with kafka-topics.sh"
        f" --bootstrap-server {broker.bootstrap} --alter --topic {topic} --partitions 8;"
        " a running flow reads them, too.\n"
    )
    assert (
        "it has 2 partitions, not 1; use another name, as Kafka never removes partitions"
        in fewer.err
    )
    assert "it has 8 partitions, not 9; leave it as it is: a flow's internal topic" in internal.err
    assert more.code == fewer.code == internal.code == 0


def test_config_shows_where_a_setting_comes_from_and_no_secret(tmp_path: Path) -> None:
    done = command_here(tmp_path, "127.0.0.1:1", "config", "--set", "sasl.password=pssst")

    by_name = {line["name"]: line for line in done.lines}
    assert by_name["bootstrap.servers"]["from"] == "environment MEANDER_BOOTSTRAP"
    assert by_name["sasl.password"]["from"] == "--set"
    assert "pssst" not in done.out


def test_config_shows_what_a_setting_that_correctness_rests_on_really_is(tmp_path: Path) -> None:
    words = ["--set", "isolation.level=read_uncommitted", "--set", "enable.idempotence=true"]
    done = command_here(tmp_path, "127.0.0.1:1", "config", *words)

    by_name = {line["name"]: (line["value"], line["from"]) for line in done.lines}
    assert by_name["isolation.level"] == (
        "read_committed", "Meander, in place of --set"
    )  # fmt: skip
    assert by_name["enable.idempotence"] == ("true", "--set")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["status", "nobody"], "flow 'nobody': no flow of that name has run on Kafka at 127."),
        (["migrate", "nobody", "--bins", "0", "--worker", "0", "--no-wait"], "flow 'nobody': no f"),
        (["run", "nowhere.py"], "there is no such Python file"),
        (["run", "flow.py", "--start", "noon"], "start position 'noon': it is none that a flow"),
        (["topics", "create", "a b"], "topic 'a b': Kafka refuses to create it"),
        (["topics", "create", "lines", "--copies", "3"], "give fewer --copies, or start more brok"),
        (["migrate", "nobody", "--worker", "0", "--no-wait"], "neither --bins nor --key is given"),
        (["migrate", "nobody", "--bins", "x", "--worker", "0"], "--bins: 'x' names no bins"),
        (["topics", "--set", "no.such=1"], "setting 'no.such' (--set): no such setting"),
        (
            ["topics", "--set", "group.id=g"],
            "(--set): a flow has a group of its own, meander.<flow>",
        ),
        (["broker", "status", "--data", "none"], "the broker in none: it does not run"),
        (["demo", "--bootstrap", "a b"], "(--bootstrap): 'a b' is not host:port"),
        # Before its topics are looked at, and so before Spark is started.
        (
            ["run", "flow.py", "--workers", "4", "--master", "local[2]"],
            "4 workers: each needs a free slot, and master local[2] has 2 in all; use --master",
        ),
    ],
)
def test_what_is_to_be_put_right_outside_is_one_sentence_and_exit_code_2(
    broker: Broker, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    done = command_here(tmp_path, broker.bootstrap, *words)

    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


@pytest.mark.parametrize("home", ["/proc", None])
def test_a_user_without_a_home_gets_a_sentence(tmp_path: Path, home: str | None) -> None:
    """As with `docker run -u 12345`: nothing may be written where the home is said to be."""
    given = {k: v for k, v in os.environ.items() if k not in {"HOME", "MEANDER_CACHE"}}
    given |= {"HOME": home} if home else {"MEANDER_CACHE": "/proc/none"}
    words = (
        "import pwd; pwd.getpwuid = {}.__getitem__\nfrom meander.app.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", words, "broker", "start"], env=given, cwd=Path.cwd(),
        timeout=PATIENCE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "it cannot be created (No such file or directory); set HOME" in done.stderr


def test_debug_adds_the_traceback(broker: Broker, tmp_path: Path) -> None:
    done = call(tmp_path, broker.bootstrap, "--debug", "status", "nobody")

    assert done.code == 2
    assert "Traceback" in done.err
    assert "no flow of that name has run on Kafka at" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["topics"],
        ["topics", "create", "lines"],
        ["status", "counts"],
        ["migrate", "counts", "--bins", "0", "--worker", "1"],
        ["rescale", "counts", "--workers", "3", "--no-wait"],
        ["run", "flow.py"],
    ],
)
def test_without_a_broker_every_command_says_how_to_start_one(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "CONNECT_TIMEOUT", 0.5)
    flow_folder(tmp_path, "")
    done = command_here(tmp_path, "127.0.0.1:1", *words)

    assert done.code == 2
    assert done.err == (
        "Kafka: no broker answers at 127.0.0.1:1 (Connection refused); start one with meander"
        " broker start, or name yours with --bootstrap or MEANDER_BOOTSTRAP.\n"
    )


@pytest.mark.parametrize(
    "command", ["run", "status", "migrate", "topics", "config", "broker", "demo"]
)
def test_every_command_explains_itself(tmp_path: Path, command: str) -> None:
    done = command_here(tmp_path, "127.0.0.1:1", command, "--help")

    assert done.code == 0
    assert "Usage: meander" in done.out
    assert command == "broker" or "Example: meander" in done.out
