"""Topics that come while a flow runs, and that match the pattern of a source.

A new source would change the graph of a running flow, so a topic waits for the next start.
Guarantees one warning for each such topic in an execution. Nothing here blocks: a thread asks the
broker. Cost: a request for the names of all topics per `INTERVAL`, and nothing without a pattern.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from confluent_kafka import KafkaException

from meander.app.loading.plan_topics import present_topics
from meander.connectors.kafka import client
from meander.connectors.kafka.inquiry import Inquiry
from meander.dataflow.api.expansion import SEPARATOR, composites, part_names
from meander.dataflow.api.nodes import Node
from meander.dataflow.api.plan import Plan
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)

INTERVAL = 10.0
"""The seconds from one look at the topics of the cluster to the next."""


def unread(nodes: Iterable[Node], sources: Collection[str], topics: Iterable[str]) -> list[str]:
    """Return the names of the sources that a flow would have at its next start, and does not have
    among its `sources`. `topics` are those of the cluster."""
    return [name for name in part_names(nodes, sorted(topics)) if name not in sources]


class NewTopics:
    """The new topics of the patterns of one flow, for the thread of the driver."""

    def __init__(self, settings: client.Settings, plan: Plan) -> None:
        self._nodes, self._settings = plan.flow.nodes, settings
        self._has_patterns = any(spec.pattern for spec in composites(self._nodes).values())
        self._known = {source.name for source in plan.sources}
        """The sources that are read, or that a warning has named."""
        self._inquiry = Inquiry[list[str]]("new topics")
        self._admin: client.Admin | None = None
        self._at = time.monotonic()

    def look(self) -> None:
        """Warn of new topics where an answer has arrived, and ask again where it is time."""
        if (answer := self._inquiry.take()) is not None:
            self._take(answer)
        due = self._has_patterns and time.monotonic() - self._at >= INTERVAL
        if due and not self._inquiry.running:
            self._at = time.monotonic()
            self._inquiry.ask(self._ask)

    def _ask(self) -> list[str]:
        if self._admin is None:
            self._admin = client.admin(self._settings)
        return present_topics(self._admin)

    def _take(self, answer: Future[list[str]]) -> None:
        try:
            topics = answer.result()
        except (KafkaException, MeanderError):
            # The readers report a broker that is away.
            return
        for name in unread(self._nodes, self._known, topics):
            source, _, topic = name.rpartition(SEPARATOR)
            log.warning(
                "topic_not_read", source=source, topic=topic,
                remedy="stop the flow, and run it again: it then reads the topic from its start",
            )  # fmt: skip
            self._known.add(name)
