"""I5: a flow whose driver was killed goes on from its newest checkpoint when it is run again, also
on more workers: no word is counted twice, or not at all."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

from confluent_kafka import KafkaException

from meander.app.driver.commands import EXECUTION_ENDED, FLOW_ENDED
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.topics import checkpoints
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, admin, produce, until
from tests.support.process.flow_process import (
    MEANDER,
    FlowProcess,
    flow_folder,
    kill,
    lines,
    meander,
    run_command,
    until_silent,
)
from tests.support.process.word_counts import committed_counts, expected_counts, with_repeats

HEARTBEAT_TIMEOUT = 2
WORDS = 50


def texts(first: int, last: int) -> list[str]:
    return [f"w{n * n % WORDS} v{n % WORDS}" for n in range(first, last)]


def command(broker: Broker, prefix: str, *words: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [MEANDER, *words, "--prefix", prefix, "--bootstrap", broker.bootstrap],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def give_one_that_does_not_end(broker: Broker, prefix: str, flow: FlowProcess, id: str) -> None:
    """A command for a time that never comes."""
    late = {
        "meander": "command",
        "type": "migrate",
        "id": id,
        "bins": [0],
        "worker": 1,
        "time": 1_900_000_000_000,
    }
    produce(
        broker.bootstrap, topic_names(prefix, "counts").control, [Record(json.dumps(late).encode())]
    )
    until(lambda: id in [event["id"] for event in flow.of("accepted")], "it is accepted")


def forget_group(broker: Broker, name: str) -> None:
    client = admin(broker.bootstrap)

    def forgotten() -> bool:
        with contextlib.suppress(KafkaException):
            client.delete_consumer_groups([name])[name].result(PATIENCE)
            return True
        return False

    until(forgotten, "the group is forgotten once its members are")


def aborted(flow: FlowProcess) -> list[object]:
    for event in flow.of("aborted"):
        assert event["reason"] == EXECUTION_ENDED
    return [event["id"] for event in flow.of("aborted")]


def test_a_flow_whose_driver_was_killed_goes_on_from_its_checkpoint_on_more_workers(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path / "flow", prefix)
    lines(broker.bootstrap, prefix, texts(0, 1000))
    run = run_command(module, prefix, HEARTBEAT_TIMEOUT)
    with meander(tmp_path, broker.bootstrap, *run, "--workers", "2") as first:
        first.until_event("started")
        until(
            lambda: len(committed_counts(broker.bootstrap, prefix)) >= 2000,
            "the first lines are answered",
        )
        give_one_that_does_not_end(broker, prefix, first, "m1")
        accepted, taken = command(broker, prefix, "checkpoint", "counts")
        assert accepted["type"] == "checkpoint_accepted"
        assert (taken["type"], taken["number"]) == ("checkpointed", 1)
        lines(broker.bootstrap, prefix, texts(1000, 2000), create=False, after=1000)
        until(
            lambda: len(committed_counts(broker.bootstrap, prefix)) >= 4000,
            "lines after it are answered",
        )
        kill(first.process.pid)
        first.until_gone()
    before = committed_counts(broker.bootstrap, prefix)
    # As after a week: where commands are taken up does not depend on what Kafka forgets.
    forget_group(broker, group(prefix, "counts"))
    unknown = b'{"meander": "command", "type": "abort", "id": "a1", "command": "none"}'
    produce(broker.bootstrap, topic_names(prefix, "counts").control, [Record(unknown)])
    lines(broker.bootstrap, prefix, texts(2000, 3000), create=False, after=2000)
    until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
    with meander(tmp_path, broker.bootstrap, *run, "--workers", "3") as second:
        rejected = second.until_event("rejected")
        until(
            lambda: len(committed_counts(broker.bootstrap, prefix)) >= len(before) + 4000,
            "all is answered",
        )
        second.process.send_signal(signal.SIGINT)
        assert second.exit_code() == 128 + signal.SIGINT, second.said
        assert rejected["id"] == "a1", "what came while nobody ran the flow is obeyed"
        assert len(second.of("rejected")) == 1, "and nothing else"
        assert aborted(second) == ["m1"], "who waits for it is answered"
    counts, wanted = committed_counts(broker.bootstrap, prefix), expected_counts(texts(0, 3000))
    assert with_repeats(counts) == wanted, "every word is counted, one by one"
    after = Counter(counts) - Counter(before)
    assert max(after.values()) == 1, "and by the second life once"
    assert after.total() == 4000, "which counts what came after the checkpoint"
    (listed,) = command(broker, prefix, "checkpoints", "counts")
    assert (listed["number"], listed["workers"]) == (1, 2)
    settings = {"bootstrap.servers": broker.bootstrap}
    with checkpoints.open_checkpoints(settings, topic_names(prefix, "counts")) as there:
        found = there.newest()
    assert found is not None and len(found[1].cut.positions) == 4


def test_a_flow_goes_on_by_itself_when_workers_are_killed(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path / "flow", prefix)
    lines(broker.bootstrap, prefix, texts(0, 1000))
    run = run_command(module, prefix, HEARTBEAT_TIMEOUT, "--workers", "2")
    with meander(tmp_path, broker.bootstrap, *run) as flow:
        flow.until_event("started")
        until(
            lambda: len(committed_counts(broker.bootstrap, prefix)) >= 2000,
            "the first lines are answered",
        )
        give_one_that_does_not_end(broker, prefix, flow, "m1")
        command(broker, prefix, "checkpoint", "counts")
        for death in (1, 2):
            lives = len(flow.of("started"))
            first = 1000 * death
            lines(broker.bootstrap, prefix, texts(first, first + 1000), create=False, after=first)
            survivor, process = 1 - death % 2, flow.workers[1 - death % 2]
            kill(flow.workers[death % 2])
            until(lambda: len(flow.of("started")) > lives, f"it lives again: {flow.said}")  # noqa: B023
            accepted, taken = command(broker, prefix, "checkpoint", "counts")
            assert accepted["type"] == "checkpoint_accepted"
            assert taken["number"] == 1 + death
            assert flow.workers[survivor] == process, "who is not killed keeps its process"
        restored = re.findall(r"state_restored .*keys=0 .*bins_retained=[1-9]", flow.said)
        assert len(restored) == 2
        wanted = expected_counts(texts(0, 3000))
        until(
            lambda: with_repeats(committed_counts(broker.bootstrap, prefix)) == wanted,
            "every word is counted, one by one",
        )
        assert [event["checkpoint"] for event in flow.of("recovering")] == [1, 2]
        assert aborted(flow) == ["m1"], "once, after the first death"
        assert "killed" in str(flow.of("recovering")[0]["reason"])
        give_one_that_does_not_end(broker, prefix, flow, "m2")
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said
        _, ended = flow.of("aborted")
        assert (ended["id"], ended["reason"]) == ("m2", FLOW_ENDED), "before the flow has finished"
