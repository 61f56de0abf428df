"""Extra columns follow their records through joins, spills and frames, and cost others nothing."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from meander.dataflow import wire
from meander.dataflow.graph.graph import EdgeId
from meander.dataflow.records import extra_columns
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.wire import DataFrame
from meander.schemas.errors import MeanderError
from meander.state.times.time import from_millis


def batch(*own_ms: int, at_ms: int = 100, extra: bool = True) -> Batch:
    numbers = np.arange(len(own_ms))
    times = np.full(len(own_ms), from_millis(at_ms), np.int64)
    values: list[object] = [*own_ms]
    column = {EVENT_MS: np.array(own_ms)} if extra else None
    return Batch(times, numbers, numbers, numbers, numbers, values, extra=column)


def own_times(batch: Batch) -> list[int]:
    return [int(ms) for ms in np.asarray(batch.extra_column(EVENT_MS))]


def test_rows_keep_their_own_times_in_any_order() -> None:
    three = batch(7, 8, 9)
    assert own_times(three.take(np.array([2, 0, 0]))) == [9, 7, 7]
    assert own_times(three.between(1, 3)) == [8, 9]
    assert own_times(three.with_values(["a", "b", "c"])) == [7, 8, 9]
    assert own_times(three.with_outputs(np.array([1, 2, 3]), [None] * 3)) == [7, 8, 9]
    assert own_times(three.measured().isolated()) == [7, 8, 9]


def test_a_batch_without_the_column_stands_for_records_that_got_their_own_times() -> None:
    joined = Batch.concat([batch(7), batch(100, 100, extra=False), batch(9)])
    assert own_times(joined) == [7, 100, 100, 9]
    assert Batch.concat([batch(100, extra=False)] * 2).extra is None


def test_a_frame_has_a_third_part_only_for_extra_columns() -> None:
    frame = wire.encode_data(EdgeId(3), from_millis(100), batch(7, 8))
    plain = wire.encode_data(EdgeId(3), from_millis(100), batch(7, 8, extra=False))
    assert (len(frame), len(plain)) == (4, 3)
    assert frame[:3] == plain
    read = wire.decode(frame)
    assert isinstance(read, DataFrame)
    assert isinstance(read.payload, Batch)
    assert own_times(read.payload) == [7, 8]


@pytest.mark.parametrize(
    "extra",
    [[1], {"event_ms": bytes(8)}, {"event_ms": [b"a", b"b"]}, {"unknown": bytes(16)}, {3: b""}],
)
def test_extra_columns_that_do_not_fit_the_records_are_refused(extra: object) -> None:
    frame = wire.encode_data(EdgeId(3), from_millis(100), batch(7, 8))
    with pytest.raises(MeanderError, match="it cannot be read"):
        wire.decode([*frame[:3], msgpack.packb(extra)])


def test_records_with_and_without_values_of_their_own_return_from_disk_together() -> None:
    rows = [*extra_columns.cells({EVENT_MS: np.array([7, 8])}), {}]
    times = np.full(3, from_millis(100), np.int64)
    found = extra_columns.from_cells(rows, times)
    assert np.asarray(found[EVENT_MS]).tolist() == [7, 8, 100]
