"""The timers and alarms of a bin, as layers and stores hold them.

A timer is a logical time and a tag: the encoded key, then the name of the timer, which may be
empty. An alarm has the negative of the wall clock's milliseconds in place of the time. Invariant: a
tag has one reading, as no encoded key begins another. Tags sort by key, then by name. Cost: a tag
without a name is its key, so it takes no further byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

Timers = Sequence[tuple[int, bytes]]
"""The time and the tag of each timer, in this order."""


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
