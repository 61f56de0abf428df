"""The threaded reader and writer hand over what a source and a sink of the user give, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from meander import FileSink, MeanderError, SetupError, Sink, SinkRecord, Source, SourceRecord
from meander.connectors.custom.partition_list import PartitionNames, partition_list
from meander.connectors.custom.reader import ThreadedReader
from meander.connectors.custom.records import UnreadableRecord
from meander.connectors.kafka.dead_letter import MalformedRecord
from meander.dataflow.interfaces import Partition, Rest, WorkerContext
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListDeadLetters
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId

PATIENCE = 20.0


class Signal:
    """A wakeup that a test waits for."""

    def __init__(self) -> None:
        self._set = threading.Event()

    def set(self) -> None:
        self._set.set()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds after some wakeup."""
        while not condition():
            assert self._set.wait(PATIENCE), "the loop was not woken"
            self._set.clear()


class Logs(Source[int]):
    """Logs that a test writes; each partition is a list."""

    def __init__(self, **logs: list[int | None]) -> None:
        self.logs = logs
        self.closed = list[str]()

    def partitions(self) -> Sequence[str]:
        return [*self.logs]

    def open_partition(self, name: str, position: int, until_end: bool) -> LogReader:
        return LogReader(self, name, position)


class LogReader:
    def __init__(self, logs: Logs, name: str, position: int) -> None:
        self._logs, self._name, self.position = logs, name, position

    def read(self, most: int) -> list[SourceRecord[int] | UnreadableRecord]:
        first = self.position
        some = self._logs.logs[self._name][first : first + min(most, 2)]
        self.position += len(some)
        return [
            UnreadableRecord(place, b"?", "none") if value is None
            else SourceRecord(place, value, value)
            for place, value in enumerate(some, first)
        ]  # fmt: skip

    def close(self) -> None:
        self._logs.closed.append(self._name)


@pytest.fixture
def wakeup() -> Signal:
    return Signal()


def context(wakeup: Signal, *, until_end: bool = False, workers: int = 1) -> WorkerContext:
    return WorkerContext(
        "flow", "", WorkerId(0), workers, {}, until_end, "earliest", wakeup, 1 << 20, NO_KEEPALIVE
    )


def taken(reader: ThreadedReader, count: int, wakeup: Signal) -> list[object]:
    """The next values, as many as they are."""
    found = list[object]()

    def poll() -> bool:
        found.extend(value for chunk in reader.poll() for value in chunk.values)
        return len(found) >= count

    wakeup.until(poll)
    return found


def test_a_reader_hands_out_what_its_thread_has_read(wakeup: Signal) -> None:
    logs, dead = Logs(a=[1, 2, 3, None, 4]), ListDeadLetters()
    reader = logs.open(context(wakeup), dead)
    assert taken(reader, 4, wakeup) == [1, 2, 3, 4]
    wakeup.until(lambda: reader.idle(Partition(0)))
    assert (reader.unreadable, dead.letters[0].reason) == (1, "none")
    assert dead.letters[0].value == MalformedRecord("", None, b"?", [], partition_name="a")
    assert (reader.total, reader.ended(Partition(0))) == (1, False)
    logs.logs["a"].append(5)
    assert taken(reader, 1, wakeup) == [5]
    reader.close()
    assert logs.closed == ["a"]


def test_names_of_partitions_are_unknown_where_others_stand_before_them() -> None:
    known = partition_list("Logs", ["b"]).partition(" ")[2]
    logs = Logs(b=[])
    names = PartitionNames(logs, known)
    assert names(0) == "b"
    logs.logs["c"] = []
    assert names(1) == "c"
    assert PartitionNames(Logs(a=[], b=[]), known)(0) == ""


def test_a_paused_partition_keeps_its_records(wakeup: Signal) -> None:
    reader = Logs(a=[1, 2]).open(context(wakeup), ListDeadLetters())
    reader.pause(Partition(0))
    open_partition = reader._open[Partition(0)]
    wakeup.until(lambda: open_partition.at_end)
    assert reader.rest(Partition(0)) == Rest(0, None)
    assert reader.poll() == []
    assert not reader.idle(Partition(0))
    reader.resume(Partition(0))
    assert taken(reader, 2, wakeup) == [1, 2]
    reader.close()


def test_a_released_partition_is_read_on_elsewhere(wakeup: Signal) -> None:
    logs = Logs(a=[1, 2, 3])
    first = logs.open(context(wakeup), ListDeadLetters())
    assert taken(first, 3, wakeup) == [1, 2, 3]
    rest = first.release(Partition(0))
    logs.logs["a"].append(4)
    second = logs.open(context(wakeup), ListDeadLetters(), {Partition(0): None})
    assert second.partitions == []
    second.adopt(Partition(0), rest)
    assert taken(second, 1, wakeup) == [4]
    for reader in (first, second):
        reader.close()
    assert logs.closed == ["a", "a"]


