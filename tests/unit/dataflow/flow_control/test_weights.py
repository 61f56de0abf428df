"""A batch counts what its rows weigh: as many rows as fit into it, or a heavy row alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meander import Flow, flow_control
from meander.dataflow.flow_control.ready_rows import ReadyRows
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.collections.columns import Int64s
from meander.testing import TestFlow
from tests.support.sim.operator_bench import records

WEIGHTS = st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=4)


def weights_of(batch: Batch) -> Int64s:
    return np.array([*batch.values], np.int64)


def batches_of(sets: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Return the weights of the rows of each batch; each set has iterations of its own."""
    ready = ReadyRows(False, lambda _: None, weights_of)
    for number, weights in enumerate(sets):
        if weights:
            # A time is cut only where it exceeds a batch, so each row has its own.
            times = [20 * number + n for n in range(len(weights))]
            ready.add([Rows.of(records(weights, times), 0, (number,))])
    batches = list[list[int]]()
    while len(ready):
        taken = ready.take(size)
        batches.append([int(value) for rows in taken for value in rows.batch.values])  # type: ignore[call-overload]
        assert sum(map(ready.count, taken)) == sum(batches[-1])
    return batches


def test_a_heavy_row_leaves_alone_and_others_up_to_the_size() -> None:
    assert batches_of([[2, 3, 1, 9, 5, 1, 7, 0, 0]], 5) == [[2, 3], [1], [9], [5], [1], [7], [0, 0]]


def test_a_batch_goes_on_in_the_next_rows() -> None:
    assert batches_of([[2], [2, 2], [9]], 5) == [[2, 2], [2], [9]]


def test_a_time_is_cut_only_where_it_exceeds_a_batch() -> None:
    ready = ReadyRows(False, lambda _: None)
    ready.add([Rows.of(records("abcdefgh", [1, 1, 2, 2, 2, 2, 2, 3]), 0)])
    taken = [[len(rows) for rows in ready.take(4)] for _ in range(4)]
    assert taken == [[2], [4], [2], []]


@given(WEIGHTS, st.integers(1, 8))
def test_batches_have_all_rows_in_order_and_each_as_many_as_fit(
    sets: list[list[int]], size: int
) -> None:
    batches = batches_of(sets, size)
    assert [*chain(*batches)] == [*chain(*sets)]
    for one in batches:
        assert one, "a batch has rows"
        assert sum(one) <= size or len(one) == 1
    for one, following in pairwise(batches):
        assert sum(one) >= size or sum(one) + following[0] > size, "the next row does not fit"


@settings(max_examples=15, deadline=None)
@given(WEIGHTS, st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
def test_rows_in_a_part_weigh_no_more_than_its_batches(
    sets: list[list[int]], size: int, in_flight: int, workers: int
) -> None:
    flow, sink, now, most = Flow("f"), ListSink(), 0, 0

    def enter(weight: int) -> None:
        nonlocal now, most
        now += weight
        most = max(most, now)

    def leave(weight: int) -> None:
        nonlocal now
        now -= weight

    source = ListSource([[*enumerate(weights)] for weights in sets])
    control = flow_control(flow.source(source), batch=size, in_flight=in_flight, weigh=weights_of)
    with control as inner:
        keyed = inner.inspect(enter).key_by(lambda weight: weight % 3)
        passed = keyed.fold("pass", lambda: 0, lambda count, weight: (count + 1, weight))
        passed.inspect(leave).leave().sink(sink)
    with TestFlow(flow, workers=workers) as running:
        running.run()
    assert Counter(sink.values) == Counter(chain(*sets))
    assert most <= workers * in_flight * max(size, *chain([0], *sets))
