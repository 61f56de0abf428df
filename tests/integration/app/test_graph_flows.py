"""The shipped flows of graphs run by file and name: one module defines three of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meander.app.flows import graphs
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce
from tests.support.process.flow_process import meander

EDGES = [b'{"edge": [1, 2], "diff": 1}', b'{"edge": [2, 3], "diff": 1}']
ROOTS = [b'{"root": 1, "diff": 1}']


@pytest.mark.timeout(2 * PATIENCE)
def test_a_shipped_flow_runs_by_the_name_of_its_module_and_its_own(
    broker: Broker, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEANDER_GRAPHS_PREFIX", prefix)
    for topic, values in {"edges": EDGES, "roots": ROOTS, "bfs": []}.items():
        create_topic(broker.bootstrap, prefix + topic)
        records = (Record(value, timestamp=1000 + n) for n, value in enumerate(values))
        produce(broker.bootstrap, prefix + topic, records)
    module = f"{graphs.__file__}:bfs"
    words = ["run", module, "--prefix", prefix, "--workers", "1", "--until-end"]
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        assert flow.exit_code() == 0, flow.said
    found = [json.loads(one.value or b"") for one in consume_all(broker.bootstrap, prefix + "bfs")]
    distances = {one["key"]: one["value"] for one in found}
    assert distances == {1: 0, 2: 1, 3: 2}
    assert {one["diff"] for one in found} == {1}
