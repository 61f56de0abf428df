"""The Kafka reader: reads a worker's partitions of one topic and never blocks the worker's loop.

Invariant: at any time either the worker's thread or the waiter owns the consumer's queue. The
waiter polls an empty queue. It hands a message over, wakes the loop, and rests until the loop has
emptied the queue. So no record crosses threads under load, and offsets stay in order. A bound
limits the records that are read and not handed out (I6): `HELD` per paused partition, plus
librdkafka's queue. The position tells the end of a log, as transaction markers and compacted
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
from meander.connectors.kafka.source.chunks import Intake, size_of
from meander.connectors.kafka.source.lost_records import Lost
from meander.connectors.kafka.source.topic_ids import TopicIds
from meander.connectors.kafka.source.topic_watch import Commits, Look
from meander.connectors.kafka.topics import Found
from meander.dataflow.interfaces import Chunk, Partition, Rest, WorkerContext
from meander.schemas.errors import MeanderError

ROWS = 3000
"""The most records per partition and poll: about a millisecond of decoding."""
TAKE = 1 << 20
"""The bytes taken from librdkafka's queue per poll, by the average record."""
HELD = 1 << 20
"""The bytes of a paused partition beyond which its fetching stops."""
_CAREFUL = 64
"""The records of the first poll, and the sample size of the average record."""
_ANSWER = 0.5
"""The seconds in which the consumer has to learn of new partitions; a broker has just answered."""
_NAP = 0.25
"""The seconds after which the waiter checks whether the reader has closed."""
_SHORT_NAP = 0.005
"""The shorter wait while fetching is stopped or there are no partitions, as the worker may need the
queue."""

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
    handed: int
    """The offset behind the last record handed out."""
    passed: int
    """The offset up to which records have passed the flow."""
    held: deque[ConsumedMessage] = field(default_factory=deque)
    bytes: int = 0
    at_end: bool = False
    """Whether the last message about it was its end."""
    paused: bool = False
    stopped: bool = False
    """Whether librdkafka has stopped fetching it."""

    @property
    def whole(self) -> bool:
        """Return whether a bounded run has read it to its end."""
        return self.end is not None and self.position >= self.end


