"""The real Apache Kafka on this machine: one process, broker and controller, on 127.0.0.1 only.

Guarantee: `start` returns once the broker answers clients, or raises with the end of its log; a
`LocalBroker` dies with the process that started it (a watcher kills it when the pipe to that
process closes), a detached one lives on until `broker_stop`. Data and ports survive `stop` and
`kill`, so that `start` brings back the same broker. Cost: about 3 s and 512 MiB of heap.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from meander.connectors.local_broker.home import make
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import KAFKA, kafka_jars
from meander.schemas.errors import SetupError

HOST = "127.0.0.1"
PORTS = range(19_000, 29_000)
"""Below the ports that systems give to clients: nobody takes a killed broker's port meanwhile, and
a client that tries again and again cannot connect to itself."""
START_WITHIN = 60.0
"""Seconds until a broker that does not answer is given up."""
STOP_WITHIN = 20.0
"""Seconds until a broker that does not end is killed."""

_FOR_EVER = 9_223_372_036_854_775_807
SETTINGS: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A topic that nobody created is a mistake to be named.
    "auto.create.topics.enable": "false",
    # One broker: whatever is internal has one replica, and few partitions to open.
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # Records of any year are taken, and none is deleted for its age.
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": _FOR_EVER,
    "log.message.timestamp.after.max.ms": _FOR_EVER,
    "log.retention.ms": -1,
    "log.roll.ms": 100 * 365 * 86_400_000,
    # Compaction soon after a segment is closed, in little memory.
    "log.cleaner.backoff.ms": 2000,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    # A few threads, as other things run here too.
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    # A controller that hears nothing of its only broker must not take its partitions away: it has
    # only been starved of time, and clients keep the epochs of before.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 60_000,
}
"""What makes one broker a good one for development; all but where it listens and stores."""
FLAGS: list[str] = []
"""What else its JVMs are told."""
_AFTER_A_KILL = {"broker.session.timeout.ms": 4_000}
"""A killed broker that comes back waits until its former session has ended."""
_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRefs = stdout
rootLogger.appenderRef.stdout.ref = STDOUT
appender.stdout.type = Console
appender.stdout.name = STDOUT
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d %p %m (%c{1})%n
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one broker listens."""

    clients: int
    controller: int


