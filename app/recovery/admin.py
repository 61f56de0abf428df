"""Operations on a stopped flow: drop a savepoint, or reset the flow.

Guarantees that no driver runs the flow meanwhile, because each operation claims the flow. A
savepoint leaves the checkpoint index before any of its records is deleted. Topics of users are
never touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import uuid4

from meander.app.common.clock import SystemClock
from meander.app.recovery.checkpoint_index import CheckpointIndex, retained_checkpoints
from meander.app.recovery.claiming import claim_for
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import fence, read_decisions, used_worker_ids
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics import checkpoints
from meander.connectors.topics.checkpoints import CheckpointUnreadable
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.internal_topics import (
    TopicNames,
    delete,
    ensure_internal,
    expect_started,
)
from meander.connectors.topics.status import StatusTopic
from meander.dataflow.control.decisions import DropDecision
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Claimed, Finished
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

HEARTBEAT_TIMEOUT = 60.0
"""Seconds after which the claim of a failed operation ends. An operation sends no heartbeats."""


@contextlib.contextmanager
def _claimed(
    settings: Settings, names: TopicNames, prefix: str, flow: str
) -> Iterator[ExecutionId]:
    """Claim a flow while the block lasts. Raises SetupError while a driver runs it."""
    admin = client.admin(settings)
    expect_started(admin, names.control, flow)
    # A claim reads the decision log, which an interrupted reset may have deleted.
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
            status.flush(client.REQUEST_TIMEOUT)


def expect_stopped(settings: Settings, names: TopicNames, prefix: str, flow: str) -> None:
    """Raise SetupError while a driver runs a flow, or where no flow has that name."""
    with _claimed(settings, names, prefix, flow):
        pass


def drop(settings: Settings, names: TopicNames, prefix: str, flow: str, savepoint: str) -> None:
    """Drop a savepoint, and delete the records that it alone names.

    No record is deleted where a checkpoint that may share it cannot be read. Raises SetupError
    while a driver runs the flow, or where it has no such savepoint.
    """
    with _claimed(settings, names, prefix, flow) as execution:
        index = CheckpointIndex.of(read_decisions(settings, names.decisions))
        if savepoint not in index.savepoints:
            listed = ", ".join(index.savepoints) or "none"
            raise SetupError(
                f"savepoint {savepoint!r}", "the flow has none of that name",
                f"name one of its savepoints: {listed}",
            )  # fmt: skip
        with checkpoints.open_checkpoints(settings, names) as reader:
            dropped = reader.read(index.savepoints[savepoint])
        with contextlib.closing(DecisionTopic(settings, names.decisions)) as decisions:
            decisions.write(to_bytes(execution, DropDecision(savepoint)))
        index = CheckpointIndex.of(read_decisions(settings, names.decisions))
        with checkpoints.open_checkpoints(settings, names) as reader:
            left = retained_checkpoints(reader, index)
        if isinstance(dropped, CheckpointUnreadable) or left.unreadable:
            log.warning(
                "savepoint_records_retained",
                savepoint=savepoint,
                reason="a checkpoint that may share them is unreadable",
            )
            return
        others = left.found.values()
        chunks = {location for one in others for location in one.chunks}
        in_flight = {location for one in others for location in one.locations}
        orphans = [location for location in dropped.chunks if location not in chunks]
        checkpoints.delete_records(settings, names.state, orphans)
        orphans = [location for location in dropped.locations if location not in in_flight]
        checkpoints.delete_records(settings, names.in_flight, orphans)


def reset_topics(names: TopicNames) -> list[str]:
    """Return the topics that a reset deletes, in this order.

    Without its checkpoints a flow does not start while its decision log exists, and without its
    decision log it starts from scratch.
    """
    return [names.checkpoints, names.decisions, names.commit_markers, names.state, names.in_flight]


def reset(settings: Settings, names: TopicNames, prefix: str, flow: str) -> None:
    """Delete the topics of a flow, so that its next run starts from scratch.

    Raises SetupError while a driver runs the flow.
    """
    with _claimed(settings, names, prefix, flow):
        admin = client.admin(settings)
        # Without the decision log it is unknown which workers may still commit.
        fence(settings, prefix, flow, used_worker_ids(read_decisions(settings, names.decisions)))
        delete(admin, reset_topics(names))
        ensure_internal(admin, prefix, flow)
