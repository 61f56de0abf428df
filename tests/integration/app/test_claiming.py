"""A driver's claim of a flow on a real broker: who has it, with which execution, until when."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from meander.app.config.options import Options
from meander.app.loading.preflight import PreparedFlow, prepare
from meander.app.recovery.checkpoint_index import CheckpointIndex
from meander.app.recovery.claiming import ID_GAP, claim, expect_ours
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import read_decisions, start_execution
from meander.app.status.metrics import MetricsCollector
from meander.app.status.publisher import FlowStatus
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.status import StatusReader, StatusTopic
from meander.dataflow.control.decisions import JoinDecision, StartDecision
from meander.schemas.errors import SetupError
from meander.schemas.status import Claimed
from meander.state.keys.ids import ExecutionId, WorkerId
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import flow_folder, lines

AHEAD = 1 << 43
"""An execution of a driver whose clock is centuries ahead."""
HEARTBEAT_TIMEOUT = 1.0
PAUSE = 5.0
"""Seconds of a lease in which a heartbeat comes for certain."""


@pytest.fixture
def first(bootstrap: str, prefix: str, tmp_path: Path) -> PreparedFlow:
    """A flow as one driver prepares it."""
    lines(bootstrap, prefix, [])
    options = Options(
        {"bootstrap.servers": bootstrap}, prefix=prefix, heartbeat_timeout=HEARTBEAT_TIMEOUT
    )
    return prepare(flow_folder(tmp_path / "flow", prefix), options)


def another(prepared: PreparedFlow, **options: object) -> PreparedFlow:
    """The same flow as a later driver prepares it."""
    made = PreparedFlow(
        prepared.plan, prepared.code, prepared.options, prepared.names, prepared.topics
    )
    return replace(made, options=replace(prepared.options, **options))  # type: ignore[arg-type]


@contextmanager
def status_of(prepared: PreparedFlow) -> Iterator[StatusTopic]:
    with closing(StatusTopic(prepared.options.kafka, prepared.names.status)) as status:
        yield status


@contextmanager
def decisions_of(prepared: PreparedFlow) -> Iterator[DecisionTopic]:
    topic = prepared.names.decisions
    with closing(DecisionTopic(prepared.options.kafka, topic)) as decisions:
        yield decisions


def known(prepared: PreparedFlow) -> CheckpointIndex:
    return CheckpointIndex.of(read_decisions(prepared.options.kafka, prepared.names.decisions))


@pytest.fixture
def waiting(first: PreparedFlow) -> PreparedFlow:
    """A later driver of the flow, which waits for the first one's lease."""
    return another(first, wait=True)


def test_a_later_claim_has_greater_executions_whatever_the_clocks_say(
    first: PreparedFlow, waiting: PreparedFlow
) -> None:
    with status_of(first) as status:
        ahead = claim(first.with_execution(ExecutionId(AHEAD)), status)
        assert ahead.execution == AHEAD
        behind = claim(waiting, status)
        assert behind.execution == AHEAD + ID_GAP
        with decisions_of(first) as decisions:
            decisions.write(to_bytes(ExecutionId(2 * AHEAD), JoinDecision(WorkerId(1), 5)))
        last = claim(another(waiting), status)
        assert last.execution == 2 * AHEAD + ID_GAP, "the status topic forgets, the journal not"
        assert last.next_execution(2, {}, None).execution == last.execution + 1
        told = [e.execution for e in claims(first) if e.driver == last.driver]
        assert told[-1] == last.execution, "the next driver reads it there"


def test_a_beginning_is_written_only_after_a_look_at_the_claim(
    first: PreparedFlow, waiting: PreparedFlow
) -> None:
    with status_of(first) as status, decisions_of(first) as decisions:
        mine = claim(first, status)
        claim(waiting, status)
        with pytest.raises(SetupError, match="another driver has taken it"):
            start_execution(mine, None, decisions, lambda: expect_ours(mine, status))
        assert known(first).last is None


def test_a_start_is_not_awaited_for_longer_than_the_lease(first: PreparedFlow) -> None:
    bounds: list[float] = []

    class Awaited(DecisionTopic):
        def flush(self, seconds: float = math.inf) -> None:
            bounds.append(seconds)
            super().flush(seconds)

    with closing(Awaited(first.options.kafka, first.names.decisions)) as decisions:
        start_execution(first, None, decisions, lambda: None)
    assert bounds == [HEARTBEAT_TIMEOUT]


