"""What a reader does beside reading: commit for lag tools, and look how its topic has changed.

Guarantees that neither ever waits for the reader's consumer, nor makes it wait: a consumer belongs
to one thread at a time, so this has clients of its own. A commit is a courtesy, as nobody starts
from it: one at a time is under way, and one that fails is made up for by the next. It goes through
a consumer, as an admin client's may be lost while the group's coordinator is loading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from meander.connectors.kafka import client, topics
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.source.topic_ids import made_anew
from meander.connectors.kafka.topics import Found

COMMIT_EVERY = 1.0
"""Seconds between two commits."""
LOOK_EVERY = 5.0
"""Seconds between looks at the topic (a second while no broker answers)."""
_ANSWER = 2.0
"""Seconds that a look waits for an answer."""
_LAST = 1.0
"""Seconds that the last commit is waited for."""

Offsets = dict[int, int]
"""Per partition, the offset before which all has passed."""


class Commits:
    """Tells lag tools how far a group has come; for the worker's thread."""

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self._consumer = client.consumer(settings, group, on_commit=self._heard)
        self._topic, self._group = topic, group
        self._at = time.monotonic()
        self._committed: Offsets = {}
        self._sent: Offsets = {}
        self._answers: list[tuple[KafkaError | None, Sequence[TopicPartition]]] = []

    def due(self) -> bool:
        """Whether it is time for the next."""
        now = time.monotonic()
        if now - self._at < COMMIT_EVERY:
            return False
        self._at = now
        return True

    def commit(self, offsets: Offsets) -> None:
        """Start a commit, unless one is under way. Raises SetupError if the group is refused."""
        self._settle()
        moved = {p: o for p, o in offsets.items() if o > self._committed.get(p, -1)}
        if moved and not self._sent:
            places = [TopicPartition(self._topic, p, o) for p, o in moved.items()]
            self._consumer.commit(offsets=places, asynchronous=True)
            self._sent = moved

    def close(self, offsets: Offsets) -> None:
        """Commit for the last time; given up when it takes longer than a second."""
        deadline = time.monotonic() + _LAST
        behind = True
        while behind and time.monotonic() < deadline:
            self.commit(offsets)
            behind = any(self._committed.get(p, -1) < o for p, o in offsets.items())
            if behind:
                self._consumer.poll(0.05)
        # Where no broker answers, closing waits for a commit far longer than anyone waits for us.
        closing = threading.Thread(target=self._consumer.close, name="commit's end", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline - time.monotonic()))

    def _heard(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        self._answers.append((error, places))

    def _settle(self) -> None:
        self._consumer.poll(0)
        answers, self._answers = self._answers, []
        for error, places in answers:
            sent, self._sent = self._sent, {}
            for place in places:
                failed = error or place.error
                if failed is None:
                    self._committed[place.partition] = sent[place.partition]
                elif not client.absent(failed):
                    # Whether the topic is still there is for `Look` to say.
                    self._refuse(failed)

    def _refuse(self, error: KafkaError) -> None:
        if not client.transient(error):
            of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            named = f"topic {self._topic!r}" if of_topic else f"consumer group {self._group!r}"
            raise client.translate(error, named)


class Look:
    """Looks now and then whether a topic is still what it was; for the waiting thread."""

    def __init__(self, settings: Settings, topic: str, known: Found) -> None:
        self._admin = client.admin(settings)
        self._contact = client.contact(settings)
        self._topic, self._known = topic, known
        self._at = time.monotonic()
        self._suspected: Found | None = None

    @property
    def total(self) -> int:
        """How many partitions there are; from any thread."""
        return self._known.partitions

    def now_and_then(self) -> None:
        """Raises SetupError when two looks in a row find that the topic has lost anything."""
        soon = self._contact.lost or self._suspected is not None
        if time.monotonic() - self._at < (min(1.0, LOOK_EVERY) if soon else LOOK_EVERY):
            return
        found = self._look()
        self._at = time.monotonic()
        # A broker that has just started may not know all of its topics yet.
        if found is not None and found != self._known and found == self._suspected:
            self._accept(found)
        self._suspected = found if found != self._known else None

    def _look(self) -> Found | None:
        """The topic as it is; None when nobody answers."""
        try:
            found = topics.look(self._admin, self._topic, _ANSWER)
        except KafkaException as error:
            if client.transient(error.args[0]):
                return None
            raise
        self._contact.heard()
        return found

    def _accept(self, found: Found) -> None:
        """It may get more partitions; all else is no topic of which this flow has read."""
        if not found.partitions:
            raise client.missing(f"topic {self._topic!r}")
        if found.id != self._known.id or found.partitions < self._known.partitions:
            raise made_anew(self._topic)
        self._known = found
