"""The plan recorder: it writes every plan that is applied, with who, when, why and outcome.

Guarantees a record when a plan starts and when it ends, also where another execution ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from meander.connectors.topics.plans import PlansTopic
from meander.dataflow.interfaces import Clock
from meander.schemas.plan_record import Outcome, PlanRecord
from meander.schemas.status import (
    Aborted,
    CommandRejected,
    Event,
    Reconfigured,
    Reconfiguring,
    RolledBack,
)


class PlanRecorder:
    """A writer of plans from the events of their commands."""

    def __init__(self, topic: PlansTopic, known: Mapping[str, PlanRecord], clock: Clock) -> None:
        """`known` are the plans of earlier executions."""
        self._topic, self._clock = topic, clock
        self._started = {id: one for id, one in known.items() if one.outcome == "started"}
        self._offsets: dict[str, int] = {}
        """The offsets of the commands that this execution has started, by id."""

    def note(self, event: Event) -> None:
        """Note an event that starts or ends a plan."""
        match event:
            case Reconfiguring(id, offset, by, why, operations):
                self._offsets[id] = offset
                record = PlanRecord(id, by, why, self._clock.now_ms(), operations)
                self._started[id] = record
                self._topic.write(record)
            case Reconfigured(id=id, offset=offset, ms=ms):
                self._end(id, offset, "in force", "", ms)
            case (
                RolledBack(id=id, offset=offset, reason=reason)
                | Aborted(id=id, offset=offset, reason=reason)
            ):
                self._end(id, offset, "rolled back", reason)
            case CommandRejected(id=id, offset=offset, reason=reason):
                self._end(id, offset, "rejected", reason)

    def _end(
        self, id: str, offset: int | None, outcome: Outcome, reason: str, ms: float | None = None
    ) -> None:
        # A user may have given another command the same id by mistake.
        if offset is not None and self._offsets.get(id, offset) != offset:
            return
        if (record := self._started.pop(id, None)) is not None:
            self._topic.write(replace(record, outcome=outcome, reason=reason, ms=ms))