def test_a_beginning_that_arrives_behind_a_later_claims_counts_for_nothing(
    first: PreparedFlow, waiting: PreparedFlow
) -> None:
    with status_of(first) as status, decisions_of(first) as decisions:
        mine = claim(first, status).next_execution(2, {}, None)
        others = list[PreparedFlow]()

        def stall() -> None:
            expect_ours(mine, status)
            others.append(claim(waiting, status))
            with decisions_of(first) as theirs:
                start_execution(others[0], None, theirs, lambda: expect_ours(others[0], status))

        start_execution(mine, None, decisions, stall)
        decided = read_decisions(first.options.kafka, first.names.decisions)
        written = [life for life, one in decided if isinstance(one, StartDecision)]
        assert written == [others[0].execution, mine.execution]
        assert known(first).last == others[0].execution
        with pytest.raises(SetupError, match="another driver has taken it"):
            expect_ours(mine, status)


def test_a_driver_whose_heartbeats_reach_the_broker_too_late_has_lost_the_flow(
    first: PreparedFlow, waiting: PreparedFlow
) -> None:
    """The driver itself is on time: the way to the broker is not."""
    with status_of(first) as status, status_of(first) as other:
        mine = claim(first, status)
        claim(waiting, other)
        told = FlowStatus(mine, status, lambda _: None, MetricsCollector())

        def beat_twice() -> None:
            told.starting()
            status.flush(PATIENCE)
            told.starting()

        with pytest.raises(SetupError, match="another driver has taken it"):
            beat_twice()


def test_a_driver_waits_for_the_lease_of_one_that_died(
    first: PreparedFlow, waiting: PreparedFlow
) -> None:
    told = list[float]()
    with status_of(first) as status:
        claim(first, status, told.append)
        assert told == [], "no driver held the flow"
        assert claim(waiting, status, told.append).driver == waiting.driver
    assert told[0] == HEARTBEAT_TIMEOUT
    assert told == sorted(told, reverse=True)
    assert all(left > 0 for left in told)


def test_a_driver_waits_no_longer_than_the_first_lease_that_it_sees(
    first: PreparedFlow, caplog: pytest.LogCaptureFixture
) -> None:
    """The other driver lives on."""
    short = another(first, heartbeat_timeout=PAUSE)
    with status_of(first) as status:
        living = claim(short, status)
        with beside(another(short, wait=True), caplog) as waits:
            options = replace(living.options, heartbeat_timeout=600.0)
            told = FlowStatus(
                replace(living, options=options), status, lambda _: None, MetricsCollector()
            )
            told.starting()
            status.flush(PATIENCE)
        assert isinstance(waits.exception(), SetupError)
        expect_ours(living, status)


def test_a_driver_that_waits_has_the_flow_as_soon_as_the_other_ends(
    first: PreparedFlow, caplog: pytest.LogCaptureFixture
) -> None:
    long = another(first, heartbeat_timeout=600.0)
    with status_of(first) as status:
        told = FlowStatus(claim(long, status), status, lambda _: None, MetricsCollector())
        with pytest.raises(SetupError, match=r"if it is dead, wait 600 s or give --wait\."):
            claim(another(long), status)
        with beside(another(long, wait=True), caplog) as waits:
            told.finished({})
        expect_ours(waits.result(), status)


@contextmanager
def beside(
    prepared: PreparedFlow, caplog: pytest.LogCaptureFixture
) -> Iterator[Future[PreparedFlow]]:
    """A driver claims the flow, and waits for it; the block begins then, and ends after that."""

    def come() -> PreparedFlow:
        with status_of(prepared) as own:
            return claim(prepared, own)

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO):
        waits = pool.submit(come)
        until(lambda: "claim_deferred" in caplog.text, "it waits")
        yield waits


def claims(prepared: PreparedFlow) -> list[Claimed]:
    """All of the flow."""
    topic = prepared.names.status
    with closing(StatusReader(prepared.options.kafka, topic, prepared.flow)) as reader:
        return [told.event for told in reader.all() if isinstance(told.event, Claimed)]