class KafkaReader:
    """A reader that implements `SourceReader`. Only its own waiter may use it from another
    thread."""

    def __init__(
        self,
        topic: str,
        known: Found,
        ids: TopicIds,
        consumer: Consumer,
        group: str,
        bounds: list[Bounds],
        intake: Intake,
        context: WorkerContext,
    ) -> None:
        self.partitions = [b.partition for b in bounds]
        self._topic, self._consumer = topic, consumer
        self._intake, self._skip_lost = intake, context.skip_lost
        self._ids, self._id = ids, known.id
        self._wakeup = context.wakeup
        self._contact = client.contact(context.settings)
        self._lanes = {
            b.partition: FetchPartition(b.partition, b.start, b.end, b.start, b.start)
            for b in bounds
        }
        # A high first guess keeps the first poll small.
        self._average = TAKE / _CAREFUL
        self._commits = Commits(context.settings, topic, group)
        self._look, self._bounded = Look(context.settings, topic, known), context.until_end
        self._total = known.partitions
        self._orders: deque[Callable[[], None]] = deque()
        self._handover: ConsumedMessage | None = None
        self._ours = True
        self._turn = threading.Semaphore(0)
        self._closing = False
        self._failure: MeanderError | None = None
        if bounds:
            consumer.assign([self._place(lane, lane.position) for lane in self._lanes.values()])
        else:
            self._get_to_know()
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
        return self._intake.unreadable

    def poll(self) -> list[Chunk]:
        """Return chunks of the partitions that are not paused; [] when there are none."""
        if self._failure is not None:
            raise self._failure
        self._contact.check()
        self._take()
        if self._commits.due():
            self._commits.commit(self._through())
        chunks = [
            self._decode(lane) for lane in self._lanes.values() if lane.held and not lane.paused
        ]
        full = [chunk for chunk in chunks if chunk.values]
        if chunks and not full:
            # All records were unreadable; the loop must not take that for an empty queue.
            self._wakeup.set()
        return full

    def watch(self) -> None:
        """Give the queue to the waiter, which wakes the loop once there are records."""
        # The waiter would lose a message that the loop has not taken yet. The loop is awake in that
        # case.
        if self._ours and self._handover is None:
            self._ours = False
            self._turn.release()

    def pause(self, partition: Partition) -> None:
        """Hand out no records of a partition until `resume`; keep the records that were
        prefetched."""
        self._lanes[partition].paused = True

    def resume(self, partition: Partition) -> None:
        """Undo `pause`."""
        lane = self._lanes[partition]
        lane.paused = False
        if lane.stopped and not lane.whole:
            lane.stopped = False
            self._order(partial(self._consumer.resume, [self._place(lane)]))

    def idle(self, partition: Partition) -> bool:
        """Return whether all records up to the last known end have been handed out."""
        lane = self._lanes[partition]
        return lane.at_end and not lane.held

    def ended(self, partition: Partition) -> bool:
        """Return whether a bounded run has handed out this partition to its end."""
        lane = self._lanes[partition]
        return lane.whole and not lane.held and self._intake.settled

    def release(self, partition: Partition) -> Rest:
        """Stop reading a partition; return the rest that has not been handed out."""
        rest = self.rest(partition)
        lane = self._lanes.pop(partition)
        self.partitions.remove(partition)
        self._order(partial(self._unassign, lane))
        return rest

    def rest(self, partition: Partition) -> Rest:
        """Return the rest of a partition that has not been handed out."""
        lane = self._lanes[partition]
        return Rest(lane.held[0].offset() if lane.held else lane.position, lane.end)

    def adopt(self, partition: Partition, rest: Rest) -> None:
        """Read the rest of a partition that another worker has released, or a whole new
        partition."""
        start = rest.offset
        lane = self._lanes[partition] = FetchPartition(partition, start, rest.end, start, start)
        self.partitions.append(partition)
        # The waiter runs this between two polls: beside its polls the call would take seconds.
        self._order(partial(self._consumer.incremental_assign, [self._place(lane, start)]))

    def passed(self, partition: Partition, offset: int) -> None:
        """Record that all results of the records before `offset` are delivered (for lag tools)."""
        # The new reader of a released partition records this from its first record on.
        if (lane := self._lanes.get(partition)) is not None:
            lane.passed = offset

    def held(self, partition: Partition) -> int:
        """Return the bytes of a partition that have been read and not yet handed out."""
        return self._lanes[partition].bytes

    def close(self) -> None:
        """Release connections; wait for the end of the waiter's poll."""
        self._closing = True
        self._turn.release()
        self._waiter.join()
        self._commits.close(self._through())
        self._consumer.close()

    # -- reading

    def _take(self) -> None:
        """Move the fetched messages to their partitions, unless the waiter owns the queue."""
        if not self._ours:
            return
        self._obey()
        first, self._handover = self._handover, None
        rows = max(1, min(ROWS, int(TAKE / self._average)))
        messages = cast(list[ConsumedMessage], self._consumer.consume(rows, 0))
        # This check precedes all records, as they may belong to another topic with the same name.
        self._ids.expect(self._topic, self._id)
        if first is not None:
            self._sort(first)
        places = set(map(_PARTITION, messages))
        if len(places) == 1:
            self._sort_run(Partition(places.pop()), messages)
        else:
            for partition, run in groupby(messages, _PARTITION):
                self._sort_run(Partition(partition), list(run))
        if messages and self._contact.lost:
            self._contact.heard()

    def _sort_run(self, partition: Partition, run: list[ConsumedMessage]) -> None:
        """Sort messages as `_sort` does, but all at once where none needs special care."""
        lane = self._lanes.get(partition)
        last = run[-1].offset()
        beyond = lane is not None and lane.end is not None and last >= lane.end
        if lane is None or beyond or any(map(_ERROR, run)):
            for message in run:
                self._sort(message)
            return
        lane.position, lane.at_end = last + 1, False
        self._hold(lane, run)

    def _sort(self, message: ConsumedMessage) -> None:
        error = message.error()
        if error is not None:
            self._sort_error(message, error)
            return
        lane = self._lanes.get(Partition(message.partition()))
        if lane is None:
            return
        offset = message.offset()
        if lane.end is not None and offset >= lane.end:
            lane.position = max(lane.position, offset)
            self._stop(lane)
            return
        lane.position, lane.at_end = offset + 1, False
        self._hold(lane, [message])

    def _hold(self, lane: FetchPartition, run: list[ConsumedMessage]) -> None:
        lane.held.extend(run)
        size = size_of(run)
        lane.bytes += size
        self._average += (size / len(run) - self._average) * min(1, len(run) / _CAREFUL)
        if lane.paused and lane.bytes > HELD:
            self._stop(lane)

    def _sort_error(self, message: ConsumedMessage, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if (lane := self._lanes.get(Partition(message.partition()))) is not None:
                lane.position, lane.at_end = max(lane.position, message.offset()), True
        elif client.expired(error):
            if (lane := self._lanes.get(Partition(message.partition()))) is not None:
                self._pass_over(lane)
        elif not client.transient(error):
            raise client.translate(error, f"topic {self._topic!r}")

    def _pass_over(self, lane: FetchPartition) -> None:
        """Continue a partition behind records that retention has deleted. Raise SetupError where
        the user does not allow it. The loop waits some milliseconds, as the broker has just
        answered."""
        low, high = client.watermarks(self._consumer, self._topic, lane.partition)
        if not low <= lane.position <= high:
            Lost(self._topic, lane.partition, lane.position, low, high).pass_over(self._skip_lost)
            lane.position = low
        self._consumer.incremental_unassign([self._place(lane)])
        self._consumer.incremental_assign([self._place(lane, lane.position)])

    def _stop(self, lane: FetchPartition) -> None:
        if not lane.stopped:
            lane.stopped = True
            self._consumer.pause([self._place(lane)])

    # -- handing out

    def _decode(self, lane: FetchPartition) -> Chunk:
        if len(lane.held) <= ROWS:
            taken = list(lane.held)
            lane.held.clear()
        else:
            taken = [lane.held.popleft() for _ in range(ROWS)]
        chunk = self._intake.chunk(lane.partition, taken)
        lane.bytes -= chunk.size
        if chunk.values:
            lane.handed = int(chunk.offsets[-1]) + 1
        return chunk

    def _through(self) -> dict[int, int]:
        """Return the progress of each partition for lag tools."""
        return {
            # Transaction markers may follow the last record. They count as lag but never pass the
            # flow.
            lane.partition: lane.position
            if lane.passed >= lane.handed and not lane.held
            else lane.passed
            for lane in self._lanes.values()
        }

    def _place(self, lane: FetchPartition, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, lane.partition, offset)

    # -- the waiter's side

    def _wait(self) -> None:
        """Run the waiter: own the queue while it is empty, and check the topic at intervals."""
        try:
            while not self._closing:
                if self._turn.acquire(timeout=_NAP):
                    self._handover, self._ours = self._await_message(), True
                    self._wakeup.set()
                self._look_around()
        except MeanderError as error:
            self._fail(error)
        except KafkaException as error:
            self._fail(client.translate(error, f"topic {self._topic!r}"))

    def _await_message(self) -> ConsumedMessage | None:
        while not self._closing:
            self._obey()
            lanes = list(self._lanes.values())
            nap = _SHORT_NAP if not lanes or any(lane.stopped for lane in lanes) else _NAP
            message = cast(ConsumedMessage | None, self._consumer.poll(nap))
            if message is not None:
                return message
            self._look_around()
        return None

    def _look_around(self) -> None:
        """Check the topic at intervals; let the consumer learn of new partitions."""
        self._look.now_and_then()
        if self._total < self._look.total:
            self._learn(self._look.total)

    def _learn(self, total: int) -> None:
        """Let the consumer learn of a new partition before its first read."""
        if self._get_to_know() >= total:
            self._total = total
            self._wakeup.set()

    def _get_to_know(self) -> int:
        """Let the consumer learn the leaders of the topic's partitions; return their number, as far
        as it knows. A consumer alone starts that at its first read, up to a second later.

        Either thread may call it, as the answer does not pass the queue.
        """
        with contextlib.suppress(KafkaException):
            known = self._consumer.list_topics(self._topic, timeout=_ANSWER)
            return len(known.topics[self._topic].partitions)
        return 0

    def _order(self, order: Callable[[], None]) -> None:
        """Run an action on the consumer that only the queue's owner may run."""
        self._orders.append(order)
        if self._ours:
            self._obey()

    def _obey(self) -> None:
        """Run the worker's pending actions. Only the queue's owner may call it."""
        while self._orders:
            self._orders.popleft()()

    def _unassign(self, lane: FetchPartition) -> None:
        self._consumer.incremental_unassign([self._place(lane)])
        if self._handover is not None and self._handover.partition() == lane.partition:
            # The message was fetched earlier; if the partition returns, it is fetched again.
            self._handover = None

    def _fail(self, error: MeanderError) -> None:
        self._failure = error
        self._wakeup.set()
