"""Claim a flow for a driver, and choose the first execution id of the claim.

Guarantees that each execution id of a later claim exceeds all ids of an earlier claim, whatever
the clocks of the hosts say. A claim that holds reads all earlier ids, and a driver increments its
own id by one. A reader of the decision log therefore recognizes a late start by its id
(`dataflow.exactly_once.commit_history`). Cost: one read of the decision log for each claim.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec import structs

from meander.app.common.clock import SystemClock
from meander.app.loading.preflight import PreparedFlow
from meander.app.recovery.restart import read_decisions
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics.internal_topics import TopicNames
from meander.connectors.topics.status import Holder, StatusReader, StatusTopic
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Claimed, Failed, Finished, Heartbeat, Recovering, Started
from meander.state.keys.ids import ExecutionId

log = LineLogger(__name__)

ID_GAP = 2
"""The distance of a claim's first execution id from all ids on the topics.

A driver checks its claim before each execution, so at most one of its ids is on no topic yet."""
Waiting = Callable[[float], None]
"""A function of the seconds for which a driver still waits for the lease of another."""
POLL = 0.5
"""Seconds between two polls of a flow that another driver runs."""


def claim(
    prepared: PreparedFlow, status: StatusTopic, waiting: Waiting = lambda _: None
) -> PreparedFlow:
    """Claim a prepared flow; return it with the first execution id of the claim.

    Raises SetupError while another driver runs it.
    """
    options = prepared.options
    claimed = Claimed(
        driver=prepared.driver,
        execution=prepared.execution,
        heartbeat_timeout=options.heartbeat_timeout,
    )
    execution = claim_for(
        options.kafka, prepared.names, status, prepared.flow, claimed, options.wait, waiting
    )
    return prepared.with_execution(execution)


def claim_for(
    settings: Settings, names: TopicNames, status: StatusTopic, flow: str, claimed: Claimed,
    wait: bool | None = None, waiting: Waiting = lambda _: None,
) -> ExecutionId:  # fmt: skip
    """Write a claim of a flow; return the execution id with which its driver starts.

    With `wait`, wait for the end of another driver's lease; None means that there is no such
    option. `waiting` is called twice a second meanwhile. Raises SetupError while another driver
    runs the flow.
    """
    holder = status.claim(flow, claimed)
    if wait and holder.driver != claimed.driver:
        holder = _await(status, flow, claimed, holder, waiting)
    if holder.driver != claimed.driver:
        age = (SystemClock().now_ms() - holder.millis) / 1000
        option = " or give --wait" if wait is False else ""
        raise SetupError(
            f"flow {flow!r}",
            f"a driver runs it (its last heartbeat came {max(age, 0):.1f} s ago)",
            f"stop that one; if it is dead, wait {holder.heartbeat_timeout:g} s{option}",
        )
    return _first_execution(settings, names, status, flow, claimed)


def expect_ours(prepared: PreparedFlow, status: StatusTopic) -> None:
    """Raise SetupError where another driver has claimed the flow meanwhile."""
    holder = status.holder(prepared.flow)
    if holder is not None and holder.driver != prepared.driver:
        raise SetupError(
            f"flow {prepared.flow!r}",
            "another driver has taken it, because this driver was silent for longer than its"
            " heartbeat timeout",
            "check this machine and its connection to Kafka, or set a longer --heartbeat-timeout",
        )


def _await(
    status: StatusTopic, flow: str, claimed: Claimed, holder: Holder, waiting: Waiting
) -> Holder:
    """Claim a flow repeatedly until the lease of its driver ends; return the holder."""
    deadline = time.monotonic() + holder.heartbeat_timeout
    until = datetime.now(UTC) + timedelta(seconds=holder.heartbeat_timeout)
    log.info(
        "claim_deferred",
        flow=flow,
        until=until.strftime("%H:%M:%S"),
        reason="another driver holds the flow, or ended within its heartbeat timeout",
    )
    left = holder.heartbeat_timeout
    while left > 0 and holder.driver != claimed.driver:
        waiting(left)
        time.sleep(POLL)
        left = deadline - time.monotonic()
        found = status.holder(flow)
        # A wrong clock here only makes a claim too early, and that claim fails.
        over = (
            found is None or SystemClock().now_ms() - found.millis >= 1000 * found.heartbeat_timeout
        )
        if over or left <= 0:
            holder = status.claim(flow, claimed)
    return holder


def _first_execution(
    settings: Settings, names: TopicNames, status: StatusTopic, flow: str, claimed: Claimed
) -> ExecutionId:
    """Return an execution id beyond those of all drivers that ran the flow before."""
    with contextlib.closing(StatusReader(settings, names.status, flow)) as reader:
        reported = [
            event.execution
            for event in (one.event for one in reader.recent())
            if isinstance(event, Claimed | Heartbeat | Started | Recovering | Finished | Failed)
            and event.driver != claimed.driver
        ]
    started = [execution for execution, _ in read_decisions(settings, names.decisions)]
    least = max([*reported, *started], default=0) + ID_GAP
    if claimed.execution >= least:
        return ExecutionId(claimed.execution)
    # The next driver must see this id, even if this driver dies now.
    status.write(structs.replace(claimed, execution=least))
    status.flush(client.REQUEST_TIMEOUT)
    return ExecutionId(least)
