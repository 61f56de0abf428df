"""The top of a window is that of all its results, once, and in one order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, SetupError, columns, field, session, tumbling
from meander.testing import TestFlow


def flow_of(n: int, by: Any = None) -> Flow:
    flow = Flow("top", bins=2)
    records = flow.source(KafkaSource("in", time=field("at"))).key_by(lambda record: record["k"])
    counts = records.window("w", tumbling(0.02)).fold(columns.count())
    counts.top(n, by=by).sink(KafkaSink("out"), "write")
    return flow


@pytest.mark.parametrize("seed", range(3))
def test_the_top_equals_that_of_all_results(seed: int) -> None:
    rng = random.Random(seed)
    records: list[Any] = [{"k": f"k{rng.randrange(40)}", "at": n // 3} for n in range(300)]
    with TestFlow(flow_of(3), seed=seed) as run:
        run.feed("in", *records)
        run.run()
        results: list[Any] = run.values("out")
        assert run.states("w top") == run.states("w top of parts") == {}
    wanted = []
    for start in range(0, 100, 20):
        counts = Counter(one["k"] for one in records if start <= one["at"] < start + 20)
        best = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:3]
        wanted.append({"start": start, "end": start + 20, "value": [
            {"key": k, "start": start, "end": start + 20, "value": n} for k, n in best
        ]})  # fmt: skip
    assert sorted(results, key=lambda one: one["start"]) == wanted


def test_a_function_of_results_may_rank_them() -> None:
    with TestFlow(flow_of(1, lambda result: result["key"])) as run:
        run.feed("in", {"k": "a", "at": 1}, {"k": "b", "at": 2}, {"k": "a", "at": 3})
        run.run()
        result: Any
        (result,) = run.values("out")
        assert [one["key"] for one in result["value"]] == ["b"]


@pytest.mark.parametrize("n", [0, True, "3"])
def test_a_top_has_a_number_of_results(n: Any) -> None:
    with pytest.raises(SetupError, match="its top is"):
        flow_of(n)


def test_windows_that_differ_from_key_to_key_have_no_top() -> None:
    keyed = Flow("top").source(KafkaSource("in")).key_by(lambda record: record["k"])
    with pytest.raises(SetupError, match="no top"):
        keyed.window("w", session(1)).fold(columns.count()).top(3)
