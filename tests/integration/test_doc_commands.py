"""The console blocks of each page run as they stand there, in order, with a real broker and Spark.

A page has a folder and a home of its own, with its files and those of the quickstart. Addresses of
the documents are replaced by those of this machine. A flow stays in the background until the page
stops it, or starts another one, as after Ctrl-C. The output has to hold the lines that a page shows
in their order. Numbers, sizes and blanks may differ, and `...` stands for any lines.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import certifi
import pytest

from meander.connectors.local_broker.broker import LocalBroker, free_port
from meander.connectors.local_broker.kafka_jars import cache, kafka_jars
from tests.support.doc_blocks import ROOT, Command, blocks, commands, pages
from tests.support.kafka.topics import PATIENCE, admin, until
from tests.support.process.flow_process import MARK, FlowProcess, kill
from tests.support.process.spark_cluster import REGISTERED, STARTED, cluster

PAGES = [page for page in pages() if any(b.language == "console" for b in blocks(page))]
BROKER, MASTER, DRIVER = "127.0.0.1:9092", "spark://spark-master:7077", "driver-host"
"""Addresses as the documents write them."""
KNOWN = {
    "curl", "echo", "export", "java", "meander", "printf", "python", "sed", "source", "spark-class",
}  # fmt: skip
"""Programs that run as they stand; `make` and `docker` have rules of their own."""
SHOWS = "meander status", "curl"
"""Commands that show a state which the flow reaches by and by."""
RUNS = re.compile(r"\d+ workers? runs?\b")
SPARK_RUNS = re.compile(f"{STARTED.pattern}|{REGISTERED}")
"""What a master or a worker of Spark logs once it runs."""
ERASED = "\x1b[2K"
"""Erases the line of a terminal that was written last."""
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def plain(line: str) -> str:
    """Return a line of output without what differs from run to run.

    >>> plain("completed: 64 bins,  3.3 kB, 1,455 ms")
    'completed: 0 bins, 0 B, 0 ms'
    """
    line = re.sub(r"\d[\d,.]*\d|\d", "0", line)
    return " ".join(re.sub(r"\b0 [kMG]?B\b", "0 B", line).split())


def shows(output: str, lines: tuple[str, ...]) -> bool:
    """Return whether output has these lines in their order."""
    left = iter([plain(line) for line in output.splitlines()])
    return all(plain(line) in left for line in lines if line.strip() not in {"", "..."})


@dataclass
class Terminal:
    """A command on a terminal, and what it has written there."""

    process: subprocess.Popen[bytes]
    master: int
    written: bytearray = field(default_factory=bytearray)

    def read(self) -> None:
        with contextlib.suppress(OSError):  # The other end has closed.
            while chunk := os.read(self.master, 65536):
                self.written += chunk
        os.close(self.master)

    @property
    def output(self) -> str:
        """Its lines as they stand there at last."""
        lines = self.written.decode(errors="replace").split("\n")
        return CODES.sub("", "\n".join(line.rpartition(ERASED)[2] for line in lines))


class Session:
    """One page's commands, as a user types them."""

    def __init__(self, folder: Path, page: str, bootstrap: str, master: str) -> None:
        self._folder, self._page = folder, page
        port = free_port()
        self._addresses = {
            BROKER: bootstrap, MASTER: master, DRIVER: "127.0.0.1",
            "--port 7077": f"--port {port}", "127.0.0.1:7077": f"127.0.0.1:{port}",
        }  # fmt: skip
        self._mark = uuid4().hex
        home = folder / "home"
        (home / ".cache").mkdir(parents=True)
        kafka_jars()
        (home / ".cache" / "meander").symlink_to(cache().parent)
        (folder / ".venv").symlink_to(sys.prefix)
        for block in [*blocks("docs/quickstart.md"), *blocks(page)]:
            if block.file is not None:
                (folder / block.file).write_text(block.text)
        (folder / "ca.pem").write_text(Path(certifi.where()).read_text())
        self._environment = os.environ | {
            MARK: self._mark, "HOME": str(home), "MEANDER_BOOTSTRAP": bootstrap,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "200", "TERM": "xterm",
        }  # fmt: skip
        self._flow: Terminal | None = None

    def play(self) -> None:
        """Run all console blocks, and write settings where the page shows them."""
        for block in blocks(self._page):
            if block.language == "toml" and not (self._folder / "meander.toml").exists():
                (self._folder / "meander.toml").write_text(block.text)
            elif block.language == "console":
                for command in commands(block):
                    self._run(command)

    def end(self) -> None:
        """End everything that the page has started."""
        self._stop()
        left = FlowProcess(subprocess.Popen(["true"], text=True), self._mark, Path(os.devnull))
        for line in left.living():
            kill(int(line.partition(":")[0]))
        left.process.wait()

    def _run(self, command: Command) -> None:
        text = command.text
        for written, here in self._addresses.items():
            text = text.replace(written, here)
        program = shlex.split(text)[0]
        if program == "make":
            self._check(command, f"make --dry-run --directory {ROOT} {shlex.split(text)[1]}")
        elif program == "docker":
            # `test_compose` runs what these services run.
            assert command.text in (ROOT / "docker-compose.yml").read_text(), command
        elif text.startswith("meander run ") and "--until-end" not in text:
            self._start_flow(command, text)
        elif text.startswith("meander dev "):
            self._start_development(command, text)
        elif program in KNOWN and text.endswith("&"):
            # The terminal of a user stays open, while each command here has one of its own.
            self._call(f"trap '' HUP; {text[:-1]} > background.log 2>&1 &")
            if program == "spark-class":
                log = self._folder / "background.log"
                until(lambda: SPARK_RUNS.search(log.read_text()) is not None, f"{text} runs")
        elif program in KNOWN:
            self._check(command, text)
        else:
            raise AssertionError(f"{command.block}: no rule runs {command.text!r}")

    def _start_flow(self, command: Command, text: str) -> None:
        self._stop()
        patient = f"exec {text} --startup-timeout {PATIENCE} --heartbeat-timeout 60"
        self._flow = flow = self._open(patient)

        def started() -> bool:
            ended = flow.process.poll() is not None
            return RUNS.search(flow.output) is not None or ended

        try:
            until(started, f"{command.text} has started")
        finally:
            print(flow.output)  # A failing test shows it.
        assert RUNS.search(flow.output), command
        assert shows(flow.output, command.output), (command, flow.output)

    def _start_development(self, command: Command, text: str) -> None:
        """Start a flow as `meander dev` does, which shows what the page shows by and by."""
        self._stop()
        self._flow = flow = self._open(f"exec {text}")
        try:
            until(lambda: shows(flow.output, command.output), f"{command.text} shows its results")
        finally:
            print(flow.output)  # A failing test shows it.

    def _stop(self) -> None:
        """End the flow as Ctrl-C does, unless a command has stopped it."""
        if self._flow is not None and self._flow.process.poll() is None:
            self._flow.process.send_signal(signal.SIGINT)
            self._flow.process.wait(PATIENCE)
        self._flow = None

    def _check(self, command: Command, text: str) -> None:
        """Run a command to its end: it succeeds, and shows what the page shows."""

        def fits() -> bool:
            output = self._call(text)
            if shows(output, command.output):
                return True
            assert text.startswith(SHOWS), (command, output)
            return False

        until(fits, f"{command.block}: {command.text} shows what the page shows")
        if text.startswith("meander stop") and self._flow is not None:
            assert self._flow.process.wait(PATIENCE) == 0, self._flow.output
        if text.startswith("meander broker start"):
            # From here on commands find it by themselves.
            del self._environment["MEANDER_BOOTSTRAP"]
            (self._addresses[BROKER],) = re.findall(r"127\.0\.0\.1:\d+", self._call(text))

    def _call(self, text: str) -> str:
        """Run a command; its output. What it changes in the environment stays."""
        after = self._folder / "environment"
        script = f"{text}\ncode=$?\nenv -0 > {shlex.quote(str(after))}\nexit $code"
        done = self._open(script)
        code = done.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert code == 0, (text, done.output)
        pairs = (pair.partition("=") for pair in after.read_text().split("\0") if pair)
        self._environment = {name: value for name, _, value in pairs}
        return done.output

    def _open(self, script: str) -> Terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, cwd=self._folder,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        terminal = Terminal(process, ours)
        self._reader = threading.Thread(target=terminal.read, daemon=True)
        self._reader.start()
        return terminal


