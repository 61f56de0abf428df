"""The places of dead letters that lie in a list, as tests and notebooks read them.

Guarantees that such a dead letter names its topic, or the name of its partition in a source beside
Kafka, as one on the dead-letter topic does. That of an unreadable record has its key and bytes.
Cost: nothing for other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meander.connectors.custom.source import partition_names
from meander.connectors.kafka.dead_letter import MalformedRecord, origins_of
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import DeadLetter


def placed_in(plan: Plan) -> Callable[[DeadLetter, int], DeadLetter]:
    """Return what adds its place to a dead letter, given the number of the record's origin."""
    origins = origins_of(plan, {}, partition_names(plan.sources, {}))

    def placed(letter: DeadLetter, number: int) -> DeadLetter:
        record = letter.value
        if isinstance(record, MalformedRecord):
            return replace(
                letter, value=record.value, key=record.key, topic=record.topic,
                partition_name=record.partition_name,
            )  # fmt: skip
        origin = origins[number]
        name = origin.partition_name(letter.partition) if origin.is_source else ""
        return replace(letter, topic=origin.topic or "", partition_name=name)

    return placed
