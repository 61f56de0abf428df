"""A cursor reads what a trace held when it was opened, in pieces, also within a key."""

from __future__ import annotations

import numpy as np
import pytest

from meander.state.collections import cursor as cursors
from meander.state.collections.cursor import Cursor, CursorRows
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of, keys_of
from meander.state.collections.layer import Updates
from meander.state.collections.merge import UNBOUNDED, layer_of
from meander.state.collections.trace import Trace
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import Row


def trace_of(*batches: list[Row], by_estimate: bool = True) -> Trace:
    trace = Trace(1, by_estimate=by_estimate)
    for now, batch in enumerate(batches):
        bounds = Antichain.of(now), Antichain.of(now + 1), Antichain.of(0)
        trace.insert(layer_of(Updates.of(batch), LayerDescription(*bounds)))
    return trace


def read(rows: CursorRows, keys: list[int]) -> list[Row]:
    columns = rows.query, rows.values, rows.times, rows.diffs
    hashes = np.sort(hashes_of(np.array(keys)))
    found = zip(*(column.tolist() for column in columns), strict=True)
    return [(int(keys_of(hashes)[q]), value, tuple(time), diff) for q, value, time, diff in found]


def sorted_hashes(keys: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.sort(hashes_of(np.array(keys)))


@pytest.mark.parametrize("by_estimate", [True, False])
def test_a_cursor_finds_the_keys_that_are_there(by_estimate: bool) -> None:
    batches: list[list[Row]] = [
        [(k, 10 * k, (0,), 1) for k in range(0, 3000, 3)],
        [(6, 1, (1,), 2)],
    ]
    trace = trace_of(*batches, by_estimate=by_estimate)
    keys = [*range(3010)]
    found = read(trace.cursor().gather(sorted_hashes(keys)), keys)
    assert sorted(found) == sorted([*batches[0], *batches[1]])
    assert len(trace.cursor().gather(sorted_hashes([1, 2, 4]))) == 0
    assert len(Trace(1).cursor().gather(sorted_hashes([1]))) == 0


def test_a_hot_key_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "PIECE_ROWS", 4)
    hot: list[Row] = [(7, value, (0,), 1) for value in range(10)]
    cursor = trace_of([*hot, (8, 1, (0,), 1), (9, 1, (0,), 1)]).cursor()
    pieces = [*cursor.pieces(sorted_hashes([5, 7, 8, 9]))]
    assert [len(piece) for piece in pieces] == [4, 4, 4]
    found = [row for piece in pieces for row in read(piece, [5, 7, 8, 9])]
    assert sorted(found) == [*hot, (8, 1, (0,), 1), (9, 1, (0,), 1)]


def test_a_cursor_reads_on_while_its_layers_are_replaced() -> None:
    trace = trace_of([(7, 1, (0,), 1)], [(7, 1, (1,), -1)])
    reader = trace.reader()
    cursor = trace.cursor()
    reader.advance(Antichain.of(2))
    while trace.compact(UNBOUNDED):
        pass
    assert sorted(_diffs(cursor)) == [-1, 1]
    assert _diffs(trace.cursor()) == []


def _diffs(cursor: Cursor) -> list[int]:
    diffs: list[int] = cursor.gather(sorted_hashes([7])).diffs.tolist()
    return diffs
