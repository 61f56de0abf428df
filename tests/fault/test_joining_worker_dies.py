"""A newcomer that dies before it has joined is told of, and the flow goes on without it (I7)."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from pyspark import SparkContext

from meander.schemas.status import CommandRejected, Heartbeat, Joined, JoinFailed
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import until
from tests.support.process.rescaled_flow import RescaledFlow

STOPS = """
import os
import signal
from pathlib import Path

gate = Path({gate!r})
if gate.exists():
    (gate / str(os.getpid())).touch()
    signal.pause()
"""


def test_a_flow_continues_without_a_killed_joining_worker_and_takes_the_next(
    broker: Broker, prefix: str, tmp_path: Path, context: SparkContext
) -> None:
    flow = RescaledFlow(broker, prefix, tmp_path / "flow")
    # It stops between the opening of its links and that of what it reads and writes.
    gate = flow.gated(STOPS)

    def kill() -> None:
        until(lambda: any(gate.iterdir()), "the newcomer has come so far")
        (come,) = gate.iterdir()
        os.kill(int(come.name), signal.SIGKILL)

    def one_dies() -> None:
        gate.mkdir()
        killer = threading.Thread(target=kill)
        killer.start()
        flow.rescale(2)
        killer.join()
        gate.rename(tmp_path / "open")

    result = flow.run(
        context,
        one_dies,
        lambda: flow.rescale(2),
        lambda: flow.until(lambda: flow.answering() == {0, 2}, "the second newcomer answers"),
        lambda: flow.rescale(7),
    )

    assert flow.ends == [(1, "rescaled"), (0, "rescaled"), (1, "rejected")]
    (refused,) = flow.of(CommandRejected)
    assert "7 workers need a slot each, and the master has 6 in all" in refused.reason
    flow.check()
    (lost,) = flow.of(JoinFailed)
    cause = "its process was killed, or crashed; the log of Spark's executor may say more"
    assert (lost.worker, lost.reason) == (1, f"worker 1: {cause}")
    assert [event.worker for event in flow.of(Joined)] == [2], "no number is used twice"
    assert flow.of(Heartbeat)[-1].worker_ids == [0, 2]
    assert result.counters["read"] == flow.fed
