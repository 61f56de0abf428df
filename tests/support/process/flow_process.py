"""`meander` as a process of its own, as a user starts it, and everything that it leaves running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until

MEANDER = Path(sys.executable).with_name("meander")
MARK = "MEANDER_TEST_MARK"
UP = re.compile(r"worker_started worker=(\d+) process=(\d+)")

COUNTS = """
from meander import KafkaSink, KafkaSource
from meander import Checkpointing, Flow
from counting import count, say

flow = Flow("{flow}"{options})
words = flow.source(KafkaSource("{prefix}lines", value="str")).inspect(say).flat_map(str.split)
counts = words.key_by(lambda word: word).fold("count", init=lambda: 0, step=count)
counts.sink(KafkaSink("{prefix}counts", value="json"))
"""
COUNTING = """
import logging
import time

from meander.dataflow.runtime.worker import Worker

log = logging.getLogger("the user's own")


def count(state, word):
    return state + 1, {"word": word, "count": state + 1{where}}


def say(line):
    if line == "hello log":
        log.warning("a line for the log")
        print("a line for the terminal")
    if line == "sleep":
        time.sleep(600)
    if line == "hang":  # as a fault of the engine would
        Worker._return_credit = lambda worker: time.sleep(600)
"""
WHERE = ', "from": __file__'


def flow_folder(
    folder: Path, prefix: str, flow: str = "counts", *, says_where: bool = False, **options: object
) -> Path:
    """A flow that counts words, with a module of its own beside it; its file. It may say with each
    count where that module lies, which is another place in each process."""
    folder.mkdir(exist_ok=True)
    (folder / "counting.py").write_text(COUNTING.replace("{where}", WHERE if says_where else ""))
    module = folder / "flow.py"
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    module.write_text(COUNTS.format(flow=flow, prefix=prefix, options=given))
    return module


def lines(
    bootstrap: str, prefix: str, texts: list[str], *, create: bool = True, after: int = 0
) -> None:
    """Put texts on the flow's source topic, a millisecond apart, the first `after` so many."""
    if create:
        for topic in ("lines", "counts"):
            create_topic(bootstrap, prefix + topic, 4)
    produce(
        bootstrap,
        prefix + "lines",
        [
            Record(text.encode(), partition=i % 4, timestamp=1_700_000_000_000 + after + i)
            for i, text in enumerate(texts)
        ],
    )


@dataclass
class FlowProcess:
    """A command that runs; its events as they come."""

    process: subprocess.Popen[str]
    mark: str
    errors: Path
    events: list[dict[str, object]] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def of(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.events if event["type"] == kind]

    def until_event(self, kind: str) -> dict[str, object]:
        def come() -> bool:
            assert self.process.poll() is None or self.of(kind), self.said
            return bool(self.of(kind))

        until(come, f"the event {kind}; standard error: {self.said}")
        return self.of(kind)[-1]

    def until_said(self, words: str) -> None:
        """Wait until the command, which runs on, has written these words to standard error."""

        def said() -> bool:
            assert self.process.poll() is None, self.said
            return words in self.said

        until(said, words)

    @property
    def said(self) -> str:
        return self.errors.read_text()

    @property
    def workers(self) -> dict[int, int]:
        """The process of each worker."""
        return {int(worker): int(pid) for worker, pid in UP.findall(self.said)}

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)

    def living(self) -> list[str]:
        """All processes that descend from the command, by the mark in their environment."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                if marked and alive(int(folder.name)):
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"{folder.name}: {command}")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def until_gone(self) -> None:
        until(lambda: not self.living(), f"all have ended: {self.living()}")


def run_command(module: Path, prefix: str, heartbeat_timeout: float, *options: str) -> list[str]:
    """Return the words of `meander run` for a flow; times in seconds.

    >>> run_command(Path("flow.py"), "t1.", 2, "--until-end")
    ['run', 'flow.py', '--prefix', 't1.', '--heartbeat-timeout', '2', '--until-end']
    """
    timeout = "--heartbeat-timeout", str(heartbeat_timeout)
    return ["run", str(module), "--prefix", prefix, *timeout, *options]


@contextmanager
def meander(
    folder: Path, bootstrap: str, *words: str, program: Sequence[str | Path] = (MEANDER,),
    **variables: str,
) -> Iterator[FlowProcess]:  # fmt: skip
    """The command with these words while the block lasts; whatever is left is killed then. Another
    `program` may run it, with more variables in its environment."""
    mark = uuid4().hex
    errors = folder / f"{mark}.err"
    environment = os.environ | {MARK: mark, "MEANDER_BOOTSTRAP": bootstrap} | variables
    with (
        errors.open("w") as error_file,
        subprocess.Popen(
            [*program, *words], env=environment, stdout=subprocess.PIPE, stderr=error_file,
            text=True, cwd=folder,
        ) as process,
    ):  # fmt: skip
        running = FlowProcess(process, mark, errors)
        reader = threading.Thread(target=running.read, daemon=True)
        reader.start()
        try:
            yield running
        finally:
            for line in running.living():
                kill(int(line.partition(":")[0]))
            process.kill()
            reader.join(10)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def has_states(pid: int) -> bool:
    """Whether a worker has its state database open; it closes that before its process ends."""
    try:
        opened = [*Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, PermissionError):
        return False
    for link in opened:
        with contextlib.suppress(FileNotFoundError):
            if "/meander-" in str(link.readlink()):
                return True
    return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def last_beat(bootstrap: str, prefix: str) -> dict[str, object]:
    """The newest heartbeat on the status topic of the flow `counts`."""
    told = consume_all(bootstrap, topic_names(prefix, "counts").status)
    beats = (json.loads(one.value or b"") for one in reversed(told))
    return next(beat for beat in beats if beat["type"] == "heartbeat")


def until_silent(
    broker: Broker, prefix: str, heartbeat_timeout: float, flow: str = "counts"
) -> None:
    """Another driver may take the flow once the last heartbeat is older than the lease."""
    records = consume_all(broker.bootstrap, topic_names(prefix, flow).status)
    last = max(record.timestamp or 0 for record in records)
    until(lambda: time.time() * 1000 - last > 1000 * heartbeat_timeout, "the lease has passed")
