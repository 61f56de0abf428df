"""The headers of a dead letter, and of the marks of replayed ones.

Guarantees that the own headers of an unreadable record come first, then those of the dead letter,
which begin with `REASON`. A reader so finds both, whatever the names of the own headers.
"""

from __future__ import annotations

from typing import Literal

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
WORKER = "meander.worker"
"""The worker."""
TRACE = "meander.trace"
"""The end of the traceback."""
TRUNCATED, KEY_TRUNCATED = "meander.truncated", "meander.key_truncated"
"""The lengths of a cut value and a cut key."""
HEADERS_LEFT_OUT = "meander.headers_left_out"
"""The number of own headers that were left out."""
REPLAYED = "meander.replayed"
"""The offsets of the dead letters that a transaction has produced again, on a mark. A mark is a
record of the dead-letter topic with this header alone."""
REPLAY = "meander.replay"
"""The dead-letter topic and the offset of the dead letter, on a record that was produced again."""
