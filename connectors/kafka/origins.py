"""The origins of records, by which a dead letter names what has failed.

Guarantees that a record of Kafka is named with the id of its topic, and one of another source with
its partition and position there. Cost: one object per operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meander.connectors.kafka.sink.producer import Headers
from meander.dataflow.records.batch import Batch
from meander.schemas import dead_letter
from meander.schemas.dead_letter import RecordPlace

if TYPE_CHECKING:
    from meander.dataflow.api.plan import Plan

PartitionName = Callable[[int], str]
"""Gives the name of a partition of a source beside Kafka, by its number; '' where none is known."""


def _unnamed(_: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """An origin of records: a topic that a source reads, or an operator with timers or changes."""

    name: str
    topic: str | None = None
    topic_id: str = ""
    """The id of the topic, or ''."""
    is_source: bool = False
    """Whether it is a source beside Kafka."""
    partition_name: PartitionName = _unnamed

    def headers(self, batch: Batch, row: int) -> Headers:
        """Return the headers that name the record of a row."""
        if self.topic is None and self.is_source:
            return [(dead_letter.KIND, "record"), *self._place(batch, row)]
        if self.topic is None:
            kind = "notification" if batch.offsets[row] else "timer"
            return [
                (dead_letter.KIND, kind if batch.keys is not None else "change"),
                (dead_letter.ORIGIN, self.name),
            ]
        place = [
            (dead_letter.KIND, "record"),
            (dead_letter.TOPIC, self.topic),
            (dead_letter.PARTITION, str(batch.partitions[row])),
            (dead_letter.OFFSET, str(batch.offsets[row])),
        ]
        return [*place, (dead_letter.TOPIC_ID, self.topic_id)] if self.topic_id else [*place]

    def place(self, batch: Batch, row: int) -> RecordPlace | None:
        """Return where the record of a row lies on Kafka, if it does."""
        if self.topic is None:
            return None
        partition, offset = int(batch.partitions[row]), int(batch.offsets[row])
        return RecordPlace(self.topic, self.topic_id, partition, offset)

    def _place(self, batch: Batch, row: int) -> Headers:
        return place_headers(self.name, self.partition_name(int(batch.partitions[row])), batch, row)


def place_headers(source: str, partition_name: str, batch: Batch, row: int) -> Headers:
    """Return the headers that name the place of a record of a source beside Kafka."""
    return [
        (dead_letter.ORIGIN, source),
        (dead_letter.PARTITION, str(batch.partitions[row])),
        *([(dead_letter.PARTITION_NAME, header_text(partition_name))] if partition_name else []),
        (dead_letter.OFFSET, str(batch.offsets[row])),
    ]


Origins = Mapping[int, Origin]
"""The origins of the records of a flow, by number."""
NO_ORIGINS: Origins = {}
"""The origins of a flow that names none."""
UNNAMED: Mapping[str, PartitionName] = {}
"""The names of a flow without sources beside Kafka."""


def origins_of(
    plan: Plan, ids: Mapping[str, str], names: Mapping[str, PartitionName] = UNNAMED
) -> Origins:
    """Return the origins of a flow. `ids` holds the ids of the topics that it reads, and `names`
    names the partitions of its sources beside Kafka, by source."""
    topics = {source.name: getattr(source.spec, "topic", None) for source in plan.sources}
    return {
        number: Origin(
            name,
            topic,
            ids.get(topic or "", ""),
            name in topics and topic is None,
            names.get(name, _unnamed),
        )
        for number, name in enumerate(plan.origins)
        for topic in (topics.get(name),)
    }


def header_text(text: str) -> bytes:
    """Encode text as a header, including text that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")
