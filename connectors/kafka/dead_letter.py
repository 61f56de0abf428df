"""The dead-letter topic: what could not be read or processed, with the reason in headers.

Guarantees that a record lands there once per failure and that `pending` says how many are not yet
durable. A record that could not be read keeps its bytes and headers as they were; of one that a
function could not take, the value is written as JSON, or as its repr where it has none. Headers
added: meander.reason, .operator, .topic or .origin, .partition, .offset, .time, .worker, .trace,
and .truncated, the value's length, where it is longer than the topic takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.formats import encoder, plain_key
from meander.connectors.kafka.sink.producer import Headers
from meander.connectors.kafka.sink.record_producer import Sender, noted
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.operators.error_policy import failure, shown
from meander.dataflow.records.batch import Batch
from meander.schemas.log_lines import LineLogger
from meander.state.encoding import codec

log = LineLogger(__name__)

MAX_SAID = 300
"""Characters of a reason in the log."""
MAX_TRACE = 8 * 1024
"""Characters kept of a traceback, from its end: the cause stands there."""
MAX_DEAD_RECORD = 16 << 20
"""Bytes of one record on the dead-letter topic; what is longer is cut."""
MAX_VALUE = MAX_DEAD_RECORD // 2
"""Bytes kept of a value, from its start; the rest of a record is for its key and headers."""
MAX_KEY = MAX_HEADERS = MAX_DEAD_RECORD // 8
"""Bytes kept of a key, from its start, and of the headers that a record had itself."""
_json = encoder("json")


@dataclass(frozen=True, slots=True)
class MalformedRecord:
    """A record as it lies on its topic; a reader sets it aside as the value of a batch's row."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class KafkaDeadLetters:
    """A worker's way to the dead-letter topic of its flow; implements `DeadLetters`."""

    def __init__(self, settings: Settings, topic: str, worker: int, max_waiting: int) -> None:
        self._worker, self._named = worker, set[str]()
        self._sender = Sender(settings, topic, max_waiting, message_max_bytes=MAX_DEAD_RECORD)

    @staticmethod
    def open(context: WorkerContext, topic: str) -> KafkaDeadLetters:
        """The dead letters of one worker."""
        return KafkaDeadLetters(context.settings, topic, context.worker, context.max_waiting)

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Set one record aside; never blocks. Raises what the broker refused of earlier ones."""
        self._sender.pump()
        value = batch.values[row]
        if isinstance(value, MalformedRecord):
            key = value.key
        else:
            key = None if batch.keys is None else _key(batch.keys[row])
        if operator not in self._named:
            self._named.add(operator)
            log.warning(
                "dead_letter_written",
                operator=operator,
                partition=int(batch.partitions[row]),
                offset=int(batch.offsets[row]),
                key=(key or b"")[:MAX_SAID].decode("utf-8", "backslashreplace"),
                topic=self._sender.topic,
                reason=reason[:MAX_SAID],
                others="counted only",
            )
        added: Headers = [
            ("meander.reason", _text(reason[:MAX_TRACE])),
            ("meander.operator", operator),
            ("meander.partition", str(batch.partitions[row])),
            ("meander.offset", str(batch.offsets[row])),
            ("meander.time", str(batch.times[row])),
            ("meander.worker", str(self._worker)),
        ]
        if trace:
            added.append(("meander.trace", _text(trace)[-MAX_TRACE:]))
        if isinstance(value, MalformedRecord):
            added.append(("meander.topic", value.topic))
            self._send(value.value, key, _kept(value.headers), added)
        else:
            added.append(("meander.origin", str(batch.origins[row])))
            self._send(_written(value), key, [], added)

    def _send(
        self, value: bytes | None, key: bytes | None, headers: Headers, added: Headers
    ) -> None:
        if value is not None and len(value) > MAX_VALUE:
            added.append(("meander.truncated", str(len(value))))
            value = value[:MAX_VALUE]
        if key is not None and len(key) > MAX_KEY:
            added.append(("meander.key_truncated", str(len(key))))
            key = key[:MAX_KEY]
        self._sender.send(value, key, noted, [*headers, *added])

    def pending(self) -> int:
        """How many are not yet durable. Raises MeanderError when the broker refused one."""
        self._sender.pump()
        return len(self._sender)

    def close(self) -> None:
        """Give up what is under way."""
        self._sender.close()


def _kept(headers: Headers) -> Headers:
    """The headers of a record as far as there is room, with how many there is none for."""
    found, room = Headers(), MAX_HEADERS
    for name, value in headers:
        room -= len(name) + len(value or b"")
        if room >= 0:
            found.append((name, value))
    lost = len(headers) - len(found)
    return [*found, ("meander.headers_left_out", str(lost))] if lost else found


def _text(said: str) -> bytes:
    """Text as a header: also what no encoding takes as it is."""
    return said.encode("utf-8", "backslashreplace")


def _key(key: bytes) -> bytes | None:
    try:
        return plain_key(key)
    except (ValueError, TypeError):
        return _text(shown(codec.decode(key)))


def _written(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return _json(value)
    except failure():  # the value's own code may take part
        return _text(shown(value))
