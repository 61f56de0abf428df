"""The places of dead letters that lie in a list, as tests and notebooks read them.

Guarantees that such a dead letter names its topic, or the name of its partition in a source beside
Kafka, as one on the dead-letter topic does. In a `TestFlow` it also carries its record. That of an
unreadable record has its key and bytes. Cost: nothing for other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meander.connectors.custom.source import partition_names
from meander.connectors.kafka.dead_letter import MalformedRecord
from meander.connectors.kafka.origins import origins_of
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import DeadLetter
from meander.schemas.dead_letter import OriginalRecord

FindOriginal = Callable[[str, int, int], OriginalRecord | None]
"""Finds the record of a topic, a partition and an offset."""


def _no_original(_: str, __: int, ___: int) -> None:
    """Find no record: a run in this process reads records again at its end, all at once."""


def placed_in(
    plan: Plan, find: FindOriginal = _no_original
) -> Callable[[DeadLetter, int], DeadLetter]:
    """Return what adds its place, and the record that `find` finds there, to a dead letter, given
    the number of the record's origin."""
    origins = origins_of(plan, {}, partition_names(plan.sources, {}))

    def placed(letter: DeadLetter, number: int) -> DeadLetter:
        record = letter.value
        if isinstance(record, MalformedRecord):
            topic, name = record.topic, record.partition_name
            letter = replace(letter, value=record.value, key=record.key)
        else:
            origin = origins[number]
            topic = origin.topic or ""
            name = origin.partition_name(letter.partition) if origin.is_source else ""
        original = find(topic, letter.partition, letter.offset) if topic else None
        return replace(letter, topic=topic, partition_name=name, original=original)

    return placed