@pytest.fixture(scope="module")
def broker_of_pages() -> Iterator[LocalBroker]:
    """A broker whose topics have no prefix, so it is not the one that tests share."""
    with LocalBroker() as local:
        yield local


def delete_topics(bootstrap: str) -> None:
    """Delete all topics but those of the broker itself."""
    client = admin(bootstrap)
    found = [name for name in client.list_topics(timeout=PATIENCE).topics if name[:2] != "__"]
    for future in client.delete_topics(found).values() if found else ():
        future.result(PATIENCE)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(
    page: str, broker_of_pages: LocalBroker, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        master = ""
        if MASTER in (ROOT / page).read_text():
            (tmp_path / "spark").mkdir()
            master = stack.enter_context(cluster(tmp_path / "spark", workers=1, cores=2))
        folder = tmp_path / "page"
        folder.mkdir()
        stack.callback(delete_topics, broker_of_pages.bootstrap)
        session = Session(folder, page, broker_of_pages.bootstrap, master)
        stack.callback(session.end)
        session.play()


def test_output_that_a_page_does_not_show_is_found() -> None:
    assert shows("a 1\nb 2.5 kB\nc\n", ("a 7", "...", "b 3 MB"))
    assert not shows("a\nb\n", ("b", "a"))
    assert not shows("rejected: 5\n", ("completed: 5",))
