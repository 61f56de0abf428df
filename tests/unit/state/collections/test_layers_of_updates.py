"""A layer is its updates: sorted by key and value, added up, and in as few bytes as they need."""

from __future__ import annotations

import numpy as np
import pytest

from meander.state.collections import layer as layers
from meander.state.collections import merge as merges
from meander.state.collections.description import LayerDescription
from meander.state.collections.kernels import hashes_of, keys_of
from meander.state.collections.layer import Layer, UpdateChunk, Updates
from meander.state.collections.merge import UNBOUNDED, Merge, layer_of
from meander.state.times.antichain import Antichain
from tests.support.collections.columns import Row, rows_of


def layer(rows: list[Row], lower: int = 0, upper: int = 10, since: int = 0) -> Layer:
    """A layer as a merge leaves it; a fresh one has no static rows."""
    interval = LayerDescription(Antichain.of(lower), Antichain.of(upper), Antichain.of(since))
    fresh = layer_of(Updates.of(rows), interval)
    nothing = Layer((), LayerDescription(interval.upper, interval.upper, interval.since))
    return merged(fresh, nothing, since)


def rows(of: Layer) -> list[Row]:
    return sorted(rows_of(of.updates()))


def merged(earlier: Layer, later: Layer, since: int) -> Layer:
    merge = Merge(earlier, later, Antichain.of(since), 1)
    merge.step(UNBOUNDED)
    return merge.result()


# -- descriptions


def test_a_layer_is_skipped_where_all_its_updates_are_at_or_after_no_time_looked_at() -> None:
    early = LayerDescription(Antichain.of((3, 4)), Antichain.of((5, 6)), Antichain.of((0, 0)))
    assert early.precedes(Antichain.of((3, 4)))
    assert early.precedes(Antichain.of((2, 9), (4, 4)))
    assert not early.precedes(Antichain.of((2, 9), (9, 3)))
    assert not early.precedes(Antichain())


def test_descriptions_are_joined_where_no_time_lies_between_them() -> None:
    first, second, third = (
        LayerDescription(Antichain.of(n), Antichain.of(n + 1), Antichain.of(0)) for n in range(3)
    )
    both = first.then(second, Antichain.of(1))
    assert both == LayerDescription(Antichain.of(0), Antichain.of(2), Antichain.of(1))
    with pytest.raises(AssertionError, match="only adjacent layers merge"):
        first.then(third, Antichain.of(0))


# -- columns


def test_each_key_has_a_hash_of_its_own() -> None:
    limits = np.iinfo(np.int64)
    keys = np.array([0, 1, -1, 12345, 1 << 32, limits.max, limits.min], np.int64)
    hashes = hashes_of(keys)
    assert len(set(hashes.tolist())) == len(keys)
    assert keys_of(hashes).tolist() == keys.tolist()


def test_rows_of_the_least_time_with_diff_1_are_static_and_the_others_dynamic() -> None:
    (chunk,) = layer([(7, 1, (2,), 1), (7, 2, (2,), 3), (7, 3, (4,), 1), (8, 1, (2,), 1)]).chunks
    assert chunk.floor.tolist() == [2]
    assert sorted(chunk.static.values.tolist()) == [1, 1]
    assert chunk.dynamic.values.tolist() == [2, 3]
    assert chunk.times.tolist() == [[2], [4]]
    assert chunk.diffs.tolist() == [3, 1]


def test_a_row_becomes_static_once_no_time_tells_it_apart() -> None:
    early, late = layer([(7, 1, (2,), 1)], 0, 3), layer([(8, 1, (4,), 1)], 3, 5)
    assert [len(chunk.dynamic) for chunk in merged(early, late, since=0).chunks] == [1]
    (chunk,) = merged(early, late, since=4).chunks
    assert (len(chunk.static), len(chunk.dynamic)) == (2, 0)
    assert chunk.floor.tolist() == [4]


def test_a_static_row_takes_4_bytes_and_a_key_12() -> None:
    keys, values = 100, 5
    some = layer([(key, value, (0,), 1) for key in range(keys) for value in range(values)])
    # Each part ends with one more offset.
    assert some.nbytes == 12 * keys + 4 * keys * values + 2 * 4


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 62])
def test_values_beyond_32_bits_widen_a_chunk(value: int) -> None:
    wide = layer([(7, value, (0,), 1), (7, 3, (0,), 1)], 0, 1)
    assert wide.chunks[0].static.values.dtype == np.int64
    small = layer([(7, 2, (1,), 1)], 1, 2)
    assert small.chunks[0].static.values.dtype == np.int32
    both = merged(wide, small, since=1)
    assert rows(both) == sorted((7, one, (1,), 1) for one in (value, 3, 2))
    assert merged(small, layer([(7, value, (2,), 1)], 2, 3), 0).nbytes > small.nbytes


