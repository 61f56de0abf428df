"""A driver's claim of a flow, and the executions that follow from it.

Guarantees that every execution of a later claim has a greater id than each of an earlier
claim, whatever the hosts' clocks say: a claim reads all earlier ids once it holds, and
a driver counts its own up one by one. So a reader of the journal tells a late beginning by its
execution (`dataflow.exactly_once.commit_history`). Cost: one read of the journal per claim.
"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta

from msgspec import structs

from meander.app.common.clock import SystemClock
from meander.app.flow.preflight import PreparedFlow
from meander.app.recovery.restart import journal
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics.status import Holder, StatusReader, StatusTopic
from meander.connectors.topics.topics import Names
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Claimed, Failed, Finished, Heartbeat, Recovering, Started
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

BEYOND = 2
"""How far the first execution of a claim lies beyond all that a topic tells of. A driver looks at
its claim before each execution, so it begins at most one that no topic tells of yet."""
LOOK = 0.5
"""Seconds between two looks at a flow that another driver has."""


def claim(prepared: PreparedFlow, status: StatusTopic) -> PreparedFlow:
    """Take a flow, once all stands that can be seen to without; return it with the execution of
    the claim. Raises SetupError while another driver has it."""
    options = prepared.options
    claimed = Claimed(
        driver=prepared.driver,
        execution=prepared.execution,
        heartbeat_timeout=options.heartbeat_timeout,
    )
    execution = claim_for(
        options.kafka, prepared.names, status, prepared.flow, claimed, options.wait
    )
    return prepared.under(execution)


def claim_for(
    settings: Settings, names: Names, status: StatusTopic, flow: str, claimed: Claimed,
    wait: bool | None = None,
) -> ExecutionId:  # fmt: skip
    """Take a flow by a claim; return the execution that the driver begins with.

    With `wait`, wait for the end of another driver's lease; None means that there is no such
    option. Raises SetupError while another driver has the flow.
    """
    holder = status.claim(flow, claimed)
    if wait and holder.driver != claimed.driver:
        holder = _await(status, flow, claimed, holder)
    if holder.driver != claimed.driver:
        age = (SystemClock().now_ms() - holder.millis) / 1000
        option = " or give --wait" if wait is False else ""
        raise SetupError(
            f"flow {flow!r}",
            f"a driver runs it (its last heartbeat came {max(age, 0):.1f} s ago)",
            f"stop that one; if it is dead, wait {holder.heartbeat_timeout:g} s{option}",
        )
    return _execution(settings, names, status, flow, claimed)


def expect_ours(prepared: PreparedFlow, status: StatusTopic) -> None:
    """Raises SetupError where another driver has taken the flow meanwhile."""
    holder = status.holder(prepared.flow)
    if holder is not None and holder.driver != prepared.driver:
        raise SetupError(
            f"flow {prepared.flow!r}",
            "another driver has taken it, as this one was silent for longer than its heartbeat"
            " timeout",
            "see what held this one up, its machine or its way to Kafka; a longer"
            " --heartbeat-timeout waits for that",
        )


def _await(status: StatusTopic, flow: str, claimed: Claimed, holder: Holder) -> Holder:
    """Claim a flow again and again until the lease of its driver is over; return its driver."""
    deadline = time.monotonic() + holder.heartbeat_timeout
    until = datetime.now(UTC) + timedelta(seconds=holder.heartbeat_timeout)
    log.info(
        "claim_deferred",
        flow=flow,
        until=until.strftime("%H:%M:%S"),
        reason="another driver holds the flow, or ended within its heartbeat timeout",
    )
    waiting = True
    while waiting and holder.driver != claimed.driver:
        time.sleep(LOOK)
        waiting = time.monotonic() < deadline
        found = status.holder(flow)
        # By the clock here: where that is wrong, a claim comes too early and is in vain.
        over = (
            found is None or SystemClock().now_ms() - found.millis >= 1000 * found.heartbeat_timeout
        )
        if over or not waiting:
            holder = status.claim(flow, claimed)
    return holder


def _execution(
    settings: Settings, names: Names, status: StatusTopic, flow: str, claimed: Claimed
) -> ExecutionId:
    """Return an execution beyond those of all drivers that had the flow before."""
    with contextlib.closing(StatusReader(settings, names.status, flow)) as reader:
        told = [
            event.execution
            for event in (one.event for one in reader.recent())
            if isinstance(event, Claimed | Heartbeat | Started | Recovering | Finished | Failed)
            and event.driver != claimed.driver
        ]
    begun = [life for life, _ in journal(settings, names.decisions)]
    least = max([*told, *begun], default=0) + BEYOND
    if claimed.execution >= least:
        return ExecutionId(claimed.execution)
    # The next driver has to know of it, even if this one dies now.
    status.write(structs.replace(claimed, execution=least))
    status.flush(client.ANSWER)
    return ExecutionId(least)
