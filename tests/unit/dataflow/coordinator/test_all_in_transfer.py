"""A flow whose partitions are all in transfer continues to accept commands (I7)."""

from __future__ import annotations

import pytest

from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.simulation import simulator
from meander.testing import TestFlow


@pytest.mark.parametrize("seed", range(3))
def test_workers_join_after_a_leave_that_moved_all_partitions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "MAX_ACTIONS", 40_000)  # A flow that hangs fails soon.
    flow = Flow("f")
    flow.source(KafkaSource("numbers")).map(lambda n: n + 1).sink(KafkaSink("more"))
    with TestFlow(flow, 4, seed) as run:
        run.feed("numbers", 1, 2, ms=1_000)
        run.run_until_idle()
        run.control({"type": "rescale", "id": "down", "workers": 1})
        run.run_until_idle()
        run.control({"type": "rescale", "id": "up", "workers": 2})
        run.feed("numbers", 3, 4, ms=2_000)
        run.run()
        answers = [run.answer(id) for id in ("down", "up")]
        assert [answer.state for answer in answers if answer] == ["rescaled", "rescaled"]
        assert sorted(map(str, run.values("more"))) == ["2", "3", "4", "5"]
