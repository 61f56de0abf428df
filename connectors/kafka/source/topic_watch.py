"""The topic watch: commits for lag tools, and checks of a reader's topic for changes.

Guarantees that neither waits for the reader's consumer, nor blocks it: a consumer belongs to one
thread at a time, so the watch has its own clients. No flow starts from a commit, so a failed one
does no harm and the next replaces it. One commit is in flight at a time. It uses a consumer, as an
admin client's commit may be lost while the group's coordinator loads.
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
"""The seconds between two commits."""
LOOK_EVERY = 5.0
"""The seconds between two checks of the topic (one second while no broker answers)."""
_ANSWER = 2.0
"""The seconds that a check waits for an answer."""
_LAST = 1.0
"""The seconds that `close` waits for the last commit."""

Offsets = dict[int, int]
"""The offset of each partition before which all records have passed."""


class Commits:
    """Commits that show a group's progress to lag tools, for the worker's thread."""

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self._consumer = client.consumer(settings, group, on_commit=self._heard)
        self._topic, self._group = topic, group
        self._at = time.monotonic()
        self._committed: Offsets = {}
        self._sent: Offsets = {}
        self._answers: list[tuple[KafkaError | None, Sequence[TopicPartition]]] = []

    def due(self) -> bool:
        """Return whether the next commit is due."""
        now = time.monotonic()
        if now - self._at < COMMIT_EVERY:
            return False
        self._at = now
        return True

    def commit(self, offsets: Offsets) -> None:
        """Start a commit, unless one is in flight. Raise SetupError if the broker refuses the
        group."""
        self._settle()
        moved = {p: o for p, o in offsets.items() if o > self._committed.get(p, -1)}
        if moved and not self._sent:
            places = [TopicPartition(self._topic, p, o) for p, o in moved.items()]
            self._consumer.commit(offsets=places, asynchronous=True)
            self._sent = moved

    def close(self, offsets: Offsets) -> None:
        """Commit for the last time; give up after a second."""
        deadline = time.monotonic() + _LAST
        behind = True
        while behind and time.monotonic() < deadline:
            self.commit(offsets)
            behind = any(self._committed.get(p, -1) < o for p, o in offsets.items())
            if behind:
                self._consumer.poll(0.05)
        # Without a broker, a close waits for a commit far longer than this flow may wait.
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
                    # `Look` reports a missing topic.
                    self._refuse(failed)

    def _refuse(self, error: KafkaError) -> None:
        if not client.transient(error):
            of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            named = f"topic {self._topic!r}" if of_topic else f"consumer group {self._group!r}"
            raise client.translate(error, named)


class Look:
    """A watch that checks at intervals whether a topic is still the same, for the waiting
    thread."""

    def __init__(self, settings: Settings, topic: str, known: Found) -> None:
        self._admin = client.admin(settings)
        self._contact = client.contact(settings)
        self._topic, self._known = topic, known
        self._at = time.monotonic()
        self._suspected: Found | None = None

    @property
    def total(self) -> int:
        """Return the number of partitions. Any thread may call it."""
        return self._known.partitions

    def now_and_then(self) -> None:
        """Raise SetupError when two checks in a row find that the topic has lost data."""
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
        """Return the present topic; None when no broker answers."""
        try:
            found = topics.look(self._admin, self._topic, _ANSWER)
        except KafkaException as error:
            if client.transient(error.args[0]):
                return None
            raise
        self._contact.heard()
        return found

    def _accept(self, found: Found) -> None:
        """Accept new partitions, and refuse any other change of the topic."""
        if not found.partitions:
            raise client.missing(f"topic {self._topic!r}")
        if found.id != self._known.id or found.partitions < self._known.partitions:
            raise made_anew(self._topic)
        self._known = found
