"""The way of policies to the plan of a running flow: they write commands to the control topic.

Guarantees that a proposal takes the way of any other command, so a restart continues with it and
the history of plans names the policy. Cost: one producer, once a policy has proposed something.
"""

from __future__ import annotations

from uuid import uuid4

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.execution_plan.document import document_of
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.schemas.control import MAX_REASON, ApplyPlan
from meander.schemas.status import Aborted, CommandRejected, Event, Reconfigured, RolledBack


class FlowPlanControl:
    """The plan of a running flow, as policies see and change it."""

    def __init__(
        self,
        coordinator: Coordinator,
        rescaler: Rescaler,
        slots: int | None,
        settings: Settings,
        topic: str,
    ) -> None:
        """`topic` is the control topic."""
        self._coordinator, self._rescaler, self.slots = coordinator, rescaler, slots
        self._settings, self._topic = settings, topic
        self._producer: RecordProducer | None = None

    @property
    def changing(self) -> bool:
        """Whether a command is under way or queued that changes the plan, or workers start."""
        coordinator = self._coordinator
        still = (
            coordinator.migrations.idle
            and coordinator.logics.idle
            and coordinator.reconfigurations.idle
            and not coordinator.workers.leaving
            and not coordinator.assignment.changing
        )
        # No plan can change once all times are closed.
        return not (still and self._rescaler.idle) or coordinator.closed_before is None

    def current(self) -> ExecutionPlan:
        """Return the plan that the flow has now."""
        return self._rescaler.plan

    def submit(self, plan: ExecutionPlan, by: str, why: str) -> str:
        """Write the command for a plan; return its id."""
        command = ApplyPlan(
            type="apply_plan", id=f"policy-{uuid4().hex[:8]}", plan=document_of(plan), by=by,
            why=why[:MAX_REASON],
        )  # fmt: skip
        if self._producer is None:
            self._producer = RecordProducer(self._settings, self._topic)
        self._producer.send(command.model_dump_json().encode(), None, ignore_delivery, [])
        return command.id

    def pump(self) -> None:
        """Send waiting commands. Raise the broker's refusal."""
        if self._producer is not None:
            self._producer.pump()

    def close(self) -> None:
        """Release connections."""
        if self._producer is not None:
            self._producer.close()


def outcome(event: Event) -> tuple[str, str] | None:
    """Return the id of a plan that an event ends, and the reason where it has failed; None for
    other events.

    >>> outcome(RolledBack(id="p", offset=3, reason="no slot")), outcome(Reconfigured("p", 3, 2, 9))
    (('p', 'no slot'), ('p', ''))
    """
    match event:
        case Reconfigured(id=id):
            return id, ""
        case (
            RolledBack(id=id, reason=reason)
            | CommandRejected(id=id, reason=reason)
            | Aborted(id=id, reason=reason)
        ):
            return id, reason
    return None
