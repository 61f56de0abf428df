"""Topic ids: a consumer's knowledge of the ids of its topics. A recreated topic has another id.

Guarantees, with brokers from Kafka 3.1 on, that a consumer reports another id before any record of
that topic. librdkafka fetches by id (KIP-516), so it must first learn the new id. Its log entry of
that id precedes the fetched records in the queue. librdkafka asks older brokers by name; there
`topic_watch.TopicWatch` notices the change seconds later. Cost: some 20 log entries at a consumer's
start, and a few at each metadata request.
"""

from __future__ import annotations

import logging
import re

from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger, LogLine

log = LineLogger("meander.kafka")

_CHANGED = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")


class TopicIds:
    """A log that receives the entries of one consumer's client in its polls.

    >>> ids = TopicIds(debug="")
    >>> line = "[thrd:main]: Topic lines changed id from AAAA to JS7h"
    >>> ids.log(10, "%s [%s] %s", "METADATA", "rdkafka#consumer-3", line)
    >>> ids.expect("lines", "JS7h"), ids.expect("words", "JS7h")
    (None, None)
    >>> ids.expect("lines", "d2q0")
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: topic 'lines': it has been deleted and recreated, ...
    """

    def __init__(self, debug: str) -> None:
        """Create an empty log; it shows the user the contexts that `debug` names."""
        self._level = logging.DEBUG if debug else logging.CRITICAL
        self._ids: dict[str, str] = {}

    def log(self, level: int, form: str, *words: str) -> None:
        """Receive one entry, as confluent-kafka writes it to a logger."""
        if (found := _CHANGED.search(words[-1])) is not None:
            self._ids[found[1]] = found[2]
        if level >= self._level:
            log.log(level, LogLine("client_reported", {"text": form % words}))

    def expect(self, topic: str, id: str) -> None:
        """Raise SetupError where the client fetches from a topic with another id."""
        if self._ids.get(topic, id) != id:
            raise recreated(topic)


def recreated(topic: str) -> SetupError:
    """Return the error for a recreated topic, which a flow has read before."""
    return SetupError(
        f"topic {topic!r}",
        "it has been deleted and recreated, so the offsets and states of the flow belong to other"
        " records",
        "start the flow from scratch with meander reset",
    )


def deleted(topic: str) -> SetupError:
    """Return the error for a source topic that was deleted after a flow has read it."""
    return SetupError(
        f"topic {topic!r}",
        "it was deleted while the flow read it",
        "create it again (meander topics create), and then run meander reset: the offsets and"
        " states of the flow belong to the deleted records",
    )
