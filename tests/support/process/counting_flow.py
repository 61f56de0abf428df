"""A flow that counts words and commits each count exactly once, and what is right of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from meander import Checkpointing
from meander.app.cli.follow import produce
from meander.connectors.topics.internal_topics import topic_names
from meander.schemas.control import Rescale
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import ends, until
from tests.support.process.flow_process import FlowProcess, flow_folder, lines, run_command
from tests.support.process.word_counts import committed_counts, each_once, expected_counts

HEARTBEAT_TIMEOUT = 2
WORDS = 50
LINES = 400


def texts(first: int, last: int) -> list[str]:
    return [f"w{n * n % WORDS} v{n % WORDS}" for n in range(first, last)]


class CountingFlow:
    """A flow that counts words, and what it has committed."""

    def __init__(
        self, broker: Broker, prefix: str, folder: Path, *, interval: float | None = 0.5,
        says_where: bool = False,
    ) -> None:  # fmt: skip
        """Seconds from one checkpoint to the next; where it `says_where`, each count also says what
        is another in each process."""
        self._broker, self._prefix = broker, prefix
        self._fed = 0
        self.module = flow_folder(
            folder / "flow", prefix, says_where=says_where, delivery="exactly_once",
            checkpoints=Checkpointing(interval),
        )  # fmt: skip

    def feed(self, count: int = LINES) -> None:
        """Some more lines."""
        new = texts(self._fed, self._fed + count)
        lines(self._broker.bootstrap, self._prefix, new, create=not self._fed, after=self._fed)
        self._fed += count

    def rescale(self, id: str, workers: int) -> None:
        """Give the command, and wait for nothing."""
        settings = {"bootstrap.servers": self._broker.bootstrap}
        command = Rescale(type="rescale", id=id, workers=workers)
        produce(settings, topic_names(self._prefix, "counts"), "counts", command)

    def run(self, *options: str) -> list[str]:
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    @property
    def committed(self) -> Counter[str]:
        """How many counts each word has, which have to be a sequence on the topic (I9)."""
        return each_once(committed_counts(self._broker.bootstrap, self._prefix))

    @property
    def written(self) -> int:
        """Records on the topic, committed or not, and what Kafka itself notes there."""
        return ends(self._broker.bootstrap, self._prefix + "counts")

    @property
    def wanted(self) -> Counter[str]:
        return expected_counts(texts(0, self._fed))

    def until_all(self, flow: FlowProcess) -> None:
        """Raises AssertionError where anything is committed twice, or else."""

        def out() -> bool:
            assert flow.process.poll() is None, flow.said
            return self.committed.total() >= 2 * self._fed

        until(out, f"all is out: {flow.said}")
        assert self.committed == self.wanted
