"""Records in flight lie on the topic in few records: a recovery reads one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from meander import Flow
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.checkpoint_writer import (
    BYTES,
    ROWS,
    CheckpointWriter,
    SnapshotContents,
    _in_pieces,
)
from meander.dataflow.graph.graph import Location
from meander.dataflow.operators.ports import InFlight
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import SimTopic
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.checkpoint import Checkpoint, Piece
from meander.state.encoding.value_columns import ValueColumns
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import Time

HERE, THERE = Location(0), Location(1)


def lying(
    at: Location, values: Sequence[bytes], time: Time = 7, *, keyed: bool = True, partition: int = 0
) -> InFlight:
    """Records that an operator holds."""
    n = len(values)
    zeros = np.zeros(n, np.int64)
    keys = [b"k"] * n if keyed else None
    hashes = np.zeros(n, np.uint64) if keyed else None
    return InFlight(
        at, time, Batch(zeros + 7, zeros, zeros + partition, zeros, zeros, [*values], keys, hashes)
    )


def values_of(pieces: Sequence[InFlight]) -> list[list[object]]:
    return [list(one.batch.values) for one in pieces]


def test_what_lies_side_by_side_is_one_piece_in_its_order() -> None:
    many = [[lying(HERE, [b"a", b"b"])], [lying(HERE, [b"c"]), lying(HERE, [b"d"])]]
    assert values_of([*_in_pieces(many)]) == [[b"a", b"b", b"c", b"d"]]


def test_columns_side_by_side_are_one_piece_of_columns() -> None:
    def numbers(*of: int) -> InFlight:
        one = lying(HERE, [b""] * len(of))
        return one._replace(batch=one.batch.with_values(ValueColumns((np.array(of),))))

    one, two = _in_pieces([[numbers(1, 2), numbers(3)], [numbers(*[4] * ROWS)]])
    assert isinstance(one.batch.values, ValueColumns)
    assert [*one.batch.values] == [(1,), (2,), (3,)]
    assert isinstance(two.batch.values, ValueColumns) and len(two.batch) == ROWS


def test_other_places_rounds_and_keys_are_pieces_of_their_own() -> None:
    many = [
        lying(HERE, [b"a"]), lying(THERE, [b"b"]), lying(HERE, [b"c"]),
        lying(HERE, [b"d"], (7, 1)), lying(HERE, [b"e"], (7, 2)), lying(HERE, [b"f"], keyed=False),
    ]  # fmt: skip
    assert values_of([*_in_pieces([many])]) == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e"], [b"f"]]


def test_what_has_no_keys_is_together_only_with_what_is_of_its_partition() -> None:
    def of(value: bytes, partition: int) -> InFlight:
        return lying(HERE, [value], keyed=False, partition=partition)

    many = [of(b"a", 1), of(b"b", 1), of(b"c", 2), of(b"d", 1)]
    assert values_of([*_in_pieces([many])]) == [[b"a", b"b"], [b"c"], [b"d"]]
    keyed = [lying(HERE, [b"e"], partition=1), lying(HERE, [b"f"], partition=2)]
    assert values_of([*_in_pieces([keyed])]) == [[b"e", b"f"]]


def test_none_of_a_piece_is_earlier_than_it_says() -> None:
    (piece,) = _in_pieces([[lying(HERE, [b"a"], 6), lying(HERE, [b"b"], 3)]])
    assert piece.time == 3


def test_a_piece_has_no_more_rows_than_a_slice_and_no_more_bytes_than_it_may() -> None:
    rows = [*_in_pieces([[lying(HERE, [b"a"] * 100)] * 30])]
    assert sum(map(len, values_of(rows))) == 3000
    assert max(map(len, values_of(rows))) <= ROWS
    sizes = [*_in_pieces([[lying(HERE, [b"." * 1000] * 50)] * 20])]
    assert sum(map(len, values_of(sizes))) == 1000
    assert all(one.batch.weight <= BYTES for one in sizes)
    large = [*_in_pieces([[lying(HERE, [b"." * 1000] * 2000)]])]
    assert sum(map(len, values_of(large))) == 2000
    assert len(large) == -(-2000 // (BYTES // (1000 + 3 + 128)))


def test_what_is_unread_lies_between_what_is_back_and_what_has_come_since() -> None:
    """I3: in this order the next recovery puts them back, each place's one after the other."""
    flow = Flow("f", bins=1)
    flow.source(ListSource([[]])).key_by(str).sink(ListSink())
    plan, topic, parts = Plan(flow), SimTopic(random.Random(0)), list[Checkpoint]()
    at = plan.input_at("sink", 0)
    unread = Piece("sink", 0, WorkerId(1), 7, 1, (RecordLocation(b"unread", 0, 0, 9),), True)
    held = SnapshotContents(
        in_flight=[[lying(at, [b"back"])]], behind=[lying(at, [b"behind"], 8)], bin_handoffs=[],
        partition_handoffs=[], notifications=[], unread=[unread], unloaded=[], deltas=[],
        bundles=[], replay_from=[], frontiers=[], unread_rows=[], dead_letters_durable=lambda: True,
    )  # fmt: skip
    of_a_link = lying(at, [b"on its way"], 9)
    persisting = CheckpointWriter(
        WorkerId(0), plan, ExecutionId(2), 3, held, [], topic, parts.append, _unwritten
    )
    persisting.record(at, 9, of_a_link.batch)
    persisting.complete()
    while not parts:
        persisting.step()
    found = parts[0].cut.pieces
    assert [one.records for one in found] == [1, 1, 2]
    assert [found.index(one) for one in found if one.locations == unread.locations] == [1]
    back, new = (_values(topic, one) for one in (found[0], found[2]))
    assert (back, new) == ([b"back"], [b"behind", b"on its way"])


def _unwritten(number: int, reason: str) -> None:
    raise AssertionError(f"checkpoint {number}: {reason}")


def _values(topic: SimTopic, piece: Piece) -> list[object]:
    ticket = topic.fetch(piece.locations)
    while (payloads := topic.fetched(ticket)) is None:
        pass
    return list(in_flight.decode(payloads[0])[1].values)