class LocalBroker:
    """One broker with its data in a folder; as a context manager it is started and closed.

    `data` is made where it is missing; without it the broker has a temporary folder, removed by
    `close`. `port` is for clients; without it a free one is taken, and kept.
    """

    def __init__(self, data: Path | None = None, *, port: int | None = None) -> None:
        self._temporary = data is None
        self._home = Path(tempfile.mkdtemp(prefix="meander-kafka-")) if data is None else data
        self._wish = port
        self._ports = Ports(0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Host and port for clients; known once the broker has been started."""
        return f"{HOST}:{self._ports.clients}"

    @property
    def log(self) -> Path:
        """What the broker says."""
        return self._home / "server.log"

    @property
    def pid(self) -> int | None:
        """Its process, while one runs."""
        return self._process.pid if self._process and not _ended(self._process) else None

    def start(self) -> None:
        """Start and wait until it answers; SetupError with the log's tail if it does not."""
        if self.pid is not None:
            return
        self._reap()
        self._ports = _prepare(self._home, self._wish)
        self._process = _spawn(self._home)
        self._watcher = watch(self._process.pid)
        process = self._process
        try:
            _await_answer(self.bootstrap, self.log, lambda: not _ended(process))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in order: logs are flushed, the next start needs no recovery."""
        process = self._process
        if process is not None and not _ended(process):
            process.terminate()
            if not _until(lambda: _ended(process), STOP_WITHIN):
                process.kill()
        self._reap()

    def kill(self) -> None:
        """End it as a power cut would, by SIGKILL."""
        if self._process is not None and not _ended(self._process):
            self._process.kill()
        self._reap()

    def close(self) -> None:
        """Stop it; a temporary folder goes too."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _reap(self) -> None:
        # The watcher goes first: once the broker is reaped, its number may be another process's.
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
        if self._process is not None:
            self._process.wait()
            self._process = None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A detached broker that runs."""

    bootstrap: str
    pid: int
    started: str
    """When, in the kernel's own count: with it a process number means one process only."""
    version: str
    log: str


def broker_start(data: Path, port: int | None = None) -> str:
    """Start a broker that outlives this process; its bootstrap. One that runs already is taken.

    SetupError where it does not answer in time, or runs on another port than the one given.
    """
    running = broker_status(data)
    if running is not None:
        if port is not None and running.bootstrap != f"{HOST}:{port}":
            cause = f"one runs already, at {running.bootstrap}"
            raise SetupError(
                f"the broker in {data}", cause, "stop it first with 'meander broker stop'"
            )
        return running.bootstrap
    ports = _prepare(data, port)
    bootstrap = f"{HOST}:{ports.clients}"
    process = _spawn(data)
    try:
        _await_answer(bootstrap, data / "server.log", lambda: process.poll() is None)
    except BaseException:
        process.kill()
        process.wait()
        raise
    log = str(data / "server.log")
    status = BrokerStatus(bootstrap, process.pid, _started(process.pid), KAFKA, log)
    _pid_file(data).write_text(json.dumps(asdict(status)))
    process.returncode = 0  # It is on its own now; this process neither waits for it nor warns.
    return bootstrap


def broker_status(data: Path) -> BrokerStatus | None:
    """The detached broker of a folder, None where none runs."""
    try:
        status = BrokerStatus(**json.loads(_pid_file(data).read_text()))
    except FileNotFoundError:
        return None
    return status if _started(status.pid) == status.started else None


def broker_stop(data: Path) -> bool:
    """End the detached broker of a folder; whether there was one."""
    status = broker_status(data)
    if status is not None:
        os.kill(status.pid, signal.SIGTERM)
        if not _until(lambda: broker_status(data) is None, STOP_WITHIN):
            os.kill(status.pid, signal.SIGKILL)
            _until(lambda: broker_status(data) is None, STOP_WITHIN)
    _pid_file(data).unlink(missing_ok=True)
    return status is not None


def _pid_file(home: Path) -> Path:
    return home / "broker.json"


def _prepare(home: Path, wish: int | None) -> Ports:
    """Lay down configuration and formatted storage; the ports, the former ones if there were."""
    make(home, "name another with --data")
    kept = home / "ports.json"
    ports = Ports(**json.loads(kept.read_text())) if kept.exists() else None
    if ports is None or wish not in (None, ports.clients):
        clients = wish or free_port()
        ports = Ports(clients, free_port(clients))
    for port in (ports.clients, ports.controller):
        if not is_free(port):
            cause = "another process listens there"
            raise SetupError(f"{HOST}:{port}", cause, "end it, or give another port")
    kept.write_text(json.dumps(asdict(ports)))
    listeners = f"PLAINTEXT://{HOST}:{ports.clients},CONTROLLER://{HOST}:{ports.controller}"
    data = home / "data"
    properties = SETTINGS | {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "log.dirs": str(data),
    }
    if (data / "meta.properties").exists() and not (data / ".kafka_cleanshutdown").exists():
        properties |= _AFTER_A_KILL
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    (home / "server.properties").write_text(text)
    (home / "log4j2.properties").write_text(_LOGGING)
    if not (data / "meta.properties").exists():
        _format(home)
    return ports


def _format(home: Path) -> None:
    command = [
        *_jvm(home, "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format",
        "-t", str(uuid4()).replace("-", "")[:22], "-c", str(home / "server.properties"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        cause = f"its storage could not be formatted: {(done.stdout + done.stderr)[-800:]}"
        raise SetupError(f"the broker in {home}", cause)


def _jvm(home: Path, *flags: str) -> list[str]:
    logging = f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"
    classes = str(kafka_jars() / "*")
    return [java(), "-Xmx512m", "-Djava.awt.headless=true", *flags, *FLAGS, logging, "-cp", classes]


def _spawn(home: Path) -> subprocess.Popen[bytes]:
    """Start the server in a process group of its own: a Ctrl-C is for the flow, not for its broker.
    It stays in the session, as Linux shares out cores by sessions (`sched_autogroup_enabled`): its
    threads got no time for half a second and more at once beside a flow of another."""
    flags = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
    command = [*_jvm(home, *flags), "kafka.Kafka", str(home / "server.properties")]
    with (home / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )


def watch(pid: int) -> subprocess.Popen[bytes]:
    """Kill a process when this one is gone: nobody else holds the other end of the pipe."""
    command = ["sh", "-c", 'read -r _; kill -KILL "$0"', str(pid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _await_answer(bootstrap: str, log: Path, alive: Callable[[], bool]) -> None:
    host, port = bootstrap.rsplit(":", 1)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def answers() -> bool:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    deadline = time.monotonic() + START_WITHIN
    _until(lambda: listens() or not alive(), START_WITHIN)
    answered = _until(lambda: not alive() or answers(), deadline - time.monotonic())
    if answered and alive():
        return
    state = "does not answer" if alive() else "ended at once"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise SetupError(f"the broker at {bootstrap}", f"it {state}; its log {log} ends with\n{tail}")


def _until(condition: Callable[[], bool], within: float) -> bool:
    """Whether a condition came to hold in time (seconds)."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended; it is not reaped, so that its number stays its own."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _started(pid: int) -> str:
    """When a process was started (kernel ticks since boot); '' where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def free_port(*taken: int) -> int:
    """A port that nobody listens on now, none of those already taken."""
    while True:
        port = random.choice(PORTS)
        if port not in taken and is_free(port):
            return port


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
