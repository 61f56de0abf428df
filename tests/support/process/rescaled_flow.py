"""A flow whose workers come and go by `meander rescale` while lines come without a pause."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark import SparkContext

from meander import Checkpointing
from meander.app.config.options import Options
from meander.app.driver import driver
from meander.app.driver.loop import FlowResult
from meander.schemas.status import Event, Failed, Heartbeat, Started
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, produce, until
from tests.support.process.background import BackgroundSteps
from tests.support.process.flow_process import MEANDER, flow_folder, lines
from tests.support.process.word_counts import each_once, word_counts

WORDS = 200
AT_ONCE = 50
"""Lines fed with one call."""
E = TypeVar("E", bound=Event)


class RescaledFlow:
    """A flow that counts words.

    `paced` has lines come only as they are read: a few with each heartbeat, so that there are not
    too many to be compared after a long run."""

    def __init__(
        self, broker: Broker, prefix: str, folder: Path, *, workers: int = 1, paced: bool = False,
        delivery: str = "at_least_once", checkpoints: Checkpointing | None = None,
    ) -> None:  # fmt: skip
        self.bootstrap, self.prefix, self._paced = broker.bootstrap, prefix, paced
        self._workers, checkpoints = workers, checkpoints or Checkpointing()
        self.module = flow_folder(folder, prefix, delivery=delivery, checkpoints=checkpoints)
        lines(self.bootstrap, prefix, [])
        self.events: list[Event] = []
        self.ends: list[tuple[int, str]] = []
        self.fed = 0
        self.begin = 1_700_000_000_000
        """The time of the first line, if all had been as those fed now, milliseconds."""
        self.counts: Counter[str] = Counter()
        self._enough = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)

    def gated(self, code: str) -> Path:
        """Have each process run some code first, which heeds a gate that is not there yet: its
        `{gate!r}`."""
        gate = self.module.parent / "gate"
        self.module.write_text(code.format(gate=str(gate)) + self.module.read_text())
        return gate

    def run(self, context: SparkContext, *steps: Callable[[], object]) -> FlowResult:
        """Lines come, step follows step, no more lines come; the flow ends when all is counted."""
        kafka = {"bootstrap.servers": self.bootstrap}
        options = Options(
            kafka, workers=self._workers, prefix=self.prefix, startup_timeout=PATIENCE
        )
        beside = BackgroundSteps(self._start_feeding, *steps, self._stop_feeding)
        with beside:
            return driver.run(self.module, options, lambda: context, self.hear, beside.signals)

    def hear(self, event: Event) -> None:
        """The driver says something."""
        self.events.append(event)

    def rescale(self, workers: int) -> None:
        """The command, followed to its end."""
        self.command("rescale", "counts", "--workers", str(workers))

    def command(self, *words: str) -> None:
        """One that is followed to its end: its exit code and last event go to `ends`."""
        environment = os.environ | {"MEANDER_BOOTSTRAP": self.bootstrap}
        done = subprocess.run(
            [MEANDER, *words, "--prefix", self.prefix],
            env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout, done.stderr
        self.ends.append((done.returncode, json.loads(done.stdout.splitlines()[-1])["type"]))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, while the flow lives."""

        def holds() -> bool:
            assert not self.of(Failed), f"the flow ended before {what}"
            return condition()

        until(holds, what)

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind so far."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def answering(self) -> set[int]:
        """The workers that have answered something."""
        return {int(dict(record.headers)["meander.worker"] or b"") for record in self._results()}

    def check(self) -> None:
        """Each word was counted one by one, record for record, in the order of the topic (I9)."""
        assert each_once(word_counts(self._results())) == self.counts

    def _results(self) -> list[Record]:
        return consume_all(self.bootstrap, self.prefix + "counts")

    def _feed(self) -> None:
        while not self._enough.is_set():
            texts = [f"w{n * n % WORDS} v{n % WORDS}" for n in range(self.fed, self.fed + AT_ONCE)]
            records = (
                Record(text.encode(), partition=n % 4, timestamp=self.begin + n)
                for n, text in enumerate(texts, self.fed)
            )
            produce(self.bootstrap, self.prefix + "lines", records)
            self.fed += AT_ONCE
            self.counts.update(word for text in texts for word in text.split())
            if self._paced:
                self.until(lambda: self._read == self.fed, "what has been fed is read")

    def _start_feeding(self) -> None:
        self.until(lambda: bool(self.of(Started)), "it runs")
        self._feeder.start()

    def _stop_feeding(self) -> None:
        self._enough.set()
        self._feeder.join()
        self.until(lambda: len(self._results()) >= self.counts.total(), "all is counted")
        self.until(lambda: self._read == self.fed, "all is told of")

    @property
    def _read(self) -> int:
        """How many lines have been read, as the newest heartbeat tells."""
        beats = (event for event in reversed(self.events) if isinstance(event, Heartbeat))
        return next((beat.counters.get("read", 0) for beat in beats), 0)
