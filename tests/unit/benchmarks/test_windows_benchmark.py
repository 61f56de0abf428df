"""The number of results that a drain waits for is the number that its windows give."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks import load
from benchmarks.windows import backlog
from meander import Flow, KafkaSink, KafkaSource, columns, field, hopping, session, tumbling
from meander.dataflow.windows.window import Windows
from meander.testing import TestFlow

RECORDS, SECONDS = 400, 0.01
WINDOWS: dict[str, Windows] = {
    "tumbling": tumbling(SECONDS), "hopping": hopping(SECONDS, every=SECONDS / 5),
    "session": session(SECONDS),
}  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_a_drain_waits_for_all_results(window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.keys, "__defaults__", (30,))
    flow = Flow("drained", bins=2)
    keyed = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: record["k"])
    keyed.window("w", WINDOWS[window]).fold(columns.count()).sink(KafkaSink("out"))
    names = islice(load.keys(seed=1), RECORDS)
    with TestFlow(flow, partitions=1) as run:
        run.feed("in", *(
            {"k": name.decode(), "at": load.START_MS + n // load.PER_MS}
            for n, name in enumerate(names)
        ))  # fmt: skip
        run.run()
        assert len(run.values("out")) == backlog.results(window, SECONDS, RECORDS)
