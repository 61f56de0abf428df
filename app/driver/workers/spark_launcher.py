"""The Spark launcher: a Spark context for Meander, and each worker as a Spark job of one task.

Guarantees that Spark runs a task at most once: without speculation, second attempts or reused
Python processes. Each end of a task has a cause in one sentence. The JVM ends with the context.
Each job has its own thread, because the call lasts as long as the worker. The job uses an RDD,
because Spark SQL would double the time of a start. Cost: some seconds for the JVM, then about 1 s
for each worker.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.util import InheritableThread

from meander.app.driver.workers import placement, stderr
from meander.app.protocol.messages import Failure
from meander.connectors.local_broker.java import java
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.errors import KILLED
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)

JVM_END = 1.0
"""Seconds until a JVM that does not end is killed."""
JVM_SEEN = 0.5
"""Seconds after which a JVM with broken connections is assumed to live."""
PLACE_WITHIN = 5.0
"""Seconds for the executors of a restarted flow to register."""
CONNECT = 3.0
"""Seconds for a master to accept a connection."""

_TRACE = "Traceback (most recent call last):"
_KILLED = ("exited unexpectedly", "ExecutorLost", "Connection reset")

# The JVM only keeps Python processes here: its second compiler and parallel garbage collection
# double the CPU time of a start (17 s against 9 s measured) and give nothing back.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CONF = {
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.locality.wait": placement.LOCALITY_WAIT,
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.python.daemon.module": "meander.app.worker.daemon",
    "spark.python.worker.reuse": "false",
    "spark.executorEnv.PYTHONHASHSEED": "0",
    # The folder of the driver may have a file state.py, which is not Meander's own.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
    "spark.sql.shuffle.partitions": "2",
}


def slots(master: str) -> int | None:
    """Return how many tasks a master runs at once; None where only Spark knows.

    >>> slots("local"), slots("local[3]"), slots("local[3,2]"), slots("local[*]")
    (1, 3, 3, None)
    """
    match = re.fullmatch(r"local(?:\[(\d+)(?:,\d+)?\])?", master)
    return None if match is None else int(match[1] or 1)


def expect_slots(master: str, slots: int | None, workers: int, cores: int | None = None) -> None:
    """Raise SetupError where a master is known to have fewer slots than workers, which have some
    cores in all, or one each."""
    cores = workers if cores is None else cores
    if slots is not None and slots < cores:
        each = (
            "each needs a free slot" if cores == workers else f"their plan gives them {cores} slots"
        )
        raise SetupError(
            f"{workers} workers",
            f"{each}, and master {master} has {slots} in all",
            f"use --master 'local[{cores}]' or more, or fewer --workers",
        )


@contextlib.contextmanager
def spark_context(
    master: str, name: str, host: str = "127.0.0.1", options: dict[str, str] | None = None
) -> Iterator[SparkContext]:
    """Yield a Spark context while the block lasts. Spark's `options` override Meander's.

    The JVM writes to a file, which an error quotes where the JVM cannot start. Raises SetupError
    where Java is missing, or no master answers.
    """
    expect_master(master)
    expect_host(host)
    expect_user(os.getuid())
    java()
    python = sys.executable
    os.environ["PYSPARK_PYTHON"] = (
        python if master.startswith("local") else os.environ.get("PYSPARK_PYTHON", python)
    )
    os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ.setdefault("SPARK_LOCAL_IP", host)
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    bound = {"spark.driver.host": host, "spark.driver.bindAddress": host}
    conf.setAll(list((_CONF | bound | (options or {})).items()))
    with tempfile.NamedTemporaryFile("w+", prefix="meander-spark-", suffix=".log") as output:
        try:
            gateway = launch_gateway(conf, {"stderr": output})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise SetupError(
                "Spark", f"its JVM did not start\n{_tail(Path(output.name))}"
            ) from error
        stderr.note(gateway.proc.pid, Path(output.name))
        log.debug("spark_output_redirected", file=output.name)
        try:
            spark = _context(conf, gateway, master)
            try:
                yield spark
            finally:
                _stop(spark)
        finally:
            gateway.shutdown()
            _end(gateway.proc)


def expect_master(master: str) -> None:
    """Raise SetupError for a malformed master, and for a standalone one that does not answer.

    Spark itself tries for a minute, and then fails without a message.

    >>> expect_master("bogus")
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: Spark master 'bogus': there is no such kind; ...
    """
    if re.fullmatch(r"local(\[(\d+|\*)(,\d+)?\])?|yarn|k8s://.+", master):
        return
    addresses = re.fullmatch(r"spark://(.+:\d+)", master)
    if addresses is None:
        raise SetupError(
            f"Spark master {master!r}",
            "there is no such kind",
            "write local[4], spark://host:7077, yarn or k8s://https://host:port",
        )
    reason = ""
    for address in addresses[1].split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT).close()
        except (OSError, ValueError) as error:
            reason = str(error)
        else:
            return
    raise SetupError(
        f"Spark master {master!r}",
        f"it does not answer ({reason})",
        "start it (start-master.sh of Spark), or correct --master",
    )


def expect_user(number: int) -> None:
    """Raise SetupError for a user id that this machine does not know.

    Spark's JVM needs the name and the home of its user, and ends without them.

    >>> expect_user(123_456_789)
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: user 123456789: this machine has no name for it, ...
    """
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise SetupError(
            f"user {number}",
            "this machine has no name for it, and Spark's JVM needs one",
            "run as a user of /etc/passwd, or add a line for this one, with a home",
        ) from None


def expect_host(host: str) -> None:
    """Raise SetupError for an address that this machine does not have."""
    try:
        with socket.socket() as tried:
            tried.bind((host, 0))
    except OSError as error:
        raise SetupError(
            f"address {host!r}",
            f"this machine has no such address ({error.strerror or error})",
            "name one at which the workers reach this machine: --host",
        ) from error


def _context(conf: SparkConf, gateway: object, master: str) -> SparkContext:
    try:
        return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError) as error:
        # After a context was stopped, the error itself may raise.
        with contextlib.suppress(Py4JError):
            reason = cause(str(error))
            raise SetupError(
                f"Spark master {master!r}", reason, "start it, or correct --master"
            ) from error
        raise SetupError(
            f"Spark master {master!r}", "it accepted no application", "see its log"
        ) from error


def _stop(spark: SparkContext) -> None:
    """Stop a context; nothing, where its JVM has ended."""
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        log.debug("spark_stop_failed", reason=str(error))


def _end(jvm: subprocess.Popen[bytes]) -> None:
    """End the JVM by closing its input, and kill it where it does not end."""
    assert jvm.stdin is not None
    jvm.stdin.close()
    try:
        jvm.wait(JVM_END)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def capacity(spark: SparkContext) -> int:
    """Return how many tasks the master runs at once. Raises MeanderError where Spark is gone."""
    try:
        return int(spark.defaultParallelism)
    except (Py4JError, OSError) as error:
        raise _why("Spark", _jvm(spark), f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """An end of a task, with an error unless the task has succeeded."""

    error: MeanderError | None


class SparkTask:
    """A Spark job of one task that runs one worker, where its resources say.

    The task fails at once where they name executors without free slots. With `falls_back` it runs
    elsewhere on one core, once it has waited `PLACE_WITHIN` seconds for them.
    """

    def __init__(
        self,
        spark: SparkContext,
        group: str,
        name: str,
        blob: bytes,
        ended: Callable[[], None],
        resources: Resources = ANYWHERE,
        falls_back: bool = False,
    ) -> None:
        self._spark, self._jvm = spark, _jvm(spark)
        self._stderr, self._written = stderr.of(self._jvm.pid), 0
        self._group, self._name, self._blob = group, name, blob
        self._on_end = ended
        self.resources, self._falls_back = resources, falls_back
        self.started = False
        self.ended: TaskEnd | None = None
        self._thread: threading.Thread = InheritableThread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Submit the job. Its thread calls `ended` of the constructor at its end."""
        self.started, self._written = True, self._stderr.size
        self._thread.start()

    def continue_as(self, name: str, ended: Callable[[], None]) -> None:
        """Let the task run another worker of the next execution, with a new `ended`."""
        self._name, self._on_end = name, ended

    def has_slot(self) -> bool:
        """Return whether Spark has found an executor for the task.

        Returns False where Spark does not answer any more; `ended` names that cause.
        """
        tracker = self._spark.statusTracker()
        try:
            jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
            stages = [tracker.getStageInfo(id) for job in jobs if job for id in job.stageIds]
        except (Py4JError, OSError) as error:
            log.debug("slot_unknown", member=self._name, reason=str(error))
            return False
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def cancel(self) -> None:
        """Let Spark kill the task."""
        self._spark.cancelJobGroup(self._group)

    def join(self, seconds: float) -> bool:
        """Wait some seconds for the end of the task; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._spark.setJobGroup(self._group, self._name, interruptOnCancel=True)
            (failure,) = self._row().map(entry(self._blob)).collect()
            self.ended = TaskEnd(Failure.from_bytes(failure).error() if failure else None)
        except MeanderError as error:
            self.ended = TaskEnd(error)
        except (Py4JNetworkError, OSError, EOFError) as error:
            report = f"{type(error).__name__}: {error}"
            self.ended = TaskEnd(_why(self._name, self._jvm, report))
        except (PySparkException, Py4JError) as error:
            self.ended = TaskEnd(translate(self._name, str(error)))
            self._log_stderr()
        finally:
            self._on_end()

    def _row(self) -> RDD[int]:
        """Return the one row of the job. Raises SetupError where no executor has a free slot that
        its resources allow."""
        if not self.resources.needs_place:
            return self._spark.range(1, numSlices=1)
        deadline = time.monotonic() + (PLACE_WITHIN if self._falls_back else 0.0)
        while True:
            found = placement.executors(self._spark)
            try:
                placement.expect_free_slots({self._name: self.resources}, found, {})
            except SetupError as error:
                if not self._falls_back:
                    raise
                if time.monotonic() >= deadline:
                    log.warning("placed_elsewhere", member=self._name, reason=error.cause)
                    self.resources = Resources(memory=self.resources.memory)
                    return self._spark.range(1, numSlices=1)
                time.sleep(0.1)
            else:
                return placement.placed_row(self._spark, self.resources, found)

    def _log_stderr(self) -> None:
        if lines := self._stderr.since(self._written):
            log.warning("stderr_written", "\n".join(lines), member=self._name)


def _why(name: str, jvm: subprocess.Popen[bytes], report: str) -> MeanderError:
    """Return the error that ended a task or a call: the end of the JVM, or Spark's report."""
    try:
        code = jvm.wait(JVM_SEEN)
    except subprocess.TimeoutExpired:
        return translate(name, report)
    cause = f"Spark's JVM has ended ({_signal(code)})"
    return MeanderError(name, cause, "check whether this machine ran out of memory")


