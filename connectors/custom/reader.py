"""The reader of a `Source` on one worker: a thread reads ahead, so the worker's loop never waits.

Guarantees that records of a partition leave in the order of their positions, each once, and that a
rest names the first record that has not left. Invariant: records and the position behind them
change together under one lock. A bound limits what is read and not handed out (I6):
`MAX_AHEAD` records or `MAX_AHEAD_BYTES` per partition, and one read more. A partition without new
records is asked again after 50 ms, then ever later, up to a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meander.connectors.custom.partition_list import names_of
from meander.connectors.custom.records import (
    PartitionReader,
    SourceRecord,
    UnreadableRecord,
)
from meander.connectors.kafka.dead_letter import MalformedRecord
from meander.connectors.kafka.source.chunks import times_of
from meander.dataflow.interfaces import Chunk, DeadLetterTopic, Partition, Rest, Wakeup
from meander.dataflow.operators.error_policy import describe, failure
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import MeanderError, SetupError

if TYPE_CHECKING:
    from meander.connectors.custom.source import Source

AnyRecord = SourceRecord[Any] | UnreadableRecord

MAX_READ = 3000
"""The most records of one read, and of one chunk."""
MAX_AHEAD = 2 * MAX_READ
MAX_AHEAD_BYTES = 1 << 20
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0
"""The seconds after which a partition without new records is asked again."""
LIST_INTERVAL = 1.0
"""The seconds from one look for new partitions to the next."""


@dataclass(slots=True)
class OpenPartition:
    """A partition as far as it has been read."""

    name: str
    position: int
    """The position behind the last buffered record."""
    reader: PartitionReader[Any] | None = None
    buffered: deque[AnyRecord] = field(default_factory=deque)
    bytes: int = 0
    paused: bool = False
    at_end: bool = False
    """Whether the last read has found nothing."""
    wait: float = FIRST_WAIT
    due: float = 0.0
    """The second from which on it may be read."""


class PartitionsReader:
    """A reader of some partitions of a source; implements `SourceReader`. Its subclasses choose
    when to read. `positions` has the position of the next record of each partition."""

    def __init__(
        self,
        source: Source[Any],
        names: Sequence[str],
        positions: Mapping[Partition, int],
        dead: DeadLetterTopic,
        until_end: bool,
        ending: Callable[[], bool],
    ) -> None:
        self.partitions = [*positions]
        self.total: int | None = None if until_end else len(names)
        self.unreadable = 0
        self._source, self._dead, self._names = source, dead, [*names]
        self._until_end, self._ending = until_end, ending
        self._lock = threading.Lock()
        self._failure: MeanderError | None = None
        self._released: list[OpenPartition] = []
        """Partitions of other workers by now, whose readers are to close."""
        self._open = {p: OpenPartition(self._name(p), at) for p, at in positions.items()}

    # -- the worker's side

    def poll(self) -> list[Chunk]:
        """Return chunks of the partitions that are not paused; [] without records."""
        if self._failure is not None:
            raise self._failure
        return self._chunks(MAX_READ)

    def watch(self) -> None:
        """Do nothing, as each read wakes the loop."""

    def pause(self, partition: Partition) -> None:
        """Hand out no records of a partition until `resume`."""
        self._open[partition].paused = True

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""
        self._open[partition].paused = False

    def idle(self, partition: Partition) -> bool:
        """Return whether all records of the last read have been handed out, and none followed."""
        with self._lock:
            one = self._open[partition]
            return one.at_end and not one.buffered

    def ended(self, partition: Partition) -> bool:
        """Return whether a bounded run has handed out this partition to its end."""
        durable = not self.unreadable or self._dead.delivered() == self._dead.added
        return self._ending() and durable and self.idle(partition)

    def rest(self, partition: Partition) -> Rest:
        """Return the rest of a partition that has not been handed out."""
        with self._lock:
            one = self._open[partition]
            return Rest(one.buffered[0].position if one.buffered else one.position, None)

    def release(self, partition: Partition) -> Rest:
        """Stop reading a partition; return the rest that has not been handed out."""
        rest = self.rest(partition)
        with self._lock:
            self._released.append(self._open.pop(partition))
        self.partitions.remove(partition)
        return rest

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another worker has released, or of a new one."""
        with self._lock:
            self._open[partition] = OpenPartition(self._name(partition), rest.offset)
        self.partitions.append(partition)

    def passed(self, partition: Partition, offset: int) -> None:
        """Do nothing, as no tool asks for the lag."""

    def close(self) -> None:
        """Release what the partition readers have open."""
        for one in [*self._open.values(), *self._released]:
            _close(one)

    # -- reading

    def _name(self, partition: Partition) -> str:
        if partition >= len(self._names):
            self._list()
        if partition >= len(self._names):
            raise SetupError(
                f"source {self._source.label!r}", f"it has no partition {partition} any more",
                "let its list of partitions only grow",
            )  # fmt: skip
        return self._names[partition]

    def _list(self) -> None:
        """Look for new partitions. Raise SetupError where the known ones are no longer first."""
        found = names_of(self._source)
        if found[: len(self._names)] != self._names:
            other = next(
                (new for old, new in zip(self._names, found, strict=False) if old != new), None
            )
            cause = f"{other!r} stands before known ones" if other else "known ones are missing"
            raise SetupError(
                f"source {self._source.label!r}", f"its partitions have changed: {cause}",
                "let new partitions follow the known ones, and keep these",
            )  # fmt: skip
        self._names = found
        if self.total is not None:
            self.total = len(found)

    def _read(self, one: OpenPartition, most: int) -> bool:
        """Read the next records of a partition, and buffer them. Return whether there were any."""
        if one.reader is None:
            one.reader = self._source.open_partition(one.name, one.position, self._until_end)
        records = one.reader.read(most)
        with self._lock:
            one.buffered.extend(records)
            one.bytes += sum(map(_size, records))
            one.position, one.at_end = one.reader.position, not records
        return bool(records)

    def _chunks(self, most: int) -> list[Chunk]:
        found = []
        for partition, one in self._open.items():
            if one.buffered and not one.paused and (taken := self._take(one, most)):
                most -= len(taken)
                if (chunk := self._chunk(partition, one.name, taken)).values:
                    found.append(chunk)
        return found

    def _take(self, one: OpenPartition, most: int) -> list[AnyRecord]:
        with self._lock:
            taken = [one.buffered.popleft() for _ in range(min(most, len(one.buffered)))]
            one.bytes -= sum(map(_size, taken))
        return taken

    def _chunk(self, partition: Partition, name: str, records: Iterable[AnyRecord]) -> Chunk:
        readable = list[SourceRecord[Any]]()
        for record in records:
            if isinstance(record, UnreadableRecord):
                self._write_dead_letter(partition, name, record)
            else:
                readable.append(record)
        positions = np.array([one.position for one in readable], np.int64)
        times = times_of([one.time_ms for one in readable])
        values = [one.value for one in readable]
        return Chunk(partition, positions, times, values, sum(one.size for one in readable))

    def _write_dead_letter(self, partition: Partition, name: str, record: UnreadableRecord) -> None:
        self.unreadable += 1
        one = np.array([0], np.int64)
        value = MalformedRecord("", None, record.data, [], name)
        row = Batch(one, one, one + partition, one + record.position, one, [value])
        self._dead.add(f"source {self._source.label}", row, 0, record.reason, "")


