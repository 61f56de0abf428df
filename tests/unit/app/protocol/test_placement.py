"""A process finds its executor in the command of the JVM above it, and refuses to run elsewhere."""

from __future__ import annotations

import pytest

from meander.app.protocol import placement
from meander.app.protocol.placement import LOCAL, expect_placed
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.schemas.errors import MeanderError, SetupError

ON_B = Resources(host="spark-b")


def in_executor(monkeypatch: pytest.MonkeyPatch, found: Resources | None) -> None:
    monkeypatch.setattr(placement, "own_executor", lambda: found)


def test_a_process_that_spark_has_not_started_is_in_no_executor() -> None:
    assert placement.own_executor() is None


def test_a_worker_runs_where_its_placement_admits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    in_executor(monkeypatch, Resources("spark-b", "1"))
    expect_placed("worker 3", ON_B)
    expect_placed("worker 3", Resources(host="spark-b", executor="1"))
    expect_placed("worker 3", Resources(host="spark-b", cores=2, memory=1 << 30))
    with pytest.raises(MeanderError, match="worker 3: Spark started it in executor 1 on host spar"):
        expect_placed("worker 3", Resources(executor="2"))


def test_a_worker_that_does_not_know_its_executor_runs_only_without_a_placement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_executor(monkeypatch, None)
    expect_placed("worker 3", ANYWHERE)
    expect_placed("worker 3", Resources(cores=2, memory=1 << 30))
    with pytest.raises(SetupError, match="worker 3: it must run on host spark-b, and this system"):
        expect_placed("worker 3", ON_B)


def test_the_one_executor_of_a_local_master_has_been_compared_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_executor(monkeypatch, Resources("", LOCAL))
    expect_placed("worker 3", Resources(host="laptop"))
