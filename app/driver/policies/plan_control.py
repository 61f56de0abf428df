"""The way of policies to the plan of a running flow: they write commands to the control topic.

Guarantees that a proposal takes the way of any other command, so a restart continues with it and
the history of plans names the policy. Cost: one producer, once a policy has proposed something.
"""

from __future__ import annotations

from uuid import uuid4

from pydantic import ValidationError

from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.record_producer import RecordProducer, ignore_delivery
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.execution_plan.document import document_of
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.schemas.control import MAX_COMMAND, MAX_ID, MAX_REASON, ApplyPlan
from meander.schemas.execution_plan import PlanDocument
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
        return self._rescaler.plans.in_force

    def submit(self, plan: ExecutionPlan, by: str, why: str) -> str:
        """Write the command for a plan; return its id. Raises PlanError for a plan that no command
        can hold."""
        id = f"policy-{uuid4().hex[:8]}"
        data = command_for(self.current(), plan, id, by, why)
        if self._producer is None:
            self._producer = RecordProducer(self._settings, self._topic)
        self._producer.send(data, None, ignore_delivery, [])
        return id

    def pump(self) -> None:
        """Send waiting commands. Raise the broker's refusal."""
        if self._producer is not None:
            self._producer.pump()

    def close(self) -> None:
        """Release connections."""
        if self._producer is not None:
            self._producer.close()


def command_for(before: ExecutionPlan, plan: ExecutionPlan, id: str, by: str, why: str) -> bytes:
    """Return the command that leads from one plan to another. It names only what differs, so it
    takes back nothing that another command changes meanwhile.

    Raises PlanError where no command can hold the plan.

    >>> import json
    >>> from meander.dataflow.control.logic_change import LogicVersion
    >>> from meander.dataflow.control.resources import ANYWHERE
    >>> from meander.state.keys.ids import WorkerId
    >>> one = ExecutionPlan({WorkerId(0): ANYWHERE}, {"a": LogicVersion("A")}, {"": (WorkerId(0),)})
    >>> json.loads(command_for(one, one.with_logic("a", "B"), "p", "me", ""))["plan"]["bins"]
    """
    try:
        command = ApplyPlan(
            type="apply_plan", id=id, plan=_changed(document_of(before), document_of(plan)),
            by=by[:MAX_ID], why=why[:MAX_REASON],
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PlanError("the proposal", f"{where}: {first['msg']}", "correct the policy") from None
    data = command.model_dump_json().encode()
    if len(data) > MAX_COMMAND:
        raise PlanError(
            "the proposal", f"its command takes {len(data):,} bytes, and may take {MAX_COMMAND:,}",
            "change less at once",
        )  # fmt: skip
    return data


def _changed(before: PlanDocument, after: PlanDocument) -> PlanDocument:
    """Return the sections in which two documents differ; with other workers, those of all that
    they own."""
    its, others = before.sections, after.sections
    sections = {name: one for name, one in others.items() if one != its.get(name)}
    if "workers" in sections:
        sections = {name: one for name, one in others.items() if name != "operators"} | sections
    if "operators" in sections:
        known = before.operators or {}
        sections["operators"] = {
            name: one.model_dump()
            for name, one in (after.operators or {}).items()
            if one != known.get(name)
        }
    return PlanDocument.model_validate(sections)


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
