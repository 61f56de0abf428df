"""The headers of a dead letter, and of the marks of replayed ones; the most bytes of a dead letter.

Guarantees that the own headers of the record come first, then those of the dead letter, which begin
with `REASON`. A reader so finds both, whatever the names of the own headers. A dead letter with
`TIMESTAMP` has the key and the value of its record, and one without has those at the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_DEAD_RECORD = 16 << 20
"""The most bytes of a record on the dead-letter topic; longer records are cut."""
ReadHeaders = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of the record that a dead letter is about."""

    topic: str
    topic_id: str
    """The id of the topic at the failure, or ''."""
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class OriginalRecord:
    """A record as its producer wrote it."""

    key: bytes | None
    value: bytes | None
    headers: ReadHeaders
    time_ms: int
    """Its timestamp, milliseconds since 1970."""

    @property
    def size(self) -> int:
        """Return the bytes of its key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


LetterKind = Literal["unreadable", "record", "timer", "notification", "change"]
"""What has failed: a record that could not be read, a record at an operator, a call of a key, or a
change of a collection."""

REASON = "meander.reason"
"""What was wrong. The first header of a dead letter."""
OPERATOR = "meander.operator"
"""The operator that failed."""
KIND = "meander.kind"
"""The kind: see `LetterKind`."""
TOPIC, TOPIC_ID = "meander.topic", "meander.topic_id"
"""The topic that the record came from, and the id that it had."""
PARTITION, OFFSET = "meander.partition", "meander.offset"
"""The place of the record on its topic, or in its source: a partition, and a position in it."""
PARTITION_NAME = "meander.partition_name"
"""The name of the partition of a source beside Kafka, such as the path of a file."""
ORIGIN = "meander.origin"
"""The operator whose timer, notification or change it is, or the source beside Kafka."""
TIME = "meander.time"
"""Milliseconds since 1970: the timestamp of an unreadable record, or else the logical time."""
TIMESTAMP = "meander.timestamp"
"""Milliseconds since 1970: the timestamp of the record, on a dead letter that carries it."""
NOT_CARRIED = "meander.not_carried"
"""Why a dead letter names its record, and does not carry it."""
OPERATOR_KEY, OPERATOR_VALUE = "meander.key", "meander.value"
"""The key and the value at the operator, on a dead letter that carries its record."""
OPERATOR_VALUE_TRUNCATED = "meander.value_truncated"
"""The length of a cut value at the operator."""
WORKER = "meander.worker"
"""The worker."""
TRACE = "meander.trace"
"""The end of the traceback."""
TRUNCATED, KEY_TRUNCATED = "meander.truncated", "meander.key_truncated"
"""The lengths of a cut value and a cut key of the dead letter."""
HEADERS_LEFT_OUT = "meander.headers_left_out"
"""The number of own headers that were left out."""
REPLAYED = "meander.replayed"
"""The offsets of the dead letters that a transaction has produced again, on a mark. A mark is a
record of the dead-letter topic with this header alone."""
REPLAY = "meander.replay"
"""The dead-letter topic and the offset of the dead letter, on a record that was produced again."""
