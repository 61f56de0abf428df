"""The plans topic of a flow: every plan that was applied, with its outcome.

Guarantees that a reader gets the last record of each plan, in the order in which they started.
"""

from __future__ import annotations

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.connectors.topics.full_read import read_all
from meander.schemas.errors import MeanderError
from meander.schemas.plan_record import PlanRecord


class PlansTopic:
    """A writer of one flow's plans topic."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._producer = RecordProducer(settings, topic)

    def write(self, record: PlanRecord) -> None:
        """Append a record without blocking."""
        self._producer.send(record.to_bytes(), record.id.encode(), ignore_delivery, [])

    def pump(self) -> None:
        """Send waiting records. Raise the broker's refusal."""
        self._producer.pump()

    def flush(self, seconds: float) -> None:
        """Wait until all records are written. Raise MeanderError after `seconds`."""
        self._producer.flush(seconds)

    def close(self) -> None:
        """Drop unsent records and release connections."""
        self._producer.close()


def read_plans(settings: Settings, topic: str) -> dict[str, PlanRecord]:
    """Return the last record of each plan, by id. Raises MeanderError for other records."""
    found = dict[str, PlanRecord]()
    for data in read_all(settings, topic):
        try:
            record = PlanRecord.from_bytes(data)
        except ValueError as error:
            raise MeanderError(
                f"topic {topic!r}", f"one of its records is no plan: {data[:100]!r}",
                "read it with the release that wrote it",
            ) from error  # fmt: skip
        found[record.id] = record
    return found
