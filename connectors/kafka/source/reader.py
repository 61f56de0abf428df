"""The Kafka reader: reads a worker's partitions of one topic and never blocks the worker's loop.

Invariant: at any time either the worker's thread or the waiter owns the consumer's queue. The
waiter polls an empty queue. It hands a message over, wakes the loop, and rests until the loop has
emptied the queue. So no record crosses threads under load, and offsets remain in order. A bound
limits the records that are read and not handed out (I6): `MAX_PAUSED_BYTES` per paused partition,
plus librdkafka's queue. The position marks the end of a log, as transaction markers and compacted
records occupy offsets.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import methodcaller
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.kafka.source.chunks import ChunkReader, size_of
from meander.connectors.kafka.source.lost_records import LostRecords
from meander.connectors.kafka.source.topic_watch import OffsetCommits, TopicWatch
from meander.connectors.kafka.topic_ids import TopicIds, deleted
from meander.connectors.kafka.topic_metadata import TopicInfo
from meander.dataflow.interfaces import Chunk, Partition, Rest, WorkerContext
from meander.schemas.errors import MeanderError

MAX_POLL_RECORDS = 3000
"""The most records per partition and poll: about a millisecond of decoding."""
MAX_POLL_BYTES = 1 << 20
"""The bytes read from librdkafka's queue per poll, by the average record."""
MAX_PAUSED_BYTES = 1 << 20
"""The bytes of a paused partition beyond which its fetching stops."""
_SAMPLE_RECORDS = 64
"""The records of the first poll, and the sample size of the average record."""
_METADATA_TIMEOUT = 0.5
"""The seconds in which the consumer has to learn of new partitions; a broker has just answered."""
_POLL_SECONDS = 0.25
"""The seconds after which the waiter checks whether the reader has closed."""
_SHORT_POLL_SECONDS = 0.005
"""The shorter wait while fetching is stopped or no partition is assigned, as the worker may need
the queue."""

