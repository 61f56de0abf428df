"""`meander trace show` shows the rows of a real flow's collections, once the flow has stopped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from meander.app.flows import graphs
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until
from tests.support.process.command_here import Done, command_here
from tests.support.process.flow_process import meander

EDGES = {1000: (1, 2, 1), 1001: (2, 3, 1), 1002: (1, 3, 1), 1003: (1, 3, -1)}
"""The start, end and diff of a change, by its millisecond."""


ROWS = [(1, 0, 1), (2, 1, 1), (3, 2, 1)]
"""The nodes and distances at the end, once each."""


def answer(bootstrap: str, prefix: str) -> list[tuple[int, int, int]]:
    """The rows that the changes of a flow add up to so far."""
    counts = Counter[tuple[int, int]]()
    for record in consume_all(bootstrap, prefix + "bfs"):
        change = json.loads(record.value or b"")
        counts[change["key"], change["value"]] += change["diff"]
    return sorted((*row, count) for row, count in counts.items() if count)


class Shown:
    """What `meander trace show` prints about a flow."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str, flow: str) -> None:
        self._folder, self._flow, self._prefix = folder, flow, prefix
        self._bootstrap = bootstrap

    def call(self, *words: str) -> Done:
        words = "trace", "show", self._flow, *words, "--prefix", self._prefix
        return command_here(self._folder, self._bootstrap, *words)

    def rows(self, *words: str) -> list[tuple[object, ...]]:
        done = self.call(*words)
        assert done.code == 0, done.err
        return [(one["key"], one["value"], one["count"]) for one in done.lines]

    def refusal(self, *words: str) -> str:
        done = self.call(*words)
        assert (done.code, done.out) == (2, ""), done
        return done.err


@pytest.mark.timeout(2 * PATIENCE)
def test_the_collections_of_a_stopped_flow_are_shown_at_each_time(
    broker: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEANDER_GRAPHS_PREFIX", prefix)
    edges = [
        Record(json.dumps({"edge": [start, end], "diff": diff}).encode(), timestamp=millis)
        for millis, (start, end, diff) in EDGES.items()
    ]
    roots = [Record(b'{"root": 1, "diff": 1}', timestamp=1000)]
    for topic, records in {"edges": edges, "roots": roots, "bfs": []}.items():
        create_topic(broker.bootstrap, prefix + topic)
        produce(broker.bootstrap, prefix + topic, records)
    shown = Shown(tmp_path, broker.bootstrap, prefix, "bfs")
    assert "no flow of that name has run" in shown.refusal("nearest")
    module = f"{graphs.__file__}:bfs"
    words = ["run", module, "--prefix", prefix, "--workers", "2"]
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        until(lambda: answer(broker.bootstrap, prefix) == ROWS, "the flow has read all edges")
        stop = ["stop", "bfs", "--savepoint", "end", "--prefix", prefix]
        with meander(tmp_path, broker.bootstrap, *stop) as stopped:
            assert stopped.exit_code() == 0, stopped.said
        assert flow.exit_code() == 0, flow.said

    assert shown.rows("nearest") == shown.rows("nearest", "--checkpoint", "end") == ROWS
    assert shown.rows("nearest", "--as-of", "1002") == [(1, 0, 1), (2, 1, 1), (3, 1, 1)]
    assert shown.rows("nearest", "--as-of", "1970-01-01T00:00:01") == [(1, 0, 1), (2, 1, 1)]
    assert shown.rows("nearest", "--as-of", "999") == []
    assert shown.rows("nearest", "--key", "3", "--as-of", "1001") == [(3, 2, 1)]
    assert shown.rows("further", "--arrangement", "right") == [(1, 2, 1), (2, 3, 1)]
    assert "--arrangement left, --arrangement right" in shown.refusal("further")
    assert "name one of these: further, nearest" in shown.refusal("bfs")
    assert "retains no readable checkpoint" in shown.refusal("nearest", "--checkpoint", "none")
    assert "it is no time" in shown.refusal("nearest", "--as-of", "noon")
