"""A step without state passes each update at its time, and small messages together."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from meander.dataflow.graph.graph import ROOT, Scope
from meander.dataflow.operators.collection import stateless
from meander.dataflow.operators.collection.stateless import Pass, unchanged
from meander.dataflow.operators.collection.updates import batch_of, columns_of
from meander.dataflow.operators.ports import Message
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import outer_time
from meander.state.times.time import Time
from tests.support.sim.operator_bench import Bench

Sent = list[tuple[Time, list[int]]]


def passed(messages: list[tuple[Time, list[int]]]) -> Sent:
    """Return what a step sends in the turn in which it gets messages of keys."""
    bench = Bench(scope=Scope("inner", ROOT))
    for time, keys in messages:
        bench.progress.changes.add(bench.inputs[0].location, time, 1)
        columns = np.array(keys), np.zeros(len(keys), np.int64), np.ones(len(keys), np.int64)
        batch = batch_of(np.full(len(keys), outer_time(time)), *columns)
        bench.inputs[0].put(Message(time, batch))
    assert Pass(bench.inputs, bench.output, unchanged).schedule()
    bench.progress.flush()
    assert list(bench.progress.outstanding(bench.inputs[0].location)) == []
    assert list(bench.held) == []
    return [(time, keys_of(batch)) for _, time, batch in bench.sent]


def keys_of(batch: Batch) -> list[int]:
    return [cast(int, key) for key in columns_of(batch)[0].tolist()]


def test_messages_of_equal_iterations_pass_as_one_at_the_least_of_their_times() -> None:
    assert passed([((6, 1), [1, 2]), ((5, 1), [3])]) == [((5, 1), [1, 2, 3])]


def test_messages_of_other_iterations_pass_apart_in_their_order() -> None:
    messages: list[tuple[Time, list[int]]] = [((5, 1), [1]), ((5, 2), [2]), ((5, 1), [3])]
    assert passed(messages) == messages


def test_messages_pass_apart_past_the_rows_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateless, "JOINED_ROWS", 3)
    messages: list[tuple[Time, list[int]]] = [
        ((5, 1), [1, 2]), ((5, 1), [3]), ((5, 1), [4]), ((5, 1), [5, 6, 7, 8]), ((5, 1), [9]),
    ]  # fmt: skip
    assert [keys for _, keys in passed(messages)] == [[1, 2, 3], [4], [5, 6, 7, 8], [9]]
