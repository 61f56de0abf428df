"""A flow whose workers come and go all the time counts every record once and in order (I2, I3), and
takes no more memory the longer it runs (I6)."""

from __future__ import annotations

import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import pytest
from pyspark import SparkContext

from schemas.status import Left
from tests.brokers import Broker
from tests.flow_process import UP
from tests.kafka_tools import consume_all
from tests.property.budget import FIRST_SEED, RESCALING
from tests.rescaled import Rescaled

MOST = 4
"""Workers."""
FLOOR = 2
"""Rescales at least."""
ENOUGH = 30
"""Rescales after which the memory is judged: before, processes are still warming up."""
GROWTH = 1.1
"""By which the last third of all measurements may exceed the first."""


class Measured(Rescaled):
    """The flow, and the memory of its workers after each rescale."""

    def __init__(
        self, broker: Broker, prefix: str, folder: Path, log: pytest.LogCaptureFixture
    ) -> None:
        super().__init__(broker, prefix, folder, paced=True)
        self._log = log
        self.memory: list[float] = []
        """Bytes per worker."""

    def at_random(self) -> None:
        """Go from some workers to others for as long as is asked."""
        rng, begun, workers = random.Random(FIRST_SEED), time.monotonic(), 1
        while len(self.ends) < FLOOR or time.monotonic() - begun < RESCALING:
            workers = rng.choice([n for n in range(1, MOST + 1) if n != workers])
            self.rescale(workers)
            living = self._living()
            assert (self.ends[-1], len(living)) == ((0, "rescaled"), workers)
            self.memory.append(fmean(map(proportional, living)))

    def growth(self) -> float:
        """The median of the last third of all measurements over that of the first."""
        third = max(1, len(self.memory) // 3)
        return median(self.memory[-third:]) / median(self.memory[:third])

    def check_order(self) -> None:
        """Each word was counted one by one, in the order of the records."""
        found = defaultdict(list)
        for record in consume_all(self.bootstrap, self.prefix + "counts"):
            headers = dict(record.headers)
            order = tuple(int(headers[f"meander.{part}"] or b"") for part in ORDER)
            value = json.loads(record.value or b"")
            found[value["word"]].append((order, value["count"]))
        counts = {word: [count for _, count in sorted(some)] for word, some in found.items()}
        assert counts == {word: list(range(1, n + 1)) for word, n in self.counts.items()}

    def _living(self) -> list[int]:
        gone = {event.worker for event in self.of(Left)}
        return [int(pid) for worker, pid in UP.findall(self._log.text) if int(worker) not in gone]


ORDER = ("time", "origin", "partition", "offset", "index")


def proportional(pid: int) -> int:
    """Bytes of a process in memory; what it shares with others is divided."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("Pss:")]
    return int(kib) * 1024


@pytest.mark.soak
def test_a_flow_that_is_rescaled_at_random_counts_everything_once_in_little_memory(
    broker: Broker,
    prefix: str,
    tmp_path: Path,
    context: SparkContext,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    flow = Measured(broker, prefix, tmp_path / "flow", caplog)
    with caplog.at_level(logging.INFO):
        result = flow.run(context, flow.at_random)

    flow.check_order()
    assert result.counters["read"] == flow.fed
    record_property("random rescales", len(flow.ends))
    record_property("lines counted meanwhile", flow.fed)
    record_property("MiB per worker, at the median", round(median(flow.memory) / (1 << 20)))
    record_property("% of the first third's memory, in the last", round(100 * flow.growth()))
    assert len(flow.ends) < ENOUGH or flow.growth() <= GROWTH
