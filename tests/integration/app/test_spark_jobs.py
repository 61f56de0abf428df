"""Flows as Spark jobs: what reaches executors, what comes back, and what is refused in a sentence.

All in one Spark session, as a program that runs several flows would; a session of its own, and the
deaths of processes, are in `test_cli` and `fault`.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.util import InheritableThread

from meander.app.config.options import Options
from meander.app.driver import driver
from meander.app.driver.loop import FlowResult
from meander.app.driver.workers import spark_launcher, stderr
from meander.app.protocol.registration import LaunchToken, RegistrationServer, join
from meander.connectors.links.links import CurveKeys, CurveLinks
from meander.connectors.topics.internal_topics import topic_names
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Finished,
    Heartbeat,
    Started,
)
from meander.state.keys.ids import COORDINATOR, WorkerId
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, produce, until
from tests.support.process.background import BackgroundSteps
from tests.support.process.flow_process import flow_folder, lines
from tests.support.process.word_counts import each_once, expected_counts, word_counts

TEXTS = [f"w{i % 50} w{i % 7}" for i in range(1000)]


class Rig:
    """One flow on the run's broker and session."""

    def __init__(self, broker: Broker, prefix: str, folder: Path, context: SparkContext) -> None:
        self.bootstrap, self.prefix, self.context = broker.bootstrap, prefix, context
        self.module = flow_folder(folder, prefix, says_where=True)
        self.events: list[Event] = []

    def options(
        self, *, workers: int = 2, startup_timeout: float = PATIENCE, until_end: bool = True
    ) -> Options:
        return Options(
            {"bootstrap.servers": self.bootstrap}, workers, self.prefix,
            until_end=until_end, startup_timeout=startup_timeout,
        )  # fmt: skip

    def run(self, options: Options | None = None) -> FlowResult:
        return driver.run(
            self.module, options or self.options(), lambda: self.context, self.events.append
        )

    def results(self) -> list[Record]:
        return consume_all(self.bootstrap, self.prefix + "counts")

    def command(self, fields: dict[str, object] | bytes) -> None:
        value = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
        produce(self.bootstrap, topic_names(self.prefix, "counts").control, [Record(value)])


@pytest.fixture
def rig(broker: Broker, prefix: str, tmp_path: Path, context: SparkContext) -> Rig:
    return Rig(broker, prefix, tmp_path / "flow", context)


def worker_of(record: Record) -> int:
    return int(dict(record.headers)["meander.worker"] or b"")


