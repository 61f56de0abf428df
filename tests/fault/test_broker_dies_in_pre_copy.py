"""A prepared migration outlives its broker: whatever was fetched ahead by then, nothing is lost,
doubled or wrong, and it goes on to its end (I2, I3, I4)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from meander.connectors.local_broker.broker import LocalBroker
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.topics import PATIENCE, Record, await_records, consume_all, produce, until
from tests.support.process.flow_process import FlowProcess, flow_folder, lines, meander
from tests.support.process.word_counts import each_once, word_counts

BINS = [*range(128)]
"""Those of worker 0."""
SOME = 30
"""Of these bins: so many lie on the state topic when the broker dies."""
WORDS = [f"w{n}" for n in range(2_000)]
BEGIN, HOURS = 1_700_000_000_000, 7_200_000
"""When the first line is from, and how much later the same line is from next, milliseconds."""
OPTIONS = '"counts", move_memory=1, snapshot_interval=3600'
"""Bins are made ready one after the other, and nothing is on the state topic before that."""


class Counting:
    """A flow of two workers that count all words, again and again."""

    def __init__(self, flow: FlowProcess, broker: LocalBroker, prefix: str) -> None:
        self.flow, self.broker, self.prefix = flow, broker, prefix
        self.names = topic_names(prefix, "counts")
        self.often = 0

    def count(self) -> None:
        """Feed every word once more, some hours later."""
        after = self.often * HOURS
        lines(self.broker.bootstrap, self.prefix, WORDS, create=False, after=after)
        self.often += 1

    def migrate(self, id: str, worker: int, **how: object) -> None:
        """Have the bins move, prepared."""
        command = {
            "meander": "command",
            "type": "migrate",
            "id": id,
            "bins": BINS,
            "worker": worker,
            **how,
        }
        record = Record(json.dumps(command).encode())
        produce(self.broker.bootstrap, self.names.control, [record])

    def kill_broker(self) -> None:
        """Returns once the flow knows."""
        outages = self._said(GONE)
        self.broker.kill()
        until(lambda: self._said(GONE) > outages, GONE)

    def start_broker(self) -> None:
        """Begin it anew, and count all words."""
        self.broker.start()
        self.count()

    def await_end(self, id: str) -> None:
        """Until a command is completed; each bin has moved once, and none was spoilt."""
        until(lambda: any(event["id"] == id for event in self.flow.of("completed")), f"{id} ends")
        assert self.flow.of("completed")[-1]["unmoved"] == []
        assert sorted(int(str(event["bin"])) for event in self.moved(id)) == BINS
        assert not self.flow.of("bin_unreadable")

    def moved(self, id: str) -> list[dict[str, object]]:
        return [event for event in self.flow.of("bin_moved") if event["id"] == id]

    def layers(self) -> list[Record]:
        return consume_all(self.broker.bootstrap, self.names.state)

    def await_all(self) -> None:
        """Until there are all results; each is there once, in its key's order."""
        total = self.often * len(WORDS)
        found = await_records(
            self.broker.bootstrap, f"{self.prefix}counts", lambda all: len(all) >= total
        )
        assert each_once(word_counts(found)) == dict.fromkeys(WORDS, self.often)

    def _said(self, words: str) -> int:
        assert self.flow.process.poll() is None, self.flow.said
        return self.flow.said.count(words)


GONE = "broker_lost"


def test_a_broker_that_dies_before_and_between_moves_costs_them_time_alone(
    own_broker: LocalBroker, prefix: str, tmp_path: Path
) -> None:
    module = flow_folder(tmp_path, prefix)
    module.write_text(module.read_text().replace('"counts"', OPTIONS, 1))
    words = ["run", str(module), "--prefix", prefix, "--startup-timeout", str(PATIENCE)]
    lines(own_broker.bootstrap, prefix, [])
    with meander(tmp_path, own_broker.bootstrap, *words) as flow:
        counting = Counting(flow, own_broker, prefix)
        counting.count()
        counting.await_all()
        assert not counting.layers()

        # In the middle of what is yet to be fed: so more changes of what has been fetched by then.
        counting.migrate("there", 1, strategy="all-at-once", time=BEGIN + HOURS + len(WORDS) // 2)
        flow.until_event("accepted")
        until(lambda: len(counting.layers()) >= SOME, "some of the layers are written")
        counting.kill_broker()
        assert not flow.of("bin_moved"), "they are being fetched ahead"
        counting.start_broker()
        counting.await_end("there")

        counting.migrate("back", 0, strategy="fluid")
        until(lambda: bool(counting.moved("back")), "the first bin has moved")
        counting.kill_broker()
        assert len(counting.moved("back")) < len(BINS), "others are to follow"
        counting.start_broker()
        counting.await_end("back")

        counting.await_all()
        flow.process.send_signal(signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT
