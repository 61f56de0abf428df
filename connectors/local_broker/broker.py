"""The local broker: Apache Kafka on this machine, one process on 127.0.0.1 as broker and
controller.

Guarantee: `start` returns once the broker answers clients, or raises with the end of its log. A
`LocalBroker` ends with the process that started it: a watcher kills it when the pipe to that
process closes. A detached broker runs until `broker_stop`. Data and ports survive `stop` and
`kill`, so `start` brings the same broker back. Cost: about 3 s and 512 MiB of heap.
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

from meander.connectors.local_broker.home import make_folder
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import KAFKA, kafka_jars
from meander.schemas.errors import SetupError

HOST = "127.0.0.1"
PORTS = range(19_000, 29_000)
"""Ports below the ports that systems assign to clients. So no client occupies a killed broker's
port, and no client connects to itself by repeated attempts."""
START_WITHIN = 60.0
"""The seconds after which a start without an answer fails."""
STOP_WITHIN = 20.0
"""The seconds after which a broker that does not end is killed."""

_FOR_EVER = 9_223_372_036_854_775_807
SETTINGS: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A missing topic is an error that the user should see.
    "auto.create.topics.enable": "false",
    # One broker needs one replica per internal topic, and few partitions to open.
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # The broker accepts records of any year, and deletes none for its age.
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.before.max.ms": _FOR_EVER,
    "log.message.timestamp.after.max.ms": _FOR_EVER,
    "log.retention.ms": -1,
    "log.roll.ms": 100 * 365 * 86_400_000,
    # Compaction starts soon after a segment is closed, in little memory.
    "log.cleaner.backoff.ms": 2000,
    "log.cleaner.dedupe.buffer.size": 8 << 20,
    # Few threads suffice, as other processes run on this machine too.
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    # A controller without heartbeats of its only broker must not remove its partitions. The broker
    # was only starved of time, and clients have the earlier epochs.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 60_000,
}
"""The settings of a broker for development, except for its addresses and its folder."""
FLAGS: list[str] = []
"""Further flags of its JVMs."""
_AFTER_A_KILL = {"broker.session.timeout.ms": 4_000}
"""A killed broker that returns waits until its former session has ended."""
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
    """The ports of one broker."""

    clients: int
    coordinator: int


class LocalBroker:
    """A broker that stores its data in a folder; as a context manager it is started and closed.

    The broker creates a missing `data` folder. Without `data` it has a temporary folder, which
    `close` removes. `port` is for clients; without it the broker chooses a free port once.
    """

    def __init__(self, data: Path | None = None, *, port: int | None = None) -> None:
        self._temporary = data is None
        self._home = Path(tempfile.mkdtemp(prefix="meander-kafka-")) if data is None else data
        self._wanted_port = port
        self._ports = Ports(0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Return host and port for clients, known once the broker has been started."""
        return f"{HOST}:{self._ports.clients}"

    @property
    def log(self) -> Path:
        """Return the path of its log."""
        return self._home / "server.log"

    @property
    def pid(self) -> int | None:
        """Return the number of its process, while one runs."""
        return self._process.pid if self._process and not _ended(self._process) else None

    def start(self) -> None:
        """Start the broker and wait until it answers. Raise SetupError with the end of its log if
        it does not."""
        if self.pid is not None:
            return
        self._reap()
        self._ports = _prepare(self._home, self._wanted_port)
        self._process = _spawn(self._home)
        self._watcher = watch(self._process.pid)
        process = self._process
        try:
            _await_answer(self.bootstrap, self.log, lambda: not _ended(process))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the broker in order: it flushes its logs, so the next start needs no recovery."""
        process = self._process
        if process is not None and not _ended(process):
            process.terminate()
            if not _until(lambda: _ended(process), STOP_WITHIN):
                process.kill()
        self._reap()

    def kill(self) -> None:
        """Kill the broker by SIGKILL, as a power cut would."""
        if self._process is not None and not _ended(self._process):
            self._process.kill()
        self._reap()

    def close(self) -> None:
        """Stop the broker and remove a temporary folder."""
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
        # The watcher ends first: once the broker is reaped, another process may have its number.
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
        if self._process is not None:
            self._process.wait()
            self._process = None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status of a detached broker that runs."""

    bootstrap: str
    pid: int
    started: str
    """The kernel's start time of the process; with it, a process number identifies one process."""
    version: str
    log: str


def broker_start(data: Path, port: int | None = None) -> str:
    """Start a broker that outlives this process, unless one runs; return its bootstrap address.

    Raise SetupError where it does not answer in time, or already runs on another port.
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
    process.returncode = 0  # The broker is detached; this process neither waits nor warns.
    return bootstrap


def broker_status(data: Path) -> BrokerStatus | None:
    """Return the detached broker of a folder; None where none runs."""
    try:
        status = BrokerStatus(**json.loads(_pid_file(data).read_text()))
    except FileNotFoundError:
        return None
    return status if _started(status.pid) == status.started else None


def broker_stop(data: Path) -> bool:
    """Stop the detached broker of a folder; return whether there was one."""
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


def _prepare(home: Path, wanted_port: int | None) -> Ports:
    """Write the configuration and format the storage; return the ports, which are the former ports
    where possible."""
    make_folder(home, "name another with --data")
    saved = home / "ports.json"
    ports = Ports(**json.loads(saved.read_text())) if saved.exists() else None
    if ports is None or wanted_port not in (None, ports.clients):
        clients = wanted_port or free_port()
        ports = Ports(clients, free_port(clients))
    for port in (ports.clients, ports.coordinator):
        if not is_free(port):
            cause = "another process listens there"
            raise SetupError(f"{HOST}:{port}", cause, "end it, or choose another port")
    saved.write_text(json.dumps(asdict(ports)))
    listeners = f"PLAINTEXT://{HOST}:{ports.clients},CONTROLLER://{HOST}:{ports.coordinator}"
    data = home / "data"
    properties = SETTINGS | {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{ports.coordinator}",
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
    """Start the server in its own process group, as Ctrl-C should end the flow alone. It belongs to
    this session, since Linux shares cores by session (`sched_autogroup_enabled`). Beside another
    session's flow, its threads got no time for half a second and more."""
    flags = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
    command = [*_jvm(home, *flags), "kafka.Kafka", str(home / "server.properties")]
    with (home / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )


def watch(pid: int) -> subprocess.Popen[bytes]:
    """Start a watcher that kills a process once this process has ended and the pipe has closed."""
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
    """Wait until a condition holds; return whether it did within `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended. Do not reap it, so no other process gets its number."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _started(pid: int) -> str:
    """Return the start time of a process (kernel ticks since boot); '' where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def free_port(*taken: int) -> int:
    """Return a free port other than the `taken` ports."""
    while True:
        port = random.choice(PORTS)
        if port not in taken and is_free(port):
            return port


def is_free(port: int) -> bool:
    """Return whether no process listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
