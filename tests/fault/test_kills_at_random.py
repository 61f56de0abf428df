"""I5 and I8: what a flow has committed is what it should be, record for record, however often its
workers and its driver are killed, stopped and continued, and whatever each was doing just then."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.counting import LEASE, Counting
from tests.flow_process import FlowProcess, alive, kill, meander, until_silent
from tests.kafka_tools import until
from tests.property.budget import FIRST_SEED, KILLS

LINES, LIVES = 60, 3
"""Lines between two kills, at most; and lives that a driver loses: it gives up one that loses four
in a minute each."""


class Killing:
    """A flow that counts, and who of it has been killed or stopped."""

    def __init__(self, counting: Counting) -> None:
        self._counting, self._rng = counting, random.Random(f"kills {FIRST_SEED}")
        self._stopped: list[int] = []
        self.done = Counter[str]()
        self.zombies = 0
        """Those that were stopped and nobody had killed before they were continued."""

    def driver(self, broker: Broker, prefix: str, folder: Path) -> None:
        """Run the flow, kill and stop some of its workers, then its driver."""
        words = self._counting.run("--workers", str(self._rng.randint(1, 3)))
        with meander(folder, broker.bootstrap, *words) as flow:
            flow.until_event("started")
            lost, most = 0, self._rng.randint(0, LIVES)
            while lost < most and self.done.total() < KILLS - 1:
                lost += self._strike_worker(flow, again=lost + 1 < most)
            self._go_on()
            kill(flow.process.pid)
            self.done["drivers killed"] += 1
            self._wake()
            flow.until_gone()
        until_silent(broker, prefix, LEASE)

    def _strike_worker(self, flow: FlowProcess, *, again: bool) -> int:
        """Kill or stop one, and perhaps one of the next life; how many lives are lost."""
        self._go_on()
        lives, known = len(flow.of("started")), flow.workers
        victim = self._rng.choice(sorted(known))
        stopped = self._rng.random() < 0.3
        kill(known[victim], signal.SIGSTOP if stopped else signal.SIGKILL)
        if stopped:
            self._stopped.append(known[victim])
            self.done["workers stopped through a recovery"] += 1
        else:
            self.done["workers killed"] += 1
        self._feed()
        again = again and not stopped and self._rng.random() < 0.5
        if again:
            # Before the next life has begun to do anything.
            until(lambda: flow.workers.get(victim) != known[victim], f"another is up: {flow.said}")
            kill(flow.workers[victim])
            self.done["workers killed in a recovery"] += 1
        until(lambda: len(flow.of("started")) > lives, f"it lives again: {flow.said}")
        self._wake()
        return 1 + again

    def _go_on(self) -> None:
        """Up to a moment that nobody knows, at which some of what is new is written."""
        written, new = self._counting.written, self._feed()
        more = self._rng.choice([0, 1, new])
        until(lambda: self._counting.written >= written + more, "it goes on")

    def _feed(self) -> int:
        new = self._rng.randint(1, LINES)
        self._counting.feed(new)
        return new

    def _wake(self) -> None:
        for process in self._stopped:
            self.zombies += alive(process)
            kill(process, signal.SIGCONT)
        self._stopped.clear()


@pytest.mark.soak
@pytest.mark.skipif(not KILLS, reason="`make soak` kills some hundred; others kill them one by one")
def test_what_is_committed_is_right_whoever_is_killed_at_random(
    broker: Broker, prefix: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    counting = Counting(broker, prefix, tmp_path)
    killing = Killing(counting)
    counting.feed()
    while killing.done.total() < KILLS:
        killing.driver(broker, prefix, tmp_path)
    end = counting.run("--workers", "2", "--until-end")
    with meander(tmp_path, broker.bootstrap, *end) as flow:
        assert flow.exit_code() == 0, flow.said
    assert counting.committed == counting.wanted
    for what, times in killing.done.items():
        record_property(f"real {what}", times)
    record_property("of those stopped were alive when continued", killing.zombies)
    record_property("results that were committed meanwhile", counting.wanted.total())
