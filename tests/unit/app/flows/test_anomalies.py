"""The alerts of real flights are those of a loop in plain Python, which applies each change of the
limit from its logical time on."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import cast

import pytest

from meander.app.demo import data
from meander.app.flows import anomalies
from meander.app.flows.anomalies import Arrival, Beyond, Delays, Score, score
from meander.testing import Result, TestFlow

FLIGHTS = 6000
PARTITIONS = 3


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> data.Flights:
    return data.load(data.unpack(tmp_path_factory.mktemp("flights")), PARTITIONS)


def feed(run: TestFlow, flights: data.Flights, first: int, last: int) -> None:
    source, *_ = anomalies.topics()
    for n in range(first, last):
        run.feed(
            source, json.loads(flights.values[n]), partition=int(flights.partitions[n]),
            headers=[("time", b"%d" % flights.times[n])],
        )  # fmt: skip
    run.run_until_idle()


def place(result: Result) -> tuple[int, int, int]:
    return result.time, result.partition, result.offset


def wanted(flights: data.Flights, results: list[Result], changes: dict[int, float]) -> list[Score]:
    """Return the alerts that a single thread finds, given the scores' places and the limit from
    each time on."""
    states: dict[str, Delays] = defaultdict(tuple)
    places: dict[int, list[Arrival]] = defaultdict(list)
    for n in range(FLIGHTS):
        places[int(flights.partitions[n])].append(json.loads(flights.values[n]))
    found = []
    for one in sorted(results, key=place):
        flight = places[one.partition][one.offset]
        states[flight["dest"]], scored = score(states[flight["dest"]], flight)
        limit = [limit for time, limit in sorted(changes.items()) if time <= one.time][-1]
        if Beyond(limit=limit)(scored):
            found.append(scored)
    return found


def test_alerts_follow_each_change_of_the_limit(flights: data.Flights) -> None:
    _, scores, alerts = anomalies.topics()
    with TestFlow(anomalies.build(), workers=2, partitions=PARTITIONS) as run:
        feed(run, flights, 0, FLIGHTS // 3)
        for id, limit, until in ("c1", 8.0, FLIGHTS // 2), ("c2", 3.0, FLIGHTS):
            operators = {"alert": {"parameters": {"limit": limit}}}
            run.control({"type": "change_logic", "id": id, "operators": operators})
            run.run_until_idle()
            feed(run, flights, FLIGHTS // 3 if id == "c1" else FLIGHTS // 2, until)
        changed = [one for one in run.events if one["type"] == "logic_changed"]
        limits = {0: 5.0} | dict(
            zip((cast(int, one["at"]) for one in changed), (8.0, 3.0), strict=True)
        )
        found = [cast(Score, one.value) for one in sorted(run.results(alerts), key=place)]
        expected = wanted(flights, run.results(scores), limits)
    assert found == expected
    assert len(found) > 100
    known = sum(json.loads(one)["arr_delay"] is not None for one in flights.values[:FLIGHTS])
    assert len(run.results(scores)) == known, "each flight with a delay has one score"
