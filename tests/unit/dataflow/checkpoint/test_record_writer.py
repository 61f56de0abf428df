"""A checkpoint of more than a record is written in parts, and the record that makes it one last."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from meander.dataflow.checkpoint.record_writer import RecordWriter
from meander.dataflow.checkpoint.upload import Upload
from meander.dataflow.simulation.simulator import SimTopic
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.checkpoint.orphans import Orphans
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId
from meander.state.layers import parts
from meander.state.layers.manifest import Manifest
from meander.state.layers.parts import read_values
from meander.state.layers.topic import RecordLocation

LIFE = ExecutionId(5)
MANIFESTS = tuple(Manifest("totals", Bin(bin), 0, ()) for bin in range(16))
CHECKPOINT = Checkpoint(3, LIFE, BinSpace(4), 0, MANIFESTS)


class Records:
    """The checkpoints topic."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def append(self, record: bytes) -> Callable[[], int | None]:
        self.written.append(record)
        return lambda: len(self.written)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 50)


@pytest.fixture
def topic() -> SimTopic:
    return SimTopic(random.Random(7))


def test_the_record_comes_once_all_parts_are_durable(topic: SimTopic) -> None:
    records = Records()
    recording = RecordWriter(CHECKPOINT, topic, records.append)
    many = len(parts.split(CHECKPOINT.to_bytes()))
    assert many > 3
    while (found := recording.recorded()) is None:
        assert len(records.written) <= (len(topic._pending) == 0), "no record before the parts"
    assert len(found.checkpoint.parts) == many == len(topic.keys)
    assert [*found.checkpoint.locations] == [*found.checkpoint.parts], "they are retired with it"
    (record,) = records.written
    assert Checkpoint.from_bytes(record, topic.here) == found.checkpoint


def test_a_torn_write_leaves_no_checkpoint_and_parts_that_the_next_execution_deletes(
    topic: SimTopic,
) -> None:
    records = Records()
    RecordWriter(CHECKPOINT, topic, records.append)
    assert topic.keys and not records.written
    topic.sweep(Orphans.of([]))
    assert not topic.keys


def test_parts_of_a_checkpoint_that_is_kept_stay(topic: SimTopic) -> None:
    recording = RecordWriter(CHECKPOINT, topic, Records().append)
    while (found := recording.recorded()) is None:
        pass
    topic.sweep(Orphans.of([found.checkpoint]))
    assert len(topic.keys) == len(found.checkpoint.parts)
    topic.delete(found.checkpoint.parts[1:2])
    with pytest.raises(MeanderError, match="compaction has removed it"):
        Checkpoint.from_bytes(found.checkpoint.header(CHECKPOINT.to_bytes()), topic.here)


def test_a_checkpoint_of_one_record_has_no_parts(topic: SimTopic) -> None:
    records, small = Records(), Checkpoint(3, LIFE, BinSpace(4), 0, ())
    found = RecordWriter(small, topic, records.append).recorded()
    assert found is not None and found.checkpoint == small
    assert records.written == [small.to_bytes()] and not topic.keys


@pytest.mark.parametrize("given_up", [False, True])
def test_values_are_read_as_they_were_cut_or_all_of_them_go(
    topic: SimTopic, given_up: bool
) -> None:
    sending = Upload[tuple[RecordLocation, ...]](topic, lambda _, places: places)
    values = [bytes(size) for size in (0, 49, 50, 51, 240)]
    for number, value in enumerate(values):
        sending.send(b"value/5/%d" % number, value, ())
    assert sending.bytes == sum(map(len, values))
    for _ in range(7):
        sending.poll()
    if given_up:
        sending.cancel()
        assert not topic.keys and not sending.bytes
        return
    while sending:
        sending.poll()
    assert [len(places) for places in sending.placed] == [1, 1, 1, 2, 5]
    found = read_values(topic, sending.placed, 100)
    assert [one for one in found if one is not None] == values
