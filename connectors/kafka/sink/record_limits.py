"""The limits of a topic for its records, as the broker shows them or as a refusal tells them.

A user may not see the limits, and they may become stricter while the flow runs. Guarantees that a
refusal of a record makes the known limits stricter, so that the same record is a failure of its own
the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat

import pyarrow as pa

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.sink.producer import RecordsRefused, error_of
from meander.dataflow.interfaces import WorkerContext
from meander.schemas.errors import SetupError

TopicSettings = Mapping[str, Mapping[str, str]]
"""The known settings of topics, by topic."""
BATCH_OVERHEAD = 61
"""The bytes of a batch besides its records."""
RECORD_OVERHEAD = 36
"""The most bytes of a record besides its key, value and headers."""
HEADER_BYTES = 204
"""The most bytes of the headers that name the origin of one record."""
MAX_BYTES, POLICY = "max.message.bytes", "cleanup.policy"
"""The settings of a topic that limit its records."""
MAX_BEFORE, MAX_AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
MAX_DIFFERENCE = "message.timestamp.difference.max.ms"
"""The settings of a topic that limit timestamps; brokers before 3.6 have the last one alone."""
RETENTION = "retention.ms"
"""The setting of a topic that bounds the age of its records; -1 stands for none."""
FOR_EVER = (1 << 63) - 1
DEFAULT_AFTER = 3_600_000
"""The milliseconds of a timestamp ahead of a broker's clock that brokers accept by default."""
COMPRESSION_SETTINGS = "compression.type", "compression.codec"
DEFAULT_LEVELS = {"gzip": 6, "zstd": 3}
"""The compression levels of the client without a setting."""
COMPRESSION_MARGIN = 50
"""A compressed record may exceed the estimate by one part in 50."""


def max_batch_bytes(topics: Iterable[str], outside: TopicSettings) -> int:
    """Return the most bytes of a batch that all these topics accept. The client does not ask a
    broker, and a refused batch ends the producer."""
    known = (outside.get(topic, {}).get(MAX_BYTES, client.MAX_MESSAGE_BYTES) for topic in topics)
    return min([client.MAX_MESSAGE_BYTES, *map(int, known)])


def with_limits(outside: TopicSettings, limits: TopicSettings) -> dict[str, dict[str, str]]:
    """Return the settings of topics with stricter limits of some.

    >>> with_limits({"a": {"max.message.bytes": "900"}}, {"a": {"max.message.bytes": "500"}})
    {'a': {'max.message.bytes': '500'}}
    >>> with_limits({"a": {"max.message.bytes": "400"}}, {"a": {"max.message.bytes": "500"}})
    {'a': {'max.message.bytes': '400'}}
    >>> with_limits({}, {"a": {"cleanup.policy": "compact"}})
    {'a': {'cleanup.policy': 'compact'}}
    """
    found = {topic: dict(outside.get(topic, {})) for topic in {*outside, *limits}}
    for topic, stricter in limits.items():
        sizes = [one[MAX_BYTES] for one in (found[topic], stricter) if MAX_BYTES in one]
        found[topic] |= stricter
        if sizes:
            found[topic][MAX_BYTES] = min(sizes, key=int)
    return found


