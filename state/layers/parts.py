"""Parts: a value larger than one record lies on its topic in parts, named in order.

Guarantees that a reader gets the bytes that were cut, or an error. Each part has a key that no
other record has, and the value holds a checksum. Cost: one record per `PART` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from meander.state.layers.layer import Payloads, payloads
from meander.state.layers.topic import RecordLocation, StateTopic

PART = 512 << 10
"""The bytes of a part."""


def cut(data: bytes) -> list[bytes]:
    """Return the parts of a value in order, at least one.

    >>> [len(part) for part in cut(bytes(2 * PART + 1))], cut(b"")
    ([524288, 524288, 1], [b''])
    """
    return [data[first : first + PART] for first in range(0, len(data), PART)] or [b""]


def keyed(key: bytes, data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the parts of a value with their keys. A part that is the whole value has the value's
    key.

    >>> keyed(b"key", b"value"), [key for key, _ in keyed(b"key", bytes(PART + 1))]
    ([(b'key', b'value')], [b'key/0', b'key/1'])
    """
    parts = cut(data)
    if len(parts) == 1:
        return [(key, data)]
    return [(b"%b/%d" % (key, number), part) for number, part in enumerate(parts)]


def wholes(
    topic: StateTopic, many: Sequence[Sequence[RecordLocation]], most_bytes: int
) -> Payloads:
    """Yield the values whose parts lie at some locations, in order, or None while the next has not
    arrived. Request at most `most_bytes` at once, or one part."""
    found = payloads(topic, [*chain.from_iterable(many)], most_bytes)
    for places in many:
        parts = list[bytes]()
        for _ in places:
            while (part := next(found)) is None:
                yield None
            parts.append(part)
        yield parts[0] if len(parts) == 1 else b"".join(parts)
