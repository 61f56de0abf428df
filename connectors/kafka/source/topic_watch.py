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

from meander.connectors.kafka import client, topic_metadata
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.topic_ids import deleted, recreated
from meander.connectors.kafka.topic_metadata import TopicInfo

COMMIT_INTERVAL = 1.0
"""The seconds between two commits."""
CHECK_INTERVAL = 5.0
"""The seconds between two checks of the topic (one second while no broker answers)."""
_CHECK_TIMEOUT = 2.0
"""The seconds that a check waits for an answer."""
_CLOSE_TIMEOUT = 1.0
"""The seconds that `close` waits for the last commit."""

Offsets = dict[int, int]
"""The offset of each partition before which all records have passed."""


class OffsetCommits:
    """Commits that show a group's progress to lag tools, for the worker's thread."""

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self._consumer = client.consumer(settings, group, on_commit=self._on_commit)
        self._topic, self._group = topic, group
        self._at = time.monotonic()
        self._committed: Offsets = {}
        self._sent: Offsets = {}
        self._answers: list[tuple[KafkaError | None, Sequence[TopicPartition]]] = []

    def due(self) -> bool:
        """Return whether the next commit is due."""
        now = time.monotonic()
        if now - self._at < COMMIT_INTERVAL:
            return False
        self._at = now
        return True

    def commit(self, offsets: Offsets) -> None:
        """Start a commit, unless one is in flight. Raise SetupError if the broker refuses the
        group."""
        self._process_answers()
        moved = {p: o for p, o in offsets.items() if o > self._committed.get(p, -1)}
        if moved and not self._sent:
            positions = [TopicPartition(self._topic, p, o) for p, o in moved.items()]
            self._consumer.commit(offsets=positions, asynchronous=True)
            self._sent = moved

    def close(self, offsets: Offsets) -> None:
        """Commit for the last time; stop after a second."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT
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

    def _on_commit(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        self._answers.append((error, positions))

    def _process_answers(self) -> None:
        self._consumer.poll(0)
        answers, self._answers = self._answers, []
        for error, positions in answers:
            sent, self._sent = self._sent, {}
            for position in positions:
                failed = error or position.error
                if failed is None:
                    self._committed[position.partition] = sent[position.partition]
                elif not client.is_missing(failed):
                    # `TopicWatch` reports a missing topic.
                    self._raise_permanent(failed)

    def _raise_permanent(self, error: KafkaError) -> None:
        if not client.is_transient(error):
            of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            named = f"topic {self._topic!r}" if of_topic else f"consumer group {self._group!r}"
            raise client.translate(error, named)


class TopicWatch:
    """A watch that checks at intervals whether a topic is still the same, for the waiting
    thread."""

    def __init__(self, settings: Settings, topic: str, known: TopicInfo) -> None:
        self._admin = client.admin(settings)
        self._contact = client.contact(settings)
        self._topic, self._known = topic, known
        self._at = time.monotonic()
        self._suspected: TopicInfo | None = None

    @property
    def total(self) -> int:
        """Return the number of partitions. Any thread may call it."""
        return self._known.partitions

    def check_if_due(self) -> None:
        """Raise SetupError when two checks in a row find that the topic has lost data."""
        soon = self._contact.lost or self._suspected is not None
        if time.monotonic() - self._at < (min(1.0, CHECK_INTERVAL) if soon else CHECK_INTERVAL):
            return
        found = self._describe()
        self._at = time.monotonic()
        # A broker that has just started may not have loaded all of its topics yet.
        if found is not None and found != self._known and found == self._suspected:
            self._accept(found)
        self._suspected = found if found != self._known else None

    def _describe(self) -> TopicInfo | None:
        """Return the present topic; None when no broker answers."""
        try:
            found = topic_metadata.describe_topic(self._admin, self._topic, _CHECK_TIMEOUT)
        except KafkaException as error:
            if client.is_transient(error.args[0]):
                return None
            raise
        self._contact.record_answer()
        return found

    def _accept(self, found: TopicInfo) -> None:
        """Accept new partitions, and refuse any other change of the topic."""
        if not found.partitions:
            raise deleted(self._topic)
        if found.id != self._known.id or found.partitions < self._known.partitions:
            raise recreated(self._topic)
        self._known = found
