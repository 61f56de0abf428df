"""Parts: the records of a value that exceeds one record, in order.

Guarantees that a reader gets the bytes that were split, or an error. Each part has a key that no
other record has, and the value holds a checksum. Cost: one record per `PART_BYTES` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from meander.state.layers.layer import Payloads, read_payloads
from meander.state.layers.topic import RecordLocation, StateTopic

PART_BYTES = 512 << 10
"""The bytes of a part."""


def split(data: bytes) -> list[bytes]:
    """Return the parts of a value in order, at least one.

    >>> [len(part) for part in split(bytes(2 * PART_BYTES + 1))], split(b"")
    ([524288, 524288, 1], [b''])
    """
    return [data[first : first + PART_BYTES] for first in range(0, len(data), PART_BYTES)] or [b""]


def keyed_parts(key: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the parts of a value with their keys. A part that is the whole value has the value's
    key.

    >>> large = keyed_parts(b"key", bytes(PART_BYTES + 1))
    >>> keyed_parts(b"key", b"value"), [key for key, _ in large]
    ([(b'key', b'value')], [b'key/0', b'key/1'])
    """
    parts = split(data)
    if len(parts) == 1:
        return [(key, data)]
    return [(b"%b/%d" % (key, number), part) for number, part in enumerate(parts)]


def read_values(
    topic: StateTopic, values: Sequence[Sequence[RecordLocation]], most_bytes: int
) -> Payloads:
    """Yield the values whose parts lie at some locations, in order, or None while the next has not
    arrived. Request at most `most_bytes` at once, or one part."""
    payloads = read_payloads(topic, [*chain.from_iterable(values)], most_bytes)
    for locations in values:
        parts = list[bytes]()
        for _ in locations:
            while (part := next(payloads)) is None:
                yield None
            parts.append(part)
        yield parts[0] if len(parts) == 1 else b"".join(parts)
