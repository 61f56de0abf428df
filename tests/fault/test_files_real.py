"""A flow on Spark reads files and writes files: a killed worker, a restart from a checkpoint, and
files that have changed between two runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from meander.connectors.topics.dead_letters import (
    DeadLetterRecord,
    SourcePlace,
    read_dead_letters,
)
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.flow_process import FlowProcess, kill, meander, run_command

HEARTBEAT_TIMEOUT = 2
FLOW = """
from meander import Checkpointing, FileSink, FileSource, Flow, field

flow = Flow("{prefix}counts", checkpoints=Checkpointing(interval=0.5), bins=3)
words = flow.source(FileSource("{folder}/in/*.jsonl", time=field("at"))).key_by(lambda v: v["word"])
counts = words.fold("count", lambda: 0, lambda n, v: (n + 1, [v["word"], n + 1]))
counts.sink(FileSink("{folder}/out"))
"""


class FileFlow:
    """A flow that counts the words of files, and its results."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix = folder, prefix.rstrip(".")
        self.fed = 0
        (folder / "in").mkdir()
        self.module = folder / "flow.py"
        self.module.write_text(FLOW.format(folder=folder, prefix=self.prefix))

    def feed(self, file: str, count: int = 500) -> None:
        with (self.folder / "in" / file).open("a") as lines:
            for n in range(self.fed, self.fed + count):
                lines.write(json.dumps({"word": f"w{n % 20}", "at": 1_700_000_000_000 + n}) + "\n")
        self.fed += count

    def run(self, *options: str) -> list[str]:
        command = run_command(self.module, self.prefix + ".", HEARTBEAT_TIMEOUT, *options)
        return [*command, "--workers", "2"]

    @property
    def results(self) -> Counter[tuple[str, int]]:
        """How often each count has been written."""
        parts = (self.folder / "out").glob("part-*.jsonl")
        whole = (part.read_text().rpartition("\n")[0] for part in parts)
        lines = (line for text in whole for line in text.splitlines())
        return Counter((word, count) for word, count in map(json.loads, lines))

    @property
    def wanted(self) -> set[tuple[str, int]]:
        return {(f"w{n % 20}", n // 20 + 1) for n in range(self.fed)}

    def until_all(self, flow: FlowProcess) -> None:
        def out() -> bool:
            assert flow.process.poll() is None, flow.said
            return self.results.keys() == self.wanted

        until(out, f"all is out: {flow.said}")


@pytest.fixture
def files(tmp_path: Path, prefix: str) -> FileFlow:
    return FileFlow(tmp_path, prefix)


def test_a_flow_of_files_survives_a_killed_worker(files: FileFlow, broker: Broker) -> None:
    files.feed("1.jsonl")
    files.feed("2.jsonl")
    with meander(files.folder, broker.bootstrap, *files.run()) as flow:
        files.until_all(flow)
        flow.until_event("checkpointed")
        files.feed("2.jsonl")
        kill(flow.workers[1])
        files.feed("3.jsonl")
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        files.feed("1.jsonl")
        files.until_all(flow)


def test_a_bounded_run_goes_on_where_the_last_checkpoint_ends(
    files: FileFlow, broker: Broker
) -> None:
    files.feed("1.jsonl")
    with meander(files.folder, broker.bootstrap, *files.run()) as flow:
        files.until_all(flow)
        flow.process.terminate()
        assert flow.exit_code() == 143, flow.said
    files.feed("1.jsonl", 40)
    files.feed("2.jsonl", 40)
    with meander(files.folder, broker.bootstrap, *files.run("--until-end")) as flow:
        assert flow.exit_code() == 0, flow.said
    assert files.results == Counter(files.wanted), "the checkpoint before the end has all results"


def test_a_file_before_those_of_the_checkpoint_is_refused(files: FileFlow, broker: Broker) -> None:
    files.feed("2.jsonl")
    with meander(files.folder, broker.bootstrap, *files.run()) as flow:
        files.until_all(flow)
        flow.process.terminate()
        assert flow.exit_code() == 143, flow.said
    files.feed("1.jsonl")
    with meander(files.folder, broker.bootstrap, *files.run("--until-end")) as flow:
        assert flow.exit_code() == 2, flow.said
        assert "does not begin with the partitions that it has read" in flow.said


def test_a_line_that_no_source_can_read_is_a_dead_letter(files: FileFlow, broker: Broker) -> None:
    files.feed("1.jsonl", 10)
    with (files.folder / "in" / "1.jsonl").open("a") as lines:
        lines.write('oops\n{"at": 5}\n')
    with meander(files.folder, broker.bootstrap, *files.run("--until-end")) as flow:
        assert flow.exit_code() == 0, flow.said
    topic = topic_names(files.prefix + ".", files.prefix + "counts").dead
    letters = [
        one
        for one in read_dead_letters({"bootstrap.servers": broker.bootstrap}, topic)
        if isinstance(one, DeadLetterRecord)
    ]
    found = {(one.kind, one.value, one.place, one.origin, one.source_place) for one in letters}
    file = files.folder / "in" / "1.jsonl"
    at = file.read_bytes().index(b"oops")
    oops, record = SourcePlace(0, str(file), at), SourcePlace(0, str(file), at + len("oops\n"))
    assert ("unreadable", b"oops", None, f"{files.folder}/in/*.jsonl", oops) in found
    assert ("record", b'{"at":5}', None, "source", record) in found
