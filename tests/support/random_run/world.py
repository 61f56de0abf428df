"""A real flow, its own broker and its feed, to which anything may happen.

Guarantees that a flow that has ended for a known reason is run again, and that any other end, and
any result out of its key's sequence, is an `AssertionError` at the next look (`live`). All that is
stopped or away comes back at its time, at the latest by `heal`.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from meander.connectors.local_broker.broker import LocalBroker
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.topics import PATIENCE, admin, consume_all, create_topic, partitions_of
from tests.support.process.flow_process import FlowProcess, kill, run_command
from tests.support.process.spark_cluster import executor_of
from tests.support.random_run.answers import repeated, unanswered
from tests.support.random_run.configuration import COPIES, Configuration
from tests.support.random_run.drivers import HEARTBEAT_TIMEOUT, LOSSES, Drivers
from tests.support.random_run.feed import Feed
from tests.support.random_run.results import Results, totals

LOOK = 0.05
"""Seconds between two looks at what is due."""
MOST_PARTITIONS = 12
QUIET = 3
"""Summaries without a result, after which the flow is over the repeats of its last recovery."""
KEPT = Path("build") / "random-runs"
"""Where the logs of a failing run stay."""


class World:
    """A run of a configuration, while the block lasts."""

    def __init__(
        self, configuration: Configuration, broker: LocalBroker, prefix: str, folder: Path,
        master: str | None,
    ) -> None:  # fmt: skip
        """`master` is a cluster's; None stands for a local one."""
        self.configuration, self.broker, self._prefix = configuration, broker, prefix
        self._folder, self.bins = folder, 1 << configuration.bins
        self._master = master or f"local[{configuration.slots}]"
        self._cluster = master is not None
        self._rng = random.Random(f"world {configuration.seed}")
        self._begun, self.happened = time.monotonic(), Counter[str]()
        self._log = (folder / "schedule.txt").open("w", buffering=1)
        self._opened = contextlib.ExitStack()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._broker_away = False
        self._back: str | None = None
        """The savepoint that the next driver goes back to, if it is there by then."""
        self._quiet = -1, 0
        """How many results there were when the last one came, and heartbeats by then."""

    def __enter__(self) -> Self:
        some, bootstrap = self.configuration, self.broker.bootstrap
        create_topic(bootstrap, self._source, some.partitions)
        for topic in some.results:
            create_topic(bootstrap, self._prefix + topic, 4)
        module = self._folder / "flow.py"
        module.write_text(some.module(self._prefix))
        words = run_command(
            module, self._prefix, HEARTBEAT_TIMEOUT, "--startup-timeout", str(PATIENCE),
            "--master", self._master,
        )  # fmt: skip
        self.drivers = Drivers(
            self._folder, bootstrap, words, self.note,
            starts_over=some.delivery == "exactly_once",
        )  # fmt: skip
        self._opened.callback(self.drivers.close)
        self.results = self._results()
        self.feed = Feed(
            bootstrap, self._source, partitions=some.partitions, keys=some.keys, rate=some.rate,
            seed=some.seed,
        )  # fmt: skip
        self._commands = Producer({
            "bootstrap.servers": bootstrap, "message.timeout.ms": 0, "log_level": 0,
        })  # fmt: skip
        self.note(f"begins: {some}")
        self._run()
        self.feed.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        at: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._opened:
            self.heal()
        self._log.close()

    # Its time.

    def live(self, seconds: float, *, started: bool = False) -> None:
        """Let time pass, and see to all that is due; also until the flow has `started`."""
        end, deadline = time.monotonic() + seconds, time.monotonic() + PATIENCE
        while time.monotonic() < end or (started and not self.flow.of("started")):
            assert time.monotonic() < deadline, "the flow has not started in time"
            self._look()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
            self._look()

    def heal(self) -> None:
        """Do now all that was put off: whatever is stopped continues."""
        while self._due:
            heapq.heappop(self._due)[2]()

    def finish(self) -> None:
        """No more comes in, all results come out, the flow ends by a signal, and each key's results
        are right from the first to the last."""
        self.heal()
        assert self.feed.runs, "the feed has ended by itself"
        self._commands.flush(PATIENCE)
        self.note("all is healed")
        # Until the flow has noticed, and is over it.
        self.live(2 * HEARTBEAT_TIMEOUT, started=True)
        # Some wait for a time of the data, which comes while more is fed.
        self._expect_answers()
        self.feed.stop()
        self.note(f"all is fed: {self.feed.fed.total()} records")
        self.until(self._settled, "all results are there")
        self.note(f"all results are there: {self.results.seen}")
        last = self.drivers.now
        last.excuse("it was ended")
        kill(last.flow.process.pid, signal.SIGINT)
        assert last.flow.exit_code() == 128 + signal.SIGINT, last.last_words
        for driver in self.drivers.all:
            driver.flow.until_gone()
        self.results = self._results()
        self.results.read_to_end()
        assert not self.results.sequences.wrong, "results out of their sequence"
        assert not self.missing(), f"results that are missing: {self.missing()[:10]}"
        dead = consume_all(self.broker.bootstrap, topic_names(self._prefix, "counts").dead)
        assert not dead, f"{len(dead)} records on the dead-letter topic: {dead[0]}"

    def missing(self) -> list[str]:
        """Keys whose last result is not there."""
        fed = self.feed.fed
        wanted = {"counts": fed, "totals": totals(fed), COPIES: fed}
        sequences = self.results.sequences
        return [
            key
            for topic in self.configuration.results
            for key in sequences.missing(topic, wanted[topic])
        ]

    def note(self, text: str) -> None:
        """A line of the log."""
        self._log.write(f"{time.monotonic() - self._begun:8.2f} {text}\n")

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Do it then, or when all is healed."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), what))

    # What happens to it.

    @property
    def flow(self) -> FlowProcess:
        """The process that has the flow."""
        return self.drivers.now.flow

    def now_ms(self) -> int:
        """The data's time."""
        return int(time.time() * 1000)

    def command(self, command: dict[str, object]) -> str:
        """Give a command."""
        self.say(json.dumps({"meander": "command"} | command).encode())
        return ""

    def say(self, record: bytes | None) -> None:
        """Put a record on the control topic."""
        self._commands.produce(topic_names(self._prefix, "counts").control, record)
        self._commands.poll(0)

    def kill_driver(self) -> str:
        self.drivers.now.excuse("it was killed")
        kill(self.flow.process.pid)
        return f"process {self.flow.process.pid}"

    def stop(self, savepoint: str | None, *, back: bool) -> None:
        """A command will end it; the next may go back to the savepoint."""
        self.drivers.stops += 1
        # What waits for a checkpoint may leave with a later one before the stop.
        if back and self.configuration.order == "event":
            self._back = savepoint

    def strike_worker(self, victim: float, number: signal.Signals) -> str:
        """Send a signal to a worker, or say why it is not sent."""
        living = self.drivers.now.workers
        if not living or self.drivers.now.losses >= LOSSES:
            return "spared" if living else "there is none"
        self.drivers.now.strike()
        worker, pid = living[int(victim * len(living))]
        if number == signal.SIGKILL:
            self.drivers.now.killed.add(pid)
        kill(pid, number)
        return f"worker {worker}, process {pid}"

    def stop_worker(self, victim: float, seconds: float) -> str:
        """At least once, one that was given up could write between the results of the next."""
        said = self.strike_worker(victim, signal.SIGSTOP)
        if "process" not in said:
            return said
        pid, begun = int(said.rpartition(" ")[2]), time.monotonic()

        def carry_on() -> None:
            safe = time.monotonic() - begun < HEARTBEAT_TIMEOUT / 2
            safe = safe or self.configuration.delivery == "exactly_once"
            self.note(f"process {pid} {'continues' if safe else 'is killed'}")
            kill(pid, signal.SIGCONT if safe else signal.SIGKILL)

        self.later(seconds, carry_on)
        return said

    def stop_driver(self, seconds: float) -> str:
        """Where it is stopped beyond its lease, the next may be run meanwhile."""
        driver, pid = self.drivers.now, self.flow.process.pid
        if driver.ended:
            return "there is none"
        if seconds >= HEARTBEAT_TIMEOUT:
            driver.excuse("it was stopped beyond its lease", seconds + 3 * HEARTBEAT_TIMEOUT)
            if self._rng.random() < 0.7:
                self.drivers.run_next(HEARTBEAT_TIMEOUT + 1)
        kill(pid, signal.SIGSTOP)
        self.later(seconds, lambda: self._carry_on(pid))
        return f"process {pid}"

    def kill_executor(self, victim: float) -> str:
        jvm = self._executor(victim)
        if jvm is None or self.drivers.now.losses >= LOSSES:
            return "spared" if jvm else "there is none"
        if self._cluster:
            self.drivers.now.strike()
        else:
            self.drivers.now.excuse("its JVM was killed")
        kill(jvm)
        return f"process {jvm}"

    def stop_executor(self, victim: float, seconds: float) -> str:
        jvm = self._executor(victim)
        if jvm is None:
            return "there is none"
        kill(jvm, signal.SIGSTOP)
        self.later(seconds, lambda: self._carry_on(jvm))
        return f"process {jvm}"

    def lose_broker(self, seconds: float, *, dies: bool) -> str:
        pid = self.broker.pid
        if self._broker_away or pid is None:
            return "it is away"
        self._broker_away = self.drivers.now.was_away = True
        if dies:
            self.broker.kill()
        else:
            kill(pid, signal.SIGSTOP)

        def back() -> None:
            if dies:
                self.broker.start()
            else:
                kill(pid, signal.SIGCONT)
            self._broker_away = False
            self.note("the broker is back")

        self.later(seconds, back)
        return f"process {pid}"

    def add_partitions(self, more: int) -> str:
        if self._broker_away:
            return "the broker is away"
        client = admin(self.broker.bootstrap)
        wanted = len(partitions_of(client, self._source)) + more
        if wanted > MOST_PARTITIONS:
            return "there are enough"
        client.create_partitions([NewPartitions(self._source, wanted)])[self._source].result()
        self.feed.spread(wanted)
        return f"{wanted} partitions"

    # How a failure is told.

    def report(self, error: BaseException) -> str:
        """All that is needed to understand a failure; the logs stay."""
        with contextlib.suppress(Exception):
            self.heal()
        kept = KEPT / f"seed-{self.configuration.seed}-{int(time.time())}"
        lines = [
            f"{error}",
            f"seed {self.configuration.seed}, {self.configuration}",
            f"logs: {kept.absolute()}",
            *self._wrong(),
            f"the last words of the flow: {self.drivers.now.last_words}",
            "the schedule so far, in seconds:",
            (self._folder / "schedule.txt").read_text(),
        ]
        self.drivers.keep()
        (self._folder / "report.txt").write_text("\n".join(lines))
        shutil.copyfile(self.broker.log, self._folder / "broker.log")
        shutil.copytree(self._folder, kept, ignore=shutil.ignore_patterns("work", "__pycache__"))
        return "\n".join(lines)

    def _wrong(self) -> Iterator[str]:
        wrong = self.results.sequences.wrong
        if wrong:
            yield f"{len(wrong)} results are out of their sequence:"
            try:
                yield from self.results.around(wrong)
            except Exception as error:
                yield f"their surroundings could not be read: {error!r}"

    # How it is kept alive.

    def _look(self) -> None:
        self.results.read(LOOK)
        assert not self.results.sequences.wrong, "results out of their sequence"
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        if self.drivers.due() and not self._broker_away:
            self._run()

    def _expect_answers(self) -> None:
        """The status topic tells the end of each command, once. A bin that moves extends the
        deadline."""
        called = topic_names(self._prefix, "counts")
        seen, deadline = (0, 0), 0.0
        while left := unanswered(self.broker.bootstrap, called):
            now = len(left), len(self.flow.of("bin_moved"))
            if now != seen:
                seen, deadline = now, time.monotonic() + PATIENCE
            assert time.monotonic() < deadline, f"commands without an end: {left}"
            self.live(1)
        assert not (again := repeated(self.broker.bootstrap, called)), f"answered again: {again}"

    def _results(self) -> Results:
        topics = {self._prefix + topic: topic for topic in self.configuration.results}
        results = Results(self.broker.bootstrap, topics, self.configuration.delivery)
        self._opened.callback(results.close)
        return results

    def _settled(self) -> bool:
        """Whether all is there, and no more comes from one summary to those after it."""
        beats = len(self.flow.of("summary"))
        if self.missing() or self.results.seen != self._quiet[0]:
            self._quiet = self.results.seen, beats
        return beats >= self._quiet[1] + QUIET

    def _run(self) -> None:
        there = [taken["savepoint"] for taken in self.drivers.checkpoints]
        words = ["--from", self._back] if self._back in there and self._back else []
        self._back, self._quiet = None, (-1, 0)
        workers = self._rng.randint(1, self.configuration.workers)
        self.drivers.run(workers, *words, was_away=self._broker_away)
        self.happened["drivers"] += 1

    def _executor(self, victim: float) -> int | None:
        if self._cluster:
            living = self.drivers.now.workers
            return executor_of(living[int(victim * len(living))][1]) if living else None
        jvms = [line for line in self.flow.living() if "SparkSubmit" in line]
        return int(jvms[0].partition(":")[0]) if jvms else None

    def _carry_on(self, pid: int) -> None:
        self.note(f"process {pid} continues")
        kill(pid, signal.SIGCONT)

    @property
    def _source(self) -> str:
        return self._prefix + "lines"
