"""What a consumer's client knows of the ids of its topics: a topic made anew has another id.

Guarantees, with brokers from Kafka 3.1 on, that the reader of a consumer's queue learns of another
id before it gets a record of that topic: librdkafka fetches by id (KIP-516), so it fetches from the
new topic only after it has learned the new id, and its log entry of that lies in the queue ahead of
what it fetches then. Older brokers are asked by name: there `upkeep.Look` finds out, seconds later.
Cost: some 20 log entries when a consumer starts, and a few whenever its client reads metadata.
"""

from __future__ import annotations

import logging
import re

from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger, LogLine

log = LineLogger("meander.kafka")

_CHANGED = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")


class TopicIds:
    """The log of one consumer's client, which it writes as the consumer is polled.

    >>> ids = TopicIds(debug="")
    >>> line = "[thrd:main]: Topic lines changed id from AAAA to JS7h"
    >>> ids.log(10, "%s [%s] %s", "METADATA", "rdkafka#consumer-3", line)
    >>> ids.expect("lines", "JS7h"), ids.expect("words", "JS7h")
    (None, None)
    >>> ids.expect("lines", "d2q0")
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: topic 'lines': it has been deleted and made anew: ...
    """

    def __init__(self, debug: str) -> None:
        """`debug` is what the user wants to see of the client's log."""
        self._told = logging.DEBUG if debug else logging.CRITICAL
        self._ids: dict[str, str] = {}

    def log(self, level: int, form: str, *words: str) -> None:
        """Take one entry, as confluent-kafka writes it to a logger."""
        if (found := _CHANGED.search(words[-1])) is not None:
            self._ids[found[1]] = found[2]
        if level >= self._told:
            log.log(level, LogLine("client_reported", {"text": form % words}))

    def expect(self, topic: str, id: str) -> None:
        """Raises SetupError where the client fetches from a topic of another id."""
        if self._ids.get(topic, id) != id:
            raise made_anew(topic)


def made_anew(topic: str) -> SetupError:
    """The error for a topic that is not the one which a flow has read."""
    return SetupError(
        f"topic {topic!r}",
        "it has been deleted and made anew: its records are others, and offsets and states say"
        " nothing of them",
        "start the flow anew with meander reset, or have it read a topic of another name",
    )
