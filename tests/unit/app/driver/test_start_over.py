"""A flow without a checkpoint starts over only where no result can have left."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from meander.app.driver import driver
from meander.app.driver.execution import DriverResources, ExecutionLost
from meander.app.loading.preflight import PreparedFlow
from meander.app.recovery.sink_ends import SinkEnds
from meander.dataflow.errors import WorkerLost

BEFORE = SinkEnds({("counts", 0): 5})
LOST = WorkerLost("worker 1", "its process was killed", "run the flow again")


class AnsweringKafka:
    """Stands for `RetryUnreachable` while a broker answers."""

    def call(self, call: Callable[[], object]) -> object:
        return call()


@pytest.mark.parametrize(
    ("nothing_committed", "before", "now", "starts_over"),
    [
        (False, BEFORE, BEFORE, True),
        (False, BEFORE, SinkEnds({("counts", 0): 6}), False),
        (False, None, None, False),
        (True, None, None, True),
    ],
    ids=["no result has left", "a result has left", "a sink writes elsewhere", "exactly once"],
)
def test_a_loss_ends_a_flow_whose_results_may_have_left(
    nothing_committed: bool, before: SinkEnds | None, now: SinkEnds | None, starts_over: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, found in (
        ("RetryUnreachable", lambda *_: AnsweringKafka()),
        ("choose_checkpoint", lambda _: None),
        ("_last_joint_decision", lambda _: None),
        ("sink_ends", lambda _: now),
    ):
        monkeypatch.setattr(driver, name, found)
    settings = SimpleNamespace(heartbeat_timeout=10.0)
    flow = cast(PreparedFlow, SimpleNamespace(options=settings))
    resources = SimpleNamespace(
        sink_ends=before, signals=None, status=SimpleNamespace(expect_ours=lambda: None),
        decisions=SimpleNamespace(flush=lambda: None),
    )  # fmt: skip
    survivors = SimpleNamespace(send_heartbeats=lambda: None)
    lost = ExecutionLost(LOST, [], survivors, nothing_committed, {}, None)  # type: ignore[arg-type]

    if starts_over:
        chosen = driver._newest_checkpoint(lost, flow, cast(DriverResources, resources))
        assert chosen == (None, None)
    else:
        with pytest.raises(WorkerLost) as raised:
            driver._newest_checkpoint(lost, flow, cast(DriverResources, resources))
        assert raised.value is LOST
