"""SIGTERM ends a flow behind its final checkpoint, behind a failed one, or once time is up."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from meander.app.config.options import Options
from meander.app.driver.final_checkpoint import FinalCheckpoint
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.schemas.control import CommandError
from meander.schemas.status import Checkpointed, CheckpointFailed
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.start import Start

TIMEOUT = 20.0


class Stopped:
    """A flow whose driver gets a signal, and the requests for its checkpoints."""

    def __init__(self, start: Start, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        sim = CommandedFlow(start).run.sim
        self.clock, self.requests = sim.clock, list[tuple[str, str]]()
        self.refusals = 0
        """The requests that meet another one."""
        self.final = FinalCheckpoint(
            Options({}, on_stop_timeout=TIMEOUT, **options), sim.coordinator, sim.clock
        )
        request = Coordinator.checkpoint

        def noted(coordinator: Coordinator, id: str, *, savepoint: str) -> None:
            if self.refusals:
                self.refusals -= 1
                raise CommandError("another checkpoint is requested")
            self.requests.append((id, savepoint))
            request(coordinator, id, savepoint=savepoint)

        monkeypatch.setattr(Coordinator, "checkpoint", noted)

    def may_end(self, number: int = signal.SIGTERM) -> bool:
        return self.final.may_end(number)


@pytest.fixture
def stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """A flow with the options as they are by default."""
    return Stopped(start, monkeypatch)


def complete(id: str) -> Checkpointed:
    return Checkpointed(
        id, number=1, savepoint="", policy="aligned", ms=1.0, alignment_ms=0.0, write_ms=0.0,
        state_bytes=0, in_flight_bytes=0, in_flight=0,
    )  # fmt: skip


def test_the_flow_ends_once_its_own_request_is_complete(stopped: Stopped) -> None:
    assert [stopped.may_end(), stopped.may_end()] == [False, False]
    ((id, savepoint),) = stopped.requests
    assert savepoint == ""
    stopped.final.note(complete(""))
    assert not stopped.may_end(), "a periodic checkpoint may lack the last records"
    stopped.final.note(complete(id))
    assert stopped.may_end()


def test_a_failed_checkpoint_ends_the_flow_all_the_same(stopped: Stopped) -> None:
    assert not stopped.may_end()
    stopped.final.note(CheckpointFailed(stopped.requests[0][0], number=1, reason="a full disk"))
    assert stopped.may_end()


def test_the_bound_counts_from_the_signal_whatever_the_checkpoint_does(stopped: Stopped) -> None:
    assert not stopped.may_end()
    stopped.clock.advance(TIMEOUT - 0.1)
    assert not stopped.may_end()
    stopped.clock.advance(0.1)
    assert stopped.may_end()


def test_a_request_that_meets_another_one_is_made_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(start, monkeypatch, on_stop="savepoint")
    stopped.refusals = 2
    assert [stopped.may_end() for _ in range(4)] == [False] * 4
    ((_, savepoint),) = stopped.requests
    assert savepoint.startswith("stop-")


def test_ctrl_c_and_a_flow_that_asks_for_none_end_without_a_checkpoint(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stopped, number in (
        (Stopped(start, monkeypatch), signal.SIGINT),
        (Stopped(start, monkeypatch, on_stop="none"), signal.SIGTERM),
    ):
        assert stopped.may_end(number)
        assert stopped.requests == []
