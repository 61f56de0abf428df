"""What is done to a flow that does not run: savepoints dropped, or all of it forgotten.

Guarantees that no driver has the flow meanwhile, by a claim as a driver's own, and that a savepoint
is known no more before anything goes that it names. Users' topics are never touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import uuid4

from meander.app.common.clock import SystemClock
from meander.app.recovery.checkpoint_index import Known, kept
from meander.app.recovery.claiming import claim_for
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import fence, journal, registered
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import checkpoints
from meander.connectors.topics.checkpoints import CheckpointUnreadable
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.status import StatusTopic
from meander.connectors.topics.topics import Names, delete, ensure_internal, expect_ran
from meander.dataflow.control.decisions import Drops
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Claimed, Finished
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

HEARTBEAT_TIMEOUT = 60.0
"""Seconds after which whoever died at this has the flow no longer: there are no heartbeats."""


@contextlib.contextmanager
def _alone(settings: Settings, names: Names, prefix: str, flow: str) -> Iterator[ExecutionId]:
    """Have a flow while the block lasts. Raises SetupError while a driver has it."""
    admin = client.admin(settings)
    expect_ran(admin, names.control, flow)
    # A claim reads the journal, which a reset that ended half-way has deleted.
    ensure_internal(admin, prefix, flow)
    driver = uuid4().hex[:12]
    claimed = Claimed(
        driver=driver, execution=SystemClock().now_ms(), heartbeat_timeout=HEARTBEAT_TIMEOUT
    )
    with contextlib.closing(StatusTopic(settings, names.status)) as status:
        execution = claim_for(settings, names, status, flow, claimed)
        try:
            yield execution
        finally:
            status.write(Finished(driver=driver, execution=execution, counters={}))
            status.flush(client.ANSWER)


def expect_alone(settings: Settings, names: Names, prefix: str, flow: str) -> None:
    """Raises SetupError while a driver has a flow, or where there is none of that name."""
    with _alone(settings, names, prefix, flow):
        pass


def drop(settings: Settings, names: Names, prefix: str, flow: str, savepoint: str) -> None:
    """Keep a savepoint no longer; what only it names leaves its topics, where it is known what it
    and all others name. Raises SetupError."""
    with _alone(settings, names, prefix, flow) as execution:
        known = Known.by(journal(settings, names.decisions))
        if savepoint not in known.savepoints:
            there = ", ".join(known.savepoints) or "none"
            raise SetupError(
                f"savepoint {savepoint!r}", "the flow has none of that name",
                f"name one that it has: {there}",
            )  # fmt: skip
        with checkpoints.reading(settings, names) as reader:
            dropped = reader.read(known.savepoints[savepoint])
        with contextlib.closing(DecisionTopic(settings, names.decisions)) as decisions:
            decisions.write(to_bytes(execution, Drops(savepoint)))
        now = Known.by(journal(settings, names.decisions))
        with checkpoints.reading(settings, names) as reader:
            left = kept(reader, now)
        if isinstance(dropped, CheckpointUnreadable) or left.unreadable:
            log.warning(
                "savepoint_records_retained",
                savepoint=savepoint,
                reason="a checkpoint that may share them is unreadable",
            )
            return
        others = left.found.values()
        layers = {place for one in others for place in one.chunks}
        flying = {place for one in others for place in one.places}
        gone = [place for place in dropped.chunks if place not in layers]
        checkpoints.tombstone(settings, names.state, gone)
        gone = [place for place in dropped.places if place not in flying]
        checkpoints.tombstone(settings, names.in_flight, gone)


def forgotten(names: Names) -> list[str]:
    """The topics that go when a flow is to begin anew, in this order: without its checkpoints it
    does not start as long as there is its journal, and without that from nothing."""
    return [names.checkpoints, names.decisions, names.marks, names.state, names.in_flight]


def reset(settings: Settings, names: Names, prefix: str, flow: str) -> None:
    """Have a flow begin anew at its next run. Raises SetupError while a driver has it."""
    with _alone(settings, names, prefix, flow):
        admin = client.admin(settings)
        # Nobody would know afterwards who may still commit.
        fence(settings, prefix, flow, registered(journal(settings, names.decisions)))
        delete(admin, forgotten(names))
        ensure_internal(admin, prefix, flow)
