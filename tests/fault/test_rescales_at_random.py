"""A flow whose workers come and go all the time counts every record once and in order (I2, I3), and
takes no more memory the longer it runs (I6), neither its driver nor the worker that stays."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from pyspark import SparkContext

from meander.schemas.status import Event, Failed, Heartbeat, Left, Started
from tests.support.kafka.brokers import Broker
from tests.support.process.flow_process import UP
from tests.support.process.memory_growth import growth, own
from tests.support.process.rescaled_flow import RescaledFlow
from tests.support.property.budget import FIRST_SEED, RESCALING

MOST = 4
"""Workers."""
FLOOR = 2
"""Rescales at least."""
ENOUGH = 30
"""Rescales after which the memory is judged: before, processes are still warming up."""
SETTLED = 1.10
"""What the growth is within once a quarter of the time has passed, in which processes warm up: the
worker takes up to 15 % more then, and 4 % from there on. A leak of 30 % in all is 1.15 there."""
STAYS = 0
"""The worker that is there from the beginning to the end: no other lives long enough to grow."""


class Measured(RescaledFlow):
    """The flow, and the memory of those that live as long as it does, after each rescale."""

    def __init__(
        self, broker: Broker, prefix: str, folder: Path, log: pytest.LogCaptureFixture
    ) -> None:
        super().__init__(broker, prefix, folder, paced=True)
        self._log = log
        self.memory: dict[str, list[int]] = defaultdict(list)
        """Bytes, by who takes them."""

    def hear(self, event: Event) -> None:
        """Kept is what is asked for, and of heartbeats the newest: all would be in the driver's
        memory, and the bins alone that have moved some megabytes a minute."""
        if isinstance(event, Heartbeat):
            self.events = [one for one in self.events if not isinstance(one, Heartbeat)]
        if isinstance(event, Heartbeat | Started | Left | Failed):
            self.events.append(event)

    def at_random(self) -> None:
        """Go from some workers to others for as long as is asked."""
        rng, begun, workers = random.Random(FIRST_SEED), time.monotonic(), 1
        while len(self.ends) < FLOOR or time.monotonic() - begun < RESCALING:
            workers = rng.choice([n for n in range(1, MOST + 1) if n != workers])
            self.rescale(workers)
            living = self._living()
            assert (self.ends[-1], len(living)) == ((0, "rescaled"), workers)
            self.memory["the worker that stays"].append(own(living[STAYS]))
            # The coordinator runs in this process.
            self.memory["the driver"].append(own(os.getpid()))

    def check(self) -> None:
        """Each word was also counted in the order of the records."""
        super().check()
        found = defaultdict(list)
        for record in self._results():
            headers = dict(record.headers)
            order = tuple(int(headers[f"meander.{part}"] or b"") for part in ORDER)
            found[record.key].append(order)
        assert all(some == sorted(some) for some in found.values()), "as they lie on the topic (I9)"

    def _living(self) -> dict[int, int]:
        """Their processes."""
        gone = {event.worker for event in self.of(Left)}
        up = {int(worker): int(pid) for worker, pid in UP.findall(self._log.text)}
        return {worker: pid for worker, pid in up.items() if worker not in gone}


ORDER = ("time", "sequence", "origin", "partition", "offset", "index")


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

    flow.check()
    assert result.counters["read"] == flow.fed
    record_property("random rescales", len(flow.ends))
    record_property("lines counted meanwhile", flow.fed)
    for who, taken in flow.memory.items():
        record_property(f"MiB of {who}, at the median", round(median(taken) / (1 << 20)))
        record_property(
            f"% of the first quarter's, in the last, of {who}", round(100 * growth(taken))
        )
    for who, taken in flow.memory.items():
        settled = growth(taken[len(taken) // 4 :])
        assert len(flow.ends) < ENOUGH or settled <= SETTLED, f"{who} takes more and more"