def learned_limits(
    topic: str, context: WorkerContext, refused: RecordsRefused, headers: int
) -> dict[str, str]:
    """Return the settings of a topic that explain why it has refused a record, as they are now
    where the user may see them. `headers` bounds the bytes of the record's headers.

    Raise MeanderError where the topic refuses a record without a key, and is not compacted.
    """
    assert refused.record is not None
    visible: dict[str, str] = {}
    with suppress(SetupError):
        admin = client.admin(context.settings)
        visible = topic_metadata.visible_configs(admin, [topic]).get(topic, {})
    if refused.keyless is not None:
        policy = visible.get(POLICY, "compact")
        if not topic_metadata.is_compacted({POLICY: policy}):
            raise client.translate(error_of(refused.keyless), f"topic {topic!r}")
        return {POLICY: policy}
    parts = refused.record.value() or b"", refused.record.key() or b""
    sent = RecordLimits.of(topic, context).sent_size(parts, RECORD_OVERHEAD + headers)
    learned = sent + BATCH_OVERHEAD - 1
    return {MAX_BYTES: str(min(learned, int(visible.get(MAX_BYTES, learned))))}


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The limits of a topic and a client for one record, checked before the client sends it.

    A record that a broker refuses ends the producer, and with it a transaction or the flow. The
    check makes it a failure of that record alone. Cost: a sum per batch, unless it exceeds the
    bound.
    """

    client: int
    """The most bytes of one record for the client, with its headers and overhead."""
    topic: int
    """The most bytes of one record for the topic, as sent."""
    codec: pa.Codec | None
    """The client's compression codec, where the topic does not change it."""
    allows_no_key: bool
    """Whether a record may lack a key."""
    before: int = FOR_EVER
    after: int = FOR_EVER
    """The milliseconds that a timestamp may lie before and after the broker's clock."""
    retention: int = FOR_EVER
    """The milliseconds after which the broker deletes a record, by its timestamp."""

    @staticmethod
    def of(topic: str, context: WorkerContext) -> RecordLimits:
        """Return the limits from the client's settings and, where they are known, the topic's."""
        of_topic, of_client = context.sink_topics.get(topic, {}), context.settings
        sent = int(of_client.get("message.max.bytes", client.MAX_MESSAGE_BYTES))
        broker = int(of_topic.get(MAX_BYTES, sent + BATCH_OVERHEAD)) - BATCH_OVERHEAD
        compacted = topic_metadata.is_compacted(of_topic)
        whole = int(of_topic.get(MAX_DIFFERENCE, FOR_EVER))
        before = min(whole, int(of_topic.get(MAX_BEFORE, FOR_EVER)))
        after = min(whole, int(of_topic.get(MAX_AFTER, DEFAULT_AFTER)))
        retention = int(of_topic.get(RETENTION, -1))
        if retention < 0 or of_topic.get(POLICY) == "compact":
            retention = FOR_EVER
        codec = _codec(of_client, of_topic)
        return RecordLimits(sent, broker, codec, not compacted, before, after, retention)

    def timestamps(self, now: int) -> tuple[int, int]:
        """Return the least and the greatest timestamp, in milliseconds, that the topic accepts now
        and, with a tenth to spare, soon.

        >>> RecordLimits(100, 100, None, True, before=1000, after=500).timestamps(9_000)
        (8100, 9450)
        """
        return max(1, now - self.before // 10 * 9), min(FOR_EVER, now + self.after // 10 * 9)

    def violations(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: int | Sequence[int],
    ) -> Iterator[tuple[int, str | None]]:
        """Yield the rows of records that the topic refuses, each with the reason where its size is
        wrong. `headers` bounds the bytes of the headers of each record, or of any."""
        if not self.allows_no_key and None in keys:
            yield from ((row, None) for row, key in enumerate(keys) if key is None)
        most = min(self.client, self.topic)
        all_headers = headers if isinstance(headers, int) else sum(headers)
        whole = sum(map(len, chain(filter(None, values), filter(None, keys)))) + all_headers
        if whole + RECORD_OVERHEAD <= most:
            return
        each = repeat(headers) if isinstance(headers, int) else headers
        for row, (value, key, own) in enumerate(zip(values, keys, each, strict=False)):
            parts, beside = (value or b"", key or b""), RECORD_OVERHEAD + own
            size = sum(map(len, parts)) + beside
            if size > most and (violation := self._size_violation(parts, size, beside)):
                yield row, violation

    def sent_size(self, parts: tuple[bytes, bytes], beside: int) -> int:
        """Return the bytes of a record as it is sent, approximately where it is compressed."""
        given = sum(map(len, parts)) if self.codec is None else _compressed(self.codec, parts)
        return given + beside

    def _size_violation(self, parts: tuple[bytes, bytes], size: int, beside: int) -> str | None:
        """Return the reason where a record is too large, else None."""
        if size > self.client and (self.codec or self.client <= self.topic):
            return _too_large(f"{size:,} bytes", self.client, "message.max.bytes in the settings")
        if size > self.topic:
            size = self.sent_size(parts, beside)
        if size > self.topic:
            by = "" if self.codec is None else f", compressed by {self.codec.name},"
            whole = f"{self.topic + BATCH_OVERHEAD:,}, of which a batch takes {BATCH_OVERHEAD}"
            limit = f"max.message.bytes of the topic is {whole}"
            return _too_large(f"{size:,} bytes{by}", self.topic, limit)
        return None


def _too_large(size: str, most: int, setting: str) -> str:
    return f"takes {size} as a record, more than {most:,} ({setting})"


def _codec(of_client: Mapping[str, str], of_topic: Mapping[str, str]) -> pa.Codec | None:
    """Return the client's codec at its level. Return None for a topic with a codec of its own, as
    its broker measures records before it compresses them again.

    >>> _codec({"compression.type": "zstd"}, {}).compression_level
    3
    >>> _codec({"compression.type": "zstd"}, {"compression.type": "gzip"}) is None
    True
    """
    codecs = {of_client.get(name, "none") for name in COMPRESSION_SETTINGS} - {"none", "inherit"}
    codec = next(iter(codecs), None)
    if codec is None or of_topic.get("compression.type", "producer") not in {"producer", codec}:
        return None
    level = int(of_client.get("compression.level", "-1"))
    if codec in DEFAULT_LEVELS:
        return pa.Codec(codec, level if level > 0 else DEFAULT_LEVELS[codec])
    return pa.Codec(codec)


def _compressed(codec: pa.Codec, parts: tuple[bytes, bytes]) -> int:
    """Return the bytes of a record that is sent alone, approximately; a record of this size is.

    >>> _compressed(pa.Codec("zstd"), (bytes(1_000_000), b"key")) < 1_000
    True
    """
    given = b"".join(parts)
    packed = len(codec.compress(given, asbytes=True))
    # The client cuts the record into other blocks, and sends a block unchanged that does not
    # shrink.
    return min(len(given), packed + packed // COMPRESSION_MARGIN)