_PARTITION, _ERROR = map(methodcaller, ("partition", "error"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that name the part of a partition to read."""

    partition: Partition
    start: int
    end: int | None
    """The end of a bounded run: the first offset that is not read."""


@dataclass(slots=True)
class FetchPartition:
    """A fetch partition that tracks how far a reader has read one partition."""

    partition: Partition
    position: int
    """The offset up to which records have been read."""
    end: int | None
    emitted: int
    """The offset behind the last record handed out."""
    passed: int
    """The offset up to which records have passed the flow."""
    buffered: deque[ConsumedMessage] = field(default_factory=deque)
    bytes: int = 0
    at_end: bool = False
    """Whether the last message about it was its end."""
    paused: bool = False
    stopped: bool = False
    """Whether librdkafka has stopped fetching it."""

    @property
    def complete(self) -> bool:
        """Return whether a bounded run has read it to its end."""
        return self.end is not None and self.position >= self.end


class KafkaReader:
    """A reader that implements `SourceReader`. Only its own waiter may use it from another
    thread."""

    def __init__(
        self,
        topic: str,
        topic_info: TopicInfo,
        ids: TopicIds,
        consumer: Consumer,
        group: str,
        bounds: list[Bounds],
        chunk_reader: ChunkReader,
        context: WorkerContext,
    ) -> None:
        self.partitions = [b.partition for b in bounds]
        self._topic, self._consumer = topic, consumer
        self._chunk_reader, self._skip_lost = chunk_reader, context.skip_lost
        self._ids, self._id = ids, topic_info.id
        self._wakeup = context.wakeup
        self._contact = client.contact(context.settings)
        self._fetches = {
            b.partition: FetchPartition(b.partition, b.start, b.end, b.start, b.start)
            for b in bounds
        }
        # A high first guess keeps the first poll small.
        self._average = MAX_POLL_BYTES / _SAMPLE_RECORDS
        self._commits = OffsetCommits(context.settings, topic, group)
        self._topic_watch = TopicWatch(context.settings, topic, topic_info)
        self._total, self._bounded = topic_info.partitions, context.until_end
        self._actions: deque[Callable[[], None]] = deque()
        self._first: ConsumedMessage | None = None
        self._owns_queue = True
        self._turn = threading.Semaphore(0)
        self._closing = False
        self._failure: MeanderError | None = None
        if bounds:
            consumer.assign(
                [self._partition_at(fetch, fetch.position) for fetch in self._fetches.values()]
            )
        else:
            self._fetch_metadata()
        self._waiter = threading.Thread(target=self._wait, name=f"wait {topic}", daemon=True)
        self._waiter.start()

    # -- the worker's side

    @property
    def total(self) -> int | None:
        """Return the present number of partitions. Return None in a bounded run, as the next run
        reads later partitions."""
        return None if self._bounded else self._total

    @property
    def unreadable(self) -> int:
        """Return the number of records that could not be decoded so far."""
        return self._chunk_reader.unreadable

    def poll(self) -> list[Chunk]:
        """Return chunks of the partitions that are not paused; [] without records."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()
        self._drain_queue()
        if self._commits.due():
            self._commits.commit(self._committable())
        chunks = [
            self._decode(fetch)
            for fetch in self._fetches.values()
            if fetch.buffered and not fetch.paused
        ]
        full = [chunk for chunk in chunks if chunk.values]
        if chunks and not full:
            # All records were unreadable; the loop must not mistake that for an empty queue.
            self._wakeup.set()
        return full

    def watch(self) -> None:
        """Give the queue to the waiter, which wakes the loop once records arrive."""
        # The waiter would lose a message that the loop has not received yet. The loop is awake in
        # that case.
        if self._owns_queue and self._first is None:
            self._owns_queue = False
            self._turn.release()

    def pause(self, partition: Partition) -> None:
        """Hand out no records of a partition until `resume`; retain prefetched records."""
        self._fetches[partition].paused = True

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""
        fetch = self._fetches[partition]
        fetch.paused = False
        if fetch.stopped and not fetch.complete:
            fetch.stopped = False
            self._run_or_queue(partial(self._consumer.resume, [self._partition_at(fetch)]))

    def idle(self, partition: Partition) -> bool:
        """Return whether all records up to the last known end have been handed out."""
        fetch = self._fetches[partition]
        return fetch.at_end and not fetch.buffered

    def ended(self, partition: Partition) -> bool:
        """Return whether a bounded run has handed out this partition to its end."""
        fetch = self._fetches[partition]
        return fetch.complete and not fetch.buffered and self._chunk_reader.dead_letters_durable

    def release(self, partition: Partition) -> Rest:
        """Stop reading a partition; return the rest that has not been handed out."""
        rest = self.rest(partition)
        fetch = self._fetches.pop(partition)
        self.partitions.remove(partition)
        self._run_or_queue(partial(self._unassign, fetch))
        return rest

    def rest(self, partition: Partition) -> Rest:
        """Return the rest of a partition that has not been handed out."""
        fetch = self._fetches[partition]
        return Rest(fetch.buffered[0].offset() if fetch.buffered else fetch.position, fetch.end)

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another worker has released, or a whole new
        partition."""
        start = rest.offset
        fetch = self._fetches[partition] = FetchPartition(partition, start, rest.end, start, start)
        self.partitions.append(partition)
        # The waiter runs this between two polls: beside its polls the call would take seconds.
        self._run_or_queue(
            partial(self._consumer.incremental_assign, [self._partition_at(fetch, start)])
        )

    def passed(self, partition: Partition, offset: int) -> None:
        """Record that all results of the records before `offset` are delivered (for lag tools)."""
        # The new reader of a released partition records this from its first record on.
        if (fetch := self._fetches.get(partition)) is not None:
            fetch.passed = offset

    def held(self, partition: Partition) -> int:
        """Return the bytes of a partition that have been read and not yet handed out."""
        return self._fetches[partition].bytes

    def close(self) -> None:
        """Release connections; wait for the end of the waiter's poll."""
        self._closing = True
        self._turn.release()
        self._waiter.join()
        self._commits.close(self._committable())
        self._consumer.close()

    # -- reading

    def _drain_queue(self) -> None:
        """Move the fetched messages to their partitions, unless the waiter owns the queue."""
        if not self._owns_queue:
            return
        self._run_actions()
        first, self._first = self._first, None
        rows = max(1, min(MAX_POLL_RECORDS, int(MAX_POLL_BYTES / self._average)))
        messages = cast(list[ConsumedMessage], self._consumer.consume(rows, 0))
        # This check precedes all records, as they may belong to another topic with the same name.
        self._ids.expect(self._topic, self._id)
        if first is not None:
            self._sort(first)
        partitions = set(map(_PARTITION, messages))
        if len(partitions) == 1:
            self._sort_run(Partition(partitions.pop()), messages)
        else:
            for partition, run in groupby(messages, _PARTITION):
                self._sort_run(Partition(partition), list(run))
        if messages and self._contact.lost:
            self._contact.record_answer()

    def _sort_run(self, partition: Partition, run: list[ConsumedMessage]) -> None:
        """Sort messages as `_sort` does, but all at once where none needs special care."""
        fetch = self._fetches.get(partition)
        last = run[-1].offset()
        beyond = fetch is not None and fetch.end is not None and last >= fetch.end
        if fetch is None or beyond or any(map(_ERROR, run)):
            for message in run:
                self._sort(message)
            return
        fetch.position, fetch.at_end = last + 1, False
        self._buffer(fetch, run)

    def _sort(self, message: ConsumedMessage) -> None:
        error = message.error()
        if error is not None:
            self._sort_error(message, error)
            return
        fetch = self._fetches.get(Partition(message.partition()))
        if fetch is None:
            return
        offset = message.offset()
        if fetch.end is not None and offset >= fetch.end:
            fetch.position = max(fetch.position, offset)
            self._stop(fetch)
            return
        fetch.position, fetch.at_end = offset + 1, False
        self._buffer(fetch, [message])

    def _buffer(self, fetch: FetchPartition, run: list[ConsumedMessage]) -> None:
        fetch.buffered.extend(run)
        size = size_of(run)
        fetch.bytes += size
        self._average += (size / len(run) - self._average) * min(1, len(run) / _SAMPLE_RECORDS)
        if fetch.paused and fetch.bytes > MAX_PAUSED_BYTES:
            self._stop(fetch)

    def _sort_error(self, message: ConsumedMessage, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if (fetch := self._fetches.get(Partition(message.partition()))) is not None:
                fetch.position, fetch.at_end = max(fetch.position, message.offset()), True
        elif client.is_expired(error):
            if (fetch := self._fetches.get(Partition(message.partition()))) is not None:
                self._skip_lost_records(fetch)
        elif client.is_missing(error):
            raise deleted(self._topic)
        elif not client.is_transient(error):
            raise client.translate(error, f"topic {self._topic!r}")

    def _skip_lost_records(self, fetch: FetchPartition) -> None:
        """Continue a partition behind records that retention has deleted. Raise SetupError where
        the user does not allow it. The loop waits some milliseconds, as the broker has just
        answered."""
        low, high = client.watermarks(self._consumer, self._topic, fetch.partition)
        if not low <= fetch.position <= high:
            lost = LostRecords(self._topic, fetch.partition, fetch.position, low, high)
            lost.skip(self._skip_lost)
            fetch.position = low
        self._consumer.incremental_unassign([self._partition_at(fetch)])
        self._consumer.incremental_assign([self._partition_at(fetch, fetch.position)])

    def _stop(self, fetch: FetchPartition) -> None:
        if not fetch.stopped:
            fetch.stopped = True
            self._consumer.pause([self._partition_at(fetch)])

    # -- handing out

    def _decode(self, fetch: FetchPartition) -> Chunk:
        if len(fetch.buffered) <= MAX_POLL_RECORDS:
            records = list(fetch.buffered)
            fetch.buffered.clear()
        else:
            records = [fetch.buffered.popleft() for _ in range(MAX_POLL_RECORDS)]
        chunk = self._chunk_reader.read(fetch.partition, records)
        fetch.bytes -= chunk.size
        if chunk.values:
            fetch.emitted = int(chunk.offsets[-1]) + 1
        return chunk

    def _committable(self) -> dict[int, int]:
        """Return the progress of each partition for lag tools."""
        return {
            # Transaction markers may follow the last record. They count as lag but never pass the
            # flow.
            fetch.partition: fetch.position
            if fetch.passed >= fetch.emitted and not fetch.buffered
            else fetch.passed
            for fetch in self._fetches.values()
        }

    def _partition_at(self, fetch: FetchPartition, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, fetch.partition, offset)

    # -- the waiter's side

    def _wait(self) -> None:
        """Run the waiter: own the queue while it is empty, and check the topic at intervals."""
        try:
            while not self._closing:
                if self._turn.acquire(timeout=_POLL_SECONDS):
                    self._first, self._owns_queue = self._await_message(), True
                    self._wakeup.set()
                self._check_topic()
        except MeanderError as error:
            self._fail(error)
        except KafkaException as error:
            self._fail(client.translate(error, f"topic {self._topic!r}"))

    def _await_message(self) -> ConsumedMessage | None:
        while not self._closing:
            self._run_actions()
            fetches = list(self._fetches.values())
            hurry = not fetches or any(fetch.stopped for fetch in fetches)
            seconds = _SHORT_POLL_SECONDS if hurry else _POLL_SECONDS
            message = cast(ConsumedMessage | None, self._consumer.poll(seconds))
            if message is not None:
                return message
            self._check_topic()
        return None

    def _check_topic(self) -> None:
        """Check the topic at intervals; let the consumer learn of new partitions."""
        self._topic_watch.check_if_due()
        if self._total < self._topic_watch.total:
            self._add_partitions(self._topic_watch.total)

    def _add_partitions(self, total: int) -> None:
        """Let the consumer learn of a new partition before its first read."""
        if self._fetch_metadata() >= total:
            self._total = total
            self._wakeup.set()

    def _fetch_metadata(self) -> int:
        """Let the consumer learn the leaders of the topic's partitions; return their number, as far
        as it knows. A consumer alone starts that at its first read, up to a second later.

        Either thread may call it, as the answer does not pass the queue.
        """
        with contextlib.suppress(KafkaException):
            known = self._consumer.list_topics(self._topic, timeout=_METADATA_TIMEOUT)
            return len(known.topics[self._topic].partitions)
        return 0

    def _run_or_queue(self, action: Callable[[], None]) -> None:
        """Run an action on the consumer, or queue it for the owner of the queue."""
        self._actions.append(action)
        if self._owns_queue:
            self._run_actions()

    def _run_actions(self) -> None:
        """Run the worker's pending actions. Only the queue's owner may call it."""
        while self._actions:
            self._actions.popleft()()

    def _unassign(self, fetch: FetchPartition) -> None:
        self._consumer.incremental_unassign([self._partition_at(fetch)])
        if self._first is not None and self._first.partition() == fetch.partition:
            # The message was fetched earlier; if the partition returns, it is fetched again.
            self._first = None

    def _fail(self, error: MeanderError) -> None:
        self._failure = error
        self._wakeup.set()