def _jvm(context: SparkContext) -> subprocess.Popen[bytes]:
    gateway = context._gateway
    assert gateway is not None, "each context here has its own JVM"
    return cast("subprocess.Popen[bytes]", gateway.proc)


def _signal(code: int) -> str:
    """Return in words how a process ended.

    >>> _signal(-9), _signal(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def entry(blob: bytes) -> Callable[[int], bytes]:
    """Return the function that Spark runs on its one row: `app.worker.main.main`."""

    def run(_: int) -> bytes:
        # Imported here, because only executors need it, and they have loaded it (`daemon`).
        from meander.app.worker.main import main

        return main(blob)

    return run


def translate(name: str, report: str) -> MeanderError:
    """Return the error that Spark's report of a failed task means.

    >>> print(translate("worker 1", "Job 3 cancelled part of cancelled job group w1"))
    worker 1: it was cancelled.
    >>> print(translate("worker 1", "... Python worker exited unexpectedly (crashed) ..."))
    worker 1: its process was killed, or crashed; the log of Spark's executor may say more.
    """
    if "PYTHON_VERSION_MISMATCH" in report:
        return SetupError(
            f"{name}'s Python",
            cause(report[report.index("PYTHON_VERSION_MISMATCH") :]),
            "set PYSPARK_PYTHON to the same Python on driver and executors",
        )
    if "No module named 'meander'" in report:
        return SetupError(name, "Meander is not installed where it runs", "install it there")
    if "Cannot run program" in report and _TRACE not in report:
        found = cause(report[report.index("Cannot run program") :])
        return SetupError(name, found, "set PYSPARK_PYTHON to a Python of the executors")
    # A traceback says more than Spark's report, and its text may contain any word.
    if _TRACE not in report:
        if "cancelled" in report:
            return MeanderError(name, "it was cancelled")
        if any(words in report for words in _KILLED):
            return MeanderError(name, KILLED, "the log of Spark's executor may say more")
    return MeanderError(name, cause(report))


def cause(report: str) -> str:
    r"""Return the line of a report by Java or Python that names the cause, without a full stop.

    A traceback ends with that line. The root of a Java exception has "Caused by". A report may
    hold both.

    >>> cause("An error occurred while calling o1.x.\n: org.apache.spark.X: No such place.")
    'org.apache.spark.X: No such place'
    >>> cause("X: \n  Traceback (most recent call last):\n    File\n  Oh: no\n at org.apache")
    'Oh: no'
    """
    lines = [line for line in report.splitlines() if line.strip()] or [report]
    traces = [at for at, line in enumerate(lines) if _TRACE in line]
    roots = [at for at, line in enumerate(lines) if line.startswith("Caused by: ")]
    called = [at for at, line in enumerate(lines) if line.startswith(": ")]
    if traces:
        return _sentence(lines, _behind_frames(lines, traces[-1]))
    return _sentence(lines, next(iter([*roots[-1:], *called]), 0))


def _behind_frames(lines: list[str], trace: int) -> int:
    """Return the line of a traceback's exception, behind the frames, which are indented more."""
    margin = _indent(lines[trace])
    behind = range(trace + 1, len(lines))
    return next((at for at in behind if _indent(lines[at]) <= margin), trace)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _sentence(lines: list[str], at: int) -> str:
    """Return a line as a sentence, with the next lines while it ends with a colon."""
    sentence = lines[at].strip().removeprefix("Caused by:").removeprefix(":").strip()
    while sentence.endswith(":") and at + 1 < len(lines):
        at += 1
        sentence = f"{sentence} {lines[at].strip()}"
    return sentence.rstrip(".")
