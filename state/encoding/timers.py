"""The timers and alarms of a bin, as layers and stores hold them.

A timer is a logical time and a tag: the encoded key, then the name of the timer, which may be
empty. An alarm has the negative of the wall clock's milliseconds in place of the time. A far timer
or alarm lies in the store of its operator as a row, which sorts by time and tag. One with a name
has an index row that finds its time. Invariant: a tag has one reading, as no encoded key begins
another, and no encoded key begins as a row does. Tags sort by key, then by name. Cost: a tag
without a name is its key, so it takes no further byte; a row takes 11 bytes beside its tag, and an
index row as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgpack

ROW: Final = b"\xc1"
"""The first byte of each row. No encoded key begins with it."""
COUNT_ROW: Final = ROW + b"#"
"""The row with the number of a bin's other rows."""
TIMER: Final = b"t"
"""Logical time, the clock of timers."""
ALARM: Final = b"a"
"""The wall clock, the clock of alarms."""
Clock = Literal[b"t", b"a"]
_INDEX: Final = ROW + b"n"
_TIME_BYTES: Final = 8
_HEAD: Final = len(ROW) + len(TIMER)
_CLOCKS: Final[dict[bytes, Clock]] = {TIMER: TIMER, ALARM: ALARM}

Timer = tuple[int, bytes]
"""A time, and the tag of the timer: the encoded key that is called then, and the timer's name."""
Timers = Sequence[Timer]
"""Timers in order."""


def tag_of(key: bytes, name: str) -> bytes:
    r"""Return the tag of a timer from its encoded key and its name.

    >>> tag_of(b"\xa1k", ""), tag_of(b"\xa1k", "timeout")
    (b'\xa1k', b'\xa1ktimeout')
    """
    return key + name.encode() if name else key


def split_tag(tag: bytes) -> tuple[bytes, str]:
    r"""Undo `tag_of`.

    >>> split_tag(b"\xa1k"), split_tag(b"\xa1ktimeout")
    ((b'\xa1k', ''), (b'\xa1k', 'timeout'))
    """
    try:
        msgpack.unpackb(tag, use_list=False, strict_map_key=False, unicode_errors="surrogatepass")
    except msgpack.ExtraData as rest:
        name: bytes = rest.extra
        return tag[: -len(name)], name.decode()
    return tag, ""


def row_key(clock: Clock, time: int, tag: bytes = b"") -> bytes:
    r"""Return the key of the row of a timer or alarm; without a tag, the least one of a time.

    >>> row_of(row_key(TIMER, 5, b"\xa1k"))
    (5, b'\xa1k')
    """
    return ROW + clock + time.to_bytes(_TIME_BYTES, "big") + tag


def row_of(key: bytes) -> Timer:
    """Undo `row_key`: return the time and the tag."""
    at = _HEAD + _TIME_BYTES
    return int.from_bytes(key[_HEAD:at], "big"), key[at:]


def index_key(tag: bytes) -> bytes:
    """Return the key of the index row of a tag with a name."""
    return _INDEX + tag


def index_value(clock: Clock, time: int) -> bytes:
    """Return the value of an index row.

    >>> split_index(index_value(ALARM, 7))
    (b'a', 7)
    """
    return clock + time.to_bytes(_TIME_BYTES, "big")


def split_index(value: bytes) -> tuple[Clock, int]:
    """Undo `index_value`."""
    return _CLOCKS[value[:1]], int.from_bytes(value[1:], "big")