def test_a_bounded_run_ends_with_the_records_of_now(wakeup: Signal) -> None:
    reader = Logs(a=[1], b=[]).open(context(wakeup, until_end=True), ListDeadLetters())
    assert taken(reader, 1, wakeup) == [1]
    wakeup.until(lambda: all(map(reader.ended, reader.partitions)))
    assert reader.total is None
    reader.close()


def test_a_bounded_run_from_a_checkpoint_reads_new_partitions(wakeup: Signal) -> None:
    logs = Logs(a=[1, 2], b=[3])
    ends = context(wakeup, until_end=True)
    reader = logs.open(ends, ListDeadLetters(), {Partition(0): Rest(1, None)})
    assert sorted(map(str, taken(reader, 2, wakeup))) == ["2", "3"]
    reader.close()


def test_a_new_partition_is_counted(wakeup: Signal) -> None:
    logs = Logs(a=[])
    reader = logs.open(context(wakeup), ListDeadLetters())
    logs.logs["b"] = [1]
    wakeup.until(lambda: reader.total == 2)
    reader.close()


def test_an_error_of_the_source_ends_the_flow(wakeup: Signal) -> None:
    logs = Logs(a=[1])
    reader = logs.open(context(wakeup), ListDeadLetters())
    logs.logs.clear()
    wrong = r"Logs.*its reader failed: KeyError|known ones are missing"
    with pytest.raises(MeanderError, match=wrong):
        wakeup.until(lambda: reader.poll() and False)
    reader.close()


def test_a_worker_that_finds_other_partitions_than_the_driver_is_refused(wakeup: Signal) -> None:
    known = partition_list("Logs", ["z"]).split(" ")
    other = WorkerContext(
        "flow", "", WorkerId(0), 1, {}, False, "earliest", wakeup, 1 << 20, NO_KEEPALIVE,
        topics=dict([known]),
    )  # fmt: skip
    with pytest.raises(SetupError, match="not those of the driver"):
        Logs(a=[]).open(other, ListDeadLetters())


class Shelf(Sink):
    """A sink that keeps what it gets, once it is let."""

    def __init__(self) -> None:
        self.may, self.writes, self.closed = threading.Event(), list[list[SinkRecord]](), False

    def open_part(self, worker: int) -> Shelf:
        return self

    def encode(self, value: object) -> object:
        if value is None:
            raise ValueError("nothing")
        return value

    def write(self, records: Sequence[SinkRecord]) -> None:
        assert self.may.wait(PATIENCE)
        if records and records[-1].value == "break":
            raise OSError("no room")
        self.writes.append([*records])

    def close(self) -> None:
        self.closed = True


def batch(*values: object) -> Batch:
    columns = np.arange(len(values), dtype=np.int64)
    return Batch(
        columns << 20, columns, columns, columns, columns, [*values],
        [codec.encode(f"k{n}") for n in range(len(values))],
    )  # fmt: skip


def test_a_writer_lets_go_of_a_batch_once_it_is_durable(wakeup: Signal) -> None:
    shelf = Shelf()
    writer = shelf.open(context(wakeup))
    assert [writer.write(batch("a", "b")), writer.write(batch()), writer.write(batch("c"))] == [
        1, 2, 3,
    ]  # fmt: skip
    assert writer.delivered() == 0
    shelf.may.set()
    wakeup.until(lambda: writer.delivered() == 3)
    written = [record for write in shelf.writes for record in write]
    assert written == [
        SinkRecord("a", "k0", 0), SinkRecord("b", "k1", 1), SinkRecord("c", "k0", 0)
    ]  # fmt: skip
    writer.close()
    assert shelf.closed


def test_a_writer_names_the_rows_that_do_not_fit(wakeup: Signal) -> None:
    shelf = Shelf()
    writer = shelf.open(context(wakeup))
    with pytest.raises(RowError, match="nothing") as refused:
        writer.write(batch("a", None, "b", None))
    assert [one.row for one in refused.value.all] == [1, 3]
    writer.close()


def test_a_writer_is_full_beyond_half_of_its_bound(wakeup: Signal) -> None:
    shelf = Shelf()
    writer = shelf.open(context(wakeup))
    writer.write(batch("x" * (1 << 19)))
    assert writer.full
    shelf.may.set()
    wakeup.until(lambda: not writer.full)
    writer.close()


def test_a_sink_that_cannot_be_opened_is_refused(wakeup: Signal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="it cannot be opened: FileExistsError"):
        FileSink(tmp_path / "file").open(context(wakeup))


def test_a_source_that_cannot_list_its_partitions_is_refused(wakeup: Signal) -> None:
    logs = Logs(a=[])
    del logs.logs
    with pytest.raises(SetupError, match="cannot be listed: AttributeError"):
        logs.open(context(wakeup), ListDeadLetters())


def test_an_error_of_the_part_ends_the_flow(wakeup: Signal) -> None:
    shelf = Shelf()
    shelf.may.set()
    writer = shelf.open(context(wakeup))
    writer.write(batch("break"))
    with pytest.raises(MeanderError, match="no room"):
        wakeup.until(lambda: writer.delivered() and False)
    writer.close()