class ThreadedReader(PartitionsReader):
    """A reader whose thread reads ahead."""

    def __init__(
        self,
        source: Source[Any],
        names: Sequence[str],
        positions: Mapping[Partition, int],
        dead: DeadLetterTopic,
        until_end: bool,
        wakeup: Wakeup,
    ) -> None:
        super().__init__(source, names, positions, dead, until_end, lambda: until_end)
        self._wakeup, self._closing = wakeup, False
        self._wanted = threading.Event()
        self._listed = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"read {source.label}", daemon=True)
        self._thread.start()

    def poll(self) -> list[Chunk]:
        """Return chunks of the partitions that are not paused; [] without records."""
        unreadable, chunks = self.unreadable, super().poll()
        if chunks:
            self._wanted.set()
        elif self.unreadable > unreadable:
            # The loop must not mistake unreadable records for an empty partition.
            self._wakeup.set()
        return chunks

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition, from now on."""
        super().adopt(partition, rest)
        self._wanted.set()

    def close(self) -> None:
        """Wait for the end of the thread's read, and release what is open."""
        self._closing = True
        self._wanted.set()
        self._thread.join()
        super().close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wanted.clear()
                if not self._round():
                    self._wanted.wait(FIRST_WAIT)
        except MeanderError as error:
            self._fail(error)
        except failure() as error:  # the user's reader may raise anything
            subject = f"source {self._source.label!r}"
            self._fail(MeanderError(subject, f"its reader failed: {describe(error)}"))

    def _round(self) -> bool:
        """Read each partition that may be read once. Return whether there were records."""
        with self._lock:
            candidates, released = [*self._open.values()], [*self._released]
            self._released.clear()
        for one in released:
            _close(one)
        worked, now = False, time.monotonic()
        if not self._until_end and now - self._listed >= LIST_INTERVAL:
            self._listed, known = now, len(self._names)
            self._list()
            if len(self._names) > known:
                self._wakeup.set()
        for one in candidates:
            if self._closing or not self._may_read(one, now):
                continue
            was_idle = one.at_end
            found = self._read(one, MAX_READ)
            one.wait = FIRST_WAIT if found else min(2 * one.wait, LONGEST_WAIT)
            one.due = 0.0 if found else now + one.wait
            worked |= found
            if found or not was_idle:
                self._wakeup.set()
        return worked

    def _may_read(self, one: OpenPartition, now: float) -> bool:
        if self._until_end and one.at_end:
            return False
        has_room = len(one.buffered) < MAX_AHEAD and one.bytes < MAX_AHEAD_BYTES
        return has_room and now >= one.due

    def _fail(self, error: MeanderError) -> None:
        self._failure = error
        self._wakeup.set()


def _size(record: AnyRecord) -> int:
    return len(record.data) if isinstance(record, UnreadableRecord) else record.size


def _close(one: OpenPartition) -> None:
    if one.reader is not None:
        one.reader.close()
        one.reader = None