def test_values_of_32_bits_at_their_limits_stay_narrow() -> None:
    limits = np.iinfo(np.int32)
    some = layer([(7, int(limits.max), (0,), 1), (7, int(limits.min), (0,), 1)])
    assert some.chunks[0].static.values.dtype == np.int32
    assert [value for _, value, *_ in rows(some)] == [limits.min, limits.max]


# -- merges


def test_equal_updates_are_added_up_and_vanish_at_zero() -> None:
    some = layer([(7, 1, (0,), 2), (7, 1, (0,), -1), (7, 2, (0,), 1), (7, 2, (0,), -1)])
    assert rows(some) == [(7, 1, (0,), 1)]
    assert layer([(7, 1, (0,), 1), (7, 1, (0,), -1)]).chunks == ()


def test_updates_that_cancel_later_stay_until_no_time_tells_them_apart() -> None:
    added, removed = layer([(7, 1, (0,), 1)], 0, 3), layer([(7, 1, (3,), -1)], 3, 5)
    assert rows(merged(added, removed, since=2)) == [(7, 1, (2,), 1), (7, 1, (3,), -1)]
    assert rows(merged(added, removed, since=3)) == []


def test_times_advance_to_the_meet_of_their_joins_with_since() -> None:
    zero, since = Antichain.of((0, 0)), Antichain.of((1, 4), (3, 2))
    some = Updates.of([(7, 1, (0, 0), 1), (7, 2, (2, 5), 1), (7, 3, (4, 0), 1)], 2)
    early = layer_of(some, LayerDescription(zero, Antichain.of((5, 5)), zero))
    nothing = Layer((), LayerDescription(Antichain.of((5, 5)), Antichain.of((5, 5)), zero))
    merge = Merge(early, nothing, since, 2)
    merge.step(UNBOUNDED)
    assert [time for *_, time, _ in rows(merge.result())] == [(1, 2), (2, 5), (4, 2)]


def test_a_merge_stops_within_a_key_and_both_layers_stay_readable() -> None:
    early = layer([(7, value, (0,), 1) for value in range(50)], 0, 1)
    late = layer([(7, value, (1,), 1) for value in range(50, 90)], 1, 2)
    merge, steps = Merge(early, late, Antichain.of(1), 1), 0
    while not merge.finished:
        assert merge.step(10) <= 10
        steps += 1
        present = rows(Layer(merge.chunks, merge.description))
        assert [value for _, value, *_ in present] == [*range(90)]
    assert steps >= 9
    assert rows(merge.result()) == [(7, value, (1,), 1) for value in range(90)]


def test_a_merge_frees_the_input_behind_a_finished_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "CHUNK_ROWS", 8)
    early = layer([(key, 1, (0,), 1) for key in range(40)], 0, 1)
    late = layer([(key, 2, (1,), 1) for key in range(40)], 1, 2)
    before = early.nbytes + late.nbytes
    merge = Merge(early, late, Antichain.of(1), 1)
    while not merge.finished:
        merge.step(5)
        # A chunk that is not finished yet is there beside the input that it holds.
        assert merge.nbytes <= before + 8 * (12 + 4) + 60 * len(merge.chunks)
    assert [len(chunk) for chunk in merge.result().chunks] == [8] * 10


def test_a_history_longer_than_a_chunk_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "CHUNK_ROWS", 4)
    some = layer([(7, value, (time,), 1) for time in range(9) for value in range(3)])
    assert [len(chunk) for chunk in some.chunks] == [9, 9, 9]
    assert len(rows(some)) == 27


def test_the_rest_of_a_chunk_has_the_rows_from_a_place_on() -> None:
    (chunk,) = layer([(1, 1, (0,), 1), (1, 2, (0,), 1), (2, 1, (0,), 5), (3, 1, (0,), 1)]).chunks
    static_rows = [row for row in rows_of([chunk.updates()]) if row[3] == 1]
    rest = chunk.since(key=0, row=1, dynamic_key=1, dynamic_row=1)
    assert [*rows_of([rest.updates()])] == static_rows[1:]
    assert len(UpdateChunk.empty(depth=3)) == 0


def test_chunks_that_follow_each_other_are_joined_up_to_the_most_rows_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "CHUNK_ROWS", 60)
    keys, wide = keys_of(np.sort(hashes_of(np.arange(10)))).tolist(), 1 << 40
    some = [[(key, n * wide, (n,), 1 - 2 * (n % 2)) for n in range(key, 15)] for key in keys]
    parts = [UpdateChunk.sorted(Updates.of(one)) for one in some]
    chunks = [*UpdateChunk.joined(parts)]
    assert sum(map(len, chunks)) == sum(map(len, some)) == 105
    assert len(chunks) == 2 and max(map(len, chunks)) <= 60
    found = [one for chunk in chunks for one in rows_of([chunk.updates()])]
    assert found == [one for part in some for one in part]
    assert [chunk.floor.tolist() for chunk in chunks] == [
        chunk.times.min(axis=0).tolist() for chunk in chunks
    ]
