"""How records of a topic become what a flow reads: decoded, timed, or set aside.

Guarantees that a record is handed out or set aside, once, in offset order; what cannot be read goes
to the dead letters as it lies on its topic, with the reason, or ends the flow (`fail_fast`). Knows
no consumer: whoever has messages has them read here. Cost: what the formats cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from connectors.client import Fetched
from connectors.dead_letter import Unreadable
from dataflow.batch import Batch
from dataflow.protocols import Chunk, DeadLetters, Partition
from schemas.errors import MeanderError
from state.time import from_millis

RECORD = 64
"""Bytes counted per record for its key and headers, whose lengths cost a call each."""

Readable = tuple[object, int]
"""A decoded value and its time, milliseconds since 1970."""


class Intake:
    """One worker's way of reading one topic; `read` raises ValueError for what it cannot read."""

    def __init__(
        self,
        topic: str,
        read: Callable[[Fetched], Readable],
        fail_fast: bool,
        dead: DeadLetters,
    ) -> None:
        self.unreadable = 0
        """Records set aside so far."""
        self._topic, self._read, self._fail_fast, self._dead = topic, read, fail_fast, dead

    def chunk(self, partition: Partition, messages: Iterable[Fetched]) -> Chunk:
        """What can be read of a partition's next messages.

        Raises MeanderError for what cannot, where that is to end the flow.
        """
        offsets: list[int] = []
        times: list[int] = []
        values: list[object] = []
        size = 0
        read = self._read
        for message in messages:
            size += len(message) + RECORD
            try:
                value, millis = read(message)
            except ValueError as error:
                self._set_aside(message, str(error))
                continue
            values.append(value)
            times.append(millis)
            offsets.append(message.offset())
        return Chunk(
            partition, np.array(offsets, np.int64),
            from_millis(1) * np.array(times, np.int64), values, size,
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether what was set aside is durable."""
        return not self.unreadable or not self._dead.pending()

    def _set_aside(self, message: Fetched, reason: str) -> None:
        partition, offset = message.partition(), message.offset()
        if self._fail_fast:
            raise MeanderError(
                f"topic {self._topic!r}, partition {partition}, offset {offset}",
                reason,
                "correct the source's value, key or time, or set unreadable records aside "
                "(fail_fast=False)",
            )
        self.unreadable += 1
        record = Unreadable(
            self._topic, message.key(), message.value(), list(message.headers() or ())
        )
        one = np.array([0], np.int64)
        time_asked = np.array([from_millis(max(message.timestamp()[1], 0))], np.int64)
        row = Batch(time_asked, one, one + partition, one + offset, one, [record])
        self._dead.add(f"source {self._topic}", row, 0, reason, "")