def test_a_flow_in_a_folder_of_its_own_runs_on_executors_that_do_not_know_it(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines(rig.bootstrap, rig.prefix, [*TEXTS, "hello log"])
    with caplog.at_level(logging.INFO):
        result = rig.run()

    records = rig.results()
    assert each_once(word_counts(records)) == expected_counts([*TEXTS, "hello log"])
    assert {worker_of(record) for record in records} == {0, 1}
    # The module beside the flow was not read from where it lies on this machine.
    origins = {json.loads(record.value or b"")["from"] for record in records}
    assert not any(origin.startswith(str(tmp_path / "flow")) for origin in origins)
    assert result.counters["read"] == len(TEXTS) + 1
    assert result.counters["written"] == len(records)
    assert result.signal is None
    kinds = [type(event) for event in rig.events]
    assert kinds.count(Started) == 1
    assert kinds[-1] is Finished
    said = [(r.name, r.getMessage()) for r in caplog.records if "a line for" in r.getMessage()]
    assert [name for name, _ in sorted(said)] == ["print", "the user's own"]
    assert all(" worker=" in text for _, text in said)


def test_bins_move_by_commands_of_the_control_topic_and_each_is_answered(rig: Rig) -> None:
    lines(rig.bootstrap, rig.prefix, TEXTS)
    rig.run()  # The control topic stands, and what it holds is of the past.
    rig.events.clear()
    past, more = {(record.partition, record.offset) for record in rig.results()}, ["w1 w2"] * 100
    move = {
        "meander": "command",
        "type": "migrate",
        "id": "m1",
        "bins": list(range(128)),
        "worker": 1,
    }

    def new_results() -> list[Record]:
        return [r for r in rig.results() if (r.partition, r.offset) not in past]

    def give_commands() -> None:
        until(lambda: any(isinstance(e, Started) for e in rig.events), "the flow runs")
        # A user's own, and what is none: nothing is said of either.
        rig.command({"type": "rescale", "id": "order-7", "workers": 1})
        rig.command(b"no JSON")
        rig.command(b'{"meander": oops')
        rig.command(move | {"strategy": "all-at-once"})
        rig.command(move | {"strategy": "all-at-once"})

    def then_end() -> None:
        until(lambda: any(isinstance(e, Completed) for e in rig.events), "m1 is completed")
        until(lambda: sum(isinstance(e, CommandRejected) for e in rig.events) == 2, "2 refusals")
        until(lambda: len(new_results()) == 2 * len([*TEXTS, *more]), "all results")

    ended = BackgroundSteps(give_commands, then_end)
    lines(rig.bootstrap, rig.prefix, more, create=False)
    with ended:
        result = driver.run(
            rig.module, rig.options(until_end=False), lambda: rig.context, rig.events.append,
            ended.signals,
        )  # fmt: skip

    (accepted,) = [e for e in rig.events if isinstance(e, Accepted)]
    moved = [e for e in rig.events if isinstance(e, BinMoved)]
    (completed,) = [e for e in rig.events if isinstance(e, Completed)]
    assert sorted(event.bin for event in moved) == list(range(128))
    assert accepted.at is None, "its bins are fetched first"
    assert {(event.source, event.target) for event in moved} == {(0, 1)}
    assert len({event.at for event in moved}) == 1, "all at one time"
    assert completed.bins == 128
    assert completed.bytes == sum(event.bytes for event in moved) > 0
    refusals = [e.reason for e in rig.events if isinstance(e, CommandRejected)]
    assert len(refusals) == 2
    assert "it is not JSON" in refusals[0]
    assert "id 'm1' was used before" in refusals[1]
    assert result.migrations == [completed]
    assert each_once(word_counts(new_results())) == expected_counts([*TEXTS, *more])


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_result_too_large_for_its_topic_is_a_dead_letter(rig: Rig, delivery: str) -> None:
    lines(rig.bootstrap, rig.prefix, ["a", "large", "b"])
    source = rig.module.read_text().replace("import count,", "import count as counted,")
    count = "def count(s, w):\n    return s + 1, w * (250_000 if w == 'large' else 1)\n"
    how = f", delivery={delivery!r}, checkpoints=Checkpointing(interval=1)"
    rig.module.write_text(
        source.replace("\nflow = Flow(", f"\n{count}\nflow = Flow(", 1).replace(
            'Flow("counts"', f'Flow("counts"{how}'
        )
    )

    result = rig.run()

    values = sorted(json.loads(record.value or b"") for record in rig.results())
    assert values == ["a", "b"]
    assert result.counters["dead_letters"] == 1
    (letter,) = consume_all(rig.bootstrap, topic_names(rig.prefix, "counts").dead)
    for said in ("key 'large'", "offset 0", "takes 1,250,", "more than 1,000,000"):
        assert said.encode() in (dict(letter.headers)["meander.reason"] or b"")


def test_fewer_slots_than_workers_are_refused_before_anything_starts(
    rig: Rig, context: SparkContext
) -> None:
    lines(rig.bootstrap, rig.prefix, [])
    slots = context.defaultParallelism
    with pytest.raises(SetupError, match=r"\d workers: each needs a free slot, and master local\["):
        rig.run(rig.options(workers=slots + 1))


def test_slots_that_others_take_are_named_after_a_while(
    rig: Rig, context: SparkContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meander.waits")
    lines(rig.bootstrap, rig.prefix, [])
    release = rig.module.parent / "release"
    taken = context.defaultParallelism - 1

    def occupy() -> None:
        def wait(rows: object) -> object:
            while not release.exists():
                time.sleep(0.05)
            return rows

        context.setJobGroup("occupied", "takes a slot")
        context.parallelize(range(taken), taken).mapPartitions(wait).collect()  # type: ignore[arg-type]

    thread = InheritableThread(target=occupy)
    thread.start()
    tracker = context.statusTracker()

    def active() -> int:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return sum(stage.numActiveTasks for stage in stages if stage)

    until(lambda: active() == taken, "all slots but one are taken")
    try:
        with pytest.raises(
            SetupError, match=r"worker \d: Spark had no free slot for it within 4 s"
        ):
            rig.run(rig.options(startup_timeout=4.0))
    finally:
        release.touch()
        thread.join()
    assert "for=spark_slot worker=" in caplog.text, "it was said before that"


def test_other_versions_on_an_executor_are_named(
    rig: Rig, context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines(rig.bootstrap, rig.prefix, [])
    folder = rig.module.parent / "old" / "msgpack-0.0.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: msgpack\nVersion: 0.0.1\n")
    monkeypatch.setitem(context.environment, "PYTHONPATH", str(folder.parent))

    with pytest.raises(SetupError, match=r"worker \d on .*msgpack is 0.0.1 there and .* at"):
        rig.run()


def another_python() -> str | None:
    """A Python of this machine of another version than this one."""
    mine = "{}.{}".format(*sys.version_info[:2])
    for name in (f"python3.{minor}" for minor in range(10, 16)):
        found = shutil.which(name)
        if found is not None and not name.endswith(mine):
            asked = subprocess.run([found, "--version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return found
    return None


def test_another_python_on_an_executor_is_named(
    rig: Rig, context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another_python()
    if other is None:
        pytest.skip("this machine has no Python of another version")
    lines(rig.bootstrap, rig.prefix, [])
    monkeypatch.setattr(context, "pythonExec", other)

    with pytest.raises(SetupError, match=r"worker \d's Python: .*set PYSPARK_PYTHON to the same"):
        rig.run()


@pytest.mark.parametrize(
    ("quick", "slow", "answer"),
    [
        ("flat_map(str.split)", "flat_map(slowly)", "[line]"),
        ('value="str"', "value=slowly", "line.decode()"),
        ('value="json"', "value=slowly", 'b"7"'),
    ],
    ids=["a step", "a source's format", "a sink's format"],
)
def test_a_slow_function_is_no_dead_worker(rig: Rig, quick: str, slow: str, answer: str) -> None:
    """A batch of records may take many times the lease: what counts is a record."""
    lines(rig.bootstrap, rig.prefix, ["word"] * 40)
    source = rig.module.read_text()
    assert source.count(quick) == 1
    slowly = f"import time\n\ndef slowly(line):\n    time.sleep(0.2)\n    return {answer}\n"
    rig.module.write_text(slowly + source.replace(quick, slow))

    rig.run(replace(rig.options(workers=1), heartbeat_timeout=1.0))

    assert len(rig.results()) == 40


def test_one_call_may_take_longer_than_the_lease_and_is_reported(rig: Rig) -> None:
    """One that sleeps, and one that keeps Python's lock meanwhile: no thread runs beside it."""
    lines(rig.bootstrap, rig.prefix, ["a", "sleeps", "b", "keeps", "c"])
    source = rig.module.read_text()
    slowly = (
        "import ctypes, time\n\nCALLS = {'sleeps': time.sleep, 'keeps': ctypes.PyDLL(None).sleep}\n"
        "def slowly(line):\n    CALLS.get(line, abs)(4)\n    return line.split()\n"
    )
    rig.module.write_text(slowly + source.replace("flat_map(str.split)", "flat_map(slowly)"))

    rig.run(replace(rig.options(), heartbeat_timeout=1.0))

    assert len(rig.results()) == 5
    assert sum(isinstance(event, Started) for event in rig.events) == 1
    calls = [call for event in rig.events if isinstance(event, Heartbeat) for call in event.calls]
    assert any(call.operator == "flat_map" and call.seconds > 2 for call in calls)


def test_a_function_that_fails_ends_the_flow_with_its_error_and_the_users_own_lines(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    lines(rig.bootstrap, rig.prefix, ["a b"])
    parsing = "def parsed(line):\n    return [int(line)]  # the user's line\n"
    source = rig.module.read_text()
    rig.module.write_text(
        parsing + source.replace("flat_map(str.split)", "flat_map(parsed, on_error='fail')")
    )

    options = rig.options()
    options.kafka["sasl.password"] = "pssst"
    with pytest.raises(MeanderError, match="worker .*'flat_map'.*offset 0: .*'a b'") as caught:
        rig.run(options)
    assert type(caught.value) is MeanderError
    (shown,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    first, *trace, last = shown.splitlines()
    assert first.startswith("worker_failed worker=") and "offset 0" in first
    assert "    return [int(line)]  # the user's line" in trace
    assert last == "ValueError: invalid literal for int() with base 10: 'a b'"
    assert "pssst" not in caplog.text


def test_what_a_worker_has_written_to_stderr_is_logged_when_its_process_ends(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    lines(rig.bootstrap, rig.prefix, ["a b"])
    file = stderr.of(spark_launcher._jvm(rig.context).pid).file
    ends = f"""
import os, pathlib

def ends(line):
    os.write(2, b"the oven is too hot\\n")
    while "the oven" not in pathlib.Path({str(file)!r}).read_text(errors="replace"):
        pass
    os._exit(7)

"""
    source = rig.module.read_text()
    rig.module.write_text(ends + source.replace("flat_map(str.split)", "flat_map(ends)"))
    with pytest.raises(MeanderError, match="its process was killed, or crashed"):
        rig.run(replace(rig.options(workers=1), restart_attempts=1))
    # Nothing has left, so the driver starts over once, and each process that ends is heard.
    told = {one.getMessage() for one in caplog.records if "stderr" in one.getMessage()}
    assert told == {'stderr_written member="worker 0"\nthe oven is too hot'}


def test_what_a_worker_writes_to_stderr_before_it_registers_is_reported(
    rig: Rig, context: SparkContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines(rig.bootstrap, rig.prefix, [])
    started_first = tmp_path / "sitecustomize.py"
    started_first.write_text("import os\n\nos.write(2, b'the oven is too hot\\n')\nos._exit(7)\n")
    monkeypatch.setitem(context.environment, "PYTHONPATH", str(tmp_path))

    with pytest.raises(MeanderError, match=r"worker 0: .*the oven is too hot"):
        rig.run(rig.options(workers=1))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_that_name", "it cannot be imported: ModuleNotFoundError: .*line 1"),
        ("x = 1", "it defines no flow"),
        ("from meander import Flow\na = Flow('a')\nb = Flow('b')", "it defines 2 flows"),
    ],
)
def test_a_module_without_one_flow_is_refused(rig: Rig, source: str, says: str) -> None:
    rig.module.write_text(source)
    with pytest.raises(SetupError, match=says):
        rig.run()


def test_a_topic_that_does_not_exist_is_named_before_anything_starts(rig: Rig) -> None:
    with pytest.raises(SetupError, match=f"topic '{rig.prefix}lines': it does not exist"):
        rig.run()


def test_a_launch_token_is_good_for_one_time_and_a_made_up_one_for_none() -> None:
    links = CurveLinks(COORDINATOR, CurveKeys.generate())
    door = RegistrationServer("127.0.0.1", links, 60.0)
    ticket = door.expect(WorkerId(0))
    others = [LaunchToken(b"made up", ticket.address, ticket.public), ticket]
    said: list[str] = []

    def polled(door: RegistrationServer) -> bool:
        door.poll()
        return True

    def come(ticket: LaunchToken) -> None:
        keys = CurveKeys.generate()
        own = CurveLinks(WorkerId(0), keys)
        try:
            join(ticket, keys, own, startup_timeout=30.0)
        except MeanderError as error:
            said.append(str(error))
        finally:
            own.detach()
            own.close(linger=0)

    first = threading.Thread(target=come, args=(ticket,))
    first.start()
    until(lambda: polled(door) and door.connected, "the first is let in")
    first.join()
    assert said == []
    for other in others:
        thread = threading.Thread(target=come, args=(other,))
        thread.start()
        while thread.is_alive():
            assert polled(door)
    assert said == [
        "worker 0: the driver rejected it: its launch token is unknown.",
        "worker 0: the driver rejected it: worker 0 has registered before: a token is used once.",
    ]
    door.close()
    links.detach()
    links.close(linger=0)
