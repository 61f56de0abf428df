"""The shipped flows of graphs run by file and name: a module defines several of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meander.app.flows import cliques, graphs
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce
from tests.support.process.flow_process import meander

Values = list[dict[str, Any]]
Run = Callable[[ModuleType, str, Mapping[str, Sequence[object]]], dict[str, Values]]
pytestmark = pytest.mark.timeout(2 * PATIENCE)


def edges(*pairs: tuple[int, int]) -> list[dict[str, object]]:
    return [{"edge": pair, "diff": 1} for pair in pairs]


@pytest.fixture
def run(broker: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a flow to the end of its input. Return the values on its topics without input."""
    monkeypatch.setenv("MEANDER_GRAPHS_PREFIX", prefix)

    def run(
        module: ModuleType, name: str, topics: Mapping[str, Sequence[object]]
    ) -> dict[str, Values]:
        for topic, values in topics.items():
            create_topic(broker.bootstrap, prefix + topic)
            records = (
                Record(json.dumps(value).encode(), timestamp=1000 + n)
                for n, value in enumerate(values)
            )
            produce(broker.bootstrap, prefix + topic, records)
        flow = f"{module.__file__}:{name}"
        words = ["run", flow, "--prefix", prefix, "--workers", "1", "--until-end"]
        with meander(tmp_path, broker.bootstrap, *words) as process:
            assert process.exit_code() == 0, process.said
        return {
            topic: [
                json.loads(one.value or b"")
                for one in consume_all(broker.bootstrap, prefix + topic)
            ]
            for topic, values in topics.items()
            if not values
        }

    return run


def test_the_flow_of_distances_runs_by_its_name(run: Run) -> None:
    topics: dict[str, Sequence[object]] = {
        "edges": edges((1, 2), (2, 3)), "roots": [{"root": 1, "diff": 1}], "bfs": [],
    }  # fmt: skip
    found = run(graphs, "bfs", topics)["bfs"]
    assert {one["key"]: one["value"] for one in found} == {1: 0, 2: 1, 3: 2}
    assert {one["diff"] for one in found} == {1}


def test_the_flow_of_cliques_runs_by_its_name(run: Run) -> None:
    topics: dict[str, Sequence[object]] = {
        "edges": edges((1, 2), (3, 1), (1, 4), (2, 3), (4, 2), (3, 4)),
        "requests": [{"node": 3, "diff": 1}],
        "four-cliques": [],
        "four-cliques-requested": [],
    }
    found = run(cliques, "four-cliques", topics)
    counts = {one["node"]: one["cliques"] for one in found["four-cliques"]}
    assert counts == dict.fromkeys((1, 2, 3, 4, None), 1)
    assert found["four-cliques-requested"] == [{"node": 3, "clique": [1, 2, 3, 4], "diff": 1}]
