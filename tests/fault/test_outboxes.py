"""I5 where no replay gives a flow's results again: who reads what is committed sees one history,
though a worker and the driver are killed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all, until
from tests.support.process.flow_process import kill, lines, meander, until_silent

HEARTBEAT_TIMEOUT = 2
WORDS, LINES = 20, 400
FLOW = """
import random
from meander import KafkaSink, KafkaSource
from meander import Checkpointing, Flow


def link(last, word):
    "Each count tells what was drawn for it, and for the one before."
    number, before = last
    drawn = random.getrandbits(40)
    return [number + 1, drawn], dict(word=word, number=number + 1, before=before, drawn=drawn)


flow = Flow("counts", delivery="exactly_once", checkpoints=Checkpointing(0.5))
words = flow.source(KafkaSource("{prefix}lines", value="str")).flat_map(str.split)
counts = words.key_by(lambda word: word)
counts = counts.fold("count", init=lambda: [0, None], step=link, order="processing")
counts.sink(KafkaSink("{prefix}counts", value="json"))
"""


class Chains:
    """A flow whose counts nobody could make again, and what it has committed."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._broker, self._prefix, self._fed = broker, prefix, 0
        self._module = folder / "flow.py"
        self._module.write_text(FLOW.format(prefix=prefix))

    def feed(self) -> None:
        texts = [f"w{n % WORDS}" for n in range(self._fed, self._fed + LINES)]
        create, self._fed = not self._fed, self._fed + LINES
        lines(self._broker.bootstrap, self._prefix, texts, create=create, after=self._fed - LINES)

    def feed_some(self) -> None:
        """Until more than before is out."""
        before = len(self.committed)
        self.feed()
        until(lambda: len(self.committed) > before, "more is out")

    def run(self, *options: str) -> list[str]:
        timeout = "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT)
        return ["run", str(self._module), "--prefix", self._prefix, *timeout, *options]

    @property
    def committed(self) -> list[dict[str, Any]]:
        found = consume_all(self._broker.bootstrap, self._prefix + "counts", committed=True)
        return [json.loads(record.value or b"") for record in found]

    def check(self) -> None:
        """Each word's counts are a chain without a gap, as they lie on the topic (I9)."""
        chains = defaultdict(list)
        for one in self.committed:
            chains[one["word"]].append(one)
        assert len(chains) == WORDS
        for chain in chains.values():
            assert [one["number"] for one in chain] == [*range(1, self._fed // WORDS + 1)]
            assert [one["before"] for one in chain[1:]] == [one["drawn"] for one in chain[:-1]]
            assert chain[0]["before"] is None


def test_all_executions_together_commit_one_history(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    chains = Chains(broker, prefix, tmp_path)
    chains.feed()
    with meander(tmp_path, broker.bootstrap, *chains.run("--workers", "2")) as flow:
        flow.until_event("started")
        early = "checkpoint", "counts", "--prefix", prefix, "--savepoint", "early"
        with meander(tmp_path, broker.bootstrap, *early) as asked:
            assert asked.exit_code() == 0, asked.said
        chains.feed_some()
        chains.feed()
        kill(flow.workers[1])
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        chains.feed_some()
        chains.feed()
        kill(flow.process.pid)
        flow.until_gone()
    until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
    with meander(tmp_path, broker.bootstrap, *chains.run("--from", "early")) as flow:
        assert flow.exit_code() == 2, flow.said
        assert "outbox contents of checkpoint" in flow.said
    until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
    with meander(tmp_path, broker.bootstrap, *chains.run("--workers", "3", "--until-end")) as flow:
        assert flow.exit_code() == 0, flow.said
    chains.check()
